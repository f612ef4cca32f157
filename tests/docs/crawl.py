"""Open each page of the website in Chromium, at 1440 and 390 pixels, light and dark, and list its faults:
`python -m tests.docs.crawl build/site [PART OF A PATH]`.

axe-core checks each page with all rules in one of the four combinations, and only with the rules about appearance in the others.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Final

from tests.browser import DESKTOP, PHONE, Browser, Tab

_HAS_SCHEME: Final = """
(scheme) => [undefined, {light: "default", dark: "slate"}[scheme]].includes(document.body.dataset.mdColorScheme)
"""
SCHEMES: Final = ("light", "dark")
_HIDDEN: Final = """
() => {
  const found = [];
  for (const one of document.images) if (!one.complete || !one.naturalWidth) found.push(`${one.src} was not loaded`);
  for (const one of document.body.querySelectorAll("*")) {
    const cuts = ["hidden", "clip"].includes(getComputedStyle(one).overflowX) && one.clientWidth > 1;
    const isRead = one.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && one.textContent.trim();
    if (cuts && isRead && one.scrollWidth > one.clientWidth + 1) found.push(`cut off: ${one.className}: ${one.textContent.trim().slice(0, 60)}`);
  }
  return found;
}
"""


def main(arguments: list[str]) -> int:
    site, part = Path(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if part in path.as_posix())
    began, browser = time.monotonic(), Browser()
    try:
        with served(site) as address:
            found = browser.run(crawl, browser, address, pages)
    finally:
        browser.close()
    for fault in found:
        print(fault)
    print(f"{len(pages)} pages, 4 times each: {len(found)} faults, {time.monotonic() - began:.0f} s")
    return 1 if found or not pages else 0


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the website on a free port of the loopback interface, and yield its address."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def crawl(browser: Browser, address: str, pages: list[str], *, quick: bool = False) -> list[str]:
    """Open each page, and return all faults. Call this function in the browser's thread.

    With `quick`, axe-core checks each window size and each color scheme only once, and one of several similar siblings.
    """
    tab = browser.tab(address)
    found = [f"{page} {fault}" for page in pages for fault in faults(tab, page, quick=quick)]
    tab.close()
    return found


def faults(tab: Tab, page: str, *, quick: bool = False) -> list[str]:
    """Open a page, and return its faults in each window size and color scheme."""
    found = []
    tab.problems.clear()
    tab.open(f"/{page}")
    first, *_, last = product((DESKTOP, PHONE), SCHEMES)
    for size, scheme in product((DESKTOP, PHONE), SCHEMES):
        tab.page.set_viewport_size({"width": size[0], "height": size[1]})
        tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        tab.page.wait_for_function(_HAS_SCHEME, arg=scheme)  # the theme follows with a delay
        has_turn = not quick or (size, scheme) in {first, last}
        seen = tab.accessibility(only_seen=(size, scheme) != first, only_different=quick) if has_turn else []
        seen += [*tab.layout(), *tab.page.evaluate(_HIDDEN), *tab.problems]
        found += [f"({size[0]} px, {scheme}): {fault}" for fault in seen]
        tab.problems.clear()
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
