"""The problems that `health` finds: the rules and their limits, the facts that the rules use, and the order of
problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from ...database.dialects import Row
from ...errors import InvalidArgument
from ...model.relays import Relay
from ..explain.reasons import Cure, Explanation
from ..tasks.dead_letter_groups import DeadLetterGroup
from .dead_rows import DeadRows
from .live import BOUND
from .statistics import Present, Statistics


class Rule(StrEnum):
    """A rule that can be broken. The order of the rules decides between problems of equal weight."""

    NO_WORKER = "no_worker"
    """Tasks are waiting, and no live worker is serving their queue."""
    WORKER_FAILING = "worker_failing"
    """A live worker cannot claim tasks or write their outcomes, for example because the disk is full."""
    UNKNOWN_TASK = "unknown_task"
    """Workers have come across tasks that none of them knows."""
    WORKER_LOST = "worker_lost"
    """A worker fell silent, and tasks that it was running have not been recovered yet."""
    SCHEDULE_OVERDUE = "schedule_overdue"
    """No worker is turning the ticks of a schedule into tasks."""
    SCHEDULE_AHEAD = "schedule_ahead"
    """A schedule's ticks were planted further ahead than the current clock allows."""
    RELAY_LATE = "relay_late"
    """The events of a relay to a broker are not published, because the broker is unavailable, no worker is sending
    them, or the relay is paused.
    """
    RECEIVER_FAILING = "receiver_failing"
    """The receivers of a source cannot receive its messages, usually because the broker is unavailable."""
    KEY_HELD = "key_held"
    """Tasks are waiting for a dead letter that holds their partition key."""
    BATCH_WAITS = "batch_waits"
    """A batch or a chain is waiting only for its dead letters."""
    BATCH_UNCLOSED = "batch_unclosed"
    """The `with` block of a batch raised an error, but its transaction was committed, so no task will follow the
    batch.
    """
    FAILED = "failed"
    """Tasks have recently become dead letters."""
    RETRY_STORM = "retry_storm"
    """A large share of a task's recent attempts failed and will be repeated."""
    OLDEST = "oldest"
    """A task has been due for too long."""
    QUEUE_PAUSED = "queue_paused"
    OLD_SNAPSHOT = "old_snapshot"
    """An old snapshot keeps dead rows from being vacuumed. On SQLite, a reader keeps the log from being shortened."""
    DEAD_ROWS = "dead_rows"
    """A table has many dead rows, because vacuum is off or behind."""
    NO_RETENTION = "no_retention"
    """Nothing deletes old tasks, so the history grows."""


OF_QUEUES = frozenset(
    {
        Rule.NO_WORKER,
        Rule.UNKNOWN_TASK,
        Rule.KEY_HELD,
        Rule.FAILED,
        Rule.RETRY_STORM,
        Rule.OLDEST,
        Rule.QUEUE_PAUSED,
    }
)
"""Rules whose subjects are queues."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthLimits:
    """The limits for the rules. None or False switches a rule off."""

    oldest: timedelta | None = timedelta(minutes=5)
    """The maximum time for which a due task may wait to start."""
    failed: int | None = 0
    """Maximum number of tasks, in all queues together, that became dead letters within `failed_within`."""
    failed_within: timedelta = timedelta(hours=1)
    retried: int | None = 20
    """Maximum share, in percent, of a task's attempts in the last 10 minutes that failed and will be repeated. A task
    with fewer than 50 such attempts does not count.
    """
    no_worker: bool = True
    worker_failing: bool = True
    worker_lost: bool = True
    schedule_overdue: timedelta | None = timedelta(minutes=1)
    """The maximum delay before the ticks of a schedule become tasks. Workers plant the ticks a minute ahead."""
    schedule_ahead: bool = True
    relay_late: timedelta | None = timedelta(minutes=5)
    """The maximum time for which an event may wait in a relay to a broker."""
    receiver_failing: timedelta | None = timedelta(minutes=5)
    """The maximum time for which a receiver may keep failing."""
    queue_paused: bool = False
    key_held: bool = True
    unknown_task: bool = True
    batch_waits: bool = True
    batch_unclosed: bool = True
    snapshot: timedelta | None = timedelta(minutes=10)
    """The maximum age of a transaction that keeps dead rows from being vacuumed."""
    dead_rows: int | None = 100_000
    """Maximum number of dead rows in a table whose rows are short-lived."""
    history: timedelta | None = timedelta(days=7)
    """The maximum age of the oldest event while nothing deletes old tasks."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for a number or a time below 0."""
        for name in ("failed", "retried", "dead_rows"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgument(f"{name} must be a whole number of at least 0, not {number!r}")
        for name in (
            "oldest",
            "failed_within",
            "schedule_overdue",
            "relay_late",
            "receiver_failing",
            "snapshot",
            "history",
        ):
            span = getattr(self, name)
            if span is not None and not (isinstance(span, timedelta) and timedelta(0) <= span <= timedelta(days=3650)):
                raise InvalidArgument(f"{name} must be a timedelta from 0 to 3650 days, not {span!r}")

    @property
    def most_failed(self) -> int:
        """Return the maximum number of recent dead letters to read. This number is above `failed`, so that too many
        dead letters can be detected.
        """
        return min(max(BOUND, self.failed or 0), _LARGEST) + 1


_LARGEST = 2**62
"""The largest number that fits into a LIMIT."""
STORM_WITHIN = timedelta(minutes=10)
"""The period that is searched for a retry storm."""
STORM = 50
"""Minimum number of failed attempts at one task that counts as a retry storm. Only attempts that will be repeated
count.
"""
HELD = 100
"""Maximum number of keys to read that are held and have waiting tasks."""
LOST = 3
"""Maximum number of lost workers that are named and counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a problem that has its own cure, such as a group of dead letters."""

    sentence: str
    cures: tuple[Cure, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A broken rule, with one cause. If the cause affects several queues, schedules or batches, they share one problem."""

    rule: Rule
    subjects: tuple[str, ...]
    """The names of the queues, schedules, relays, sources or workers, the ids of the batches, or the names of tables. The
    heaviest comes first.
    """
    sentence: str
    cures: tuple[Cure, ...] = ()
    """Commands that can help; empty if there are none."""
    tasks: int = 0
    """Number of tasks that the problem holds up or has ended; 0 if it is about the database."""
    age: timedelta = timedelta(0)
    """The time for which the first of these tasks has been held up."""
    parts: tuple[Part, ...] = ()
    """The largest parts, if they have cures of their own."""

    @classmethod
    def of(cls, rule: Rule, subjects: Iterable[str], sentence: str, *cures: Cure, **others: Any) -> Self:
        """Return the problem with these subjects and cures. `others` contains further fields."""
        return cls(rule=rule, subjects=tuple(subjects), sentence=sentence, cures=cures, **others)

    @property
    def weight(self) -> float:
        """The number of tasks multiplied by the age in seconds. Heavier problems are more urgent. An age of less than a
        minute counts as a minute, so that the order of new problems does not depend on milliseconds.
        """
        return self.tasks * max(self.age, _SHORTEST).total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts that the rules use."""

    queues: Sequence[Statistics]
    """The queues whose problems are requested."""
    wanted: frozenset[str] | None = None
    """The names of these queues; None means all queues."""
    seen: Present
    """The current numbers, with the rows that `overview.signals` selects."""
    dead_rows: DeadRows = field(default_factory=DeadRows)
    held: Sequence[Row] = ()
    """The rows of `overview.signals` about keys that dead letters hold."""
    storms: Sequence[Row] = ()
    """The rows of `overview.signals` about retries, each with the exception that caused most of the retries, or
    None.
    """
    groups: Sequence[DeadLetterGroup] = ()
    """The largest groups of the recent dead letters."""
    disks: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each worker failure that is due to a full disk."""
    causes: Mapping[str, Explanation] = field(default_factory=dict)
    """For each of the heaviest late queues, the reason why the task that has been due the longest is waiting."""
    relays: Sequence[Relay] = ()
    """The relays to brokers; empty if no relay is late, or if only some queues are requested."""

    @property
    def now(self) -> datetime:
        return self.seen.live.now

    def rows(self, kind: str) -> list[Row]:
        """Return the `overview.signals` rows of this kind."""
        return self.seen.live.signs.get(kind, [])

    def is_wanted(self, queue: str) -> bool:
        return self.wanted is None or queue in self.wanted

    def age(self, moment: datetime | None) -> timedelta:
        return timedelta(0) if moment is None else max(timedelta(0), self.now - moment)


_SHORTEST = timedelta(minutes=1)
_RANK = {rule: number for number, rule in enumerate(Rule)}


_CAUSES: Mapping[Rule, frozenset[Rule]] = {
    Rule.NO_WORKER: frozenset({Rule.WORKER_LOST}),
    Rule.SCHEDULE_OVERDUE: frozenset({Rule.NO_WORKER, Rule.WORKER_FAILING, Rule.WORKER_LOST}),
    Rule.RELAY_LATE: frozenset({Rule.WORKER_FAILING}),
    Rule.KEY_HELD: frozenset({Rule.FAILED}),
    Rule.BATCH_WAITS: frozenset({Rule.FAILED}),
    Rule.OLDEST: frozenset(
        {
            Rule.WORKER_FAILING,
            Rule.WORKER_LOST,
            Rule.UNKNOWN_TASK,
            Rule.KEY_HELD,
            Rule.RETRY_STORM,
            Rule.DEAD_ROWS,
        }
    ),
}
"""For each rule, the rules whose problems can cause its problems. No rule causes itself, not even indirectly."""


def ranked(found: list[Problem]) -> list[Problem]:
    """Return the problems sorted by urgency: by weight, then by rule, then by subject. A cause precedes its symptoms."""
    order = sorted(found, key=lambda one: (-one.weight, _RANK[one.rule], one.subjects))
    placed: list[Problem] = []

    def place(problem: Problem) -> None:
        if problem in placed:
            return
        for other in order:
            if _causes(other, problem):
                place(other)
        placed.append(problem)

    for problem in order:
        place(problem)
    return placed


def _causes(cause: Problem, symptom: Problem) -> bool:
    """Return whether one problem causes another. If both are about queues, they must have a queue in common."""
    if cause.rule not in _CAUSES.get(symptom.rule, ()):
        return False
    of_queues = {cause.rule, symptom.rule} <= OF_QUEUES
    return not of_queues or not set(cause.subjects).isdisjoint(symptom.subjects)
