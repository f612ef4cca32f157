"""Write and read samples: how many tasks each queue had in each state at a moment."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Delete, Select, Text, bindparam, delete, func, select

from ..column_types import Instant
from ..tables import queue_samples
from .grammar import Columns, Grammar, Relations, Statement, Transition, insert_values

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
