"""A person's settings for a browser: times, colors and keyboard shortcuts, with and without JavaScript."""

from __future__ import annotations

import re

import pytest

from tests.integrations.dashboard.pages import address
from tests.integrations.dashboard.visiting import Visitor
from tests.waiting import until

DAY = "2026-11-23T22:30:05+00:00"
_TIMES = "() => [...document.querySelectorAll('#page time')].map((one) => [one.dateTime, one.textContent, one.title])"
_UNSEEN = "() => Object.defineProperty(document, 'hidden', {value: true})"
"""A hidden page does not refresh itself."""
_RESET = f"""
() => {{
  const one = document.querySelector("#page time");
  one.setAttribute("datetime", "{DAY}");
  one.textContent = "2026-11-23 22:30:05 UTC";
}}
"""
"""Reset a time to the server's text, as a refresh does."""


@pytest.fixture
def visitor(filling):
    from outboxq.web import application

    return Visitor(application(filling.outbox))


def test_chosen_settings_are_kept_in_the_browser(visitor):
    visitor.go("/?theme=dark").go("/queues")
    assert [words for words, href in visitor.page.links if href == "/queues?theme=dark"] == ["dark"]
    answer = visitor._client.get("/queues").text
    assert 'data-theme="dark" data-times="utc"' in answer
    assert 'aria-current="true">dark<' in answer
    visitor.go("/queues?theme=pink&keys=off")
    answer = visitor._client.get("/queues").text
    assert 'data-theme="dark"' in answer
    assert 'id="keys"' not in answer


def test_times_can_be_shown_in_the_time_zone_of_the_browser(open_tab, site, filling):
    tab = open_tab(site.url, zone="Asia/Tokyo")
    tab.open(address("task retried", filling))
    tab.page.evaluate(_UNSEEN)
    in_utc = tab.page.evaluate(_TIMES)
    assert all(text.endswith(" UTC") for _, text, _ in in_utc if len(text) > 15)
    tab.open(f"{address('task retried', filling)}?times=local")
    tab.page.evaluate(_UNSEEN)
    until(lambda: not any(text.endswith(" UTC") for _, text, _ in tab.page.evaluate(_TIMES)))
    tab.page.evaluate(_RESET)
    until(lambda: tab.page.evaluate(_TIMES)[0] == [DAY, "2026-11-24 07:30:05", "2026-11-23 22:30:05 UTC"])
    assert tab.page.locator("#zone").inner_text() == "Times are in Asia/Tokyo."


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chosen_color_theme_is_used(open_tab, site, theme):
    tab = open_tab(site.url, dark=theme == "light")
    tab.open(f"/?theme={theme}")
    background = tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(14, 18, 23)") is (theme == "dark"), background


def test_shortcuts_open_pages_and_select_rows(open_tab, site, filling):
    tab = open_tab(site.url)
    tab.open(address("tasks", filling))
    tab.page.evaluate(_UNSEEN)
    keyboard, focused = (
        tab.page.keyboard,
        "() => document.activeElement.closest('tr')?.sectionRowIndex ?? document.activeElement.name",
    )
    for key, row in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
        keyboard.press(key)
        assert tab.page.evaluate(focused) == row
    keyboard.press("/")
    assert tab.page.evaluate(focused) == "id"
    keyboard.press("j")
    assert tab.page.locator("[name=id]").input_value() == "j"
    tab.page.evaluate("() => document.activeElement.blur()")
    keyboard.press("g")
    keyboard.press("2")
    tab.page.wait_for_url("**/queues")
    assert tab.page.locator("#keys kbd", has_text=re.compile("^[0-9]+$")).all_inner_texts() == [*"1234567890"]
    keyboard.press("g")
    keyboard.press("0")
    tab.page.wait_for_url("**/system")
    tab.open("/?keys=off")
    keyboard.press("g")
    keyboard.press("2")
    assert tab.page.url.endswith("/?keys=off")
