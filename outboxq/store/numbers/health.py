"""Find what needs attention: old tasks, failures, queues without workers, overdue schedules, pauses, held keys, unknown
tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from ...errors import InvalidArgument
from ...model.wording import plural
from ..explain.reasons import Cure, cancel_of_batch, of_dead_letter, span_of
from .statistics import Present, Statistics


class Rule(StrEnum):
    """A rule that a queue or a schedule can break; the most urgent rule comes first."""

    NO_WORKER = "no_worker"
    """Tasks are due, and no live worker is serving their queue."""
    UNKNOWN_TASK = "unknown_task"
    """Workers have come across tasks that none of them knows."""
    SCHEDULE_OVERDUE = "schedule_overdue"
    """No worker is turning the ticks of a schedule into tasks."""
    SCHEDULE_AHEAD = "schedule_ahead"
    """A schedule is planted further ahead than the current clock can have planted it."""
    KEY_HELD = "key_held"
    """Tasks are waiting for a dead letter that holds their partition key."""
    BATCH_UNCLOSED = "batch_unclosed"
    """The `with` block of a batch raised an error, but its transaction was committed, so no task will follow the
    batch.
    """
    FAILED = "failed"
    """Tasks have recently become dead letters."""
    OLDEST = "oldest"
    """A task has been due for too long."""
    QUEUE_PAUSED = "queue_paused"


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthLimits:
    """The limits for the rules. None or False switches a rule off."""

    oldest: timedelta | None = timedelta(minutes=5)
    """The maximum time for which a task may be due."""
    failed: int | None = 0
    """Maximum number of tasks, in all queues together, that became dead letters within `failed_within`."""
    failed_within: timedelta = timedelta(hours=1)
    no_worker: bool = True
    schedule_overdue: timedelta | None = timedelta(minutes=1)
    """The maximum delay before the ticks of a schedule become tasks. Workers plant them a minute ahead."""
    schedule_ahead: bool = True
    queue_paused: bool = False
    key_held: bool = True
    unknown_task: bool = True
    batch_unclosed: bool = True

    def __post_init__(self) -> None:
        """Raise InvalidArgument for a number or a time below 0."""
        if self.failed is not None and (type(self.failed) is not int or self.failed < 0):
            raise InvalidArgument(f"failed must be a whole number of at least 0, not {self.failed!r}")
        for name in ("oldest", "failed_within", "schedule_overdue"):
            span = getattr(self, name)
            if span is not None and not (isinstance(span, timedelta) and timedelta(0) <= span <= timedelta(days=3650)):
                raise InvalidArgument(f"{name} must be a timedelta from 0 to 3650 days, not {span!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A broken rule."""

    rule: Rule
    subject: str
    """Name of the queue or of the schedule."""
    sentence: str
    cures: tuple[Cure, ...] = ()
    """Commands that can help; empty if there are none."""


def problems(queues: Iterable[Statistics], seen: Present, limits: HealthLimits) -> list[Problem]:
    """Return the broken rules, sorted by urgency and then by subject. `seen` has the rows that `overview.signals`
    selects.
    """
    found = [*_of_queues(queues, seen, limits), *_of_schedules(seen, limits), *_of_batches(seen, limits)]
    rank = {rule: number for number, rule in enumerate(Rule)}
    return sorted(found, key=lambda one: (rank[one.rule], one.subject))


OF_SCHEDULES = frozenset({Rule.SCHEDULE_OVERDUE, Rule.SCHEDULE_AHEAD})
"""Rules whose subject is a schedule instead of a queue."""


def _of_queues(queues: Iterable[Statistics], seen: Present, limits: HealthLimits) -> Iterator[Problem]:
    failed_lately = {row["name"]: row["number"] for row in seen.live.signs.get("failed_lately", ())}
    too_many = limits.failed is not None and sum(failed_lately.values()) > limits.failed
    held_keys: dict[str, list[tuple[str, UUID]]] = {}
    for row in seen.live.signs.get("held", ()):
        held_keys.setdefault(row["name"], []).append((row["detail"], row["task_id"]))
    for one in queues:
        name, due = f"the queue {one.queue!r}", _number(one.ready, "task", at_least=one.ready_at_least)
        if limits.no_worker and one.ready and not one.live_workers:
            cure = Cure("start a worker", ("worker", "-q", one.queue))
            yield _of(Rule.NO_WORKER, one, f"no live worker serves {name}, which has {due} due", cure)
        if limits.unknown_task and one.unknown:
            unknown = ", ".join(repr(each.task_name) for each in one.unknown[:3])
            more = f" and {len(one.unknown) - 3} more" if len(one.unknown) > 3 else ""
            modules = plural(len(one.unknown), "its module", "their modules")
            sentence = f"no live worker on {name} knows {unknown}{more}; import {modules} where the worker starts"
            yield _of(Rule.UNKNOWN_TASK, one, sentence)
        if limits.key_held and (held := held_keys.get(one.queue)):
            yield _held(one, held)
        if too_many and (failed := failed_lately.get(one.queue)):
            within = span_of(limits.failed_within)
            sentence = f"{_number(failed, 'task')} in {name} failed permanently in the last {within}"
            yield _of(Rule.FAILED, one, sentence, Cure("see why", ("failed", "list", "-q", one.queue)))
        age = one.oldest_ready_age
        if limits.oldest is not None and age is not None and age > limits.oldest:
            yield _oldest(seen, one, age)
        if limits.queue_paused and one.paused:
            sentence = f"{name} has been paused for {_paused_for(seen, one)}"
            yield _of(Rule.QUEUE_PAUSED, one, sentence, _resume(one.queue))


def _paused_for(seen: Present, one: Statistics) -> str:
    settings = seen.settings[one.queue]
    since, reason = settings.paused_at, settings.pause_reason
    span = span_of(timedelta(0) if since is None else seen.live.now - since)
    return f"{span}: {reason}" if reason else span


def _oldest(seen: Present, one: Statistics, age: timedelta) -> Problem:
    sentence = f"a task in the queue {one.queue!r} has been due for {span_of(age)}"
    if one.paused:
        paused = f"{sentence}; the queue has been paused for {_paused_for(seen, one)}"
        return _of(Rule.OLDEST, one, paused, _resume(one.queue))
    cure = Cure("see which tasks are waiting", ("task", "list", "--status", "ready", "-q", one.queue))
    return _of(Rule.OLDEST, one, sentence, cure)


def _held(one: Statistics, held: list[tuple[str, UUID]]) -> Problem:
    key, task_id = held[0]
    if len(held) == 1:
        sentence = (
            f"tasks in the queue {one.queue!r} are waiting for the dead letter {task_id}, which holds their key {key!r}"
        )
    else:
        sentence = (
            f"tasks in the queue {one.queue!r} are waiting for {len(held)} dead letters that hold their keys, such as "
            f"{task_id}, which holds {key!r}"
        )
    return _of(Rule.KEY_HELD, one, sentence, *of_dead_letter(task_id, "it"))


def _of_schedules(seen: Present, limits: HealthLimits) -> Iterator[Problem]:
    now, cures = seen.live.now, (Cure("start a worker", ("worker",)),)
    for row in seen.live.signs.get("overdue", ()) if limits.schedule_overdue is not None else ():
        sentence = (
            f"no tick of schedule {row['name']!r} has become a task in the last {span_of(now - row['at'])}: no live "
            "worker is turning ticks into tasks"
        )
        yield Problem(rule=Rule.SCHEDULE_OVERDUE, subject=row["name"], sentence=sentence, cures=cures)
    for row in seen.live.signs.get("ahead", ()) if limits.schedule_ahead else ():
        sentence = (
            f"a clock that was running fast has planted ticks of the schedule {row['name']!r} for the next "
            f"{span_of(row['at'] - now)}; within 15 seconds, a live worker plants them again by the current clock; if that "
            "does not happen, the current clock is slow"
        )
        yield Problem(rule=Rule.SCHEDULE_AHEAD, subject=row["name"], sentence=sentence, cures=cures)


def _of_batches(seen: Present, limits: HealthLimits) -> Iterator[Problem]:
    """Yield a single problem for all unclosed batches. It names the first of them."""
    unclosed = sorted(seen.live.signs.get("unclosed", ()), key=lambda row: row["task_id"])
    if not unclosed or not limits.batch_unclosed:
        return
    batch_id, name = unclosed[0]["task_id"], unclosed[0]["name"]
    which = f"the batch {batch_id}" if name is None else f"the batch {name!r} ({batch_id})"
    more = len(unclosed) - 1
    others = f" (and {more} more)" if more else ""
    yield Problem(
        rule=Rule.BATCH_UNCLOSED,
        subject=str(batch_id),
        sentence=f"{which} is not closed{others}: its `with` block raised an error, but the transaction was committed, so no task "
        "will follow it",
        cures=cancel_of_batch(batch_id),
    )


def _of(rule: Rule, one: Statistics, sentence: str, *cures: Cure) -> Problem:
    return Problem(rule=rule, subject=one.queue, sentence=sentence, cures=cures)


def _resume(queue: str) -> Cure:
    return Cure("resume it", ("queue", "resume", queue))


def _number(number: int, noun: str, *, at_least: bool = False) -> str:
    return f"{'more than ' if at_least else ''}{number:,} {plural(number, noun)}"
