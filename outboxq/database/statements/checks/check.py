"""What a check is, and the words that checks and repairs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, false, func, or_, select

from ....model import STATUS_AFTER, TERMINAL
from ...tables import execution_events, task_executions, task_leases, task_outbox
from ..grammar import Grammar, word


@dataclass(frozen=True, kw_only=True)
class Check:
    """One invariant, said as what is wrong where it does not hold; or several that one pass over the tables answers."""

    meaning: str
    broken: Callable[[Grammar], Select[Any]]
    """The ids of the tasks that break it, or the names of what is wrong where that is no task; the column `id`."""
    also: Mapping[str, str] = field(default_factory=dict)
    """The further invariants of the same pass, each name with its meaning.

    With them, each name (the check's own too) is a column of `broken`, which is true where that invariant is broken.
    """


def broken_ones(rows: Select[Any], broken: Mapping[str, ColumnElement[bool]]) -> Select[Any]:
    """Return the rows in which at least one invariant is broken, with a column for each; NULL counts as not broken."""
    columns = [func.coalesce(is_broken, false()).label(name) for name, is_broken in broken.items()]
    found = rows.add_columns(*columns).subquery("found")
    return select(found).where(or_(*(found.c[name] for name in broken)))


EXECUTION = task_executions.c
EVENT = execution_events.c
ENTRY_OF_TASK = select(task_outbox.c.id).where(task_outbox.c.task_execution_id == EXECUTION.id)
LEASE_OF_TASK = select(task_leases.c.task_execution_id).where(
    task_leases.c.task_execution_id == EXECUTION.id,
    task_leases.c.lease_token == EXECUTION.lease_token,
    task_leases.c.worker_id == EXECUTION.worker_id,
)
TRANSITION = EVENT.event_type.in_([word(kind) for kind in STATUS_AFTER])
"""The event moved its task."""
ENDED = EXECUTION.status.in_([word(status) for status in sorted(TERMINAL)])
"""The task has come to its end."""
