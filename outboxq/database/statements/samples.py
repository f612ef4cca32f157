"""Write and read samples: how many tasks each queue had in each state at a moment."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    Delete,
    Double,
    Select,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal_column,
    or_,
    select,
)

from ..column_types import Instant
from ..grammar import Columns, Grammar, Relations, Statement, Transition, insert_values
from ..tables import queue_samples

SAMPLE: Columns = {
    "queue": Text(),
    "ready": BigInteger(),
    "delayed": BigInteger(),
    "running": BigInteger(),
    "failed": BigInteger(),
    "oldest_ready_at": Instant,
    "exact": Boolean(),
}
_sample = queue_samples.c
_before = bindparam("before", type_=Instant, required=True)
_since = bindparam("since", type_=Instant, required=True)
_queue = bindparam("queue", type_=Text, required=True)


def record(g: Grammar) -> Transition:
    """Write the rows of one sample, which was taken now."""

    def rows(r: Relations) -> Statement:
        given = r["given"].c
        values = {"at": g.now, **{name: given[name] for name in SAMPLE}}
        new = insert_values(g.insert(queue_samples), values, r["given"], given.queue.is_not(None))
        return new.on_conflict_do_nothing()  # type: ignore[no-any-return]

    return Transition(given=SAMPLE, steps={"rows": rows})


def latest(g: Grammar) -> Select[Any]:
    """Select the rows of the last sample. One from the future does not count: the clock was set back."""
    last = select(func.max(_sample.at)).where(_sample.at <= g.now)
    return select(queue_samples).where(_sample.at == last.scalar_subquery())


STEPS: Columns = {"begins_at": Instant, "ends_at": Instant}
"""The columns of the batch :steps."""
STATES = ("ready", "delayed", "running", "failed")
"""The numbers of a sample."""


def series(g: Grammar) -> Select[Any]:
    """Select the last sample of each of :steps, with the sums of all queues or of :queue; NULL where the step has none.

    The sums are no integers, because these could be too large for the database, while a chart needs no more than 15 digits.
    Each step is one look-up in the primary key, however many samples there are.
    """
    moments = _last_of_steps(g)
    wanted = or_(_queue.is_(None), _sample.queue == _queue)
    numbers = (
        func.sum(cast(case((wanted, _sample[name]), else_=literal_column("0")), Double), type_=Double).label(name)
        for name in STATES
    )
    return (
        select(moments.c.begins_at.label("begins_at"), *numbers)
        .select_from(moments.join(queue_samples, _sample.at == moments.c.at))
        .group_by(moments.c.begins_at)
    )


def by_queue(g: Grammar) -> Select[Any]:
    """Select the due tasks of each queue in the last sample of each of :steps, up to :most rows, the newest steps first."""
    moments = _last_of_steps(g)
    return (
        select(moments.c.begins_at.label("begins_at"), _sample.queue, _sample.ready)
        .select_from(moments.join(queue_samples, _sample.at == moments.c.at))
        .order_by(moments.c.begins_at.desc())
        .limit(bindparam("most", type_=BigInteger, required=True))
    )


def _last_of_steps(g: Grammar) -> CTE:
    """Select the moment of the last sample of each of :steps; NULL where the step has none."""
    step = g.rows("steps", STEPS)
    in_step = (_sample.at >= step.c.begins_at, _sample.at < step.c.ends_at)
    last = select(func.max(_sample.at, type_=Instant)).where(*in_step).correlate(step).scalar_subquery()
    return select(step.c.begins_at, last.label("at")).cte("moments").prefix_with("MATERIALIZED")


def thin_out(g: Grammar) -> Delete:
    """Delete the samples from :since to before :before, but the first of each queue and hour."""
    other = queue_samples.alias("other")
    first = (
        select(func.min(other.c.at))
        .where(other.c.queue == _sample.queue, other.c.at >= g.hour(_sample.at))
        .correlate(queue_samples)
    )
    span = (_sample.at >= _since, _sample.at < _before)
    return delete(queue_samples).where(*span, _sample.at > first.scalar_subquery())


def forget(_: Grammar) -> Delete:
    """Delete the samples before :before."""
    return delete(queue_samples).where(_sample.at < _before)
