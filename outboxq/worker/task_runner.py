"""Runs one claim in a handler thread, from its start to its outcome."""

from __future__ import annotations

import logging
import math
import time
from datetime import timedelta
from enum import Enum, auto
from typing import Any

from ..context import UnitOfWork
from ..errors import LeaseLost
from ..integration.base import Integration
from ..model import SUSPECT, EventType, Outcome, Retry
from ..store import Store
from ..store.failure_log import say
from ..task import Task, TaskRegistry
from .completer import Completer
from .end_log import EndLog
from .executor import execute, failed, released
from .failpoints import Failpoint, OnFailpoint
from .interruptions import Interruptions
from .leases import ActiveClaim, ClaimState, Leases

log = logging.getLogger("outboxq.worker")

_LOST_BEFORE = "task %s (%s): its lease was lost before it began"
_RETRY_AFTER = timedelta(seconds=1)
_FAILURES = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED})


class Settled(Enum):
    """The ways in which a claim ends without an outcome for the completer to write."""

    COMMITTED = auto()
    """Its completion was committed in the task's own transaction."""
    LEASE_LOST = auto()
    """Another worker may run the task, and this attempt is discarded."""


class TaskRunner:
    """Runs claims, and passes their outcomes on to the completer."""

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        leases: Leases,
        completer: Completer,
        *,
        own: Store,
        integration: Integration,
        on_failpoint: OnFailpoint,
        ends: EndLog | None = None,
    ) -> None:
        """`store` is the application's: transactional tasks write on its connections. `own` is the worker's, for what must not
        wait until a handler gives one of those back. `ends` logs how each attempt ended.
        """
        self._store = store
        self._integration = integration
        self._tasks = tasks
        self._leases = leases
        self._completer = completer
        self._interruptions = Interruptions(own)
        self._on_failpoint = on_failpoint
        self._ends = ends or EndLog()

    def run(self, active: ActiveClaim) -> None:
        """Run one claim. Unless the completer gets its outcome, the claim is dropped here: else heartbeats would keep it for ever.

        A thread that dies drops nothing: the worker then gives back what it had.
        """
        try:
            self._on_failpoint(Failpoint.BEFORE_START)
            if self._may_begin(active):
                began = time.monotonic()
                result = self._run_with_hooks(active, self._tasks.get(active.claim.task_name))
                self._on_failpoint(Failpoint.AFTER_HANDLER)
                self._leases.warn_if_late(active)
                if isinstance(result, Outcome):
                    self._completer.put(result, active)
                    # Last: what a log handler raises must not cost the outcome.
                    self._ends.write(result, active.context, time.monotonic() - began)
        except Exception:
            self._drop_unless_handed_over(active)
            raise
        finally:
            active.context.error = None  # its traceback holds the handler's frames, and those the context
        self._drop_unless_handed_over(active)

    def _drop_unless_handed_over(self, active: ActiveClaim) -> None:
        if active.state is not ClaimState.HANDED_OVER:
            self._leases.drop(active.claim)

    def _may_begin(self, active: ActiveClaim) -> bool:
        """Return whether the handler may be called. A claim that may not is given back, unless its lease is lost."""
        claim, context = active.claim, active.context
        if context.was_lost:
            log.warning(_LOST_BEFORE, claim.id, claim.task_name)
            return False
        if context.lost:  # the database has not answered for so long; it decides whether this counts
            self._completer.put(released(claim, "its lease ended before it began"), active)
            return False
        return claim.recovery_attempts < SUSPECT or self._record_start(active)

    def _record_start(self, active: ActiveClaim) -> bool:
        """Record that a suspect begins, so that it counts if this process dies now. Returns whether it may begin."""
        claim = active.claim
        try:
            if self._completer.begin(claim):
                return True
            log.warning(_LOST_BEFORE, claim.id, claim.task_name)
        except Exception as error:  # noqa: BLE001
            what = f"task {claim.id} ({claim.task_name}): its start could not be recorded; it is given back"
            say(log, logging.ERROR, what, error)
            self._completer.put(released(claim, "its start could not be recorded", delay=_RETRY_AFTER), active)
        return False

    def _run_with_hooks(self, active: ActiveClaim, task: Task[..., Any]) -> Outcome | Settled:
        """Run the task inside the hooks of the application's framework. A hook that fails after the handler changes nothing."""
        claim, context, result = active.claim, active.context, None
        try:
            with self._integration.around_handler(context):
                result = self._run_in_transaction(active, task) if task.transactional else execute(claim, task, context)
                if isinstance(result, Outcome):
                    self._call_after_handler(active, result)
        except Exception as error:
            if result is None:
                context.error = error
                return failed(claim, task, error)
            log.exception("task %s (%s): a framework hook around its handler failed after it", claim.id, task.name)
        return result

    def _call_after_handler(self, active: ActiveClaim, outcome: Outcome) -> None:
        try:
            self._integration.after_handler(active.context, outcome)
        except Exception:
            log.exception("task %s (%s): the hook after its handler failed", active.claim.id, active.claim.task_name)

    def _run_in_transaction(self, active: ActiveClaim, task: Task[..., Any]) -> Outcome | Settled:
        """Run the handler inside one transaction, which its completion joins. Any other outcome rolls it back."""
        claim, unit, rolled_back, ours = active.claim, None, None, True
        began = time.monotonic()
        try:
            with self._integration.unit_of_work(self._store) as unit:
                active.context.enter_unit_of_work(unit)
                if self._store.dialect.one_writer:
                    self._hold_lease(active, unit)
                self._on_failpoint(Failpoint.TRANSACTION_BEGUN)
                ours = False
                outcome = execute(claim, task, active.context)
                if outcome.event_type is not EventType.COMPLETED:
                    rolled_back = _RolledBack(outcome, error=_interruption(active, outcome, unit))
                    raise rolled_back
                unit.flush()
                active.state, ours = ClaimState.ENDING, True
                if self._store.finish([outcome], using=unit.target):
                    raise LeaseLost(
                        f"task {claim.id} ({task.name}): its lease was lost, so what it wrote is rolled back"
                    )
                self._on_failpoint(Failpoint.BEFORE_COMMIT)
            self._on_failpoint(Failpoint.AFTER_COMMIT)
            self._completer.notify_unblocked([claim])
            self._call_after_handler(active, outcome)
            self._ends.write(outcome, active.context, time.monotonic() - began)
        except LeaseLost as lost:
            log.warning("%s, and its outcome is discarded", lost)
            return Settled.LEASE_LOST
        except Exception as error:  # noqa: BLE001 - `_outcome_of_failed_transaction` decides
            if rolled_back is None:
                return self._outcome_of_failed_transaction(active, task, error, unit, ours=ours)
            # Also where its connection was lost before the rollback.
            if rolled_back.error is None:
                return rolled_back.outcome
            return self._outcome_of_interruption(active, rolled_back.error) or rolled_back.outcome
        return Settled.COMMITTED

    def _outcome_of_failed_transaction(
        self, active: ActiveClaim, task: Task[..., Any], error: Exception, unit: UnitOfWork | None, *, ours: bool
    ) -> Outcome:
        """Return how a claim ends whose transaction could not begin, or whose completion could not be committed: a constraint
        that is checked at commit, a lost connection.

        `ours`: the error came from what we write around the handler. An error from what the handler's session still held
        back, such as a row that waited for a lock in vain, counts as it would inside the handler.
        """
        passes = self._store.may_pass(error) or self._store.cannot_write_now(error)
        if unit is None and passes:  # the handler was not called: no attempt is used
            return released(active.claim, "no transaction could be begun", delay=_RETRY_AFTER)
        interrupted = (ours and passes) or (unit is not None and unit.was_interrupted(error))
        if interrupted and (outcome := self._outcome_of_interruption(active, error)):
            return outcome
        active.context.error = error
        return failed(active.claim, task, error)

    def _outcome_of_interruption(self, active: ActiveClaim, error: BaseException) -> Outcome | None:
        """Return how a claim ends whose transaction an error from outside ended. None: it counts as a failed attempt."""
        active.state = ClaimState.ENDING  # the database may have to come back first
        return self._interruptions.outcome(active.claim, error)

    def _hold_lease(self, active: ActiveClaim, unit: UnitOfWork) -> None:
        """Keep the lease until the transaction ends: it has the only lock there is, so a lease that is ours now stays ours.

        Raises LeaseLost if another worker took it while we waited for the lock.
        """
        claim, context = active.claim, active.context
        if context.lost and not self._store.heartbeat([claim], using=unit.target):
            raise LeaseLost(_LOST_BEFORE % (claim.id, claim.task_name))
        context.deadline = math.inf


class _RolledBack(Exception):
    """Rolls the transaction back, and carries the outcome with which its claim ends instead."""

    def __init__(self, outcome: Outcome, *, error: BaseException | None) -> None:
        """`error`: one from outside that ended the transaction; None: the handler alone did."""
        self.outcome = outcome
        self.error = error


def _interruption(active: ActiveClaim, outcome: Outcome, unit: UnitOfWork) -> BaseException | None:
    """Return the handler's error if one from outside is behind it.

    An end that the handler asked for, such as Retry, is never an interruption.
    """
    error = active.context.error
    if outcome.event_type not in _FAILURES or error is None or isinstance(error, Retry):
        return None
    return error if unit.was_interrupted(error) else None
