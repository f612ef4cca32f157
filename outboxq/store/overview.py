"""The numbers of all queues and what needs attention, in a few statements that cost the same whatever the size of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import depths
from ..database.statements import overview as statements
from ..database.target import Target
from .claims.workers import LIVE_WITHIN, LiveWorker, live_workers
from .health import HealthLimits, Problem, Signs, problems
from .producing import batches_sql
from .queues import QueueSettings, settings_of
from .samples import BOUND, QueueSample, counted
from .statistics import Statistics, unknown_names
from .tasks.event_log import Count
from .transactions import Transactions

_STATES = ("ready", "delayed", "running", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """The present numbers of all queues together and one by one, and what needs attention."""

    at: datetime
    ready: Count
    """Number of tasks that are due."""
    delayed: Count
    """Number of tasks that are due later, for a retry or not."""
    running: int
    failed: Count
    """Number of dead letters, whenever they failed."""
    oldest_ready_at: datetime | None
    live_workers: int
    queues: list[Statistics]
    """The present numbers of each queue that has tasks, dead letters, settings or a live worker, by name; nothing about a window of
    time. Those that wait for a retry are in `delayed`.
    """
    problems: list[Problem]
    workers: list[LiveWorker] = field(default_factory=list)
    settings: list[QueueSettings] = field(default_factory=list)


def overview(store: Transactions, limits: HealthLimits | None = None, *, using: object = None) -> Overview:
    """Return the present numbers of all queues and what needs attention, by the rules of `health`.

    Of the waiting tasks of each queue and priority, and of all dead letters, 10 000 are counted; where there are more, a queue has its
    last sample too. Four statements.
    """
    limits = limits or HealthLimits()
    return store.run(partial(_read, store, limits=limits), using=using, begin=Begin.READ)


def health(store: Transactions, limits: HealthLimits | None = None, *, using: object = None) -> list[Problem]:
    """Return the rules that are broken now, the most urgent first; empty if all is well. It reads what `overview` reads.

    `limits` None: the default ones. Raises InvalidArgument for limits below 0.
    """
    return overview(store, limits, using=using).problems


def change_mark(store: Transactions, *, using: object = None) -> str:
    """Return a text that is another one when a task, a setting, a schedule, a sample or a count has changed, or a worker has come
    or gone. One statement of index look-ups and of small tables.

    It does not tell of what changes without a row: a delayed task that is due by now, an age. Nor of a heartbeat, of how busy a
    worker is, of old tasks that are pruned, or of a task that a transaction enqueued 200 events ago and has only now committed.
    """

    def work(target: Target) -> str:
        values = store.values(target, live_since=-LIVE_WITHIN.total_seconds())
        (row,) = target.run(statements.mark, values)
        return "|".join("" if value is None else str(value) for value in row.values())

    return store.run(work, using=using, begin=Begin.READ)


def _read(store: Transactions, target: Target, *, limits: HealthLimits) -> Overview:
    values = store.values(target, most=BOUND + 1, most_looked_up=0)
    overdue = limits.schedule_overdue or timedelta(0)
    since = {
        "failed_since": -limits.failed_within.total_seconds(),
        "overdue_before": -overdue.total_seconds(),
    }
    signals: dict[str, list[Row]] = {}
    for row in target.run(statements.signals, values | since):
        signals.setdefault(row["kind"], []).append(row)
    now = signals["now"][0]["at"]
    waiting = counted(target.run(depths.waiting, values))
    workers = live_workers(target, now)
    settings = [settings_of(_setting(row)) for row in signals.get("settings", ())]
    queues = _queues(signals, waiting, workers, settings, now)
    overdue_schedules = signals.get("schedule", ()) if limits.schedule_overdue is not None else ()
    ahead = signals.get("ahead", ()) if limits.schedule_ahead else ()
    held: dict[str, list[Any]] = {}
    for row in signals.get("held", ()):
        held.setdefault(row["name"], []).append((row["detail"], row["task_id"]))
    signs = Signs(
        now=now,
        queues=queues,
        failed_lately={row["name"]: row["number_1"] for row in signals.get("failed_lately", ())},
        held=held,
        overdue={row["name"]: row["at"] for row in overdue_schedules},
        ahead={row["name"]: row["at"] for row in ahead},
        unclosed=_unclosed(target) if limits.batch_unclosed else (),
        paused_at={one.queue: one.paused_at for one in settings if one.paused_at is not None},
    )
    oldest = [one.oldest_ready_at for one in queues if one.oldest_ready_at is not None]
    return Overview(
        at=now,
        **{state: _total(queues, state) for state in ("ready", "delayed", "failed")},
        running=sum(one.running for one in queues),
        oldest_ready_at=min(oldest, default=None),
        live_workers=len(workers),
        queues=queues,
        problems=problems(signs, limits),
        workers=workers,
        settings=settings,
    )


def _unclosed(target: Target) -> list[tuple[UUID, str | None]]:
    """Return the batches that are not closed, of the first 10 000 that go on."""
    return [(row["id"], row["name"]) for row in target.run(batches_sql.unclosed, {"most": BOUND})]


def _queues(
    signals: Mapping[str, list[Row]],
    waiting: Mapping[str, Row],
    workers: list[LiveWorker],
    settings: Iterable[QueueSettings],
    now: datetime,
) -> list[Statistics]:
    running = {row["name"]: row["number_1"] for row in signals.get("running", ())}
    failed = {row["name"]: row["number_1"] for row in signals.get("failed", ())}
    samples = {row["name"]: _sample(row) for row in signals.get("sample", ())}
    mine = {one.queue: one for one in settings}
    many = sum(failed.values()) > BOUND  # of all queues together, so those that were not counted may be of any
    named = {name for one in workers for name in one.queues or ()}
    found = []
    for name in sorted({*running, *failed, *waiting, *mine, *named, *(queue for queue in samples if many)}):
        row, setting = waiting.get(name, {}), mine.get(name)
        ready, later, oldest = row.get("ready", 0), row.get("later", 0), row.get("oldest_ready_at")
        here = [worker for worker in workers if worker.works_on(name)]
        marks = {"ready_at_least": ready > BOUND, "delayed_at_least": later > BOUND, "failed_at_least": many}
        sample = samples.get(name) if any(marks.values()) else None
        found.append(
            Statistics(
                queue=name,
                ready=min(ready, BOUND),
                delayed=min(later, BOUND),
                running=running.get(name, 0),
                failed=failed.get(name, 0),
                **marks,
                sample=sample,
                sample_age=None if sample is None else now - sample.at,
                oldest_ready_at=oldest,
                oldest_ready_age=None if oldest is None else now - oldest,
                paused=setting is not None and setting.paused_at is not None,
                concurrency=None if setting is None else setting.concurrency,
                rate=None if setting is None else setting.rate,
                concurrency_per_key=None if setting is None else setting.concurrency_per_key,
                rate_per_key=None if setting is None else setting.rate_per_key,
                live_workers=len(here),
                unknown=unknown_names(name, None, here) if ready or later else (),
            )
        )
    return found


def _total(queues: Iterable[Statistics], state: str) -> Count:
    several = list(queues)
    at_least = any(getattr(one, f"{state}_at_least") for one in several)
    return Count(number=sum(getattr(one, state) for one in several), at_least=at_least)


def _setting(row: Row) -> Row:
    """Return a signal as a row of settings."""
    return {
        "queue": row["name"],
        "paused_at": row["at"],
        "concurrency_limit": row["number_1"],
        "rate_limit": row["number_2"],
        "rate_seconds": row["seconds"],
        "key_concurrency": row["number_4"],
        "key_rate_limit": row["number_5"],
        "key_rate_seconds": row["other_seconds"],
        "fair": bool(row["number_3"]),
        "updated_at": row["other_at"],
    }


def _sample(row: Row) -> QueueSample:
    numbers = {state: row[f"number_{place}"] for place, state in enumerate(_STATES, 1)}
    at = {"at": row["at"], "oldest_ready_at": row["other_at"]}
    return QueueSample(queue=row["name"], **numbers, **at, exact=bool(row["number_5"]))
