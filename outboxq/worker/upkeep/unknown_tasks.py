"""Unknown tasks: a worker releases tasks whose names it does not know, each time with a longer delay, until a worker
that knows them starts.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from ...database.column_types import iso
from ...integration import Integration
from ...model import UNKNOWN_TASK, Claim, EventType, Outcome
from ...model.records import OUTCOMES
from ...model.wording import plural
from ...store import Store, UnknownRun
from ...store.failure_log import say
from ..executor import released

log = logging.getLogger("outboxq.worker")

LOG_EVERY = 60.0
"""Seconds between two log lines about one name."""
_SPREAD = 0.25
"""The fraction by which a delay varies, so that tasks that were released together do not all become due together."""
_MAX_DOUBLINGS = 60
_MAX_NAMES = 1000
"""The maximum number of names to remember, so that a program that keeps using new names cannot fill the memory."""
_RETRY_AFTER, _REPEAT_AFTER = 30.0, 3600.0


@dataclass(eq=False, repr=False)
class UnknownTasks:
    """Determines the outcomes of claims whose task names this process does not know.

    Another worker may know the names, so the tasks are released. After `limit`, the tasks are marked as failed. Each
    consecutive release doubles the delay, from `first_delay` to `longest_delay`, so that a thousand tasks that no
    worker knows do not keep the database busy. If a live worker knows the name, the delay does not grow, because that
    worker is merely busy.
    """

    store: Store
    first_delay: timedelta
    longest_delay: timedelta
    limit: timedelta
    how_to_import: str = Integration.how_to_import
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._longest_seconds = max(self.first_delay, self.longest_delay).total_seconds()
        self.found_new = threading.Event()
        """A `threading.Event` that is set when a claimed task has a name that `recent()` did not contain."""
        self._lock = threading.Lock()
        self._seen_at: dict[tuple[str, str], float] = {}
        """The queue and the name of each task, and the time at which the task was last seen, in chronological order."""
        self._unlogged: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    def outcomes(self, claims: Sequence[Claim]) -> list[Outcome]:
        """Return the outcomes of these claims."""
        self._remember(claims)
        self._log_unknown(claims)
        runs = self._runs([claim for claim in claims if claim.lease_token > 1])  # the other tasks were never released
        return [self._outcome(claim, runs.get(claim.id) or UnknownRun(since=claim.started_at)) for claim in claims]

    def recent(self) -> frozenset[tuple[str, str]]:
        """Return the queue and the name of each task seen recently. The period is long enough for workers to have
        claimed each task that is still waiting.
        """
        with self._lock:
            oldest = self.clock() - max(2 * self._longest_seconds, LOG_EVERY)
            for pair in [pair for pair, moment in self._seen_at.items() if moment < oldest]:
                del self._seen_at[pair]
            return frozenset(self._seen_at)

    def delay(self, times: int) -> timedelta:
        """Return a task's delay after this many consecutive releases."""
        seconds = min(self._longest_seconds, self.first_delay.total_seconds() * 2.0 ** min(times - 1, _MAX_DOUBLINGS))
        return timedelta(seconds=seconds * random.uniform(1 - _SPREAD, 1 + _SPREAD))  # noqa: S311

    def _outcome(self, claim: Claim, run: UnknownRun) -> Outcome:
        if claim.started_at - run.since > self.limit:
            error = f"UnknownTask: no worker that claimed {claim.task_name!r} has registered it"
            failed = {"error": error, "reason": UNKNOWN_TASK}
            return Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=failed)
        times = 1 if run.known_elsewhere else run.times + 1
        return released(claim, UNKNOWN_TASK, delay=self.delay(times), times=times, since=iso(run.since))

    def _runs(self, claims: Sequence[Claim]) -> Mapping[UUID, UnknownRun]:
        try:
            return self.store.unknown_runs(claims) if claims else {}
        except Exception as error:  # noqa: BLE001
            # It is better to release them too early than to keep them until their leases expire, because an expired
            # lease would count as a worker's death.
            what = f"could not look up how often {len(claims)} unknown {plural(len(claims), 'task')} had been released before"
            say(log, logging.ERROR, what, error)
            return {}

    def _remember(self, claims: Sequence[Claim]) -> None:
        pairs = {(claim.queue, claim.task_name) for claim in claims}
        with self._lock:
            new, now = pairs - self._seen_at.keys(), self.clock()
            for pair in pairs:
                self._seen_at.pop(pair, None)
                self._seen_at[pair] = now
            for pair in list(self._seen_at)[:-_MAX_NAMES]:
                del self._seen_at[pair]
        if new:
            self.found_new.set()

    def _log_unknown(self, claims: Sequence[Claim]) -> None:
        """Log at most one line per minute for each name."""
        self._unlogged.update(claim.task_name for claim in claims)
        now = self.clock()
        for name in {claim.task_name for claim in claims}:
            if now - self._logged_at.get(name, float("-inf")) < LOG_EVERY:
                continue
            count = self._unlogged.pop(name)
            log.warning(
                "this worker does not know the task %r and released it (releases since the last such warning: %d); %s, or use a "
                "separate queue for the task",
                name,
                count,
                self.how_to_import,
                extra={"task": name, "outcome": OUTCOMES[EventType.RELEASED]},
            )
            self._logged_at.pop(name, None)
            self._logged_at[name] = now
        for old in list(self._logged_at)[:-_MAX_NAMES]:
            del self._logged_at[old]
            self._unlogged.pop(old, None)


@dataclass(eq=False, repr=False)
class KnownTasks:
    """Ends the delays of tasks that this worker knows and that other workers, which did not know the tasks, have
    released.

    The service ends the delays when the worker starts, so that no task has to wait for a long time after a deployment.
    While a live worker knows the tasks, other workers release them with only the first delay. After the start, the
    service runs once an hour, to catch tasks that were released while the worker was starting.
    """

    store: Store
    task_names: Collection[str]
    queues: Collection[str] | None
    """The worker's queues. None means all queues."""
    topics: Collection[str] | None
    """The worker's topics. None means all topics."""

    def __post_init__(self) -> None:
        self._after, self._pause = 0, 0.0

    def run_once(self) -> None:
        """Check one page of the outbox."""
        self._pause = _RETRY_AFTER  # the pause if the database is down
        following = self.store.make_known_due(
            self.task_names, queues=self.queues, topics=self.topics, after=self._after
        )
        self._after = following or 0
        self._pause = _REPEAT_AFTER * random.uniform(0.5, 1.0) if following is None else 0.0  # noqa: S311

    def pause(self) -> float:
        """Return the number of seconds until the next page of the outbox is checked."""
        return self._pause
