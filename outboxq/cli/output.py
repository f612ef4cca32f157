"""The output of a command: a table or a sentence for people and, with `--json`, one JSON document for programs.

The keys of a document are the field names of the records. They are stable: keys are added, never renamed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from ..model.display import as_json

C = TypeVar("C", bound=Callable[..., Any])

JSON: Final = "outboxq.json"
"""The key in `Context.meta` that is True where `--json` was given."""


def _remember(context: click.Context, _option: click.Parameter, value: bool | None) -> None:
    if value:
        context.meta[JSON] = True


def json_option(command: C) -> C:
    """Add `--json`. `show`, `tell` and `wants_json` look at it; the command gets no argument."""
    add: Callable[[C], C] = click.option(
        "--json", is_flag=True, expose_value=False, callback=_remember, help="Print JSON, for programs."
    )
    return add(command)


def wants_json() -> bool:
    """Return whether `--json` was given to the present command."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON, False))


def show(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    records: object,
    spare: Sequence[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Print the rows as a table (see `console.table`) or, with `--json`, the records: a list of them, or one."""
    if wants_json():
        write_json(records)
        return
    from .console import table

    table(head, [*rows], spare=spare, whole=whole)


def tell(sentence: str, record: object) -> None:
    """Print the sentence or, with `--json`, the record."""
    if wants_json():
        write_json(record)
        return
    from .console import plain

    click.echo(plain(sentence, kept="\n"))


def write_json(records: object, *, line: bool = False) -> None:
    """Print one JSON document: on a terminal indented, in a pipe as one line. `line`: always one line, for `--watch` and `--follow`.

    Everything but ASCII is escaped, so that no character of a table controls the terminal.
    """
    indent = 2 if sys.stdout.isatty() and not line else None
    text = json.dumps(as_json(records), indent=indent, allow_nan=False)
    click.echo(text.replace("\x7f", "\\u007f"))


def merged(*records: object, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of several records as one object, without those that must not be shown."""
    whole: dict[str, Any] = {}
    for record in records:
        whole |= as_json(record)
    left_out = set(without)
    return {name: value for name, value in whole.items() if name not in left_out}
