"""A real browser for tests: Chromium, driven by Playwright in a separate thread.

Playwright's synchronous API runs an event loop in the calling thread while the browser is open. In the main thread, this loop would
break tests that run their own event loops, so each test with a tab runs in the browser's thread
(`tests/integrations/dashboard/conftest.py`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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
"""Tags of the axe-core rules that every page must pass."""
SEEN = ("color-contrast", "link-in-text-block", "target-size")
"""Rules whose outcome depends on the window size and the color scheme. They take half as long as all rules together."""

_LAYOUT = """
() => {
  const width = document.documentElement.clientWidth, found = [];
  const page = document.scrollingElement;
  if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} of ${page.clientWidth} pixels wide`);
  for (const one of document.querySelectorAll("[hidden]"))
    if (one.checkVisibility({ opacityProperty: true })) found.push(`${one.tagName}#${one.id} is hidden but visible`);
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
async ([only, exclude]) => (await axe.run({include: [document], exclude}, {runOnly: only, resultTypes: ["violations"]})).violations
  .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.target.join(" ")}: ${node.failureSummary.split("\\n").slice(1).join("; ")}`))
"""
_AXE_OF_DIFFERENT = f"""
(only) => {{
  const shapes = new Map(), repeated = [];
  const shape = (one) => {{
    const own = [...one.attributes].map(({{name, value}}) => ["class", "role", "style", "type"].includes(name) ? `${{name}}=${{value}}` : name);
    shapes.set(one, `${{one.tagName}} ${{own}}(${{[...one.children].map(shape)}})`);
    return shapes.get(one);
  }};
  const leave = (parent) => {{
    const seen = new Set();
    for (const one of parent.children) {{
      if (seen.has(shapes.get(one))) repeated.push(one); else {{ seen.add(shapes.get(one)); leave(one); }}
    }}
  }};
  shape(document.body);
  leave(document.body);
  return ({_AXE})([only, repeated]);
}}
"""
"""axe-core without the elements that have the same tags, classes and attributes as one of their siblings: rows of a table, words of code."""
_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


class Browser:
    """A Chromium that starts on first use. Its tabs must be used only in its thread: see `run`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self._executable = chromium.find()
        self.has_started = False
        self._free: defaultdict[str, list[BrowserContext]] = defaultdict(list)
        """The contexts without a tab, by the options that they were opened with."""

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
            # Chromium cannot use its sandbox when root starts it.
            chromium_sandbox=os.geteuid() != 0 and not self._executable.variables,
        )

    @property
    def version(self) -> str:
        return str(self.run(lambda: self._chromium.version))

    def tab(self, site: str, **options: Any) -> Tab:
        """Open a tab with its own context. Call this method in the browser's thread. See `Tab`."""
        return Tab.opened(self, site, **options)

    def lend(self, **options: Any) -> BrowserContext:
        """Return a context without a tab. A tab in a new context takes 0.7 s of CPU time more than one in a context that had others."""
        if free := self._free[str(options)]:
            return free.pop()
        options.pop("clock")
        context: BrowserContext = self._chromium.new_context(reduced_motion="reduce", locale="en-GB", **options)
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(_VIOLATIONS)
        context.new_page()  # it stays open, because a context is as slow as a new one after its last page has been closed
        return context

    def take_back(self, context: BrowserContext, **options: Any) -> None:
        for page in context.pages[1:]:
            page.close()
        context.clear_cookies()
        context.clear_permissions()
        self._free[str(options)].append(context)

    def close(self) -> None:
        self.run(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self.has_started:
            self._chromium.close()
            self._playwright.stop()


@dataclass
class Tab:
    """A tab that shows a site, and the problems found in it."""

    page: Page
    site: str
    close: Callable[[], None]
    problems: list[str] = field(default_factory=list)
    """Console errors and warnings, uncaught exceptions, violations of the content security policy, and requests to other sites."""
    requests: list[str] = field(default_factory=list)
    """The method and path of each request, in order."""

    @classmethod
    def opened(
        cls,
        browser: Browser,
        site: str,
        *,
        size: tuple[int, int] = DESKTOP,
        dark: bool = False,
        javascript: bool = True,
        zone: str = "UTC",
        clock: bool = False,
    ) -> Tab:
        """Open an empty tab with this window size, color scheme and time zone. With `clock`, `page.clock` controls its time."""
        options = {"java_script_enabled": javascript, "timezone_id": zone, "clock": clock}
        context = browser.lend(**options)
        page = context.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        if clock:  # this also ends the effects of an earlier tab on the context's clock
            page.clock.install()
        tab = cls(page=page, site=site, close=partial(browser.take_back, context, **options))
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
        """Go to a page of the site, and wait until it has loaded."""
        response = self.page.goto(f"{self.site}{path}")
        assert response is not None
        return response

    def layout(self) -> list[str]:
        """Describe the elements that are wider than the window and do not scroll, that are hidden but visible, or that overlap others."""
        return list(self.page.evaluate(_LAYOUT))

    def cut(self) -> list[str]:
        """Describe the tables whose last column is visible only after scrolling sideways."""
        return list(self.page.evaluate(_CUT))

    def accessibility(self, *, only_seen: bool = False, only_different: bool = False) -> list[str]:
        """List the faults that axe-core finds with all rules, or only with the rules in SEEN.

        With `only_different`, it checks only one of several similar siblings, which takes half as long.
        """
        self.page.evaluate(axe())
        only = {"type": "rule", "values": SEEN} if only_seen else {"type": "tag", "values": RULES}
        found = self.page.evaluate(_AXE_OF_DIFFERENT, only) if only_different else self.page.evaluate(_AXE, [only, []])
        return list(found)

    def picture(self, path: Path) -> None:
        """Write the whole page to a PNG file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=True)


@cache
def axe() -> str:
    """Return axe-core's script from the package that contains it."""
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
