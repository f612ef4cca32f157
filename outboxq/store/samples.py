"""Samples: how many tasks each queue had in each state at a moment. One worker takes them for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any

from ..database.dialects import Begin, Row
from ..database.statements import depths, samples, statistics
from ..database.target import Target
from ..model import EARLIEST
from .arguments import storable
from .series import steps_of
from .tasks import tasks
from .tasks.tasks import now
from .transactions import Transactions

BOUND = 10_000
"""The number of entries up to which the tasks of a queue are counted each time. Above it, samples have the counts."""
LOOKED_UP = 1_000
"""The number of delayed tasks of which it is looked up whether they wait for a retry."""
_MOST_ROWS = 20_000
KEPT, IN_FULL = timedelta(days=90), timedelta(hours=48)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSample:
    """The number of tasks of one queue in each state, at the moment of a sample."""

    queue: str
    ready: int = 0
    delayed: int = 0
    """Number of tasks that are due later, for a retry or not."""
    running: int = 0
    failed: int = 0
    oldest_ready_at: datetime | None = None
    exact: bool = True
    """False: `ready`, `delayed` and `failed` are lower bounds."""
    at: datetime = EARLIEST
    """The moment of the sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthPoint:
    """The number of tasks in each state at the last sample of a step. All are None in a step without a sample, and where there was
    nothing to count.
    """

    at: datetime
    """The begin of the step."""
    ready: int | None = None
    delayed: int | None = None
    running: int | None = None
    failed: int | None = None


class Samples:
    """The samples of all queues."""

    def __init__(self, store: Transactions) -> None:
        self._store = store
        self._thinned_before = EARLIEST
        """All samples before this moment have been thinned out, as far as this process knows."""

    def latest(self, *, using: object = None) -> dict[str, QueueSample]:
        """Return the last sample of each queue that had tasks then."""
        return {row["queue"]: QueueSample(**row) for row in self._store.read(samples.latest, using=using)}

    def series(
        self,
        *,
        since: datetime,
        until: datetime | None = None,
        step: timedelta | float,
        queue: str | None = None,
        using: object = None,
    ) -> list[DepthPoint]:
        """Return a point for each step from `since` to `until` (None: to now), of one queue or of all together, oldest first.

        Samples are taken every 15 seconds at most; those older than 48 hours are kept once an hour. Raises InvalidArgument for more than 2 000 steps.
        """
        storable(queue, "queue")

        def work(target: Target) -> list[DepthPoint]:
            end = until or target.run(tasks.select_now, self._store.values(target))[0]["now"]
            begins = steps_of(since, end, step).begins()
            ends = [*begins[1:], end]
            packed = target.dialect.pack("steps", samples.STEPS, list(zip(begins, ends, strict=True)))
            found = {row.pop("begins_at"): row for row in target.run(samples.series, {"queue": queue, **packed})}
            return [depth_of(at, found.get(at)) for at in begins]

        return self._store.run(work, using=using, begin=Begin.READ)

    def by_queue(
        self, *, since: datetime, until: datetime, step: timedelta | float, using: object = None
    ) -> dict[str, list[int | None]]:
        """Return the number of due tasks in each queue at the last sample of each step; None in a step without a sample.

        It reads 20 000 rows at most: where more queues than that have tasks, the oldest steps are left out. Raises InvalidArgument
        for more than 2 000 steps.
        """
        begins = steps_of(since, until, step).begins()
        place = {at: number for number, at in enumerate(begins)}

        def work(target: Target) -> dict[str, list[int | None]]:
            packed = target.dialect.pack("steps", samples.STEPS, list(zip(begins, [*begins[1:], until], strict=True)))
            rows = target.run(samples.by_queue, {"most": _MOST_ROWS, **packed})
            sampled = {row["begins_at"] for row in rows}
            nothing = [0 if at in sampled else None for at in begins]  # a sample has no row of a queue without tasks
            found: dict[str, list[int | None]] = {}
            for row in rows:
                found.setdefault(row["queue"], [*nothing])[place[row["begins_at"]]] = row["ready"]
            return found

        return self._store.run(work, using=using, begin=Begin.READ)

    def look(self) -> list[QueueSample]:
        """Count the tasks of each queue, up to 10,000 in each state. `exact` says whether that was enough."""

        def work(target: Target) -> list[QueueSample]:
            values = self._store.values(target, most=BOUND + 1, most_looked_up=0)
            found = counted(target.run(depths.waiting, values))
            for row in target.run(depths.failed, values):
                found[row["queue"]]["failed"] = row["failed"]
            for row in target.run(statistics.BY_QUEUE["running"], values | _every_queue(self._store, target)):
                found[row["queue"]]["running"] = row["running"]
            many = sum(row["failed"] for row in found.values()) > BOUND
            return [_sample(queue, row, many=many) for queue, row in found.items()]

        return self._store.run(work, begin=Begin.READ)

    def count(self) -> list[QueueSample]:
        """Count all tasks of each queue. It reads every entry of the outbox."""

        def work(target: Target) -> list[QueueSample]:
            values = self._store.values(target) | _every_queue(self._store, target)
            found: dict[str, Row] = defaultdict(dict)
            for part in ("waiting", "running", "failed"):
                for row in target.run(statistics.BY_QUEUE[part], values):
                    found[row["queue"]].update(row)
            return [QueueSample(**row) for row in found.values()]

        return self._store.run(work, begin=Begin.SNAPSHOT)

    def record(self, found: Iterable[QueueSample]) -> None:
        """Write a sample of now. A queue that had tasks in the last sample, and has none now, gets a row of zeros once."""
        rows = {one.queue: one for one in found}

        def work(target: Target) -> None:
            values = self._store.values(target)
            for row in target.run(samples.latest, values):
                if row["queue"] not in rows and any(row[name] for name in ("ready", "delayed", "running", "failed")):
                    rows[row["queue"]] = QueueSample(queue=row["queue"])
            if rows:
                with target.atomic():
                    target.run(samples.record, values, [astuple(one)[:-1] for one in rows.values()])

        self._store.run(work, begin=Begin.ASYNCHRONOUS)

    def thin_out(self) -> None:
        """Keep one sample an hour of those older than 48 hours, and none that is older than 90 days."""
        present = now(self._store)
        before = present - IN_FULL
        span = {"since": min(self._thinned_before, before), "before": before}
        self._store.run(lambda target: target.run(samples.thin_out, span), begin=Begin.ASYNCHRONOUS)
        self._thinned_before = before
        self._store.run(lambda target: target.run(samples.forget, {"before": present - KEPT}), begin=Begin.ASYNCHRONOUS)


def depth_of(at: datetime, row: Row | None, prefix: str = "") -> DepthPoint:
    """Return the point of a step with these sums, in columns that begin with `prefix`; None: it has no sample."""
    if row is None:
        return DepthPoint(at=at)
    return DepthPoint(at=at, **{state: int(row[f"{prefix}{state}"]) for state in samples.STATES})


def counted(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the counts of `depths.waiting` by queue: `ready`, `later`, `retrying`, `oldest_ready_at`, and for each of the first
    two whether it is a lower bound.
    """
    found: dict[str, Row] = defaultdict(lambda: dict.fromkeys(("ready", "later", "retrying", "failed", "running"), 0))
    for row in rows:
        mine = found[row["queue"]]
        for name in ("ready", "later", "retrying"):
            mine[name] += row[name]
        moments = [one for one in (mine.get("oldest_ready_at"), row["oldest_ready_at"]) if one is not None]
        mine["oldest_ready_at"] = min(moments, default=None)
    return found


def _sample(queue: str, row: Row, *, many: bool) -> QueueSample:
    return QueueSample(
        queue=queue,
        ready=row["ready"],
        delayed=row["later"],
        running=row["running"],
        failed=row["failed"],
        oldest_ready_at=row.get("oldest_ready_at"),
        exact=not many and row["ready"] <= BOUND and row["later"] <= BOUND,
    )


def _every_queue(store: Transactions, target: Target) -> dict[str, Any]:
    return {"every_queue": True, **store.queue_values(target, [])}
