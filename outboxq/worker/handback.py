"""Gives the tasks of a worker whose time is over back to other workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from ..model import EventType, Outcome
from ..model.log_fields import OUTCOMES, fields_of
from ..model.wording import plural
from ..store import Store
from ..store.failure_log import say
from .deadline import run_with_timeout
from .executor import STOPPED, released, with_notes
from .failpoints import Failpoint, OnFailpoint
from .leases import ClaimState, Leases
from .meter import Meter

log = logging.getLogger("outboxq.worker")

_RETRY_AFTER = 0.02
"""Seconds between two tries while a task is locked: a heartbeat under way takes a few milliseconds."""


@dataclass(eq=False, repr=False)
class Handback:
    """Releases the claims that a worker still holds, within a time limit: the database may not answer."""

    store: Store
    leases: Leases
    timeout: float
    """The seconds that one call may take."""
    on_failpoint: OnFailpoint
    meter: Meter = field(default_factory=Meter)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def give_back(self) -> int:
        """Release the claims that are still held, which fences their handlers. Returns how many had not ended by themselves.

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
            run_with_timeout(self.timeout, lambda: ended.append(self._release(outcomes, over)))
            over.set()
            return given_back - sum(ended)

    def _release(self, outcomes: list[Outcome], over: threading.Event) -> int:
        """Write the releases; try locked ones again until `over` is set. Returns how many had ended meanwhile."""
        ended = 0
        with releasing(outcomes, self.on_failpoint):
            while True:
                lost, locked = self._finish(outcomes)
                ended += len(lost)
                given_back = [outcome for outcome in outcomes if outcome.claim.id not in lost | locked]
                self.meter.ended(given_back, self.leases.timings(given_back))
                if not locked or over.wait(_RETRY_AFTER):
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
