"""The claim loop: how much to take, what to do with what came back, and when to wait."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from ..errors import NotPermitted
from ..model import SUSPECT, Claim
from ..store import Store
from ..store.failure_log import FailureLog, say
from ..task import TaskRegistry
from .completer import Completer
from .distributor import WorkDistributor
from .executor import STOPPED, context_of, released
from .failpoints import Failpoint, Reach
from .maintenance import Held, Leases
from .thread_pool import Crew
from .unknown_tasks import UnknownTasks

log = logging.getLogger("outboxq.worker")

_SUSPECTS_APART = timedelta(milliseconds=25)
_SUSPECTS_AT_MOST = timedelta(seconds=60)
"""Suspects are given back to be due one after the other: as far apart as the one that runs has taken, between these two."""
_SATURATED_AFTER = 0.05
_STUCK_AFTER = 1.0
_LONGEST_PAUSE = 2.0
_AFTER_YOU = 0.0001
_LOOK = 0.1
_CAREFUL = 16
"""So many recovered tasks may lie ahead for each handler: at the next death, these few become suspects. Fewer make small claims
and a slow survivor: with 2, it worked recovered tasks off at a quarter of the rate of fresh ones, with 16 at two thirds."""


class Claimer(threading.Thread):
    """Claims no more than idle handlers and a little ahead, and waits on the distributor where nothing is to be had."""

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        *,
        worker_id: UUID,
        queues: Sequence[str] | None,
        event_types: Sequence[str] | None = None,
        crew: Crew[Held],
        leases: Leases,
        completer: Completer,
        distributor: WorkDistributor,
        stopping: threading.Event,
        finished: Callable[[], None],
        died: Callable[[BaseException], None],
        reach: Reach,
        unknown: UnknownTasks,
        burst: bool = False,
        max_tasks: int | None = None,
    ) -> None:
        """`finished` is called where `burst` or `max_tasks` ends the work."""
        super().__init__(name="outboxq-claimer", daemon=True)
        self._store = store
        self._tasks = tasks
        self._worker_id = worker_id
        self._queues, self._event_types = queues, event_types
        self._crew = crew
        self._leases = leases
        self._completer = completer
        self._distributor = distributor
        self._stopping = stopping
        self._finished = finished
        self._died = died
        self._reach = reach
        self._unknown = unknown
        self._burst = burst
        self._left = max_tasks
        self._handled, self._handled_at = -1, 0.0
        """What the crew had handled when it was last seen to get on."""
        self.denied: str | None = None
        """The sentence that names the right for whose lack claims fail; None: they do not."""
        self._suspect: Claim | None = None
        """The last suspect that was begun here, and when (`time.monotonic()`)."""
        self._suspect_at = 0.0
        self._given_back: set[UUID] = set()
        """Suspects that a burst still expects, unless another worker has them."""
        self._back_at = 0.0
        """When the last of them is due, about (`time.monotonic()`)."""
        self._careful = False
        """The last claim that found anything held a recovered task: little is to lie ahead, or it would become a suspect for
        nothing.
        """

    def be_careful(self) -> None:
        """Expect recovered tasks: have the next claim be a small one, so that nothing of it has to be given back."""
        self._careful = True

    def run(self) -> None:
        try:
            failures, failing = 0, FailureLog(log)
            while not self._stopping.is_set() and self._left != 0:
                try:
                    over = self._turn()
                    failures, self.denied = 0, None
                    failing.worked("claiming works again")
                except Exception as error:  # noqa: BLE001 - whatever it was, the worker is to go on
                    if (unusable := self._store.unusable(error)) is not None:
                        return self._died(unusable)
                    failures += 1
                    self.denied = str(error) if isinstance(error, NotPermitted) else None
                    failing.failed("claiming failed; no task was started", error)
                    pause = min(0.1 * 2 ** min(failures, 10), _LONGEST_PAUSE)  # 2**1024 is no float
                    self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
                    continue
                if over:
                    break
            while (
                self._left == 0 and not self._stopping.is_set() and not self._crew.wait_until_at_most(0, _STUCK_AFTER)
            ):
                pass  # what was claimed is to be run, and not given back
            self._finished()
        except BaseException as error:
            self._died(error)
            raise

    def _turn(self) -> bool:
        """One claim and what follows from it; whether a burst is over."""
        limit = self._room()
        if limit < 1:
            return False
        quiet = self._burst and self._is_quiet()
        self._reach(Failpoint.BEFORE_CLAIM)
        sent = time.monotonic()
        claims = self._store.claim_ready_task(
            limit,
            worker_id=self._worker_id,
            queues=self._queues,
            event_types=self._event_types,
            says_begin=True,
        )
        self._reach(Failpoint.AFTER_CLAIM)
        if self._stopping.is_set():  # the threads may be gone already
            self._release(claims)
            return False
        if claims:
            self._hand_over(claims, sent)
            self._distributor.at_work()
        elif quiet and not self._expects_suspects():
            return True
        if len(claims) < limit:
            self._wait()
        return False

    def _wait(self) -> None:
        """There was no more. In a burst there is nothing to wait for but one's own tasks, and what they enqueue."""
        if self._burst:
            while not self._crew.wait_until_at_most(0) and not self._stopping.is_set():
                pass
            self._completer.flush()
            if self._expects_suspects():
                self._stopping.wait(_SUSPECTS_APART.total_seconds())
            return
        self._reach(Failpoint.BEFORE_SLEEP)
        self._distributor.wait_for_work(_STUCK_AFTER if self._crew.lying else None)
        self._reach(Failpoint.AFTER_SLEEP)

    def _room(self) -> int:
        """How many to claim; waits until it is worth a claim."""
        crew = self._crew
        self._let_go()
        while not self._completer.writes.is_set() and not self._stopping.wait(_LOOK):
            pass  # what would end now could only wait for the database
        if not crew.wait_until_at_most(crew.size - 1 + self._ahead // 2, _SATURATED_AFTER):
            self._distributor.at_work(saturated=True)
            while not crew.wait_until_at_most(crew.size - 1 + self._ahead // 2, _STUCK_AFTER):
                if self._stopping.is_set():
                    break
                self._let_go()
        if self._stopping.is_set():
            return 0
        room = crew.size + self._ahead - crew.in_flight
        return room if self._left is None else min(room, self._left)

    @property
    def _ahead(self) -> int:
        """Return how many claims may lie before busy handlers."""
        return min(self._crew.ahead, _CAREFUL * self._crew.size) if self._careful else self._crew.ahead

    def _let_go(self) -> None:
        """What was fetched ahead for quick handlers must not lie behind slow ones while others are idle."""
        now = time.monotonic()
        if not self._crew.lying or self._crew.handled != self._handled or not self._crew.adapts:
            self._handled, self._handled_at = self._crew.handled, now
            return
        if now - self._handled_at < _STUCK_AFTER:
            return
        self._crew.slow_down(_STUCK_AFTER)
        self._put_back(self._crew.take_back(), "the handlers before it are slow")

    def _hand_over(self, claims: Sequence[Claim], sent: float) -> None:
        known = [
            (claim, context_of(claim, self._tasks.get(claim.task_name), self._stopping))
            for claim in claims
            if claim.task_name in self._tasks
        ]
        if self._left is not None:
            self._left -= len(known)
        self._given_back.difference_update(claim.id for claim in claims)
        suspects, too_many = [], []
        for held in self._leases.hold(known, sent=sent):
            if held.claim.recovery_attempts >= SUSPECT:
                suspects.append(held)
            elif held.claim.recovery_attempts and self._crew.in_flight >= (1 + _CAREFUL) * self._crew.size:
                too_many.append(held)
            else:
                self._crew.give(held)
        if len(known) <= self._crew.size:
            # Else the threads that were woken have Python's lock only when this one waits for the database.
            self._stopping.wait(_AFTER_YOU)
        self._leases.changed()
        if strangers := [claim for claim in claims if claim.task_name not in self._tasks]:
            self._turn_away(strangers)
        self._careful = any(claim.recovery_attempts for claim in claims)
        self._put_back(too_many, "its worker died before, so it is not to lie ahead")
        if suspects:
            self._run_one(suspects)

    def _run_one(self, suspects: Sequence[Held]) -> None:
        """Run one suspect at a time in this process, beside tasks that are none; give the others back.

        A suspect was running each of the last times its worker died, and may be why. Had two of them one process, the innocent
        one would be brought to the limit of recoveries by the other. Nobody waits for it but they.
        """
        now, first = time.monotonic(), None
        if self._suspect is None or not self._leases.holds(self._suspect):
            first, *suspects = suspects
            self._suspect, self._suspect_at = first.claim, now
        apart = min(max(timedelta(seconds=now - self._suspect_at), _SUSPECTS_APART), _SUSPECTS_AT_MOST)
        delay = timedelta(0)
        for held in suspects:
            delay = min(delay + apart, _SUSPECTS_AT_MOST)
            self._put_back([held], "another task like it runs in this process", delay=delay)
        if self._burst and suspects:
            self._given_back.update(held.claim.id for held in suspects)
            self._back_at = now + delay.total_seconds()
        if first is not None:
            self._crew.give(first)  # last, for it begins when what was put before is written (`handling.py`)

    def _expects_suspects(self) -> bool:
        return bool(self._given_back) and time.monotonic() < self._back_at + _LONGEST_PAUSE

    def _put_back(self, held: Sequence[Held], reason: str, *, delay: timedelta = timedelta(0)) -> None:
        """Give back what never started: nothing is counted. It is held until that is written."""
        if self._left is not None:
            self._left += len(held)
        for one in held:
            one.ending = True
            self._completer.put(released(one.claim, reason, delay=delay))

    def _release(self, claims: Sequence[Claim]) -> None:
        """Give back what was claimed while the worker was told to stop."""
        if not claims:
            return
        try:
            self._reach(Failpoint.BEFORE_RELEASE)
            self._store.finish([released(claim, STOPPED) for claim in claims])
            self._reach(Failpoint.AFTER_RELEASE)
        except Exception as error:  # noqa: BLE001
            say(log, logging.ERROR, f"could not give back {len(claims)} tasks; their leases will run out", error)

    def _is_quiet(self) -> bool:
        """Nothing runs and nothing is to be written: what a claim does not find now is not there."""
        written = self._crew.in_flight == 0 and self._completer.flush(_LONGEST_PAUSE)
        return written and not self._completer.waits

    def _turn_away(self, claims: Sequence[Claim]) -> None:
        try:
            for outcome in self._unknown.outcomes(claims):
                self._completer.put(outcome)
        except Exception as error:  # noqa: BLE001
            say(
                log, logging.ERROR, f"could not give back {len(claims)} unknown tasks; their leases will run out", error
            )
