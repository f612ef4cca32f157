"""Live workers, as each describes itself for people to read. Recovery does not rely on it."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import tasks
from ..database.statements import workers as statements
from ..database.statements.event_log import first_of_window
from ..database.statements.grammar import Builder
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import EventType, TaskStatus, duration
from .arguments import identifier, positive, storable
from .sleeping_workers import SleepingWorkers
from .transactions import Transactions

LOOKED_AT = 100_000
"""Number of events after a worker's last sign that are looked at for the ends of its claims."""
LIVE_WITHIN = timedelta(seconds=90)
"""A worker that was not seen for so long counts as gone: workers report every 30 seconds."""
KEPT = timedelta(days=1)
"""The time for which a worker that was killed stays registered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWorker:
    """A live worker, as it registered itself."""

    id: UUID
    label: str
    """Host and process, for people."""
    queues: frozenset[str] | None
    """Queues that it works on; None: all."""
    topics: tuple[str, ...] | None
    """Topics whose tasks it takes, exact or with a trailing `*`; None: all tasks, also those that handle no event."""
    concurrency: int
    task_names: frozenset[str]
    unknown_tasks: frozenset[tuple[str, str]] = frozenset()
    """Queue and name of tasks that it met lately and does not know."""
    started_at: datetime
    last_seen_at: datetime
    host: str | None = None
    """Name of the machine; None, as in the other fields of `describe`: the worker has not described itself."""
    pid: int | None = None
    """Id of the process on that machine."""
    version: str | None = None
    """Version of the application's code, from `Outbox(version=…)`; None also if it names none."""
    release: str | None = None
    """Version of outboxq."""
    busy: int | None = None
    """Number of its threads that ran a handler when it was last seen."""
    isolation: str | None = None
    """Isolation of its handlers: ``thread``, or ``process``, in as many child processes as it has threads."""

    def works_on(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def takes(self, topic: str | None) -> bool:
        return takes(self.topics, topic)


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """The workers that were seen lately, and the moment at which that was asked."""

    at: datetime
    workers: builtins.list[LiveWorker]


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenTask:
    """A task that another worker took back, since the lease of the one that ran it had ended."""

    task_id: UUID
    task_name: str | None
    """Name of the task; None, as the next: it was pruned."""
    status: TaskStatus | None
    """Status that it has now."""
    event_type: EventType
    """Event that took it back: RESET, to run again, or ABANDONED, a dead letter after too many such ends."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenBack:
    """The tasks that others took back from a worker, in the order in which they did."""

    tasks: builtins.list[TakenTask]
    is_complete: bool
    """False: there may be more, where the look was ended."""


class Workers:
    """Live workers, as they describe themselves."""

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
        """Write down a worker that begins, or one that `seen` did not find. `queues`, `topics` None: all.

        `unknown_tasks`: queue and name of each task that it met lately and does not know.
        Without `using`, the notifications that killed workers had asked for are deleted too.
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
        self._tell(statements.register, values, using)
        if using is None:
            SleepingWorkers(self._store).forget_ended()

    def seen(self, worker_id: UUID, *, unknown_tasks: Iterable[tuple[str, str]] = (), using: object = None) -> bool:
        """The worker is alive, and lately met `unknown_tasks`, as in `register`.

        False: it is not registered, or not any more, and should register again.
        """
        values = {"worker_id": identifier(worker_id), "unknown_tasks_json": _written(unknown_tasks)}
        return bool(self._tell(statements.seen, values, using))

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
        using: object = None,
    ) -> bool:
        """Write down the process of a registered worker; the fields are those of LiveWorker.

        False: the worker is not registered; nothing is written.
        """
        values = {
            "worker_id": identifier(worker_id),
            "host": storable(host, "host"),
            "pid": pid,
            "version": storable(version, "version"),
            "release": storable(release, "release"),
            "busy": busy,
            "isolation": storable(isolation, "isolation"),
        }
        return bool(self._tell(statements.describe, values, using))

    def unregister(self, worker_id: UUID, *, met_unknown: bool = False, using: object = None) -> None:
        """The worker ends. Those that have not been seen for a day are forgotten with it.

        With `met_unknown` what it met and does not know is kept for a day, so that a worker that knows it finds it. All the same
        it has ended, and is no longer listed.
        """
        leave = statements.leave if met_unknown else statements.unregister
        self._tell(leave, {"worker_id": identifier(worker_id)}, using)

    def list(self, live_within: timedelta | float = LIVE_WITHIN, *, using: object = None) -> builtins.list[LiveWorker]:
        """The workers that were seen within this time, the oldest first."""
        return self.presence(live_within, using=using).workers

    def presence(self, within: timedelta | float = LIVE_WITHIN, *, using: object = None) -> Presence:
        """Return the workers that were seen within this time, the oldest first, and the database's time."""
        span = duration(within, "live_within")

        def work(target: Target) -> Presence:
            now = target.run(tasks.now, self._store.values(target))[0]["now"]
            return Presence(at=now, workers=live_workers(target, now, span))

        return self._store.run(work, using=using, begin=Begin.READ)

    def taken_back(self, worker_id: UUID, *, limit: int = 100, using: object = None) -> TakenBack:
        """Return up to `limit` tasks that other workers took back from this one, told by the events of its claims.

        Of the events since it was seen last, 100 000 are looked at, which takes some 20 ms. Returns none for a worker without a row,
        which is deleted when the worker ends, or a day after its last sign.
        """
        asked = {"worker_id": identifier(worker_id), "limit": positive(limit), "most": LOOKED_AT}

        def work(target: Target) -> TakenBack:
            rows = target.run(statements.one, asked)
            start = target.run(first_of_window, {"search_from": rows[0]["last_seen_at"]}) if rows else []
            if not start:
                return TakenBack(tasks=[], is_complete=True)
            values = {**asked, "first": start[0]["first"]}
            found = target.run(statements.taken_back, values)
            tasks = [
                TakenTask(
                    **{
                        **row,
                        "status": None if row["status"] is None else TaskStatus(row["status"]),
                        "event_type": EventType(row["event_type"]),
                    }
                )
                for row in found
            ]
            return TakenBack(tasks=tasks, is_complete=len(found) < limit and not target.run(statements.beyond, values))

        return self._store.run(work, using=using, begin=Begin.SNAPSHOT)

    def _tell(self, builder: Builder, values: dict[str, Any], using: object) -> Sequence[Row]:
        return self._store.run(
            lambda target: target.run(builder, self._store.values(target, **values)),
            using=using,
            begin=Begin.ASYNCHRONOUS,
        )


def live_workers(target: Target, now: datetime, within: timedelta = LIVE_WITHIN) -> list[LiveWorker]:
    """Return the workers that were seen within this time, the oldest first."""
    try:
        since = now - within
    except OverflowError:
        raise InvalidArgument(f"live_within={within!r} reaches back to before the first year") from None
    rows = target.run(statements.live, {"live_since": since})
    return [_worker(row) for row in rows]


def _worker(row: Row) -> LiveWorker:
    queues, topics = (None if row[name] is None else json.loads(row[name]) for name in ("queues", "topics"))
    read = {
        "queues": None if queues is None else frozenset(queues),
        "topics": None if topics is None else tuple(topics),
        "task_names": frozenset(json.loads(row["task_names"])),
        "unknown_tasks": frozenset(read_names(row["unknown_tasks"])),
    }
    return LiveWorker(**{**row, **read})


def takes(topics: Iterable[str] | None, topic: str | None) -> bool:
    """Return whether a worker of these topics, exact or patterns, takes a task of this one. None: it takes all."""
    if topics is None:
        return True
    return topic is not None and any(
        topic.startswith(one[:-1]) if one.endswith("*") else topic == one for one in topics
    )


def read_names(text: str | None) -> Iterator[tuple[str, str]]:
    """Queue and name of each unknown task, as they were written."""
    return ((queue, name) for queue, name in json.loads(text or "[]"))


def _written(unknown_tasks: Iterable[tuple[str, str]]) -> str | None:
    """JSON; None for none, so that workers without any are passed over by the database."""
    listed = sorted(unknown_tasks)
    return json.dumps(listed) if listed else None


def _names(names: Iterable[str] | None, what: str) -> str | None:
    """JSON. Raises InvalidArgument for a string, which would be a list of characters."""
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else sorted(names, key=str)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"{what} takes a list of names")
    return json.dumps(listed)
