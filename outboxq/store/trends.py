"""The counts, the samples and the held keys that a page of charts shows, read together."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ..database.dialects import Begin, Row
from ..database.statements import samples
from ..database.statements import trends as statements
from ..database.target import Target
from .arguments import positive, storable
from .metrics import MetricPoint, point_of
from .queues import MOST_WAITING, HeldKey, held_key_of
from .samples import DepthPoint, depth_of
from .series import Steps, steps_of
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Trends:
    """Counts and samples in steps of time."""

    counts: list[MetricPoint]
    """The points that `metrics.series` returns."""
    depths: list[DepthPoint]
    """The points that `samples.series` returns."""
    held: list[HeldKey] = field(default_factory=list)
    """The keys that `queues.held_keys` returns; empty if they were not asked for."""


def trends(
    store: Transactions,
    *,
    since: datetime,
    until: datetime,
    step: timedelta | float,
    queue: str | None = None,
    held_keys: int | None = None,
    using: object = None,
) -> Trends:
    """Return the series of `metrics` and of `samples` for the same steps, of one queue or of all, in one statement.

    With `held_keys`, up to so many keys of the queue that dead letters hold are read with them. Raises InvalidArgument for more than 2 000 steps.
    """
    steps, name = steps_of(since, until, step), storable(queue, "queue")
    limit = None if queue is None or held_keys is None else positive(held_keys)

    def work(target: Target) -> Trends:
        begins = steps.begins()
        ends = [*begins[1:], until]
        values: dict[str, Any] = {
            "queue": name,
            **target.dialect.pack("steps", samples.STEPS, list(zip(begins, ends, strict=True))),
            "since": since,
            "until": until,
            "task_name": None,
            "step": steps.step // timedelta(microseconds=1),
        }
        which = "all"
        if limit is not None:
            which, values = "of_queue", {**values, "limit": limit, "most": MOST_WAITING + 1}
        return _trends(steps, queue, target.run(statements.TRENDS[which], values))

    return store.run(work, using=using, begin=Begin.READ)


def _trends(steps: Steps, queue: str | None, rows: Any) -> Trends:
    """Put the rows of the statement into their places."""
    counted: dict[int, Row] = {}
    sampled: dict[int, Row] = {}
    held = []
    for row in rows:
        if row["kind"] == "held":
            held.append(held_key_of({name: row[name] for name in statements.HELD} | {"queue": queue}))
        else:
            (counted if row["kind"] == "counted" else sampled)[row["step"]] = row
    return Trends(
        counts=[point_of(at, steps.step, counted.get(place)) for place, at in enumerate(steps.begins())],
        depths=[depth_of(at, sampled.get(place), statements.SAMPLED) for place, at in enumerate(steps.begins())],
        held=sorted(held, key=lambda one: (one.failed_at, one.partition_key)),
    )
