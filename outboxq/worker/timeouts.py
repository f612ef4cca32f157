"""Enforce timeouts without the handler's help: raise TaskTimeout in the handler's thread and, if the attempt continues
even then, end it without waiting for the handler.

The last part of the module contains time limits for other calls that may never return.

An exception for another thread is stored in that thread's slot, and is raised there a few lines of code later. By then,
the handler may have ended, and the thread may be running another handler. So a handler ends in a fixed order
(`TimeLimit.call`): it first sets a flag, after which no exception is sent; then it waits for an exception that is being
sent; then it empties the slot. None of these steps takes a lock, because an exception that arrived while the lock was
held would leave it locked.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..model import TaskTimeout

P = ParamSpec("P")
R = TypeVar("R")

_AGAIN_EVERY = 1.0
"""Seconds between two exceptions that are sent to a handler that is not stopping."""
_LINES_UNTIL_RAISED = 1000
"""The number of lines of Python to execute so that the thread raises the exception in its slot. One or two should be
enough.
"""
_NOT_YET = 0.01
"""Seconds until the next check of a handler that is about to begin."""

RaiseIn = Callable[[int, type[BaseException]], None]
"""A function that makes a thread raise an exception of this class at its next line of Python."""


def raise_in_thread(thread: int, kind: type[BaseException]) -> None:
    """Make the thread with this ident raise an exception of this class when it next executes Python code. A running
    call to C code has to return first.
    """
    import ctypes  # imported here, because most workers have no task that needs it

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


@dataclass(eq=False, repr=False)
class TimeLimit:
    """The timeout for one attempt, and its enforcement."""

    seconds: float
    """The seconds after which TaskTimeout is raised in the handler."""
    grace: float
    """The seconds from TaskTimeout until the attempt is ended without waiting for its handler. Infinity means never."""
    on_kill: Callable[[], object]
    """A function that is called, in another thread, after the attempt has been ended without waiting for its handler.
    """
    timeouts: Timeouts

    def __post_init__(self) -> None:
        self.thread = 0
        """The ident of the handler's thread; 0 until the handler has begun."""
        self.due = math.inf
        """The time at which TaskTimeout is raised next (`time.monotonic()`)."""
        self._kill_at = math.inf
        self._may_raise = False
        self._is_raising = False
        self._has_sent = False
        """True if an exception was sent, so it may still be in the thread's slot."""
        self._is_held_back = False
        """True while the handler's thread is running the worker's code, which an exception must not interrupt."""
        self._is_owed = False
        """True if an exception became due while the worker's code was running. The exception is raised at the end of
        that code.
        """
        self._has_ended = False
        self._is_reported = threading.Event()
        """A `threading.Event` that is set when `on_kill` has returned."""
        self._ended_by: dict[str, str] = {}
        """The side that ended the attempt: the first side to write to this dict. A repeated `setdefault` returns the
        same value.
        """

    @property
    def was_killed(self) -> bool:
        """True if the attempt was ended without waiting for its handler, whose later result or error is discarded."""
        return self._ended_by.get("by") == "worker"

    def wait_for_kill(self) -> None:
        """Wait until `on_kill` has returned, after an attempt that `was_killed`. The handler's thread calls this
        method, so that the thread takes no other work before it is given up.
        """
        self._is_reported.wait()

    def overrun(self) -> TaskTimeout:
        """Return the error for an attempt that was ended without waiting for its handler. The error's traceback shows
        what the handler is doing now.
        """
        error = TaskTimeout(
            f"the handler ran for longer than its timeout of {self.seconds:g} s, did not stop within the grace period of "
            f"{self.grace:g} s, and was killed with its process"
        )
        frame, trace = sys._current_frames().get(self.thread), None  # noqa: SLF001 - a function for debuggers
        while frame is not None and frame.f_code is not TimeLimit.call.__code__:
            trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
            frame = frame.f_back
        return error.with_traceback(trace)

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function. TaskTimeout may be raised in the function, but not after this call has ended."""
        self.thread = threading.get_ident()
        self.due = time.monotonic() + self.seconds
        self._kill_at = self.due + self.grace
        self.timeouts.watch(self)
        try:
            try:
                self._may_raise = True
                result = function(*args, **kwargs)
            finally:
                # Two exceptions can still arrive: one in the slot, and one whose sender read the flag before it was
                # changed.
                self._may_raise = False
                try:
                    self._settle()
                except TaskTimeout:
                    try:
                        self._settle()
                    except TaskTimeout:
                        self._settle()
        except TaskTimeout as error:
            error.args = (f"the handler ran for longer than its timeout of {self.seconds:g} s",)
            raise
        finally:
            self._has_ended = True
            self.timeouts.forget(self)
        return result

    def _settle(self) -> None:
        """Wait for an exception that is being sent, and empty the slot. The exception may be raised at any line of this
        method, so the caller repeats the call.
        """
        while self._is_raising:
            pass  # this takes microseconds, and waiting on a lock could be interrupted while the lock is held
        if self._has_sent:
            self._empty_slot()
            self._has_sent = False
        if not self._may_raise:
            self._ended_by.setdefault("by", "handler")

    @contextmanager
    def holding_back(self) -> Iterator[None]:
        """Prevent TaskTimeout inside the block, which is the worker's own code. A TaskTimeout that becomes due there is
        raised at the end of the block.

        Otherwise, a TaskTimeout could break one of the worker's connections, or arrive after a function has returned
        but before its result is stored.
        """
        self._hold_back()
        try:
            yield
        finally:
            self._is_held_back = False
        self._raise_what_is_owed()

    @contextmanager
    def letting_through(self) -> Iterator[None]:
        """Allow TaskTimeout inside the block, which is the handler's code inside a `holding_back` block."""
        try:
            self._is_held_back = False
            self._raise_what_is_owed()
            yield
        finally:
            self._hold_back()

    def _hold_back(self) -> None:
        self._is_held_back = True
        try:
            self._settle()
        except TaskTimeout:
            self._is_owed = True
            try:
                self._settle()
            except TaskTimeout:
                self._settle()

    def _raise_what_is_owed(self) -> None:
        if self._is_owed:
            self._is_owed = False
            raise TaskTimeout

    def _empty_slot(self) -> None:
        """Put an exception into the slot, replacing any that is there, and catch it.

        If the exception were removed instead, Python 3.11 and 3.12 would not clear the flag that says that the slot is
        in use. Each thread would then check for an exception again and again, and in Python 3.11, a profiler or
        debugger would never return.
        """
        try:
            self.timeouts.raise_in(self.thread, TaskTimeout)
            for _ in range(_LINES_UNTIL_RAISED):
                pass
        except TaskTimeout:
            pass

    def act(self) -> float:
        """Raise TaskTimeout or end the attempt, if that is due. Returns the time at which to call this method again
        (`time.monotonic()`). Only one thread calls this method.
        """
        now = time.monotonic()
        if self._has_ended or now < min(self.due, self._kill_at):
            return min(self.due, self._kill_at)
        if now >= self._kill_at and self._may_raise:
            if self._ended_by.setdefault("by", "worker") == "worker":
                self._kill_at = math.inf
                self.timeouts.forget(self)
                try:
                    self.on_kill()
                finally:
                    self._is_reported.set()
            return math.inf
        self._is_raising = True
        try:
            if not self._may_raise:
                return now + _NOT_YET
            if self._is_held_back:
                self._is_owed = True
            else:
                self._has_sent = True
                self.timeouts.raise_in(self.thread, TaskTimeout)
        finally:
            self._is_raising = False
        self.due = now + _AGAIN_EVERY
        return min(self.due, self._kill_at)


class Timeouts:
    """Enforces the time limits of the attempts in this process. Its thread starts when the first limit is added."""

    def __init__(
        self, on_thread_failure: Callable[[BaseException], object], *, raise_in: RaiseIn = raise_in_thread
    ) -> None:
        """`on_thread_failure` is called with an error that ends the thread."""
        self.raise_in = raise_in
        self._on_thread_failure = on_thread_failure
        self._limits: dict[TimeLimit, None] = {}
        self._next = math.inf
        """The time of the thread's next check (`time.monotonic()`). Infinity means that the thread waits until it is
        woken.
        """
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def watch(self, limit: TimeLimit) -> None:
        """Enforce the limit from now on."""
        self._limits[limit] = None
        if self._thread is None:
            self._start()
        if limit.due < self._next:
            self._wake.set()

    def forget(self, limit: TimeLimit) -> None:
        """Stop enforcing the limit. May be called repeatedly."""
        self._limits.pop(limit, None)

    def stop(self) -> None:
        """End the thread. The limits are no longer enforced."""
        self._is_stopped = True
        self._wake.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outboxq-timeouts", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._wake.clear()
                self._next = math.inf  # a limit that is added during the check wakes this thread
                self._next = due = min((limit.act() for limit in list(self._limits)), default=math.inf)
                self._wake.wait(None if due == math.inf else max(0.0, due - time.monotonic()))
        except BaseException as error:
            self._on_thread_failure(error)
            raise


def run_with_timeout(seconds: float, call: Callable[[], object]) -> bool:
    """Run the call in a thread. Returns whether the call ended in time. If not, the call continues, but does not keep
    the process alive.
    """
    thread = threading.Thread(target=call, name="outboxq-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def end_process_after(seconds: float, code: int = 1) -> threading.Timer:
    """End the process with this exit code after this time, even if its threads are stuck. Cancel the timer to prevent
    this.
    """
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


def join(thread: threading.Thread, seconds: float) -> None:
    """Wait for a thread to end, unless it never began because the worker's start failed."""
    if thread.ident is not None:
        thread.join(seconds)
