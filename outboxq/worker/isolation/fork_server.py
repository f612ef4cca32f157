"""The fork server: a single-threaded process that forks child processes for a worker, and reports how they ended.

The worker itself cannot fork the children, because it has threads, and a child would inherit the locks that the threads
hold. The server is forked before the worker has threads. The server and its children exit with the worker, no matter
how the worker ends: the server notices that its socket to the worker has closed. If the server is killed, the kernel
kills the server's children on Linux. On other systems, each child notices that its own socket has closed.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...model.forks import end_fork
from ..signals import STACKS_SIGNAL, STOP_SIGNALS, survives

log = logging.getLogger("outboxq.worker")

_FORK, _KILL, _STACKS = b"f", b"k", b"s"
_FORKED, _REFUSED, _ENDED = "forked", "refused", "ended"
_MOST_DESCRIPTORS = 16
_ANSWER_TIMEOUT = 30
"""Seconds within which the server must answer a request to fork. A server that does not, for example because it was
stopped by a signal, is killed. Otherwise, the worker would hold its tasks without running them.
"""
_DEATH_TIMEOUT = 5.0
"""Seconds to wait until a killed server has exited."""
_PR_SET_PDEATHSIG = 1

Serve = Callable[[socket.socket], None]
"""A function that runs in a child, for the process at the other end of the socket."""


class CannotFork(Exception):
    """The system cannot start another process."""


class ForkServer:
    """The worker's side, which requests child processes and knows how they ended."""

    def __init__(self, serve: Serve, on_failure: Callable[[BaseException], object]) -> None:
        """Each child calls `serve`. If the server exits unexpectedly, `on_failure` is called."""
        self._serve, self._on_failure = serve, on_failure
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._children: set[int] = set()
        self._ends: dict[int, int] = {}
        self._changed = threading.Condition()
        self._control: socket.socket | None = None
        self.is_closed = False
        """True after the worker has closed the server."""
        self.has_ended = False
        """True after the server and its children have exited."""

    def start(self) -> None:
        """Fork the server, unless it is already running. Warns about this process's threads, because a child does not
        have them but may inherit their locks.
        """
        if self._control is not None:
            return
        others = [one.name for one in threading.enumerate() if one is not threading.current_thread()]
        if strangers := [name for name in others if not name.startswith("outboxq-")]:
            text = (
                "this process was running the threads %s when it forked its fork server; these threads do not exist in the server, "
                "and locks that they held stay locked there; start these threads later, for instance in a hook's worker_started()"
            )
            log.warning(text, ", ".join(strangers[:10]))
        ours, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the warning about threads is logged above
            pid = os.fork()
        if pid == 0:
            ours.close()
            _end_with(lambda: _Server(theirs, self._serve).run())
        theirs.close()
        self._control, self._pid = ours, pid
        threading.Thread(target=self._listen, name="outboxq-children", daemon=True).start()

    def fork(self) -> tuple[int, socket.socket]:
        """Return a new child's process id, and the socket that is connected to the child. Raises CannotFork."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # too many open files
            raise CannotFork(f"no socket to a child process could be opened: {error}") from error
        with self._asking, theirs:
            try:
                assert self._control is not None
                socket.send_fds(self._control, [_FORK + b"\n"], [theirs.fileno()])
                kind, text = self._answer()
            except OSError as error:
                ours.close()
                raise CannotFork(f"the fork server has exited: {error}") from error
        if kind != _FORKED:
            ours.close()
            raise CannotFork(text)
        return int(text), ours

    def kill(self, pid: int) -> None:
        """Kill a child and the processes that it has started."""
        self._order(_KILL, pid)

    def print_stacks(self, pid: int) -> None:
        """Make a child print its stacks to stderr."""
        self._order(_STACKS, pid)

    def end_of(self, pid: int, timeout: float) -> int | None:
        """Wait for a child to end, and return its exit code, or None after `timeout` seconds. A negative code means
        that a signal killed the child.
        """
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ends or self.has_ended, timeout)
            return self._ends.pop(pid, None)

    def knows_end_of(self, pid: int) -> bool:
        """Return whether a child is known to have exited, on its own or with the server."""
        return pid in self._ends or self.has_ended

    def forget(self, pid: int) -> None:
        """Forget this child and its exit code."""
        with self._changed:
            self._children.discard(pid)
            self._ends.pop(pid, None)

    def close(self) -> None:
        """End the server. It then kills its remaining children."""
        self.is_closed = True
        if self._control is not None:
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> tuple[str, str]:
        """Return the server's answer. If there is none, kill the server; `_listen` then answers that it has exited."""
        for _ in range(_ANSWER_TIMEOUT):  # if the worker and the server are frozen together, only one second counts
            with suppress(queue.Empty):
                return self._answers.get(timeout=1.0)
        log.error("the fork server has not answered for %d s, so the worker kills it", _ANSWER_TIMEOUT)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(queue.Empty):
            return self._answers.get(timeout=_DEATH_TIMEOUT)
        return _REFUSED, "the fork server does not answer"

    def _order(self, order: bytes, pid: int) -> None:
        """Send the server a command about a child. The server knows whether the process id still belongs to that child."""
        with suppress(OSError):
            assert self._control is not None
            self._control.sendall(order + str(pid).encode() + b"\n")

    def _listen(self) -> None:
        """Read the server's messages until the server ends."""
        assert self._control is not None
        try:
            with self._control.makefile("r") as lines:
                for line in lines:
                    kind, _, text = line.rstrip("\n").partition(" ")
                    if kind == _ENDED:
                        pid, _, code = text.partition(" ")
                        with self._changed:
                            if int(pid) in self._children:
                                self._children.discard(int(pid))
                                self._ends[int(pid)] = int(code)
                                self._changed.notify_all()
                    else:
                        if kind == _FORKED:
                            self._children.add(int(text))
                        self._answers.put((kind, text))
        except OSError:
            pass
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()
        self._answers.put((_REFUSED, "the fork server has exited"))
        with suppress(OSError):
            os.waitpid(self._pid, 0)
        if not self.is_closed:
            self._on_failure(ChildProcessError("the fork server has exited"))
        self._control.close()


class _Server:
    """The server's side. The server has a single thread, which never runs users' code."""

    def __init__(self, control: socket.socket, serve: Serve) -> None:
        self._control, self._serve = control, serve
        self._children: set[int] = set()

    def run(self) -> None:
        ignore_stop_signals()
        gc.freeze()  # so that the children keep sharing memory pages with the server
        died, dying = os.pipe()
        os.set_blocking(dying, False)
        os.set_blocking(died, False)
        signal.signal(signal.SIGCHLD, _no_action)
        signal.set_wakeup_fd(dying, warn_on_full_buffer=False)
        self._pipe = (died, dying)
        sources: list[Any] = [self._control, died]
        descriptors: list[int] = []
        rest = b""
        try:
            while True:
                ready, _, _ = select.select(sources, [], [])
                if died in ready:
                    with suppress(BlockingIOError):
                        os.read(died, 4096)
                    self._reap()
                if self._control in ready:
                    data, new, _flags, _address = socket.recv_fds(self._control, 4096, _MOST_DESCRIPTORS)
                    if not data:
                        return
                    descriptors += new
                    *orders, rest = (rest + data).split(b"\n")
                    for order in orders:
                        if order == _FORK:
                            self._fork(descriptors)
                        elif order.startswith(_KILL):
                            self._kill(int(order[1:]))
                        else:
                            self._print_stacks(int(order[1:]))
        except OSError:
            return  # the worker has exited
        finally:
            for pid in list(self._children):
                self._kill(pid)

    def _fork(self, descriptors: list[int]) -> None:
        if not descriptors:  # the kernel has dropped the descriptor
            self._say(_REFUSED, "no child process could be started: too many open files")
            return
        with socket.socket(fileno=descriptors.pop(0)) as channel:
            server = os.getpid()
            try:
                pid = os.fork()
            except OSError as error:
                self._say(_REFUSED, f"no child process could be started: {error}")
                return
            if pid == 0:
                _end_with(lambda: self._work(channel, server))
            with suppress(OSError):
                os.setpgid(pid, pid)  # the child does this too, because either process may be first
            self._children.add(pid)
            self._say(_FORKED, pid)

    def _work(self, channel: socket.socket, server: int) -> None:
        with suppress(OSError):
            os.setpgid(0, 0)  # processes that the handler starts are killed with it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in self._pipe:
            os.close(descriptor)
        self._control.close()
        _die_with_parent(server)
        self._serve(channel)

    def _kill(self, pid: int) -> None:
        if pid in self._children:
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                os.kill(pid, signal.SIGKILL)

    def _print_stacks(self, pid: int) -> None:
        if STACKS_SIGNAL is not None and pid in self._children and survives(pid):
            os.kill(pid, STACKS_SIGNAL)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code:  # its handler did not return, so processes that it started may still be running
                with suppress(OSError):  # the group may be empty; while it has members, its id is not reused
                    os.killpg(pid, signal.SIGKILL)
            self._say(_ENDED, pid, code)

    def _say(self, *words: object) -> None:
        self._control.sendall((" ".join(map(str, words)).replace("\n", " ") + "\n").encode())


def ignore_stop_signals() -> None:
    """Leave stop signals to the worker. Signals from a terminal or a service manager reach the worker's children too.

    The signals get a handler instead of being ignored, because programs that a task starts would inherit ignored
    signals.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _no_action)


def _no_action(_number: int, _frame: object) -> None:
    pass


def _die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent exits. Only Linux supports this; on other systems, the closed
    socket has to suffice.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _end_with(work: Callable[[], object]) -> None:
    """Do the work, then end this process."""
    failed: BaseException | None = None
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the error is printed, and the process ends
        failed = error
    end_fork(failed)
