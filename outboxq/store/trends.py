"""Both series of a page's charts, read together: what was counted, and what was sampled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ..database.dialects import Begin, Row
from ..database.statements import samples
from ..database.statements import trends as statements
from ..database.target import Target
from .arguments import storable
from .availability import STATISTICS, can_read
from .metrics import MetricPoint, point_of
from .samples import DepthPoint
from .series import steps_of
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Trends:
    """What happened, and what was waiting, in steps of time."""

    counts: list[MetricPoint]
    """What `metrics.series` returns."""
    depths: list[DepthPoint]
    """What `samples.series` returns."""


def trends(
    store: Transactions,
    *,
    since: datetime,
    until: datetime,
    step: timedelta | float,
    queue: str | None = None,
    using: object = None,
) -> Trends:
    """Return the series of `metrics` and of `samples` for the same steps, of one queue or of all, in one statement.

    Where the schema is older than the statistics, all points are empty. Raises InvalidArgument for more than 2 000 steps.
    """
    steps, storable_queue = steps_of(since, until, step), storable(queue, "queue")
    begins = steps.begins()

    def work(target: Target) -> Trends:
        counted: dict[int, Row] = {}
        sampled: dict[int, Row] = {}
        if can_read(store, target, STATISTICS):
            values = {"since": since, "until": until, "step": steps.step // timedelta(microseconds=1)}
            ends = [*begins[1:], until]
            packed = target.dialect.pack("steps", samples.STEPS, list(zip(begins, ends, strict=True)))
            names = {"queue": storable_queue, "task_name": None}
            for row in target.run(statements.trends, {**values, **names, **packed}):
                (counted if row["kind"] == "counted" else sampled)[row["step"]] = row
        return Trends(
            counts=[point_of(at, steps.step, counted.get(place)) for place, at in enumerate(begins)],
            depths=[_depth(at, sampled.get(place)) for place, at in enumerate(begins)],
        )

    return store.run(work, using=using, begin=Begin.READ)


def _depth(at: datetime, row: Row | None) -> DepthPoint:
    if row is None:
        return DepthPoint(at=at)
    return DepthPoint(at=at, **{state: row[f"sampled_{state}"] for state in statements.STATES})
