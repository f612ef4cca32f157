"""A real browser for tests: Chromium, driven by playwright in a thread of its own.

Playwright's synchronous calls run an event loop in the thread that makes them, for as long as the browser is there. In the main
thread that would break the tests that run loops of their own, so each test with a tab runs in the browser's thread
(`tests/integrations/dashboard/conftest.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import axe_playwright_python
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, Response, sync_playwright

from tests import chromium
from tests.waiting import PATIENCE

P = ParamSpec("P")
R = TypeVar("R")

DESKTOP, PHONE = (1440, 900), (390, 844)
"""Width and height of a window in pixels."""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""The tags of the rules of axe-core that pages keep."""
SEEN = ("color-contrast", "link-in-text-block", "target-size")
"""The rules that a page may keep in one window and one scheme, and break in another; they take half of the time of all."""

_LAYOUT = """
() => {
  const width = document.documentElement.clientWidth, found = [];
  const page = document.scrollingElement;
  if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} of ${page.clientWidth} pixels wide`);
  for (const one of document.querySelectorAll("[hidden]"))
    if (one.checkVisibility({ opacityProperty: true })) found.push(`${one.tagName}#${one.id} is hidden and yet seen`);
  for (const one of document.querySelectorAll("td[data-label]")) {
    const label = getComputedStyle(one, "::before");
    if (label.position === "absolute" && parseFloat(label.width) > parseFloat(getComputedStyle(one).paddingLeft))
      found.push(`the label ${one.dataset.label} covers what it names`);
  }
  for (const axis of document.querySelectorAll(".chart .x")) {
    const boxes = [...axis.querySelectorAll("text")].map((one) => one.getBoundingClientRect()).filter((box) => box.width);
    if (boxes.some((box, at) => at && boxes[at - 1].right > box.left)) found.push(`labels of a time axis overlap: ${axis.textContent.trim()}`);
  }
  const scrolls = (one) => ["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(one).overflowX);
  for (const one of document.body.querySelectorAll("*")) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || (box.right <= width + 1 && (box.left >= -1 || box.right <= 0))) continue;
    let around = one.parentElement;
    while (around !== document.body && !scrolls(around)) around = around.parentElement;
    if (around === document.body) found.push(`${one.tagName}.${one.getAttribute("class")} ends at ${box.right} of ${width}: ${one.textContent.slice(0, 60)}`);
  }
  return found;
}
"""
_CUT = """
() => [...document.querySelectorAll(".scroll:has(> table)")].filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => `the table ${one.ariaLabel} is ${one.scrollWidth} of ${one.clientWidth} pixels wide`)
"""
_AXE = """
async (only) => (await axe.run(document, {runOnly: only, resultTypes: ["violations"]})).violations
  .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.target.join(" ")}: ${node.failureSummary.split("\\n").slice(1).join("; ")}`))
"""
_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


class Browser:
    """One Chromium, which starts when it is asked for first. Its tabs are used in its thread only: see `run`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self._executable = chromium.find()
        self.has_started = False

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in the browser's thread, and return what it returns."""
        return self._thread.submit(function, *args, **kwargs).result()

    @cached_property
    def _playwright(self) -> Any:
        return sync_playwright().start()

    @cached_property
    def _chromium(self) -> Any:
        self.has_started = True
        return self._playwright.chromium.launch(
            executable_path=self._executable.path,
            env={**os.environ, **self._executable.variables},
            # What an administrator starts has no sandbox in Chromium; an ordinary user's has.
            chromium_sandbox=os.geteuid() != 0 and not self._executable.variables,
        )

    @property
    def version(self) -> str:
        return str(self.run(lambda: self._chromium.version))

    def tab(self, site: str, **options: Any) -> Tab:
        """Open a tab with a context of its own; to be called in the browser's thread. See `Tab`."""
        return Tab.opened(self._chromium, site, **options)

    def close(self) -> None:
        self.run(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self.has_started:
            self._chromium.close()
            self._playwright.stop()


@dataclass
class Tab:
    """A tab at a site, and what went wrong in it."""

    page: Page
    site: str
    context: BrowserContext
    problems: list[str] = field(default_factory=list)
    """Errors and warnings of the console, uncaught exceptions, violations of the policy, and requests to other sites."""
    requests: list[str] = field(default_factory=list)
    """The method and path of each request, in order."""

    @classmethod
    def opened(
        cls,
        browser: Any,
        site: str,
        *,
        size: tuple[int, int] = DESKTOP,
        dark: bool = False,
        javascript: bool = True,
        zone: str = "UTC",
        **options: Any,
    ) -> Tab:
        """Open it empty, in a window of this size, in the light or the dark scheme, in a time zone."""
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id=zone,
            **options,
        )
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(_VIOLATIONS)
        page = context.new_page()
        tab = cls(page=page, site=site, context=context)
        page.on("console", tab._said)
        page.on("pageerror", lambda error: tab.problems.append(f"exception: {error}"))
        page.on("request", tab._asked)
        return tab

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if request.url.startswith(f"{self.site}/"):
            self.requests.append(f"{request.method} {request.url.removeprefix(self.site)}")
        elif not request.url.startswith(("data:", "about:")):
            self.problems.append(f"request to another site: {request.url}")

    def open(self, path: str = "/") -> Response:
        """Go to a page of the site, and wait until it is loaded."""
        response = self.page.goto(f"{self.site}{path}")
        assert response is not None
        return response

    def layout(self) -> list[str]:
        """Name the elements that are wider than the window and do not scroll by themselves, that show though hidden, that are covered, or that overlap."""
        return list(self.page.evaluate(_LAYOUT))

    def cut(self) -> list[str]:
        """Name the tables whose last column is only visible after scrolling sideways."""
        return list(self.page.evaluate(_CUT))

    def accessibility(self, *, only_seen: bool = False) -> list[str]:
        """List the faults that axe-core finds: by all rules, or by those about how the page looks."""
        self.page.evaluate(axe())
        only = {"type": "rule", "values": SEEN} if only_seen else {"type": "tag", "values": RULES}
        return list(self.page.evaluate(_AXE, only))

    def picture(self, path: Path) -> None:
        """Write the whole page to a PNG file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=True)

    def close(self) -> None:
        self.context.close()


@cache
def axe() -> str:
    """The script of axe-core, from the package that brings it."""
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
