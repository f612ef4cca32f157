"""Counts a worker's attempts (by outcome and duration), claims, recoveries and lost leases in memory. The meter does
not send any statements. The numbers start at zero when the worker starts, and never decrease. To get the numbers for a
period, subtract the numbers at its beginning from those at its end.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias
from uuid import UUID

from ..model import Claim, EventType, Outcome, TaskTimeout
from ..model.histograms import BOUNDS, BUCKETS, AttemptCounts
from ..model.options import headers_of_json
from ..model.records import OUTCOMES
from ..model.schedules import SCHEDULE_HEADER, TICK_HEADER

TASK_BOUNDS: Final = tuple(2**power for power in range(11))
"""The inclusive upper bounds of the buckets for the number of tasks that a claim found: 1 to 1,024."""


class AttemptEnd(StrEnum):
    """The way in which an attempt ended, counted once per attempt."""

    COMPLETED = "completed"
    RETRIED = "retried"
    """The attempt failed, and another attempt follows."""
    FAILED = "failed"
    """The attempt failed, and no further attempt follows."""
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    RELEASED = "released"
    LOST = "lost"
    """The attempt's lease was lost, so its outcome was discarded."""
    TIMED_OUT = "timed_out"
    """The attempt failed because it ran for longer than the task's timeout. Another attempt may follow."""


_COMPLETED, _ENDED_COMPLETED = EventType.COMPLETED, AttemptEnd.COMPLETED
"""The event type and the `AttemptEnd` of most attempts: enum members that are looked up once, as in `task_runner.py`."""


class ClaimResult(StrEnum):
    """The result of a claim attempt."""

    SOME = "some"
    NONE = "none"
    """Nothing was due."""
    ERROR = "error"


Timing: TypeAlias = tuple[float | None, float | None]
"""The seconds from the due time of the task to the start of the handler (None if the handler has not begun), and the
seconds for which the handler ran (None if it has not ended). This is a plain tuple, because each task needs one, and a
named tuple would take 0.3 us longer.
"""
UNKNOWN: Final[Timing] = (None, None)


@dataclass(slots=True)
class ClaimCounts:
    """The claim attempts that had the same result."""

    claims: int = 0
    seconds: float = 0.0
    """The total duration of these attempts."""
    tasks: int = 0
    """The number of tasks that were claimed."""
    by_seconds: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """The number of attempts in each bucket of `model.histograms`, by their duration in seconds."""
    by_tasks: list[int] = field(default_factory=lambda: [0] * (len(TASK_BOUNDS) + 1))
    """The number of attempts in each bucket of `TASK_BOUNDS`, by the number of tasks that they found."""


@dataclass(slots=True)
class LatenessCounts:
    """One schedule's counts, which cover the ticks whose tasks have started at least once."""

    seconds: float = 0.0
    """The total lateness of these ticks."""
    by_seconds: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """The number of ticks in each bucket of `model.histograms`, by the seconds from the tick to the start of its task's
    handler.
    """


class Meter:
    """One worker's counts since its start. Any thread may count and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, str], AttemptCounts] = defaultdict(AttemptCounts)
        self._claims = {result: ClaimCounts() for result in ClaimResult}
        self._recovered: Counter[str] = Counter()
        self._leases_lost: Counter[str] = Counter()
        self._lateness: defaultdict[str, LatenessCounts] = defaultdict(LatenessCounts)
        self.last_answer: float | None = None
        """The Unix time at which the database last answered a heartbeat or the worker's registration. None if the
        database has not answered yet.
        """

    def ended(
        self, outcomes: Sequence[Outcome], timings: Sequence[Timing] | None = None, *, lost: Collection[UUID] = ()
    ) -> None:
        """Count how attempts ended, after the database has written or refused their outcomes.

        `timings` contains the timing of each attempt; None if the timings are unknown. `lost` contains the ids of the
        tasks whose outcomes were discarded because their leases were lost.
        """
        with self._lock:
            for outcome, timing in zip(outcomes, timings or [UNKNOWN] * len(outcomes), strict=True):
                claim, kind = outcome.claim, outcome.event_type
                if lost and claim.id in lost:
                    end = AttemptEnd.LOST
                elif kind is _COMPLETED:
                    end = _ENDED_COMPLETED
                elif claim.timeout_seconds is not None and _timed_out(outcome, timing):
                    end = AttemptEnd.TIMED_OUT
                    if kind is EventType.FAILED:
                        self._counts[claim.queue, claim.task_name].timed_out_last += 1
                else:
                    end = AttemptEnd(OUTCOMES[kind])
                self._count(claim, end, timing)

    def lost(self, claim: Claim, timing: Timing = UNKNOWN) -> None:
        """Count an attempt that ended without an outcome because its lease was lost."""
        with self._lock:
            self._count(claim, AttemptEnd.LOST, timing)

    def lease_lost(self, queue: str) -> None:
        """Count a lease that has expired or that another worker has taken. The lease is counted when this worker
        notices the loss.
        """
        with self._lock:
            self._leases_lost[queue] += 1

    def claimed(self, tasks: int, seconds: float) -> None:
        """Count a claim attempt that found this many tasks."""
        with self._lock:
            counts = self._tried(ClaimResult.SOME if tasks else ClaimResult.NONE, seconds)
            counts.tasks += tasks
            counts.by_tasks[bisect_left(TASK_BOUNDS, tasks)] += 1

    def claim_failed(self, seconds: float) -> None:
        """Count a claim attempt that raised an error."""
        with self._lock:
            self._tried(ClaimResult.ERROR, seconds)

    def recovered(self, queues: Iterable[str]) -> None:
        """Count the tasks that were recovered from dead workers, by queue."""
        with self._lock:
            self._recovered.update(queues)

    def answered(self) -> None:
        """Record that the database has answered a heartbeat or the worker's registration."""
        self.last_answer = time.time()

    def read(self) -> dict[tuple[str, str], AttemptCounts]:
        """Return a copy of the attempt counts, by queue, task name and outcome."""
        with self._lock:
            return {key: counts.copy() for key, counts in self._counts.items()}

    def read_claims(self) -> dict[ClaimResult, ClaimCounts]:
        """Return a copy of the claim attempt counts, by result."""
        with self._lock:
            return deepcopy(self._claims)

    def read_recovered(self) -> dict[str, int]:
        """Return the number of tasks that this worker has recovered from dead workers, by queue."""
        with self._lock:
            return dict(self._recovered)

    def read_leases_lost(self) -> dict[str, int]:
        """Return the number of leases that this worker has lost, by queue."""
        with self._lock:
            return dict(self._leases_lost)

    def read_lateness(self) -> dict[str, LatenessCounts]:
        """Return a copy of the lateness counts, by schedule."""
        with self._lock:
            return deepcopy(self._lateness)

    def _count(self, claim: Claim, end: AttemptEnd, timing: Timing) -> None:
        counts = self._counts[claim.queue, claim.task_name]
        if end is _ENDED_COMPLETED:
            counts.completed += 1
        else:
            setattr(counts, end, getattr(counts, end) + 1)
        waited, ran = timing
        if waited is not None:
            counts.wait[bisect_left(BOUNDS, waited)] += 1
            counts.wait_seconds += waited
            if (
                claim.headers is not None
                and TICK_HEADER in claim.headers
                and claim.started_at == claim.first_started_at
            ):
                self._count_tick(claim, waited)
        if ran is not None:
            counts.run[bisect_left(BOUNDS, ran)] += 1
            counts.run_seconds += ran

    def _count_tick(self, claim: Claim, waited: float) -> None:
        """Count the lateness of a tick's task at its first start. `waited` is the number of seconds for which the task
        waited.
        """
        try:
            headers = headers_of_json(claim.headers)
            schedule, tick = headers[SCHEDULE_HEADER], datetime.fromisoformat(headers[TICK_HEADER])
            since = claim.waits_since or claim.started_at
            late = max(0.0, (since - tick).total_seconds() + waited)
        except (KeyError, ValueError, TypeError):  # another program's SQL wrote the headers
            return
        counts = self._lateness[schedule]
        counts.by_seconds[bisect_left(BOUNDS, late)] += 1
        counts.seconds += late

    def _tried(self, result: ClaimResult, seconds: float) -> ClaimCounts:
        counts = self._claims[result]
        counts.claims += 1
        counts.seconds += seconds
        counts.by_seconds[bisect_left(BOUNDS, seconds)] += 1
        return counts


_FAILURES = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED})
_TIMEOUTS = frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in (TimeoutError, TaskTimeout))


def _timed_out(outcome: Outcome, timing: Timing) -> bool:
    """Return whether the attempt failed because `TaskContext.checkpoint` or the worker enforced the task's timeout."""
    limit = outcome.claim.timeout_seconds
    _, ran = timing
    late = ran is not None and limit is not None and ran > limit
    return late and outcome.event_type in _FAILURES and outcome.data.get("exception") in _TIMEOUTS
