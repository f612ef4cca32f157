"""Find the tasks that ran or waited for the longest time, among a bounded number of the newest tasks.

No index is sorted by these times, because every transition would have to update it. So this module reads the times of
the newest matching tasks, and compares them itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Unpack
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin, Row
from ...database.grammar import Builder, Grammar
from ...database.tables import task_executions
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import TaskExecution, TaskStatus
from ...model.options import choice
from ..arguments import positive, status_of
from ..task_rows import IDS, pack_ids
from ..transactions import Transactions
from .task_pages import SCAN, PageFilters, ending, filter_values, find_key, page_of_ids, source_of
from .tasks import execution_of, with_lease


class Slow(StrEnum):
    """The time by which tasks are compared."""

    DURATION = "duration"
    """The run time of the last attempt, which may still be running. Cancelled tasks are left out, because a discarded
    dead letter ends only when it is discarded, which may be long after its last attempt.
    """
    WAIT = "wait"
    """The time from enqueueing to the first start. This includes any delay that the producer requested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowTasks:
    """The slowest tasks among the newest ones."""

    tasks: list[TaskExecution]
    """The tasks, slowest first."""
    times: Mapping[UUID, timedelta]
    """The duration or the wait of each of these tasks."""
    is_cut: bool
    """True if there are older tasks that were not read."""
    looked_at: int = SCAN
    """The maximum number of tasks that are read."""


def slowest(
    store: Transactions,
    *,
    by: Slow | str = Slow.DURATION,
    status: TaskStatus | str | None = None,
    limit: int = 100,
    using: object = None,
    **wanted: Unpack[PageFilters],
) -> SlowTasks:
    """Return up to `limit` tasks that ran or waited for the longest time, slowest first, among the newest 10,000 with
    this status (None means any status), or among all running tasks. The tasks are filtered as in `task_page`; with
    `argument`, only the newest 1,000 are read. A waiting task has not started, so it is not returned. Raises
    InvalidArgument.
    """
    compared, of = choice(Slow, by, "by"), status_of(status)
    if of is TaskStatus.READY or wanted.get("waiting") is not None:
        raise InvalidArgument(
            "a waiting task has not started, so its duration and its wait are not known yet; choose another status"
        )
    values, most = filter_values(wanted), positive(limit)

    def work(target: Target) -> SlowTasks:
        given = store.values(target, **values, status=of, limit=values["scan"])
        find_key(target, given)
        source = source_of(target, of, given)
        last = ending(target, source, given, up=False)
        present = store.now_in(target)
        every = {row["id"]: _time(row, compared, present) for row in target.run(TIMES[source], given)}
        times = {task_id: time for task_id, time in every.items() if time is not None}
        chosen = heapq.nlargest(most, times, key=lambda one: (times[one], one))
        rows = target.run(select_given, pack_ids(target, "chosen", chosen)) if chosen else []
        found = {row["id"]: execution_of(row) for row in rows}
        tasks = [found[one] for one in chosen if one in found]
        shown = {one: times[one] for one in chosen}
        return SlowTasks(tasks=tasks, times=shown, is_cut=last is not None, looked_at=values["scan"])

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def _time(row: Row, by: Slow, present: datetime) -> timedelta | None:
    if by is Slow.DURATION and row["status"] == TaskStatus.CANCELLED:
        return None
    if by is Slow.DURATION:
        begun, ended = row["started_at"], row["completed_at"] or present
    else:
        begun, ended = row["created_at"], row["first_started_at"]
    return None if begun is None or ended is None else max(ended - begun, timedelta(0))


def times_of(g: Grammar, *, source: str) -> sa.Select[Any]:
    """Select the times of the matching tasks among the rows of a source."""
    execution = task_executions.c
    moments = (execution.created_at, execution.first_started_at, execution.started_at, execution.completed_at)
    found = sa.select(execution.id, execution.status, *moments)
    return found.where(g.among(execution.id, page_of_ids(g, source=source, up=False)))


def select_given(g: Grammar) -> sa.Select[Any]:
    """Select the tasks of the batch :chosen."""
    return with_lease().where(g.among(task_executions.c.id, g.rows("chosen", IDS).c.id))


TIMES: Mapping[str, Builder] = {
    source: partial(times_of, source=source) for source in ("executions", "leases", "letters", "batch")
}
"""Statements that select times, by source."""
