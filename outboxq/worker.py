"""Claims tasks, runs them in threads, and ends their claims."""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import FrameType
from typing import Any, TypedDict
from uuid import UUID, uuid4

from .context import TaskContext
from .errors import ConfigurationError, InvalidArgument
from .executor import UNKNOWN, context_of, execute, unknown
from .maintenance import Leases, Loop, Recovery
from .model import Claim, EventType, ExecutionEvent, Outcome, duration
from .store import Store, queue_names
from .task import Registry, Task

log = logging.getLogger("outboxq.worker")

POLL = timedelta(milliseconds=500)
DRAIN_TIMEOUT = timedelta(seconds=25)
RECOVER_EVERY = timedelta(seconds=5)
UNKNOWN_TASK_DELAY = timedelta(seconds=15)
UNKNOWN_TASK_LIMIT = timedelta(days=1)
_LAST_WORDS = timedelta(seconds=3)
"""How long a worker that was told to stop twice may take to give back what runs."""


class WorkerOptions(TypedDict, total=False):
    """What `Worker` takes, and `Outbox.worker()` passes on."""

    queues: Sequence[str] | None
    concurrency: int
    poll: timedelta | float
    drain_timeout: timedelta | float
    heartbeat: timedelta | float | None
    recover_every: timedelta | float
    unknown_task_delay: timedelta | float
    unknown_task_limit: timedelta | float
    label: str | None


class Worker:
    """Runs the tasks of an outbox until it is told to stop.

    Claims no more than it has idle threads, so that nothing waits under a lease. Any number of workers may run, on any
    number of machines; each takes back what a dead one left behind.
    """

    def __init__(
        self,
        store: Store,
        tasks: Registry,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 8,
        poll: timedelta | float = POLL,
        drain_timeout: timedelta | float = DRAIN_TIMEOUT,
        heartbeat: timedelta | float | None = None,
        recover_every: timedelta | float = RECOVER_EVERY,
        unknown_task_delay: timedelta | float = UNKNOWN_TASK_DELAY,
        unknown_task_limit: timedelta | float = UNKNOWN_TASK_LIMIT,
        label: str | None = None,
    ) -> None:
        """`queues` None: all. `concurrency`: handler threads. `heartbeat` bounds the time between beats; None: a third of
        each lease. Durations are timedelta or seconds. Raises InvalidArgument for values out of range, ConfigurationError
        where a task's lease is not longer than two heartbeats, so that one late beat would lose it.
        """
        if type(concurrency) is not int or concurrency < 1:
            raise InvalidArgument(f"concurrency must be a whole number of at least 1, not {concurrency!r}")
        self.id: UUID = uuid4()  # of this start of this process: a restarted worker must not beat for its predecessor
        self.label = label or f"{socket.gethostname()}:{os.getpid()}"
        self._store = store
        self._tasks = tasks
        self._queues = queue_names(queues)
        self._poll = _positive(poll, "poll")
        self._drain_timeout = duration(drain_timeout, "drain_timeout")
        self._unknown_task_delay = duration(unknown_task_delay, "unknown_task_delay")
        self._unknown_task_limit = duration(unknown_task_limit, "unknown_task_limit")
        beat = None if heartbeat is None else _positive(heartbeat, "heartbeat")
        self._check_leases(beat)
        self._leases = Leases(store, heartbeat=beat)
        self._recovery = Recovery(store=store)
        every = _positive(recover_every, "recover_every").total_seconds()

        self._stopping = threading.Event()
        self._idle = threading.Semaphore(0)
        self._claimed: queue.SimpleQueue[tuple[Claim, TaskContext | None] | None] = queue.SimpleQueue()
        self._handlers = [
            threading.Thread(target=self._handle, name=f"outboxq-handler-{number}", daemon=True)
            for number in range(concurrency)
        ]
        self._claimer = threading.Thread(target=self._claim, name="outboxq-claimer", daemon=True)
        # Spread out, so that workers started together do not look for the dead together.
        self._loops = [
            Loop("heartbeat", self._leases.beat, self._leases.pause, self._die),
            Loop("recovery", self._recovery.run_once, lambda: every * random.uniform(0.5, 1.0), self._die),  # noqa: S311
        ]
        self._leases.changed = self._loops[0].look
        self._died: BaseException | None = None
        self._started = False

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, then finish what runs; a second signal, or the drain timeout, gives it back.

        Returns the exit code: 0 after a clean stop, 1 if tasks had to be abandoned or a thread of the worker died. Must be
        called in the main thread. Raises SchemaOutOfDate.
        """
        signals: list[int] = []  # a handler that took a lock could wait for the very thread it interrupts

        def stop(number: int, _frame: FrameType | None) -> None:
            signals.append(number)
            if len(signals) > 1:
                self._give_up_now()

        previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            pause = threading.Event()
            while not signals and self.is_healthy:
                pause.wait(0.1)
            clean = self.stop()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return 0 if clean and self.is_healthy else 1

    @property
    def is_healthy(self) -> bool:
        """False once a thread of the worker itself has died: it claims nothing more, and is to be stopped."""
        return self._died is None

    def start(self) -> None:
        """Begin to work, in threads of this process. Raises SchemaOutOfDate; ConfigurationError when started twice."""
        if self._started:
            raise ConfigurationError("a worker starts once; make a new one")
        self._store.ensure_current()
        self._started = True
        log.info("worker %s (%s) started", self.label, self.id)
        for thread in (*self._handlers, *self._loops, self._claimer):
            thread.start()

    def stop(self, timeout: timedelta | float | None = None) -> bool:
        """Claim nothing more, let running tasks finish for `timeout` (default: the drain timeout), give back the rest.

        Returns whether all of them finished. Handlers that still run are fenced: what they return is discarded.
        """
        self._stopping.set()
        if not self._started:
            return True
        limit = self._drain_timeout if timeout is None else duration(timeout, "timeout")
        deadline = time.monotonic() + limit.total_seconds()
        self._idle.release()  # the claimer may be waiting for an idle thread
        self._claimer.join(limit.total_seconds())
        for _ in self._handlers:
            self._claimed.put(None)
        for handler in self._handlers:
            handler.join(max(0.0, deadline - time.monotonic()))
        left = self._give_back([one.claim for one in self._leases.held()])
        for loop in self._loops:
            loop.stop()
        log.info("worker %s stopped%s", self.label, f"; gave back {left} unfinished tasks" if left else "")
        return left == 0 and not self._claimer.is_alive()

    def _claim(self) -> None:
        """The claim loop: as many tasks as there are idle threads, at once again while work comes back full."""
        try:
            failures = 0
            while self._idle.acquire() and not self._stopping.is_set():
                idle = 1
                while self._idle.acquire(blocking=False):
                    idle += 1
                try:
                    sent = time.monotonic()
                    claims = self._store.claim_ready_task(idle, worker_id=self.id, queues=self._queues)
                    failures = 0
                except Exception:
                    failures += 1
                    log.exception("claiming failed; no task was started")
                    claims = []
                if self._stopping.is_set():  # the threads may be gone already
                    self._give_back(claims)
                    return
                for claim in claims:
                    self._claimed.put((claim, self._hold(claim, sent)))
                if idle > len(claims):
                    self._idle.release(idle - len(claims))
                if len(claims) < idle:
                    pause = self._poll.total_seconds() * min(2**failures, 32)
                    self._stopping.wait(pause * random.uniform(0.8, 1.0))  # noqa: S311
        except BaseException as error:
            self._die(error)
            raise

    def _handle(self) -> None:
        """A handler thread: one task after another."""
        try:
            self._idle.release()
            while (taken := self._claimed.get()) is not None:
                try:
                    self._run_one(*taken)
                except Exception:
                    log.exception("task %s could not be handled; its lease runs out and it is recovered", taken[0].id)
                self._idle.release()
        except BaseException as error:
            self._die(error)
            raise

    def _hold(self, claim: Claim, sent: float) -> TaskContext | None:
        """Keep the lease alive from the claim on. None: no task of this name is known here."""
        if claim.task_name not in self._tasks:
            return None
        context = context_of(claim, self._tasks.get(claim.task_name), self._stopping)
        self._leases.hold(claim, context, sent=sent)
        return context

    def _run_one(self, claim: Claim, context: TaskContext | None) -> None:
        if context is None:
            self._finish(self._unknown(claim))
            return
        task = self._tasks.get(claim.task_name)
        try:
            began = time.monotonic()
            outcome = execute(claim, task, context)
            _log_outcome(outcome, task, time.monotonic() - began)
            self._leases.ending(claim)
            self._finish(outcome)
        finally:
            self._leases.drop(claim)

    def _finish(self, outcome: Outcome) -> None:
        """End the claim. While the database is away that fails; the lease then runs out and the task is recovered."""
        try:
            lost = self._store.finish([outcome])
        except Exception:
            log.exception("task %s: its outcome %s could not be written", outcome.claim.id, outcome.event_type)
            return
        if lost:
            log.warning(
                "task %s (%s): its lease was lost, so its outcome %s is discarded",
                outcome.claim.id,
                outcome.claim.task_name,
                outcome.event_type,
            )

    def _unknown(self, claim: Claim) -> Outcome:
        log.warning("task %s is called %r, which this worker does not know", claim.id, claim.task_name)
        since = claim.started_at
        if claim.started_at - claim.first_started_at > self._unknown_task_limit:  # else it cannot have been so long
            since = _unknown_since(self._store.history(claim.id), claim.started_at)
        return unknown(claim, since=since, limit=self._unknown_task_limit, delay=self._unknown_task_delay)

    def _give_back(self, claims: Sequence[Claim]) -> int:
        """Release claims, which fences their handlers. Returns how many they were; some may have ended meanwhile."""
        data = {"reason": "the worker stopped"}
        outcomes = [Outcome(claim=claim, event_type=EventType.RELEASED, data=data) for claim in claims]
        for claim in claims:
            self._leases.lose(claim)
            log.warning("task %s (%s) did not finish in time and is given back", claim.id, claim.task_name)
        try:
            return len(outcomes) - len(self._store.finish(outcomes))
        except Exception:
            log.exception("could not give back %d tasks; their leases will run out", len(outcomes))
            return len(outcomes)

    def _give_up_now(self) -> None:
        """A second signal: give back what runs and end the process, whatever its threads do."""
        limit = threading.Timer(_LAST_WORDS.total_seconds(), os._exit, (1,))  # the database may not answer
        limit.daemon = True
        limit.start()
        threading.Thread(target=self._abandon, name="outboxq-abandon", daemon=True).start()

    def _abandon(self) -> None:
        self._stopping.set()
        log.warning("told to stop twice; giving back what runs")
        self._give_back([one.claim for one in self._leases.held()])
        os._exit(1)

    def _die(self, error: BaseException) -> None:
        """A thread of the worker itself must not end unnoticed: the process stops, with a non-zero exit code."""
        log.critical("a worker thread died; stopping", exc_info=error)
        self._died = error
        self._stopping.set()
        self._idle.release()

    def _check_leases(self, heartbeat: timedelta | None) -> None:
        for task in self._tasks:
            if heartbeat is not None and task.settings.lease <= 2 * heartbeat:
                raise ConfigurationError(
                    f"the lease of task {task.name} ({task.settings.lease}) must be longer than two heartbeats "
                    f"({2 * heartbeat}), or one late beat loses it"
                )


def _unknown_since(history: Sequence[ExecutionEvent], now: datetime) -> datetime:
    """When the unbroken run of releases as unknown began that the task is in."""
    since = now
    for event in reversed(history):
        if event.event_type is EventType.RELEASED and event.event_data.get("reason") == UNKNOWN:
            since = event.created_at
        elif event.event_type is not EventType.CLAIMED:
            break
    return since


def _positive(value: timedelta | float, name: str) -> timedelta:
    span = duration(value, name)
    if span <= timedelta(0):
        raise InvalidArgument(f"{name} must be longer than nothing")
    return span


def _log_outcome(outcome: Outcome, task: Task[..., Any], seconds: float) -> None:
    level = {
        EventType.COMPLETED: logging.INFO,
        EventType.RETRY_SCHEDULED: logging.WARNING,
        EventType.FAILED: logging.ERROR,
    }.get(outcome.event_type, logging.INFO)
    extra = {
        "task_id": str(outcome.claim.id),
        "task": task.name,
        "queue": outcome.claim.queue,
        "attempt": outcome.claim.attempt,
        "duration_ms": round(seconds * 1000, 3),
    }
    kind = outcome.data.get("exception", "")
    log.log(
        level,
        "task %s (%s): %s in %.3f s %s",
        outcome.claim.id,
        task.name,
        outcome.event_type,
        seconds,
        kind,
        extra=extra,
    )
