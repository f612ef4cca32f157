"""The supervisor of worker processes: starts them, replaces dead ones, and forwards orders to stop."""

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
"""The environment variable that tells a process not to log its database and tasks, because another process does so. Not
for users.
"""

NUMBER = "_OUTBOXQ_WORKER_NUMBER"
"""The environment variable with the number of a process, from 1. Its successors have the same number. Not for users."""

SETTLED_AFTER = 10.0
"""Seconds after which a process counts as started. If it dies later, it is replaced at once."""

SHORTEST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
REMIND_EVERY = 60.0
"""Seconds between two log lines about processes that cannot start again."""
_REFUSED = frozenset({EXIT_USAGE, EXIT_SCHEMA, EXIT_PERMISSION})
"""The exit codes of a process that cannot start until a person changes its configuration or the database."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The environment variables of a process, in addition to the supervisor's, and its name in the log."""

    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


class Supervisor:
    """Runs `command` in several processes until it is told to stop, or until they are done.

    `command` takes the descriptor of the process's lifeline. A process that is not listening there gets signals. Each
    of the `environments` gets `processes` processes. `burst`: a process that ends with exit code 0 is done. `recycles`:
    such a process is replaced at once, like a process that ends with EXIT_KILLED. `reloads`: `reload()` starts all
    other ended processes again.
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
        # Waiting threads put the reactions to their events here; `run` calls them one after another.
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._signals: list[int] = []
        self._fatal_exit_code: int | None = None
        self._exit_codes = [0]
        self.has_ended = False
        self._unreachable_starts = 0
        self._at_once = False
        self._reminded_at = -math.inf

    def run(self) -> int:
        """Work until all processes have ended for good. Call it in the main thread.

        Return the exit code of a process that can never start, if there is one. Otherwise return the highest exit code of the
        processes that were told to stop, with 1 for a process that a signal killed, and of the processes that could not start again.
        """
        try:
            with self._forwarding_signals():
                self._start_due()
                while any(child.process is not None or child.due is not None for child in self._children):
                    with suppress(queue.Empty):
                        self._events.get(timeout=self._until_next_start())()
                    self._start_due()
        finally:
            for child in self._children:  # if the supervisor fails, its processes stop
                child.close_lifeline()
        refused = [child.refused for child in self._children]
        return max(*self._exit_codes, *refused) if self._fatal_exit_code is None else self._fatal_exit_code

    def reload(self) -> None:
        """Replace the running processes after they have stopped gracefully. Any thread may call it."""
        self._events.put(self._reload)

    @contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        """Turn signals into events. Python only calls signal handlers when `run` wakes up, but a thread reads their numbers at once."""
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
            log.info("passing on %s%s", _name(number), ": at once" if at_once else "")
            self._send_to_all(Order.AT_ONCE if at_once else Order.STOP, number)

    def _print_stacks(self) -> None:
        """Make all processes print the stacks of their threads. A process that has not set its handler yet would be
        killed by the signal.
        """
        assert STACKS is not None
        for child in self._children:
            if child.process is not None and child.lifeline is not None and child.lifeline.listens():
                child.process.send_signal(STACKS)

    def _send_to_all(self, order: Order, number: int) -> None:
        """Give all running processes this order, or the signal if they are not listening. No process is started
        afterwards.
        """
        for child in self._children:
            child.due = None
            child.send(order, number)

    @property
    def _is_stopping(self) -> bool:
        return bool(self._signals) or self._fatal_exit_code is not None

    def _until_next_start(self) -> float | None:
        """Return the number of seconds until the next start. None: no start is planned."""
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
            # In its own session: a terminal's Ctrl-C then reaches it once, through the supervisor.
            process = subprocess.Popen(  # noqa: S603 - this very program
                self._command(child.lifeline.descriptor),
                env={
                    **os.environ,
                    **child.environment.variables,
                    **self._introduction(child),
                    NUMBER: str(child.number),
                },
                pass_fds=[child.lifeline.descriptor],
                start_new_session=True,
            )
        except OSError as error:  # too many processes, too little memory, too many files
            child.close_lifeline()
            self._replace(child, 1, f"worker process {child.number} could not be started: {error}")
            return
        child.lifeline.close_worker_end()
        child.process, child.pid = process, process.pid
        log.info("%s started", child)

        def wait() -> None:
            code = process.wait()
            self._events.put(partial(self._ended, child, code))

        threading.Thread(target=wait, name=f"outboxq-wait-{child.number}", daemon=True).start()

    def _introduction(self, child: _WorkerProcess) -> dict[str, str]:
        """One process per database logs where it works and its tasks; after a reload again, because both may have changed."""
        introduces_all = child.introduces_all and (child.starts == 1 or self._reloads)
        return {} if introduces_all else {INTRODUCED: "1"}

    def _ended(self, child: _WorkerProcess, code: int) -> None:
        child.process = None
        child.close_lifeline()
        end = f"ended with exit code {code}" if code >= 0 else f"was killed by {_name(-code)}"
        how = f"{child} {end}"
        refused = code in _REFUSED and child.lived <= SETTLED_AFTER
        if refused:
            child.refusal = max(child.refusal, child.lived)
        elif child.lived > min(SETTLED_AFTER, 2 * child.refusal) or not self._is_stopping:
            child.refused = 0
        if self._is_stopping:
            log.info("%s", how)
            self._exit_codes.append(self._exit_code_of(code))
        elif child.reloading:
            child.reloading = False
            log.info("%s; it is started again", how)
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

    def _exit_code_of(self, code: int) -> int:
        """Return what a process's exit code contributes to the supervisor's. The signal for a graceful stop only kills
        a process that has not begun to work, so it counts as 0.
        """
        return max(code, 0) if code >= 0 or (-code in self._signals and not self._at_once) else 1

    def _can_never_start(self, child: _WorkerProcess, code: int) -> bool:
        """Return whether a process with this exit code will never start, so that all processes must stop.

        Wrong usage, a wrong schema and a missing right at the first start are permanent. At a later start, other processes work, and
        the change may be undone. An unreachable database may come back, unless no process has ever reached it.
        """
        first = child.starts == 1
        if code == EXIT_FILE:
            return True
        if code == EXIT_UNREACHABLE:
            self._unreachable_starts += first
            return first and self._unreachable_starts == len(self._children)
        return first and code in _REFUSED and (self._reloads or child.lived <= SETTLED_AFTER)

    def _try_later(self, child: _WorkerProcess, code: int, how: str) -> None:
        """Start this process again later, while the others continue. In a burst, never."""
        is_news = not child.refused
        child.refused = code
        child.failures += 1
        if self._burst:
            log.error("%s; it cannot start again; the others continue", how)
            return
        child.due = time.monotonic() + pause_after(child.failures)
        if is_news:
            log.error("%s; it cannot start again and will be retried later; the others continue", how)
        elif time.monotonic() - self._reminded_at < REMIND_EVERY:
            return
        else:
            out = ", ".join(f"{one.number} (exit code {one.refused})" for one in self._children if one.refused)
            running = sum(one.process is not None for one in self._children)
            log.error("these worker processes cannot start and are being retried: %s; %d are running", out, running)
        self._reminded_at = time.monotonic()

    def _replace(self, child: _WorkerProcess, code: int, how: str) -> None:
        recycled = (code == 0 and self._recycles) or code == EXIT_KILLED
        child.failures = 0 if recycled or child.lived > SETTLED_AFTER else child.failures + 1
        if self._reloads and not recycled:
            log.warning("%s; it will be started again when a file changes", how)
            child.due = math.inf
            return
        pause = pause_after(child.failures)
        log.log(logging.INFO if recycled else logging.WARNING, "%s; it is replaced in %.1f s", how, pause)
        child.due = time.monotonic() + pause

    def _reload(self) -> None:
        if self._is_stopping:
            return
        for child in self._children:
            if child.process is None:
                child.due = time.monotonic()
            elif (
                not child.reloading
            ):  # a process that is not listening takes a second signal as an order to stop at once
                child.reloading = True
                child.send(Order.STOP, signal.SIGTERM)


def pause_after(failures: int) -> float:
    """Return the number of seconds before the next start after this many failures in a row. It varies, because many
    processes may fail together.
    """
    if failures == 0:
        return 0.0
    return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(eq=False)
class _WorkerProcess:
    """One of the worker processes, and its successors."""

    number: int
    environment: Environment
    introduces_all: bool
    """It logs the database and the tasks for all processes of its environment."""
    process: subprocess.Popen[bytes] | None = None
    lifeline: Lifeline | None = None
    due: float | None = 0.0
    """The time of its next start (`time.monotonic()`). None: it is running, or has ended for good."""
    pid: int | None = None
    starts: int = 0
    started: float = 0.0
    failures: int = 0
    """Number of times in a row that it died soon after its start."""
    refused: int = 0
    """The exit code of its last failed start. 0: it is not known to fail."""
    refusal: float = 0.0
    """Duration of the longest failed start, in seconds. A process that lives for twice as long has started."""
    reloading: bool = False

    def send(self, order: Order, number: int) -> None:
        """Give the process this order if it is running; by the signal if it is not listening yet."""
        if self.process is not None and self.lifeline is not None and not self.lifeline.send(order):
            self.process.send_signal(number)

    def close_lifeline(self) -> None:
        """Close the lifeline, which tells a process that still runs to stop."""
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
    except ValueError:  # a real-time signal
        return f"signal {number}"
