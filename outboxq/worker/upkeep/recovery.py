"""Recover the tasks of dead workers, and only those tasks.

An expired lease does not prove that its worker is dead. The worker may be unable to reach the database, may be waiting
for a lock, or may have been paused. A clock may also have been changed. So a worker recovers a task only after it has
twice found the task's lease unchanged. Between the two checks, this worker must have written to the database, and a
live worker must have had enough time for its heartbeat. (A worker repeats a failed heartbeat every half second.)
Anything that prevents this worker from checking or writing restarts the watch.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from ...model import TaskStatus
from ...model.records import LOST
from ...store import Lease, LeaseLook, Recovered, Store
from ...store.failure_log import say
from ..failpoints import Failpoint
from ..leases import Leases

log = logging.getLogger("outboxq.worker")

RECOVERY_BATCH = 500
_WATCH_SECONDS = 2.0
"""The longest time between the two checks, in seconds. After a restart of the watch, this time is twice the interval
between regular checks. With a check every five seconds, the task of a dead worker is recovered within ten seconds after
its lease expires.
"""
_STALL = 2.0
"""Seconds by which a check may be late. After a longer delay, this process is considered to have been paused."""
_LOCK_TIMEOUT = timedelta(seconds=1)
"""The longest time for which a recovery waits for SQLite's only lock. If the wait takes longer, no task is recovered,
because heartbeats had to wait too.
"""
_BROKEN_PAUSE = 60.0
"""Seconds for which a task that cannot be recovered is left alone."""
_CLOCK_STEP = 1.0
"""Seconds by which the database's clock must move relative to this process's clock to count as changed."""


@dataclass(eq=False, repr=False)
class Recovery:
    """Recovers the tasks of workers that died. Every worker does this, without a registry or a leader."""

    store: Store
    leases: Leases
    """The leases held by this process. The process never recovers the tasks of its own leases."""
    every: timedelta
    prove_writable: Callable[[], object]
    """A function that writes, and raises an error if the database does not accept writes."""
    on_recovery: Callable[[], object]
    """A function that is called before tasks are recovered."""

    def __post_init__(self) -> None:
        self._every = self.every.total_seconds()
        self._watched: dict[Lease, float] = {}
        """Expired leases, and the time since which each has been watched (`time.monotonic()`)."""
        self._real_ends: dict[Lease, float] = {}
        """Leases whose stored expiry times are too late, because a clock was running fast, and the times at which they
        actually expire (`time.monotonic()`).
        """
        self._has_corrected = False
        """True after this process has corrected the rows that were written before its start, while a clock was running
        fast.
        """
        self._broken: dict[Lease, float] = {}
        """Leases whose tasks cannot be recovered, and the times at which recovery will be tried again
        (`time.monotonic()`).
        """
        self._watch = min(_WATCH_SECONDS, self._every)
        self._looked_at: float | None = None
        self._pause = 0.0
        self._clock_offset: float | None = None
        """Seconds by which the database's clock is ahead of `time.monotonic()`."""

    def run_once(self) -> int:
        """Check once, and recover a batch of the tasks that have been watched for long enough. Returns the number of
        recovered tasks.
        """
        self.store.check_file()
        try:
            return self._look()
        except Exception:
            self._restart_watch()
            raise

    def pause(self) -> float:
        """Return the number of seconds until the next check. The number varies, so that workers that started together
        do not check at the same time.
        """
        self._pause = self._every * random.uniform(0.5, 1.0)  # noqa: S311
        if self._watched:
            ripe = min(self._watched.values()) + self._watch - time.monotonic()
            self._pause = min(self._pause, max(0.0, ripe))
        return self._pause

    def _look(self) -> int:
        self.leases.on_failpoint(Failpoint.BEFORE_RECOVERY)
        began = time.monotonic()
        if self._looked_at is not None and began - self._looked_at > self._pause + _STALL:
            self._restart_watch()
        look = self.store.expired_leases()
        self._looked_at = time.monotonic()
        if (took := self._looked_at - began) > _STALL:
            self._restart_watch()
        if self.store.clock is None:
            self._check_clock(look.now, took)
        if not self._has_corrected:
            self._correct_for_clock()
        expired = [lease for lease in self._expired(look) if not self.leases.holds(lease)]
        new = [lease for lease in expired if lease not in self._watched]
        if new:
            self.prove_writable()
        now = time.monotonic()
        self._watched = {lease: self._watched.get(lease, now) for lease in expired}
        ripe = [lease for lease, since in self._watched.items() if since + self._watch <= now]
        if not ripe:
            if not expired:
                self._watch = min(_WATCH_SECONDS, self._every)
            return 0
        taken = self._recover_batch(ripe[:RECOVERY_BATCH])
        self._watch = min(_WATCH_SECONDS, self._every)  # live workers have had enough time since the restart
        self._looked_at = time.monotonic()
        return taken

    def _recover_batch(self, ripe: Sequence[Lease]) -> int:
        self.on_recovery()
        found = self._recover(ripe)
        self.leases.on_failpoint(Failpoint.AFTER_RECOVERY)
        now, taken = time.monotonic(), {one.id for one in found}
        for lease in ripe:
            self._real_ends.pop(lease, None)
            if lease.id in taken:
                del self._watched[lease]
            else:
                self._watched[lease] = now  # the lease was locked or extended, or SQLite's lock was acquired too late
        self.leases.meter.recovered(one.queue for one in found)
        workers = {lease.id: lease.worker_id for lease in ripe}
        for one in found:
            _log_recovered(one, workers[one.id])
        return len(found)

    def _recover(self, leases: Sequence[Lease]) -> list[Recovered]:
        """Recover the tasks together. If the database refuses this, recover the tasks one by one, so that a broken row
        affects only its own task.
        """
        try:
            return self.store.recover(len(leases), leases=leases, patience=_LOCK_TIMEOUT)
        except Exception as error:
            if self.store.may_pass(error) or self.store.cannot_write_now(error):
                raise
            if len(leases) == 1:
                what = f"task {leases[0].id} cannot be recovered; run: outboxq verify --repair"
                fields = {"task_id": str(leases[0].id), "worker": str(leases[0].worker_id)}
                say(log, logging.ERROR, what, error, fields=fields)
                self._broken[leases[0]] = time.monotonic() + _BROKEN_PAUSE
                return []
        return [one for lease in leases for one in self._recover([lease])]

    def _expired(self, look: LeaseLook) -> list[Lease]:
        now = time.monotonic()
        known = {lease.id for lease in look.leases}
        ended = [lease for lease, end in self._real_ends.items() if end < now and lease.id not in known]
        self._broken = {lease: until for lease, until in self._broken.items() if until > now}
        return [lease for lease in (*look.leases, *ended) if lease not in self._broken]

    def _restart_watch(self) -> None:
        """Start watching all leases again, because live workers may have been unable to send heartbeats."""
        self._watched.clear()
        self._watch = 2 * self._every
        self._looked_at = None

    def _check_clock(self, now: datetime, took: float) -> None:
        """Check whether the database's clock was changed. If so, correct leases and due times."""
        ahead = now.timestamp() - time.monotonic()
        by = 0.0 if self._clock_offset is None else ahead - self._clock_offset
        if abs(by) > _CLOCK_STEP + took:
            log.warning("the database's clock jumped by %+.0f s; leases are extended immediately", by)
            self._restart_watch()
            self.leases.beat_at_once()
            if by < 0:
                self._correct_for_clock(timedelta(seconds=-by))
        self._clock_offset = ahead

    def _correct_for_clock(self, back: timedelta | None = None) -> None:
        """Record the actual expiry of leases whose stored expiry times are now too late. Make tasks due if their due
        times were set while the clock was running fast.

        If `back` is None, it is unknown how far the clock was set back, because that happened before this process
        began. A lease then expires after the duration that its task declares, unless a heartbeat extends it.
        """
        look, moment = self.store.outlasting_leases(), time.monotonic()
        for lease, lasts in look.leases.items():
            left = lasts if back is None else lease.lease_expires_at - back - look.now
            self._real_ends[lease] = moment + min(left, lasts).total_seconds()
        if moved := self.store.due_again(None if back is None else look.now + back):
            log.warning(
                "%d tasks had due times from a clock that was running fast; they now follow the current clock", moved
            )
        self._has_corrected = True


def _log_recovered(task: Recovered, worker_id: UUID) -> None:
    """Log the new status of the task. The record's `worker` is the worker that died."""
    level = logging.ERROR if task.status is TaskStatus.FAILED else logging.WARNING
    fields = {
        "task_id": str(task.id),
        "task": task.task_name,
        "queue": task.queue,
        "attempt": task.attempt,
        "worker": str(worker_id),
        "pipeline_id": str(task.pipeline_execution_id),
        "outcome": LOST,
    }
    text = "task %s lost its worker and is now %s (recovery %d)"
    log.log(level, text, task.id, task.status, task.recovery_attempts, extra=fields)
