"""The house rules that a tool or a check of the source can enforce."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import sources

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "outboxq"
MODULES = {path.relative_to(ROOT).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
MIGRATIONS = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "alembic").rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax trees. They are built only when a test needs them, because every process collects the tests."""
    return {name: sources.tree(path) for name, path in (MODULES | MIGRATIONS).items()}


SILENT = {"NO_COLOR": "1", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
"""The tools use no colors, and do not check the network for a newer pyright."""


def tool(*command: str) -> None:
    """Run a tool of this environment on the repository. If it complains, the test fails with its output."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **SILENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}", pytrace=False)


def script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_ruff_finds_no_violations():
    tool(script("ruff"), "check", ".")


def test_the_code_is_formatted_by_ruff():
    tool(script("ruff"), "format", "--check", ".")


@pytest.mark.current  # import-linter requires a later version of rich than outboxq does
def test_packages_import_only_from_lower_layers():
    tool(script("lint-imports"))


@pytest.mark.apart
@pytest.mark.current  # type checkers know a table's columns only from SQLAlchemy 2.1 on
def test_mypy_accepts_the_package_and_its_use():
    tool(sys.executable, "-m", "mypy")


@pytest.mark.apart
@pytest.mark.current
def test_pyright_accepts_the_package_for_its_users():
    """pyright's programs come with its wheels, so nothing is downloaded."""
    tool(sys.executable, "-m", "pyright", "--pythonpath", sys.executable)


def found(name: str, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    return sources.of_kind(trees()[name], *kinds)


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for an expression, ignoring calls and subscripts in it."""
    match node:
        case ast.Attribute():
            return f"{dotted(node.value)}.{node.attr}"
        case ast.Name():
            return node.id
        case ast.Call():
            return dotted(node.func)
        case ast.Subscript():
            return dotted(node.value)
    return ""


def imports(name: str) -> Iterator[tuple[int, str]]:
    for node in found(name, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        else:
            yield from ((node.lineno, alias.name) for alias in node.names)


def asks_for_the_dialect(name: str) -> list[str]:
    """Return comparisons of a dialect's name with a string. (Comparing two dialects is allowed.)"""
    complaints = []
    for node in found(name, ast.Compare):
        sides = [node.left, *node.comparators]
        names = [dotted(side) for side in sides]
        words = any(isinstance(side, ast.Constant | ast.Tuple | ast.List | ast.Set) for side in sides)
        if words and any(side.endswith(("dialect.name", "dialect_name", "driver_name")) for side in names):
            complaints.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    for node in found(name, ast.Match):
        if dotted(node.subject).endswith(("dialect.name", "dialect_name")):
            complaints.append(f"{name}:{node.lineno}: match {ast.unparse(node.subject)}")
    return complaints


def reads_the_environment(name: str) -> list[str]:
    used = [(node.lineno, dotted(node)) for node in found(name, ast.Attribute)] + list(imports(name))
    wanted = {"os.environ", "os.getenv", "os.environb", "os.putenv"}
    return [f"{name}:{line}: {what}" for line, what in used if what in wanted]


def runs_stored_code(name: str) -> list[str]:
    banned = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
    complaints = [f"{name}:{line}: import {what}" for line, what in imports(name) if what.split(".")[0] in banned]
    for node in found(name, ast.Call):
        if dotted(node.func) in {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}:
            complaints.append(f"{name}:{node.lineno}: {dotted(node.func)}()")
    return complaints


def formats_sql(name: str) -> list[str]:
    """Return SQL text that is assembled in the call that executes it."""
    complaints = []
    for node in found(name, ast.Call):
        if dotted(node.func).split(".")[-1] not in {"execute", "executemany", "exec_driver_sql", "text"}:
            continue
        for given in node.args[:1]:
            joined = isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mod | ast.Add)
            if isinstance(given, ast.JoinedStr) or joined or dotted(given).endswith(".format"):
                complaints.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    return complaints


def sleeps(name: str) -> list[str]:
    used = [(node.lineno, dotted(node)) for node in found(name, ast.Attribute)] + list(imports(name))
    return [f"{name}:{line}: {what}" for line, what in used if what == "time.sleep"]


def takes_a_users_function(name: str) -> list[str]:
    """Return the uses of a task's function. Only the executor calls it, so its exceptions are handled in one place."""
    return [f"{name}:{node.lineno}: {dotted(node)}" for node in found(name, ast.Attribute) if node.attr == "function"]


RULES = {
    # Each rule, and the places where it does not apply.
    asks_for_the_dialect: ("outboxq/database/dialects/",),
    reads_the_environment: ("outboxq/cli/", "outboxq/outbox.py"),
    runs_stored_code: (),
    formats_sql: (),
    sleeps: ("outboxq/cli/",),
    # The task itself contains the function.
    takes_a_users_function: ("outboxq/worker/executor.py", "outboxq/task/"),
}


def test_no_module_breaks_a_rule():
    """One test covers all rules, because each process that runs such a test parses and walks the whole package."""
    complaints = [
        f"{rule.__name__}: {line}"
        for rule, places in RULES.items()
        for name in MODULES
        if not name.startswith(places)
        for line in rule(name)
    ]
    assert complaints == [], "\n".join(["", *complaints])


BAD = {
    asks_for_the_dialect: (
        "if connection.dialect.name == 'sqlite': pass",
        "x = 'sqlite' != engine().dialect.name",
        "x = dialect_name in ('sqlite',)",
        "match a.dialect.name:\n case 'sqlite': pass",
    ),
    reads_the_environment: ("import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ"),
    runs_stored_code: ("import pickle", "from yaml import load", "import marshal", "eval('1')", "exec('1')"),
    formats_sql: ("c.execute(f'SELECT {x}')", "text(f'{x}')", "c.execute('a' + b)", "c.exec_driver_sql('%s' % a)"),
    sleeps: ("import time\ntime.sleep(1)", "from time import sleep"),
    takes_a_users_function: ("task.function(1)", "partial(limit.call, active.task.function)"),
}


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_each_rule_finds_its_bad_examples(monkeypatch, rule):
    for source in BAD[rule]:
        monkeypatch.setitem(trees(), "bad.py", ast.parse(source))
        assert rule("bad.py"), source


def test_every_exception_from_a_rule_is_needed():
    """An exception that is no longer needed is a hole in the rule."""
    for rule, places in RULES.items():
        for place in places:
            assert any(rule(name) for name in MODULES if name.startswith(place)), f"{rule.__name__}: {place}"


def test_every_module_has_a_docstring():
    assert [name for name in MODULES | MIGRATIONS if not ast.get_docstring(trees()[name])] == []


def test_every_module_has_at_most_600_lines():
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: number for name, number in lines.items() if number > 600} == {}


def test_every_folder_has_at_most_25_files():
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in files)
    assert {name: number for name, number in folders.items() if number > 25} == {}


def test_the_migrations_are_not_a_package_that_hides_alembic():
    assert not list((ROOT / "alembic").rglob("__init__.py"))


def test_no_test_is_skipped_or_expected_to_fail():
    """A behavior must work on both databases and every supported Python version."""
    marks = re.compile(r"mark\.(skip|xfail)|pytest\.(skip|xfail|importorskip)|unittest\.skip")
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
    assert [str(path.relative_to(ROOT)) for path in paths if marks.search(path.read_text())] == []
