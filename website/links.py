"""Check that each link on a built site has a target, and that nothing is loaded from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
"""The elements and attributes whose links a browser loads to show a page. A browser follows other links only after a
click.
"""
NOT_FETCHED = {"canonical", "next", "prev"}


class Page(HTMLParser):
    """The anchors and links in an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        """Each link, and whether a browser loads it to show the page."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        for name in ("href", "src", "data"):
            if (link := given.get(name)) and not (tag == "link" and given.get("rel") in NOT_FETCHED):
                self.links.append((link, (tag, name) in LOADED))


def broken(site: Path) -> Iterator[str]:
    """Yield a sentence for each broken link, and for each file that is loaded from another host."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link, is_loaded in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if is_loaded and parts.scheme != "data":
                    yield f"{name} loads {link} from another host."
                continue
            folder = site if parts.path.startswith("/") else path.parent
            target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name} links to {link}, which does not exist."
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name} links to {link}, and the page has no such anchor."
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", path.read_text()):
            yield f"{path.relative_to(site)} loads {link} from another host."
