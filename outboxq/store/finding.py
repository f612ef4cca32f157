"""Finding a task by the beginning of its id."""

from __future__ import annotations

import re
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import listing
from ..errors import AmbiguousTask, InvalidArgument, TaskNotFound
from .transactions import Transactions

_FEWEST, _ALL = 6, 32
_NAMED = 5
"""The number of tasks that the error names."""


def find(store: Transactions, beginning: str, *, using: object = None) -> UUID:
    """Return the id of the one task whose id begins so: at least six hex digits, with or without dashes; case does not matter.

    A whole id is returned as it is; the tables are not read for it. Ids begin with their time, so those of tasks
    that were enqueued within the same minute have their first eight digits in common. Raises TaskNotFound;
    AmbiguousTask, which names up to five of those that begin so; InvalidArgument for what is no beginning of an id.
    """
    digits = digits_of(beginning)
    if len(digits) == _ALL:
        return UUID(digits)
    values = {
        "first": UUID(digits.ljust(_ALL, "0")),
        "last": UUID(digits.ljust(_ALL, "f")),
        "limit": _NAMED + 1,
    }
    rows = store.run(
        lambda target: target.run(listing.beginning, values),
        using=using,
        begin=Begin.READ,
    )
    if not rows:
        raise TaskNotFound(f"there is no task whose id begins with {digits}")
    if len(rows) > 1:
        named = ", ".join(f"{row['id']} ({row['task_name']}, {row['status']})" for row in rows[:_NAMED])
        many = f"more than {_NAMED}" if len(rows) > _NAMED else str(len(rows))
        raise AmbiguousTask(
            f"{many} tasks have an id that begins with {digits}; write more of it: {named}",
            [row["id"] for row in rows[:_NAMED]],
        )
    return rows[0]["id"]  # type: ignore[no-any-return]


def digits_of(text: str) -> str:
    """Return the hex digits of an id, or of the beginning of one. Raises InvalidArgument."""
    digits = re.sub(r"^urn:uuid:|[-{}]", "", text.strip().lower())
    if not re.fullmatch(rf"[0-9a-f]{{{_FEWEST},{_ALL}}}", digits):
        raise InvalidArgument(f"{text!r} is no id of a task: write it whole, or its first {_FEWEST} hex digits or more")
    return digits
