"""The claims that this process holds, and the heartbeat that extends their leases."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import Protocol
from uuid import UUID

from ..context import TaskContext
from ..model import Claim, Outcome
from ..model.records import LOST, fields_of
from ..model.running import Progress
from ..model.wording import plural
from ..store import Lease, Store
from ..store.claims.ends import Beat
from ..store.failure_log import FailureLog, say
from .failpoints import Failpoint, OnFailpoint, ignore_failpoint
from .meter import UNKNOWN, Meter, Timing

log = logging.getLogger("outboxq.worker")

BEATS_PER_LEASE = 3
_LONGEST_PAUSE = 60.0
_RETRY_AFTER = 0.5
"""Seconds until a heartbeat that failed or found a row locked is sent again. Recovery waits longer before it considers
a worker dead (`upkeep/recovery.py`), so after an outage the heartbeat is sent before recovery can act.
"""


class ClaimState(Enum):
    """The states of a claim that this process holds, in chronological order."""

    HELD = auto()
    """The claim is waiting for a handler thread, or its handler is running."""
    ENDING = auto()
    """The claim's transaction is about to commit the completion, or has been interrupted. From then on, the loss of the
    lease is not reported.
    """
    COMMITTED = auto()
    """The claim's transaction has committed the completion, so the outcome no longer needs to be written."""
    HANDED_OVER = auto()
    """The completer has the claim's outcome, and drops the claim once the outcome is written."""


@dataclass(kw_only=True)
class ActiveClaim:
    """A claim that this process holds."""

    claim: Claim
    context: TaskContext
    next_beat: float
    sent: float
    """The time at which the claim was requested (`time.monotonic()`)."""
    state: ClaimState = ClaimState.HELD
    claimed_again_at: float = -math.inf
    """The time at which this worker claimed the task again after a server crash (`time.monotonic()`). Answers to
    earlier queries do not count.
    """
    child: int | None = None
    """The id of the child process that is running the handler. None if the handler is running in a thread."""
    is_limited: bool = False
    """True if the worker enforces the task's timeout."""
    warned_late: bool = False
    """True once the worker has logged the warning that the handler has run past the timeout."""
    was_locked: bool = False
    """True if the last heartbeat found the claim's row locked, so the claim's next heartbeat is sent separately."""
    warned_unreachable: bool = False
    """True once the worker has logged the warning that the lease expired before the database could be reached."""
    written: Progress | None = None
    """The last progress that a heartbeat wrote or failed to write."""
    first_sent: float | None = None
    """If this worker has claimed the task again, the time at which it first requested the claim (`time.monotonic()`).
    """
    is_counted: bool = False
    """True after the meter has counted the attempt. `Leases.count` sets this field."""

    @property
    def timing(self) -> Timing:
        """Return how long the task waited between its due time and the start of its handler, and how long the handler
        ran.
        """
        claim, began, ended = self.claim, self.context.began, self.context.ended
        if began is None:
            return UNKNOWN
        waited, since = began - (self.sent if self.first_sent is None else self.first_sent), claim.waits_since
        if since is not None:
            waited += (claim.started_at - since).total_seconds()
        return waited if waited > 0 else 0.0, None if ended is None else ended - began

    def warn_if_late(self) -> None:
        """Warn once that the handler has run past its timeout. The timeout is checked at each heartbeat and when the
        handler has ended.
        """
        if self.context.timed_out and not self.warned_late:
            self.warned_late = True
            does = (
                "TaskTimeout is raised in its handler" if self.is_limited else "its handler should check ctx.timed_out"
            )
            text = f"%s has run past its timeout of %g s; {does}"
            log.warning(text, self.claim, self.claim.timeout_seconds, extra=fields_of(self.claim))


class Outcomes(Protocol):
    """Takes the outcomes of claims from the code that runs their handlers."""

    def put(self, outcome: Outcome, active: ActiveClaim | None = None) -> None:
        """Accept an outcome to be written. The outcome ends `active`, this process's claim."""

    def committed(self, outcome: Outcome, active: ActiveClaim) -> None:
        """Record a completion that the task's transaction has committed."""

    def lost(self, active: ActiveClaim) -> None:
        """Record an attempt that ended without an outcome because its lease was lost."""


class LeaseView(Protocol):
    """Knows whether a claim's lease is still valid, and records when the lease ends."""

    def is_void(self, context: TaskContext) -> bool:
        """Return whether this attempt's outcome must not count, even if the database accepts it."""

    def hold_until(self, context: TaskContext, deadline: float) -> None:
        """Record that the lease is valid until `deadline` (`time.monotonic()`). Infinity means that the lease is valid
        as long as a transaction holds the database's only lock.
        """

    def ending(self, active: ActiveClaim) -> None:
        """Record that the claim is about to end. From then on, the loss of its lease is not reported."""

    def mark_lost(self, claim: Claim) -> None:
        """Tell the handler that the lease of this claim has ended in the database."""


@dataclass(eq=False, repr=False)
class Leases:
    """The claims that this process holds. `run_once()` sends one heartbeat that extends their leases."""

    store: Store
    """A store with a reserved connection for heartbeats."""
    heartbeat: timedelta | None = None
    """The longest time between two heartbeats. None means a third of each lease."""
    on_failpoint: OnFailpoint = ignore_failpoint
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self._longest_interval = math.inf if self.heartbeat is None else self.heartbeat.total_seconds()
        self.broke_at = -math.inf
        """The time at which a connection to the server was last lost (`time.monotonic()`). The server may have crashed
        and lost claims.
        """
        self.beat_moved = threading.Event()
        """A `threading.Event` that is set when the next heartbeat may be due earlier than `pause()` last indicated."""
        self._held: dict[UUID, ActiveClaim] = {}
        self._lock = threading.Lock()
        self._failing = FailureLog(log)

    def hold(self, contexts: Iterable[TaskContext], *, sent: float) -> list[ActiveClaim]:
        """Start extending the leases of these claims. The caller sets `beat_moved`.

        `sent` is the value of `time.monotonic()` before the claim was requested.
        """
        new = []
        for context in contexts:
            claim = context.claim
            # The lease is timed from just before the claim was requested, so that it never expires later here than
            # in the database.
            context.deadline = sent + claim.lease_seconds
            new.append(
                ActiveClaim(claim=claim, context=context, next_beat=sent + self._beat_interval(claim), sent=sent)
            )
        with self._lock:
            self._held.update((one.claim.id, one) for one in new)
        return new

    def note_break(self) -> None:
        """Record that a connection to the server was lost, or may have been."""
        self.broke_at = time.monotonic()

    def hold_on(self, claim: Claim, *, sent: float) -> bool:
        """Keep a claim that this worker has acquired again after a server crash. Returns False if this process does not
        hold the claim.

        The worker and the token are the same as before the crash, so the running handler continues under the new claim.
        A handler that was informed that its lease was lost is not told about the new claim. The handler may have
        stopped halfway, so its outcome does not count (`is_void`).
        """
        with self._lock:
            one = self._find(claim)
            if one is None:
                return False
            if one.first_sent is None:
                one.first_sent = one.sent
            one.sent, one.next_beat = sent, sent + self._beat_interval(claim)
            one.claimed_again_at = time.monotonic()
            one.context.deadline = sent + claim.lease_seconds
        return True

    def not_held(self, claims: Sequence[Claim], *, sent: float) -> list[Claim]:
        """Keep the claims that this process already holds (`hold_on`), and return the others."""
        held = [claim for claim in claims if self.hold_on(claim, sent=sent)]
        for claim in held:
            text = "%s: the server had lost this claim, but this worker still has the task, and has claimed it again"
            log.warning(text, claim, extra=fields_of(claim))
        return [claim for claim in claims if claim not in held]

    def is_void(self, context: TaskContext) -> bool:
        """Return whether an outcome must not count, even if the database accepts it.

        After a server crash, this worker may have the same claim again. But a handler that was informed that its lease
        was lost may have stopped halfway.
        """
        return context.was_lost and self.broke_at > -math.inf

    def hold_until(self, context: TaskContext, deadline: float) -> None:
        with self._lock:
            context.deadline = deadline

    def _extend(self, one: ActiveClaim, sent: float) -> None:
        """Record that the heartbeat sent at this time has extended the lease. If the handler acquired the database's
        only lock after that heartbeat was written, the lease still lasts as long as the handler's transaction.
        """
        with self._lock:
            if one.context.deadline != math.inf:
                one.context.deadline = sent + one.claim.lease_seconds

    def ending(self, active: ActiveClaim) -> None:
        active.state = ClaimState.ENDING

    def running(self) -> list[Claim]:
        """Return the claims whose handlers are running. The method takes no lock, so a signal handler may call it."""
        known = list(self._held.values())
        return [one.claim for one in known if one.context.began is not None and one.context.ended is None]

    def in_children(self) -> list[tuple[Claim, int]]:
        """Return the claims whose handlers are running in child processes, with the process ids. The method takes no
        lock.
        """
        known = list(self._held.values())
        return [(one.claim, child) for one in known if (child := one.child) is not None]

    def holds(self, claim: Claim | Lease) -> bool:
        """Return whether this process holds the claim: its task is waiting or running, or its outcome is not written
        yet.
        """
        with self._lock:
            return self._find(claim) is not None

    def _find(self, claim: Claim | Lease) -> ActiveClaim | None:
        """Return the worker's entry for this claim; None if the worker does not have the claim, or has a later claim of
        the same task. The caller has the lock.
        """
        one = self._held.get(claim.id)
        if one is None or (one.claim.lease_token, one.claim.worker_id) != (claim.lease_token, claim.worker_id):
            return None
        return one

    def beat_at_once(self) -> None:
        """Send the next heartbeat now. Because a clock was changed, other workers may believe that these leases have
        expired.
        """
        for one in self.held():
            one.next_beat = -math.inf
        self.beat_moved.set()

    def drop(self, *claims: Claim) -> None:
        with self._lock:
            for claim in claims:
                one = self._held.pop(claim.id, None)
                if one is not None and one.claim.lease_token != claim.lease_token:
                    self._held[claim.id] = one  # it is a later claim; a reader without the lock may briefly miss it

    def drop_lost(self, claim: Claim, *, asked: float) -> bool:
        """Drop a claim that the database has ended. Returns False if this worker has claimed the task again since
        `asked` (`time.monotonic()`), and so still holds the claim.
        """
        with self._lock:
            if (one := self._find(claim)) is not None:
                if one.claimed_again_at > asked:
                    return False
                del self._held[claim.id]
                self._mark_lost(one)
        return True

    def mark_lost(self, claim: Claim) -> None:
        with self._lock:
            if (one := self._find(claim)) is not None:
                self._mark_lost(one)

    def _mark_lost(self, one: ActiveClaim) -> bool:
        """Inform the handler that its lease was lost, and count the loss. Returns False if the handler already knows.
        The caller has the lock.
        """
        if one.context.was_lost:
            return False
        one.context.was_lost = True
        self.meter.lease_lost(one.claim.queue)
        return True

    def count(
        self,
        outcomes: Sequence[Outcome],
        attempts: Sequence[ActiveClaim | None],
        *,
        lost: Collection[UUID] = frozenset(),
    ) -> None:
        """Count how these attempts ended, except those that have already been counted. None stands for a claim that
        this process never held. The completer and a stopping worker's release may both end an attempt; whichever comes
        first counts the attempt.
        """
        with self._lock:
            new = [
                (outcome, one)
                for outcome, one in zip(outcomes, attempts, strict=True)
                if one is None or not one.is_counted
            ]
            for _, one in new:
                if one is not None:
                    one.is_counted = True
        timings = [UNKNOWN if one is None else one.timing for _, one in new]
        self.meter.ended([outcome for outcome, _ in new], timings, lost=lost)

    def count_lost(self, attempt: ActiveClaim) -> None:
        """Count an attempt that ended without an outcome, unless it has already been counted."""
        with self._lock:
            if attempt.is_counted:
                return
            attempt.is_counted = True
        self.meter.lost(attempt.claim, attempt.timing)

    def held(self) -> list[ActiveClaim]:
        with self._lock:
            return list(self._held.values())

    def pause(self) -> float:
        """Return the number of seconds until the next heartbeat is due."""
        now = time.monotonic()
        due = min((one.next_beat for one in self.held()), default=now + _LONGEST_PAUSE)
        return min(max(0.0, due - now), _LONGEST_PAUSE)

    def run_once(self) -> None:
        """Send one heartbeat for all claims. A lease counts as lost only if the database says so, and not merely
        because the database is not responding.
        """
        held = self._claims_to_beat()
        if not held:
            return
        for one in held:
            one.warn_if_late()
        sent = time.monotonic()
        try:
            self.on_failpoint(Failpoint.BEFORE_BEAT)
            beats = self._beat(held)
            self.on_failpoint(Failpoint.AFTER_BEAT)
        except Exception as error:  # noqa: BLE001 - whatever the error is, the next heartbeat may succeed
            self._failing.failed(f"heartbeat for {len(held)} {plural(len(held), 'task')} failed; trying again", error)
            for one in held:
                one.next_beat = sent + self._retry_interval(one.claim)
                self._warn_if_unreachable(one)
            return
        self._failing.worked("the heartbeat works again")
        self.meter.answered()
        for one in held:
            beat = beats.get(one.claim.id)
            if beat is None:
                if self._missed(one, asked=sent):
                    text = "lost the lease of %s: another worker may run it"
                    log.warning(text, one.claim, extra=fields_of(one.claim, outcome=LOST))
                continue
            one.was_locked = beat.lease_expires_at is None
            if one.was_locked:
                one.next_beat = sent + self._retry_interval(one.claim)
            else:
                self._extend(one, sent)
                one.next_beat = sent + self._beat_interval(one.claim)
                one.warned_unreachable = False
            if beat.cancel_requested:
                one.context.cancel_requested = True

    def _beat(self, held: Sequence[ActiveClaim]) -> dict[UUID, Beat]:
        """Send a heartbeat for these claims. The heartbeat also writes the progress that the claims' handlers have
        reported since the previous one.

        If the database refuses the progress, the heartbeat is sent without it, so that the lease is not lost.
        """
        claims = [one.claim for one in held]
        reported = {one.claim.id: one.context.reported for one in held}
        if all(reported[one.claim.id] is one.written for one in held):
            return self.store.heartbeat(claims)
        progress = {task_id: one for task_id, one in reported.items() if one is not None}
        try:
            beats = self.store.heartbeat(claims, progress=progress)
        except Exception as error:
            if self.store.may_pass(error) or self.store.cannot_write_now(error):
                raise
            say(log, logging.WARNING, "the progress of running tasks could not be written and is left out", error)
            for one in held:
                one.written = reported[one.claim.id]
            return self.store.heartbeat(claims)
        for one in held:
            beat = beats.get(one.claim.id)
            if beat is not None and beat.lease_expires_at is not None:
                one.written = reported[one.claim.id]
        return beats

    def _missed(self, one: ActiveClaim, *, asked: float) -> bool:
        """Record that the heartbeat sent at `asked` did not find this claim. Returns True if the claim's handler had
        not been informed yet.
        """
        with self._lock:
            if one.claimed_again_at > asked:
                return False
            one.next_beat = math.inf
            return one.state is ClaimState.HELD and self._held.get(one.claim.id) is one and self._mark_lost(one)

    def _claims_to_beat(self) -> list[ActiveClaim]:
        """Return all held claims. If no other heartbeat is due, return only the claims whose rows were locked at the
        last heartbeat.
        """
        held, soon = self.held(), time.monotonic() + _RETRY_AFTER
        due = [one for one in held if one.next_beat <= soon]
        return due if due and all(one.was_locked for one in due) else held

    def _beat_interval(self, claim: Claim) -> float:
        return min(claim.lease_seconds / BEATS_PER_LEASE, self._longest_interval)

    def _retry_interval(self, claim: Claim) -> float:
        return min(self._beat_interval(claim) / 4, _RETRY_AFTER)

    def _warn_if_unreachable(self, one: ActiveClaim) -> None:
        """Warn, once per outage, that a lease has expired by this worker's clock. Only the database knows whether the
        lease was lost.
        """
        if one.context.lost and not one.warned_unreachable and one.state is ClaimState.HELD:
            one.warned_unreachable = True
            log.warning(
                "the lease of %s expired before the database could be reached; its handler keeps running, and its outcome counts "
                "unless another worker claims the task first",
                one.claim,
                extra=fields_of(one.claim),
            )
