"""Take samples, which count each queue's tasks in each state. One worker takes the samples on behalf of all workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database.column_types import Instant, parameter_type
from ...database.dialects import Begin
from ...database.grammar import Columns, Grammar, Relations, Statement, Transition, insert_values
from ...database.tables import queue_samples
from ...database.target import Target
from ...model import EARLIEST
from ..arguments import parameters, storable
from ..tasks.tasks import now
from ..transactions import Transactions
from .live import MARKS, STATES, count
from .series import Steps, read_steps

_ALL = 2**62
_MOST_ROWS = 20_000
KEPT, IN_FULL = timedelta(days=90), timedelta(hours=48)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSample:
    """The number of tasks in each state in one queue, at the time of a sample."""

    queue: str
    due: int = 0
    delayed: int = 0
    """Number of tasks that are due later, including retries."""
    running: int = 0
    failed: int = 0
    oldest_due_at: datetime | None = None
    exact: bool = True
    """False if `due`, `delayed` and `failed` are lower bounds."""
    at: datetime = EARLIEST
    """Time of the sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthPoint:
    """The number of tasks in each state, according to the last sample in a step. All numbers are None for a step
    without a sample, or without tasks to count.
    """

    at: datetime
    """Start of the step."""
    due: int | None = None
    delayed: int | None = None
    running: int | None = None
    failed: int | None = None


class Samples:
    """The samples of all queues."""

    def __init__(self, store: Transactions) -> None:
        self._store = store
        self._thinned_before = EARLIEST
        """The time before which all samples are known to have been thinned out."""

    def latest(self, *, using: object = None) -> dict[str, QueueSample]:
        """Return the last sample, keyed by queue. Queues without tasks at that time are left out."""
        return self._store.run(partial(last_samples, self._store), using=using, begin=Begin.READ)

    def series(
        self,
        *,
        since: datetime,
        until: datetime | None = None,
        step: timedelta | float,
        queue: str | None = None,
        using: object = None,
    ) -> list[DepthPoint]:
        """Return a point for each step from `since` to `until` (None means now), oldest first, for one queue or for all
        queues together.

        Samples are taken at most once every 15 seconds. After 48 hours, only one sample per hour is kept. Raises
        InvalidArgument for more than 2,000 steps.
        """
        read = partial(depth_points, queue=storable(queue, "queue"))
        return read_steps(self._store, read, since=since, until=until, step=step, using=using)

    def by_queue(
        self, *, since: datetime, until: datetime, step: timedelta | float, using: object = None
    ) -> dict[str, list[int | None]]:
        """Return, for each step, the number of due tasks in each queue in the step's last sample; None for a step
        without a sample. At most 20,000 rows are read; if there are more, the oldest steps are left out. Raises
        InvalidArgument for more than 2,000 steps.
        """
        return read_steps(self._store, _by_queue, since=since, until=until, step=step, using=using)

    def look(self) -> list[QueueSample]:
        """Count the tasks in each queue, up to 10,000 in each state. `exact` is False for a count that reached this
        bound.
        """
        return self._store.run(partial(_counted, self._store, None), begin=Begin.READ)

    def count(self) -> list[QueueSample]:
        """Count all tasks in each queue. This reads every entry in the outbox."""
        return self._store.run(partial(_counted, self._store, _ALL), begin=Begin.SNAPSHOT)

    def record(self, found: Iterable[QueueSample]) -> None:
        """Write a sample with the current time. A queue that had tasks in the last sample but has none now gets a
        single row of zeros.
        """
        rows = {one.queue: one for one in found}

        def work(target: Target) -> None:
            values = self._store.values(target)
            for row in target.run(latest, values):
                if row["queue"] not in rows and any(row[state] for state in STATES):
                    rows[row["queue"]] = QueueSample(queue=row["queue"])
            if rows:
                with target.atomic():
                    target.run(record, values, [astuple(one)[:-1] for one in rows.values()])

        self._store.run(work, begin=Begin.ASYNCHRONOUS)

    def thin_out(self) -> None:
        """Keep one sample per hour among those older than 48 hours, and delete samples older than 90 days."""
        present = now(self._store)
        before = present - IN_FULL
        span = {"since": min(self._thinned_before, before), "before": before}
        self._store.run_one(thin_out, begin=Begin.ASYNCHRONOUS, **span)
        self._thinned_before = before
        self._store.run_one(forget, begin=Begin.ASYNCHRONOUS, before=present - KEPT)


def last_samples(store: Transactions, target: Target) -> dict[str, QueueSample]:
    """Return the last sample, keyed by queue and read in this transaction."""
    return {row["queue"]: QueueSample(**row) for row in target.run(latest, store.values(target))}


def depth_points(target: Target, steps: Steps, *, queue: str | None) -> list[DepthPoint]:
    """Return a point for each step, read in this transaction."""
    values = {"queue": queue, **target.dialect.pack("steps", STEPS, steps.spans())}
    found = {row.pop("begins_at"): row for row in target.run(series, values)}
    sums = {at: {state: int(number) for state, number in row.items()} for at, row in found.items()}
    return [DepthPoint(at=at, **sums.get(at, {})) for at in steps.begins()]


def _by_queue(target: Target, steps: Steps) -> dict[str, list[int | None]]:
    rows = target.run(by_queue, {"most": _MOST_ROWS, **target.dialect.pack("steps", STEPS, steps.spans())})
    if len(rows) == _MOST_ROWS:  # the oldest step may lack queues, which would look as if they had no tasks
        rows = [row for row in rows if row["begins_at"] != rows[-1]["begins_at"]] or rows
    places, sampled = {at: place for place, at in enumerate(steps.begins())}, {row["begins_at"] for row in rows}
    nothing = [0 if at in sampled else None for at in places]  # a sample does not have a row for a queue without tasks
    found: dict[str, list[int | None]] = {}
    for row in rows:
        found.setdefault(row["queue"], [*nothing])[places[row["begins_at"]]] = row["due"]
    return found


def _counted(store: Transactions, most: int | None, target: Target) -> list[QueueSample]:
    found = count(store, target, most=most, retries=False).found
    return [
        QueueSample(
            queue=queue,
            **{state: row.get(state, 0) for state in STATES},
            oldest_due_at=row.get("oldest_due_at"),
            exact=not any(row.get(mark) for mark in MARKS),
        )
        for (queue, _), row in found.items()
    ]


SAMPLE: Columns = {
    name: parameter_type(queue_samples.c[name].type) for name in ("queue", *STATES, "oldest_due_at", "exact")
}
_sample = queue_samples.c
_before, _since = parameters(Instant, "before", "since")
_queue = sa.bindparam("queue", type_=sa.Text, required=True)


def record(g: Grammar) -> Transition:
    """Write the rows of one sample, taken just now."""

    def rows(r: Relations) -> Statement:
        given = r["given"].c
        values = {"at": g.now, **{name: given[name] for name in SAMPLE}}
        new = insert_values(g.insert(queue_samples), values, r["given"], given.queue.is_not(None))
        return new.on_conflict_do_nothing()  # type: ignore[no-any-return]

    return Transition(given=SAMPLE, steps={"rows": rows})


def latest(g: Grammar) -> sa.Select[Any]:
    """Select the rows of the last sample. Samples in the future are ignored, because they were taken before the clock
    was set back.
    """
    last = sa.select(sa.func.max(_sample.at)).where(_sample.at <= g.now)
    return sa.select(queue_samples).where(_sample.at == last.scalar_subquery())


STEPS: Columns = {"begins_at": Instant, "ends_at": Instant}
"""The columns of the batch :steps."""


def series(g: Grammar) -> sa.Select[Any]:
    """Select the last sample in each of :steps, with the sums for all queues or the numbers for :queue; NULL for a step
    without a sample.

    The sums are floats, because integers could overflow in the database, and 15 digits are enough for a chart. Each
    step costs one lookup in the primary key, however many samples there are.
    """
    begins_at, rows = _last_of_steps(g)
    wanted = sa.or_(_queue.is_(None), _sample.queue == _queue)
    counts = {name: sa.case((wanted, _sample[name]), else_=sa.literal_column("0")) for name in STATES}
    sums = (sa.func.sum(sa.cast(one, sa.Double), type_=sa.Double).label(name) for name, one in counts.items())
    return sa.select(begins_at.label("begins_at"), *sums).select_from(rows).group_by(begins_at)


def by_queue(g: Grammar) -> sa.Select[Any]:
    """Select, for each of :steps, the number of due tasks in each queue in the step's last sample, up to :most rows,
    newest steps first.
    """
    begins_at, rows = _last_of_steps(g)
    found = sa.select(begins_at.label("begins_at"), _sample.queue, _sample.due).select_from(rows)
    return found.order_by(begins_at.desc()).limit(sa.bindparam("most", type_=sa.BigInteger, required=True))


def _last_of_steps(g: Grammar) -> tuple[Any, sa.FromClause]:
    """Return the start of each of :steps, and its relation: the steps, joined with the rows of the last sample in each
    of them.
    """
    step = g.rows("steps", STEPS)
    in_step = (_sample.at >= step.c.begins_at, _sample.at < step.c.ends_at)
    last = sa.select(sa.func.max(_sample.at, type_=Instant)).where(*in_step).correlate(step).scalar_subquery()
    moments = sa.select(step.c.begins_at, last.label("at")).cte("moments").prefix_with("MATERIALIZED")
    return moments.c.begins_at, moments.join(queue_samples, _sample.at == moments.c.at)


def thin_out(g: Grammar) -> sa.Delete:
    """Delete the samples from :since up to, but not including, :before, except the first of each hour.

    A sample is kept with the rows of all queues, because `series` assumes that a queue without a row has no tasks.
    """
    other = queue_samples.alias("other")
    first = sa.select(sa.func.min(other.c.at)).where(other.c.at >= g.hour(_sample.at)).correlate(queue_samples)
    span = (_sample.at >= _since, _sample.at < _before)
    return sa.delete(queue_samples).where(*span, _sample.at > first.scalar_subquery())


def forget(_: Grammar) -> sa.Delete:
    """Delete the samples before :before."""
    return sa.delete(queue_samples).where(_sample.at < _before)
