"""Keep the registry of live workers for people, and the tasks that workers released as unknown.

Recovery does not use this registry.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import BigId, Instant
from ...database.dialects import Begin, Row
from ...database.grammar import Builder, Columns, Grammar, Statement, limit, sql_literal, worker_id
from ...database.tables import execution_events, task_executions, task_outbox, workers
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import UNKNOWN_TASK, Claim, EventType, TaskStatus, duration
from ...model.receivers import ReceiverState, as_stored, read_states
from ..arguments import identifier, positive, storable
from ..tasks import operations, tasks
from ..tasks.event_log import first_of_window
from ..tasks.operations import freed
from ..tasks.tasks import data_of
from ..transactions import Transactions
from .sleeping_workers import SleepingWorkers

LOOKED_AT = 100_000
"""Maximum number of events after a worker was last seen that are searched for the ends of its claims."""
LIVE_WITHIN = timedelta(seconds=90)
"""Time after which a silent worker counts as dead. Workers report every 30 seconds."""
KEPT = timedelta(days=7)
"""Time for which a worker that has ended or was killed is kept, so that histories can name it."""
UNKNOWN_KEPT = timedelta(days=1)
"""Time for which the unknown tasks that a worker has come across are kept after it was last seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWorker:
    """A worker, as it registered itself."""

    id: UUID
    label: str
    """Host and process, for people."""
    queues: frozenset[str] | None
    """Queues that the worker serves; None means all queues."""
    topics: tuple[str, ...] | None
    """Topics whose tasks the worker runs, exact or with a trailing `*`; None means all tasks, including tasks without a
    topic.
    """
    concurrency: int
    task_names: frozenset[str]
    unknown_tasks: frozenset[tuple[str, str]] = frozenset()
    """Queue and name of each task that the worker has recently come across and does not know."""
    started_at: datetime
    last_seen_at: datetime
    host: str | None = None
    """Name of the machine. Like the other fields of `describe`, it is None if the worker has not described itself."""
    pid: int | None = None
    """Id of the process on that machine."""
    version: str | None = None
    """Version of the application's code, from `Outbox(version=…)`; None if it does not have one."""
    release: str | None = None
    """Version of outboxq."""
    busy: int | None = None
    """Number of threads that ran a handler at the last report."""
    isolation: str | None = None
    """The isolation of handlers: ``thread`` or ``process``."""
    receivers: tuple[ReceiverState, ...] = ()
    """The states of its receivers. A change is reported at once."""
    ended_at: datetime | None = None
    """Time at which the worker stopped normally; None if it is live, or was killed or cut off."""

    def works_on(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def takes(self, topic: str | None) -> bool:
        return takes(self.topics, topic)


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """The workers that were seen recently, and the time of the query."""

    at: datetime
    workers: builtins.list[LiveWorker]


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenTask:
    """A task that another worker recovered after the first worker's lease had expired."""

    task_id: UUID
    task_name: str | None
    """Name of the task; None if the task was pruned. The same applies to the next field."""
    status: TaskStatus | None
    """Current status."""
    event_type: EventType
    """Event of the recovery: RESET (the task will run again), or ABANDONED (a dead letter after too many recoveries).
    """
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenBack:
    """The tasks that other workers recovered from a worker, in the order in which they were recovered."""

    tasks: builtins.list[TakenTask]
    is_complete: bool
    """False if there may be more tasks, because the search was cut off."""


class Workers:
    """The registry of live workers."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def register(
        self,
        worker_id: UUID,
        *,
        label: str,
        queues: Iterable[str] | None = None,
        topics: Iterable[str] | None = None,
        concurrency: int,
        task_names: Iterable[str],
        unknown_tasks: Iterable[tuple[str, str]] = (),
        using: object = None,
    ) -> None:
        """Register a worker that begins, or that `seen` did not find. If `queues` or `topics` is None, the worker
        serves all of them.

        `unknown_tasks` has the queue and name of each unknown task that the worker has recently come across. Without
        `using`, the notification requests of killed workers are deleted too.
        """
        values = {
            "worker_id": identifier(worker_id),
            "label": label,
            "queues_json": _names(queues, "queues"),
            "topics_json": _names(topics, "topics"),
            "concurrency": positive(concurrency, "concurrency"),
            "task_names_json": _names(task_names, "task_names"),
            "unknown_tasks_json": _written(unknown_tasks),
        }
        self._tell(register, values, using)
        if using is None:
            SleepingWorkers(self._store).forget_ended()

    def seen(self, worker_id: UUID, *, unknown_tasks: Iterable[tuple[str, str]] = (), using: object = None) -> bool:
        """Record that the worker is alive, and the unknown tasks that it has recently come across.

        Returns False if the worker is not registered, so that it registers again.
        """
        values = {"worker_id": identifier(worker_id), "unknown_tasks_json": _written(unknown_tasks)}
        return bool(self._tell(seen, values, using))

    def describe(
        self,
        worker_id: UUID,
        *,
        host: str | None = None,
        pid: int | None = None,
        version: str | None = None,
        release: str | None = None,
        busy: int | None = None,
        isolation: str | None = None,
        receivers: Iterable[ReceiverState] = (),
        using: object = None,
    ) -> bool:
        """Record the process of a registered worker. The arguments are fields of LiveWorker.

        Returns False, and writes nothing, if the worker is not registered.
        """
        values = {
            "worker_id": identifier(worker_id),
            "host": storable(host, "host"),
            "pid": pid,
            "version": storable(version, "version"),
            "release": storable(release, "release"),
            "busy": busy,
            "isolation": storable(isolation, "isolation"),
            "receivers_json": as_stored(receivers),
        }
        return bool(self._tell(describe, values, using))

    def unregister(self, worker_id: UUID, *, met_unknown: bool = False, using: object = None) -> None:
        """Record that the worker has ended, and forget the workers that ended or were last seen more than a week ago.

        With `met_unknown`, the unknown tasks that it came across are kept for a day, so that a worker that knows them
        finds them. The worker itself is listed only as one that has ended.
        """
        values = {"worker_id": identifier(worker_id), "met_unknown": met_unknown}

        def work(target: Target) -> None:
            given = self._store.values(target, **values)
            target.run(end, given)
            target.run(forget, given)

        self._store.run(work, using=using, begin=Begin.ASYNCHRONOUS)

    def forget(self, *, using: object = None) -> int:
        """Forget the workers that ended or were last seen more than a week ago; returns their number."""
        return len(self._tell(forget, {}, using))

    def get(self, worker_id: UUID, *, using: object = None) -> LiveWorker | None:
        """Return a worker, whether it is live or not; None if it was never registered, or is forgotten."""
        identifier(worker_id)
        return self._store.run(lambda target: worker(target, worker_id), using=using, begin=Begin.READ)

    def list(self, live_within: timedelta | float = LIVE_WITHIN, *, using: object = None) -> builtins.list[LiveWorker]:
        """Return the workers that were seen within this time, oldest first."""
        return self.presence(live_within, using=using).workers

    def presence(
        self, within: timedelta | float = LIVE_WITHIN, *, with_ended: bool = False, using: object = None
    ) -> Presence:
        """Return the workers that were seen within this time, oldest first, and the time of the database. `with_ended`
        includes workers that stopped normally.
        """
        span = duration(within, "live_within")

        def work(target: Target) -> Presence:
            now = target.run(tasks.select_now, self._store.values(target))[0]["now"]
            return Presence(at=now, workers=live_workers(target, now, span, with_ended=with_ended))

        return self._store.run(work, using=using, begin=Begin.READ)

    def taken_back(self, worker_id: UUID, *, limit: int = 100, using: object = None) -> TakenBack:
        """Return up to `limit` tasks that other workers recovered from this one, according to the events of its claims.

        The search reads 100,000 events, from when the worker was last seen, which takes about 20 ms. No tasks are
        returned for a worker without a row. The row is deleted a week after the worker was last seen.
        """
        read = partial(tasks_taken_back, worker_id=identifier(worker_id), limit=positive(limit))
        return self._store.run(read, using=using, begin=Begin.SNAPSHOT)

    def _tell(self, builder: Builder, values: dict[str, Any], using: object) -> Sequence[Row]:
        return self._store.run_one(builder, using=using, begin=Begin.ASYNCHRONOUS, **values)


def tasks_taken_back(target: Target, *, worker_id: UUID, limit: int) -> TakenBack:
    """Return what `Workers.taken_back` returns, in this transaction."""
    rows = target.run(one, {"worker_id": worker_id})
    start = target.run(first_of_window, {"search_from": rows[0]["last_seen_at"]}) if rows else []
    if not start:
        return TakenBack(tasks=[], is_complete=True)
    values = {"worker_id": worker_id, "limit": limit, "most": LOOKED_AT, "first": start[0]["first"]}
    found = target.run(taken_back, values)
    for row in found:
        row["status"] = None if row["status"] is None else TaskStatus(row["status"])
        row["event_type"] = EventType(row["event_type"])
    taken = [TakenTask(**row) for row in found]
    return TakenBack(tasks=taken, is_complete=len(found) < limit and not target.run(beyond, values))


def live_workers(
    target: Target, now: datetime, within: timedelta = LIVE_WITHIN, *, with_ended: bool = False
) -> list[LiveWorker]:
    """Return the workers that were seen within this time, the oldest first."""
    try:
        since = now - within
    except OverflowError:
        raise InvalidArgument(f"live_within={within!r} reaches back beyond the first year") from None
    rows = target.run(recent if with_ended else live, {"live_since": since})
    return [_worker(row) for row in rows]


def worker(target: Target, worker_id: UUID) -> LiveWorker | None:
    """Return the worker, no matter how long ago it was seen; None if it is not registered."""
    rows = target.run(one, {"worker_id": worker_id})
    return _worker(rows[0]) if rows else None


def _worker(row: Row) -> LiveWorker:
    queues, topics = (None if row[name] is None else json.loads(row[name]) for name in ("queues", "topics"))
    read = {
        "queues": None if queues is None else frozenset(queues),
        "topics": None if topics is None else tuple(topics),
        "task_names": frozenset(json.loads(row["task_names"])),
        "unknown_tasks": frozenset(read_names(row["unknown_tasks"])),
        "receivers": read_states(row["receivers"]),
    }
    return LiveWorker(**{**row, **read})


def takes(topics: Iterable[str] | None, topic: str | None) -> bool:
    """Return whether a worker with these topics (exact names or patterns) runs tasks with this topic. A worker without
    topics (None) takes all tasks.
    """
    if topics is None:
        return True
    return topic is not None and any(
        topic.startswith(one[:-1]) if one.endswith("*") else topic == one for one in topics
    )


def read_names(text: str | None) -> Iterator[tuple[str, str]]:
    """Queue and name of each unknown task, as they were written."""
    return ((queue, name) for queue, name in json.loads(text or "[]"))


def _written(unknown_tasks: Iterable[tuple[str, str]]) -> str | None:
    """Return the unknown tasks as JSON; None for an empty list, so that the database can skip such workers."""
    listed = sorted(unknown_tasks)
    return json.dumps(listed) if listed else None


def _names(names: Iterable[str] | None, what: str) -> str | None:
    """Return the names as JSON. Raises InvalidArgument for a string, which would be a list of characters."""
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else sorted(names, key=str)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"{what} takes a list of names")
    return json.dumps(listed)


_JSON = ("queues", "topics", "task_names", "unknown_tasks", "receivers")
_REGISTERED = ("label", "queues", "topics", "concurrency", "task_names", "unknown_tasks")
_DESCRIBED = ("host", "pid", "version", "release", "busy", "isolation", "receivers")
_given = {
    name: sa.bindparam(f"{name}_json" if name in _JSON else name, type_=workers.c[name].type, required=True)
    for name in (*_REGISTERED, *_DESCRIBED)
}
"""The parameters of the columns that a worker writes about itself."""
_forgotten = sa.bindparam("forgotten", -KEPT.total_seconds(), type_=sa.Double)
_a_day_ago = sa.bindparam("a_day_ago", -UNKNOWN_KEPT.total_seconds(), type_=sa.Double)
_met_unknown = sa.bindparam("met_unknown", type_=sa.Boolean, required=True)
_event = execution_events.c
_first, _most = (sa.bindparam(name, type_=sa.BigInteger, required=True) for name in ("first", "most"))
_live_since = sa.bindparam("live_since", type_=Instant, required=True)


def register(g: Grammar) -> sa.Insert:
    """Register a worker, or replace its registration."""
    written = {name: _given[name] for name in _REGISTERED}
    values: dict[str, Any] = {"id": worker_id, **written, "started_at": g.now, "last_seen_at": g.now}
    new = g.insert(workers).from_select(list(values), sa.select(*values.values()))
    renewed = {**{name: new.excluded[name] for name in (*_REGISTERED, "last_seen_at")}, "ended_at": sa.null()}
    return new.on_conflict_do_update(index_elements=[workers.c.id], set_=renewed)  # type: ignore[no-any-return]


def seen(g: Grammar) -> sa.Update:
    """Record that a registered worker is alive, and which unknown tasks it has met. Otherwise return no row."""
    report = {"last_seen_at": g.now, "unknown_tasks": _given["unknown_tasks"]}
    touched = sa.update(workers).where(workers.c.id == worker_id, is_registered()).values(report)
    return touched.returning(workers.c.id)


def end(g: Grammar) -> sa.Update:
    """Record that the worker has ended. With :met_unknown, the unknown tasks that it came across are kept."""
    unknown = sa.case((_met_unknown, workers.c.unknown_tasks))
    mine = sa.update(workers).where(workers.c.id == worker_id, is_registered())
    return mine.values(ended_at=g.now, last_seen_at=g.now, unknown_tasks=unknown)


def forget(g: Grammar) -> Statement:
    """Delete the workers that were last seen more than a week ago."""
    old = workers.c.last_seen_at < g.later(g.now, _forgotten)
    return sa.delete(workers).where(old).returning(workers.c.id)


def is_registered() -> sa.ColumnElement[bool]:
    """Return the condition that a row belongs to a worker that has not ended."""
    return workers.c.ended_at.is_(None)


def taken_back(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit ends of this worker's claims that other workers wrote, in the order in which they were
    written.

    The query reads :most events from the number :first on by the primary key. No index contains the worker, because it
    would slow down every event. Others recover the tasks of a dead worker soon after it was last seen, when its leases
    have expired.
    """
    columns = (_event[name] for name in ("sequence_num", "task_execution_id", "event_type", "worker_id", "created_at"))
    window = sa.select(*columns).where(_event.sequence_num >= _first).order_by(_event.sequence_num).limit(_most)
    looked = window.subquery("looked")
    kinds = [sql_literal(kind) for kind in (EventType.RESET, EventType.ABANDONED)]
    found = sa.select(looked).where(looked.c.worker_id == worker_id, looked.c.event_type.in_(kinds))
    mine = found.order_by(looked.c.sequence_num).limit(limit).subquery("mine")
    # This is not a join, which might read all tasks.
    task_name, status = (
        sa.select(column).where(task_executions.c.id == mine.c.task_execution_id).scalar_subquery()
        for column in (task_executions.c.task_name, task_executions.c.status)
    )
    return sa.select(
        mine.c.task_execution_id.label("task_id"),
        task_name.label("task_name"),
        status.label("status"),
        mine.c.event_type,
        mine.c.created_at.label("at"),
    ).order_by(mine.c.sequence_num)


def beyond(_: Grammar) -> sa.Select[Any]:
    """Select one row if there are more than :most events with numbers from :first on."""
    after = sa.select(_event.sequence_num).where(_event.sequence_num >= _first).order_by(_event.sequence_num)
    return after.offset(_most).limit(sa.literal_column("1"))


def describe(_: Grammar) -> sa.Update:
    """Record what a worker says about its process and its receivers."""
    described = {name: _given[name] for name in _DESCRIBED}
    return sa.update(workers).where(workers.c.id == worker_id).values(described).returning(workers.c.id)


def live(_: Grammar) -> sa.Select[Any]:
    """Select the workers seen since :live_since, oldest first."""
    return (
        sa.select(workers)
        .where(workers.c.last_seen_at >= _live_since, is_registered())
        .order_by(workers.c.started_at, workers.c.id)
    )


def recent(_: Grammar) -> sa.Select[Any]:
    """Select the workers that were seen since :live_since, including workers that have ended."""
    return sa.select(workers).where(workers.c.last_seen_at >= _live_since).order_by(workers.c.started_at, workers.c.id)


def with_unknown_tasks(g: Grammar) -> sa.Select[Any]:
    """Select the unknown tasks of the workers of the last day, including workers that have ended."""
    is_recent = workers.c.last_seen_at >= g.later(g.now, _a_day_ago)
    return sa.select(workers.c.unknown_tasks).where(workers.c.unknown_tasks.is_not(None), is_recent)


def one(_: Grammar) -> sa.Select[Any]:
    """Select one worker, no matter how long ago it was seen."""
    return sa.select(workers).where(workers.c.id == worker_id)


_PAGE = 500
"""Number of outbox entries that one transaction reads, so that no other session waits long for it."""
_KNOWN = "a worker that knows the task has started"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownRun:
    """An unbroken series of releases of one task by workers that do not know it."""

    times: int = 0
    since: datetime
    known_elsewhere: bool = False
    """True if a live worker knows the task and would run it."""


def unknown_runs(store: Transactions, claims: Sequence[Claim], *, using: object = None) -> Mapping[UUID, UnknownRun]:
    """Return the series of releases as unknown that ends with each claim, by task id.

    The releases may have been made by any worker. Every event other than a claim ends the series.
    """

    def work(target: Target) -> Mapping[UUID, UnknownRun]:
        now = target.run(tasks.select_now, store.values(target))[0]["now"]
        found = releases_as_unknown(target, [(claim.id, claim.lease_token - 1) for claim in claims])
        workers = live_workers(target, now)
        runs = {}
        for claim in claims:
            known = any(
                worker.works_on(claim.queue) and worker.takes(claim.topic) and claim.task_name in worker.task_names
                for worker in workers
            )
            times, since = found.get(claim.id, (0, claim.started_at))
            runs[claim.id] = UnknownRun(times=times, since=since, known_elsewhere=known)
        return runs

    return store.run(work, using=using, begin=Begin.READ)


def make_known_due(
    store: Transactions,
    task_names: Collection[str],
    *,
    queues: Collection[str] | None = None,
    topics: Collection[str] | None = None,
    after: int = 0,
    using: object = None,
) -> int | None:
    """Make tasks due that are waiting because a worker did not know their names, for a worker that knows them.

    The call handles one page of the outbox, after the entry `after`. Returns the entry at which the next page begins;
    None after the last page. If no worker has come across a name that this worker knows, the outbox is not read.
    """
    names = frozenset(task_names)

    def look(target: Target) -> tuple[list[int], int | None]:
        met = target.run(with_unknown_tasks, store.values(target))
        pairs = {(queue, name) for row in met for queue, name in read_names(row["unknown_tasks"])}
        wanted = {(queue, name) for queue, name in pairs if name in names and (queues is None or queue in queues)}
        if not wanted:
            return [], None
        page = target.run(delayed, store.values(target, after=after, limit=_PAGE))
        due = [
            row["id"]
            for row in page
            if row["released"] and (row["queue"], row["task_name"]) in wanted and takes(topics, row["topic"])
        ]
        return due, page[-1]["id"] if len(page) == _PAGE else None

    entries, following = store.run(look, using=using, begin=Begin.READ)
    if entries:
        store.run(lambda target: _make_due(store, target, entries), using=using)
    return following


def _make_due(store: Transactions, target: Target, entries: Sequence[int]) -> None:
    values = store.values(target, due_now=True, priority=None, request=None, reason=_KNOWN)
    with target.atomic():
        moved = target.run(operations.make_due, values, [(entry,) for entry in entries])
    store.wake(target, freed(moved))


def releases_as_unknown(target: Target, holding: Sequence[tuple[UUID, int]]) -> dict[UUID, tuple[int, datetime]]:
    """Return how many times in a row, and since when, each task was released as unknown, up to its claim under this
    token.

    A task whose claim under this token ended otherwise is left out.
    """
    packed = target.dialect.pack("holding", HOLDING, holding)
    found = {}
    for row in target.run(releases, packed):
        data = data_of(row["event_data"])
        since = data.get("since")
        found[row["id"]] = (data.get("times", 1), row["created_at"] if since is None else datetime.fromisoformat(since))
    return found


HOLDING: Columns = {"id": sa.Uuid(), "lease_token": sa.BigInteger()}
_after = sa.bindparam("after", type_=BigId, required=True)


def releases(g: Grammar) -> sa.Select[Any]:
    """Select the events that ended the claims of :holding as releases of unknown tasks, if only claims have happened to
    them since.
    """
    given, event = g.rows("holding", HOLDING), execution_events.c
    return (
        sa.select(event.task_execution_id.label("id"), event.event_data, event.created_at)
        .join_from(
            given,
            execution_events,
            sa.and_(event.task_execution_id == given.c.id, event.lease_token == given.c.lease_token),
        )
        .where(*_released_last(g, given.c.id))
    )


def delayed(g: Grammar) -> sa.Select[Any]:
    """Select a page of the delayed outbox entries after the id :after, and whether each waits since such a release."""
    entry = task_outbox.c
    page = (
        sa.select(entry.id, entry.task_execution_id, entry.queue, entry.topic)
        .where(entry.id > _after, entry.available_at > g.now)
        .order_by(entry.id)
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    execution, event = task_executions.c, execution_events.c
    released = sa.exists().where(
        event.task_execution_id == execution.id,
        event.lease_token == execution.lease_token,
        *_released_last(g, page.c.task_execution_id),
    )
    return (
        sa.select(page.c.id, page.c.queue, page.c.topic, execution.task_name, released.label("released"))
        .join_from(page, task_executions, execution.id == page.c.task_execution_id)
        .where(g.among(execution.id, page.c.task_execution_id))
        .order_by(page.c.id)
    )


def _released_last(g: Grammar, ids: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition that the event released a claim of one of these tasks as unknown, and no event without a
    lease token followed.
    """
    event, other = execution_events.c, execution_events.alias("other").c
    later = sa.exists().where(
        g.among(other.task_execution_id, ids),
        other.task_execution_id == event.task_execution_id,
        other.lease_token.is_(None),
        other.sequence_num > event.sequence_num,
    )
    return (
        g.among(event.task_execution_id, ids),
        event.event_type != sql_literal(EventType.CLAIMED),  # the condition of the index over the ends of claims
        event.lease_token.is_not(None),
        event.event_type == sql_literal(EventType.RELEASED),
        g.text_in(event.event_data, "reason") == UNKNOWN_TASK,
        ~later,
    )
