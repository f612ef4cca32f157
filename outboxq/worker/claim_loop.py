"""The claim loop decides how many tasks to claim, passes the claims to the handlers, and waits for more work."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from ..errors import NotPermitted
from ..model import SUSPECT, Claim
from ..model.wording import plural
from ..model.workers import Orders, WorkerOrder, WorkerState
from ..store import ClaimCursor, Store
from ..store.failure_log import FailureLog, say
from ..task import TaskRegistry
from .completer import Completer, releasing
from .distributor import WorkDistributor
from .executor import STOPPED, context_of, released
from .failpoints import Failpoint
from .leases import ActiveClaim, Leases
from .options import Isolation, WorkerSettings
from .thread_pool import HandlerPool
from .upkeep.unknown_tasks import UnknownTasks
from .work_failures import CLAIM, WorkFailures

log = logging.getLogger("outboxq.worker")

_SUSPECT_MIN_DELAY, _SUSPECT_MAX_DELAY = timedelta(milliseconds=25), timedelta(seconds=60)
"""The shortest and the longest interval between the due times of released suspects. Within these limits, the interval
equals the time for which the current suspect has been running.
"""
_SATURATED_AFTER = 0.05
"""Seconds without an idle handler after which the worker does not need to be notified of tasks."""
_STUCK_AFTER = 1.0
"""If no handler has ended for this many seconds, the claims that wait for a handler are released."""
_LONGEST_PAUSE = 2.0
"""The longest pause between two claims, in seconds, while claims fail."""
_WAITING_BYTES = 16 * 2**20
"""The maximum total size, in bytes, of the arguments of tasks that wait for handlers. Without this limit, 1,000 tasks
with the largest arguments could wait, and would take up 256 MB.
"""
_YIELD = 0.0001
_CHECK_EVERY = 0.1
_RECOVERED_PER_HANDLER = 16
"""The maximum number of recovered tasks that may wait for each handler. If this worker dies too, all of these tasks
become suspects. But a low number makes claims small: with a limit of 2, a surviving worker ran recovered tasks at a
quarter of the rate of fresh tasks; with a limit of 16, at two thirds of that rate.
"""


@dataclass(eq=False, repr=False)
class ClaimLoop(threading.Thread):
    """Claims a task for each idle handler, and a few more. Waits on the distributor when no task can be claimed."""

    store: Store
    tasks: TaskRegistry
    settings: WorkerSettings
    leases: Leases
    pool: HandlerPool[ActiveClaim]
    completer: Completer
    distributor: WorkDistributor
    unknown: UnknownTasks
    worker_id: UUID
    cursor: ClaimCursor
    stopping: threading.Event
    on_finished: Callable[[], None]
    """A function that is called when the worker has finished its burst or its `max_tasks`."""
    on_thread_failure: Callable[[BaseException], None]
    burst: bool = False
    failures: WorkFailures = field(default_factory=WorkFailures)
    is_quiet: bool = False
    """True while an order keeps the worker from claiming tasks and no claim is in progress."""
    on_quiet: Callable[[], None] = lambda: None
    """A function that is called when `is_quiet` has changed."""

    def __post_init__(self) -> None:
        super().__init__(name="outboxq-claim-loop", daemon=True)
        self._quiet_order = threading.Event()
        self._tasks_left: float = math.inf if self.settings.max_tasks is None else self.settings.max_tasks
        self._handled, self._handled_at = -1, 0.0
        """The pool's count of ended handlers after its last change, and the time of that change (`time.monotonic()`).
        """
        self._suspects = _Suspects(self.leases)
        self._failed = 0
        """The number of claims that have failed in a row."""
        self.denied: str | None = None
        """A sentence that names the privilege that the worker's role lacks. None if no claim fails for lack of a
        privilege.
        """
        self._found_recovered = False
        """True if the last claim that was not empty contained a recovered task. In that case, only a few tasks may wait
        for a handler: if this worker died, each of them would needlessly become a suspect.
        """
        self._bytes_each = float(2**18)
        """The mean size of the arguments in the last claim. Before the first claim, the value is the largest accepted
        size.
        """

    def expect_recovered(self) -> None:
        """Make the next claim small, so that none of the recovered tasks that it finds has to be released."""
        self._found_recovered = True

    def be_quiet(self) -> None:
        """Claim nothing until `resume`."""
        self._quiet_order.set()
        self.distributor.wake()

    def resume(self) -> None:
        """Claim tasks again after `be_quiet`."""
        self._quiet_order.clear()

    def run(self) -> None:
        try:
            while self._claim_until_over():
                if self._wait_for_last_tasks():
                    self.on_finished()
                    break
        except BaseException as error:
            self.on_thread_failure(error)
            raise

    def _claim_until_over(self) -> bool:
        """Claim until the worker stops or has finished its `max_tasks` or its burst.

        If the SQLite file is unusable, calls `on_thread_failure` and returns False.
        """
        failing = FailureLog(log)
        while not self.stopping.is_set() and self._tasks_left != 0:
            try:
                over = self._claim_once()
                if self._failed:
                    self._failed, self.denied = 0, None
                    failing.worked("claiming works again")
                    self.failures.worked(CLAIM)
                if over:
                    break
            except Exception as error:  # noqa: BLE001 - whatever the error is, the worker continues
                if (unusable := self.store.unusable(error)) is not None:
                    self.on_thread_failure(unusable)
                    return False
                self._failed += 1
                self.denied = str(error) if isinstance(error, NotPermitted) else None
                failing.failed("claiming failed; no task was started", error)
                self.failures.failed(CLAIM, error)
                pause = min(0.1 * 2 ** min(self._failed, 10), _LONGEST_PAUSE)  # 2**1024 is too large for a float
                self.stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
        return True

    def _wait_for_last_tasks(self) -> bool:
        """Wait for the claimed tasks if the worker has claimed its `max_tasks`. Returns False if waiting tasks were
        released because the running handlers are slow, so that other tasks can be claimed instead.
        """
        while self._tasks_left == 0 and not self.stopping.is_set():
            self.distributor.at_work(saturated=True)  # this worker takes no more tasks, so it calls others
            if self.pool.wait_until_at_most(0, _STUCK_AFTER):
                return True
            self._release_stalled_prefetch()
            if self._tasks_left:
                return False
        return True

    def _claim_once(self) -> bool:
        """Claim once, start the claimed tasks, and wait if no more tasks can be claimed. Returns whether a burst is
        over.
        """
        limit = self._wait_for_capacity()
        if self._quiet_order.is_set():
            self._wait_quietly()
            return False
        if limit < 1:
            return False
        # If no handler is running and every outcome is written, a claim finds every task that exists.
        idle = self.burst and self.pool.in_flight == 0 and self.completer.flush(_LONGEST_PAUSE)
        idle = idle and not self.completer.has_locked
        if idle:
            self.cursor.floors.expect()
        self.leases.on_failpoint(Failpoint.BEFORE_CLAIM)
        sent = time.monotonic()
        claims = self._claim(limit, sent)
        self.leases.on_failpoint(Failpoint.AFTER_CLAIM)
        if self.leases.broke_at > -math.inf:  # the server may have crashed and lost claims
            claims = self.leases.not_held(claims, sent=sent)
        if self.stopping.is_set():  # the threads may already have ended
            self._release(claims)
            return False
        if claims:
            self._dispatch(claims, sent)
            self.distributor.at_work(full=len(claims) == limit)
        elif idle and not self._suspects.are_to_come():
            return True
        if len(claims) < limit:
            self._wait_for_work()
        return False

    def _wait_quietly(self) -> None:
        """Release the tasks that have not begun, and wait until the quiet order is withdrawn or the worker stops."""
        self._give_back(self.pool.cancel_queued(), "its worker was told to be quiet")
        self.is_quiet = True
        self.on_quiet()
        try:
            while self._quiet_order.is_set() and not self.stopping.wait(_CHECK_EVERY):
                self.distributor.at_work(saturated=True)  # this worker takes no tasks, so it calls others
        finally:
            self.is_quiet = False
            self.on_quiet()

    def _claim(self, limit: int, sent: float) -> list[Claim]:
        try:
            claims = self.store.claim_ready_task(
                limit,
                worker_id=self.worker_id,
                queues=self.settings.queues,
                topics=self.settings.topics,
                says_begin=True,
                cursor=self.cursor,
            )
        except Exception:
            self.leases.meter.claim_failed(time.monotonic() - sent)
            raise
        self.leases.meter.claimed(len(claims), time.monotonic() - sent)
        return claims

    def _wait_for_capacity(self) -> int:
        """Wait until a claim is worthwhile. Returns the number of tasks to claim; 0 if the worker is stopping."""
        pool = self.pool
        self._release_stalled_prefetch()
        if not pool.wait_until_at_most(pool.size - 1 + self._prefetch_limit // 2, _SATURATED_AFTER):
            self.distributor.at_work(saturated=True)
            while not pool.wait_until_at_most(pool.size - 1 + self._prefetch_limit // 2, _STUCK_AFTER):
                if self.stopping.is_set() or self._quiet_order.is_set():
                    break
                self.distributor.at_work(saturated=True)
                self._release_stalled_prefetch()
        # Checked last, because an outage may have begun while all handlers were busy.
        while not self.completer.can_write.is_set() and not self.stopping.wait(_CHECK_EVERY):
            pass  # the outcome of a task that ended now would only wait for the database
        if self.stopping.is_set():
            return 0
        return int(min(pool.size + self._prefetch_limit - pool.in_flight, self._tasks_left))

    @property
    def _prefetch_limit(self) -> int:
        """The maximum number of claims that may wait while all handlers are busy."""
        limit = min(self.pool.prefetch_limit, int(_WAITING_BYTES / self._bytes_each))
        return min(limit, _RECOVERED_PER_HANDLER * self.pool.size) if self._found_recovered else limit

    def _release_stalled_prefetch(self) -> None:
        """Release the waiting tasks if no handler has ended for a second, because other workers may be idle. The number
        of waiting tasks was based on the handlers' recent pace.
        """
        now, pool = time.monotonic(), self.pool
        if not pool.queued or pool.handled != self._handled or pool.prefetch is not None:
            self._handled, self._handled_at = pool.handled, now
        elif now - self._handled_at >= _STUCK_AFTER:
            pool.reset_pace(_STUCK_AFTER)
            self._give_back(pool.cancel_queued(), "the handlers ahead of it are slow")

    def keep_tasks(self) -> None:
        """If child processes are about to be forked, ignore tasks that are declared later, because the children would
        not know them.
        """
        if self.settings.isolation is Isolation.PROCESS:
            self.tasks = self.tasks.snapshot()

    def _dispatch(self, claims: Sequence[Claim], sent: float) -> None:
        """Hold the claims, and pass them to the handlers. Pass on suspects one at a time, and release unknown tasks."""
        tasks, stopping, keeps_log = self.tasks, self.stopping, self.settings.handler_log
        self._bytes_each = max(1.0, sum(len(claim.args) for claim in claims) / len(claims))
        known, strangers = [], []  # decided once, because a task may be declared in the meantime
        for claim in claims:
            if claim.task_name in tasks:
                known.append(context_of(claim, tasks.get(claim.task_name), stopping, keeps_log=keeps_log))
            else:
                strangers.append(claim)
        self._tasks_left -= len(known)
        self._suspects.have_come(claims)
        most_with_recovered = (1 + _RECOVERED_PER_HANDLER) * self.pool.size
        suspects, too_many = [], []
        for active in self.leases.hold(known, sent=sent):
            if active.claim.recovery_attempts >= SUSPECT:
                suspects.append(active)
            elif active.claim.recovery_attempts and self.pool.in_flight >= most_with_recovered:
                too_many.append(active)
            else:
                self.pool.submit(active)
        if len(known) <= self.pool.size:
            # Without this, the woken threads would get Python's lock only when this thread waits for the database.
            self.stopping.wait(_YIELD)
        self.leases.beat_moved.set()
        if strangers:
            self._release_unknown(strangers)
        self._found_recovered = any(claim.recovery_attempts for claim in claims)
        self._give_back(too_many, "its last worker died, so it must not wait for a busy handler")
        if suspects:
            self._start_suspect(suspects)

    def _start_suspect(self, suspects: Sequence[ActiveClaim]) -> None:
        """Start one suspect, unless one is already running in this process, and release the others."""
        first, others = self._suspects.in_turn(suspects)
        for active, delay in others:
            self._give_back([active], "another task whose workers have died is running in this process", delay=delay)
        if self.burst and others:
            self._suspects.expect(others)
        if first is not None:
            self.pool.submit(first)  # last, because a suspect waits for earlier outcomes (`task_runner.py`)

    def _wait_for_work(self) -> None:
        """Wait until more tasks may be available to claim. A burst waits only for the worker's own tasks and for the
        tasks that they enqueue.
        """
        if self.burst:
            while not self.pool.wait_until_at_most(0, _STUCK_AFTER) and not self.stopping.is_set():
                pass  # check again: the job of a dead thread never ends, and the last wake may have come earlier
            self.completer.flush()
            if self._suspects.are_to_come():
                self.stopping.wait(_SUSPECT_MIN_DELAY.total_seconds())
            return
        self.leases.on_failpoint(Failpoint.BEFORE_SLEEP)
        self.distributor.wait_for_work(_STUCK_AFTER if self.pool.queued else None)
        self.leases.on_failpoint(Failpoint.AFTER_SLEEP)

    def _give_back(self, claims: Sequence[ActiveClaim], reason: str, *, delay: timedelta = timedelta(0)) -> None:
        """Release claims whose handlers have not begun. These claims do not count toward `max_tasks`."""
        self._tasks_left += len(claims)
        if claims:
            self.completer.give_back(claims, reason, delay=delay)

    def _release(self, claims: Sequence[Claim]) -> None:
        """Release the tasks that were claimed while the worker was being told to stop."""
        if claims:
            outcomes = [released(claim, STOPPED) for claim in claims]
            with releasing(outcomes, self.leases.on_failpoint):
                lost = self.store.finish(outcomes)
                self.leases.meter.ended([outcome for outcome in outcomes if outcome.claim.id not in lost])

    def _release_unknown(self, claims: Sequence[Claim]) -> None:
        try:
            for outcome in self.unknown.outcomes(claims):
                self.completer.put(outcome)
        except Exception as error:  # noqa: BLE001
            what = f"could not release {len(claims)} unknown {plural(len(claims), 'task; its lease', 'tasks; their leases')} will expire"
            say(log, logging.ERROR, what, error)


class _Suspects:
    """Starts suspects one at a time in this process, and decides when the others are due again.

    A suspect is a task that has been recovered from dead workers at least twice in a row, so it may have caused their
    deaths. If one process ran two suspects and one of them killed the process, the other would also come closer to the
    recovery limit. Other tasks may run alongside a suspect.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._last: Claim | None = None
        """The suspect that was last started in this process, and the time of its start (`time.monotonic()`)."""
        self._started_at = 0.0
        self._to_come: set[UUID] = set()
        """The suspects that a burst has released and expects to claim again, unless another worker claims them first.
        """
        self._last_due = 0.0
        """The approximate time at which the last of these suspects is due (`time.monotonic()`)."""

    def in_turn(
        self, suspects: Sequence[ActiveClaim]
    ) -> tuple[ActiveClaim | None, list[tuple[ActiveClaim, timedelta]]]:
        """Return the suspect to start now (None if one is already running), and the others with their delays."""
        now, first = time.monotonic(), None
        if self._last is None or not self._leases.holds(self._last):
            first, *suspects = suspects
            self._last, self._started_at = first.claim, now
        apart = min(max(timedelta(seconds=now - self._started_at), _SUSPECT_MIN_DELAY), _SUSPECT_MAX_DELAY)
        return first, [(one, min(place * apart, _SUSPECT_MAX_DELAY)) for place, one in enumerate(suspects, start=1)]

    def expect(self, suspects: Sequence[tuple[ActiveClaim, timedelta]]) -> None:
        """Expect these suspects to become due again after the delays with which they were released."""
        self._to_come.update(active.claim.id for active, _ in suspects)
        self._last_due = time.monotonic() + suspects[-1][1].total_seconds()

    def have_come(self, claims: Sequence[Claim]) -> None:
        """Stop expecting the tasks of these claims."""
        if self._to_come:
            self._to_come.difference_update(claim.id for claim in claims)

    def are_to_come(self) -> bool:
        """Return whether a suspect is still expected."""
        return bool(self._to_come) and time.monotonic() < self._last_due + _LONGEST_PAUSE


@dataclass(eq=False, repr=False)
class ObeyedOrders:
    """Obeys the orders given to this worker, and remembers the latest one."""

    claim_loop: ClaimLoop
    request_stop: Callable[[], None]
    _obeyed: WorkerOrder | None = None

    def obey(self, orders: Orders) -> None:
        """Become quiet, stop, or claim tasks again, as ordered. A stop cannot be undone."""
        if orders.asked_to is self._obeyed or self._obeyed is WorkerOrder.STOP:
            return
        self._obeyed = orders.asked_to
        if self._obeyed is None:
            log.info("told to claim tasks again")
            self.claim_loop.resume()
            return
        self.claim_loop.be_quiet()
        if self._obeyed is WorkerOrder.STOP:
            log.info("told to stop by an order; letting running tasks finish")
            self.request_stop()
        else:
            log.info("told to be quiet; claiming no more tasks, and letting running tasks finish")

    def state(self) -> WorkerState | None:
        """Return the state that the worker has reached."""
        if self._obeyed is WorkerOrder.STOP:
            return WorkerState.STOPPING
        return WorkerState.QUIET if self.claim_loop.is_quiet else None
