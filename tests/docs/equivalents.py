"""Check that the code in a table of equivalents exists: Python names and keywords, options and commands.

The code is parsed, but not run. For example, in `task.using(session, delay=60)`, `using` must be a method of Task that takes `delay`.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from unittest.mock import Mock

import click
import tenacity

import outboxq
from outboxq import Handle, Outbox, Task, TaskContext
from outboxq.cli import main
from outboxq.task.task import CallOptions
from outboxq.testing import Harness
from outboxq.worker.options import WorkerOptions

GIVEN = {"session", "connection", "moment", "payload", "id", "url", "integration", "decide"}
"""Names that stand for the reader's own objects."""


@dataclasses.dataclass(frozen=True)
class A:
    """An object of this type."""

    kind: Any


UNKNOWN = A(object)
ROOTS = {"outbox": A(Outbox), "task": A(Task), "ctx": A(TaskContext), "harness": A(Harness), "handle": A(Handle)}
SETS_ITSELF = {TaskContext: TaskContext(Mock(), max_attempts=1, stopping=Mock())}
"""Objects with attributes that their class does not declare."""
DECLARED = {Outbox.worker: WorkerOptions, Task.using: CallOptions}
"""The keywords that a signature does not show."""


def cells(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the code in the column with the heading `outboxq`, with its line number."""
    column = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("|"):
            column = None
            continue
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if column is None:
            column = row.index("outboxq") if "outboxq" in row else -1
        elif column >= 0:
            yield from ((number, code) for code in re.findall(r"`([^`]+)`", row[column]))


def check(code: str, roots: Mapping[str, Any] = ROOTS) -> None:
    """Raise AssertionError if a part of the code does not exist."""
    program, *words = code.split()
    if program == "outboxq":
        _check_command(words)
    elif program == "manage.py":
        _check_management(*words)
    else:
        for statement in ast.parse(code.removeprefix("@")).body:
            assert isinstance(statement, ast.Expr | ast.Raise)
            _Reader(roots).meaning(statement.exc if isinstance(statement, ast.Raise) else statement.value)


def _check_command(words: typing.Sequence[str], command: click.Command = main) -> None:
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"{command.name} has no command {words[0]}"
        command, words = found, words[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    _check_options(words, known)


def _check_management(name: str, *words: str) -> None:
    """Check one of Django's commands. Django must have been set up."""
    from django.core.management import get_commands, load_command_class

    assert name in get_commands(), f"manage.py has no command {name}"
    command = load_command_class(get_commands()[name], name)
    if name == "outboxq":
        _check_command(words, command._group("default"))
    else:
        _check_options(words, set(command.create_parser("manage.py", name)._option_string_actions))


def _check_options(words: typing.Sequence[str], known: set[str]) -> None:
    unknown = {word for word in words if word.startswith("-")} - known
    assert not unknown, f"no option {unknown}"


class _Reader:
    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = roots

    def meaning(self, node: ast.expr | None) -> Any:
        """Return the object that an expression names, or `A(type)` for its value's type."""
        match node:
            case ast.Name(name):
                return self._named(name)
            case ast.Attribute() if ast.unparse(node).startswith("outboxq."):
                return _imported(ast.unparse(node))
            case ast.Attribute(owner, attribute):
                return _member(self.meaning(owner), attribute)
            case ast.Call(function, arguments, keywords):
                for argument in (*arguments, *(keyword.value for keyword in keywords)):
                    self.meaning(argument)
                return _called(self.meaning(function), {str(one.arg) for one in keywords}, ast.unparse(function))
            case ast.Tuple(parts) | ast.List(parts) | ast.Dict(_, parts):
                for part in parts:
                    self.meaning(part)
                return UNKNOWN
            case ast.Constant():
                return UNKNOWN
        raise AssertionError(f"unknown expression: {ast.dump(node) if node else node}")

    def _named(self, name: str) -> Any:
        if name in GIVEN:
            return UNKNOWN
        if name in self._roots:
            return self._roots[name]
        for home in (outboxq, tenacity, builtins):
            if hasattr(home, name):
                return getattr(home, name)
        raise AssertionError(f"there is no name {name}")


def _imported(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise AssertionError(f"there is no {path}") from error


def _member(owner: Any, name: str) -> Any:
    assert owner is not UNKNOWN, f"the owner of {name} has an unknown type"
    kind = owner.kind if isinstance(owner, A) else owner
    found = getattr(kind, name, None)
    if isinstance(found, property):
        return _of(get_type_hints(found.fget).get("return"))
    if isinstance(found, cached_property) and isinstance(found.func, type):
        return A(found.func)  # a noun of the store
    if inspect.isroutine(found):
        return found
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    assert name in fields or hasattr(SETS_ITSELF.get(kind, kind), name), f"{kind.__name__} has no {name}"
    return UNKNOWN


def _called(function: Any, keywords: set[str], what: str) -> Any:
    if isinstance(function, A):  # an object that is called, or that a decorator created
        is_callable = any("__call__" in vars(base) for base in function.kind.__mro__)
        function = function.kind.__call__ if is_callable else function.kind
    unknown = keywords - _keywords(function)
    assert not unknown, f"{what}() does not take {unknown}"
    if isinstance(function, type):
        return A(function)
    try:
        return _of(get_type_hints(function).get("return"))
    except NameError:  # imported only for type checkers
        return UNKNOWN


def _keywords(function: Callable[..., Any]) -> set[str]:
    further = DECLARED[function].__annotations__ if function in DECLARED else ()
    return {*inspect.signature(function).parameters, *further}


def _of(hint: Any) -> A:
    """Return an object of the annotated type. For a union, use its first type."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        hint = get_args(hint)[0]
    hint = get_origin(hint) or hint
    return A(hint) if isinstance(hint, type) else UNKNOWN
