"""Maintain the registry of live workers, which is for people to read.

Recovery does not use this registry.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Begin, Row
from ...database.grammar import Builder, Grammar, Statement, limit, sql_literal, worker_id
from ...database.tables import execution_events, task_executions, workers
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EventType, TaskStatus, duration
from ...model.unknown_options import Answering
from ...model.workers import Orders, ReceiverState, WorkerOrder, WorkerState, as_stored, read_states
from ..arguments import identifier, positive, storable
from ..tasks import tasks
from ..tasks.event_log import first_of_window
from ..transactions import Transactions
from .sleeping_workers import SleepingWorkers

LOOKED_AT = 100_000
"""Maximum number of events that are searched for the ends of a worker's claims, starting at the time at which the
worker was last seen.
"""
LIVE_WITHIN = timedelta(seconds=90)
"""Time after which a silent worker counts as dead. Workers report every five seconds."""
KEPT = timedelta(days=7)
"""Time for which a worker that has ended or was killed is kept, so that histories can name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWorker:
    """A worker, with the values that it registered."""

    id: UUID
    label: str
    """Host and process, for people to read."""
    queues: frozenset[str] | None
    """Queues that the worker serves; None means all queues."""
    topics: tuple[str, ...] | None
    """Topics whose tasks the worker runs, exact or with a trailing `*`; None means all tasks, including tasks without a
    topic.
    """
    concurrency: int
    task_names: frozenset[str]
    unknown_tasks: frozenset[tuple[str, str]] = frozenset()
    """Queue and name of each task that the worker has recently come across but does not know."""
    started_at: datetime
    last_seen_at: datetime
    host: str | None = None
    """Name of the machine. Like the other fields of `describe`, it is None if the worker has not described itself."""
    pid: int | None = None
    """Id of the process on that machine."""
    version: str | None = None
    """Version of the application's code, from `Outbox(version=…)`; None if no version was given."""
    release: str | None = None
    """Version of outboxq."""
    busy: int | None = None
    """Number of threads that were running a handler at the time of the last report."""
    isolation: str | None = None
    """The isolation of handlers: ``thread`` or ``process``."""
    receivers: tuple[ReceiverState, ...] = ()
    """The states of its receivers. A change is reported immediately."""
    ended_at: datetime | None = None
    """Time at which the worker stopped normally; None if it is live, or was killed or cut off."""
    asked_to: WorkerOrder | None = None
    """A person's order to the worker; None if the worker is to claim tasks."""
    state: WorkerState | None = None
    """The state that the worker has reached; None if it claims tasks."""
    failure: str | None = None
    """The error that keeps the worker from working, such as ``cannot claim tasks: DiskFull …``; None if it can work, or
    does not know whether it can.
    """
    failing_since: datetime | None = None
    """The time of the first failure in the current series, by the worker's clock."""
    stacks_asked_at: datetime | None = None
    """Time at which a person asked for the stacks of the worker's threads; None if no request is waiting for an answer.
    """
    stacks_at: datetime | None = None
    """Time of the stacks in the worker's last answer; see `Store.worker_orders.stacks`."""

    def is_live(self, now: datetime) -> bool:
        """Return whether the worker is running, as far as its reports show."""
        return self.ended_at is None and not is_lost(self.last_seen_at, now)

    def works_on(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def takes(self, topic: str | None) -> bool:
        return takes(self.topics, topic)

    def is_blamed(self, versions: Mapping[str, Collection[str]]) -> bool:
        """Return whether the worker's version failed in one of the worker's queues, according to
        `dead_letters.blamed_versions`.
        """
        return self.version is not None and any(map(self.works_on, versions.get(self.version, ())))


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """The workers that were seen recently, and the time of the query."""

    at: datetime
    workers: builtins.list[LiveWorker]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveredTask:
    """A task that another worker recovered after the first worker's lease had expired, or that a person recovered."""

    task_id: UUID
    task_name: str | None
    """Name of the task; None if the task was pruned, in which case `status` is also None."""
    status: TaskStatus | None
    """Current status."""
    event_type: EventType
    """Event of the recovery: RESET (the task will run again), or ABANDONED (a dead letter after too many recoveries).
    """
    at: datetime
    reason: str | None = None
    """The reason for the recovery, and the name of the person who recovered the task; None if another worker recovered
    it, or if neither the reason nor the name is known.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveredTasks:
    """The tasks that other workers or people recovered from a worker, in the order in which they were recovered."""

    tasks: builtins.list[RecoveredTask]
    is_complete: bool
    """False if there may be more tasks, because the search was cut off."""


class Workers(Answering):
    """The registry of live workers."""

    _noun = "outbox.store.workers"

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
        """Register a worker that is starting, or that `seen` did not find. If `queues` is None, the worker serves all
        queues; if `topics` is None, it runs all tasks in its queues.

        `unknown_tasks` contains the queue and name of each unknown task that the worker has recently come across.
        Without `using`, the notification requests of killed workers are deleted too.
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

    def seen(
        self, worker_id: UUID, *, unknown_tasks: Iterable[tuple[str, str]] = (), using: object = None
    ) -> Orders | None:
        """Record that the worker is alive, and the unknown tasks that it has recently come across.

        Returns the worker's orders; None if the worker is not registered, and therefore has to register again.
        """
        values = {"worker_id": identifier(worker_id), "unknown_tasks_json": _written(unknown_tasks)}
        rows = self._tell(seen, values, using)
        if not rows:
            return None
        return Orders(asked_to=_order_of(rows[0]), stacks=rows[0]["stacks_asked_at"] is not None)

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
        state: WorkerState | None = None,
        failure: str | None = None,
        failing_since: datetime | None = None,
        using: object = None,
    ) -> bool:
        """Record the process of a registered worker. The arguments are fields of LiveWorker.

        Returns False, and writes nothing, if the worker is not registered.
        """
        worker = {"worker_id": identifier(worker_id), "pid": pid, "busy": busy, "receivers_json": as_stored(receivers)}
        texts = {"host": host, "version": version, "release": release, "isolation": isolation, "failure": failure}
        stored = {name: storable(text, name) for name, text in texts.items()}
        return bool(self._tell(describe, {**worker, **stored, "state": state, "failing_since": failing_since}, using))

    def unregister(self, worker_id: UUID, *, met_unknown: bool = False, using: object = None) -> None:
        """Record that the worker has ended, and forget the workers that ended or were last seen more than a week ago.

        With `met_unknown`, the unknown tasks that it came across are kept for a day, so that a worker that knows them
        can find them. The worker itself is listed only among the workers that have ended.
        """
        values = {"worker_id": identifier(worker_id), "met_unknown": met_unknown}

        def work(target: Target) -> None:
            given = self._store.values(target, **values)
            target.run(end, given)
            target.run(forget, given)

        self._store.run(work, using=using, begin=Begin.ASYNCHRONOUS)

    def forget(self, *, using: object = None) -> int:
        """Forget the workers that ended or were last seen more than a week ago, and return their number."""
        return len(self._tell(forget, {}, using))

    def get(self, worker_id: UUID, *, using: object = None) -> LiveWorker | None:
        """Return a worker, whether it is live or not; None if it was never registered, or has been forgotten."""
        identifier(worker_id)
        return self._store.run(lambda target: worker(target, worker_id), using=using, begin=Begin.READ)

    def silence(self, worker_id: UUID, *, using: object = None) -> timedelta | None:
        """Return how long ago a worker that counts as dead was last seen; None for a live or unregistered worker. The
        time is negative if the clock has been set back since the worker was last seen.
        """
        identifier(worker_id)

        def work(target: Target) -> timedelta | None:
            if (found := worker(target, worker_id)) is None:
                return None
            now = self._store.now_in(target)
            return now - found.last_seen_at if is_lost(found.last_seen_at, now) else None

        return self._store.run(work, using=using, begin=Begin.READ)

    def list(self, live_within: timedelta | float = LIVE_WITHIN, *, using: object = None) -> builtins.list[LiveWorker]:
        """Return the workers that were seen within this time, oldest first."""
        return self.presence(live_within, using=using).workers

    def presence(
        self, within: timedelta | float = LIVE_WITHIN, *, with_ended: bool = False, using: object = None
    ) -> Presence:
        """Return the workers that were seen within this time, oldest first, and the database's time. `with_ended`
        includes workers that stopped normally.
        """
        span = duration(within, "live_within")

        def work(target: Target) -> Presence:
            now = self._store.now_in(target)
            return Presence(at=now, workers=live_workers(target, now, span, with_ended=with_ended))

        return self._store.run(work, using=using, begin=Begin.READ)

    def recovered(self, worker_id: UUID, *, limit: int = 100, using: object = None) -> RecoveredTasks:
        """Return up to `limit` tasks that other workers or people recovered from this worker, according to the events
        of its claims.

        The search reads up to 100,000 events, starting at the time at which the worker was last seen. This takes about
        20 ms. No tasks are returned for a worker without a row. The row is deleted a week after the worker was last
        seen.
        """
        wanted = {"worker_id": identifier(worker_id), "limit": positive(limit), "most": LOOKED_AT}

        def read(target: Target) -> RecoveredTasks:
            rows = target.run(one, wanted)
            start = target.run(first_of_window, {"search_from": rows[0]["last_seen_at"]}) if rows else []
            if not start:
                return RecoveredTasks(tasks=[], is_complete=True)
            values = {**wanted, "first": start[0]["first"]}
            found = target.run(recovered, values)
            for row in found:
                row["event_type"] = EventType(row["event_type"])
                row["reason"] = tasks.data_of(row.pop("event_data")).get("reason")
            is_complete = len(found) < limit and not target.run(beyond, values)
            return RecoveredTasks(tasks=[RecoveredTask(**row) for row in found], is_complete=is_complete)

        return self._store.run(read, using=using, begin=Begin.SNAPSHOT)

    def _tell(self, builder: Builder, values: dict[str, Any], using: object) -> Sequence[Row]:
        return self._store.run_one(builder, using=using, begin=Begin.ASYNCHRONOUS, **values)


def live_workers(
    target: Target, now: datetime, within: timedelta = LIVE_WITHIN, *, with_ended: bool = False
) -> list[LiveWorker]:
    """Return the workers that were seen within this time, oldest first. Without `with_ended`, a worker that was last
    seen in the future is left out, because it has not reported since the clock was set back.
    """
    try:
        since = now - within
    except OverflowError:
        raise InvalidArgument(f"live_within={within!r} reaches back before the year 1") from None
    rows = target.run(recent if with_ended else live, {"live_since": since})
    return [_worker(row) for row in rows if with_ended or row["last_seen_at"] <= now + LIVE_WITHIN]


def is_lost(seen_at: datetime, now: datetime) -> bool:
    """Return whether a worker whose last sign of life was at this time counts as dead or cut off. A sign in the future
    was written before the clock was set back, because every report of a live worker replaces the previous sign.
    """
    return abs(now - seen_at) > LIVE_WITHIN


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
        "asked_to": _order_of(row),
        "state": None if row["state"] is None else WorkerState(row["state"]),
    }
    return LiveWorker(**{**row, **read})


def _order_of(row: Row) -> WorkerOrder | None:
    return None if row["asked_to"] is None else WorkerOrder(row["asked_to"])


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
    """Yield the queue and name of each unknown task, as they were written."""
    return ((queue, name) for queue, name in json.loads(text or "[]"))


def _written(unknown_tasks: Iterable[tuple[str, str]]) -> str | None:
    """Return the unknown tasks as JSON; None for an empty list, so that the database can skip workers without unknown
    tasks.
    """
    listed = sorted(unknown_tasks)
    return json.dumps(listed) if listed else None


def _names(names: Iterable[str] | None, what: str) -> str | None:
    """Return the names as JSON. Raises InvalidArgument for a string, which would be read as a list of characters."""
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else sorted(names, key=str)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"{what} must be a list of names")
    return json.dumps(listed)


_JSON = ("queues", "topics", "task_names", "unknown_tasks", "receivers")
_described = [column for column in workers.c if column is not workers.c.stacks]
"""The columns of a LiveWorker. The stacks may be long, so they are read only for one worker at a time."""
_REGISTERED = ("label", "queues", "topics", "concurrency", "task_names", "unknown_tasks")
_DESCRIBED = (
    "host",
    "pid",
    "version",
    "release",
    "busy",
    "isolation",
    "receivers",
    "state",
    "failure",
    "failing_since",
)
_given = {
    name: sa.bindparam(f"{name}_json" if name in _JSON else name, type_=workers.c[name].type, required=True)
    for name in (*_REGISTERED, *_DESCRIBED)
}
"""The parameters for the columns in which a worker describes itself."""
_forgotten = sa.bindparam("forgotten", -KEPT.total_seconds(), type_=sa.Double)
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
    """Record that a registered worker is alive, and which unknown tasks it has come across. Returns no row for a worker
    that is not registered.
    """
    report = {"last_seen_at": g.now, "unknown_tasks": _given["unknown_tasks"]}
    touched = sa.update(workers).where(workers.c.id == worker_id, is_registered()).values(report)
    return touched.returning(workers.c.asked_to, workers.c.stacks_asked_at)


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
    """Return a condition that tests whether a row belongs to a worker that has not ended."""
    return workers.c.ended_at.is_(None)


def recovered(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit events with which other workers or people ended this worker's claims, in the order in which
    the events were written.

    The query reads up to :most events from the primary key, beginning with the event number :first. No index contains
    the worker, because such an index would slow down the insertion of every event. Other workers recover a dead
    worker's tasks when its leases have expired, which is soon after it was last seen.
    """
    names = ("sequence_num", "task_execution_id", "event_type", "worker_id", "created_at", "event_data")
    columns = (_event[name] for name in names)
    window = sa.select(*columns).where(_event.sequence_num >= _first).order_by(_event.sequence_num).limit(_most)
    looked = window.subquery("looked")
    kinds = [sql_literal(kind) for kind in (EventType.RESET, EventType.ABANDONED)]
    found = sa.select(looked).where(looked.c.worker_id == worker_id, looked.c.event_type.in_(kinds))
    mine = found.order_by(looked.c.sequence_num).limit(limit).subquery("mine")
    # This is not a join, which might read all tasks.
    task = (
        sa.select(task_executions.c[name]).where(task_executions.c.id == mine.c.task_execution_id).label(name)
        for name in ("task_name", "status")
    )
    event = (mine.c.event_type, mine.c.created_at.label("at"), mine.c.event_data)
    return sa.select(mine.c.task_execution_id.label("task_id"), *task, *event).order_by(mine.c.sequence_num)


def beyond(_: Grammar) -> sa.Select[Any]:
    """Select one row if more than :most events have the number :first or a higher number."""
    after = sa.select(_event.sequence_num).where(_event.sequence_num >= _first).order_by(_event.sequence_num)
    return after.offset(_most).limit(sa.literal_column("1"))


def describe(_: Grammar) -> sa.Update:
    """Record what a worker reports about its process and its receivers."""
    described = {name: _given[name] for name in _DESCRIBED}
    return sa.update(workers).where(workers.c.id == worker_id).values(described).returning(workers.c.id)


def live(g: Grammar) -> sa.Select[Any]:
    """Select the workers seen since :live_since, oldest first."""
    return recent(g).where(is_registered())


def recent(_: Grammar) -> sa.Select[Any]:
    """Select the workers that were seen since :live_since, oldest first, including workers that have ended."""
    seen = sa.select(*_described).where(workers.c.last_seen_at >= _live_since)
    return seen.order_by(workers.c.started_at, workers.c.id)


def one(_: Grammar) -> sa.Select[Any]:
    """Select one worker, no matter how long ago it was seen."""
    return sa.select(*_described).where(workers.c.id == worker_id)
