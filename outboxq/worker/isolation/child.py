"""A child process, which runs handlers for a worker, one at a time, and reports their outcomes to the worker.

The worker keeps the claims and their leases, and writes the outcomes. The child runs the handler with its transaction,
the framework's context manager and the hooks, and logs how the handler ended.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from multiprocessing.connection import Connection
from typing import Any

from ...context import TaskContext, process
from ...integration.hooks import WorkerHooks, WorkerInfo
from ...model import Claim, Outcome
from ...model.forks import in_children
from ...model.records import fields_of
from ...model.running import Progress
from ..executor import context_of
from ..handler_log import KeeperPlace
from ..leases import ActiveClaim, ClaimState
from ..log_lines import EndLog
from ..options import WorkerSettings
from ..signals import print_in_child
from ..stacks import of_threads
from ..steps import Steps
from ..task_runner import Application, HandlerRunner
from ..timeouts import Timeouts, raise_in_thread
from .fork_server import ignore_stop_signals

log = logging.getLogger("outboxq.worker")

_NOTES_EVERY = 0.5
"""Seconds within which the worker is informed of what the handler has reported and logged."""
_ANSWER_TIMEOUT = 5.0
"""Seconds for which a child waits for the worker to acknowledge that a claim is about to end. After that, the child
continues.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """The current state of a claim, which is passed on to its handler."""

    deadline: float
    was_lost: bool
    cancel_requested: bool
    is_stopping: bool

    @classmethod
    def of(cls, context: TaskContext) -> News:
        """Return the current state of a context that the worker holds."""
        return cls(**{one.name: getattr(context, one.name) for one in fields(cls)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A claim to run."""

    claim: Claim
    sent: float
    news: News


class Notice(Enum):
    """A message without content."""

    COMPLETING = auto()
    """The child sends this notice when it is about to commit a completion in the task's own transaction."""
    KNOWN = auto()
    """The worker's answer to COMPLETING."""
    STACKS = auto()
    """The worker sends this notice when a person is waiting for the stacks of the child's threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacks:
    """The answer to STACKS, sent only while a handler is running."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """A message that the child sends when it acquires or releases the database's only lock. While the child has the
    lock, no other worker can take the task.
    """

    deadline: float
    """The time at which the lease expires (`time.monotonic()`). Infinity means that the lease does not expire while the
    child has the lock.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to a job, sent when the handler has ended."""

    outcome: Outcome | None
    """The outcome without its claim, because the worker already has the claim. None if the lease was lost or if there
    is no outcome.
    """
    is_committed: bool
    was_lost: bool
    began: float | None
    ended: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """The running handler's progress and log lines. The worker writes these notes if the child is killed."""

    progress: Progress | None
    log: dict[str, Any]
    """The handler log in the form used in an event's data."""

    @classmethod
    def of(cls, context: TaskContext) -> Notes:
        """Return the notes of a context that the child holds."""
        kept = context.handler_log
        return cls(progress=context.reported, log={} if kept is None else kept.as_data())


class ChildProcess:
    """The job of one child process. The handlers run in the process's main thread, where signals interrupt their waits.

    To the code that runs the handlers, this class represents the worker: it serves as both the `LeaseView` and the
    `Outcomes`.
    """

    def __init__(self, application: Application, settings: WorkerSettings, info: WorkerInfo) -> None:
        self._application, self._settings = application, settings
        self._worker_hooks = WorkerHooks(application.hooks, info)
        self._stopping = threading.Event()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._context: TaskContext | None = None
        self._sending = threading.Lock()
        """The lock that is held while a message is sent and while the context changes, so that notes and stacks are
        never sent after an answer.
        """
        self._has_job = threading.Event()
        self._telling = threading.Lock()
        self._news: News | None = None
        """The latest news about the current or the next job."""
        self._is_known = threading.Event()
        self._is_over = threading.Event()
        """A `threading.Event` that is set when this process is about to exit."""
        self._outcome: Outcome | None = None
        """The job's outcome, to be sent in the answer. The worker writes the outcome."""

    def serve(self, channel: socket.socket) -> None:
        """Run the jobs that arrive through the socket, until the socket is closed."""
        ignore_stop_signals()
        print_in_child()
        process.is_worker = True
        signal.signal(signal.SIGURG, lambda *_: None)  # interrupts a waiting system call; see `_interrupt`
        if (engine := self._application.store.engine) is not None:
            engine.dispose(close=False)  # the engine's connections belong to the parent
        self._connection = Connection(channel.detach())
        # A process that a handler forks must not answer for a task, and must not hide that this process has exited.
        in_children(self._connection.close)
        attempt = self._runner().attempt
        for work in (self._receive, self._send_notes):
            threading.Thread(target=work, name=f"outboxq-child-{work.__name__.strip('_')}", daemon=True).start()
        self._worker_hooks.started()
        try:
            while (job := self._jobs.get()) is not None:
                answer = self._run(attempt, job)
                with self._sending:
                    self._has_job.clear()
                    self._context = None
                    self._connection.send(answer)
        finally:
            self._is_over.set()
            self._application.integration.on_thread_exit()
            self._worker_hooks.stopped()
            if engine is not None:
                engine.dispose()

    def _runner(self) -> HandlerRunner:
        application, settings = self._application, self._settings
        store, integration = application.store, application.integration
        own = store.reserved(threading.Event())
        return HandlerRunner(
            application,
            own,
            Steps(store, own, own.steps, integration, self, settings.on_failpoint),
            self,
            self,
            on_failpoint=settings.on_failpoint,
            ends=EndLog(tracebacks=settings.log_tracebacks, front_end=integration.front_end),
            keeper=KeeperPlace() if settings.handler_log else None,
            timeouts=Timeouts(lambda _: os._exit(1), raise_in=_interrupt),
            grace=None,  # the worker kills this process
        )

    def _receive(self) -> None:
        """Receive the worker's messages. When the worker exits, this process exits too. If a handler is running, this
        process exits immediately, because the handler's claim is lost.
        """
        try:
            while True:
                message: Job | News | Notice = self._connection.recv()
                if isinstance(message, Job):
                    self._apply(message.news)
                    self._jobs.put(message)
                elif isinstance(message, News):
                    self._apply(message)
                elif message is Notice.STACKS:
                    self._send_stacks()
                else:
                    self._is_known.set()
        except (EOFError, OSError):
            if self._context is not None:
                os._exit(1)
            self._jobs.put(None)
        except BaseException:
            log.exception("a child process could not read a message from its worker, so it exits")
            os._exit(1)

    def _send_stacks(self) -> None:
        text = of_threads("MainThread")
        with self._sending:
            if self._context is not None:
                self._connection.send(Stacks(text=text))

    def _send_notes(self) -> None:
        """Send the running handler's notes whenever they have changed."""
        known: tuple[TaskContext | None, Notes | None] = None, None
        while self._has_job.wait() and not self._is_over.wait(_NOTES_EVERY):
            with self._sending, suppress(OSError):  # the worker has exited, so `_receive` ends this process
                if (context := self._context) is None:
                    continue
                notes, nothing = Notes.of(context), Notes(progress=None, log={})
                if notes != (known[1] if known[0] is context else nothing):
                    self._connection.send(notes)
                known = context, notes

    def _apply(self, news: News) -> None:
        """Keep the news, and inform the handler. News may arrive before the handler has begun."""
        with self._telling:
            self._news = news
            if news.is_stopping:
                self._stopping.set()
            if (context := self._context) is not None:
                self._tell(context, news)

    def _tell(self, context: TaskContext, news: News) -> None:
        # Infinity in the news only repeats a `Holding`, which may be over by now.
        if math.inf not in {context.deadline, news.deadline}:
            context.deadline = news.deadline
        context.cancel_requested = news.cancel_requested
        context.was_lost = context.was_lost or news.was_lost

    def _run(self, attempt: Callable[[ActiveClaim], object], job: Job) -> Answer:
        claim, keeps_log = job.claim, self._settings.handler_log
        context = context_of(claim, self._application.tasks.get(claim.task_name), self._stopping, keeps_log=keeps_log)
        context.deadline = job.news.deadline
        # The worker sends the heartbeats, and warns if the handler runs past its timeout.
        active = ActiveClaim(claim=claim, context=context, sent=job.sent, next_beat=math.inf, warned_late=True)
        with self._telling:
            self._tell(context, self._news or job.news)
            self._context = context
        self._has_job.set()
        try:
            attempt(active)
        except Exception:
            text = "a claim could not be handled; its task is recovered once its lease has expired"
            log.exception(text, extra=fields_of(claim))
        finally:
            context.error = None
        outcome, self._outcome = self._outcome, None
        return Answer(
            outcome=None if outcome is None else replace(outcome, claim=None),  # type: ignore[arg-type]
            is_committed=active.state is ClaimState.COMMITTED,
            was_lost=context.was_lost and outcome is None,
            began=context.began,
            ended=context.ended,
        )

    def is_void(self, context: TaskContext) -> bool:
        return context.was_lost  # only the worker knows whether a connection was lost

    def hold_until(self, context: TaskContext, deadline: float) -> None:
        context.deadline = deadline
        with self._sending:
            self._connection.send(Holding(deadline=deadline))

    def ending(self, active: ActiveClaim) -> None:
        """Tell the worker that a completion is about to be committed, and wait for the worker's answer."""
        active.state = ClaimState.ENDING
        self._is_known.clear()
        with self._sending:
            self._connection.send(Notice.COMPLETING)
        self._is_known.wait(_ANSWER_TIMEOUT)

    def mark_lost(self, claim: Claim) -> None:  # noqa: ARG002 - this is the job's claim
        if (context := self._context) is not None:
            context.was_lost = True

    def put(self, outcome: Outcome, active: ActiveClaim | None = None) -> None:
        if active is not None:
            active.state = ClaimState.HANDED_OVER
        self._outcome = outcome

    def committed(self, outcome: Outcome, active: ActiveClaim) -> None:  # noqa: ARG002 - the worker counts it
        self._outcome = outcome

    def lost(self, active: ActiveClaim) -> None:
        active.context.was_lost = True


def _interrupt(thread: int, kind: type[BaseException]) -> None:
    """Make the main thread raise an exception of this class, even if it is waiting in a system call."""
    raise_in_thread(thread, kind)
    signal.pthread_kill(thread, signal.SIGURG)
