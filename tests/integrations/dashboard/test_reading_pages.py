"""Readable pages: long arguments, labels on a phone, fields with their units, and buttons in one line."""

from __future__ import annotations

import json

from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from tests.browser import PHONE
from tests.integrations.dashboard.pages import address
from tests.integrations.dashboard.shop import LETTER
from tests.waiting import until

_LABELS = """
() => [...document.querySelectorAll("main .cards td[data-label]")].filter((one) => one.checkVisibility() && one.offsetHeight)
  .map((one) => getComputedStyle(one, "::before").position)
"""


def long_task(filling):
    """A task with arguments of 200 kB."""
    task = NewTask(id=uuid7(), task_name=LETTER, args=json.dumps({"text": "a " * 100_000}), queue="default")
    filling.outbox.store.enqueue(task)
    return task


def test_long_arguments_are_folded_and_can_be_copied_in_full(open_tab, site, filling):
    tab = open_tab(site.url)
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    task = long_task(filling)
    tab.open(f"/tasks/{task.id}?refresh=off")
    section = tab.page.locator("section[aria-label=Arguments]")
    assert not section.locator("pre").is_visible()
    section.get_by_text("Show 200,").click()
    assert section.locator("pre").is_visible()
    section.locator("button.copy").click()
    until(lambda: section.locator("button.copy").inner_text() == "Copied")
    assert json.loads(tab.page.evaluate("navigator.clipboard.readText()")) == json.loads(task.args)
    tab.open(f"{address('task retried', filling)}?refresh=off")
    assert tab.page.locator("section[aria-label=Arguments] pre").is_visible(), "short arguments are not folded"


def test_there_is_no_copy_button_without_scripts(open_tab, site, filling):
    tab = open_tab(site.url, javascript=False)
    tab.open(f"/tasks/{long_task(filling).id}")
    assert not tab.page.locator("button.copy").is_visible()


def test_every_label_is_beside_its_value_on_a_phone(open_tab, site, filling):
    tab = open_tab(site.url, size=PHONE)
    for page in ("queues", "tasks", "failures", "queue", "workers"):
        tab.open(address(page, filling))
        positions = tab.page.evaluate(_LABELS)
        assert positions
        assert set(positions) == {"absolute"}, page


def test_set_and_cancel_are_in_one_line(open_tab, site, filling):
    tab = open_tab(site.url)
    tab.open(f"/tasks/{filling.tasks['delayed']}")
    acts = tab.page.locator("section[aria-labelledby=acts]")
    boxes = [
        acts.locator(one).first.bounding_box()
        for one in ("button:text-is('Set')", "summary:has-text('Cancel')", "input[name=priority]")
    ]
    middles = [one["y"] + one["height"] / 2 for one in boxes]
    assert max(middles) - min(middles) < 3, middles


def test_the_fields_for_limits_name_their_units(open_tab, site, filling):
    tab = open_tab(site.url)
    tab.open(address("queue", filling))
    labels = tab.page.locator("form:has([name=concurrency]) label:not(:has(textarea))").all_inner_texts()
    words = [one.strip() for one in labels if "eason" not in one and "queue" not in one]
    assert words
    assert [one for one in words if "asks" not in one and "seconds" not in one] == []
