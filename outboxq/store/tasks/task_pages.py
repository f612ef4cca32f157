"""Select pages of tasks for people, newest first, from tables of any size.

A page is selected by task ids, which contain times, from the table that holds the tasks with a given status.

Each search begins at an id, follows a unique index up or down in id order, and ends after :scan rows. If a filter may
exclude most of the rows, the last of these rows is found first, as a bound for the search. So the cost of a page does
not depend on the size of the tables, and the next page begins where the search ended. The exception is a page of one
batch's tasks, for which all tasks in the batch are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin
from ...database.grammar import ONE, Builder, Grammar, limit, sql_literal, text_literal
from ...database.tables import (
    dead_letters,
    execution_events,
    idempotency_keys,
    task_executions,
    task_leases,
    task_outbox,
)
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EventType, TaskExecution, TaskStatus, Waiting
from ...model.batches import is_batch
from ...model.periods import first_id
from ..arguments import AnyId, aware, identifier, parameters, positive, refuse_unknown, state_of, status_of, storable
from ..task_rows import made_together
from ..transactions import Transactions
from .event_log import was_unfinished
from .tasks import execution_of, with_lease

SCAN = 10_000
"""The maximum number of rows that one search reads."""
SCAN_ARGUMENTS = 1_000
"""The maximum number of rows that a search for an argument reads; lower than SCAN, because arguments can be long."""
LATER = "later"
"""The value of :waiting for tasks that are not due, whether they are delayed or waiting for a retry."""
_NAMES = {"queue": "queue", "task": "task_name", "key": "partition_key", "topic": "topic"}
"""Maps each filter to the column with which it is compared."""
FIRST, LAST = UUID(int=0), UUID(int=2**128 - 1)
_SOURCES = {TaskStatus.READY: "entries", TaskStatus.RUNNING: "leases", TaskStatus.FAILED: "letters"}
"""The table that holds a status's tasks. Tasks with other statuses are only in `task_executions`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """A page of tasks, with links to the previous and the next page."""

    tasks: list[TaskExecution]
    """The tasks, newest first."""
    older: UUID | None
    """Id to pass as `before` for the next page; None if there are no older tasks."""
    newer: UUID | None
    """Id to pass as `after` for the previous page; None on the newest page."""
    is_cut: bool
    """True if the search ended after `looked_at` rows with fewer tasks than requested. To continue after these
    rows, use `older`, or `newer` if `after` was given.
    """
    looked_at: int = SCAN
    """The maximum number of rows that one search reads."""


class TaskFilters(TypedDict, total=False):
    """Filters for tasks. All given filters must match; None matches any value."""

    queue: str | None
    task: str | None
    """Name of the task."""
    key: str | None
    """Partition key or concurrency key, as stored in the tables."""
    topic: str | None
    since: datetime | None
    """The earliest time at which the task was enqueued, as an aware datetime. It is compared with the time in the
    task's id, to the millisecond.
    """
    until: datetime | None
    """The time before which the task was enqueued, as an aware datetime."""


class PageFilters(TaskFilters, total=False):
    """Filters for a page of tasks."""

    worker: AnyId | None
    """The worker that has claimed the task; if `status` is RUNNING, the worker that is running it."""
    batch: AnyId | None
    """The batch or chain that the task belongs to or follows."""
    waiting: Waiting | str | None
    """The state of a Ready task: due, delayed, or waiting for its retry. Other tasks do not match."""
    exception: str | None
    """Class of the exception of the last error: its full dotted name, or the last part of it."""
    idempotency_key: str | None
    """Idempotency key that the task holds; requires `task`."""
    argument: tuple[str, object] | None
    """Name and value of an argument, or of a member of an argument at any depth; requires `queue`. Only the next 1,000
    tasks are searched.
    """


def tasks(
    store: Transactions,
    *,
    status: TaskStatus | str | None = None,
    before: AnyId | None = None,
    after: AnyId | None = None,
    limit: int = 100,
    using: object = None,
    **wanted: Unpack[PageFilters],
) -> list[TaskExecution]:
    """Return up to `limit` tasks with this status (None means any status) that match the filters, newest first.

    With `before`, the newest tasks with smaller ids are returned; with `after`, the oldest tasks with larger ids; with
    both, the newest tasks between them.

    The call reads a bounded number of rows, regardless of the size of the tables. It searches all Running and Failed
    tasks. For finished tasks, or without a status, the call reads the next 10,000 tasks; for Ready tasks, the next
    10,000 entries, or all entries of a small queue; for a batch, all of the batch's tasks. A search for an argument
    reads only a tenth as many rows. `task_page` says where the call stopped. Raises InvalidArgument.
    """
    of = status_of(status)
    page = task_page(store, status=of, before=before, after=after, limit=limit, using=using, **wanted)
    found, up = page.tasks, _goes_up(before, after)
    while page.is_cut and of in {TaskStatus.RUNNING, TaskStatus.FAILED} and len(found) < limit:
        before, after = (None, page.newer) if up else (page.older, after)
        page = task_page(store, status=of, before=before, after=after, limit=limit, using=using, **wanted)
        found = page.tasks + found if up else found + page.tasks
    return found[-limit:] if up else found[:limit]


def task_page(
    store: Transactions,
    *,
    status: TaskStatus | str | None = None,
    before: AnyId | None = None,
    after: AnyId | None = None,
    limit: int = 100,
    using: object = None,
    **wanted: Unpack[PageFilters],
) -> TaskPage:
    """Return a page of the tasks that `tasks` returns. The search is bounded in the same way for every status.

    If you follow `older` from page to page, no task is missed or repeated, as long as the tables do not change. Raises
    InvalidArgument.
    """
    look = partial(_page, store, status=status_of(status), values=filter_values(wanted), limit=positive(limit))
    return store.run(partial(look, before=before, after=after), using=using, begin=Begin.READ)


def filter_values(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the filters, and of the bound on the rows to read. Raises InvalidArgument."""
    refuse_unknown(wanted, PageFilters)
    since, until, worker, batch = map(wanted.get, ("since", "until", "worker", "batch"))
    exception = storable(wanted.get("exception"), "exception")
    if (key := storable(wanted.get("idempotency_key"), "idempotency_key")) is not None and wanted.get("task") is None:
        raise InvalidArgument("idempotency_key needs the name of the task, because each task has its own keys")
    return {
        "exception": exception,
        "exception_end": exception and exception.rpartition(".")[2],
        "idempotency_key": key,
        **_written(wanted.get("argument"), wanted.get("queue")),
        **{column: storable(wanted.get(name), name) for name, column in _NAMES.items()},
        "from_id": FIRST if since is None else first_id(aware(since, "since")),
        "to_id": LAST if until is None else first_id(aware(until, "until")),
        "worker": None if worker is None else identifier(worker),
        "batch": None if batch is None else _batch_id(batch),
        "waiting": state_of(wanted.get("waiting")),
        "scan": SCAN if wanted.get("argument") is None else SCAN_ARGUMENTS,
    }


def _written(argument: tuple[str, object] | None, queue: str | None) -> dict[str, str | None]:
    """Return two strings. If a task has this argument, its arguments as JSON without spaces contain one of them."""
    if argument is None:
        return {"argument_first": None, "argument_last": None}
    if queue is None:
        raise InvalidArgument("argument= needs queue=, because only the tasks of one queue are searched")
    try:
        name, value = (json.dumps(one, ensure_ascii=False, allow_nan=False) for one in argument)
    except (TypeError, ValueError):
        raise InvalidArgument(f"argument must be a name and a value that JSON can contain, not {argument!r}") from None
    text = f"{name}:{value}".replace(" ", "")
    return {"argument_first": storable(f"{text},", "argument"), "argument_last": storable(f"{text}}}", "argument")}


def _batch_id(given: AnyId) -> UUID:
    batch_id = identifier(given)
    if not is_batch(batch_id):
        raise InvalidArgument(f"{batch_id} is not the id of a batch or a chain")
    return batch_id


def find_key(target: Target, given: dict[str, Any]) -> None:
    """Restrict the search to the task that holds the idempotency key, if the filters contain a key."""
    if given["idempotency_key"] is not None:
        wanted = next((row["id"] for row in target.run(task_with_key, given)), LAST)
        given |= {"from_id": max(given["from_id"], wanted), "to_id": min(given["to_id"], next_id(wanted))}


def source_of(target: Target, status: TaskStatus | None, values: Mapping[str, Any]) -> str:
    """Return the source to search for tasks with this status: a table, the tasks of the batch, or the entries of the
    queue if there are few.
    """
    if values["batch"] is not None:
        return "batch"
    source = "executions" if status is None else _SOURCES.get(status, "executions")
    if source == "entries" and values["queue"] is not None:
        few = not target.run(queue_is_longer, {"queue": values["queue"], "scan": values["scan"]})
        return "queue" if few else source
    return source


def ending(target: Target, source: str, given: dict[str, Any], *, up: bool) -> UUID | None:
    """Limit the search, and return the last id that it reads; None if the search is not limited.

    Later inserts and deletions can make the search longer or shorter, but it still ends at the same id.
    """
    if source in {"queue", "batch"}:
        return None
    end = target.run(END[f"{source}_{'up' if up else 'down'}"], given)
    if not end[1:]:
        return None
    last: UUID = end[0]["id"]
    given |= {"to_id": next_id(last)} if up else {"from_id": last}
    return last


def _is_filtered(status: TaskStatus | None, given: Mapping[str, Any]) -> bool:
    """Return whether a search may exclude rows."""
    named = ("queue", "task_name", "partition_key", "topic", "worker", "waiting", "exception", "argument_first")
    return status in {TaskStatus.COMPLETED, TaskStatus.CANCELLED} or any(given[name] is not None for name in named)


def _page(
    store: Transactions,
    target: Target,
    *,
    status: TaskStatus | None,
    values: Mapping[str, Any],
    limit: int,
    before: AnyId | None,
    after: AnyId | None,
) -> TaskPage:
    if values["waiting"] is not None and status is not TaskStatus.READY:
        raise InvalidArgument(f"only Ready tasks can be {values['waiting']}, so pass status=TaskStatus.READY too")
    given = {**values, "status": status, "scan": max(limit, values["scan"]), "limit": limit + 1}
    find_key(target, given)
    if before is not None:
        given["to_id"] = min(given["to_id"], identifier(before))
    if after is not None:
        given["from_id"] = max(given["from_id"], next_id(identifier(after)))
    given = store.values(target, **given)
    up = _goes_up(before, after)
    source = source_of(target, status, given)
    ended = ending(target, source, given, up=up) if _is_filtered(status, given) else None
    found = [execution_of(row) for row in target.run(PAGE[f"{source}_{'up' if up else 'down'}"], given)]
    rest = len(found) > limit
    page = partial(TaskPage, is_cut=ended is not None and not rest, looked_at=given["scan"])
    if after is not None and up:
        listed = found[-limit:]
        older = listed[-1].id if listed else next_id(identifier(after))
        return page(tasks=listed, newer=listed[0].id if rest else ended, older=older)
    listed = found[:limit]
    newer = listed[0].id if listed else UUID(int=max(0, given["to_id"].int - 1))
    is_newest = before is None and after is None
    return page(tasks=listed, older=listed[-1].id if rest else ended, newer=None if is_newest else newer)


def _goes_up(before: AnyId | None, after: AnyId | None) -> bool:
    """Return whether a search begins with the oldest tasks. A search between two ids begins with the newest."""
    return after is not None and before is None


def next_id(task_id: UUID) -> UUID:
    """Return the id after this one."""
    return UUID(int=min(task_id.int + 1, LAST.int))


_scan = sa.bindparam("scan", type_=sa.BigInteger, required=True)
_from_id, _to_id = parameters(sa.Uuid, "from_id", "to_id")
"""The smallest id, and the smallest id that is too large."""
_worker, _batch = parameters(sa.Uuid, "worker", "batch")
_waiting = sa.bindparam("waiting", type_=sa.Text, required=True)
_exception, _exception_end, _argument_first, _argument_last, _idempotency_key = parameters(
    sa.Text, "exception", "exception_end", "argument_first", "argument_last", "idempotency_key"
)
_SAME = {
    name: sa.bindparam(name, type_=sa.Text, required=True)
    for name in ("status", "queue", "task_name", "partition_key", "topic")
}
"""Filters: columns of a task and their values. NULL matches any value."""

_TEXTS = ("last_error", "args")
"""The task columns that filters read and whose values can be long."""
_COLON = text_literal(":")
_TABLES: Mapping[str, sa.Table] = {
    "executions": task_executions,
    "entries": task_outbox,
    "leases": task_leases,
    "letters": dead_letters,
}
_execution, _entry, _event, _lease = task_executions.c, task_outbox.c, execution_events.c, task_leases.c


def task_with_key(_: Grammar) -> sa.Select[Any]:
    """Select the task that holds :idempotency_key of :task_name."""
    key = idempotency_keys.c
    return sa.select(key.task_execution_id.label("id")).where(
        key.scope == _SAME["task_name"], key.key == _idempotency_key
    )


def queue_is_longer(_: Grammar) -> sa.Select[Any]:
    """Select one row if :queue has more than :scan entries without a key, or more than :scan entries with a key."""
    parts = [_entries(keyed=keyed).offset(_scan).limit(ONE).subquery() for keyed in (False, True)]
    found = sa.union_all(*(sa.select(part.c.id) for part in parts)).subquery("found")
    return sa.select(found.c.id)


def _entries(*, keyed: bool) -> sa.Select[Any]:
    """Select the entries of :queue with or without a key. There is a separate index for each case."""
    has_key = _entry.partition_key.is_not(None) if keyed else _entry.partition_key.is_(None)
    return _all_entries().where(_entry.queue == _SAME["queue"], has_key)


def _all_entries() -> sa.Select[Any]:
    columns = (_entry.queue, _entry.partition_key, _entry.topic, _entry.available_at)
    return sa.select(_entry.task_execution_id.label("id"), *columns)


def _members() -> sa.Select[Any]:
    """Select the tasks in :batch through their index. All of the batch's tasks are read, because that index is not
    ordered by id. To read fewer tasks, the query would have to search the primary key.
    """
    return sa.select(*(_execution[name] for name in ("id", *_SAME))).where(made_together(_batch))


def _source(name: str) -> tuple[sa.FromClause, Any, sa.ColumnElement[bool]]:
    """Return the source, its column of ids, and the condition that a row must meet to count toward the bound. There are
    few leases, so leases that do not match are not counted toward the bound.
    """
    if name in {"batch", "queue"}:
        rows = _members() if name == "batch" else _entries(keyed=False).union_all(_entries(keyed=True))
        mine = rows.cte("mine").prefix_with("MATERIALIZED")
        return mine, mine.c.id, sa.true()
    table = _TABLES[name]
    ids = table.c.id if name == "executions" else table.c.task_execution_id
    if name == "leases":
        return table, ids, sa.and_(_same(_lease.queue, _SAME["queue"]), _same(_lease.worker_id, _worker))
    return table, ids, sa.true()


def _ids(source: str, *, up: bool, besides: Callable[[sa.FromClause], sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Select up to :limit ids of the source's matching tasks, from :from_id to just below :to_id, that also meet
    `besides`.
    """
    rows, ids, counts = _source(source)
    columns = [rows.c[name].label(name) for name in (*_SAME, *_TEXTS, "available_at") if name in rows.c]
    looked = sa.select(ids.label("id"), *columns).where(ids >= _from_id, ids < _to_id, counts).subquery("looked")
    # The limit makes this a lookup per task instead of one read of all the worker's tasks.
    claims = sa.select(_event.sequence_num).where(
        _event.task_execution_id == looked.c.id,
        _event.event_type == sql_literal(EventType.CLAIMED),
        _event.worker_id == _worker,
    )
    worked = claims.limit(ONE).correlate(looked).scalar_subquery()
    same = _matches(looked)
    if source in {"executions", "batch"}:
        same.append(_same(looked.c.status, _SAME["status"]))
    if source != "leases":
        same.append(sa.or_(_worker.is_(None), worked.is_not(None)))
    order = looked.c.id if up else looked.c.id.desc()
    return sa.select(looked.c.id).where(*same, besides(looked)).order_by(order).limit(limit)


def _has_failed_with(error: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether an error begins with the class of the exception; NULL matches any error.
    The class may be given with its module, which the stored error does not contain.
    """

    def begins_with(name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        beginning = sa.func.substr(error.concat(_COLON), ONE, sa.func.length(name) + ONE, type_=sa.Text)
        return beginning == name.concat(_COLON)

    return sa.or_(_exception.is_(None), begins_with(_exception), begins_with(_exception_end))


def _has_argument(args: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a task's arguments contain the wanted argument; NULL matches any arguments.
    This compares strings, because a JSON function would raise an error for arguments that are not valid JSON.
    """
    text = sa.func.replace(args, text_literal(" "), text_literal(""), type_=sa.Text)
    without: Any = text
    for one in (_argument_first, _argument_last):
        without = sa.func.replace(without, one, text_literal(""), type_=sa.Text)
    return sa.or_(_argument_first.is_(None), without != text)


def _column(looked: sa.FromClause, name: str) -> sa.ColumnElement[Any]:
    """Return a column of the task from the source or, if the source lacks the column, from the execution."""
    if name in looked.c:
        return looked.c[name]
    execution = task_executions.alias("execution")
    found = sa.select(execution.c[name]).where(execution.c.id == looked.c.id)
    return found.correlate(looked).scalar_subquery()


def _select_page(g: Grammar, *, source: str, up: bool) -> sa.Select[Any]:
    """Select the tasks, newest first, in whichever direction the search goes."""
    found = page_of_ids(g, source=source, up=up)
    return with_lease().where(g.among(_execution.id, found)).order_by(_execution.id.desc())


def page_of_ids(g: Grammar, *, source: str, up: bool) -> Any:
    """Return the ids of the tasks on a page."""

    def besides(looked: sa.FromClause) -> sa.ColumnElement[bool]:
        error, args = _column(looked, "last_error"), _column(looked, "args")
        return sa.and_(_waits(g, source, looked), _has_failed_with(error), _has_argument(args))

    (found,) = _ids(source, up=up, besides=besides).cte("page").prefix_with("MATERIALIZED").c
    return found


def _waits(g: Grammar, source: str, looked: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a Ready task is in the state :waiting; NULL matches any state, and LATER
    matches all tasks that are not due. Only the executions of entries that are not due are looked up.
    """
    if source not in {"entries", "queue", "batch"}:
        return sa.true()
    if source == "batch":
        entry = task_outbox.alias("entry")
        due = sa.select(entry.c.available_at).where(entry.c.task_execution_id == looked.c.id)
        available_at: sa.ColumnElement[Any] = due.correlate(looked).scalar_subquery()
    else:
        available_at = looked.c.available_at
    state = sa.case(
        (available_at <= g.now, text_literal(Waiting.DUE)),
        (_column(looked, "retry_at").is_(None), text_literal(Waiting.DELAYED)),
        else_=text_literal(Waiting.RETRYING),
    )
    is_later = sa.and_(_waiting == text_literal(LATER), available_at > g.now)
    return sa.or_(_waiting.is_(None), is_later, state == _waiting)


def _next_ids(g: Grammar, *, source: str) -> sa.Select[Any]:
    """Select only the ids of the tasks that existed at the snapshot :head, :open, oldest first."""

    def besides(looked: sa.FromClause) -> sa.ColumnElement[bool]:
        return sa.and_(_waits(g, source, looked), was_unfinished(g, looked, looked.c.id))

    return _ids(source, up=True, besides=besides)


def _end(_: Grammar, *, source: str, up: bool) -> sa.Select[Any]:
    """Select the id of the last row that the search reads, and the id of the next row. Fewer than two rows are returned
    if the search reaches the end of the range.
    """
    _rows, ids, counts = _source(source)
    found = sa.select(ids.label("id")).where(ids >= _from_id, ids < _to_id, counts)
    return found.order_by(ids if up else ids.desc()).offset(_scan - ONE).limit(sa.literal_column("2"))


def count_waiting(g: Grammar) -> sa.Select[Any]:
    """Count up to :limit matching tasks among :scan entries."""
    return _count(g, "entries")


def count_waiting_of_queue(g: Grammar) -> sa.Select[Any]:
    """Count up to :limit matching tasks in :queue, among :scan entries without a key and :scan entries with a key."""
    return _count(g, "queue")


def count_running(g: Grammar) -> sa.Select[Any]:
    """Count up to :limit matching running tasks. Unless :asked_too is true, tasks asked to stop are left out."""
    return _count(g, "leases")


def waiting_by_task(g: Grammar) -> sa.Select[Any]:
    """Count the matching tasks among :scan entries by task and queue."""
    return _count_by_task(g, "entries")


def waiting_of_queue_by_task(g: Grammar) -> sa.Select[Any]:
    """Count the matching tasks in :queue by task, among :scan entries without a key and :scan entries with a key."""
    return _count_by_task(g, "queue")


def running_by_task(g: Grammar) -> sa.Select[Any]:
    """Count the matching running tasks by task and queue, in the same way as `count_running`."""
    return _count_by_task(g, "leases")


def _count_by_task(g: Grammar, source: str) -> sa.Select[Any]:
    looked, where = _counted(g, source)
    columns = (looked.c.queue, _column(looked, "task_name").label("task_name"))
    found = sa.select(*columns).where(*where).limit(limit).subquery("some")
    number = sa.func.count()
    counted = sa.select(found.c.queue, found.c.task_name, number.label("number"))
    return counted.group_by(found.c.queue, found.c.task_name).order_by(number.desc(), *found.c)


def _count(g: Grammar, source: str) -> sa.Select[Any]:
    looked, where = _counted(g, source)
    some: sa.Select[Any] = sa.select(ONE.label("one")).select_from(looked).where(*where).limit(limit)
    return sa.select(sa.func.count().label("tasks")).select_from(some.subquery("some"))


def _counted(g: Grammar, source: str) -> tuple[sa.FromClause, list[sa.ColumnElement[bool]]]:
    """Return the rows of a source that a count reads, and the conditions that test whether a row's task matches the
    filters and existed at the snapshot.
    """
    ids = _lease.task_execution_id if source == "leases" else _entry.task_execution_id
    in_range = (ids >= _from_id, ids < _to_id)
    if source == "leases":
        mine = sa.select(ids.label("id"), _lease.queue).where(*in_range, _same(_lease.queue, _SAME["queue"]))
        looked = mine.subquery("looked")
        asked_too = sa.bindparam("asked_too", type_=sa.Boolean, required=True)
        also = sa.or_(asked_too, _column(looked, "cancel_requested_at").is_(None))
        return looked, [*_matches(looked), was_unfinished(g, looked, looked.c.id), also]
    if source == "queue":
        parts = [_entries(keyed=keyed).where(*in_range).limit(_scan).subquery() for keyed in (False, True)]
        looked = sa.union_all(*map(sa.select, parts)).subquery("looked")
    else:
        looked = _all_entries().where(*in_range).limit(_scan).subquery("looked")
    return looked, [*_matches(looked), was_unfinished(g, looked, looked.c.id), _waits(g, source, looked)]


def _matches(looked: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that test whether a task matches the filters for its columns other than the status."""
    return [_same(_column(looked, name), wanted) for name, wanted in _SAME.items() if name != "status"]


def _same(column: Any, wanted: Any) -> sa.ColumnElement[bool]:
    return sa.or_(wanted.is_(None), column == wanted)


def _named(builder: Any, *sources: str) -> Mapping[str, Builder]:
    ways = (("down", False), ("up", True))
    return {f"{source}_{way}": partial(builder, source=source, up=up) for source in sources for way, up in ways}


PAGE: Mapping[str, Builder] = _named(_select_page, *_TABLES, "queue", "batch")
"""Statements that select a page, by source and direction."""
END: Mapping[str, Builder] = _named(_end, *_TABLES)
"""Statements that find the end of a search."""
NEXT_IDS: Mapping[str, Builder] = {
    source: partial(_next_ids, source=source) for source in ("entries", "leases", "queue")
}
"""Statements that select ids for a change to many tasks."""
