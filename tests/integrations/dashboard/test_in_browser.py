"""Each page in a real browser: it fits its window, is accessible, and reports no problems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser import DESKTOP, PHONE
from tests.integrations.dashboard.pages import OF_PAGES, PAGES, address

PICTURES = os.environ.get("OUTBOXQ_TEST_PICTURES")
"""The directory for screenshots of the pages."""
FIRST = [next(page for page in PAGES if page.split(" ")[0] == route) for route in OF_PAGES]
"""One page of each route. axe-core takes most of the time, so it checks the other pages only in a run that takes
screenshots. The others are opened in the phone's window, where a page may not fit, and in the campaign's desktop
window.
"""
WINDOWS = {"desktop": DESKTOP, "phone": PHONE}
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


def looked_at(tab, page, path, window, scheme, *, axe, by_all_rules, only_different):
    """Return the faults of a page and, on a phone, those of its unfolded forms and lists."""
    before = len(tab.problems)
    answer = tab.open(path)
    found = [f"status {answer.status}"] if answer.status != 200 else []
    found += [*tab.problems[before:], *tab.layout(), *tab.cut()]
    if axe:
        found += tab.accessibility(only_seen=not by_all_rules, only_different=only_different)
    if PICTURES:
        tab.picture(Path(PICTURES) / f"{page.replace(' ', '-')}.{window}.{scheme}.png")
    if window == "phone":
        tab.page.evaluate(OPEN_ALL)
        found += [f"opened: {one}" for one in tab.layout()]
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
def test_each_page_fits_its_window_and_is_accessible(open_tab, site, filling, window, scheme, pytestconfig):
    """axe-core checks half of the routes in each window, and all of them in each window in a full run."""
    tab = open_tab(site.url, size=WINDOWS[window], dark=scheme == "dark")
    is_full = bool(PICTURES) or pytestconfig.getoption("full")
    is_plain = (window, scheme) == ("desktop", "light")
    for_axe = set(PAGES if PICTURES else FIRST if is_full else FIRST[::2] if is_plain else FIRST[1::2])
    pages = PAGES if PICTURES or not is_plain else FIRST if is_full else FIRST[::2]
    wrong = []
    for page in pages:
        rules = {"axe": page in for_axe, "by_all_rules": is_plain or not is_full, "only_different": not is_full}
        wrong += looked_at(tab, page, address(page, filling), window, scheme, **rules)
    assert not wrong, "\n".join(wrong)
