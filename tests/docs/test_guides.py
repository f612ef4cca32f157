"""The guides, executed: their code and their commands run, block after block, in an empty directory, on both databases.

A guide's first block is its module `shop`. Its last block asserts the results. In its commands, `$name` stands for a variable from earlier
blocks, and the text after `  # ` is part of the command's output. A block of commands that begins with `# PostgreSQL` runs only there.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy.engine import make_url

import outboxq
from outboxq.cli import main
from outboxq.model import TaskStatus
from outboxq.store import Store

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
EMBEDDED = '"sqlite:///shop.db"'
FENCE = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(guide: Path) -> list[tuple[str, int, str]]:
    """Return the blocks that can be run: the language, the number of the line before the block, and the source."""
    text = guide.read_text()
    return [(found[1], text.count("\n", 0, found.start(2)), found[2]) for found in FENCE.finditer(text)]


def is_guide(page: Path) -> bool:
    """Return True if the page's only file is `shop.py`, in the first block. Other pages have their own tests."""
    files = [re.match(r"# \S+\.\w+\n", source) for language, _, source in blocks(page) if language == "python"]
    return bool(files) and files[0] is not None and files[0][0] == "# shop.py\n" and not any(files[1:])


GUIDES = [page for page in PAGES if is_guide(page)]

of_each_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)


FEWER = {
    "report": {"10_001": "1_001", "10_000": "1_000", "10000": "1000", "9998": "998", "4711": "471"},
    "import": {"12_001": "1_201", "12_000": "1_200", "5_000": "500"},
}
"""Smaller numbers of tasks in guides that enqueue very many. A full run uses the numbers on the page."""


@pytest.fixture
def runnable(guide: Path, pytestconfig: pytest.Config) -> list[tuple[str, int, str]]:
    """The guide's blocks, with smaller numbers if this is not a full run."""
    found = blocks(guide)
    for many, few in () if pytestconfig.getoption("full") else FEWER.get(guide.stem, {}).items():
        assert any(many in source for *_, source in found), f"{guide} does not contain {many}"
        found = [(*where, source.replace(many, few)) for *where, source in found]
    return found


@pytest.fixture
def shop(runnable: Any, database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write the guide's module `shop` to an empty working directory. It has the URL of the test's database, whose tables exist."""
    (language, _, module), *_ = runnable
    assert (language, module.partition("\n")[0], module.count(EMBEDDED)) == ("python", "# shop.py", 1)
    (tmp_path / "shop").mkdir()
    url = make_url(database.url).render_as_string(hide_password=False)
    (tmp_path / "shop" / "shop.py").write_text(module.replace(EMBEDDED, repr(url)))
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.syspath_prepend(tmp_path / "shop")
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", url)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    yield
    if (imported := sys.modules.pop("shop", None)) is not None:
        imported.engine.dispose()


LATEST = datetime(2031, 1, 1, tzinfo=UTC)
"""A time after the clock of any guide's harness."""


@pytest.mark.in_turn
@of_each_guide
def test_the_blocks_of_a_guide_run_from_top_to_bottom(guide, runnable, database, shop):
    _, *rest = runnable
    names: dict[str, object] = {}
    for language, before, source in rest:
        if language == "python":
            exec(compile("\n" * before + source, str(guide), "exec"), names)
        elif database.name == "postgresql" or not source.startswith("# PostgreSQL\n"):
            run(source, names)
    language, _, last = rest[-1]
    assert language == "python"
    assert re.search("^assert ", last, re.MULTILINE), "a guide must end with an assertion about its results"
    outbox = sys.modules["shop"].outbox
    assert outbox.store.tasks(status=TaskStatus.RUNNING) == []
    if database.reused is not None and database.reused.warm is not None:  # a page may have created the tables again
        database.engine.dispose()
        database.reused.warm.forget_statements()
    database.clock.now = LATEST
    assert Store(database.engine, clock=database.clock).verify() == []


def run(source: str, names: dict[str, object]) -> None:
    for line in source.splitlines():
        if line.startswith("#"):
            continue
        command, _, prints = line.partition("  # ")
        program, *arguments = shlex.split(Template(command).substitute(names))
        assert program == "outboxq"
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert prints in result.output, f"{line}\n{result.output}"


def test_every_other_page_with_code_is_named_in_a_test():
    here = Path(__file__)
    tests = [*here.parent.glob("test_*.py"), *here.parents[1].glob("brokers/test_*_page.py")]
    others = {path.name: path.read_text() for path in tests if path != here}
    for page in PAGES:
        if page not in GUIDES and blocks(page):
            assert any(page.name in source for source in others.values()), f"no test names {page.name}"


def test_every_public_name_that_a_guide_imports_is_exported():
    code = "".join(source for page in PAGES for _, _, source in blocks(page))
    imports = re.findall(r"^from outboxq import (.+)$", code, re.MULTILINE)
    assert {name for line in imports for name in line.split(", ")} <= set(outboxq.__all__)
