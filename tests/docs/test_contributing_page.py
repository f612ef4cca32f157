"""What CONTRIBUTING.md, SECURITY.md and the pages for maintainers name is there: files, commands, sessions, links."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.test_guides import anchors

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
TOOLS = {"pip", "python", "pre-commit", "ruff", "lint-imports", "pytest"}
"""Programs of the environment that the page sets up."""
THEIRS = {"CliRunner", "docs"}
"""A class of click's, and a folder."""

of_each_page = pytest.mark.parametrize(
    "page",
    [
        PAGE,
        ROOT / "SECURITY.md",
        ROOT / "docs" / "glossary.md",
        ROOT / "docs" / "explanation" / "architecture.md",
        *sorted((ROOT / "docs" / "decisions").glob("*.md")),
        *sorted((ROOT / ".github").rglob("*.md")),
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)


@of_each_page
def test_a_file_that_a_page_names_is_there(page):
    named = re.findall(r"`((?:outboxq|tests|alembic|docs|benchmarks|examples)/[\w./-]+)", page.read_text())
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []


@of_each_page
def test_a_module_that_a_page_runs_is_there(page):
    modules = set(re.findall(r"python -m ([\w.]+)", page.read_text()))
    assert [name for name in modules if find_spec(name) is None] == []


@of_each_page
def test_a_session_that_a_page_names_is_there(page):
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    assert set(re.findall(r"nox -s (\w+)", page.read_text())) <= sessions


@of_each_page
def test_a_pages_links_lead_somewhere(page):
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text()):
        if not target.startswith("https://"):
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not heading or heading in anchors(there), f"{target}#{heading}"


def test_the_set_up_installs_an_extra_that_there_is():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"-e '\.\[(\w+)\]'", PAGE.read_text())) == {"dev"} <= set(extras)


def test_every_program_of_a_command_is_known():
    assert set(re.findall(r"\.venv/bin/([\w-]+)", PAGE.read_text())) <= TOOLS


def test_every_generated_part_has_its_command():
    programs = {
        f"tests.docs.{path.stem}"
        for path in Path(__file__).parent.glob("*.py")
        if re.search(r'^if __name__ == "__main__":\n(.*\n)*.*(put_between|write_text)', path.read_text(), re.MULTILINE)
    }
    assert {name for name in programs if name not in PAGE.read_text()} == set()


def test_a_name_that_the_page_tells_newcomers_to_look_for_is_defined():
    """Each bare name in the part about adding something is a function, class, field or constant of the package or its tests."""
    _, _, section = PAGE.read_text().partition("\n## Add something\n")
    names = set(re.findall(r"`(?:\w+\.)*([A-Za-z_]\w+)(?:\(…\)|\(\))?`", section.partition("\n## Documentation\n")[0]))
    sources = "\n".join(path.read_text() for folder in ("outboxq", "tests") for path in (ROOT / folder).rglob("*.py"))
    defined = set(re.findall(r"^\s*(?:def|class) (\w+)|^ *(\w+)(?:: [^=\n]+)? =", sources, re.MULTILINE))
    known = {name for pair in defined for name in pair}
    assert len(names) > 10
    assert names - known - THEIRS == set()
