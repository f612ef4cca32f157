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
from .failpoints import Failpoint
from .handback import releasing
from .leases import ActiveClaim, Leases
from .options import WorkerSettings
from .thread_pool import HandlerPool
from .unknown_tasks import UnknownTasks

log = logging.getLogger("outboxq.worker")

_SUSPECT_MIN_DELAY = timedelta(milliseconds=25)
_SUSPECT_MAX_DELAY = timedelta(seconds=60)
"""Suspects are given back to be due one after the other: as far apart as the one that runs has taken, between these two."""
_SATURATED_AFTER = 0.05
_STUCK_AFTER = 1.0
_LONGEST_PAUSE = 2.0
_YIELD = 0.0001
_CHECK_EVERY = 0.1
_RECOVERED_PER_HANDLER = 16
"""So many recovered tasks may lie ahead for each handler: at the next death, these few become suspects. Fewer make small claims
and a slow survivor: with 2, it worked recovered tasks off at a quarter of the rate of fresh ones, with 16 at two thirds."""


class ClaimLoop(threading.Thread):
    """Claims no more than idle handlers and a little ahead, and waits on the distributor where nothing is to be had."""

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        settings: WorkerSettings,
        *,
        leases: Leases,
        pool: HandlerPool[ActiveClaim],
        completer: Completer,
        distributor: WorkDistributor,
        unknown: UnknownTasks,
        worker_id: UUID,
        stopping: threading.Event,
        on_finished: Callable[[], None],
        on_thread_failure: Callable[[BaseException], None],
        burst: bool = False,
    ) -> None:
        """`on_finished` is called where `burst` or `max_tasks` ends the work."""
        super().__init__(name="outboxq-claimer", daemon=True)
        self._store = store
        self._tasks = tasks
        self._worker_id = worker_id
        self._queues, self._topics = settings.queues, settings.topics
        self._pool = pool
        self._leases = leases
        self._completer = completer
        self._distributor = distributor
        self._stopping = stopping
        self._on_finished = on_finished
        self._on_thread_failure = on_thread_failure
        self._on_failpoint = settings.on_failpoint
        self._unknown = unknown
        self._burst = burst
        self._tasks_left = settings.max_tasks
        self._handled_seen, self._handled_seen_at = -1, 0.0
        """What the pool had handled when it was last seen to get on."""
        self.denied: str | None = None
        """The sentence that names the right for whose lack claims fail; None: they do not."""
        self._suspect: Claim | None = None
        """The last suspect that was begun here, and when (`time.monotonic()`)."""
        self._suspect_at = 0.0
        self._given_back: set[UUID] = set()
        """Suspects that a burst still expects, unless another worker has them."""
        self._given_back_due = 0.0
        """When the last of them is due, about (`time.monotonic()`)."""
        self._found_recovered = False
        """The last claim that found anything held a recovered task: little is to lie ahead, or it would become a suspect for
        nothing.
        """

    def expect_recovered(self) -> None:
        """Expect recovered tasks: have the next claim be a small one, so that nothing of it has to be given back."""
        self._found_recovered = True

    def run(self) -> None:
        try:
            failures, failing = 0, FailureLog(log)
            while not self._stopping.is_set() and self._tasks_left != 0:
                try:
                    over = self._claim_once()
                    failures, self.denied = 0, None
                    failing.worked("claiming works again")
                except Exception as error:  # noqa: BLE001 - whatever it was, the worker is to go on
                    if (unusable := self._store.unusable(error)) is not None:
                        return self._on_thread_failure(unusable)
                    failures += 1
                    self.denied = str(error) if isinstance(error, NotPermitted) else None
                    failing.failed("claiming failed; no task was started", error)
                    pause = min(0.1 * 2 ** min(failures, 10), _LONGEST_PAUSE)  # 2**1024 is no float
                    self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
                    continue
                if over:
                    break
            while (
                self._tasks_left == 0
                and not self._stopping.is_set()
                and not self._pool.wait_until_at_most(0, _STUCK_AFTER)
            ):
                pass  # what was claimed is to be run, and not given back
            self._on_finished()
        except BaseException as error:
            self._on_thread_failure(error)
            raise

    def _claim_once(self) -> bool:
        """One claim and what follows from it; whether a burst is over."""
        limit = self._wait_for_capacity()
        if limit < 1:
            return False
        idle = self._burst and self._is_idle()
        self._on_failpoint(Failpoint.BEFORE_CLAIM)
        sent = time.monotonic()
        claims = self._store.claim_ready_task(
            limit,
            worker_id=self._worker_id,
            queues=self._queues,
            topics=self._topics,
            says_begin=True,
        )
        self._on_failpoint(Failpoint.AFTER_CLAIM)
        if self._stopping.is_set():  # the threads may be gone already
            self._release(claims)
            return False
        if claims:
            self._dispatch(claims, sent)
            self._distributor.at_work()
        elif idle and not self._expects_suspects():
            return True
        if len(claims) < limit:
            self._wait()
        return False

    def _wait(self) -> None:
        """There was no more. In a burst there is nothing to wait for but one's own tasks, and what they enqueue."""
        if self._burst:
            while not self._pool.wait_until_at_most(0) and not self._stopping.is_set():
                pass
            self._completer.flush()
            if self._expects_suspects():
                self._stopping.wait(_SUSPECT_MIN_DELAY.total_seconds())
            return
        self._on_failpoint(Failpoint.BEFORE_SLEEP)
        self._distributor.wait_for_work(_STUCK_AFTER if self._pool.queued else None)
        self._on_failpoint(Failpoint.AFTER_SLEEP)

    def _wait_for_capacity(self) -> int:
        """How many to claim; waits until it is worth a claim."""
        pool = self._pool
        self._release_stalled_prefetch()
        while not self._completer.can_write.is_set() and not self._stopping.wait(_CHECK_EVERY):
            pass  # what would end now could only wait for the database
        if not pool.wait_until_at_most(pool.size - 1 + self._prefetch_limit // 2, _SATURATED_AFTER):
            self._distributor.at_work(saturated=True)
            while not pool.wait_until_at_most(pool.size - 1 + self._prefetch_limit // 2, _STUCK_AFTER):
                if self._stopping.is_set():
                    break
                self._release_stalled_prefetch()
        if self._stopping.is_set():
            return 0
        room = pool.size + self._prefetch_limit - pool.in_flight
        return room if self._tasks_left is None else min(room, self._tasks_left)

    @property
    def _prefetch_limit(self) -> int:
        """Return how many claims may lie before busy handlers."""
        return (
            min(self._pool.prefetch_limit, _RECOVERED_PER_HANDLER * self._pool.size)
            if self._found_recovered
            else self._pool.prefetch_limit
        )

    def _release_stalled_prefetch(self) -> None:
        """What was fetched ahead for quick handlers must not lie behind slow ones while others are idle."""
        now = time.monotonic()
        if not self._pool.queued or self._pool.handled != self._handled_seen or not self._pool.is_adaptive:
            self._handled_seen, self._handled_seen_at = self._pool.handled, now
            return
        if now - self._handled_seen_at < _STUCK_AFTER:
            return
        self._pool.reset_pace(_STUCK_AFTER)
        self._give_back(self._pool.cancel_queued(), "the handlers before it are slow")

    def _dispatch(self, claims: Sequence[Claim], sent: float) -> None:
        known = [
            (claim, context_of(claim, self._tasks.get(claim.task_name), self._stopping))
            for claim in claims
            if claim.task_name in self._tasks
        ]
        if self._tasks_left is not None:
            self._tasks_left -= len(known)
        self._given_back.difference_update(claim.id for claim in claims)
        suspects, too_many = [], []
        for held in self._leases.hold(known, sent=sent):
            if held.claim.recovery_attempts >= SUSPECT:
                suspects.append(held)
            elif (
                held.claim.recovery_attempts and self._pool.in_flight >= (1 + _RECOVERED_PER_HANDLER) * self._pool.size
            ):
                too_many.append(held)
            else:
                self._pool.submit(held)
        if len(known) <= self._pool.size:
            # Else the threads that were woken have Python's lock only when this one waits for the database.
            self._stopping.wait(_YIELD)
        self._leases.beat_moved.set()
        if strangers := [claim for claim in claims if claim.task_name not in self._tasks]:
            self._release_unknown(strangers)
        self._found_recovered = any(claim.recovery_attempts for claim in claims)
        self._give_back(too_many, "its worker died before, so it is not to lie ahead")
        if suspects:
            self._start_suspects(suspects)

    def _start_suspects(self, suspects: Sequence[ActiveClaim]) -> None:
        """Run one suspect at a time in this process, beside tasks that are none; give the others back.

        A suspect was running each of the last times its worker died, and may be why. Had two of them one process, the innocent
        one would be brought to the limit of recoveries by the other. Nobody waits for it but they.
        """
        now, first = time.monotonic(), None
        if self._suspect is None or not self._leases.holds(self._suspect):
            first, *suspects = suspects
            self._suspect, self._suspect_at = first.claim, now
        apart = min(max(timedelta(seconds=now - self._suspect_at), _SUSPECT_MIN_DELAY), _SUSPECT_MAX_DELAY)
        delay = timedelta(0)
        for held in suspects:
            delay = min(delay + apart, _SUSPECT_MAX_DELAY)
            self._give_back([held], "another task like it runs in this process", delay=delay)
        if self._burst and suspects:
            self._given_back.update(held.claim.id for held in suspects)
            self._given_back_due = now + delay.total_seconds()
        if first is not None:
            self._pool.submit(first)  # last, for it begins when what was put before is written (`task_runner.py`)

    def _expects_suspects(self) -> bool:
        return bool(self._given_back) and time.monotonic() < self._given_back_due + _LONGEST_PAUSE

    def _give_back(self, held: Sequence[ActiveClaim], reason: str, *, delay: timedelta = timedelta(0)) -> None:
        """Give back what never started: nothing is counted. It is held until that is written."""
        if self._tasks_left is not None:
            self._tasks_left += len(held)
        self._completer.give_back(held, reason, delay=delay)

    def _release(self, claims: Sequence[Claim]) -> None:
        """Give back what was claimed while the worker was told to stop."""
        if claims:
            outcomes = [released(claim, STOPPED) for claim in claims]
            with releasing(outcomes, self._on_failpoint):
                self._store.finish(outcomes)

    def _is_idle(self) -> bool:
        """Nothing runs and nothing is to be written: what a claim does not find now is not there."""
        written = self._pool.in_flight == 0 and self._completer.flush(_LONGEST_PAUSE)
        return written and not self._completer.has_locked

    def _release_unknown(self, claims: Sequence[Claim]) -> None:
        try:
            for outcome in self._unknown.outcomes(claims):
                self._completer.put(outcome)
        except Exception as error:  # noqa: BLE001
            say(
                log, logging.ERROR, f"could not give back {len(claims)} unknown tasks; their leases will run out", error
            )
