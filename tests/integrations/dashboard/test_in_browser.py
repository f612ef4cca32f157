"""Each page in a real browser: it fits its window, everybody can use it, and it is quiet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser import DESKTOP, PHONE
from tests.integrations.dashboard.pages import OF_PAGES, PAGES, address

PICTURES = os.environ.get("OUTBOXQ_TEST_PICTURES")
"""The directory in which pictures of the pages are kept."""
FIRST = [next(page for page in PAGES if page.split(" ")[0] == route) for route in OF_PAGES]
"""One page of each route: axe-core, which takes most of the time, looks at the others only in a run that keeps pictures. The
others are opened in the narrow window, where a page may not fit, and in the campaign's desktop.
"""
WINDOWS = {"desktop": DESKTOP, "phone": PHONE}


def looked_at(tab, page, path, window, scheme):
    """What is wrong with a page."""
    before = len(tab.problems)
    answer = tab.open(path)
    found = [f"status {answer.status}"] if answer.status != 200 else []
    found += [*tab.problems[before:], *tab.layout(), *tab.cut()]
    if PICTURES or page in FIRST:
        found += tab.accessibility(only_seen=(window, scheme) != ("desktop", "light"))
    if PICTURES:
        tab.picture(Path(PICTURES) / f"{page.replace(' ', '-')}.{window}.{scheme}.png")
    return [f"{page} ({window}, {scheme}): {one}" for one in found]


@pytest.mark.parametrize(
    ("window", "scheme"),
    [
        ("desktop", "light"),
        ("phone", "dark"),
        pytest.param("desktop", "dark", marks=pytest.mark.campaign),
        pytest.param("phone", "light", marks=pytest.mark.campaign),
    ],
)
def test_each_page_fits_and_everybody_can_use_it(open_tab, site, filling, window, scheme):
    tab = open_tab(site.url, size=WINDOWS[window], dark=scheme == "dark")
    pages = FIRST if (window, scheme) == ("desktop", "light") and not PICTURES else PAGES
    wrong = [one for page in pages for one in looked_at(tab, page, address(page, filling), window, scheme)]
    assert not wrong, "\n".join(wrong)


OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


def test_folded_forms_and_lists_fit_a_phone_when_they_are_opened(open_tab, site, filling):
    tab = open_tab(site.url, size=PHONE)
    wrong = []
    for page in FIRST:
        tab.open(address(page, filling))
        tab.page.evaluate(OPEN_ALL)
        wrong += [f"{page}: {one}" for one in tab.layout()]
    assert not wrong, "\n".join(wrong)
