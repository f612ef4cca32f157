"""Writes how claims end: whatever has ended since the last write as one statement, and a lone one at once."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from .failpoints import Failpoint, Reach
from .maintenance import Leases
from .model import Claim, Outcome
from .store import Store

log = logging.getLogger("outboxq.worker")

_MOST_AT_ONCE = 1000
_AGAIN_AFTER = 0.5
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class _Flush:
    done: threading.Event


class Completer(threading.Thread):
    """While one statement is under way, further outcomes gather for the next: nobody waits for a clock."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        *,
        reach: Reach,
        died: Callable[[BaseException], None],
        made_way: Callable[[], None] = lambda: None,
        durable: bool = True,
    ) -> None:
        """`made_way` is called when ends were written that may let other tasks start. `durable` False: a crash of the server
        may take back what was written in its last moments.
        """
        super().__init__(name="outboxq-completer", daemon=True)
        self._store = store
        self._leases = leases
        self._reach = reach
        self._died = died
        self._made_way = made_way
        self._durable = durable
        self._outcomes: queue.SimpleQueue[Outcome | _Flush | None] = queue.SimpleQueue()

    def put(self, outcome: Outcome) -> None:
        self._outcomes.put(outcome)

    def ended(self, claims: Iterable[Claim]) -> None:
        """They have: whoever claims should look again, if they made way for others."""
        if any(claim.makes_way for claim in claims):
            self._made_way()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far is written, or has failed to be."""
        mark = _Flush(threading.Event())
        self._outcomes.put(mark)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not (done := mark.done.wait(max(0.0, min(_LOOK, deadline - time.monotonic())))):
            if not self.is_alive() or time.monotonic() >= deadline:
                break
        return done

    def finish(self) -> None:
        """Write what was put so far and end. (To be joined.)"""
        self._outcomes.put(None)

    def run(self) -> None:
        try:
            while self._write_next():
                pass
        except BaseException as error:
            self._died(error)
            raise

    def _write_next(self) -> bool:
        batch: list[Outcome] = []
        last: Outcome | _Flush | None = self._outcomes.get()
        with suppress(queue.Empty):
            while isinstance(last, Outcome):
                batch.append(last)
                last = self._outcomes.get_nowait() if len(batch) < _MOST_AT_ONCE else _Flush(threading.Event())
        if batch:
            self._write(batch)
        if isinstance(last, _Flush):
            last.done.set()
        return last is not None

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        self._reach(Failpoint.BEFORE_FINISH)
        try:
            while (lost := self._try(outcomes)) is None:
                pass
            self.ended(outcome.claim for outcome in outcomes)
            for outcome in outcomes:
                if outcome.claim.id in lost:
                    log.warning(
                        "task %s (%s): its lease was lost, so its outcome %s is discarded",
                        outcome.claim.id,
                        outcome.claim.task_name,
                        outcome.event_type,
                    )
        finally:
            self._leases.drop(*(outcome.claim for outcome in outcomes))
        self._reach(Failpoint.AFTER_FINISH)

    def _try(self, outcomes: Sequence[Outcome]) -> frozenset[object] | None:
        """The ids of those that were lost. None: to be tried again, for while a lease holds its outcome is worth the wait."""
        try:
            return self._store.finish(outcomes, durable=self._durable)
        except Exception as error:
            if self._store.may_pass(error) and not self._store.gone.is_set():
                if any(self._leases.holds(outcome.claim) for outcome in outcomes):
                    log.warning("%d outcomes could not be written (%s); trying again", len(outcomes), error)
                    self._store.gone.wait(_AGAIN_AFTER)
                    return None
            elif len(outcomes) > 1:  # one that cannot be written must not keep the others
                for outcome in outcomes:
                    self._write([outcome])
                return frozenset()
            for outcome in outcomes:
                log.exception("task %s: its outcome %s could not be written", outcome.claim.id, outcome.event_type)
            return frozenset()
