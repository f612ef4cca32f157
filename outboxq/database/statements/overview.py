"""Read in few statements what people look at first: numbers of all queues, what needs attention, and whether anything has changed.

Each part of them looks things up by an index, or reads a table that is small, or ends after a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    FromClause,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    type_coerce,
    union_all,
)

from ...store.claims.workers import is_registered
from ...store.producing.schedules_sql import stands_ahead
from ..column_types import Instant
from ..grammar import Grammar
from ..queue_order import every_queue
from ..tables import (
    dead_letters,
    execution_events,
    partition_claims,
    queue_samples,
    queue_settings,
    task_leases,
    task_metrics,
    task_outbox,
    task_schedules,
    workers,
)
from . import samples

HELD = 100
"""The number of held keys behind which tasks wait that are selected at most."""
_HELD_LOOKED_AT = 1_000
"""The number of held keys, with or without waiting tasks, among which they are found."""
NEWEST = 200
"""The number of the newest events that the mark of change is about: where some are numbered before others and committed later, it
changes with each.
"""

_COLUMNS: Mapping[str, Any] = {
    "name": Text(),
    "detail": Text(),
    "task_id": Uuid(),
    **{f"number_{place}": BigInteger() for place in range(1, 6)},
    "seconds": Double(),
    "other_seconds": Double(),
    "at": Instant,
    "other_at": Instant,
}
_most = bindparam("most", type_=BigInteger, required=True)
_queue = bindparam("queue", type_=Text, required=True)
_limit = bindparam("limit", type_=BigInteger, required=True)
_failed_since, _overdue_before, _live_since = (
    bindparam(name, type_=Double, required=True) for name in ("failed_since", "overdue_before", "live_since")
)
"""Seconds from now, below 0."""
_one: Any = literal_column("1")
_letter, _claim, _lease, _setting = dead_letters.c, partition_claims.c, task_leases.c, queue_settings.c
_sample, _schedule = queue_samples.c, task_schedules.c


def signals(g: Grammar) -> Select[Any]:
    """Select rows of several kinds, of which each uses some of the columns: the time, the running and the failed tasks of each
    queue, those that failed lately, held keys behind which tasks wait, settings, schedules that are overdue or planted by a clock that
    was ahead, and the last sample.
    """
    overdue = (_schedule.paused_at.is_(None), _schedule.planted_until < g.later(g.now, _overdue_before))
    late = select(_schedule.name, _schedule.planted_until).where(*overdue).limit(_most).subquery("late")
    early = (
        select(_schedule.name, _schedule.planted_until)
        .where(_schedule.paused_at.is_(None), stands_ahead(g))
        .limit(_most)
        .subquery("early")
    )
    last = samples.latest(g).subquery("last")
    numbers = dict(zip(("number_1", "number_2", "number_3", "number_4"), _STATES, strict=True))
    parts = [
        _row("now", at=g.now),
        _row("running", name=_lease.queue, number_1=func.count()).group_by(_lease.queue),
        _failed(),
        _failed_lately(g),
        _held(),
        _row(
            "settings",
            name=_setting.queue,
            number_1=_setting.concurrency_limit,
            number_2=_setting.rate_limit,
            number_3=case((_setting.fair, 1), else_=0),
            number_4=_setting.key_concurrency,
            number_5=_setting.key_rate_limit,
            seconds=_setting.rate_seconds,
            other_seconds=_setting.key_rate_seconds,
            at=_setting.paused_at,
            other_at=_setting.updated_at,
        ),
        _row("schedule", name=late.c.name, at=late.c.planted_until),
        _row("ahead", name=early.c.name, at=early.c.planted_until),
        _row(
            "sample",
            name=last.c.queue,
            **{number: last.c[state] for number, state in numbers.items()},
            number_5=case((last.c.exact, 1), else_=0),
            at=last.c.at,
            other_at=last.c.oldest_ready_at,
        ),
    ]
    found = union_all(*parts).subquery("found")
    return select(found)


_STATES = ("ready", "delayed", "running", "failed")


def _row(kind: str, **values: Any) -> Select[Any]:
    """Select the columns of a signal: these values, and NULL for all others."""
    cells: list[Any] = []
    for name, kind_of in _COLUMNS.items():
        value = values.get(name)
        if value is None:
            cells.append(cast(null(), kind_of).label(name))
        elif isinstance(kind_of, BigInteger):
            cells.append(cast(value, kind_of).label(name))
        else:
            cells.append(type_coerce(value, kind_of).label(name))
    return select(literal_column(f"'{kind}'", Text).label("kind"), *cells)


def _failed() -> Select[Any]:
    listed = select(_letter.queue).limit(_most).subquery("listed")
    return _row("failed", name=listed.c.queue, number_1=func.count()).group_by(listed.c.queue)


def _failed_lately(g: Grammar) -> Select[Any]:
    lately = (
        select(_letter.queue, _letter.failed_at)
        .where(_letter.failed_at >= g.later(g.now, _failed_since))
        .order_by(_letter.failed_at.desc())
        .limit(_most)
        .subquery("lately")
    )
    last = func.max(lately.c.failed_at, type_=Instant)
    return _row("failed_lately", name=lately.c.queue, number_1=func.count(), at=last).group_by(lately.c.queue)


def _held() -> Select[Any]:
    """Select up to HELD of the held keys behind which tasks wait."""
    held = select(partition_claims).where(_claim.held).limit(literal_column(str(_HELD_LOOKED_AT))).subquery("held")
    entry = task_outbox.alias("entry")
    waits = select(_one).where(entry.c.queue == held.c.queue, entry.c.partition_key == held.c.partition_key).limit(_one)
    some = select(held).where(waits.correlate(held).scalar_subquery().is_not(None)).limit(literal_column(str(HELD)))
    found = some.subquery("some")
    return _row("held", name=found.c.queue, detail=found.c.partition_key, task_id=found.c.task_execution_id)


def queue_names(_: Grammar) -> Select[Any]:
    """Select the names of the queues with settings, waiting or running tasks, or dead letters: of these, :most are looked at."""
    letters = select(_letter.queue).limit(_most).subquery("letters")
    parts: list[FromClause] = [every_queue(), every_queue(with_key=True), task_leases, queue_settings, letters]
    names = union_all(*(select(part.c.queue) for part in parts)).subquery("names")
    return select(names.c.queue).where(names.c.queue.is_not(None)).distinct().order_by(names.c.queue)


def held_keys(_: Grammar) -> Select[Any]:
    """Select the keys of :queue that dead letters hold, the oldest first, with the number of waiting tasks up to :most."""
    held = (
        select(_claim.queue, _claim.partition_key, _claim.task_execution_id, _letter.failed_at)
        .join_from(partition_claims, dead_letters, _letter.task_execution_id == _claim.task_execution_id)
        .where(_claim.queue == _queue, _claim.held)
        .order_by(_letter.failed_at, _claim.partition_key)
        .limit(_limit)
        .subquery("held")
    )
    entry = task_outbox.alias("entry")
    same = (entry.c.queue == held.c.queue, entry.c.partition_key == held.c.partition_key)
    waiting = select(_one.label("one")).where(*same).limit(_most).correlate(held).subquery("waiting")
    count: Any = select(func.count()).select_from(waiting).scalar_subquery()
    return select(
        held.c.queue,
        held.c.partition_key,
        held.c.task_execution_id.label("dead_letter"),
        held.c.failed_at,
        count.label("waiting"),
    ).order_by(held.c.failed_at, held.c.partition_key)


def mark(g: Grammar) -> Select[Any]:
    """Select numbers and times of which one differs when anything has changed that people see."""
    event = execution_events.c.sequence_num
    newest = select(event).order_by(event.desc()).limit(literal_column(str(NEWEST))).subquery("newest")
    seen = select(func.max(newest.c.sequence_num).label("last"), func.sum(newest.c.sequence_num).label("sum")).subquery(
        "seen"
    )
    live = and_(workers.c.last_seen_at >= g.later(g.now, _live_since), is_registered())
    there = select(
        func.count().filter(live).label("live"), func.max(workers.c.started_at, type_=Instant).label("started")
    ).subquery("there")
    columns: list[Any] = [seen.c.last, cast(seen.c.sum, Text).label("events"), there.c.live, there.c.started]
    sources: list[FromClause] = [seen, there]
    for table in (queue_settings, task_schedules):
        one = (
            select(func.count().label("rows"), func.max(table.c.updated_at, type_=Instant).label("changed"))
            .select_from(table)
            .subquery(f"of_{table.name}")
        )
        sources.append(one)
        columns += [one.c.rows.label(f"{table.name}_rows"), one.c.changed.label(f"{table.name}_changed")]
    for column, name in ((task_metrics.c.at, "metrics_at"), (_sample.at, "samples_at")):
        columns.append(select(func.max(column, type_=Instant)).scalar_subquery().label(name))
    return select(*columns).select_from(*sources)
