"""Count the waiting, running and failed tasks of queues or task names, and the events of a window of time.

The present is read from the small tables, and the window from the end of the log, so ten million finished tasks cost nothing.
A row of each statement is about a queue, or about one task name in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Boolean, ColumnElement, FromClause, Select, Text, bindparam, case, func, literal_column, select

from ...model import STATUS_AFTER, EventType, TaskStatus
from ..column_types import BigId, Instant
from ..grammar import Builder, Grammar, sql_literal
from ..tables import dead_letters, execution_events, task_executions, task_leases, task_outbox

PERCENTILES = (50, 95, 99)

COMPLETED, FAILED, CANCELLED = (
    tuple(kind for kind, status in STATUS_AFTER.items() if status is wanted)
    for wanted in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
)

_every_queue = bindparam("every_queue", type_=Boolean, required=True)
_since = bindparam("since", type_=Instant, required=True)
_search_from = bindparam("search_from", type_=Instant, required=True)
_first = bindparam("first", type_=BigId, required=True)


def _waiting(g: Grammar, *, by_task: bool) -> Select[Any]:
    entry: Any = task_outbox.c
    due = entry.available_at <= g.now
    counts = (
        func.count().filter(due).label("ready"),
        func.count().filter(entry.available_at > g.now).label("delayed"),
        func.min(entry.available_at, type_=Instant).filter(due).label("oldest_ready_at"),
    )
    return _counted(g, task_outbox, *counts, by_task=by_task)


def _retrying(g: Grammar, *, by_task: bool) -> Select[Any]:
    """Count the entries that are due later for another attempt, which only their executions show.

    A scalar subquery looks each of them up by its key. A join could be planned to begin with every execution.
    """
    entry: Any = task_outbox.c
    execution = task_executions.alias("execution")
    again = select(execution.c.retry_at).where(execution.c.id == entry.task_execution_id).correlate(task_outbox)
    later = (entry.available_at > g.now, again.scalar_subquery().is_not(None))
    return _counted(g, task_outbox, func.count().label("retrying"), where=later, by_task=by_task)


def _running(g: Grammar, *, by_task: bool) -> Select[Any]:
    return _counted(g, task_leases, func.count().label("running"), by_task=by_task)


def _failed(g: Grammar, *, by_task: bool) -> Select[Any]:
    return _counted(g, dead_letters, func.count().label("failed"), by_task=by_task)


def _window(g: Grammar, *, by_task: bool) -> Select[Any]:
    """Count the events since :since, read from event :first on, with the times of ended tasks at the nearest rank."""
    event, execution = execution_events.c, task_executions.c
    names = ["queue", "task_name"] if by_task else ["queue"]
    ended = _is(event, {*COMPLETED, *FAILED})
    started_at = func.coalesce(execution.first_started_at, event.created_at)  # unknown if it was replaced since
    nothing: ColumnElement[int] = literal_column("0")  # for a task whose times cannot be subtracted
    happened = (
        select(
            *(execution[name] for name in names),
            event.event_type,
            case((ended, 1), else_=0).label("ended"),
            func.coalesce(g.between(execution.created_at, started_at), nothing).label("to_start"),
            func.coalesce(g.between(execution.created_at, event.created_at), nothing).label("to_complete"),
        )
        .join_from(execution_events, task_executions, execution.id == event.task_execution_id)
        .where(
            event.sequence_num >= _first,
            event.created_at >= _since,
            _is(event, {*COMPLETED, *FAILED, *CANCELLED, EventType.RETRY_SCHEDULED}),
            _wanted(g, execution.queue),
        )
        .subquery("happened")
    )
    alike = [*(happened.c[name] for name in names), happened.c.ended]
    ranked = select(
        happened,
        func.count().over(partition_by=alike).label("tasks"),
        func.row_number().over(partition_by=alike, order_by=happened.c.to_start).label("start_rank"),
        func.row_number().over(partition_by=alike, order_by=happened.c.to_complete).label("complete_rank"),
    ).subquery("ranked")
    row = ranked.c
    retries = (EventType.RETRY_SCHEDULED,)
    counts = {"completed": COMPLETED, "failures": FAILED, "cancelled": CANCELLED, "retries": retries}
    grouped = [row[name] for name in names]
    columns: list[Any] = [
        *grouped,
        *(func.count().filter(_is(row, kinds)).label(name) for name, kinds in counts.items()),
        *(
            func.max(row[f"to_{until}"])
            .filter(row.ended == 1, row[f"{until}_rank"] == _rank(row.tasks, percent))
            .label(f"{until}_p{percent}")
            for until in ("start", "complete")
            for percent in PERCENTILES
        ),
    ]
    return select(*columns).group_by(*grouped)


def _counted(
    g: Grammar, table: FromClause, *counts: Any, where: Iterable[ColumnElement[bool]] = (), by_task: bool
) -> Select[Any]:
    """Count the rows of a table. A task's name is in its execution, if the table does not have it."""
    rows: FromClause = table
    named: FromClause = table
    if by_task and "task_name" not in table.c:
        named, rows = task_executions, table.join(task_executions, task_executions.c.id == table.c.task_execution_id)
    names = [table.c.queue, named.c.task_name] if by_task else [table.c.queue]
    return select(*names, *counts).select_from(rows).where(*where, _wanted(g, table.c.queue)).group_by(*names)


def _wanted(g: Grammar, queue: ColumnElement[str]) -> ColumnElement[bool]:
    return _every_queue | g.among(queue, g.rows("queues", {"queue": Text()}).c.queue)


def _is(row: Any, kinds: Collection[EventType]) -> ColumnElement[bool]:
    return row.event_type.in_([sql_literal(kind) for kind in sorted(kinds)])  # type: ignore[no-any-return]


def _rank(tasks: ColumnElement[int], percent: int) -> ColumnElement[int]:
    """Return the nearest rank: the smallest value that at least `percent` in a hundred values do not exceed."""
    return (tasks * percent + 99) // 100


_PARTS = {"waiting": _waiting, "retrying": _retrying, "running": _running, "failed": _failed, "window": _window}
BY_QUEUE: Mapping[str, Builder] = {name: partial(part, by_task=False) for name, part in _PARTS.items()}
"""The statements whose rows together are the statistics, a row for each queue; each takes :queues unless :every_queue."""
BY_TASK: Mapping[str, Builder] = {name: partial(part, by_task=True) for name, part in _PARTS.items()}
"""The statements with a row for each task name of a queue."""
