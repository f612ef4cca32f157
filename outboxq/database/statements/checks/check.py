"""Define a check, and the expressions that checks and repairs share."""

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
    """One invariant, with the meaning of a violation; or several that one pass over the tables checks."""

    meaning: str
    broken: Callable[[Grammar], Select[Any]]
    """Select the ids of the tasks that break it, or the names of what is wrong if that is no task, as the column `id`."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Further invariants of the same pass, each name with its meaning.

    With them, each name (also the check's own) is a column of `broken`, which is true if that invariant is broken.
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
"""A condition: the event changed its task's status."""
ENDED = EXECUTION.status.in_([word(status) for status in sorted(TERMINAL)])
"""A condition: the task has ended."""
