"""A page refreshes itself without disturbing its reader. The test controls the tab's clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.web.rendering import age
from tests.integrations.dashboard.pages import address
from tests.integrations.dashboard.shop import LETTER
from tests.waiting import until

PERIOD = 6_000
"""A time in milliseconds within which a page asks the server again."""


@pytest.fixture
def at(open_tab, site, filling, browser):
    """Open one of `PAGES` in a tab whose clock the test controls."""

    def opened(page):
        tab = open_tab(site.url, clock=True)
        tab.open(address(page, filling))
        tab.page.evaluate("window.sameDocument = true")
        return tab

    return opened


def passes(tab, milliseconds=PERIOD):
    """Let time pass in the tab."""
    tab.page.clock.run_for(milliseconds)


def shows(tab, words):
    """Let time pass until the page shows these words. The document must not be loaded again."""

    def is_shown():
        passes(tab)
        return words in tab.page.inner_text("main")

    until(is_shown, every=0.1)
    assert tab.page.evaluate("window.sameDocument")


def whole(age):
    """The text of an age, in whole seconds."""
    return re.sub(r"\.\d s", " s", age.striptags().replace("\xa0", " "))


def asked(tab):
    """The number of requests for a page so far."""
    return len([one for one in tab.requests if "/static/" not in one])


def test_a_page_shows_changes_without_a_reload(open_tab, at, filling):
    tab = at("queue")
    assert "is paused" not in tab.page.inner_text("main")
    filling.outbox.store.queues.pause("ledger", create=True)
    shows(tab, "paused")
    filling.outbox.store.queues.resume("ledger")
    until(lambda: passes(tab) or "paused since" not in tab.page.inner_text("main"), every=0.1)
    assert not tab.problems


def test_a_hidden_page_sends_no_requests(open_tab, at):
    tab = at("overview")
    tab.page.evaluate("Object.defineProperty(document, 'hidden', {configurable: true, get: () => true})")
    before = asked(tab)
    passes(tab, 10 * PERIOD)
    assert asked(tab) == before
    tab.page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: passes(tab, 10) or asked(tab) > before, every=0.1)


def test_a_refresh_keeps_the_focus_and_open_details(open_tab, at, filling):
    tab = at("task retried")
    tab.page.locator("main details").first.locator("summary").click()
    tab.page.locator("main a[href]").last.focus()
    focused = tab.page.evaluate("document.activeElement.outerHTML")
    filling.outbox.store.queues.pause("default", create=True)
    before = asked(tab)
    until(lambda: passes(tab) or asked(tab) >= before + 2, every=0.1)
    assert tab.page.locator("main details").first.get_attribute("open") is not None
    assert tab.page.evaluate("document.activeElement.outerHTML") == focused


def test_a_refresh_waits_for_a_form_that_is_being_filled(open_tab, at, filling):
    tab = at("tasks")
    tab.page.get_by_text("Filter", exact=True).first.click()
    field = tab.page.locator("main form input[name=queue]")
    field.fill("ledg")
    tab.page.evaluate("document.activeElement.blur()")
    before = asked(tab)
    filling.outbox.store.cancel(filling.tasks["due"])
    passes(tab, 5 * PERIOD)
    assert asked(tab) == before
    assert field.input_value() == "ledg"
    field.fill("")
    tab.page.evaluate("document.activeElement.blur()")
    until(lambda: passes(tab) or asked(tab) > before, every=0.1)


@pytest.mark.parametrize("aim", ["pointer", "focus"])
def test_nothing_moves_under_the_pointer_or_the_focus(at, filling, aim):
    tab = at("queue")
    button = tab.page.locator("main summary", has_text="Pause").first
    if aim == "focus":
        button = tab.page.locator("main button:visible").first
        button.focus()
    else:
        button.hover()
    place = button.bounding_box()
    filling.outbox.store.queues.limit("ledger", concurrency=7, create=True)
    changed = tab.page.locator("#changed")
    until(lambda: passes(tab) or changed.is_visible(), every=0.1)
    assert button.bounding_box() == place
    assert "7 tasks, on all machines" not in tab.page.inner_text("main")
    if aim == "focus":
        tab.page.evaluate("document.activeElement.blur()")
    else:
        tab.page.locator("h1").hover()
    shows(tab, "7 tasks, on all machines")
    until(changed.is_hidden, every=0.1)
    filling.outbox.store.queues.limit("ledger", concurrency=None)


@pytest.mark.parametrize("aim", ["tick box", "focus", pytest.param("link", marks=pytest.mark.full)])
def test_a_row_stays_under_the_pointer_or_the_focus(at, filling, aim):
    tab = at("tasks")
    tab.open("/tasks?state=due")
    row = tab.page.locator("main tbody tr").first
    link = row.locator("th a")
    if aim == "focus":
        link.focus()
    else:
        (link if aim == "link" else row.locator("input")).hover()
    first = link.get_attribute("href")
    for number in range(3):
        filling.outbox.store.enqueue(
            NewTask(id=uuid7(), task_name=LETTER, args=f'{{"number": {number}}}', queue="default")
        )
    changed = tab.page.locator("#changed")
    # On a slow machine, delayed tasks may become due in the meantime, and are then also new entries.
    until(lambda: passes(tab) or re.fullmatch(r"[345] new entries\. Show the changes", changed.inner_text()), every=0.1)
    assert changed.is_visible()
    assert link.get_attribute("href") == first
    if aim == "focus":
        tab.page.evaluate("document.activeElement.blur()")
    else:
        tab.page.locator("h1").hover()
    until(lambda: passes(tab) or link.get_attribute("href") != first, every=0.1)
    until(changed.is_hidden, every=0.1)


SPANS = (-90_000, -4_000, -610, -65, -1, 0, 4, 55, 594, 595, 3_594, 3_595, 86_394, 86_395, 200_000, 10**8)
"""Ages in seconds. Negative ages are in the future."""


def test_ages_advance_without_the_server(at):
    tab = at("workers")
    page = tab.page.locator("#page")

    def texts():
        page.evaluate(
            "(page, all) => page.append(...all.map((html) => new Range().createContextualFragment(html)))", spans
        )
        passes(tab)
        return [one.replace("\xa0", " ") for one in page.locator(":scope > [data-age]").all_inner_texts()]

    now = datetime.now(UTC)
    spans = [str(age(now - timedelta(seconds=one), now)) for one in SPANS]
    found = until(texts, every=0.1)  # tries again, because a refresh removes the ages
    passed = timedelta(seconds=int(found[SPANS.index(0)].split()[0]))
    assert 5 <= passed.seconds < 60
    expected = [whole(age(now - timedelta(seconds=one) - passed, now)) for one in SPANS]
    assert found == expected


def test_an_unreachable_server_is_reported(open_tab, at, site):
    tab = at("overview")
    assert not tab.page.get_by_role("alert").is_visible()
    site.close()
    until(lambda: passes(tab) or tab.page.get_by_role("alert").is_visible(), every=0.1)
