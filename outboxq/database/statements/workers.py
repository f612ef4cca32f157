"""Register workers with their queues and tasks. Workers write the rows, and people read them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Double,
    Insert,
    Integer,
    Select,
    Text,
    Update,
    bindparam,
    delete,
    literal_column,
    select,
    update,
)

from ...model import EventType
from ..column_types import Instant
from ..grammar import Grammar, limit, sql_literal, worker_id
from ..tables import execution_events, task_executions, workers

_said = {
    "label": bindparam("label", type_=Text, required=True),
    "queues": bindparam("queues_json", type_=Text, required=True),
    "topics": bindparam("topics_json", type_=Text, required=True),
    "concurrency": bindparam("concurrency", type_=Integer, required=True),
    "task_names": bindparam("task_names_json", type_=Text, required=True),
    "unknown_tasks": bindparam("unknown_tasks_json", type_=Text, required=True),
}
_described = {
    "host": bindparam("host", type_=Text, required=True),
    "pid": bindparam("pid", type_=Integer, required=True),
    "version": bindparam("version", type_=Text, required=True),
    "release": bindparam("release", type_=Text, required=True),
    "busy": bindparam("busy", type_=Integer, required=True),
    "isolation": bindparam("isolation", type_=Text, required=True),
}
_a_day_ago = bindparam("a_day_ago", -86400.0, type_=Double)
_event = execution_events.c
_first, _most = (bindparam(name, type_=BigInteger, required=True) for name in ("first", "most"))
_live_since = bindparam("live_since", type_=Instant, required=True)


def register(g: Grammar) -> Insert:
    """Register a worker, or replace its registration."""
    values: dict[str, Any] = {"id": worker_id, **_said, "started_at": g.now, "last_seen_at": g.now}
    new = g.insert(workers).from_select(list(values), select(*values.values()))
    renewed = {name: new.excluded[name] for name in (*_said, "last_seen_at")}
    return new.on_conflict_do_update(index_elements=[workers.c.id], set_=renewed)  # type: ignore[no-any-return]


def seen(g: Grammar) -> Update:
    """Record that the worker is alive and which unknown task names it has met; no row if it is not registered."""
    said = {"last_seen_at": g.now, "unknown_tasks": _said["unknown_tasks"]}
    touched = update(workers).where(workers.c.id == worker_id).values(said)
    return touched.returning(workers.c.id)


def unregister(g: Grammar) -> Delete:
    """Delete the worker, and all workers that have not been seen for a day."""
    gone = workers.c.last_seen_at < g.later(g.now, _a_day_ago)
    return delete(workers).where((workers.c.id == worker_id) | gone)


def leave(g: Grammar) -> Update:
    """Record that the worker has ended, but keep the unknown names that it met: it runs 0 tasks at once from now on."""
    return update(workers).where(workers.c.id == worker_id).values(last_seen_at=g.now, concurrency=literal_column("0"))


def is_registered() -> ColumnElement[bool]:
    """Return whether the row is of a worker that has not ended. `leave` writes a concurrency of 0, which no worker has."""
    return workers.c.concurrency > literal_column("0")


def taken_back(_: Grammar) -> Select[Any]:
    """Select up to :limit ends of this worker's claims that others wrote, in the order in which they took the tasks back.

    Of the events from the number :first on, :most are looked at, by the primary key: no index names the worker, and one would cost
    every event. Others take a dead worker's tasks back once its leases have ended, soon after it was seen last.
    """
    columns = (_event[name] for name in ("sequence_num", "task_execution_id", "event_type", "worker_id", "created_at"))
    window = select(*columns).where(_event.sequence_num >= _first).order_by(_event.sequence_num).limit(_most)
    looked = window.subquery("looked")
    kinds = [sql_literal(kind) for kind in (EventType.RESET, EventType.ABANDONED)]
    found = select(looked).where(looked.c.worker_id == worker_id, looked.c.event_type.in_(kinds))
    mine = found.order_by(looked.c.sequence_num).limit(limit).subquery("mine")
    # Not a join, which might read all tasks.
    task_name, status = (
        select(column).where(task_executions.c.id == mine.c.task_execution_id).scalar_subquery()
        for column in (task_executions.c.task_name, task_executions.c.status)
    )
    return select(
        mine.c.task_execution_id.label("task_id"),
        task_name.label("task_name"),
        status.label("status"),
        mine.c.event_type,
        mine.c.created_at.label("at"),
    ).order_by(mine.c.sequence_num)


def beyond(_: Grammar) -> Select[Any]:
    """Select one row if more than :most events have a number of at least :first."""
    after = select(_event.sequence_num).where(_event.sequence_num >= _first).order_by(_event.sequence_num)
    return after.offset(_most).limit(literal_column("1"))


def describe(_: Grammar) -> Update:
    """Record the worker's process, its versions, how many of its threads run a handler, and where it runs them."""
    return update(workers).where(workers.c.id == worker_id).values(_described).returning(workers.c.id)


def live(_: Grammar) -> Select[Any]:
    """Select the workers seen since :live_since, oldest first."""
    return (
        select(workers)
        .where(workers.c.last_seen_at >= _live_since, is_registered())
        .order_by(workers.c.started_at, workers.c.id)
    )


def with_unknown_tasks(_: Grammar) -> Select[Any]:
    """Select the workers that met unknown names, also those that have ended."""
    return select(workers.c.unknown_tasks).where(workers.c.unknown_tasks.is_not(None))


def one(_: Grammar) -> Select[Any]:
    """Select one worker, whenever it was last seen."""
    return select(workers).where(workers.c.id == worker_id)
