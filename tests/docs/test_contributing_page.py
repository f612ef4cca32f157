"""Every link on every page has a target. The files, commands and sessions that the pages for maintainers name exist."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from tests.docs.test_guides import FENCE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
TOOLS = {"pip", "python", "pre-commit", "ruff", "lint-imports", "pytest"}
"""Programs in the environment that the page sets up."""
THEIRS = {"CliRunner", "docs"}
"""A class in click, and a folder."""

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
"""All pages."""
OURS = [
    PAGE,
    ROOT / "SECURITY.md",
    ROOT / "docs" / "glossary.md",
    ROOT / "docs" / "explanation" / "architecture.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
"""The pages for maintainers, which name files and modules of the repository."""
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]+))?\)")


def missing(pattern: str, pages: Iterable[Path], is_there: Callable[[str], object]) -> list[str]:
    """Return each name that the pattern finds in the pages but that does not exist, with its page."""
    found = ((page, name) for page in pages for name in re.findall(pattern, page.read_text()))
    return [f"{page.relative_to(ROOT)}: {name}" for page, name in found if not is_there(name)]


def test_every_file_that_a_page_names_exists():
    pattern = r"`((?:outboxq|tests|alembic|docs|benchmarks|examples)/[\w./-]+)"
    assert missing(pattern, OURS, lambda name: (ROOT / name.rstrip(".")).exists()) == []


def test_every_module_that_a_page_runs_exists():
    assert missing(r"python -m ((?:tests|benchmarks)[\w.]*)", PAGES, find_spec) == []
    assert missing(r"python -m ([\w.]+)", OURS, find_spec) == []


def test_every_session_that_a_page_names_exists():
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    assert missing(r"nox -s (\w+)", PAGES, sessions.__contains__) == []


def test_every_link_has_a_target():
    broken = []
    for page in PAGES:
        for target, heading in LINK.findall(page.read_text()):
            there = page.parent / target if target else page
            if target.startswith(("https://", "mailto:")) or (
                there.exists() and (not heading or heading in anchors(there))
            ):
                continue
            broken.append(f"{page.relative_to(ROOT)}: {target}#{heading}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_setup_installs_an_existing_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"-e '\.\[(\w+)\]'", PAGE.read_text())) == {"dev"} <= set(extras)


def test_every_program_of_a_command_is_known():
    assert set(re.findall(r"\.venv/bin/([\w-]+)", PAGE.read_text())) <= TOOLS


def test_the_page_lists_the_command_of_every_generated_part():
    programs = {
        f"tests.docs.{path.stem}"
        for path in Path(__file__).parent.glob("*.py")
        if re.search(r'^if __name__ == "__main__":\n(.*\n)*.*(put_between|write_text)', path.read_text(), re.MULTILINE)
    }
    assert {name for name in programs if name not in PAGE.read_text()} == set()


def test_every_code_name_that_the_page_mentions_is_defined():
    """Each bare name in the section about adding something is a function, class, field or constant of the package or its tests."""
    _, _, section = PAGE.read_text().partition("\n## Add something\n")
    names = set(re.findall(r"`(?:\w+\.)*([A-Za-z_]\w+)(?:\(…\)|\(\))?`", section.partition("\n## Documentation\n")[0]))
    sources = "\n".join(path.read_text() for folder in ("outboxq", "tests") for path in (ROOT / folder).rglob("*.py"))
    defined = set(re.findall(r"^\s*(?:def|class) (\w+)|^ *(\w+)(?:: [^=\n]+)? =", sources, re.MULTILINE))
    known = {name for pair in defined for name in pair}
    assert len(names) > 10
    assert names - known - THEIRS == set()
