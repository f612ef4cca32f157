"""Writes the outcomes of claims: all that came since the last write in one statement, and a single one at once.

A worker whose time is over gives back what it still holds (`Handback`).
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

log = logging.getLogger("outboxq.worker")

_BATCH_LIMIT = 1000
_RETRY_AFTER = 0.5
_LONGEST_PAUSE = 5.0
"""Seconds between two tries at most, while the database has no room."""
_CHECK_EVERY = 0.1
_RELEASE_AGAIN_AFTER = 0.02
"""Seconds between two tries to give a task back that is locked: a heartbeat under way takes a few milliseconds."""
_SUSPECT_FLUSH_TIMEOUT = 2.0
"""Seconds for which a suspect waits until earlier outcomes are written: if it kills the process, they must not be lost."""
_MOST_LOCKED = 10_000
"""The number of outcomes that may wait for locks. Heartbeats extend the leases of all of them, and a worker that is killed loses
what their tasks have done."""
_MAX_REFUSED = 3
"""The number of outcomes in a row that the database may refuse for good. Then it is no matter of a single task, and the worker
stops."""
_FAILED, _HANDED_OVER = EventType.FAILED, ClaimState.HANDED_OVER
"""Named once, as in `task_runner.py`."""

_Written: TypeAlias = tuple[frozenset[UUID], Mapping[UUID, UUID | None]]
"""The ids of the tasks whose lease was lost, and of those that another transaction keeps from ending, each with its batch where
that is what is locked. None: the task itself is."""
_NONE: Mapping[UUID, UUID | None] = {}


@dataclass(eq=False, repr=False)
class _SetAside:
    """Outcomes that wait for one lock, apart from the others."""

    outcomes: list[Outcome] = field(default_factory=list)
    retry_at: float = 0.0
    """When they are tried again (`time.monotonic()`)."""


@dataclass(eq=False, repr=False)
class Completer(threading.Thread):
    """Collects outcomes while a statement is under way, and writes them with the next one: no outcome waits for a clock.

    An outcome waits, and its lease is extended, until the database answers, which alone knows whether the claim still holds.

    An outcome whose task another transaction has locked waits apart from the others. So do all ends of a batch whose row is
    locked. The first of them has waited for that row as long as outcomes wait for a lock (`postgresql_session.py`). From then
    on the batch is tried by itself every half second, for a moment and in turn with what else has come, until it succeeds.
    """

    store: Store
    leases: Leases
    on_thread_failure: Callable[[BaseException], None]
    on_unblocked: Callable[[], None] = lambda: None
    """Called when outcomes were written that may let other tasks start."""
    on_member_failed: Callable[[], None] = lambda: None
    """Called when the failure of a task of a batch was written: the others may have to be cancelled."""
    durable: bool = True
    """False: a crash of the server may undo the most recent writes."""

    def __post_init__(self) -> None:
        super().__init__(name="outboxq-completer", daemon=True)
        self.can_write = threading.Event()
        """Set while outcomes can be written and not too many wait for locks. Otherwise nothing is claimed: its outcome could wait, too."""
        self.can_write.set()
        self._outcomes: queue.SimpleQueue[Outcome | threading.Event | None] = queue.SimpleQueue()
        """The outcomes to write, events to set once all before them are written, and None for the end."""
        self._locked: dict[UUID | None, _SetAside] = {}
        """The outcomes that wait for a lock, by their batch where they need its row. None: their tasks are locked."""
        self._refused = 0
        self._failing = FailureLog(log, level=logging.WARNING)

    def put(self, outcome: Outcome, active: ActiveClaim | None = None) -> None:
        """Write the outcome with the next statement. Until then, heartbeats keep the claim that it ends."""
        if active is not None:
            active.state = _HANDED_OVER
            if self.leases.is_void(active.context) and outcome.event_type is not EventType.RELEASED:
                text = "%s: its lease was lost, so its outcome %s is discarded"
                log.warning(text, outcome.claim, outcome.event_type, extra=fields_of(outcome.claim, outcome=LOST))
                outcome = released(outcome.claim, "its lease was lost while it ran")
        self._outcomes.put(outcome)

    def give_back(self, claims: Iterable[ActiveClaim], reason: str, *, delay: timedelta = timedelta(0)) -> None:
        """Release claims that were not begun: no attempt is used."""
        for active in claims:
            self.put(released(active.claim, reason, delay=delay), active)

    def committed(self, outcome: Outcome, active: ActiveClaim) -> None:
        """Count a completion that the task's own transaction has committed: nothing is left to write."""
        self.leases.meter.ended([outcome], [active.timing])
        self._notify_unblocked([outcome.claim])

    def lost(self, active: ActiveClaim) -> None:
        """Count an attempt that ends without an outcome, because its lease was lost."""
        self.leases.mark_lost(active.claim)
        self.leases.meter.lost(active.claim, active.timing)

    def begin(self, claim: Claim) -> bool:
        """Write that a suspect begins, after the outcomes before it. Returns whether its claim still holds."""
        self.flush(_SUSPECT_FLUSH_TIMEOUT)
        return self.store.begin(claim)

    @property
    def has_locked(self) -> bool:
        """Return whether an outcome waits for a row that another transaction has locked."""
        return bool(self._locked)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every outcome put so far is written, has failed, or waits for a lock. Returns False after `timeout` seconds."""
        written = threading.Event()
        self._outcomes.put(written)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not (done := written.wait(max(0.0, min(_CHECK_EVERY, deadline - time.monotonic())))):
            if not self.is_alive() or time.monotonic() >= deadline:
                break
        return done

    def finish(self) -> None:
        """Write what was put so far, and end. The caller joins the thread."""
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
        """Write what has come, and then what has waited for a lock longest, if that is due. Returns False after the end."""
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
        """Let the worker claim unless too many outcomes wait for locks."""
        waiting = sum(len(one.outcomes) for one in self._locked.values())
        if waiting < _MOST_LOCKED:
            self.can_write.set()
        elif self.can_write.is_set():
            self.can_write.clear()
            text = "%d outcomes wait for rows that other transactions have locked; nothing more is claimed until fewer wait"
            log.warning(text, waiting)

    def _pause(self) -> float:
        """Return the seconds until locked outcomes are tried again."""
        due = min(waiting.retry_at for waiting in self._locked.values())
        return max(0.0, due - time.monotonic())

    def _write_new(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes that have come. The end of a task whose batch others wait for waits with them."""
        if self._locked:
            others = []
            for outcome in outcomes:
                batch = _batch_of(outcome)
                if batch is None or batch not in self._locked:
                    others.append(outcome)
                elif _needs_batch(outcome):
                    self._locked[batch].outcomes.append(outcome)
                else:
                    self._set_aside(outcome, None, retry_at=0.0)  # by itself, at once
            outcomes = others
        if outcomes:
            self._write(outcomes)

    def _write_locked(self) -> None:
        """Try those outcomes again that wait for one lock."""
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
        """Have an outcome wait for a lock with the others of its batch. `retry_at` counts for the first of them."""
        if (waiting := self._locked.get(batch)) is None:
            waiting = self._locked[batch] = _SetAside(retry_at=retry_at)
        waiting.outcomes.append(outcome)

    def _write(self, outcomes: Sequence[Outcome], *, skip_locked: bool = False) -> None:
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
            # The hash of a UUID takes 0.1 us (`python -m timeit -s "import uuid; one = uuid.uuid4()" "hash(one)"`).
            self.leases.drop(*(outcome.claim for outcome in outcomes if not locked or outcome.claim.id not in locked))
        if locked:
            for outcome in outcomes:
                if (task_id := outcome.claim.id) in locked:
                    batch = locked[task_id]
                    later = time.monotonic() + _RETRY_AFTER
                    self._set_aside(outcome, batch, retry_at=later if batch is None else 0.0)
        self.leases.on_failpoint(Failpoint.AFTER_FINISH)

    def _notify_unblocked(self, claims: Iterable[Claim]) -> None:
        """Wake the claim loop if the end of one of these claims may let other tasks start."""
        if any(claim.makes_way for claim in claims):
            self.on_unblocked()

    def _drop_lost(self, outcomes: Sequence[Outcome], asked: float) -> frozenset[UUID]:
        """Drop the claims of these outcomes, whose leases the database did not find when it was `asked` (`time.monotonic()`).

        Returns the ids of the tasks that this worker has claimed again since then: their outcomes are tried again.
        """
        again = set()
        for outcome in outcomes:
            if self.leases.drop_lost(outcome.claim, asked=asked):
                text = "%s: its lease was lost, so its outcome %s is discarded"
                log.warning(text, outcome.claim, outcome.event_type, extra=fields_of(outcome.claim, outcome=LOST))
            else:
                again.add(outcome.claim.id)
        return frozenset(again)

    def _write_until_answered(self, outcomes: Sequence[Outcome], *, skip_locked: bool) -> _Written:
        """Write the outcomes. Returns those whose lease was lost, and those that a lock keeps from being written.

        Returns once the database has answered, or the worker's time is over. `skip_locked`: wait a moment at most for a lock.
        Raises FileUnusable, since no other outcome could be written either.
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
                    skip_locked = True  # it also finds what a try has written whose COMMIT was not answered
                else:
                    return self._each(outcomes) if len(outcomes) > 1 else self._replace_refused(outcomes[0], error)
            else:
                self._refused = 0
                self._allow_claims()
                self._failing.worked("outcomes are written again")
                self._count(outcomes, lost, locked)
                return lost, dict.fromkeys(locked)

    def _divide(self, outcomes: Sequence[Outcome]) -> _Written:
        """Write what one lock keeps from being written together, without waiting for that lock again and again.

        What needs no row of a batch is written first. The ends of each batch are set aside, to be tried by themselves.
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
        """Write each outcome by itself: one that cannot be written must not hold up the others."""
        lost: frozenset[UUID] = frozenset()
        locked: dict[UUID, UUID | None] = {}
        for outcome in outcomes:
            written = self._write_until_answered([outcome], skip_locked=True)
            lost |= written[0]
            locked |= written[1]
        return lost, locked

    def _wait_to_retry(self, error: Exception, tries: int, outcomes: int) -> bool:
        """Pause if the same outcomes may be written later. Returns whether they may."""
        if self.store.gone.is_set():
            return False
        if self.store.may_pass(error):
            pause = _RETRY_AFTER
        elif self.store.cannot_write_now(error):
            pause = min(_RETRY_AFTER * 2 ** min(tries, 10), _LONGEST_PAUSE)
        else:
            return False
        self.can_write.clear()
        wait, them = plural(outcomes, "outcome waits", "outcomes wait"), plural(outcomes, "it", "them")
        self._failing.failed(f"{outcomes} {wait} for the database, which could not write {them}", error)
        self.store.gone.wait(pause)
        return True

    def _replace_refused(self, outcome: Outcome, error: Exception) -> _Written:
        """Write a failure in place of an outcome that the database refuses, so that the handler does not run again for nothing.

        Raises OutcomesRefused if that is refused, too, for several outcomes in a row.
        """
        what = f"task {outcome.claim.id}: its outcome {outcome.event_type} could not be written"
        say(log, logging.ERROR, what, error, fields=fields_of(outcome.claim))
        if self.store.gone.is_set():
            return frozenset(), _NONE
        self._allow_claims()  # the database has answered
        try:
            if outcome.event_type is EventType.RELEASED:
                raise error  # its handler has not run: it is recovered when its lease has run out
            failure = unwritable(outcome, error)
            lost = self.store.finish([failure], durable=self.durable, waits=False)
        except Exception as again:
            self._refused += 1
            if self._refused >= _MAX_REFUSED:
                raise OutcomesRefused(
                    f"the database refuses to record outcomes ({again}); this worker claims nothing more; grant the "
                    "missing rights or repair the tables, then start it again"
                ) from again
            return frozenset(), _NONE
        self._refused = 0
        self._count([failure], lost)
        return lost, _NONE

    def _count(self, outcomes: Sequence[Outcome], lost: frozenset[UUID], locked: frozenset[UUID] = frozenset()) -> None:
        """Count what the database has answered, while the leases are held: they know the times."""
        answered = [outcome for outcome in outcomes if outcome.claim.id not in locked] if locked else outcomes
        self.leases.meter.ended(answered, self.leases.timings(answered), lost=lost)


def _batch_of(outcome: Outcome) -> UUID | None:
    """Return the id of the batch that the task is of."""
    pipeline = outcome.claim.pipeline_execution_id
    return pipeline if is_batch(pipeline) else None


def _needs_batch(outcome: Outcome) -> bool:
    """Return whether the outcome changes the row of its batch. One that makes the task Ready does so only after a cancel request."""
    return STATUS_AFTER[outcome.event_type] is not TaskStatus.READY and is_batch(outcome.claim.pipeline_execution_id)


@dataclass(eq=False, repr=False)
class Handback:
    """Releases the claims that a worker still holds when its time is over."""

    store: Store
    leases: Leases
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def give_back(self, timeout: float) -> int:
        """Release the claims that are still held, which fences their handlers. Returns how many had not ended by themselves.

        It takes at most `timeout` seconds, for the database may not answer.

        Only one call runs at a time: a second one would pass over rows that the first has locked, and its process might end
        before the first has committed.
        """
        with self._lock:
            held = [one for one in self.leases.held() if one.state is not ClaimState.COMMITTED]
            for one in held:
                one.context.was_lost = True
                fields = fields_of(one.claim, outcome=OUTCOMES[EventType.RELEASED])
                log.warning("%s did not finish in time and is given back", one.claim, extra=fields)
            outcomes = [with_notes(released(one.claim, STOPPED), one.context) for one in held]
            if not outcomes:
                return 0
            given_back = len(outcomes)
            ended: list[int] = []
            over = threading.Event()
            run_with_timeout(timeout, lambda: ended.append(self._release(outcomes, over)))
            over.set()
            return given_back - sum(ended)

    def _release(self, outcomes: list[Outcome], over: threading.Event) -> int:
        """Write the releases; try locked ones again until `over` is set. Returns how many had ended meanwhile."""
        ended = 0
        with releasing(outcomes, self.leases.on_failpoint):
            while True:
                lost, locked = self._finish(outcomes)
                ended += len(lost)
                given_back = [outcome for outcome in outcomes if outcome.claim.id not in lost | locked]
                self.leases.meter.ended(given_back, self.leases.timings(given_back))
                if not locked or over.wait(_RELEASE_AGAIN_AFTER):
                    break
                outcomes[:] = [outcome for outcome in outcomes if outcome.claim.id in locked]
            if locked:
                log.warning(
                    "could not give back %d tasks, which another transaction has locked; their leases will run out",
                    len(locked),
                )
        return ended

    def _finish(self, outcomes: Sequence[Outcome]) -> tuple[frozenset[UUID], frozenset[UUID]]:
        """Write the releases. Returns the ids of those that had ended, and of those that a lock keeps from being released.

        A release ends a task that is to be cancelled, and so waits for the row of its batch. The others are released.
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
    """Log an error of the block, which writes these releases. The leases of the tasks then run out."""
    try:
        on_failpoint(Failpoint.BEFORE_RELEASE)
        yield
        on_failpoint(Failpoint.AFTER_RELEASE)
    except Exception as error:  # noqa: BLE001 - whatever it was, the worker is about to end
        say(
            log,
            logging.ERROR,
            f"could not give back {len(outcomes)} {plural(len(outcomes), 'task; its lease', 'tasks; their leases')} will run out",
            error,
        )
