"""The duties of a worker besides claiming: it extends the leases it holds, and says that it is there."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..context import TaskContext
from ..errors import FileUnusable
from ..model import Claim
from ..store import Lease, Store
from ..store.failure_log import FailureLog
from .failpoints import Failpoint, OnFailpoint

log = logging.getLogger("outboxq.worker")

BEATS_PER_LEASE = 3
REGISTER_EVERY = 30.0
_LONGEST_PAUSE = 60.0
_RETRY_AFTER = 0.5
"""Seconds until a heartbeat is sent again that failed, or found a row locked. Recovery waits longer before it believes that a
worker is dead (`recovery.py`), so after an outage the heartbeat comes first."""


@dataclass(kw_only=True)
class ActiveClaim:
    """A claim this process holds."""

    claim: Claim
    context: TaskContext
    next_beat: float
    finishing: bool = False
    """Its outcome is on the way to the database: that its lease is gone is no news then."""
    warned_late: bool = False
    """It was said that its handler runs past its timeout."""
    was_locked: bool = False
    """Its last heartbeat found it locked, so that the next one is sent for it apart from the others."""
    warned_unreachable: bool = False
    """It was said that its lease ended here before the database could be reached."""


class Leases:
    """The claims this process holds, kept alive by `beat()`."""

    def __init__(self, store: Store, *, heartbeat: timedelta | None, on_failpoint: OnFailpoint) -> None:
        """`store` on a connection reserved for this. `heartbeat` bounds the time between beats; None: a third of each lease."""
        self._store = store
        self._on_failpoint = on_failpoint
        self._bound = math.inf if heartbeat is None else heartbeat.total_seconds()
        self.changed: Callable[[], None] = lambda: None
        """To be called when the next beat may be due earlier than `pause()` last said."""
        self._held: dict[UUID, ActiveClaim] = {}
        self._lock = threading.Lock()
        self._failing = FailureLog(log)

    def hold(self, claims: Iterable[tuple[Claim, TaskContext]], *, sent: float) -> list[ActiveClaim]:
        """Keep these alive, once `changed()` is called. `sent`: `time.monotonic()` before the claim was sent."""
        new = []
        for claim, context in claims:
            # Counted from before the claim was sent: never later than the database's own.
            context.deadline = sent + claim.lease_seconds
            new.append(ActiveClaim(claim=claim, context=context, next_beat=sent + self._beat_interval(claim)))
        with self._lock:
            self._held.update((one.claim.id, one) for one in new)
        return new

    def holds(self, claim: Claim) -> bool:
        """Return whether this process has the claim in its hands: it lies ahead, runs, or its outcome is to be written."""
        return self._find(claim) is not None

    def has(self, lease: Lease) -> bool:
        """Return whether this lease is one that `holds` speaks of."""
        with self._lock:
            one = self._held.get(lease.id)
        return one is not None and (one.claim.lease_token, one.claim.worker_id) == (lease.lease_token, lease.worker_id)

    def beat_at_once(self) -> None:
        """Have the next heartbeat sent now: a clock was set, and to others these leases may seem to have ended."""
        for one in self.held():
            one.next_beat = -math.inf
        self.changed()

    def ending(self, claim: Claim) -> None:
        """The claim's outcome is about to be written; it is beaten for until it is dropped."""
        if (one := self._find(claim)) is not None:
            one.finishing = True

    def lose(self, claim: Claim) -> None:
        """The claim is given up: tell its handler."""
        if (one := self._find(claim)) is not None:
            one.context.lose()

    def drop(self, *claims: Claim) -> None:
        with self._lock:
            for claim in claims:
                one = self._held.get(claim.id)
                if one is not None and one.claim.lease_token == claim.lease_token:
                    del self._held[claim.id]

    def held(self) -> list[ActiveClaim]:
        with self._lock:
            return list(self._held.values())

    def pause(self) -> float:
        """Seconds until the next beat is due."""
        now = time.monotonic()
        due = min((one.next_beat for one in self.held()), default=now + _LONGEST_PAUSE)
        return min(max(0.0, due - now), _LONGEST_PAUSE)

    def beat(self) -> None:
        """Send one heartbeat for all. Only what the database denies is lost; while it does not answer, nobody knows."""
        held = self._claims_to_beat()
        if not held:
            return
        for one in held:
            self.warn_if_late(one)
        sent = time.monotonic()
        try:
            self._on_failpoint(Failpoint.BEFORE_BEAT)
            beats = self._store.heartbeat([one.claim for one in held])
            self._on_failpoint(Failpoint.AFTER_BEAT)
        except Exception as error:  # noqa: BLE001 - whatever it was, the next beat may come through
            self._failing.failed(f"heartbeat for {len(held)} tasks failed; trying again", error)
            for one in held:
                one.next_beat = sent + self._retry_interval(one.claim)
                self._warn_if_unreachable(one)
            return
        self._failing.worked("the heartbeat works again")
        for one in held:
            beat = beats.get(one.claim.id)
            if beat is None:
                one.next_beat = math.inf
                if not one.finishing and self._find(one.claim) is one:
                    self._lose(one, "another worker may run it")
                continue
            one.was_locked = beat.lease_expires_at is None
            if one.was_locked:
                one.next_beat = sent + self._retry_interval(one.claim)
            else:
                one.context.deadline, one.next_beat = (
                    sent + one.claim.lease_seconds,
                    sent + self._beat_interval(one.claim),
                )
                one.warned_unreachable = False
            if beat.cancel_requested:
                one.context.request_cancel()

    def _claims_to_beat(self) -> list[ActiveClaim]:
        """Return all that are held, or only those that were locked the last time, if nothing else is due."""
        held, soon = self.held(), time.monotonic() + _RETRY_AFTER
        due = [one for one in held if one.next_beat <= soon]
        return due if due and all(one.was_locked for one in due) else held

    def warn_if_late(self, one: ActiveClaim) -> None:
        """Once: with a heartbeat, or at the latest when its handler has ended."""
        if one.context.timed_out and not one.warned_late:
            one.warned_late = True
            log.warning(
                "task %s (%s) runs past its timeout of %g s; its handler is to look at ctx.timed_out",
                one.claim.id,
                one.claim.task_name,
                one.claim.timeout_seconds,
            )

    def _beat_interval(self, claim: Claim) -> float:
        return min(claim.lease_seconds / BEATS_PER_LEASE, self._bound)

    def _retry_interval(self, claim: Claim) -> float:
        return min(self._beat_interval(claim) / 4, _RETRY_AFTER)

    def _warn_if_unreachable(self, one: ActiveClaim) -> None:
        """Once for each outage: until the database answers, nobody knows whether the lease still holds."""
        if one.context.lost and not one.warned_unreachable and not one.finishing:
            one.warned_unreachable = True
            log.warning(
                "the lease of task %s (%s) ended before the database could be reached; it goes on, and what it returns counts "
                "if nobody has taken the task by then",
                one.claim.id,
                one.claim.task_name,
            )

    def _find(self, claim: Claim) -> ActiveClaim | None:
        """What is held for just this claim, not for a later one of the same task."""
        with self._lock:
            one = self._held.get(claim.id)
        return one if one is not None and one.claim.lease_token == claim.lease_token else None

    def _lose(self, one: ActiveClaim, why: str) -> None:
        if one.context.lose():
            log.warning("lost the lease of task %s (%s): %s", one.claim.id, one.claim.task_name, why)


class WorkerRegistration:
    """Says which workers there are, and what they take: for people, `explain` and statistics. Nothing relies on it.

    One that could not say so counts as gone after 90 s without a sign.
    """

    def __init__(
        self, store: Store, worker_id: UUID, *, met: Callable[[], Collection[tuple[str, str]]], **description: Any
    ) -> None:
        """`met`: queue and name of the tasks that the worker met lately and does not know. `description` is what else
        `Store.register` takes.
        """
        self._store = store
        self._worker_id = worker_id
        self._met = met
        self._description = description
        self._written_unknown: Collection[tuple[str, str]] = ()
        self._due = 0.0
        self._ended = False
        self._lock = threading.Lock()
        """Another thread may be about to say that the worker is there while this one says that it is gone."""

    def begin(self) -> None:
        """Before any thread does: what runs while a worker is stopped may outlive its connections."""
        with suppress(Exception):  # the loop tries again
            self.run_once()

    def run_once(self) -> None:
        """Say that the worker is there, unless it has ended. May be called by any thread."""
        with self._lock:
            if self._ended:
                return
            self._due = time.monotonic() + REGISTER_EVERY * random.uniform(0.8, 1.0)  # noqa: S311
            self._written_unknown = met = self._met()
            if not self._store.seen(self._worker_id, unknown_tasks=met):
                self._store.unregister(self._worker_id)  # and those that have not been seen for a day
                self._store.register(self._worker_id, unknown_tasks=met, **self._description)

    def end(self) -> None:
        """Say that the worker is gone, if the database takes it.

        What it met and does not know stays for a while: a worker that knows those tasks finds them by it.
        """
        with self._lock:
            self._ended = True
            with suppress(Exception):
                self._store.unregister(self._worker_id, met_unknown=bool(self._met()))

    def pause(self) -> float:
        """Seconds until it is to be said again: at once when it met a name that it has not told of."""
        if set(self._met()) - set(self._written_unknown):
            return 0.0
        return max(0.0, self._due - time.monotonic())


def partitions_pause() -> float:
    """Seconds until partitions are made ahead again, where the history has them: there are three, so there is time."""
    return 3600 * random.uniform(0.5, 1.0)  # noqa: S311


class ServiceThread(threading.Thread):
    """Runs `once()` again and again, waiting in between as long as `pause()` says, until stopped.

    An error is logged and the loop goes on: the database may be away for a while. A file that cannot be used any more ends it,
    and the worker. `wake()` has it ask `pause()` anew.
    """

    def __init__(
        self,
        name: str,
        once: Callable[[], object],
        pause: Callable[[], float],
        on_thread_failure: Callable[[BaseException], None],
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_stop` is called in this thread after a stop, not after a death."""
        super().__init__(name=f"outboxq-{name}", daemon=True)
        self._once = once
        self._pause = pause
        self._on_thread_failure = on_thread_failure
        self._on_stop = on_stop
        self._stopped = False
        self._wake = threading.Event()

    def run(self) -> None:
        failing = FailureLog(log)
        try:
            while not self._stopped:
                if self._wake.wait(self._pause()):
                    self._wake.clear()
                    continue
                try:
                    self._once()
                    failing.worked(f"{self.name} works again")
                except FileUnusable as error:
                    return self._on_thread_failure(error)
                except Exception as error:  # noqa: BLE001
                    failing.failed(f"{self.name} failed; going on", error)
            self._on_stop()
        except BaseException as error:
            self._on_thread_failure(error)
            raise

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """To be joined."""
        self._stopped = True
        self.wake()
