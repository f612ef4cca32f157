"""Records of the overview until the store has its own methods for them; they cost more statements than those will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ...store import Count, Cure, Percentiles, Statistics, Store


class Rule(StrEnum):
    OLDEST = "oldest"
    FAILED = "failed"
    NO_WORKER = "no_worker"
    SCHEDULE_OVERDUE = "schedule_overdue"
    QUEUE_PAUSED = "queue_paused"
    KEY_HELD = "key_held"
    UNKNOWN_TASK = "unknown_task"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A rule that is broken, by what, and what helps."""

    rule: Rule
    subject: str
    sentence: str
    cures: tuple[Cure, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPoint:
    """The ends of a step."""

    at: datetime
    step: timedelta
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    wait: Percentiles | None = None
    run: Percentiles | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthPoint:
    """The depths at the end of a step."""

    at: datetime
    ready: int | None = None
    delayed: int | None = None
    running: int | None = None
    failed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldKey:
    """A partition key that a dead letter holds."""

    queue: str
    partition_key: str
    dead_letter: Any
    failed_at: datetime
    waiting: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """The numbers of all queues, and what is wrong."""

    at: datetime
    ready: Count
    delayed: Count
    running: int
    failed: Count
    oldest_ready_at: datetime | None
    live_workers: int
    queues: list[Statistics] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def overview(store: Store) -> Overview:
    """Return the overview, made from `stats`."""
    queues, now = store.stats(), store.now()
    oldest = [one.oldest_ready_at for one in queues if one.oldest_ready_at is not None]
    problems = []
    for one in queues:
        name = one.queue
        if one.paused:
            cure = Cure("resume it", ("queue", "resume", name))
            problems.append(_problem(Rule.QUEUE_PAUSED, name, f"the queue {name!r} is paused", cure))
        elif one.ready and not one.live_workers:
            cure = Cure("start a worker", ("worker", "-q", name))
            sentence = f"no live worker works on the queue {name!r}, and {one.ready} of its tasks are due"
            problems.append(_problem(Rule.NO_WORKER, name, sentence, cure))
        if one.failed:
            cure = Cure("see them", ("failed", "list", "-q", name))
            problems.append(_problem(Rule.FAILED, name, f"{one.failed} tasks of the queue {name!r} failed", cure))
    return Overview(
        at=now,
        **{state: _count(queues, state) for state in ("ready", "delayed", "failed")},
        running=sum(one.running for one in queues),
        oldest_ready_at=min(oldest, default=None),
        live_workers=len(store.workers.list()),
        queues=queues,
        problems=problems,
    )


def metric_series(store: Any, **options: Any) -> list[Any]:
    """Return the series of the store, or nothing until it has one."""
    return store.metrics.series(**options) if hasattr(store.metrics, "series") else []


def depth_series(store: Any, **options: Any) -> list[Any]:
    """Return the series of the store, or nothing until it has one."""
    return store.samples.series(**options) if hasattr(store.samples, "series") else []


def held_keys(store: Any, queue: str, *, limit: int) -> list[HeldKey]:
    """Return the keys of the store, or nothing until it tells."""
    return store.queues.held_keys(queue, limit=limit) if hasattr(store.queues, "held_keys") else []


def all_queues(store: Any) -> list[Any]:
    """Return all queues, or those with settings until the store tells."""
    return store.queues.list() if hasattr(store.queues, "list") else store.queues.settings()  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The database."""

    revision: str
    oldest_code: str
    server: str
    size: int | None
    tables: Sequence[Any]
    oldest_snapshot: timedelta | None = None
    partitions: Sequence[Any] = ()


def system(store: Any) -> Any:
    """Return what the store tells, or little until it does."""
    if hasattr(store, "system"):
        return store.system()
    return System(revision="0005", oldest_code="0001", server=store.dialect.name, size=None, tables=())


def _problem(rule: Rule, subject: str, sentence: str, cure: Cure) -> Problem:
    return Problem(rule=rule, subject=subject, sentence=sentence, cures=(cure,))


def _count(queues: Sequence[Statistics], state: str) -> Count:
    number = sum(getattr(one, state) for one in queues)
    return Count(number=number, at_least=any(getattr(one, f"{state}_at_least") for one in queues))
