"""Copy the repository's pages into one tree, in which each link leads to another page in the tree."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from textwrap import indent

from . import examples

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
TABS = re.compile(r"(?:^\*\*(?:Django|Flask|FastAPI|SQLAlchemy)\*\*\n\n```.*?^```\n\n?){2,}", re.DOTALL | re.MULTILINE)
"""Consecutive code blocks, each below the name of a framework."""
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "guides.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "files/LICENSE.txt",
}
"""Files that have a different path on the site. The README becomes the first page."""


def pages() -> dict[PurePosixPath, str]:
    """Return the titles of the site's pages, by their paths in the repository."""
    paths = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")]
    paths += [ROOT / name for name in PLACES if name != "README.md" and name.endswith(".md") and "/" not in name]
    return {PurePosixPath(path.relative_to(ROOT).as_posix()): title(path.read_text()) for path in sorted(paths)}


def title(text: str) -> str:
    """Return the text of a page's first heading, without Markdown."""
    (found,) = re.findall(r"\A# (.+)$", text, re.MULTILINE)
    return found.replace("`", "")


def place(path: PurePosixPath) -> PurePosixPath:
    """Return the path in the site's tree for a file in the repository."""
    if str(path) in PLACES:
        return PurePosixPath(PLACES[str(path)])
    if path.parts[0] == "docs":
        return path.relative_to("docs").with_name("index.md" if path.name == "README.md" else path.name)
    if path.parts[0] == "examples" and path.name == "README.md":
        return path.parent.with_suffix(".md")
    return PurePosixPath("files") / f"{path}.txt"


def stage(target: Path) -> None:
    """Write the tree to `target`: pages with changed links, archives of the examples, pictures and linked files."""
    named: set[PurePosixPath] = set()
    for page in pages():
        text = relinked((ROOT / page).read_text(), page, named.add)
        if page.parts[0] == "examples":
            example, archive = ROOT / page.parent, PurePosixPath("files") / page.parent.with_suffix(".zip")
            examples.pack(example, target / archive)
            text = examples.with_files(text, example, posixpath.relpath(archive, place(page).parent))
        _write(target / place(page), text)
    for path in (ROOT / "docs").rglob("*.*"):
        if path.suffix != ".md":
            named.add(PurePosixPath(path.relative_to(ROOT).as_posix()))
    for path in named - pages().keys() - {PurePosixPath("README.md")}:
        (target / place(path)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target / place(path))


def relinked(text: str, page: PurePosixPath, name: Callable[[PurePosixPath], object]) -> str:
    """Return a page's text with links that are valid on the site; call `name` with each linked file."""
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(lambda found: _moved(found, page, name), part) for part in parts[::2]]
    return "".join(parts)


def tabbed(text: str) -> str:
    """Return the text with a tab for each framework. The pages themselves have plain labels, which any viewer shows."""
    return TABS.sub(lambda found: _tabs(found[0]), text)


def _tabs(blocks: str) -> str:
    parts = re.findall(r"^\*\*(\w+)\*\*\n\n(```.*?^```\n)", blocks, re.DOTALL | re.MULTILINE)
    return "".join(f'=== "{label}"\n\n{indent(code, "    ")}\n' for label, code in parts)


def _moved(found: re.Match[str], page: PurePosixPath, name: Callable[[PurePosixPath], object]) -> str:
    path = PurePosixPath(posixpath.normpath(page.parent / found[1]))
    if not (ROOT / path).is_file():
        raise LookupError(f"{page} links to {found[1]}, which is not a file.")
    name(path)
    return f"]({posixpath.relpath(place(path), place(page).parent)}{found[2] or ''})"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def navigation(sections: Iterator[tuple[str, list[PurePosixPath]]], titles: Mapping[PurePosixPath, str]) -> str:
    """Return the navigation as a line of TOML."""
    entries = []
    for section, paths in sections:
        inside = ", ".join(f'{{ {json.dumps(titles[path])} = "{place(path)}" }}' for path in paths)
        entries.append(f'{{ "{section}" = [{inside}] }}')
    return f"nav = [{', '.join(entries)}]"
