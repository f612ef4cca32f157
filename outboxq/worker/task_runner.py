"""Runs one claim in a handler thread, from its start to its outcome."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..context import TaskContext, UnitOfWork
from ..errors import LeaseLost
from ..integration import Integration
from ..integration.hooks import HookCalls
from ..model import SUSPECT, EventType, Outcome, TimeoutAction
from ..model.records import LOST, OUTCOMES, fields_of
from ..store import Store
from ..store.failure_log import exception_field, say
from ..store.transactions import patience
from ..task import Task, TaskRegistry
from .completer import Completer
from .deadline import run_with_timeout
from .executor import execute, failed, released, with_notes
from .failpoints import Failpoint, OnFailpoint
from .handler_log import KeeperPlace
from .interruptions import FAILURES, interrupting_error, outcome_of_interruption
from .leases import ActiveClaim, ClaimState, Leases
from .log_lines import EndLog
from .meter import Meter
from .steps import Steps, hold_until
from .timeouts import TimeLimit, Timeouts

log = logging.getLogger("outboxq.worker")

_LOST_BEFORE = "%s: its lease was lost before it began"
_RETRY_AFTER = timedelta(seconds=1)
_ASK, _COMMITTED, _HANDED_OVER = TimeoutAction.ASK, ClaimState.COMMITTED, ClaimState.HANDED_OVER
_BEFORE_START, _AFTER_HANDLER = Failpoint.BEFORE_START, Failpoint.AFTER_HANDLER
"""Members that each task needs, named once: Python 3.11 takes 0.1 us to look one up in its class
(`python -m timeit -s "from outboxq.model import EventType" EventType.FAILED`).
"""
_VERIFYING = 5.0
"""Seconds for which a claim waits for a database that is away before it is given back: a stop must not wait for it."""
_HOOK_TIMEOUT = 1.0
"""Seconds for which hooks may delay the end of a process with a handler that does not end."""


@dataclass(kw_only=True, eq=False, repr=False)
class TaskRunner:
    """Runs claims, and passes their outcomes on to the completer."""

    store: Store
    """The application's: transactional tasks write on its connections."""
    own: Store
    """The worker's, for what must not wait until a handler gives one of those back."""
    tasks: TaskRegistry
    leases: Leases
    completer: Completer
    integration: Integration
    on_failpoint: OnFailpoint
    hooks: HookCalls | None = None
    ends: EndLog = field(default_factory=EndLog)
    keeper: KeeperPlace | None = None
    """Keeps what handlers log. None: it is not kept."""
    meter: Meter = field(default_factory=Meter)
    """Counts the ends that the completer does not write."""
    timeouts: Timeouts | None = None
    """Enforces the timeouts of tasks that ask for it. None: nothing does."""
    grace: timedelta | None = timedelta(seconds=30)
    """The time between a timeout and the end of an attempt that goes on all the same. None: this process ends no such attempt."""
    on_kill: Callable[[ActiveClaim, int], object] = lambda _active, _thread: None
    """Called with an attempt that was ended although its handler still runs, and with the ident of that thread."""

    def __post_init__(self) -> None:
        self.steps = Steps(
            store=self.store,
            own=self.own,
            integration=self.integration,
            leases=self.leases,
            on_failpoint=self.on_failpoint,
            hold_until=self._hold_until,
        )

    def run(self, active: ActiveClaim) -> None:
        """Run one claim. Unless the completer gets its outcome, the claim is dropped here: else heartbeats would keep it for ever.

        A thread that dies drops nothing: the worker then gives back what it had.
        """
        try:
            self.on_failpoint(_BEFORE_START)
            if self._may_begin(active):
                if self.hooks is None:
                    self._attempt(active)
                else:
                    with self.hooks.handling(active.context):
                        self._attempt(active)
        except Exception:
            self._drop_unless_handed_over(active)
            raise
        finally:
            active.context.error = None  # its traceback holds the handler's frames, and those the context
        self._drop_unless_handed_over(active)

    def _drop_unless_handed_over(self, active: ActiveClaim) -> None:
        """Drop a claim that has no outcome. The task is given back if this worker has claimed it again meanwhile: nothing else would
        end that claim.
        """
        if active.state is _HANDED_OVER:
            return
        self.leases.drop(active.claim)
        if active.claimed_again_at > -math.inf and active.state is not _COMMITTED:
            self.completer.put(released(active.claim, "its lease was lost, and claimed again"))

    def _may_begin(self, active: ActiveClaim) -> bool:
        """Return whether the handler may be called. A claim that may not is given back, unless its lease is lost."""
        claim, context = active.claim, active.context
        if context.was_lost:
            log.warning(_LOST_BEFORE, claim, extra=fields_of(claim, outcome=LOST))
            self.meter.lost(claim)
            return False
        if context.lost:  # the database has not answered for so long; it decides whether this counts
            self.completer.put(released(claim, "its lease ended before it began"), active)
            return False
        if self.leases.broke_at > active.sent and not self._still_holds(active):
            return False
        return claim.recovery_attempts < SUSPECT or self._record_start(active)

    def _still_holds(self, active: ActiveClaim) -> bool:
        """Return whether the claim is still there after a connection was lost: claims are not flushed, so a crash takes them back."""

        def ask() -> object:
            with patience(_VERIFYING):
                return self.own.heartbeat([active.claim])

        unknown = "whether its claim outlived the loss of a connection is not known"
        return self._asked_if_it_holds(active, ask, trouble=unknown, reason="its claim could not be verified")

    def _record_start(self, active: ActiveClaim) -> bool:
        """Record that a suspect begins, so that it counts if this process dies now. Returns whether it may begin."""
        unrecorded = "its start could not be recorded"
        return self._asked_if_it_holds(
            active, lambda: self.completer.begin(active.claim), trouble=unrecorded, reason=unrecorded
        )

    def _asked_if_it_holds(self, active: ActiveClaim, ask: Callable[[], object], *, trouble: str, reason: str) -> bool:
        """Return whether the database says that the claim holds. If it does not answer, the claim is given back.

        The log then tells of the `trouble`, and the event has the `reason`.
        """
        claim = active.claim
        try:
            if ask():
                return True
            log.warning(_LOST_BEFORE, claim, extra=fields_of(claim, outcome=LOST))
            self._count_lost(active)
        except Exception as error:  # noqa: BLE001 - whatever it was, another try may come through
            fields = fields_of(claim, outcome=OUTCOMES[EventType.RELEASED])
            say(log, logging.ERROR, f"{claim}: {trouble}; it is given back", error, fields=fields)
            self.completer.put(released(claim, reason, delay=_RETRY_AFTER), active)
        return False

    def _attempt(self, active: ActiveClaim) -> None:
        """Run the task inside the work of the application's framework, and pass its outcome on.

        What the framework raises after the handler changes nothing. No outcome is passed on if the task's own transaction has
        committed it, or if the lease is lost.
        """
        claim, context, outcome, has_run = active.claim, active.context, None, False
        late_error: Exception | None = None
        task, began = self.tasks.get(claim.task_name), time.monotonic()
        context.step_runner = self.steps
        if (keeper := self.keeper) is not None and keeper.root.handlers != keeper.seen:
            keeper.take()  # logging may have been configured since the last task
        limit = None if task.timeout_action is _ASK else self._limit(active, task)
        try:
            with self.integration.around_handler(context):
                outcome = (
                    self._run_in_transaction(active, task, limit)
                    if task.transactional
                    else self._unless_interrupted(context, execute(task, context, limit))
                )
                has_run = True
                if outcome is not None and (limit is None or not limit.was_killed):
                    self._call_after_handler(active, outcome)
        except Exception as error:  # noqa: BLE001 - logged below
            if has_run:
                late_error = error
            else:
                outcome = failed(task, context, error)
        if limit is not None and limit.was_killed:
            log.warning("%s: its handler has ended after all; it counts as failed", claim, extra=fields_of(claim))
            return
        self.on_failpoint(_AFTER_HANDLER)
        seconds = time.monotonic() - began
        if outcome is not None and active.state is not _COMMITTED:
            # Spared for a handler that notes nothing: with it, the calls of a task were 1 % more.
            is_bare = context.handler_log is None and context.reported is None
            self.completer.put(outcome if is_bare else with_notes(outcome, context), active)
        # From here on: what a log handler raises must not cost the outcome.
        self.leases.warn_if_late(active)
        if late_error is not None:
            fields = fields_of(claim, exception=exception_field(late_error))
            log.error(
                "%s: a framework hook around its handler failed after it", claim, exc_info=late_error, extra=fields
            )
        if outcome is None:
            return
        if self.hooks is not None and (active.state is _COMMITTED or not context.was_lost):
            self.hooks.ended(context, outcome, seconds)
        self.ends.write(outcome, context, seconds)

    def _unless_interrupted(self, context: TaskContext, outcome: Outcome) -> Outcome:
        """Return how the claim ends. It has not failed if the handler passed on the error from outside that ended the transaction of
        a step.
        """
        error = context.interruption
        if error is None or context.error is not error or outcome.event_type not in FAILURES:
            return outcome
        return outcome_of_interruption(self.own, context.claim, error) or outcome

    def _call_after_handler(self, active: ActiveClaim, outcome: Outcome) -> None:
        try:
            self.integration.after_handler(active.context, outcome)
        except Exception as error:
            fields = fields_of(active.claim, exception=exception_field(error))
            log.exception("%s: the hook after its handler failed", active.claim, extra=fields)

    def _limit(self, active: ActiveClaim, task: Task[..., Any]) -> TimeLimit | None:
        """Return what enforces the timeout of this attempt; None: the handler is only asked."""
        seconds, action = active.claim.timeout_seconds, task.timeout_action
        if seconds is None or self.timeouts is None:
            return None
        grace = self.grace.total_seconds() if self.grace is not None and action is TimeoutAction.KILL else math.inf
        active.is_limited = True
        limit = TimeLimit(seconds, grace, lambda: self._kill(active, task, limit), self.timeouts)
        active.context.limit = limit
        return limit

    def _kill(self, active: ActiveClaim, task: Task[..., Any], limit: TimeLimit) -> None:
        """End an attempt whose handler does not end. Its thread cannot be ended, so the process has to."""
        context = active.context
        context.ended = time.monotonic()
        seconds = context.ended - (context.began or context.ended)
        if (unit := context.unit) is not None:
            unit.abandon()
        outcome = with_notes(failed(task, context, limit.overrun()), context)
        self.completer.put(outcome, active)
        self._report_kill(self.hooks, outcome, context, seconds)
        self.on_kill(active, limit.thread)

    def _report_kill(self, hooks: HookCalls | None, outcome: Outcome, context: TaskContext, seconds: float) -> None:
        """Report the end of an attempt without its handler: to the hooks, then in the log, both in one thread as after any other end.

        So an error tracker that both reach has one event. Where a hook does not return in time, this thread writes the log line.
        """
        unwritten = threading.Semaphore()

        def write() -> None:
            if unwritten.acquire(blocking=False):
                self.ends.write(outcome, context, seconds)

        def report(hooks: HookCalls) -> None:
            hooks.ended(context, outcome, seconds)
            write()

        if hooks is not None:
            run_with_timeout(_HOOK_TIMEOUT, lambda: report(hooks))
        write()

    def _run_in_transaction(self, active: ActiveClaim, task: Task[..., Any], limit: TimeLimit | None) -> Outcome | None:
        """Run the handler inside one transaction, which its completion joins. Any other outcome rolls it back.

        Returns None if the lease is lost.
        """
        claim, unit, ours = active.claim, None, True
        rolled_back: Outcome | None = None
        interruption: BaseException | None = None
        try:
            with self.integration.unit_of_work(self.store) as unit:
                active.context.unit = unit
                if self.store.dialect.one_writer:
                    self._hold_lease(active, unit)
                self.on_failpoint(Failpoint.TRANSACTION_BEGUN)
                ours = False
                outcome = execute(task, active.context, limit)
                if outcome.event_type is not EventType.COMPLETED or (limit is not None and limit.was_killed):
                    rolled_back, interruption = outcome, interrupting_error(active, outcome, unit)
                    raise _RolledBack
                unit.flush()
                ours = True
                self._ending(active)
                if self._is_void(active.context) or self.store.finish([outcome], using=unit.target):
                    raise LeaseLost(f"{claim}: its lease was lost, so what it wrote is rolled back")
                self.on_failpoint(Failpoint.BEFORE_COMMIT)
            active.state = _COMMITTED
            self.on_failpoint(Failpoint.AFTER_COMMIT)
            self.meter.ended([outcome], [active.timing])
            self.completer.notify_unblocked([claim])
            return outcome
        except LeaseLost as lost:
            log.warning("%s, and its outcome is discarded", lost, extra=fields_of(claim, outcome=LOST))
            self._count_lost(active)
        except Exception as error:  # noqa: BLE001 - `_outcome_of_failed_transaction` decides
            if rolled_back is None:
                return self._outcome_of_failed_transaction(active, task, error, unit, ours=ours)
            # Also where its connection was lost before the rollback.
            if interruption is not None and (given_back := self._outcome_of_interruption(active, interruption)):
                return given_back
            return rolled_back
        return None

    def _outcome_of_failed_transaction(
        self, active: ActiveClaim, task: Task[..., Any], error: Exception, unit: UnitOfWork | None, *, ours: bool
    ) -> Outcome:
        """Return how a claim ends whose transaction could not begin, or whose completion could not be committed: a constraint
        that is checked at commit, a lost connection.

        `ours`: the error came from what we write around the handler. An error from what the handler's session still held
        back, such as a row that waited for a lock in vain, counts as it would inside the handler.
        """
        passes = self.store.may_pass(error) or self.store.cannot_write_now(error)
        if unit is None and passes:  # the handler was not called: no attempt is used
            return released(active.claim, "no transaction could be begun", delay=_RETRY_AFTER)
        interrupted = (ours and passes) or (unit is not None and unit.was_interrupted(error))
        if interrupted and (outcome := self._outcome_of_interruption(active, error)):
            return outcome
        return failed(task, active.context, error)

    def _outcome_of_interruption(self, active: ActiveClaim, error: BaseException) -> Outcome | None:
        """Return how a claim ends whose transaction an error from outside ended. None: it counts as a failed attempt."""
        self._ending(active)  # the database may have to come back first
        return outcome_of_interruption(self.own, active.claim, error)

    def _ending(self, active: ActiveClaim) -> None:
        """Note that the claim is about to end: a lost lease is no news from now on."""
        active.state = ClaimState.ENDING

    def _is_void(self, context: TaskContext) -> bool:
        return self.leases.is_void(context)

    def _hold_until(self, context: TaskContext, deadline: float) -> None:
        hold_until(context, deadline)

    def _count_lost(self, active: ActiveClaim) -> None:
        """Count an attempt that ends here because its lease was lost."""
        self.leases.mark_lost(active.claim)
        self.meter.lost(active.claim, active.timing)

    def _hold_lease(self, active: ActiveClaim, unit: UnitOfWork) -> None:
        """Keep the lease until the transaction ends: it has the only lock there is, so a lease that is ours now stays ours.

        Raises LeaseLost if another worker took it while we waited for the lock.
        """
        claim, context = active.claim, active.context
        if context.lost and not self.store.heartbeat([claim], using=unit.target):
            raise LeaseLost(_LOST_BEFORE % claim)
        self._hold_until(context, math.inf)


class _RolledBack(Exception):
    """Rolls the transaction back."""
