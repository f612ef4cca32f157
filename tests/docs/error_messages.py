"""Write the messages in docs/troubleshooting/errors.md from the code: python -m tests.docs.error_messages"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from outboxq import errors
from tests.docs.reference import tree
from tests.docs.tables import put_between

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting" / "errors.md"
VALUE = "…"
"""A placeholder for a value that only a raised error contains."""

NAMES = tuple(kind.__name__ for kind in tree(errors.OutboxqError))
"""The exceptions. Each has a section of the page with its name, which is also the id of its messages."""
COMMANDS = "fail"
"""The function with which a command reports its own error. The page's last section has these messages."""


def part(name: str) -> str:
    """Return the list of the messages that the code passes to this exception."""
    return "".join(f"* {quoted(message)}\n" for message in messages().get(name, ()))


def quoted(message: str) -> str:
    """Return the message as code. The message itself may contain backticks."""
    return f"`` {message} ``" if "`" in message else f"`{message}`"


@cache
def messages() -> Mapping[str, list[str]]:
    """Return the distinct messages of each exception, in alphabetical order."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "outboxq").rglob("*.py")):
        for name, message in raised(ast.parse(path.read_text())):
            found.setdefault(name, set()).add(message)
    return {name: sorted(several, key=place_of) for name, several in found.items()}


def place_of(message: str) -> tuple[str, str]:
    return message.replace(VALUE, "").strip().lower(), message


def raised(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name of each exception that the module creates, with its message."""
    constants = {
        name.id: statement.value.value
        for statement in module.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for name in statement.targets
        if isinstance(name, ast.Name) and isinstance(statement.value.value, str)
    }
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and (name := name_of(call.func)) in (*NAMES, COMMANDS) and call.args:
            message = re.sub(rf"{VALUE}{VALUE}+", VALUE, " ".join(written(call.args[0], constants).split()))
            if len(re.findall(r"\w+", message)) > 1:  # otherwise, the message is composed elsewhere
                yield name, message


def name_of(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def written(text: ast.expr, constants: Mapping[str, str]) -> str:
    """Return the text, with a placeholder for each part that the code does not contain as a constant."""
    match text:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(written(value, constants) for value in values)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return written(left, constants) + written(right, constants)
    return VALUE


def write() -> None:
    for name in (*NAMES, COMMANDS):
        put_between(PAGE, name, part(name))


if __name__ == "__main__":
    write()
