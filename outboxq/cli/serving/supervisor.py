"""The supervisor of worker processes. It starts them, replaces processes that died, and passes on requests to stop."""

from __future__ import annotations

import logging
import math
import os
import queue
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from ...worker.signals import STACKS_SIGNAL as STACKS
from ...worker.signals import SignalCounter, unignored_stop_signals
from ..console import EXIT_FILE, EXIT_KILLED, EXIT_PERMISSION, EXIT_SCHEMA, EXIT_UNREACHABLE, EXIT_USAGE
from .stop_requests import Lifeline, Order

log = logging.getLogger("outboxq.supervisor")

INTRODUCED = "_OUTBOXQ_WORKER_INTRODUCED"
"""The environment variable that tells a process not to log its database and tasks, because another process does. Users
should not set this variable.
"""

NUMBER = "_OUTBOXQ_WORKER_NUMBER"
"""The environment variable that contains the number of a process, counted from 1. A replacement process gets the same
number. Users should not set this variable.
"""

SETTLED_AFTER = 10.0
"""Seconds after which a process counts as successfully started. A process that dies after that time is replaced
immediately.
"""

SHORTEST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
REMIND_EVERY = 60.0
"""Seconds between two log lines about processes that cannot start again."""
_REFUSED = frozenset({EXIT_USAGE, EXIT_SCHEMA, EXIT_PERMISSION})
"""Exit codes that mean that a process cannot start until someone changes its configuration or the database."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The environment variables that a process gets in addition to the supervisor's, and the process's name in the log."""

    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


class Supervisor:
    """Runs `command` in several processes until they are done or the supervisor is told to stop.

    `command` takes the descriptor of the process's lifeline, through which the supervisor sends its orders. A process
    that is not listening on its lifeline yet is sent signals instead. Each of the `environments` gets `processes`
    processes. With `burst`, a process that exits with code 0 is done; with `recycles`, it is replaced immediately. A
    process that exits with EXIT_KILLED is always replaced immediately. With `reloads`, all other processes that have
    exited stay down until `reload()` starts them again.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        processes: int,
        environments: Sequence[Environment] = (Environment(),),
        burst: bool = False,
        recycles: bool = False,
        reloads: bool = False,
    ) -> None:
        self._command = command
        self._burst = burst
        self._recycles = recycles
        self._reloads = reloads
        each = [environment for environment in environments for _ in range(processes)]
        self._children = [
            _WorkerProcess(number, environment, introduces_all=number % processes == 1 % processes)
            for number, environment in enumerate(each, 1)
        ]
        # Threads that wait for events put the reactions here, and `run` calls them one after another.
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._signals: list[int] = []
        self._fatal_exit_code: int | None = None
        self._exit_codes = [0]
        self.has_ended = False
        self._unreachable_starts = 0
        self._at_once = False
        self._reminded_at = -math.inf

    def run(self) -> int:
        """Work until all processes have exited for good. Call this method in the main thread.

        If a process can never start, return its exit code. Otherwise return the highest exit code among the processes
        that were told to stop and those that could not start again. A process that was killed by a signal counts as 1.
        """
        try:
            with self._forwarding_signals():
                self._start_due()
                while any(child.process is not None or child.due is not None for child in self._children):
                    with suppress(queue.Empty):
                        self._events.get(timeout=self._until_next_start())()
                    self._start_due()
        finally:
            for child in self._children:  # if the supervisor fails, this stops its processes
                child.close_lifeline()
        refused = [child.refused for child in self._children]
        return max(*self._exit_codes, *refused) if self._fatal_exit_code is None else self._fatal_exit_code

    def reload(self) -> None:
        """Stop the running processes gracefully, then replace them. Any thread may call this method."""
        self._events.put(self._reload)

    @contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        """Turn signals into events. Python calls signal handlers only when `run` wakes up, but a thread can read the
        signal numbers immediately.
        """
        numbers, heard = unignored_stop_signals(), SignalCounter()
        stacks = [STACKS] if STACKS is not None and signal.getsignal(STACKS) is signal.SIG_DFL else []
        arriving, leaving = os.pipe()
        os.set_blocking(leaving, False)

        def listen() -> None:
            while came := os.read(arriving, 64):
                for number in came:
                    if number in numbers:
                        self._events.put(partial(self._forward, number, at_once=heard.is_urgent(number)))
                    elif number in stacks:
                        self._events.put(self._print_stacks)

        thread = threading.Thread(target=listen, name="outboxq-signals", daemon=True)
        thread.start()
        before = signal.set_wakeup_fd(leaving)
        previous = {number: signal.signal(number, lambda *_: None) for number in (*numbers, *stacks)}
        try:
            yield
        finally:
            self.has_ended = True
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            os.close(leaving)
            thread.join()
            os.close(arriving)

    def _forward(self, number: int, *, at_once: bool) -> None:
        is_echo = bool(self._signals) and not at_once
        self._signals.append(number)
        self._at_once |= at_once
        if not is_echo:
            log.info("passing on %s%s", _name(number), ", for an immediate stop" if at_once else "")
            self._send_to_all(Order.AT_ONCE if at_once else Order.STOP, number)

    def _print_stacks(self) -> None:
        """Make all listening processes print the stacks of their threads. Other processes may not have set their
        handler yet, so the signal could kill them.
        """
        assert STACKS is not None
        for child in self._children:
            if child.process is not None and child.lifeline is not None and child.lifeline.listens():
                child.process.send_signal(STACKS)

    def _send_to_all(self, order: Order, number: int) -> None:
        """Send this order to all running processes; those that are not listening get the signal instead. No process is
        started afterwards.
        """
        for child in self._children:
            child.due = None
            child.send(order, number)

    @property
    def _is_stopping(self) -> bool:
        return bool(self._signals) or self._fatal_exit_code is not None

    def _until_next_start(self) -> float | None:
        """Return the number of seconds until the next start; None if no start is planned."""
        due = min((child.due for child in self._children if child.due is not None), default=math.inf)
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _start_due(self) -> None:
        for child in self._children:
            if child.due is not None and child.due <= time.monotonic():
                self._start(child)

    def _start(self, child: _WorkerProcess) -> None:
        child.due = None
        child.starts += 1
        child.started = time.monotonic()
        try:
            child.lifeline = Lifeline()
            own = {**child.environment.variables, **self._introduction(child), NUMBER: str(child.number)}
            # In its own session, so that a Ctrl-C in the terminal reaches it only once, through the supervisor.
            process = subprocess.Popen(  # noqa: S603 - the program is outboxq itself
                self._command(child.lifeline.descriptor),
                env={**os.environ, **own},
                pass_fds=[child.lifeline.descriptor],
                start_new_session=True,
            )
            self._watch(child, process)
        except OSError as error:  # too many processes, too little memory, too many files
            child.close_lifeline()
            self._replace(child, 1, f"worker process {child.number} could not be started: {error}")
            return
        child.lifeline.close_worker_end()
        child.process, child.pid = process, process.pid
        log.info("%s started", child)

    def _watch(self, child: _WorkerProcess, process: subprocess.Popen[bytes]) -> None:
        """Start a thread that reports when the process ends. Raises OSError, and ends the process, if the thread cannot
        be started.
        """

        def wait() -> None:
            code = process.wait()
            self._events.put(partial(self._ended, child, code))

        try:
            threading.Thread(target=wait, name=f"outboxq-wait-{child.number}", daemon=True).start()
        except RuntimeError as error:
            process.kill()
            process.wait()
            raise OSError(str(error)) from error

    def _introduction(self, child: _WorkerProcess) -> dict[str, str]:
        """Return the variable that keeps a process from logging its database and tasks. One process per database logs
        the database and the tasks, at its first start and after each reload, because a reload may change them.
        """
        introduces_all = child.introduces_all and (child.starts == 1 or self._reloads)
        return {} if introduces_all else {INTRODUCED: "1"}

    def _ended(self, child: _WorkerProcess, code: int) -> None:
        child.process = None
        child.close_lifeline()
        end = f"exited with code {code}" if code >= 0 else f"was killed by {_name(-code)}"
        how = f"{child} {end}"
        refused = code in _REFUSED and child.lived <= SETTLED_AFTER
        if refused:
            child.refusal = max(child.refusal, child.lived)
        elif child.lived > min(SETTLED_AFTER, 2 * child.refusal) or not self._is_stopping:
            child.refused = 0
        if self._is_stopping:
            log.info("%s", how)
            # A process that was killed by the signal for a graceful stop had not begun to work.
            was_not_begun = -code in self._signals and not self._at_once
            self._exit_codes.append(max(code, 0) if code >= 0 or was_not_begun else 1)
        elif child.reloading:
            child.reloading = False
            begun = how if code != -signal.SIGTERM else f"{child} was stopped while it was starting"
            log.info("%s; it will be started again", begun)
            child.due = time.monotonic()
        elif code == 0 and self._burst:
            log.info("%s; it is done", how)
        elif self._can_never_start(child, code):
            log.error("%s; it cannot start, so all processes stop", how)
            self._fatal_exit_code = code
            self._send_to_all(Order.STOP, signal.SIGTERM)
        elif refused and not self._reloads:
            self._try_later(child, code, how)
        else:
            self._replace(child, code, how)

    def _can_never_start(self, child: _WorkerProcess, code: int) -> bool:
        """Return whether a process with this exit code can never start. If so, all processes must stop.

        Wrong usage, a wrong schema and a missing privilege are permanent if they occur at the first start. If they
        occur at a later start, the other processes continue to work, because the change that caused the failure may be
        undone. An unreachable database may come back, but if no process has ever reached it, the failure counts as
        permanent.
        """
        first = child.starts == 1
        if code == EXIT_FILE:
            return True
        if code == EXIT_UNREACHABLE:
            self._unreachable_starts += first
            return first and self._unreachable_starts == len(self._children)
        return first and code in _REFUSED and (self._reloads or child.lived <= SETTLED_AFTER)

    def _try_later(self, child: _WorkerProcess, code: int, how: str) -> None:
        """Start this process again later, while the others continue. In burst mode it is not started again."""
        is_news = not child.refused
        child.refused = code
        child.failures += 1
        if self._burst:
            log.error("%s; it is not restarted; the others continue", how)
            return
        child.due = time.monotonic() + pause_after(child.failures)
        if is_news:
            log.error("%s; it could not be restarted, and another attempt will be made later; the others continue", how)
        elif time.monotonic() - self._reminded_at < REMIND_EVERY:
            return
        else:
            out = ", ".join(f"{one.number} (exit code {one.refused})" for one in self._children if one.refused)
            running = sum(one.process is not None for one in self._children)
            log.error(
                "these worker processes cannot start and are being retried: %s; running processes: %d", out, running
            )
        self._reminded_at = time.monotonic()

    def _replace(self, child: _WorkerProcess, code: int, how: str) -> None:
        recycled = (code == 0 and self._recycles) or code == EXIT_KILLED
        child.failures = 0 if recycled or child.lived > SETTLED_AFTER else child.failures + 1
        if self._reloads and not recycled:
            log.warning("%s; it will be started again when a file changes", how)
            child.due = math.inf
            return
        pause = pause_after(child.failures)
        log.log(logging.INFO if recycled else logging.WARNING, "%s; it will be replaced in %.1f s", how, pause)
        child.due = time.monotonic() + pause

    def _reload(self) -> None:
        if self._is_stopping:
            return
        for child in self._children:
            if child.process is None:
                child.due = time.monotonic()
            elif not child.reloading:  # not twice, because a second signal would kill a process that is not listening
                child.reloading = True
                child.send(Order.STOP, signal.SIGTERM)


def pause_after(failures: int) -> float:
    """Return how many seconds to wait before the next start after this many failures in a row. The number is random
    within bounds, because many processes may fail together.
    """
    if failures == 0:
        return 0.0
    return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(eq=False)
class _WorkerProcess:
    """One worker process, and the processes that replace it."""

    number: int
    environment: Environment
    introduces_all: bool
    """True if this process logs the database and the tasks on behalf of all processes in its environment."""
    process: subprocess.Popen[bytes] | None = None
    lifeline: Lifeline | None = None
    due: float | None = 0.0
    """The time of the next start (`time.monotonic()`); None if the process is running or has exited for good."""
    pid: int | None = None
    starts: int = 0
    started: float = 0.0
    failures: int = 0
    """The number of times in a row that the process has died soon after its start."""
    refused: int = 0
    """The exit code of the process's latest start if that start failed; otherwise 0."""
    refusal: float = 0.0
    """The duration of the longest failed start, in seconds. A process that runs for twice that time has started
    successfully.
    """
    reloading: bool = False

    def send(self, order: Order, number: int) -> None:
        """Send the process this order if it is running. If it is not listening yet, send it the signal instead."""
        if self.process is not None and self.lifeline is not None and not self.lifeline.send(order):
            self.process.send_signal(number)

    def close_lifeline(self) -> None:
        """Close the lifeline. Closing it tells a process that is still running to stop."""
        if self.lifeline is not None:
            self.lifeline.close()
            self.lifeline = None

    @property
    def lived(self) -> float:
        return time.monotonic() - self.started

    def __str__(self) -> str:
        where = f" on {self.environment.name}" if self.environment.name else ""
        return f"worker process {self.number} (pid {self.pid}){where}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"
