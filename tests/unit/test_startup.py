"""Imports at startup: no module is imported before it is needed. Times are not measured, because they depend on the machine."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import outboxq
from outboxq import migrations
from outboxq.cli import COMMANDS, main
from outboxq.cli.groups import sentence_of

pytestmark = pytest.mark.slow

SOURCE = Path(outboxq.__file__)


def modules_after(program: str) -> set[str]:
    """Return the modules that a new interpreter has imported when the program ends."""
    last = "import atexit, sys\natexit.register(lambda: print('IMPORTED', *sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", last + program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_imports_neither_the_database_nor_the_commands():
    found = modules_after("import sys\nsys.argv = ['outboxq', '--help']\nfrom outboxq.cli import main\nmain()\n")
    assert found & {"sqlalchemy", "psycopg", "alembic", "tenacity", "rich", "django", "flask", "pydantic"} == set()
    ours = {name for name in found if name.startswith("outboxq")}
    starting = {
        "outboxq.cli.serving",
        "outboxq.cli.serving.starting",
    }  # these modules handle signals before anything else is imported
    assert ours == {"outboxq", "outboxq.cli", "outboxq.cli.groups"} | starting


HELPS = """
import contextlib, io, json, sys
import click
from outboxq.cli import main

HEAVY = {"sqlalchemy", "rich", "alembic", "psycopg", "tenacity", "jinja2", "werkzeug", "waitress", "asyncio"}

def commands(group, words):
    context = click.Context(group, info_name=words[-1])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield [*words, name]
        if isinstance(command, click.Group):
            yield from commands(command, [*words, name])

found = {}
for words in commands(main, ["outboxq"]):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main.main([*words[1:], "--help"], prog_name="outboxq")
    assert "Usage: outboxq" in text.getvalue(), words
    found[" ".join(words)] = sorted(HEAVY & sys.modules.keys())
print(json.dumps(found))
"""


def test_help_of_a_command_imports_neither_the_database_nor_rich():
    done = subprocess.run([sys.executable, "-c", HELPS], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {words: heavy for words, heavy in found.items() if heavy} == {}
    assert {"outboxq worker", "outboxq task show", "outboxq demo"} <= found.keys()


def test_status_in_a_pipe_imports_only_what_it_uses(tmp_path):
    """SQLAlchemy's core takes two thirds of the command's time, so the rest must stay small."""
    url = f"sqlite:///{tmp_path}/app.db"
    migrations.upgrade(url)
    words = ["outboxq", "status", "--url", url]
    found = modules_after(f"import sys\nsys.argv = {words!r}\nfrom outboxq.cli import main\nmain()\n")
    unused = {"alembic", "rich", "psycopg", "sqlalchemy.orm", "outboxq.outbox", "outboxq.worker", "jinja2", "mako"}
    assert found & unused == set()
    ours = {name for name in found if name.startswith("outboxq")}
    assert "outboxq.store.numbers.statistics" in ours
    assert len(ours) <= 195, "is there an eager import? Each module takes half a millisecond"
    assert len(found) <= 560


def test_garbage_collection_resumes_when_the_command_is_imported(tmp_path):
    (tmp_path / "app.py").write_text("import gc\nprint('collects', gc.isenabled(), gc.get_freeze_count() > 1000)\n")
    program = "import sys\nsys.argv = ['outboxq', 'status', '-A', 'app']\nfrom outboxq.cli import main\nmain()\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "collects True True\n", done.stderr


def test_importing_the_package_imports_nothing_else():
    assert not any(name.startswith(("outboxq.", "sqlalchemy", "psycopg")) for name in modules_after("import outboxq"))


def test_a_producer_imports_neither_the_worker_nor_the_migrations_nor_the_command_line():
    found = modules_after("import outboxq\noutboxq.Outbox, outboxq.RetryPolicy, outboxq.configure_sqlite")
    assert "outboxq.outbox" in found
    assert found & {"alembic", "rich", "click", "django", "flask", "pydantic", "watchfiles", "mako"} == set()
    rooms = (
        "worker",
        "cli",
        "contrib",
    )
    assert not {
        name for name in found for room in rooms if name == f"outboxq.{room}" or name.startswith(f"outboxq.{room}.")
    }


def test_every_public_name_is_that_of_its_module():
    for name in outboxq.__all__:
        assert getattr(outboxq, name) is getattr(import_module(f"outboxq.{outboxq._HOMES[name]}"), name)
    assert set(outboxq._HOMES) == set(outboxq.__all__)
    names: dict[str, object] = {}
    exec("from outboxq import *", names)
    assert set(names) - {"__builtins__"} == set(outboxq.__all__)
    assert set(outboxq.__all__) <= set(dir(outboxq))


def test_a_walk_over_all_modules_while_time_is_frozen_imports_nothing():
    """freezegun replaces datetime with its own class, and then reads each attribute of each module."""
    freeze = "datetime.datetime = type('FakeDatetime', (datetime.datetime,), {'__module__': 'freezegun.api'})"
    found = modules_after(f"import datetime, outboxq\n{freeze}\n[getattr(outboxq, name) for name in dir(outboxq)]")
    assert not any(name.startswith(("outboxq.", "sqlalchemy")) for name in found)


def test_type_checkers_see_the_same_names_in_the_same_modules():
    (block,) = [
        one
        for one in ast.parse(SOURCE.read_text()).body
        if isinstance(one, ast.If) and not isinstance(one.test, ast.UnaryOp)
    ]
    told = {name.name: one.module for one in block.body if isinstance(one, ast.ImportFrom) for name in one.names}
    assert told == outboxq._HOMES


def test_a_module_of_the_package_is_imported_on_first_use():
    program = (
        "import outboxq\nassert outboxq.model.TaskStatus.READY == 'Ready'\nassert outboxq.store.Store is outboxq.Store"
    )
    assert "outboxq.model.records" in modules_after(program)


@pytest.mark.parametrize("name", ["nonsense", "_nonsense", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"^module 'outboxq' has no attribute '{name}'$"):
        getattr(outboxq, name)


def test_the_error_of_a_broken_module_names_the_missing_import(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import nosuch\n")
    monkeypatch.setattr(outboxq, "__path__", [*outboxq.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="^No module named 'nosuch'$"):
        _ = outboxq.broken  # type: ignore[attr-defined]


def test_pickled_objects_can_be_loaded_before_anything_is_imported():
    packed = pickle.dumps((outboxq.TaskStatus.READY, outboxq.Retry, outboxq.LeaseLost("over")))
    modules_after(f"import pickle\nassert repr(pickle.loads({packed!r})[2]) == \"LeaseLost('over')\"")


# -- the list of commands -------------------------------------------------------------------------------------------------


def test_the_list_describes_commands_as_their_help_does():
    for name, listed in COMMANDS.items():
        command = main.commands[name]
        assert listed.sentence == sentence_of(command)
        assert command.name == name or name == "prune"


def test_the_shell_completes_commands_and_their_options():
    complete = ShellComplete(main, {}, "outboxq", "_OUTBOXQ_COMPLETE")
    assert [one.value for one in complete.get_completions([], "fa")] == ["failed"]
    assert [one.help for one in complete.get_completions([], "veri")] == [COMMANDS["verify"].sentence]
    assert [one.value for one in complete.get_completions(["failed"], "re")] == ["redrive"]
    assert "--app" in [one.value for one in complete.get_completions(["status"], "--a")]


def test_an_unknown_command_is_refused():
    result = CliRunner().invoke(main, ["nonsense"])
    assert (result.exit_code, "No such command 'nonsense'" in result.stderr) == (2, True)
