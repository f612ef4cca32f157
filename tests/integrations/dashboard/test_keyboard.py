"""Each control can be reached with Tab, and is visible and marked when it has the focus."""

from __future__ import annotations

import pytest

from tests.browser import PHONE
from tests.integrations.dashboard.pages import address

_CONTROLS = """
() => {
  const controls = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
    .filter((one) => one.checkVisibility({checkVisibilityCSS: true}));
  controls.forEach((one, number) => { one.dataset.control = number; });
  return controls.map((one) => `${one.tagName} ${one.textContent.trim().slice(0, 30) || one.name || one.getAttribute("aria-label")}`);
}
"""
_UNSEEN = "() => Object.defineProperty(document, 'hidden', {value: true})"
"""A hidden page does not refresh itself. On a slow machine, a refresh would take the focus away."""
_FOCUSED = """
() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  return {
    control: one.dataset.control ?? null,
    isSeen: box.width > 0 && box.height > 0 && box.right > 0 && box.bottom > 0,
    isMarked: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none",
  };
}
"""


@pytest.mark.parametrize(
    "page",
    ["task dead_letter", *(pytest.param(page, marks=pytest.mark.full) for page in ("tasks", "queue", "failures"))],
)
def test_each_control_is_reached_by_tab_and_visibly_focused(open_tab, site, filling, page):
    tab = open_tab(site.url, size=PHONE)
    tab.open(address(page, filling))
    tab.page.evaluate(_UNSEEN)
    controls = tab.page.evaluate(_CONTROLS)
    reached, unmarked = set(), []
    for _ in range(len(controls) + 5):
        tab.page.keyboard.press("Tab")
        found = tab.page.evaluate(_FOCUSED)
        if found["control"] is None:
            continue
        reached.add(int(found["control"]))
        if not (found["isSeen"] and found["isMarked"]):
            unmarked.append(controls[int(found["control"])])
    assert [one for number, one in enumerate(controls) if number not in reached] == []
    assert unmarked == []
