"""Tables that fit a terminal: whole ids, short times, and columns left out if the terminal is too narrow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from rich.table import Table

_LEAST = 12
"""Minimum width of a column of text, in characters. Longer text wraps if the terminal is too narrow."""
_GAP = 2


def fitted(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int,
    spare: Sequence[str] = (),
    plain: Callable[[object], str],
) -> Table:
    """Return a table for a terminal of this width; `plain` turns a cell into text.

    Times are in UTC, to the second; the column's head says UTC. `spare` names the columns that may be left out, the first one
    first. An id is never cut or wrapped, so that it can be copied.
    """
    from rich.table import Table

    columns = [_Column(name, [row[place] for row in rows], plain) for place, name in enumerate(head)]
    for name in spare:
        if _width(columns) <= width:
            break
        columns = [column for column in columns if column.name != name]
    lines = Table(box=None, pad_edge=False)
    for column in columns:
        least = column.least if column.is_whole else None
        lines.add_column(column.head, no_wrap=column.is_whole, min_width=least, overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines.add_row(*cells)
    return lines


class _Column:
    def __init__(self, name: str, values: Collection[object], plain: Callable[[object], str]) -> None:
        kinds = {type(value) for value in values if value is not None}
        is_time = any(issubclass(kind, datetime) for kind in kinds)
        self.name = name
        self.head = f"{name} UTC" if is_time else name
        self.cells = [plain(_short(value)) for value in values]
        self.is_whole = is_time or any(issubclass(kind, UUID) for kind in kinds)
        longest = max(len(text) for text in (self.head, *self.cells))
        self.least = longest if self.is_whole else min(longest, _LEAST)


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.least + _GAP for column in columns) - _GAP


def _short(value: object) -> object:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else value
