"""One claim, from its start in a handler thread to its outcome."""

from __future__ import annotations

import logging
import math
import time
from datetime import timedelta
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
from .leases import ActiveClaim, Leases

log = logging.getLogger("outboxq.worker")

_LATER = timedelta(seconds=1)
_FAILURES = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED})


class TaskRunner:
    """Runs claims, and passes on what becomes of them."""

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
        """`store` is the application's: in its connections, transactional tasks write. `own`: the worker's, for what must not
        wait until a handler gives one of those back. `ends` is told of each end.
        """
        self._store = store
        self._integration = integration
        self._tasks = tasks
        self._leases = leases
        self._completer = completer
        self._interruptions = Interruptions(own)
        self._on_failpoint = on_failpoint
        self._ends = ends or EndLog()

    def run(self, held: ActiveClaim) -> None:
        """One task, in a handler thread."""
        try:
            self._run(held)
        except Exception:
            self._drop_unless_finishing(held)
            raise
        finally:
            held.context.error = None  # its traceback holds the handler's frames, and those the context
        self._drop_unless_finishing(held)  # (of a thread that dies, the worker gives back what it had)

    def _drop_unless_finishing(self, held: ActiveClaim) -> None:
        """Nothing will be written of it: it must not be kept alive for ever."""
        if not held.finishing:
            self._leases.drop(held.claim)

    def _run(self, held: ActiveClaim) -> None:
        claim, task = held.claim, self._tasks.get(held.claim.task_name)
        self._on_failpoint(Failpoint.BEFORE_START)
        if held.context.was_lost:
            log.warning("task %s (%s): its lease was lost before it began", claim.id, claim.task_name)
            return
        if held.context.lost:  # the database has not answered for so long; it decides whether this counts
            held.finishing = True
            self._completer.put(released(claim, "its lease ended before it began"))
            return
        if claim.recovery_attempts >= SUSPECT and not self._record_start(held):
            return
        began = time.monotonic()
        outcome = self._run_with_hooks(held, task)
        self._on_failpoint(Failpoint.AFTER_HANDLER)
        self._leases.warn_if_late(held)
        if outcome is None:
            held.finishing = False
            return
        held.finishing = True
        self._completer.put(outcome)
        self._ends.tell(
            outcome, held.context, time.monotonic() - began
        )  # what a log handler raises must not cost the outcome

    def _record_start(self, held: ActiveClaim) -> bool:
        """Write down that a suspect begins: if this process dies now, that counts. Returns whether it may."""
        claim = held.claim
        try:
            if self._completer.begin(claim):
                return True
            log.warning("task %s (%s): its lease was lost before it began", claim.id, claim.task_name)
        except Exception as error:  # noqa: BLE001
            what = f"task {claim.id} ({claim.task_name}): its beginning could not be written; it is given back"
            say(log, logging.ERROR, what, error)
            held.finishing = True
            self._completer.put(released(claim, "its beginning could not be written", delay=_LATER))
        return False

    def _run_with_hooks(self, held: ActiveClaim, task: Task[..., Any]) -> Outcome | None:
        """What the application's framework does about a handler must neither cost its outcome nor change it."""
        claim, has_run, outcome = held.claim, False, None
        try:
            with self._integration.around_handler(held.context):
                outcome = (
                    self._run_in_transaction(held, task) if task.transactional else execute(claim, task, held.context)
                )
                has_run = True
                if outcome is not None:
                    self._call_after_handler(held, outcome)
        except Exception as error:
            if not has_run:
                held.context.error = error
                return failed(claim, task, error)
            log.exception("task %s (%s): what surrounds its handler failed after it", claim.id, task.name)
        return outcome

    def _call_after_handler(self, held: ActiveClaim, outcome: Outcome) -> None:
        try:
            self._integration.after_handler(held.context, outcome)
        except Exception:
            log.exception("task %s (%s): whoever is told of its end failed", held.claim.id, held.claim.task_name)

    def _run_in_transaction(self, held: ActiveClaim, task: Task[..., Any]) -> Outcome | None:
        """The handler inside one transaction, which its completion joins. None: that is written, or the lease was lost."""
        claim, unit, rolled_back, ours = held.claim, None, None, True
        began = time.monotonic()
        try:
            with self._integration.unit_of_work(self._store) as unit:
                held.context.enter_unit_of_work(unit)
                if self._store.dialect.one_writer:
                    self._hold_lease(held, unit)
                self._on_failpoint(Failpoint.TRANSACTION_BEGUN)
                ours = False
                outcome = execute(claim, task, held.context)
                if outcome.event_type is not EventType.COMPLETED:
                    rolled_back = _RolledBack(outcome, error=_interruption(held, outcome, unit))
                    raise rolled_back
                unit.flush()
                held.finishing = ours = True
                if self._store.finish([outcome], using=unit.target):
                    raise LeaseLost(
                        f"task {claim.id} ({task.name}): its lease was lost, so what it wrote is rolled back"
                    )
                self._on_failpoint(Failpoint.BEFORE_COMMIT)
            self._on_failpoint(Failpoint.AFTER_COMMIT)
            self._completer.notify_unblocked([claim])
            self._call_after_handler(held, outcome)
            self._ends.tell(outcome, held.context, time.monotonic() - began)
        except LeaseLost as lost:
            log.warning("%s, and its outcome is discarded", lost)
        except Exception as error:  # noqa: BLE001 - `_outcome_of_failed_transaction` decides
            if rolled_back is not None:  # also where its connection was lost before the rollback
                given_back = None if rolled_back.error is None else self._give_back(held, rolled_back.error)
                return rolled_back.outcome if given_back is None else given_back
            return self._outcome_of_failed_transaction(held, task, error, unit, ours=ours)
        return None

    def _outcome_of_failed_transaction(
        self, held: ActiveClaim, task: Task[..., Any], error: Exception, unit: UnitOfWork | None, *, ours: bool
    ) -> Outcome:
        """Return how a claim ends whose transaction could not be begun, or whose completion not be written with it: a constraint
        that is checked at commit, a lost connection.

        `ours`: the error came from what we write around the handler. One that comes from what the handler's session still held
        back, such as a row that waited for a lock in vain, counts as it would inside the handler.
        """
        passes = self._store.may_pass(error) or self._store.cannot_write_now(error)
        if unit is None and passes:  # the handler was not called: no attempt is used
            return released(held.claim, "no transaction could be begun", delay=_LATER)
        interrupted = (ours and passes) or (unit is not None and unit.was_interrupted(error))
        if interrupted and (given_back := self._give_back(held, error)):
            return given_back
        held.context.error = error
        return failed(held.claim, task, error)

    def _give_back(self, held: ActiveClaim, error: BaseException) -> Outcome | None:
        """The task's transaction came to its end by an error from outside. None: it counts as a failed attempt all the same."""
        held.finishing = True  # the database may have to come back first
        return self._interruptions.outcome(held.claim, error)

    def _hold_lease(self, held: ActiveClaim, unit: UnitOfWork) -> None:
        """The transaction has the only lock there is: if the lease is ours now, nobody takes it until the end.

        Raises LeaseLost if somebody else took it while we waited for the lock.
        """
        if held.context.lost and not self._store.heartbeat([held.claim], using=unit.target):
            raise LeaseLost(f"task {held.claim.id} ({held.claim.task_name}): its lease was lost before it began")
        held.context.deadline = math.inf


class _RolledBack(Exception):
    """What the handler did is rolled back; this is how its claim ends instead."""

    def __init__(self, outcome: Outcome, *, error: BaseException | None) -> None:
        """`error`: one from outside that ended the transaction; None: the handler alone did."""
        self.outcome = outcome
        self.error = error


def _interruption(held: ActiveClaim, outcome: Outcome, unit: UnitOfWork) -> BaseException | None:
    """Return the handler's error if one from outside is behind it.

    An end that the handler asked for, such as Retry, is never an interruption.
    """
    error = held.context.error
    if outcome.event_type not in _FAILURES or error is None or isinstance(error, Retry):
        return None
    return error if unit.was_interrupted(error) else None
