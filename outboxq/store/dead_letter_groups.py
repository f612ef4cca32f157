"""Dead letters by what they have in common: the task, the exception, and the message but for what varies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..database.dialects import Row
from ..errors import InvalidArgument
from ..model.display import group_of, message_of


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterGroup:
    """Dead letters that are alike: of one task, with one exception, and with the same message but for what varies."""

    id: str
    """16 hexadecimal digits, which stay the same as long as the task, the exception and the message do."""
    task_name: str
    exception: str | None
    message: str
    """First line of the error; an ellipsis stands for each id, number and quoted text. At most 200 characters."""
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    newest: UUID
    """Id of the task that failed last."""
    queues: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterGroups:
    """The groups of the newest dead letters, the largest group first."""

    groups: list[DeadLetterGroup]
    looked_at: int
    """Number of dead letters that were looked at: the newest 10 000 that match, or all."""
    is_complete: bool
    """False: there are older dead letters that were not looked at, or more groups than wanted."""


def grouped(rows: Iterable[Row]) -> list[DeadLetterGroup]:
    """Return the groups of rows that come newest first; the largest group is the first.

    The texts of 10 000 errors are put into groups in about 25 ms. For the database to fold equal ones first takes as long.
    """
    found: dict[str, list[Row]] = {}
    for row, group in with_groups(rows):
        found.setdefault(group, []).append(row)
    groups = [_joined(group, several) for group, several in found.items()]
    return sorted(groups, key=lambda one: (-one.count, -one.last_failed_at.timestamp(), one.id))


def with_groups(rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
    """Return each row with the id of its group. A row has the task's name, the exception and the beginning of the error."""
    known: dict[tuple[str, str | None, str], str] = {}
    for row in rows:
        key = row["task_name"], row["exception"], message_of(row["head"])
        if (group := known.get(key)) is None:
            group = known[key] = group_of(*key)
        yield row, group


def group_id(group: object) -> str | None:
    """Return the id of a group; None for none. Raises InvalidArgument."""
    if group is None:
        return None
    if not isinstance(group, str) or not re.fullmatch("[0-9a-f]{16}", group):
        raise InvalidArgument(f"a group of dead letters is named by 16 hexadecimal digits, not {group!r}; see groups()")
    return group


def _joined(group: str, rows: Sequence[Row]) -> DeadLetterGroup:
    first, last = rows[-1], rows[0]
    return DeadLetterGroup(
        id=group,
        task_name=last["task_name"],
        exception=last["exception"],
        message=message_of(last["head"]),
        count=len(rows),
        first_failed_at=first["failed_at"],
        last_failed_at=last["failed_at"],
        newest=last["id"],
        queues=tuple(sorted({row["queue"] for row in rows})),
    )
