"""Rows that attack a page are shown literally: no script runs, nothing is hidden, and the page stays intact."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule

from outboxq.web import application
from outboxq.web.pages import ROUTES
from tests.browser import DESKTOP, PHONE
from tests.integrations.dashboard import hostile
from tests.integrations.dashboard.filling import BIG
from tests.integrations.dashboard.pages import Local, crawl
from tests.integrations.dashboard.serving import Site

PICTURES = os.environ.get("OUTBOXQ_TEST_PICTURES")
_STATE = """
() => {
  const texts = [document.body.textContent, document.title], attributes = [];
  for (const one of document.querySelectorAll("*")) for (const {name, value} of one.attributes) {
    attributes.push(name);
    if (!["href", "action", "src", "value"].includes(name)) texts.push(value);
  }
  const blank = [...document.querySelectorAll("a[href], button, h1")].filter((one) => !one.textContent.trim()).map((one) => one.getAttribute("href"));
  return {blank, text: texts.join("\\n"), attributes, marked: window.MARK !== undefined};
}
""".replace("MARK", hostile.MARK)


def of_each_route(app, most, each):
    """Up to `each` paths of each route, among the first `most` pages that the links lead to."""
    urls = Map([Rule(one.path, endpoint=one.name) for one in ROUTES if not one.is_action]).bind("localhost")
    found = defaultdict(list)
    for path, answer in crawl(Local(app), most=most):
        try:
            name, _ = urls.match(urlsplit(path).path)
        except HTTPException:
            continue
        assert answer.status_code == 200, path
        if answer.mimetype == "text/html" and len(found[name]) < each:
            found[name].append(path)
    return [(name, path) for name, paths in found.items() for path in paths]


def attacks(tab, name, path):
    """The faults that an attack has caused on a page."""
    before = len(tab.problems)
    answer = tab.open(path)
    state = tab.page.evaluate(_STATE)
    found = [f"status {answer.status}"] if answer.status != 200 else []
    found += [*tab.problems[before:], *tab.layout()]
    found += ["a script ran"] if state["marked"] else []
    found += [f"a link to {one} without a word" for one in state["blank"]]
    found += [f"attribute {one}" for one in set(state["attributes"]) if one.startswith(("on", "hx-on", "autofocus"))]
    found += [f"invisible {one!r}" for one in set(re.findall(hostile.INVISIBLE, state["text"]))]
    return [f"{name} {path}: {one}" for one in found]


def attacked(open_tab, database, rows, *, most, each):
    filling = hostile.fill(database, rows)
    app = application(filling.outbox, allow_actions=True, show_arguments=True)
    paths = of_each_route(app, most, each)
    paths += [("task", f"/tasks/{one}") for one in (*filling.nameless, *list(filling.tasks.values())[:each])]
    wrong = []
    with Site(app) as site:
        for size, dark, each_of in ((PHONE, False, 1), (DESKTOP, True, each)):
            tab = open_tab(site.url, size=size, dark=dark)
            for number, (name, path) in enumerate(paths[::each_of]):
                wrong += attacks(tab, name, path)
                if PICTURES:
                    tab.picture(Path(PICTURES) / f"hostile-{name}-{number}.{size[0]}.png")
    assert not wrong, "\n".join(wrong)
    return filling, app


def test_hostile_rows_do_no_harm_to_a_page(open_tab, database):
    filling, app = attacked(open_tab, database, 500, most=60, each=2)
    text = Local(app).get(f"/tasks/{filling.tasks['0']}").text
    assert str(BIG) in text
    assert "9" * 60 in text
    assert "hunter2" not in text


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_none_of_100_000_hostile_rows_harms_a_page(open_tab, database):
    attacked(open_tab, database, 100_000, most=300, each=8)
