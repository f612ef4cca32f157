"""The threads of a worker whose handlers run in child processes, and the pool of those children."""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ...context import StepRunner
from ...errors import ProcessDied
from ...model import TaskTimeout, TimeoutAction
from ...model.records import fields_of
from ...model.running import HandlerLog
from ...task import Task
from ..executor import failed, released, with_notes
from ..leases import ActiveClaim, ClaimState, Outcomes
from ..log_lines import EndLog
from ..task_runner import Application, report_kill
from .child import Answer, Holding, Job, News, Notes, Notice, Stacks
from .fork_server import CannotFork, ForkServer

log = logging.getLogger("outboxq.worker")

_NEWS_EVERY = 0.1
"""Seconds within which a handler in a child is informed of what the worker knows about its claim."""
_END_TIMEOUT = 5.0
"""Seconds to wait for a child to exit after its socket has closed."""
_RETRY_AFTER = timedelta(seconds=1)
_LENGTH = struct.Struct("!i")
"""The format of the length that a `Connection` sends before each message."""
_READ_BYTES = 2**16


@dataclass(eq=False, repr=False)
class _Child:
    """One child process, as the worker sees it."""

    pid: int
    connection: Connection
    tasks: int = 0
    """The number of tasks that the child has been given."""
    _unread: bytearray = field(default_factory=bytearray)
    """The beginning of a message whose end has not arrived, or messages that have not been returned yet."""

    def receive(self, seconds: float) -> Any:
        """Wait up to this many seconds, and return a message, or None if no complete message has arrived.

        `Connection.recv` would wait for the rest of a message. The rest does not arrive while the child is stopped, or
        while its handler holds Python's lock. Raises EOFError or OSError if the child has closed its socket.
        """
        if (message := self._next_message()) is None and self.connection.poll(seconds):
            if not (data := os.read(self.connection.fileno(), _READ_BYTES)):
                raise EOFError
            self._unread += data
            message = self._next_message()
        return message

    def _next_message(self) -> Any:
        if len(self._unread) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._unread)[0]
        if len(self._unread) < end:
            return None
        message = ForkingPickler.loads(self._unread[_LENGTH.size : end])  # as `Connection.recv` does
        del self._unread[:end]
        return message

    def accepts_message(self) -> bool:
        """Return whether a short message can be sent without waiting. A child that is stopped, or whose handler holds
        Python's lock, does not read its messages, so its socket fills up.
        """
        socket = select.poll()  # unlike `select.select`, it accepts any number of open files
        socket.register(self.connection, select.POLLOUT)
        return bool(socket.poll(0))


class Children:
    """The child processes of one worker. An idle child is reused until it has run its maximum number of tasks."""

    def __init__(self, new_server: Callable[[], ForkServer], *, tasks_per_child: int) -> None:
        self._new_server = new_server
        self.server = new_server()
        self._limit = tasks_per_child
        self._idle: deque[_Child] = deque()
        self._asked: dict[int, Future[str]] = {}
        """The stacks of busy children for which a person is waiting, keyed by process id. A future is running once its
        child has been asked.
        """

    def start(self) -> None:
        """Fork the server. After `close`, fork a new server. If the server is running, the call has no effect.

        The worker calls this method before it has a thread, a connection or a port, because a child would inherit them.
        """
        if self.server.is_closed:
            self.server = self._new_server()
        self.server.start()

    def given(self, job: Job) -> _Child:
        """Give this job to a child, and return the child. Raises CannotFork."""
        while True:
            child = self._take()
            try:
                # An idle child sends nothing, so a readable socket means that it has died.
                if not child.connection.poll():
                    child.connection.send(job)
                    child.tasks += 1
                    return child
            except OSError:
                pass
            self.discard(child)

    def _take(self) -> _Child:
        with suppress(IndexError):
            return self._idle.pop()
        pid, channel = self.server.fork()
        return _Child(pid, Connection(channel.detach()))

    def put_back(self, child: _Child) -> None:
        """Keep the child for another task, or let it exit."""
        if child.tasks < self._limit and not self.server.is_closed:
            self._idle.append(child)
        else:
            self.discard(child)

    def discard(self, child: _Child) -> None:
        """Let the child exit. The child exits when its socket has closed and no handler is running."""
        child.connection.close()
        self.server.forget(child.pid)

    def stacks_of(self, pids: Collection[int], timeout: float) -> dict[int, str | None]:
        """Ask busy children for the stacks of their threads, and wait at most `timeout` seconds in total for their
        answers. The stacks of a child that has not answered are None. Only one thread may call this at a time.
        """
        self._asked = asked = {pid: Future[str]() for pid in pids}
        wait(asked.values(), timeout)
        self._asked = {}
        return {pid: one.result() if one.done() else None for pid, one in asked.items()}

    def pass_on_question(self, child: _Child) -> None:
        """Ask the child for its stacks, if a person is waiting for them."""
        asked = self._asked.get(child.pid)
        if asked is not None and not asked.running() and not asked.done() and child.accepts_message():
            asked.set_running_or_notify_cancel()
            child.connection.send(Notice.STACKS)

    def answered(self, child: _Child, text: str) -> None:
        """Pass on a child's stacks."""
        if (asked := self._asked.get(child.pid)) is not None and not asked.done():
            asked.set_result(text)

    def close(self, seconds: float = 0.0) -> None:
        """Give idle children this many seconds to exit, because their hooks may have data to send. Then kill the
        remaining children.
        """
        idle, until = list(self._idle), time.monotonic() + seconds
        for child in idle:
            child.connection.close()
        for child in idle:
            self.server.end_of(child.pid, max(0.0, until - time.monotonic()))
        self.server.close()


@dataclass(eq=False, repr=False)
class IsolatedRunner:
    """Runs the handlers of claims in child processes, and passes the outcomes on."""

    application: Application
    """The application's hooks, which are called in the worker for attempts whose child has died. Otherwise, the child
    calls the hooks.
    """
    children: Children
    steps: StepRunner
    """Knows how much of a task's time before its child died does not count for a retry policy."""
    outcomes: Outcomes
    ends: EndLog
    grace: timedelta
    """The time from a timeout until the child is killed."""

    def attempt(self, active: ActiveClaim) -> None:
        """Run the handler of a claim that may begin."""
        claim, context = active.claim, active.context
        task = self.application.tasks.get(claim.task_name)
        known = News.of(context)
        context.step_runner = self.steps
        try:
            child = self.children.given(Job(claim=claim, sent=active.sent, news=known))
        except CannotFork as error:
            log.error("%s: %s; the task is released", claim, error, extra=fields_of(claim))  # noqa: TRY400 - not an error in this code
            self.outcomes.put(released(claim, "no child process could be started", delay=_RETRY_AFTER), active)
            return
        context.began = time.monotonic()
        active.child = child.pid
        try:
            answer = self._await(child, active, task, known)
        except (EOFError, OSError):
            active.child = None
            context.ended = time.monotonic()
            self._died(child, active, task)
        else:
            active.child = None
            if answer is None:
                self._killed(child, active, task)
            else:
                self.children.put_back(child)
                self._finish(active, answer)

    def _await(self, child: _Child, active: ActiveClaim, task: Task[..., Any], known: News) -> Answer | None:
        """Return the child's answer, or None if its handler has run out of time. Raises EOFError or OSError if the child
        dies.

        `known` is the news that the child already has.
        """
        context, connection = active.context, child.connection
        kill_at = self._kill_at(active, task)
        while True:
            message = child.receive(max(0.0, min(_NEWS_EVERY, kill_at - time.monotonic())))
            if message is not None:
                if isinstance(message, Answer):
                    return message
                self._heed(message, active, child)
                if active.state is ClaimState.ENDING:
                    kill_at = math.inf  # the handler has ended, and its outcome must not be overturned by a slow commit
            elif time.monotonic() >= kill_at:
                return None
            elif self.children.server.knows_end_of(child.pid) and not connection.poll():
                raise EOFError  # a process that the handler forked still has the other end of the socket open
            if (now := News.of(context)) != known and child.accepts_message():
                known = now
                connection.send(now)
            self.children.pass_on_question(child)

    def _heed(self, message: Notes | Holding | Stacks | Notice, active: ActiveClaim, child: _Child) -> None:
        """Act on a message from a child that is running a handler."""
        context = active.context
        if isinstance(message, Notes):
            context.reported, context.handler_log = message.progress, HandlerLog.of_data(message.log)
        elif isinstance(message, Holding):
            if math.inf in {message.deadline, context.deadline}:  # otherwise a heartbeat has set a later deadline
                context.deadline = message.deadline
        elif isinstance(message, Stacks):
            self.children.answered(child, message.text)
        else:
            active.state = ClaimState.ENDING
            context.ended = time.monotonic()
            child.connection.send(Notice.KNOWN)

    def _kill_at(self, active: ActiveClaim, task: Task[..., Any]) -> float:
        """Return the time at which to kill the child (`time.monotonic()`). Infinity means never."""
        seconds, began = active.claim.timeout_seconds, active.context.began
        active.is_limited = task.timeout_action is not TimeoutAction.ASK
        if task.timeout_action is not TimeoutAction.KILL or seconds is None or began is None:
            return math.inf
        return began + seconds + self.grace.total_seconds()

    def _finish(self, active: ActiveClaim, answer: Answer) -> None:
        """Pass on the child's outcome, as a handler thread would pass on its own."""
        claim, context = active.claim, active.context
        context.began, context.ended = answer.began, answer.ended
        outcome = None if answer.outcome is None else replace(answer.outcome, claim=claim)
        if outcome is None:
            if answer.was_lost:
                self.outcomes.lost(active)
        elif answer.is_committed:
            active.state = ClaimState.COMMITTED
            self.outcomes.committed(outcome, active)
        else:
            self.outcomes.put(outcome, active)
        active.warn_if_late()

    def _killed(self, child: _Child, active: ActiveClaim, task: Task[..., Any]) -> None:
        self.children.server.kill(child.pid)
        self.children.discard(child)
        active.context.ended = time.monotonic()
        error = TaskTimeout(
            f"the handler ran for longer than its timeout of {active.claim.timeout_seconds:g} s, did not stop within the grace "
            f"period of {self.grace.total_seconds():g} s, and was killed with its child process"
        )
        self._fail(active, task, error)

    def _died(self, child: _Child, active: ActiveClaim, task: Task[..., Any]) -> None:
        """End the claim of a handler whose process has died. No other handler was running in that process, so the
        handler's attempt counts as failed.
        """
        child.connection.close()
        server, claim = self.children.server, active.claim
        code = server.end_of(child.pid, _END_TIMEOUT)
        if server.is_closed or server.has_ended:
            if not server.is_closed:
                self.outcomes.put(released(claim, "the fork server has exited", delay=_RETRY_AFTER), active)
            return
        if code is None:
            server.kill(child.pid)  # the child or its handler has closed the socket
            server.forget(child.pid)
        self._fail(active, task, ProcessDied(f"the child process of the handler {_end(code)}"))

    def _fail(self, active: ActiveClaim, task: Task[..., Any], error: BaseException) -> None:
        context = active.context
        context.has_died = True
        outcome = with_notes(failed(task, context, error), context)
        seconds = (context.ended or 0.0) - (context.began or 0.0)
        self.outcomes.put(outcome, active)
        active.warn_if_late()
        report_kill(self.application.hooks, self.ends, outcome, context, seconds)


def _end(code: int | None) -> str:
    """Return a description of how a process with this exit code ended. A negative code means that a signal killed the
    process.
    """
    if code is None:
        return "is no longer responding"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
