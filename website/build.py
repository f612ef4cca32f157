"""Build the site: stage the pages, run Zensical, put the Markdown beside the HTML, and check every link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from .links import broken
from .navigation import sections
from .stage import ROOT, navigation, pages, place, stage, tabbed

HERE = Path(__file__).parent
EMPTY_HEADING = re.compile(r"<th(?: [^>]*)?></th>")
"""An empty heading above a column of remarks. A screen reader would announce it."""
SUMMARY = "outboxq is a transactional outbox and task queue. Tasks are stored in your own database."


def build(target: Path) -> None:
    """Write the site to the folder `target`. Raises SystemExit with a list of the faults if the site has any."""
    titles = pages()
    order = list(sections(titles))
    with TemporaryDirectory() as folder:
        source = Path(folder).resolve()
        stage(source / "docs")
        texts = {place(page): (source / "docs" / place(page)).read_text() for page in titles}
        for path, text in texts.items():
            (source / "docs" / path).write_text(tabbed(text))
        for name in ("site.css", "site.js"):
            shutil.copyfile(HERE / name, source / "docs" / name)
        shutil.copytree(HERE / "overrides", source / "overrides")
        head, table, rest = (HERE / "zensical.toml").read_text().partition("[project]\n")
        (source / "zensical.toml").write_text(f"{head}{table}{navigation(iter(order), titles)}\n{rest}")
        _run_zensical(source)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source / "site", target)
        for path, text in texts.items():
            (target / path).write_text(text)
    for path in target.rglob("*.html"):
        path.write_text(EMPTY_HEADING.sub("<td></td>", path.read_text()))
    (target / "llms.txt").write_text(llms_txt(order, titles))
    if complaints := list(broken(target.resolve())):
        raise SystemExit("\n".join(complaints))


def _run_zensical(source: Path) -> None:
    """Run Zensical in strict mode, in which it fails on a warning."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(source / "zensical.toml")]
    done = subprocess.run(command, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        said, _, trace = re.sub(r"\x1b\[[\d;]*m", "", done.stdout).partition("Traceback")
        raise SystemExit(f"Zensical could not build the site:\n{said or trace.strip().rpartition(chr(10))[2]}")


def llms_txt(order: Sequence[tuple[str, Sequence[PurePosixPath]]], titles: dict[PurePosixPath, str]) -> str:
    """Return the index of the Markdown pages, in the form that llmstxt.org describes."""
    lines = ["# outboxq", "", f"> {SUMMARY}"]
    for section, paths in order:
        lines += ["", f"## {section}", "", *(f"- [{titles[path]}]({place(path)})" for path in paths)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    build(ROOT / "build" / "site" if len(sys.argv) == 1 else Path(sys.argv[1]))
