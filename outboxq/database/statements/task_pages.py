"""Select a page of tasks by their ids, which contain their times: from the table that holds those of a status.

Each look begins at one id, goes up or down in the order of the ids by a unique index, and ends after :scan rows: where a filter may
leave out most of them, the last of these rows is found first, and bounds the look. So a page costs the same whatever the size of the
tables, and the next page begins where the look ended. Of a batch, all tasks are read for each page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    Uuid,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    true,
)

from ...model import EventType
from ..grammar import Builder, Grammar, limit, sql_literal
from ..tables import dead_letters, execution_events, task_executions, task_leases, task_outbox
from .event_log import was_unfinished
from .tasks import with_lease

_scan = bindparam("scan", type_=BigInteger, required=True)
_from_id, _to_id = (bindparam(name, type_=Uuid, required=True) for name in ("from_id", "to_id"))
"""The least id, and the least one that is too large."""
_worker = bindparam("worker", type_=Uuid, required=True)
_batch = bindparam("batch", type_=Uuid, required=True)
_SAME = {
    name: bindparam(name, type_=Text, required=True)
    for name in ("status", "queue", "task_name", "partition_key", "topic")
}
"""Filters: columns of a task and their values; NULL for any value."""

_TABLES: Mapping[str, Table] = {
    "executions": task_executions,
    "entries": task_outbox,
    "leases": task_leases,
    "letters": dead_letters,
}
_execution, _entry, _event, _lease = task_executions.c, task_outbox.c, execution_events.c, task_leases.c


def queue_is_longer(_: Grammar) -> Select[Any]:
    """Select one row if :queue has more than :scan entries without a key, or as many with one."""
    parts = [_entries(keyed=keyed).offset(_scan).limit(literal_column("1")).subquery() for keyed in (False, True)]
    found = select(parts[0].c.id).union_all(select(parts[1].c.id)).subquery("found")
    return select(found.c.id)


def _entries(*, keyed: bool) -> Select[Any]:
    """Select the entries of :queue with or without a key: each kind has an index of its own."""
    has_key = _entry.partition_key.is_not(None) if keyed else _entry.partition_key.is_(None)
    columns = (_entry.task_execution_id.label("id"), _entry.queue, _entry.partition_key, _entry.topic)
    return select(*columns).where(_entry.queue == _SAME["queue"], has_key)


def _members() -> Select[Any]:
    """Select the tasks of :batch by their index. They are all read: that index has no order of ids, and the primary key would be read
    through until so many of them are found.
    """
    columns = (_execution[name] for name in ("id", *_SAME))
    return select(*columns).where(
        _execution.pipeline_execution_id == _batch, _execution.pipeline_execution_id != _execution.id
    )


def _source(name: str) -> tuple[FromClause, Any, ColumnElement[bool]]:
    """Return what is looked through, its column of ids, and the condition that counts before the bound.

    Leases are few, so of them only those that are wanted count.
    """
    if name == "batch":
        mine = _members().cte("mine").prefix_with("MATERIALIZED")
        return mine, mine.c.id, true()
    if name == "queue":
        mine = _entries(keyed=False).union_all(_entries(keyed=True)).cte("mine").prefix_with("MATERIALIZED")
        return mine, mine.c.id, true()
    table = _TABLES[name]
    ids = table.c.id if name == "executions" else table.c.task_execution_id
    if name == "leases":
        return table, ids, and_(_same(_lease.queue, _SAME["queue"]), _same(_lease.worker_id, _worker))
    return table, ids, true()


def _ids(source: str, *, up: bool, besides: Callable[[FromClause], ColumnElement[bool]] | None = None) -> Select[Any]:
    """Select the ids of up to :limit matching tasks of the source between the two ids. `besides` is a further condition."""
    rows, ids, counts = _source(source)
    columns = [rows.c[name].label(name) for name in _SAME if name in rows.c]
    looked = select(ids.label("id"), *columns).where(ids >= _from_id, ids < _to_id, counts).subquery("looked")
    # With a limit it is looked up task by task, and not read for all tasks of the worker at once.
    worked = (
        select(_event.sequence_num)
        .where(
            _event.task_execution_id == looked.c.id,
            _event.event_type == sql_literal(EventType.CLAIMED),
            _event.worker_id == _worker,
        )
        .limit(literal_column("1"))
        .correlate(looked)
        .scalar_subquery()
    )
    same = [_same(_column(looked, name), wanted) for name, wanted in _SAME.items() if name != "status"]
    if source in {"executions", "batch"}:
        same.append(_same(looked.c.status, _SAME["status"]))
    if source != "leases":
        same.append(or_(_worker.is_(None), worked.is_not(None)))
    if besides is not None:
        same.append(besides(looked))
    return select(looked.c.id).where(*same).order_by(looked.c.id if up else looked.c.id.desc()).limit(limit)


def _column(looked: FromClause, name: str) -> ColumnElement[Any]:
    """Return a column of the task: that of the source, or else the execution's, which is looked up."""
    if name in looked.c:
        return looked.c[name]
    execution = task_executions.alias("execution")
    found = select(execution.c[name]).where(execution.c.id == looked.c.id)
    return found.correlate(looked).scalar_subquery()


def _page(g: Grammar, *, source: str, up: bool) -> Select[Any]:
    """Select the tasks, newest first whichever way was looked."""
    (found,) = _ids(source, up=up).cte("page").prefix_with("MATERIALIZED").c
    return with_lease().where(g.among(_execution.id, found)).order_by(_execution.id.desc())


def _next_ids(g: Grammar, *, source: str) -> Select[Any]:
    """Select the ids alone of the tasks that were there at the snapshot :head, :open, oldest first."""
    return _ids(source, up=True, besides=lambda looked: was_unfinished(g, looked, looked.c.id))


def _end(_: Grammar, *, source: str, up: bool) -> Select[Any]:
    """Select the id of the last row that is looked at, and the first one that is not; one row or none if the look comes to an end
    before.
    """
    _rows, ids, counts = _source(source)
    return (
        select(ids.label("id"))
        .where(ids >= _from_id, ids < _to_id, counts)
        .order_by(ids if up else ids.desc())
        .offset(_scan - literal_column("1"))
        .limit(literal_column("2"))
    )


def count_waiting(g: Grammar) -> Select[Any]:
    """Count up to :limit matching tasks among :scan entries, or among :scan of the queue; and whether there are more entries."""
    looked = (
        select(_entry.task_execution_id.label("id"), _entry.queue, _entry.partition_key, _entry.topic)
        .where(_entry.task_execution_id >= _from_id, _entry.task_execution_id < _to_id)
        .limit(_scan)
        .subquery("looked")
    )
    return _count(g, looked)


def count_waiting_of_queue(g: Grammar) -> Select[Any]:
    """Count up to :limit matching tasks among :scan entries of :queue without a key, and as many with one."""
    parts = []
    for keyed in (False, True):
        mine = _entries(keyed=keyed).where(_entry.task_execution_id >= _from_id, _entry.task_execution_id < _to_id)
        parts.append(select(mine.limit(_scan).subquery()))
    return _count(g, parts[0].union_all(parts[1]).subquery("looked"))


def count_running(g: Grammar) -> Select[Any]:
    """Count up to :limit matching running tasks; unless :asked_too, those that were not asked to stop."""
    mine = (
        _lease.task_execution_id >= _from_id,
        _lease.task_execution_id < _to_id,
        _same(_lease.queue, _SAME["queue"]),
    )
    looked = select(_lease.task_execution_id.label("id"), _lease.queue).where(*mine).subquery("looked")
    asked = bindparam("asked_too", type_=Boolean, required=True)
    return _count(g, looked, or_(asked, _column(looked, "cancel_requested_at").is_(None)))


def _count(g: Grammar, looked: FromClause, *also: ColumnElement[bool]) -> Select[Any]:
    same = [_same(_column(looked, name), wanted) for name, wanted in _SAME.items() if name != "status"]
    same += [was_unfinished(g, looked, looked.c.id), *also]
    some: Select[Any] = select(literal_column("1").label("one")).select_from(looked).where(*same).limit(limit)
    return select(func.count().label("tasks")).select_from(some.subquery("some"))


def _same(column: Any, wanted: Any) -> ColumnElement[bool]:
    return or_(wanted.is_(None), column == wanted)


def _named(builder: Any, sources: Iterator[str] | tuple[str, ...]) -> Mapping[str, Builder]:
    ways = (("down", False), ("up", True))
    return {f"{source}_{way}": partial(builder, source=source, up=up) for source in sources for way, up in ways}


PAGE: Mapping[str, Builder] = _named(_page, (*_TABLES, "queue", "batch"))
"""The statements that select a page, by what is looked through, and in which direction."""
END: Mapping[str, Builder] = _named(_end, tuple(_TABLES))
"""The statements that find where a look ended."""
NEXT_IDS: Mapping[str, Builder] = {
    source: partial(_next_ids, source=source) for source in ("entries", "leases", "queue")
}
"""The statements that select ids for a change of many tasks."""
