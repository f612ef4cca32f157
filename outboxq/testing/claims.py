"""Claim the tasks that a harness runs, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from ..database.target import Target
from ..model import Claim, EventType, Outcome
from ..model.batches import is_batch
from ..store import ClaimCursor, Store
from ..store.claims.due import look_with_schedules
from .clock import Clock


@dataclass(eq=False, kw_only=True)
class Claimer:
    """The worker that a harness simulates."""

    store: Store
    clock: Clock
    worker_id: UUID = field(default_factory=uuid4)
    cursor: ClaimCursor = field(default_factory=ClaimCursor)
    _queues: frozenset[str] | None = field(default=None, init=False)
    """The queues for which `cursor` was created; None means all queues."""

    def claim(self, queues: Sequence[str] | None, *, using: Target | None = None) -> Claim | None:
        """Claim the next task that is due."""
        if (names := None if queues is None else frozenset(queues)) != self._queues:
            self._queues, self.cursor = names, ClaimCursor()
        found = self.store.claim_ready_task(1, worker_id=self.worker_id, queues=queues, cursor=self.cursor, using=using)
        return found[0] if found else None


@dataclass(eq=False, kw_only=True)
class Series:
    """Tasks that run one after the other, each claimed in the transaction that ends the previous task.

    A tick in a series needs one transaction instead of three (to claim it, to end it, and to look for the next), which
    halves the time for a tick: `python -m benchmarks.ticks`.
    """

    claimer: Claimer
    queues: Sequence[str] | None
    planted: datetime
    """The time up to which ticks are planted. The series ends at that time."""
    may_go_on: Callable[[], bool]
    """A function that returns whether the harness has nothing else to do before the next claim."""
    claim: Claim | None = None
    """The next claim; None if the series has ended or must be interrupted."""
    moment: datetime = field(init=False)
    """The time of the next claim."""

    def begin(self) -> None:
        """Claim the first task without checking whether any task is due."""
        self.claimer.cursor.may_be_more = True
        self.claim, self.moment = self.claimer.claim(self.queues), self.claimer.clock()

    def take(self) -> Claim:
        """Remove and return the next claim."""
        assert self.claim is not None
        claim, self.claim = self.claim, None
        return claim

    def finish(self, outcome: Outcome) -> frozenset[UUID]:
        """End the claim as `Store.finish` does. If nothing has to happen before the next claim, claim the next task as
        well.
        """
        store = self.claimer.store
        ends_alone = outcome.event_type is EventType.COMPLETED and not is_batch(outcome.claim.pipeline_execution_id)
        if not (ends_alone and self.may_go_on()):  # otherwise, a batch would have to be counted, for example
            return store.finish([outcome])

        def work(target: Target) -> frozenset[UUID]:
            lost = store.finish([outcome], using=target)
            self.claim = None if lost else self._next(target)
            return lost

        try:
            return store.run(work, gives_up=lambda _: True)
        except Exception:  # noqa: BLE001 - a lasting error is raised again, by the statement in its own transaction
            self.claim, self.claimer.cursor = None, ClaimCursor()
            return store.finish([outcome])

    def _next(self, target: Target) -> Claim | None:
        """Claim the next task at its due time, unless ticks must be planted first."""
        clock = self.claimer.clock
        if (now := clock()) >= self.planted:
            return None
        ahead = look_with_schedules(self.claimer.store, target, self.queues, until=self.planted)
        if ahead is None or not (ahead.due or ahead.seconds is not None):
            return None
        self.moment = now if ahead.due else now + timedelta(seconds=ahead.seconds or 0)
        if self.moment > self.planted:
            return None
        with clock.at(self.moment):
            return self.claimer.claim(self.queues, using=target)
