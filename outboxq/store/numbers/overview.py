"""Read the overview of an outbox: the numbers for all queues, the problems, the change mark, and trends. A few
statements read all of this at a cost that does not depend on the size of the tables, because each part uses an index,
reads a small table, or stops after a bounded number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import tables
from ...database.column_types import Instant
from ...database.dialects import Begin, Row
from ...database.grammar import Grammar, sql_literal, text_literal
from ...database.target import Target
from ...model import EventType
from ..arguments import parameters, positive, storable
from ..claims.claim_sql import same_key, value_for
from ..claims.workers import LIVE_WITHIN, LiveWorker, is_registered
from ..explain.explain import explain_due
from ..explain.reasons import Explanation
from ..messages.relays import read_relays
from ..producing import batches_sql
from ..producing.schedules_sql import is_planted_ahead
from ..tasks import dead_letters
from ..tasks.dead_letter_groups import DeadLetterGroup
from ..tasks.event_log import Count
from ..transactions import Transactions
from .dead_rows import DeadRows
from .failing_workers import full_disks
from .health import failed_lately, is_pruned, late_queues, problems
from .live import BOUND, counts, oldest_due, signal
from .live import signals as signals_of
from .maintenance_jobs import PRUNE
from .metrics import MetricPoint, metric_points
from .problem import HELD, LOST, STORM, STORM_WITHIN, Facts, HealthLimits, Problem
from .queues import HeldKey, QueueSettings, read_held_keys
from .samples import DepthPoint, depth_points
from .series import Steps, read_steps
from .statistics import Present, Statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """Current numbers for all queues, both in total and for each queue, and the problems."""

    at: datetime
    due: Count
    """Number of tasks that are due."""
    delayed: Count
    """Number of tasks that are due later. This includes the retries that are not in `retrying`."""
    retrying: Count
    """Number of tasks that are waiting for a retry; 0 unless `retries` was given."""
    running: int
    failed: Count
    """Number of dead letters, no matter when they failed."""
    oldest_due_at: datetime | None
    live_workers: int
    queues: list[Statistics]
    """Current numbers for each queue that has tasks, dead letters, settings or a live worker, sorted by name, without
    the values for a time window.
    """
    problems: list[Problem]
    workers: list[LiveWorker] = field(default_factory=list)
    settings: list[QueueSettings] = field(default_factory=list)

    def of_queue(self, name: str) -> Statistics:
        """Return the queue's current numbers. A queue that is not in `queues` is served by the workers that serve all
        queues.
        """
        live = sum(one.works_on(name) and one.asked_to is None for one in self.workers)
        return next((one for one in self.queues if one.queue == name), Statistics(queue=name, live_workers=live))

    def settings_of(self, name: str) -> QueueSettings:
        return next((one for one in self.settings if one.queue == name), QueueSettings(queue=name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trends:
    """Counts and samples in time steps."""

    counts: list[MetricPoint]
    """The points that `metrics.series` returns."""
    depths: list[DepthPoint]
    """The points that `samples.series` returns."""
    held: list[HeldKey] = field(default_factory=list)
    """Keys that `queues.held_keys` returns; empty unless requested."""


def overview(
    store: Transactions,
    limits: HealthLimits | None = None,
    *,
    problems_of: Iterable[str] | None = None,
    retries: bool = False,
    using: object = None,
) -> Overview:
    """Return the current numbers for all queues, and the problems according to the rules in `health`. At most 10,000
    waiting tasks per queue and priority, and 10,000 dead letters, are counted. If there are more, the queue's last
    sample is used. `problems_of` restricts the problems to those of the given queues. With `retries`, the first 1,000
    delayed tasks per queue and priority are looked up to find those that are waiting for a retry. Without `retries`,
    such tasks count as delayed.

    The call runs four statements on SQLite and six on PostgreSQL, one more if it needs the samples, and a few more if
    tasks failed or are late, if a retry storm is under way, or if a worker was lost.
    """
    wanted = None if problems_of is None else frozenset(problems_of)
    return store.run(partial(_read, store, limits or HealthLimits(), wanted, retries), using=using, begin=Begin.READ)


def health(
    store: Transactions,
    limits: HealthLimits | None = None,
    *,
    queues: Iterable[str] | None = None,
    using: object = None,
) -> list[Problem]:
    """Return the current problems, most urgent first; empty if there are none. Problems are sorted by the number of
    tasks that they hold up, multiplied by how long they have been held up. The call reads the same data as `overview`.

    If `limits` is None, the default limits apply. With `queues`, only the rules about queues are evaluated, and only
    for these queues. Raises InvalidArgument for limits below 0.
    """
    return overview(store, limits, problems_of=queues, using=using).problems


def deletes_old_tasks(store: Transactions, *, using: object = None) -> bool:
    """Return whether a schedule deletes old tasks, or a program has deleted old tasks within the last 32 days. By
    default, tasks are kept forever.
    """
    rows = store.run_one(retention, using=using)
    [now] = [row["at"] for row in rows if row["kind"] == "now"]
    return is_pruned([row for row in rows if row["kind"] == "retention"], now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """The numbers of keys and batches that are waiting for a person to act."""

    held_keys: Mapping[str, int]
    """For each queue, the number of partition keys that dead letters hold and for which tasks are waiting; up to 100 in
    all.
    """
    batches: int
    """Number of batches and chains that are unclosed, or that wait only for dead letters."""


def stuck(store: Transactions, *, using: object = None) -> Stuck:
    """Return the numbers of held keys and of batches that are waiting for a person to act, in one statement."""
    rows = store.run_one(stuck_signs, using=using, most=BOUND)
    held = Counter(row["name"] for row in rows if row["kind"] == "held")
    return Stuck(held_keys=held, batches=len(rows) - held.total())


def change_mark(store: Transactions, *, using: object = None) -> str:
    """Return a string that changes when a task, a setting, a schedule, a sample or a count changes, or when a worker
    starts or stops. The call runs one statement, which reads indexes and small tables. The string does not reflect
    changes that do not write a row (such as a delayed task that becomes due, or an age that grows), heartbeats,
    workers' load, pruned tasks, or a task that was enqueued 200 events ago in a transaction that has only now been
    committed.
    """
    (row,) = store.run_one(mark, using=using, live_since=-LIVE_WITHIN.total_seconds())
    return "|".join("" if value is None else str(value) for value in row.values())


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
    """Return the `metrics` and `samples` series for the same steps, for one queue or for all queues, in one
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


def _read(
    store: Transactions, limits: HealthLimits, wanted: frozenset[str] | None, retries: bool, target: Target
) -> Overview:
    values = {
        "failed_since": -limits.failed_within.total_seconds(),
        "most_failed": limits.most_failed,
        "overdue_before": -(limits.schedule_overdue or timedelta(0)).total_seconds(),
        "live_since": -LIVE_WITHIN.total_seconds(),
        "lost_since": -_LOST_WITHIN.total_seconds(),
        "storm_since": -STORM_WITHIN.total_seconds(),
        "storm": STORM,
        "relay_before": -(limits.relay_late or timedelta(0)).total_seconds(),
        "storm_share": 100 if limits.retried is None else limits.retried,
    }
    seen = Present.read(store, target, signals, retries=retries, **values)
    named = {name for one in seen.workers for name in one.queues or ()}
    queues = [seen.of(name) for name in sorted({*(queue for queue, _ in seen.live.found), *seen.settings, *named})]
    oldest = [one.oldest_due_at for one in queues if one.oldest_due_at is not None]
    mine = queues if wanted is None else [one for one in queues if one.queue in wanted]
    facts = _judged(store, target, Facts(queues=mine, wanted=wanted, seen=seen), limits)
    return Overview(
        at=seen.live.now,
        **{state: _total(queues, state) for state in ("due", "delayed", "retrying", "failed")},
        running=sum(one.running for one in queues),
        oldest_due_at=min(oldest, default=None),
        live_workers=len(seen.workers),
        queues=queues,
        problems=problems(facts, limits),
        workers=[*seen.workers],
        settings=[*seen.settings.values()],
    )


def _judged(store: Transactions, target: Target, facts: Facts, limits: HealthLimits) -> Facts:
    """Return the facts together with those that are read only if a rule may be broken."""
    of_queues = facts.wanted is not None
    return replace(
        facts,
        held=_held_in(target, facts) if limits.key_held else (),
        dead_rows=DeadRows() if of_queues else DeadRows.read(store, target),
        disks={} if of_queues else full_disks(store, target, facts.seen.workers),
        storms=_storms(target, facts.rows("storm")) if limits.retried is not None else (),
        groups=_groups(target, facts, limits) if failed_lately(facts, limits) else (),
        relays=read_relays(store, target, topics=False) if facts.rows("relay") and not of_queues else (),
        causes=_causes(store, target, facts, limits),
    )


def _held_in(target: Target, facts: Facts) -> list[Row]:
    """Return the rows about held keys. If some of these rows were not read, the keys of the requested queues are read
    again, because all the rows that were read may belong to other queues.
    """
    rows = facts.rows("held")
    if facts.wanted is None or len(rows) < HELD:
        return rows
    keys = [one for queue in sorted(facts.wanted) for one in read_held_keys(target, queue, HELD) if one.waiting.number]
    return [
        {"name": one.queue, "detail": one.partition_key, "task_id": one.dead_letter, "at": one.failed_at}
        for one in keys
    ]


def _causes(store: Transactions, target: Target, facts: Facts, limits: HealthLimits) -> dict[str, Explanation]:
    """Return, for each of the heaviest late queues, the reason why the task that has been due longest is waiting."""
    late = [one.queue for one in late_queues(facts, limits) if not one.paused][:_EXPLAINED]
    if not late:
        return {}
    rows = target.run(oldest_due, store.values(target, most=1, **store.queue_values(target, late)))
    first = {row["queue"]: row["id"] for row in sorted(rows, key=lambda row: row["available_at"], reverse=True)}
    found = explain_due(store, target, first.values(), facts.seen.workers, facts.now)
    return {queue: found[task_id] for queue, task_id in first.items() if task_id in found}


def _storms(target: Target, rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with the exception that caused most of the newest retries of its task, or None."""
    most: dict[tuple[str, str], Row] = {}
    for row in target.run(newest_retries) if rows else ():
        key = (row["queue"], row["task_name"])
        if key not in most or most[key]["number"] < row["number"]:
            most[key] = row
    return [{**row, "exception": most.get((row["name"], row["detail"]), {}).get("exception")} for row in rows]


def _groups(target: Target, facts: Facts, limits: HealthLimits) -> list[DeadLetterGroup]:
    """Return the largest groups of the recent dead letters in the requested queues."""
    queues = [None] if facts.wanted is None else sorted(filter(facts.is_wanted, failed_lately(facts, limits)))
    since = facts.now - limits.failed_within
    return dead_letters.newest_groups(target, queues, limit=_GROUPS, most=_GROUPED, since=since)


def _total(queues: Sequence[Statistics], state: str) -> Count:
    at_least = any(getattr(one, f"{state}_at_least") for one in queues)
    return Count(number=sum(getattr(one, state) for one in queues), at_least=at_least)


_HELD_LOOKED_AT = 1_000
"""Maximum number of held keys that are checked for waiting tasks."""
_LOST_WITHIN = timedelta(hours=1)
"""Time for which a lost worker that still holds tasks counts as a problem."""
_GROUPED, _GROUPS = 2_000, 3
"""Maximum number of recent dead letters that are grouped, which takes 20 ms, and maximum number of groups in a problem.
"""
_EXPLAINED = 3
"""Maximum number of late queues for which the cause is read."""
_RETRIES = 5_000
"""Maximum number of recent events that are searched for the exceptions that caused retries."""
NEWEST = 200
"""Number of newest events that the change mark covers. The mark changes with each of these events, even if an event
with a lower number is committed later.
"""
_failed_since, _overdue_before, _live_since, _lost_since, _storm_since, _relay_before = parameters(
    sa.Double, "failed_since", "overdue_before", "live_since", "lost_since", "storm_since", "relay_before"
)
"""Offsets from now, as negative numbers of seconds."""
_zero: Any = sa.literal_column("0")
_one: Any = sa.literal_column("1")
_most, _storm, _storm_share, _most_failed = parameters(sa.BigInteger, "most", "storm", "storm_share", "most_failed")
_dead_letter, _schedule = tables.dead_letters.c, tables.task_schedules.c


def signals(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `live.present`, and further kinds of rows: recent failures, held keys with waiting tasks,
    schedules that are overdue or were planted while the clock was running fast, batches that are unclosed or wait for
    dead letters, silent workers, late relays to brokers, tasks with many retries, and rows that show whether old tasks
    are deleted.
    """
    schedules = sa.select(_schedule.name, _schedule.planted_until).where(_schedule.paused_at.is_(None)).limit(_most)
    late = schedules.where(_schedule.planted_until < g.later(g.now, _overdue_before)).subquery("late")
    early = schedules.where(is_planted_ahead(g)).subquery("early")
    return signals_of(
        *counts(g),
        _failed_lately(g),
        _held(),
        signal("overdue", name=late.c.name, at=late.c.planted_until),
        signal("ahead", name=early.c.name, at=early.c.planted_until),
        *_stuck_batches(g),
        _lost_workers(g),
        _late_relays(g),
        _retried_often(g),
        *_deletions(),
        _first_event(),
    )


def _stuck_batches(g: Grammar) -> list[sa.Select[Any]]:
    """Select the unclosed batches, and those that wait only for dead letters."""
    batch = batches_sql.unclosed(g).subquery("unclosed")
    waits = batches_sql.waiting_for_dead_letters(g).subquery("waits")
    return [
        signal("unclosed", name=batch.c.name, detail=batch.c.kind, task_id=batch.c.id),
        signal(
            "batch_waits",
            name=waits.c.name,
            detail=waits.c.kind,
            task_id=waits.c.id,
            number=waits.c.failed,
            at=waits.c.updated_at,
        ),
    ]


def stuck_signs(g: Grammar) -> sa.Select[Any]:
    """Select a row for each held key and each stuck batch. A worker's role cannot read the times of dead letters."""
    return signals_of(signal("held", name=_held_keys().c.queue), *_stuck_batches(g))


def retention(g: Grammar) -> sa.Select[Any]:
    """Select the time, and the rows that show whether old tasks are deleted."""
    return signals_of(signal("now", at=g.now), *_deletions())


def _deletions() -> list[sa.Select[Any]]:
    """Select a row without a time for each schedule that deletes old tasks, and a row with the time of the last
    deletion.
    """
    job = tables.maintenance_jobs.c
    stored = signal("retention", name=_schedule.name).where(
        _schedule.task_name == text_literal(PRUNE), _schedule.paused_at.is_(None)
    )
    done = signal("retention", at=job.done_at).where(job.name == text_literal(PRUNE), job.done_at.is_not(None))
    return [stored, done]


def _first_event() -> sa.Select[Any]:
    event = tables.execution_events.c
    first = sa.select(event.created_at).order_by(event.sequence_num).limit(_one).subquery("first_event")
    return signal("first_event", at=first.c.created_at)


def _lost_workers(g: Grammar) -> sa.Select[Any]:
    """Select workers that fell silent, each with the number of leases that it still holds. The workers that hold the
    most leases come first, then those that were seen most recently. Up to LOST + 1 workers are selected, to show
    whether there are more than LOST.
    """
    worker, lease = tables.workers.c, tables.task_leases.c
    held = sa.select(lease.worker_id, sa.func.count().label("number")).group_by(lease.worker_id).subquery("held")
    number = sa.func.coalesce(held.c.number, _zero, type_=sa.BigInteger)
    silent = (
        sa.select(worker.id, worker.label, worker.last_seen_at, number.label("number"))
        .join_from(tables.workers, held, held.c.worker_id == worker.id, isouter=True)
        .where(
            worker.last_seen_at < g.later(g.now, _live_since),
            worker.last_seen_at >= g.later(g.now, _lost_since),
            is_registered(),
        )
        .order_by(number.desc(), worker.last_seen_at.desc(), worker.id)
        .limit(sa.literal_column(str(LOST + 1)))
        .subquery("silent")
    )
    return signal("lost", name=silent.c.label, task_id=silent.c.id, number=silent.c.number, at=silent.c.last_seen_at)


def _late_relays(g: Grammar) -> sa.Select[Any]:
    """Select the relays to brokers whose oldest event was emitted before :relay_before."""
    relay, message = tables.relays.c, tables.relay_messages.c
    first = sa.select(message.created_at).where(message.relay == relay.name).order_by(message.id).limit(_one)
    late = sa.select(relay.name, first.correlate(tables.relays).scalar_subquery().label("at")).subquery("late_relays")
    return signal("relay", name=late.c.name, at=late.c.at).where(late.c.at < g.later(g.now, _relay_before))


def _retried_often(g: Grammar) -> sa.Select[Any]:
    """Select the tasks for which many recent attempts failed and will be repeated, each with the number of these
    attempts and the time of the last one.
    """
    metric = tables.task_metrics.c
    total = sa.func.sum  # sums one column at a time, because two forged counts in one row could overflow
    again = total(metric.retried) + total(metric.timed_out) - total(metric.timed_out_last)
    ended = total(metric.completed) + total(metric.retried) + total(metric.failed) + total(metric.timed_out)
    last = sa.func.max(sa.case((sa.or_(metric.retried > _zero, metric.timed_out > _zero), metric.at)))
    return (
        signal("storm", name=metric.queue, detail=metric.task_name, number=again, at=last)
        .where(metric.at >= g.later(g.now, _storm_since), metric.at < g.now)
        .group_by(metric.queue, metric.task_name)
        .having(sa.and_(again >= _storm, again * sa.literal_column("100", sa.BigInteger) > _storm_share * ended))
    )


def newest_retries(g: Grammar) -> sa.Select[Any]:
    """Count the retries among the newest events by queue, task and exception."""
    event, execution = tables.execution_events.c, tables.task_executions.c
    columns = (event.task_execution_id, event.event_type, event.event_data)
    newest = sa.select(*columns).order_by(event.sequence_num.desc()).limit(sa.literal_column(str(_RETRIES)))
    looked = newest.subquery("looked")
    retry = (
        sa.select(
            looked.c.task_execution_id.label("id"), g.text_in(looked.c.event_data, "exception").label("exception")
        )
        .where(looked.c.event_type == sql_literal(EventType.RETRY_SCHEDULED))
        .cte("retry")
        .prefix_with("MATERIALIZED")
    )
    return (
        sa.select(execution.queue, execution.task_name, retry.c.exception, sa.func.count().label("number"))
        .select_from(sa.join(retry, tables.task_executions, execution.id == retry.c.id))
        .group_by(execution.queue, execution.task_name, retry.c.exception)
    )


def _failed_lately(g: Grammar) -> sa.Select[Any]:
    lately = (
        sa.select(_dead_letter.queue, _dead_letter.failed_at)
        .where(_dead_letter.failed_at >= g.later(g.now, _failed_since))
        .order_by(_dead_letter.failed_at.desc())
        .limit(_most_failed)
        .subquery("lately")
    )
    first = sa.func.min(lately.c.failed_at)
    return signal("failed_lately", name=lately.c.queue, number=sa.func.count(), at=first).group_by(lately.c.queue)


def _held() -> sa.Select[Any]:
    """Select up to HELD keys that have waiting tasks, with the time since which a dead letter has held each key."""
    found = _held_keys()
    failed_at = sa.select(_dead_letter.failed_at).where(_dead_letter.task_execution_id == found.c.task_execution_id)
    at = failed_at.correlate(found).scalar_subquery()
    return signal("held", name=found.c.queue, detail=found.c.partition_key, task_id=found.c.task_execution_id, at=at)


def _held_keys() -> sa.Subquery:
    entry, claims = tables.task_outbox.alias("entry"), tables.partition_claims
    held = sa.select(claims).where(claims.c.held).limit(sa.literal_column(str(_HELD_LOOKED_AT))).subquery("held")
    waits = value_for(held, sa.select(_one).where(same_key(entry, held)).limit(_one)).is_not(None)
    return sa.select(held).where(waits).limit(sa.literal_column(str(HELD))).subquery("some")


def mark(g: Grammar) -> sa.Select[Any]:
    """Select numbers and times. After any visible change, at least one of these values is different."""
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
