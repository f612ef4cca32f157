"""What a worker does besides claiming: extend the leases it holds, take back those of the dead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from .context import TaskContext
from .model import Claim, TaskStatus
from .store import Store

log = logging.getLogger("outboxq.worker")

BEATS_PER_LEASE = 3
RECOVERY_BATCH = 100
_LONGEST_PAUSE = 60.0
_PATIENCE = 5.0  # for a loop that waits for a database which does not answer


@dataclass(kw_only=True)
class Held:
    """A claim this process holds."""

    claim: Claim
    context: TaskContext
    next_beat: float
    ending: bool = False
    """Its outcome is on the way to the database: that its lease is gone is no news then."""


class Leases:
    """The claims this process holds, kept alive by `beat()`."""

    def __init__(self, store: Store, *, heartbeat: timedelta | None = None) -> None:
        """`heartbeat` bounds the time between beats; None: a third of each lease."""
        self._store = store
        self._bound = float("inf") if heartbeat is None else heartbeat.total_seconds()
        self.changed: Callable[[], None] = lambda: None
        """Called when the next beat may be due earlier than `pause()` last said."""
        self._held: dict[UUID, Held] = {}
        self._lock = threading.Lock()

    def hold(self, claim: Claim, context: TaskContext, *, sent: float) -> None:
        """`sent`: `time.monotonic()` before the claim was sent."""
        one = Held(claim=claim, context=context, next_beat=sent + self._every(claim))
        # Counted from before the claim was sent: never later than the database's own.
        context.deadline = sent + claim.lease_seconds
        with self._lock:
            self._held[claim.id] = one
        self.changed()

    def ending(self, claim: Claim) -> None:
        """The claim's outcome is about to be written; it is beaten for until it is dropped."""
        if (one := self._own(claim)) is not None:
            one.ending = True

    def lose(self, claim: Claim) -> None:
        """The claim is given up: tell its handler."""
        if (one := self._own(claim)) is not None:
            one.context.lose()

    def drop(self, claim: Claim) -> None:
        if self._own(claim) is not None:
            with self._lock:
                self._held.pop(claim.id, None)

    def held(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def pause(self) -> float:
        """Seconds until the next beat is due."""
        now = time.monotonic()
        due = min((one.next_beat for one in self.held()), default=now + _LONGEST_PAUSE)
        return min(max(0.0, due - now), _LONGEST_PAUSE)

    def beat(self) -> None:
        """One heartbeat for all. What the database denies is lost; when it does not answer, what is past its deadline is."""
        held = self.held()
        if not held:
            return
        sent = time.monotonic()
        try:
            beats = self._store.heartbeat([one.claim for one in held])
        except Exception:
            log.exception("heartbeat for %d tasks failed; trying again", len(held))
            for one in held:
                one.next_beat = sent + self._every(one.claim) / 4
                if one.context.lost:
                    self._lose(one, "the database could not be reached before its lease ended")
            return
        for one in held:
            beat = beats.get(one.claim.id)
            if beat is None:
                one.next_beat = float("inf")
                if not one.ending and self._own(one.claim) is one:
                    self._lose(one, "another worker may run it")
                continue
            one.context.deadline, one.next_beat = sent + one.claim.lease_seconds, sent + self._every(one.claim)
            if beat.cancel_requested:
                one.context.request_cancel()

    def _every(self, claim: Claim) -> float:
        return min(claim.lease_seconds / BEATS_PER_LEASE, self._bound)

    def _own(self, claim: Claim) -> Held | None:
        """What is held for just this claim, not for a later one of the same task."""
        with self._lock:
            one = self._held.get(claim.id)
        return one if one is not None and one.claim.lease_token == claim.lease_token else None

    def _lose(self, one: Held, why: str) -> None:
        if one.context.lose():
            log.warning("lost the lease of task %s (%s): %s", one.claim.id, one.claim.task_name, why)


@dataclass(kw_only=True)
class Recovery:
    """Takes back expired leases. Every worker runs it: no registry, no leader."""

    store: Store

    def run_once(self) -> int:
        """One bounded batch; returns how many tasks were taken back."""
        found = self.store.recover(RECOVERY_BATCH)
        for one in found:
            level = logging.ERROR if one.status is TaskStatus.FAILED else logging.WARNING
            log.log(level, "task %s lost its worker: now %s, recovery %d", one.id, one.status, one.recovery_attempts)
        return len(found)


class Loop(threading.Thread):
    """Runs `once()` again and again, waiting in between as long as `pause()` says, until stopped.

    An error is logged and the loop goes on: the database may be away for a while. `look()` has it ask `pause()` anew.
    """

    def __init__(
        self,
        name: str,
        once: Callable[[], object],
        pause: Callable[[], float],
        died: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=f"outboxq-{name}", daemon=True)
        self._once = once
        self._pause = pause
        self._died = died
        self._stopped = False
        self._looking = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped:
                if self._looking.wait(self._pause()):
                    self._looking.clear()
                    continue
                try:
                    self._once()
                except Exception:
                    log.exception("%s failed; going on", self.name)
        except BaseException as error:
            self._died(error)
            raise

    def look(self) -> None:
        self._looking.set()

    def stop(self) -> None:
        self._stopped = True
        self.look()
        if self.is_alive():
            self.join(_PATIENCE)
