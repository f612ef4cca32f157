"""Register workers with their queues and tasks. Workers write the rows, and people read them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Double, Insert, Integer, Select, Text, Update, bindparam, delete, select, update

from ..column_types import Instant
from ..tables import workers
from .claim import worker_id
from .grammar import Grammar

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
    """Record that the worker has ended, but keep the unknown names that it met: it was last seen :long_ago (seconds
    below 0).
    """
    seen_at = g.later(g.now, bindparam("long_ago", -3600.0, type_=Double))
    return update(workers).where(workers.c.id == worker_id).values(last_seen_at=seen_at)


def describe(_: Grammar) -> Update:
    """Record the worker's process, its versions, how many of its threads run a handler, and where it runs them."""
    return update(workers).where(workers.c.id == worker_id).values(_described).returning(workers.c.id)


def live(_: Grammar) -> Select[Any]:
    """Select the workers seen since :live_since, oldest first."""
    return select(workers).where(workers.c.last_seen_at >= _live_since).order_by(workers.c.started_at, workers.c.id)


def with_unknown_tasks(_: Grammar) -> Select[Any]:
    """Select the workers that met unknown names, also those that have ended."""
    return select(workers.c.unknown_tasks).where(workers.c.unknown_tasks.is_not(None))


def one(_: Grammar) -> Select[Any]:
    """Select one worker, whenever it was last seen."""
    return select(workers).where(workers.c.id == worker_id)
