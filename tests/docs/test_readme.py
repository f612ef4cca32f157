"""The README: its code runs, and its commands are the commands of CI."""

from __future__ import annotations

import ast
import itertools
import os
import re
import signal
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import click
import pytest

from outboxq.cli import main
from outboxq.database.engine import make_engine
from outboxq.model import TaskStatus
from outboxq.store import Store
from tests import forked
from tests.conftest import DATABASES
from tests.waiting import until

ROOT = Path(__file__).parents[2]
EMBEDDED = "sqlite:///shop.db"
README = (ROOT / "README.md").read_text()
MESSAGES = ROOT / "docs" / "troubleshooting" / "errors.md"
"""A page with messages, which may look like commands."""
DOCS = "\n".join([README, *(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")) if path != MESSAGES)])


def blocks(language: str) -> list[tuple[int, str]]:
    """Return the fenced blocks of a language, each with the number of the line before it."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(README.count("\n", 0, found.start(1)), found[1]) for found in fence.finditer(README)]


@pytest.fixture(params=DATABASES)
def url(request):
    """The URL of an empty database: the SQLite file that the README names, or a PostgreSQL database, as the README's comment says."""
    if request.param == "sqlite":
        yield EMBEDDED
    else:
        cluster = request.getfixturevalue("cluster")
        yield (made := cluster.create_database())
        cluster.drop_database(made)


@pytest.fixture
def shop(tmp_path, monkeypatch, url):
    """Write the README's module `shop` to an empty working directory."""
    (_, module), *_ = blocks("python")
    assert module.startswith("# shop.py\n")
    assert module.count(f'"{EMBEDDED}"') == 1
    (tmp_path / "shop.py").write_text(module.replace(EMBEDDED, url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    yield tmp_path
    if (imported := sys.modules.pop("shop", None)) is not None:
        imported.engine.dispose()
        imported.outbox.store.engine.dispose()


def run(block: tuple[int, str], names: dict[str, object]) -> None:
    before, source = block
    exec(compile("\n" * before + source, str(ROOT / "README.md"), "exec"), names)


def test_the_example_runs_from_top_to_bottom(shop, capsys):
    _, tables, request, worker, *more = blocks("python")
    names: dict[str, object] = {}
    run(tables, names)
    run(request, names)
    with names["engine"].connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM orders").scalar() == 1
    run(worker, {})  # in a separate process
    printed = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    _, _, promised = worker[1].rpartition("# ")
    assert printed == promised.strip().split(", ")
    assert names["outbox"].store.get(names["handle"].id).result == '"receipt for order 1"'
    assert names["outbox"].store.verify() == []
    for block in more:
        run(block, names)


def test_the_pages_mention_installation_before_the_first_release():
    """pip cannot find the package before the first release."""
    assert "(unreleased)" in (ROOT / "CHANGELOG.md").read_text()
    for page in ("docs/index.md", "docs/install.md"):
        assert "ntil the first release" in (ROOT / page).read_text(), page


def test_the_example_leaves_no_task_of_a_rolled_back_order(shop):
    _, tables, (before, request), *_ = blocks("python")
    names: dict[str, object] = {}
    run(tables, names)
    with pytest.raises(ZeroDivisionError):
        run((before, f"{request}    1 / 0\n"), names)
    assert names["outbox"].store.stats() == []


@pytest.mark.in_turn
def test_the_worker_command_of_the_example_works_for_its_module(shop, url):
    _, tables, request, *_ = blocks("python")
    names: dict[str, object] = {}
    run(tables, names)
    run(request, names)
    commands = re.findall(r"`outboxq (worker shop:\w+)`", README)
    assert commands == ["worker shop:outbox"]
    environment = {name: value for name, value in os.environ.items() if name != "OUTBOXQ_DATABASE_URL"}
    command = [sys.executable, "-m", "outboxq", *commands[0].split()]
    with (shop / "log").open("wb") as log, forked.Popen(command, env=environment, stdout=log, stderr=log) as worker:
        try:
            until(lambda: status(url, names["handle"].id) is TaskStatus.COMPLETED)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()


def status(url: str, task_id: UUID) -> TaskStatus:
    engine = make_engine(url)
    try:
        return Store(engine).get(task_id).status
    finally:
        engine.dispose()


def test_the_readme_has_two_commands_in_separate_blocks():
    commands = [source for _, source in blocks("sh")]
    assert len(commands) == 2
    for command in commands:
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")
    assert commands[0].rstrip().endswith(" . && .venv/bin/outboxq demo")
    assert commands[1].rstrip().endswith(" -e '.[test]' && .venv/bin/python -m pytest")


def test_ci_runs_the_second_command_and_then_the_omitted_tests():
    script = ROOT / ".ci" / "run"
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    command = blocks("sh")[1][1].rstrip()
    assert lines == ['cd "$(dirname "$0")/.." || exit', f'{command} && .venv/bin/python -m pytest -m "apart or long"']
    assert os.access(script, os.X_OK)


def test_nox_runs_the_second_command_with_the_option_quick():
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    (session,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "quick")
    calls = [
        [word.value for word in one.args if isinstance(word, ast.Constant)]
        for one in ast.walk(session)
        if isinstance(one, ast.Call)
    ]
    assert sorted(filter(None, calls)) == [["-e", ".[test]"], ["python", "-m", "pytest", "--quick"]]
    assert "`--quick`" in README.partition(blocks("sh")[1][1])[0]


def test_the_readme_has_at_most_120_lines():
    assert len(README.splitlines()) <= 120


def test_links_in_the_readme_have_targets():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def commands(group: click.Group = main, above: str = "outboxq") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands except hidden ones, which are alternative names that are kept for scripts."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        yield f"{above} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{above} {name}")


def mentioned() -> str:
    """Return the documentation, with each `a b|c` expanded to `a b` and `a c`."""
    found = re.finditer(r"(outboxq(?: [\w-]+)*) ([\w-]+(?:\|[\w-]+)+)", DOCS)
    return DOCS + "".join(f"\n`{one[1]} {name}`" for one in found for name in one[2].split("|"))


def test_every_command_is_documented():
    pages = mentioned()
    assert [name for name, _ in commands() if not re.search(rf"{name}(?![\w-])", pages)] == []


def test_every_mentioned_command_exists():
    words = {one[0] for one in re.findall(r"(?:`|/bin/|: |^)(outboxq( [a-z-]+)*)", mentioned(), re.MULTILINE)}
    assert [mention for mention in words if resolve(mention.split()) is None] == []


def resolve(words: Sequence[str]) -> click.Command | None:
    """Return the command that these words name, ignoring its arguments, or None if the group has no such command."""
    command: click.Command = main
    for word in words[1:]:
        if not isinstance(command, click.Group):
            break
        if word not in command.commands:
            return None
        command = command.commands[word]
    return command


def test_every_mentioned_option_exists():
    for mention in re.findall(r"`(outboxq [^`]+)`", mentioned()):
        command = resolve(re.findall(r"^outboxq|(?<= )[a-z-]+(?= |$)", mention.partition(" --")[0]))
        assert command is not None, mention
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        assert set(re.findall(r"(?<= )--[a-z-]+", mention)) <= known, mention


def test_every_public_name_of_a_code_block_is_exported():
    import outboxq

    code = "".join(source for _, source in blocks("python"))
    names = itertools.chain.from_iterable(
        found.split(", ") for found in re.findall(r"^from outboxq import (.+)$", code, re.MULTILINE)
    )
    assert set(names) <= set(outboxq.__all__)


def test_the_changelog_has_the_current_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
