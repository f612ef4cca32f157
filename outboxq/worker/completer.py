"""Writes the outcomes of claims. A single outcome is written immediately. Outcomes that arrive during a write are
written together in the next statement. When a worker has run out of time, `Handback` releases the claims that the
worker still holds.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from ..errors import FileUnusable, OutcomesRefused
from ..model import STATUS_AFTER, Claim, EventType, Outcome, TaskStatus
from ..model.batches import is_batch
from ..model.records import LOST, OUTCOMES, fields_of
from ..model.wording import plural
from ..store import Store
from ..store.failure_log import FailureLog, say
from .executor import STOPPED, released, unwritable, with_notes
from .failpoints import Failpoint, OnFailpoint
from .leases import ActiveClaim, ClaimState, Leases
from .timeouts import run_with_timeout
from .work_failures import END, WorkFailures

log = logging.getLogger("outboxq.worker")

_BATCH_LIMIT = 1000
_RETRY_AFTER = 0.5
_LONGEST_PAUSE = 5.0
"""The longest pause between attempts, in seconds, while the database is full."""
_CHECK_EVERY = 0.1
_RELEASE_AGAIN_AFTER = 0.02
"""Seconds between attempts to release a locked task. A heartbeat locks a task for a few milliseconds."""
_SUSPECT_FLUSH_TIMEOUT = 2.0
"""Seconds for which a suspect waits for earlier outcomes to be written, because they must not be lost if the suspect
kills the process.
"""
_MOST_LOCKED = 10_000
"""The maximum number of outcomes that may wait for locks. Heartbeats extend the leases of all the claims that these
outcomes end. If the worker is killed, the work of these claims' tasks is lost.
"""
_MAX_REFUSED = 3
"""The worker stops when the database has permanently refused this many outcomes in a row, because a single task cannot
cause that many refusals.
"""
_FAILED, _HANDED_OVER = EventType.FAILED, ClaimState.HANDED_OVER
"""Enum members that are looked up once, as in `task_runner.py`."""

_Written: TypeAlias = tuple[frozenset[UUID], Mapping[UUID, UUID | None]]
"""First, the ids of the tasks whose leases were lost. Second, for the id of each task that a lock prevents from ending,
the id of the batch whose row is locked, or None if the task itself is locked.
"""
_NONE: Mapping[UUID, UUID | None] = {}


@dataclass(eq=False, repr=False)
class _SetAside:
    """Outcomes that are waiting for the same lock, and are kept apart from the others."""

    outcomes: list[Outcome] = field(default_factory=list)
    retry_at: float = 0.0
    """The time of the next attempt to write these outcomes (`time.monotonic()`)."""


@dataclass(eq=False, repr=False)
class Completer(threading.Thread):
    """Collects outcomes during a write, and writes them with the next statement. No outcome waits for a timer.

    Only the database knows whether a claim is still valid. So an outcome waits, and its lease is extended, until the
    database answers.

    An outcome whose task is locked by another transaction waits separately from the others, and so do all outcomes of
    tasks in a batch whose row is locked. The first outcome that needs such a row waits for the row until the lock
    timeout (`postgresql_session.py`). After that, the batch's outcomes are tried separately every half second until
    they are written. Each try is brief, and new outcomes are written between tries.
    """

    store: Store
    leases: Leases
    on_thread_failure: Callable[[BaseException], None]
    on_unblocked: Callable[[], None] = lambda: None
    """A function that is called after a write that may let other tasks start."""
    on_member_failed: Callable[[], None] = lambda: None
    """A function that is called after the failure of a task in a batch has been written, because the other tasks may
    have to be cancelled.
    """
    failures: WorkFailures = field(default_factory=WorkFailures)
    durable: bool = True
    """If False, a server crash may undo the most recent writes."""

    def __post_init__(self) -> None:
        super().__init__(name="outboxq-completer", daemon=True)
        self.can_write = threading.Event()
        """A `threading.Event` that is set while outcomes can be written and not too many of them are waiting for locks.
        Otherwise, the worker does not claim any tasks.
        """
        self.can_write.set()
        self._outcomes: queue.SimpleQueue[Outcome | threading.Event | None] = queue.SimpleQueue()
        """The outcomes to write. The queue also contains events, each of which is set when everything before it is
        written, and None at the end.
        """
        self._locked: dict[UUID | None, _SetAside] = {}
        """The outcomes that are waiting for a lock, keyed by the batch whose row they need, or by None if their tasks
        are locked.
        """
        self._attempts: dict[int, ActiveClaim] = {}
        """The attempts whose outcomes have not been counted yet, keyed by the `id()` of the outcome's claim, which
        lives as long as the outcome. In `leases`, an attempt may already have been replaced by a later claim of the
        same task.
        """
        self._refused = 0
        self._failing = FailureLog(log, level=logging.WARNING)
        self._is_failing = False

    def put(self, outcome: Outcome, active: ActiveClaim | None = None) -> None:
        """Write the outcome with the next statement. Until then, heartbeats extend the lease of its claim."""
        if active is not None:
            active.state = _HANDED_OVER
            if self.leases.is_void(active.context) and outcome.event_type is not EventType.RELEASED:
                text = "%s: its lease was lost, so its outcome %s is discarded"
                log.warning(text, outcome.claim, outcome.event_type, extra=fields_of(outcome.claim, outcome=LOST))
                outcome = released(outcome.claim, "its lease was lost while it ran")
            self._attempts[id(outcome.claim)] = active
        self._outcomes.put(outcome)

    def give_back(self, claims: Iterable[ActiveClaim], reason: str, *, delay: timedelta = timedelta(0)) -> None:
        """Release claims whose handlers have not begun. No attempt is used."""
        for active in claims:
            self.put(released(active.claim, reason, delay=delay), active)

    def committed(self, outcome: Outcome, active: ActiveClaim) -> None:
        """Count a completion that the task's own transaction has committed, so no outcome remains to be written."""
        self.leases.count([outcome], [active])
        self._notify_unblocked([outcome.claim])

    def lost(self, active: ActiveClaim) -> None:
        """Count an attempt that ended without an outcome because its lease was lost."""
        self.leases.mark_lost(active.claim)
        self.leases.count_lost(active)

    def begin(self, claim: Claim) -> bool:
        """Record that a suspect begins, after writing the earlier outcomes. Returns whether the suspect's claim is
        still valid.
        """
        self.flush(_SUSPECT_FLUSH_TIMEOUT)
        return self.store.begin(claim)

    @property
    def has_locked(self) -> bool:
        """Return whether any outcome is waiting for a row that another transaction has locked."""
        return bool(self._locked)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until each outcome submitted so far has been written, has failed, or is waiting for a lock. Returns
        False after `timeout` seconds.
        """
        written = threading.Event()
        self._outcomes.put(written)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not (done := written.wait(max(0.0, min(_CHECK_EVERY, deadline - time.monotonic())))):
            if not self.is_alive() or time.monotonic() >= deadline:
                break
        return done

    def finish(self) -> None:
        """Write the outcomes submitted so far, and then let the thread end. The caller joins the thread."""
        self._outcomes.put(None)

    def run(self) -> None:
        try:
            while self._write_next():
                pass
            while self._locked and not self.store.gone.wait(self._pause()):
                self._write_locked()
        except (OutcomesRefused, FileUnusable) as refused:
            self.on_thread_failure(refused)
        except BaseException as error:
            self.on_thread_failure(error)
            raise

    def _write_next(self) -> bool:
        """Write the new outcomes. Then write the outcomes that have waited longest for a lock, if those outcomes are
        due. Returns False after writing the last outcomes.
        """
        batch: list[Outcome] = []
        last: Outcome | threading.Event | None = None
        is_over = False
        with suppress(queue.Empty):
            last = self._outcomes.get(timeout=self._pause() if self._locked else None)
            while isinstance(last, Outcome):
                batch.append(last)
                last = self._outcomes.get_nowait() if len(batch) < _BATCH_LIMIT else threading.Event()
            is_over = last is None
        if batch:
            self._write_new(batch)
        if isinstance(last, threading.Event):
            last.set()
        if self._locked and not is_over and self._pause() == 0.0:
            self._write_locked()
        if self._locked:
            self._allow_claims()
        return not is_over

    def _allow_claims(self) -> None:
        """Let the worker claim tasks unless too many outcomes are waiting for locks."""
        waiting = sum(len(one.outcomes) for one in self._locked.values())
        if waiting < _MOST_LOCKED:
            self.can_write.set()
        elif self.can_write.is_set():
            self.can_write.clear()
            text = "%d outcomes are waiting for rows locked by other transactions; until there are fewer, this worker claims no tasks"
            log.warning(text, waiting)

    def _pause(self) -> float:
        """Return the number of seconds until the next attempt to write locked outcomes."""
        due = min(waiting.retry_at for waiting in self._locked.values())
        return max(0.0, due - time.monotonic())

    def _write_new(self, outcomes: Sequence[Outcome]) -> None:
        """Write new outcomes. An outcome that needs a locked batch's row waits with the batch's other outcomes."""
        if self._locked:
            others = []
            for outcome in outcomes:
                batch = _batch_of(outcome)
                if batch is None or batch not in self._locked:
                    others.append(outcome)
                elif _needs_batch(outcome):
                    self._locked[batch].outcomes.append(outcome)
                else:
                    self._set_aside(outcome, None, retry_at=0.0)  # written separately, without waiting
            outcomes = others
        if outcomes:
            self._write(outcomes)

    def _write_locked(self) -> None:
        """Retry outcomes that are waiting for the same lock."""
        batch = min(self._locked, key=lambda one: self._locked[one].retry_at)
        waiting = self._locked[batch]
        tried, waiting.outcomes = waiting.outcomes[:_BATCH_LIMIT], waiting.outcomes[_BATCH_LIMIT:]
        if not (left := len(waiting.outcomes)):
            del self._locked[batch]
        self._write(tried, skip_locked=True)
        after = self._locked.get(batch)
        if after is not None and len(after.outcomes) > left:
            after.retry_at = time.monotonic() + _RETRY_AFTER

    def _set_aside(self, outcome: Outcome, batch: UUID | None, *, retry_at: float) -> None:
        """Make an outcome wait for a lock, together with the other outcomes of its batch. Only the first of these
        outcomes sets `retry_at`.
        """
        if (waiting := self._locked.get(batch)) is None:
            waiting = self._locked[batch] = _SetAside(retry_at=retry_at)
        waiting.outcomes.append(outcome)

    def _write(self, outcomes: Sequence[Outcome], *, skip_locked: bool = False) -> None:
        """Write these outcomes. Two outcomes for the same task are written one after the other, because the database's
        answer names only the tasks whose leases were lost, not the claims.
        """
        if len(outcomes) > 1 and len(first := {one.claim.id: one for one in reversed(outcomes)}) < len(outcomes):
            self._write([one for one in outcomes if first[one.claim.id] is one], skip_locked=skip_locked)
            self._write([one for one in outcomes if first[one.claim.id] is not one], skip_locked=skip_locked)
            return
        self.leases.on_failpoint(Failpoint.BEFORE_FINISH)
        asked = time.monotonic()
        locked = _NONE
        try:
            lost, locked = self._write_until_answered(outcomes, skip_locked=skip_locked)
            written = [one for one in outcomes if one.claim.id not in locked] if locked else outcomes
            self._notify_unblocked(outcome.claim for outcome in written)
            for outcome in written:
                if outcome.event_type is _FAILED and is_batch(outcome.claim.pipeline_execution_id):
                    self.on_member_failed()
            if lost:
                again = self._drop_lost([outcome for outcome in outcomes if outcome.claim.id in lost], asked)
                locked = {**locked, **dict.fromkeys(again)}
        finally:
            # Hashing a UUID takes 0.1 us (`python -m timeit -s "import uuid; one = uuid.uuid4()" "hash(one)"`).
            self.leases.drop(*(outcome.claim for outcome in outcomes if not locked or outcome.claim.id not in locked))
        if locked:
            for outcome in outcomes:
                if (task_id := outcome.claim.id) in locked:
                    batch = locked[task_id]
                    later = time.monotonic() + _RETRY_AFTER
                    self._set_aside(outcome, batch, retry_at=later if batch is None else 0.0)
        self.leases.on_failpoint(Failpoint.AFTER_FINISH)

    def _notify_unblocked(self, claims: Iterable[Claim]) -> None:
        """Wake the claim loop if any of these ended claims may let other tasks start."""
        if any(claim.makes_way for claim in claims):
            self.on_unblocked()

    def _drop_lost(self, outcomes: Sequence[Outcome], asked: float) -> frozenset[UUID]:
        """Drop the claims of these outcomes, because the database did not find their leases.

        `asked` is the time at which the database was asked (`time.monotonic()`). Returns the ids of the tasks that this
        worker has claimed again since then. The outcomes of these tasks have to be written again.
        """
        again = set()
        for outcome in outcomes:
            if self.leases.drop_lost(outcome.claim, asked=asked):
                self._count([outcome], lost=frozenset({outcome.claim.id}))
                text = "%s: its lease was lost, so its outcome %s is discarded"
                log.warning(text, outcome.claim, outcome.event_type, extra=fields_of(outcome.claim, outcome=LOST))
            else:
                again.add(outcome.claim.id)
        return frozenset(again)

    def _write_until_answered(self, outcomes: Sequence[Outcome], *, skip_locked: bool) -> _Written:
        """Write the outcomes, and wait until the database has answered or the worker has run out of time.

        Returns the tasks whose leases were lost, and the tasks that a lock prevents from ending. If `skip_locked` is
        True, the write waits only briefly for a lock. Raises FileUnusable if the SQLite file is unusable, because then
        no other outcome can be written either.
        """
        tries = 0
        while True:
            try:
                if skip_locked:
                    lost, locked = self.store.finish_unlocked(outcomes, durable=self.durable)
                else:
                    lost, locked = self.store.finish(outcomes, durable=self.durable, waits=False), frozenset()
            except Exception as error:
                if (unusable := self.store.unusable(error)) is not None:
                    raise unusable from error
                if self.store.is_locked_out(error):
                    if skip_locked:
                        return self._divide(outcomes)
                    skip_locked = True
                elif self._wait_to_retry(error, tries, len(outcomes)):
                    tries += 1
                    skip_locked = True  # also finds outcomes that an earlier, unanswered COMMIT wrote
                else:
                    return self._each(outcomes) if len(outcomes) > 1 else self._replace_refused(outcomes[0], error)
            else:
                self._refused = 0
                if self._is_failing:
                    self._is_failing = False
                    self._failing.worked("outcomes can be written again")
                    self.failures.worked(END)
                self._allow_claims()
                unwritten = lost | locked
                self._count([one for one in outcomes if one.claim.id not in unwritten] if unwritten else outcomes)
                return lost, dict.fromkeys(locked)

    def _divide(self, outcomes: Sequence[Outcome]) -> _Written:
        """Write outcomes that a lock prevents from being written together, without waiting for that lock repeatedly.

        Outcomes that do not need a batch's row are written first. Each batch's outcomes are set aside, to be tried
        separately.
        """
        batches = {_batch_of(outcome) for outcome in outcomes}
        if len(batches) == 1 and (len(outcomes) == 1 or None not in batches):
            return frozenset(), {outcome.claim.id: batch for outcome in outcomes for batch in batches}
        waiting = {one.claim.id: _batch_of(one) for one in outcomes if _needs_batch(one)}
        if not waiting:
            return self._each(outcomes)
        others = [outcome for outcome in outcomes if outcome.claim.id not in waiting]
        lost, locked = self._write_until_answered(others, skip_locked=True) if others else (frozenset(), _NONE)
        return lost, {**locked, **waiting}

    def _each(self, outcomes: Sequence[Outcome]) -> _Written:
        """Write each outcome separately, so that an outcome that cannot be written does not hold up the others."""
        lost: frozenset[UUID] = frozenset()
        locked: dict[UUID, UUID | None] = {}
        for outcome in outcomes:
            written = self._write_until_answered([outcome], skip_locked=True)
            lost |= written[0]
            locked |= written[1]
        return lost, locked

    def _wait_to_retry(self, error: Exception, tries: int, outcomes: int) -> bool:
        """Return whether writing the same outcomes may succeed after a pause."""
        if self.store.gone.is_set():
            return False
        if self.store.may_pass(error):
            pause = _RETRY_AFTER
        elif self.store.cannot_write_now(error):
            pause = min(_RETRY_AFTER * 2 ** min(tries, 10), _LONGEST_PAUSE)
        else:
            return False
        self.can_write.clear()
        wait, them = plural(outcomes, "outcome is waiting", "outcomes are waiting"), plural(outcomes, "it", "them")
        self._is_failing = True
        self._failing.failed(f"{outcomes} {wait} for the database, which could not write {them}", error)
        self.failures.failed(END, error)
        self.store.gone.wait(pause)
        return True

    def _replace_refused(self, outcome: Outcome, error: Exception) -> _Written:
        """Write a failure in place of an outcome that the database refuses, so that the handler does not run again
        needlessly.

        Raises OutcomesRefused if the database also refuses these failures for several consecutive outcomes.
        """
        what = f"task {outcome.claim.id}: its outcome {outcome.event_type} could not be written"
        say(log, logging.ERROR, what, error, fields=fields_of(outcome.claim))
        if self.store.gone.is_set():
            self._count([outcome], lost=frozenset({outcome.claim.id}))
            return frozenset(), _NONE
        self._allow_claims()  # the database has answered
        try:
            if outcome.event_type is EventType.RELEASED:
                raise error  # the handler has not run; the task will be recovered after its lease expires
            failure = unwritable(outcome, error)
            lost = self.store.finish([failure], durable=self.durable, waits=False)
        except Exception as again:
            self._count([outcome], lost=frozenset({outcome.claim.id}))
            self._refused += 1
            if self._refused >= _MAX_REFUSED:
                raise OutcomesRefused(
                    f"the database refuses to record outcomes ({again}), so this worker claims no more tasks; grant the "
                    "missing privileges or repair the tables, then restart the worker"
                ) from again
            return frozenset(), _NONE
        self._refused = 0
        if not lost:
            self._count([failure])
            if is_batch(failure.claim.pipeline_execution_id):
                self.on_member_failed()
        return lost, _NONE

    def _count(self, outcomes: Sequence[Outcome], *, lost: frozenset[UUID] = frozenset()) -> None:
        """Count the outcomes that will not be tried again."""
        attempts = [self._attempts.pop(id(outcome.claim), None) for outcome in outcomes]
        self.leases.count(outcomes, attempts, lost=lost)


def _batch_of(outcome: Outcome) -> UUID | None:
    """Return the id of the task's batch."""
    pipeline = outcome.claim.pipeline_execution_id
    return pipeline if is_batch(pipeline) else None


def _needs_batch(outcome: Outcome) -> bool:
    """Return whether the outcome changes its batch's row. An outcome that makes the task Ready changes the row only if
    there is a cancel request.
    """
    return STATUS_AFTER[outcome.event_type] is not TaskStatus.READY and is_batch(outcome.claim.pipeline_execution_id)


@dataclass(eq=False, repr=False)
class Handback:
    """Releases the claims that a worker still holds when it has run out of time."""

    store: Store
    leases: Leases
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def give_back(self, timeout: float) -> int:
        """Release the claims that are still held, so that their handlers can no longer change the tasks. Returns the
        number of claims that had not ended on their own. The call takes at most `timeout` seconds, because the database
        may not be responding. Only one call runs at a time, because a second one would skip rows that the first has
        locked, and the process might end before the first has committed.
        """
        with self._lock:
            held = [one for one in self.leases.held() if one.state is not ClaimState.COMMITTED]
            for one in held:
                one.context.was_lost = True
                fields = fields_of(one.claim, outcome=OUTCOMES[EventType.RELEASED])
                log.warning("%s did not finish in time, so it is released", one.claim, extra=fields)
            outcomes = [with_notes(released(one.claim, STOPPED), one.context) for one in held]
            if not outcomes:
                return 0
            given_back = len(outcomes)
            ended: list[int] = []
            over = threading.Event()
            attempts = {one.claim.id: one for one in held}
            run_with_timeout(timeout, lambda: ended.append(self._release(outcomes, attempts, over)))
            over.set()
            return given_back - sum(ended)

    def _release(self, outcomes: list[Outcome], attempts: Mapping[UUID, ActiveClaim], over: threading.Event) -> int:
        """Write the releases, and retry locked ones until `over` is set. Returns how many tasks had ended in the
        meantime.
        """
        ended = 0
        with releasing(outcomes, self.leases.on_failpoint):
            while True:
                lost, locked = self._finish(outcomes)
                ended += len(lost)
                given_back = [outcome for outcome in outcomes if outcome.claim.id not in lost | locked]
                self.leases.count(given_back, [attempts[outcome.claim.id] for outcome in given_back])
                for attempt in (attempts[task_id] for task_id in lost):
                    if attempt.state is ClaimState.HELD:  # otherwise the completer has its outcome
                        self.leases.count_lost(attempt)
                if not locked or over.wait(_RELEASE_AGAIN_AFTER):
                    break
                outcomes[:] = [outcome for outcome in outcomes if outcome.claim.id in locked]
            if locked:
                text = "could not release %d tasks, which another transaction has locked; their leases will expire"
                log.warning(text, len(locked))
        return ended

    def _finish(self, outcomes: Sequence[Outcome]) -> tuple[frozenset[UUID], frozenset[UUID]]:
        """Write the releases. Returns the ids of the tasks that had already ended, and the ids of the tasks that a lock
        prevents from being released.

        If a cancel was requested for a task, the release ends the task, and so has to wait for the row of the task's
        batch. The other tasks are released.
        """
        try:
            return self.store.finish_unlocked(outcomes)
        except Exception as error:
            if not self.store.is_locked_out(error):
                raise
        if len(outcomes) == 1:
            return frozenset(), frozenset({outcomes[0].claim.id})
        half = len(outcomes) // 2
        parts = [self._finish(part) for part in (outcomes[:half], outcomes[half:])]
        return parts[0][0] | parts[1][0], parts[0][1] | parts[1][1]


@contextmanager
def releasing(outcomes: Sized, on_failpoint: OnFailpoint) -> Iterator[None]:
    """Log any error that occurs while the block writes these releases. After an error, the tasks' leases expire."""
    try:
        on_failpoint(Failpoint.BEFORE_RELEASE)
        yield
        on_failpoint(Failpoint.AFTER_RELEASE)
    except Exception as error:  # noqa: BLE001 - whatever the error is, the worker is about to end
        leases = plural(len(outcomes), "task; its lease", "tasks; their leases")
        say(log, logging.ERROR, f"could not release {len(outcomes)} {leases} will expire", error)
