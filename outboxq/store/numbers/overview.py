"""Read the overview of an outbox: the numbers for all queues, the problems, the change mark, and trends. A few
statements read all of this at a cost that does not depend on the size of the tables: each part uses an index, reads a
small table, or stops after a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import tables
from ...database.column_types import Instant
from ...database.dialects import Begin
from ...database.grammar import Grammar
from ...database.target import Target
from ..arguments import positive, storable
from ..claims.workers import LIVE_WITHIN, LiveWorker, is_registered
from ..producing import batches_sql
from ..producing.schedules_sql import is_planted_ahead
from ..tasks.event_log import Count
from ..transactions import Transactions
from .health import HealthLimits, Problem, problems
from .live import counts, signal
from .live import signals as signals_of
from .metrics import MetricPoint, metric_points
from .queues import HeldKey, QueueSettings, read_held_keys
from .samples import DepthPoint, depth_points
from .series import Steps, read_steps
from .statistics import Present, Statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """Current numbers for all queues, in total and one by one, and the problems."""

    at: datetime
    ready: Count
    """Number of tasks that are due."""
    delayed: Count
    """Number of tasks that are due later, including retries."""
    running: int
    failed: Count
    """Number of dead letters, no matter when they failed."""
    oldest_ready_at: datetime | None
    live_workers: int
    queues: list[Statistics]
    """Current numbers for each queue that has tasks, dead letters, settings or a live worker, sorted by name, without
    the values for a time window. Retries are in `delayed`.
    """
    problems: list[Problem]
    workers: list[LiveWorker] = field(default_factory=list)
    settings: list[QueueSettings] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trends:
    """Counts and samples in time steps."""

    counts: list[MetricPoint]
    """The points that `metrics.series` returns."""
    depths: list[DepthPoint]
    """The points that `samples.series` returns."""
    held: list[HeldKey] = field(default_factory=list)
    """Keys that `queues.held_keys` returns; empty unless requested."""


def overview(store: Transactions, limits: HealthLimits | None = None, *, using: object = None) -> Overview:
    """Return the current numbers for all queues, and the problems according to the rules in `health`. At most 10,000
    waiting tasks of each queue and priority, and 10,000 dead letters, are counted. Beyond that, the last sample of the
    queue is used. The call takes four statements, and a fifth if it needs the samples.
    """
    limits = limits or HealthLimits()
    return store.run(partial(_read, store, limits), using=using, begin=Begin.READ)


def health(store: Transactions, limits: HealthLimits | None = None, *, using: object = None) -> list[Problem]:
    """Return the broken rules, the most urgent first; empty if all is well. This reads the same data as `overview`. If
    `limits` is None, the default limits apply. Raises InvalidArgument for limits below 0.
    """
    return overview(store, limits, using=using).problems


def change_mark(store: Transactions, *, using: object = None) -> str:
    """Return a string that changes when a task, a setting, a schedule, a sample or a count changes, or when a worker
    starts or stops. The call takes one statement, which reads indexes and small tables. The string does not reflect
    changes that do not write a row (a delayed task that becomes due, an age), heartbeats, the load of workers, pruned
    tasks, or a task that was enqueued 200 events ago in a transaction that has only now been committed.
    """

    def work(target: Target) -> str:
        values = store.values(target, live_since=-LIVE_WITHIN.total_seconds())
        (row,) = target.run(mark, values)
        return "|".join("" if value is None else str(value) for value in row.values())

    return store.run(work, using=using, begin=Begin.READ)


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
    """Return the series of `metrics` and of `samples` for the same steps, for one queue or for all queues, in one
    transaction. With `held_keys`, the result includes at most this number of the queue's keys that dead letters hold.
    Raises InvalidArgument for more than 2,000 steps.
    """
    name = storable(queue, "queue")
    limit = None if queue is None or held_keys is None else positive(held_keys)

    def read(target: Target, steps: Steps) -> Trends:
        return Trends(
            counts=metric_points(target, steps, queue=name),
            depths=depth_points(target, steps, queue=name),
            held=[] if limit is None or queue is None else read_held_keys(target, queue, limit),
        )

    return read_steps(store, read, since=since, until=until, step=step, using=using)


def _read(store: Transactions, limits: HealthLimits, target: Target) -> Overview:
    overdue = limits.schedule_overdue or timedelta(0)
    since = {"failed_since": -limits.failed_within.total_seconds(), "overdue_before": -overdue.total_seconds()}
    seen = Present.read(store, target, signals, retries=False, **since)
    named = {name for one in seen.workers for name in one.queues or ()}
    queues = [seen.of(name) for name in sorted({*(queue for queue, _ in seen.live.found), *seen.settings, *named})]
    oldest = [one.oldest_ready_at for one in queues if one.oldest_ready_at is not None]
    return Overview(
        at=seen.live.now,
        ready=_total(queues, "ready"),
        delayed=_total(queues, "delayed"),
        running=sum(one.running for one in queues),
        failed=_total(queues, "failed"),
        oldest_ready_at=min(oldest, default=None),
        live_workers=len(seen.workers),
        queues=queues,
        problems=problems(queues, seen, limits),
        workers=[*seen.workers],
        settings=[*seen.settings.values()],
    )


def _total(queues: Iterable[Statistics], state: str) -> Count:
    several = list(queues)
    at_least = any(getattr(one, f"{state}_at_least") for one in several)
    return Count(number=sum(getattr(one, state) for one in several), at_least=at_least)


HELD = 100
"""Maximum number of selected keys that have waiting tasks."""
_HELD_LOOKED_AT = 1_000
"""Maximum number of held keys, with or without waiting tasks, that are searched for them."""
NEWEST = 200
"""Number of the newest events that the change mark covers. It changes with each of them, even if an event with a lower
number is committed later.
"""
_most = sa.bindparam("most", type_=sa.BigInteger, required=True)
_failed_since, _overdue_before, _live_since = (
    sa.bindparam(name, type_=sa.Double, required=True) for name in ("failed_since", "overdue_before", "live_since")
)
"""Seconds from now, negative."""
_one: Any = sa.literal_column("1")
_dead_letter, _claim, _schedule = tables.dead_letters.c, tables.partition_claims.c, tables.task_schedules.c


def signals(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `live.present`, and further kinds of rows: recent failures, held keys with waiting tasks,
    schedules that are overdue or were planted by a clock that was running fast, and unclosed batches.
    """
    schedules = sa.select(_schedule.name, _schedule.planted_until).where(_schedule.paused_at.is_(None)).limit(_most)
    late = schedules.where(_schedule.planted_until < g.later(g.now, _overdue_before)).subquery("late")
    early, batch = schedules.where(is_planted_ahead(g)).subquery("early"), batches_sql.unclosed(g).subquery("unclosed")
    return signals_of(
        *counts(g),
        _failed_lately(g),
        _held(),
        signal("overdue", name=late.c.name, at=late.c.planted_until),
        signal("ahead", name=early.c.name, at=early.c.planted_until),
        signal("unclosed", name=batch.c.name, task_id=batch.c.id),
    )


def _failed_lately(g: Grammar) -> sa.Select[Any]:
    lately = (
        sa.select(_dead_letter.queue)
        .where(_dead_letter.failed_at >= g.later(g.now, _failed_since))
        .order_by(_dead_letter.failed_at.desc())
        .limit(_most)
        .subquery("lately")
    )
    return signal("failed_lately", name=lately.c.queue, number=sa.func.count()).group_by(lately.c.queue)


def _held() -> sa.Select[Any]:
    """Select up to HELD keys that have waiting tasks."""
    held = (
        sa.select(tables.partition_claims)
        .where(_claim.held)
        .limit(sa.literal_column(str(_HELD_LOOKED_AT)))
        .subquery("held")
    )
    entry = tables.task_outbox.alias("entry")
    waits = (
        sa.select(_one).where(entry.c.queue == held.c.queue, entry.c.partition_key == held.c.partition_key).limit(_one)
    )
    some = (
        sa.select(held).where(waits.correlate(held).scalar_subquery().is_not(None)).limit(sa.literal_column(str(HELD)))
    )
    found = some.subquery("some")
    return signal("held", name=found.c.queue, detail=found.c.partition_key, task_id=found.c.task_execution_id)


def mark(g: Grammar) -> sa.Select[Any]:
    """Select numbers and times. After any visible change, at least one of them is different."""
    event = tables.execution_events.c.sequence_num
    newest = sa.select(event).order_by(event.desc()).limit(sa.literal_column(str(NEWEST))).subquery("newest")
    seen = sa.select(
        sa.func.max(newest.c.sequence_num).label("last"), sa.func.sum(newest.c.sequence_num).label("sum")
    ).subquery("seen")
    live = sa.and_(tables.workers.c.last_seen_at >= g.later(g.now, _live_since), is_registered())
    there = sa.select(
        sa.func.count().filter(live).label("live"),
        sa.func.max(tables.workers.c.started_at, type_=Instant).label("started"),
    ).subquery("there")
    columns: list[Any] = [seen.c.last, sa.cast(seen.c.sum, sa.Text).label("events"), there.c.live, there.c.started]
    sources: list[sa.FromClause] = [seen, there]
    for table in (tables.queue_settings, tables.task_schedules):
        one = (
            sa.select(sa.func.count().label("rows"), sa.func.max(table.c.updated_at, type_=Instant).label("changed"))
            .select_from(table)
            .subquery(f"of_{table.name}")
        )
        sources.append(one)
        columns += [one.c.rows.label(f"{table.name}_rows"), one.c.changed.label(f"{table.name}_changed")]
    for column, name in ((tables.task_metrics.c.at, "metrics_at"), (tables.queue_samples.c.at, "samples_at")):
        columns.append(sa.select(sa.func.max(column, type_=Instant)).scalar_subquery().label(name))
    return sa.select(*columns).select_from(*sources)
