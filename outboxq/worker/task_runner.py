"""Runs each claim from its start to its outcome.

`TaskRunner` is the part that runs in the worker. `HandlerRunner` is the part that runs in the handler's process.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..context import StepRunner, TaskContext, UnitOfWork
from ..errors import LeaseLost
from ..integration import Integration
from ..integration.hooks import HookCalls
from ..model import INTERRUPTED, MAX_INTERRUPTIONS, SUSPECT, Claim, EventType, Outcome, Retry, TimeoutAction
from ..model.records import LOST, OUTCOMES, fields_of
from ..payload.parameters import sanitize
from ..store import Store
from ..store.failure_log import exception_field, say, sentence
from ..store.transactions import patience
from ..task import Task, TaskRegistry
from .executor import execute, failed, released, with_notes
from .failpoints import Failpoint, OnFailpoint
from .handler_log import KeeperPlace
from .leases import ActiveClaim, ClaimState, Leases, LeaseView, Outcomes
from .log_lines import EndLog
from .steps import interrupted
from .timeouts import TimeLimit, Timeouts, run_with_timeout

log = logging.getLogger("outboxq.worker")

_LOST_BEFORE = "%s: its lease was lost before the task started"
_RETRY_AFTER = timedelta(seconds=1)
_ASK, _COMMITTED, _HANDED_OVER = TimeoutAction.ASK, ClaimState.COMMITTED, ClaimState.HANDED_OVER
_BEFORE_START, _AFTER_HANDLER = Failpoint.BEFORE_START, Failpoint.AFTER_HANDLER
"""Enum members that are needed for each task, looked up once, because Python 3.11 takes 0.1 us to look up a member in
its class (`python -m timeit -s "from outboxq.model import EventType" EventType.FAILED`).
"""
_VERIFYING = 5.0
"""Seconds for which a claim waits for a database that is down. After that, the claim is released, so that a stopping
worker does not have to wait for the database.
"""
FIRST_INTERRUPTION_DELAY = timedelta(seconds=1)
"""The delay after the first interruption. The delay doubles each time (1, 2, 4, 8 and 16 s), so a server has half a
minute to come back.
"""
_FAILURES = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED})
"""The events that record a failed attempt."""
_CAUSE_BYTES = 500
_HOOK_TIMEOUT = 1.0
"""Seconds for which hooks may delay the exit of a process with a handler that is not stopping."""


@dataclass(eq=False, repr=False)
class TaskRunner:
    """Checks that each claim is valid, runs its handler, and drops the claim unless its outcome is being written."""

    own: Store
    """The worker's store. Checking whether a claim is valid must not have to wait until a handler returns a connection.
    """
    leases: Leases
    outcomes: Outcomes
    begin: Callable[[Claim], bool]
    """A function that records that a suspect begins, and returns whether the suspect's claim is still valid."""
    attempt: Callable[[ActiveClaim], object]
    """A function that runs the handler of a claim, and passes its outcome on."""

    def run(self, active: ActiveClaim) -> None:
        """Run one claim. If `outcomes` does not get the claim's outcome, drop the claim here, because heartbeats would
        otherwise keep the claim forever.

        A thread that dies does not drop its claim; the worker releases it.
        """
        try:
            self.leases.on_failpoint(_BEFORE_START)
            if self._may_begin(active):
                self.attempt(active)
        except Exception:
            self._drop_unless_handed_over(active)
            raise
        finally:
            active.context.error = None  # its traceback refers to the handler's frames, and these refer to the context
        self._drop_unless_handed_over(active)

    def _drop_unless_handed_over(self, active: ActiveClaim) -> None:
        """Drop a claim without an outcome. If this worker has claimed the task again in the meantime, release the task,
        because the new claim would otherwise never end.
        """
        if active.state is _HANDED_OVER:
            return
        self.leases.drop(active.claim)
        if active.claimed_again_at > -math.inf and active.state is not _COMMITTED:
            self.outcomes.put(released(active.claim, "its lease was lost, and the task was claimed again"), active)

    def _may_begin(self, active: ActiveClaim) -> bool:
        """Return whether the handler may be called. If not, the claim is released, unless its lease is lost."""
        claim, context = active.claim, active.context
        if context.was_lost:
            self._note_lost(active)
            return False
        if context.lost:  # the database has not been responding; it will decide whether the lease is lost
            self.outcomes.put(released(claim, "its lease expired before the task started"), active)
            return False
        if self.leases.broke_at > active.sent and not self._still_holds(active):
            return False
        return claim.recovery_attempts < SUSPECT or self._record_start(active)

    def _still_holds(self, active: ActiveClaim) -> bool:
        """Return whether the claim has survived the loss of a connection. Claims are not flushed to disk, so a server
        crash may undo them.
        """

        def ask() -> object:
            with patience(_VERIFYING):
                return self.own.heartbeat([active.claim])

        unknown = "it is not known whether its claim survived the loss of a connection"
        return self._asked_if_it_holds(active, ask, trouble=unknown, reason="its claim could not be verified")

    def _record_start(self, active: ActiveClaim) -> bool:
        """Record that a suspect begins, so that its recovery is counted if this process dies. Returns whether the
        suspect may begin.
        """
        unrecorded = "its start could not be recorded"
        return self._asked_if_it_holds(active, lambda: self.begin(active.claim), trouble=unrecorded, reason=unrecorded)

    def _asked_if_it_holds(self, active: ActiveClaim, ask: Callable[[], object], *, trouble: str, reason: str) -> bool:
        """Return whether the database confirms that the claim is valid. If the database is not responding, the claim is
        released.

        In that case, the log names the `trouble`, and the event contains the `reason`.
        """
        claim = active.claim
        try:
            if ask():
                return True
            self._note_lost(active)
        except Exception as error:  # noqa: BLE001 - whatever the error is, another attempt may succeed
            fields = fields_of(claim, outcome=OUTCOMES[EventType.RELEASED])
            say(log, logging.ERROR, f"{claim}: {trouble}; the task is released", error, fields=fields)
            self.outcomes.put(released(claim, reason, delay=_RETRY_AFTER), active)
        return False

    def _note_lost(self, active: ActiveClaim) -> None:
        log.warning(_LOST_BEFORE, active.claim, extra=fields_of(active.claim, outcome=LOST))
        self.outcomes.lost(active)


@dataclass(frozen=True, kw_only=True, slots=True)
class Application:
    """The application whose tasks are run."""

    store: Store
    """The application's store. Transactional tasks write through its connections."""
    tasks: TaskRegistry
    integration: Integration
    hooks: HookCalls | None


@dataclass(eq=False, repr=False)
class HandlerRunner:
    """Runs the handlers of claims, in a worker's thread, in a child process or in a test, and passes the outcomes on."""

    application: Application
    own: Store
    """The worker's store, for statements that must not wait until a handler returns one of the application's
    connections.
    """
    steps: StepRunner
    leases: LeaseView
    outcomes: Outcomes
    on_failpoint: OnFailpoint
    ends: EndLog = field(default_factory=EndLog)
    keeper: KeeperPlace | None = None
    """Keeps the lines that handlers log. None if the lines are not kept."""
    timeouts: Timeouts | None = None
    """Enforces the timeouts of tasks whose timeout action requires it. None if timeouts are not enforced."""
    grace: timedelta | None = timedelta(seconds=30)
    """The time between a timeout and the forced end of the attempt. None if this process never ends an attempt by
    force.
    """
    on_kill: Callable[[ActiveClaim, int], object] = lambda _active, _thread: None
    """A function that is called, with the attempt and the ident of the handler's thread, when an attempt has been ended
    even though its handler is still running.
    """

    def __post_init__(self) -> None:
        given = self.application
        self.store, self.tasks, self.integration, self.hooks = given.store, given.tasks, given.integration, given.hooks
        self.attempt = self._attempt if self.hooks is None else self._attempt_within_hooks
        """Runs the handler of a claim that may begin."""

    def _attempt_within_hooks(self, active: ActiveClaim) -> None:
        assert self.hooks is not None
        with self.hooks.handling(active.context):
            self._attempt(active)

    def _attempt(self, active: ActiveClaim) -> None:
        """Run the task inside the framework's context manager, and pass its outcome on.

        An error in the framework's code that runs after the handler does not change the outcome. The outcome is not
        passed on if the task's transaction has committed it, or if the lease is lost.
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
            log.warning(
                "%s: its handler has finished, but too late; the attempt counts as failed",
                claim,
                extra=fields_of(claim),
            )
            limit.wait_for_kill()
            return
        self.on_failpoint(_AFTER_HANDLER)
        seconds = time.monotonic() - began
        if outcome is not None and active.state is not _COMMITTED:
            # Skipped for a handler without notes: this call was 1 % of the function calls for a task.
            is_bare = context.handler_log is None and context.reported is None
            self.outcomes.put(outcome if is_bare else with_notes(outcome, context), active)
        # From here on, an error in a log handler cannot affect the outcome.
        active.warn_if_late()
        if late_error is not None:
            fields = fields_of(claim, exception=exception_field(late_error))
            log.error(
                "%s: an error occurred in the framework's code that runs after the handler",
                claim,
                exc_info=late_error,
                extra=fields,
            )
        if outcome is None:
            return
        if self.hooks is not None and (active.state is _COMMITTED or not context.was_lost):
            self.hooks.ended(context, outcome, seconds)
        self.ends.write(outcome, context, seconds)

    def _unless_interrupted(self, context: TaskContext, outcome: Outcome) -> Outcome:
        """Return the outcome of the claim. The outcome is not a failure if the handler only passed on an external error
        that ended a step's transaction.
        """
        error = context.interruption
        if error is None or context.error is not error or outcome.event_type not in _FAILURES:
            return outcome
        return outcome_of_interruption(self.own, context.claim, error) or outcome

    def _call_after_handler(self, active: ActiveClaim, outcome: Outcome) -> None:
        try:
            self.integration.after_handler(active.context, outcome)
        except Exception as error:
            fields = fields_of(active.claim, exception=exception_field(error))
            log.exception("%s: an error occurred in the hook that runs after the handler", active.claim, extra=fields)

    def _limit(self, active: ActiveClaim, task: Task[..., Any]) -> TimeLimit | None:
        """Return the enforced timeout for this attempt; None if the handler is only asked to stop."""
        seconds, action = active.claim.timeout_seconds, task.timeout_action
        if seconds is None or self.timeouts is None:
            return None
        grace = self.grace.total_seconds() if self.grace is not None and action is TimeoutAction.KILL else math.inf
        active.is_limited = True
        limit = TimeLimit(seconds, grace, lambda: self._kill(active, task, limit), self.timeouts)
        active.context.limit = limit
        return limit

    def _kill(self, active: ActiveClaim, task: Task[..., Any], limit: TimeLimit) -> None:
        """End an attempt whose handler is not stopping. The handler's thread cannot be ended, so the process has to
        exit.
        """
        context = active.context
        context.ended = time.monotonic()
        seconds = context.ended - (context.began or context.ended)
        if (unit := context.unit) is not None:
            unit.abandon()
        outcome = with_notes(failed(task, context, limit.overrun()), context)
        self.outcomes.put(outcome, active)
        report_kill(self.hooks, self.ends, outcome, context, seconds)
        self.on_kill(active, limit.thread)

    def _run_in_transaction(self, active: ActiveClaim, task: Task[..., Any], limit: TimeLimit | None) -> Outcome | None:
        """Run the handler inside a transaction that also commits the task's completion. Any other outcome rolls the
        transaction back.

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
                    rolled_back, interruption = outcome, _interrupting_error(active, outcome, unit)
                    raise _RolledBack
                unit.flush()
                ours = True
                self.leases.ending(active)
                if self.leases.is_void(active.context) or self.store.finish([outcome], using=unit.target):
                    raise LeaseLost(f"{claim}: its lease was lost, so its writes are rolled back")
                self.on_failpoint(Failpoint.BEFORE_COMMIT)
            active.state = _COMMITTED
            self.on_failpoint(Failpoint.AFTER_COMMIT)
            self.outcomes.committed(outcome, active)
            return outcome
        except LeaseLost as lost:
            log.warning("%s, and its outcome is discarded", lost, extra=fields_of(claim, outcome=LOST))
            self.outcomes.lost(active)
        except Exception as error:  # noqa: BLE001 - `_outcome_of_failed_transaction` decides
            if rolled_back is None:
                return self._outcome_of_failed_transaction(active, task, error, unit, ours=ours)
            # This applies even if the connection was lost before the rollback.
            if interruption is not None and (given_back := self._outcome_of_interruption(active, interruption)):
                return given_back
            return rolled_back
        return None

    def _outcome_of_failed_transaction(
        self, active: ActiveClaim, task: Task[..., Any], error: Exception, unit: UnitOfWork | None, *, ours: bool
    ) -> Outcome:
        """Return the outcome of a claim whose transaction could not begin, or whose completion could not be committed
        (because of a constraint that is checked at commit, or a lost connection).

        `ours` is True if the error came from the worker's statements around the handler. If flushing the remaining rows
        of the handler's session causes an error, such as a lock timeout, the error counts as it would inside the
        handler.
        """
        is_outside = interrupted(self.store, error, unit, is_ours=ours)
        if unit is None and is_outside:  # the handler was not called, so no attempt is used
            return released(active.claim, "a transaction could not be started", delay=_RETRY_AFTER)
        if is_outside and (outcome := self._outcome_of_interruption(active, error)):
            return outcome
        return failed(task, active.context, error)

    def _outcome_of_interruption(self, active: ActiveClaim, error: BaseException) -> Outcome | None:
        """Return the outcome of a claim whose transaction was ended by an external error; None if the attempt counts as
        failed.
        """
        self.leases.ending(active)  # what follows may have to wait for the database
        return outcome_of_interruption(self.own, active.claim, error)

    def _hold_lease(self, active: ActiveClaim, unit: UnitOfWork) -> None:
        """Keep the lease until the transaction ends. The transaction has the only lock, so no other worker can take the
        lease.

        Raises LeaseLost if another worker took the lease while this worker waited for the lock.
        """
        claim, context = active.claim, active.context
        if context.lost and not self.store.heartbeat([claim], using=unit.target):
            raise LeaseLost(_LOST_BEFORE % claim)
        self.leases.hold_until(context, math.inf)


def report_kill(hooks: HookCalls | None, ends: EndLog, outcome: Outcome, context: TaskContext, seconds: float) -> None:
    """Report an attempt that was ended without waiting for its handler, first to the hooks and then in the log. One
    thread does both, as after any other attempt.

    An error tracker that uses both then gets only one event. If a hook does not return in time, this thread writes the log
    line.
    """
    unwritten = threading.Semaphore()

    def write() -> None:
        if unwritten.acquire(blocking=False):
            ends.write(outcome, context, seconds)

    def report(hooks: HookCalls) -> None:
        hooks.ended(context, outcome, seconds)
        write()

    if hooks is not None:
        run_with_timeout(_HOOK_TIMEOUT, lambda: report(hooks))
    write()


class _RolledBack(Exception):
    """Rolls the transaction back."""


def _interrupting_error(active: ActiveClaim, outcome: Outcome, unit: UnitOfWork) -> BaseException | None:
    """Return the handler's error if it was caused by an external error.

    An outcome that the handler asked for, such as Retry, is never an interruption.
    """
    error = active.context.error
    if outcome.event_type not in _FAILURES or error is None or isinstance(error, Retry):
        return None
    return error if unit.was_interrupted(error) else None


def outcome_of_interruption(store: Store, claim: Claim, error: BaseException) -> Outcome | None:
    """Return the outcome that releases a claim whose transaction was ended by the external error `error`.

    No attempt is used, and the delay grows each time. After the sixth interruption in a row, which counts as a failed
    attempt, return None. The task itself may break its connection, for example by pausing so long that the server
    considers the connection idle. The function waits up to half a minute for the database.
    """
    try:
        before = store.interruptions(claim)
    except Exception as refused:  # noqa: BLE001 - handled here
        if not store.may_pass(refused):
            what = "its earlier interruptions could not be read, so this one counts as a failed attempt"
            log.warning(
                "%s: %s: %s", claim, what, sentence(refused), extra=fields_of(claim, exception=exception_field(refused))
            )
            return None
        before = 0  # the release waits for the database too
    if before >= MAX_INTERRUPTIONS:
        return None
    times, delay, cause = before + 1, FIRST_INTERRUPTION_DELAY * 2**before, sentence(error)
    log.warning(
        "%s: its transaction was interrupted; unless it was committed, no attempt is used and the task runs again in %g s "
        "(interruption %d of at most %d in a row): %s",
        claim,
        delay.total_seconds(),
        times,
        MAX_INTERRUPTIONS,
        cause,
        extra=fields_of(claim, outcome=OUTCOMES[EventType.RELEASED], exception=exception_field(error)),
    )
    return released(claim, INTERRUPTED, delay=delay, times=times, cause=sanitize(cause, limit=_CAUSE_BYTES))
