"""The worker, which creates its parts, starts them, and stops them in an order that loses no task."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Unpack, get_type_hints
from uuid import UUID, uuid4

from ..errors import ConfigurationError, FileUnusable, InvalidTarget, OutcomesRefused
from ..integration import Integration
from ..integration.hooks import HookCalls, WorkerInfo
from ..model import Claim, duration
from ..model.forks import EXIT_KILLED
from ..model.records import fields_of
from ..model.unknown_options import Answering, naming_options, with_options
from ..model.wording import plural
from ..store import Store
from ..task import TaskRegistry
from .assembly import Parts
from .distributor import Health
from .distributor.base import Wakeup
from .executor import STOPPED
from .leases import ActiveClaim
from .log_lines import fields_of_worker, introduce
from .options import WorkerOptions, WorkerSettings
from .relays import prepare_database
from .signals import handle_stop_signals, in_main_thread
from .task_runner import Application
from .timeouts import end_process_after, join

if TYPE_CHECKING:
    from .prometheus import MetricsServer

log = logging.getLogger("outboxq.worker")

_GIVE_BACK_TIMEOUT = 0.8
"""Seconds within which a worker that has run out of time must release its running tasks. The database may not be
responding.
"""
_LAST_COUNTS_TIMEOUT = 5.0
"""Seconds that a stopping worker waits for its last counts to be written, unless its drain timeout has already passed.
"""
_LAST_HOOKS_TIMEOUT = 2.0
"""Seconds within which idle child processes must call their hooks and exit, unless the drain timeout has already
passed.
"""
_SIGNAL_CHECK = 0.1
"""Seconds between wake-ups of the main thread. Only when the main thread wakes up does Python handle a signal that
another thread received.
"""
_END_TIMEOUT = 5.0
"""Seconds that Python may take to exit while a handler is not stopping."""


class Worker(Answering):
    """Runs an outbox's tasks until it is told to stop.

    Any number of workers may run, on any number of machines. Each worker recovers the tasks of workers that have died.
    While a handler runs, the worker does not keep a transaction or a connection open for it, unless the task is
    transactional. The worker's own connections are in separate pools, so that handlers cannot starve its heartbeats.
    """

    _noun = "a worker"

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        *,
        integration: Integration | None = None,
        hooks: HookCalls | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        """Prepare a worker. `WorkerSettings` describes the options.

        Raises InvalidArgument for a value out of range, and ConfigurationError for a task whose lease is not longer
        than two heartbeats, because the lease would be lost if a single heartbeat were late.

        Args:
            store: The outbox's store.
            tasks: The outbox's tasks.
            integration: The adapter for the outbox's framework. None means no framework.
            hooks: The outbox's hooks.
        """
        self.settings = settings = WorkerSettings.of(**options)
        settings.check_leases(tasks)
        # The id is new at each start, because a restarted worker must not send heartbeats for its predecessor.
        self.id: UUID = uuid4()
        self.label = settings.label or f"{socket.gethostname()}:{os.getpid()}"
        self.introduces_itself = True
        """If True, the first log line names the database, the queues and the way in which the worker notices tasks. If
        False, that line names only the worker.
        """
        self._tasks, self._application = tasks, store
        names = sorted(task.name for task in tasks)
        self._info = WorkerInfo(id=self.id, label=self.label, task_names=names, **settings.scope)
        self._fields = fields_of_worker(self._info)
        self._pid = os.getpid()
        self._starting = threading.Lock()
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._ending = Ending()
        self._has_begun = False
        self._metrics: MetricsServer | None = None
        self._integration = integration or Integration()
        self._parts = Parts(
            Application(store=store, tasks=tasks, integration=self._integration, hooks=hooks),
            settings,
            self._info,
            stopping=self._stopping,
            stopped=self._stopped,
            on_finished=self.request_stop,
            on_kill=self._on_kill,
            on_thread_failure=self._on_thread_failure,
        )
        self.meter = self._parts.meter
        """This worker's counts, in memory."""

    @naming_options("run()")
    def run(self, *, burst: bool = False) -> int:
        """Work until SIGTERM, SIGINT or SIGHUP, then let running tasks finish. After a second signal, after SIGQUIT, or
        at the end of the drain timeout, the worker releases the tasks that are still running.

        With `burst`, the worker stops when no task is due, or when no due task can be claimed; until then, it also runs
        the tasks that its tasks enqueue. Retries and delayed tasks that are due later remain in their queues. Raises
        the same exceptions as `start`. Only the main thread receives signals, so in any other thread, `run` raises
        ConfigurationError unless `burst` is True. A burst in another thread leaves signal handling and the exit of the
        process to the program, and `request_stop` ends the burst early.

        Returns the exit code: 0 after a clean stop; 1 if tasks had to be released or a worker thread died; 75 if the
        process has to exit because a handler with ``timeout_action="kill"`` is not stopping. After exit code 75, start
        the worker again.
        """
        if not burst and not in_main_thread():
            raise ConfigurationError(
                "run() is stopped by signals, which only the main thread receives; run the worker in the main thread of a separate "
                "process, such as `outboxq worker APP`; in this thread, call start() and later stop(); in a test, call run(burst=True) or "
                "the harness's drain()"
            )
        with handle_stop_signals(stop=self.request_stop, abandon=self.stop_at_once):
            self.start(burst=burst)
            self._ending.wait()
            self._ending.hears_signals = in_main_thread()
            if not in_main_thread():
                return self._ending.code(clean=self.stop())
            # The process ends even if a thread is stuck.
            seconds = self.settings.drain_timeout.total_seconds() + 2.2 * _GIVE_BACK_TIMEOUT
            overtime = end_process_after(seconds, EXIT_KILLED if self._ending.has_killed else 1)
            clean = self.stop()
            overtime.cancel()
        return self._ending.code(clean=clean)

    def request_stop(self) -> None:
        """Make `run` end, as the first signal does. May be called repeatedly, in any thread and in a signal handler."""
        self._ending.request()

    def stop_at_once(self) -> None:
        """Release the running tasks and end the process with exit code 1, whatever its threads are doing. A second
        signal does the same.
        """
        end_process_after(2 * _GIVE_BACK_TIMEOUT)
        self._ending.is_abandoned = True  # set before a handler can notice the stop, because `run` may then end first
        self._stopping.set()
        log.warning("told to stop immediately; releasing the running tasks")
        self._parts.handback.give_back(_GIVE_BACK_TIMEOUT)
        # If the worker is just starting, wait until it has registered itself. Otherwise it would stay registered.
        starting = self._starting.acquire(timeout=_GIVE_BACK_TIMEOUT / 2)
        self._parts.registration.stop()
        if self._parts.registration.is_alive():
            self._parts.registration.join(_GIVE_BACK_TIMEOUT / 2)
        if starting:
            self._starting.release()
        os._exit(1)

    @property
    def is_healthy(self) -> bool:
        """False once a worker thread has died or the database has refused to record outcomes. The worker then claims no
        more tasks, and should be stopped. Also False while the worker's role lacks a privilege that is required to
        claim tasks. `health.error` gives the reason.
        """
        return self._ending.error is None and self._parts.claim_loop.denied is None

    @property
    def may_start_again(self) -> bool:
        """False if a new process that replaces this one would destroy the SQLite file by opening it."""
        error = self._ending.error
        return not isinstance(error, FileUnusable) or error.may_start_again

    @property
    def has_stopped(self) -> bool:
        """True once `stop` has stopped everything that `start` started."""
        return self._stopped.is_set()

    @property
    def health(self) -> Health:
        """The way in which the worker notices new tasks, or the reason why it no longer works."""
        if (error := self._ending.error) is not None:
            return replace(self._parts.distributor.health, listening=False, error=str(error))
        health, denied = self._parts.distributor.health, self._parts.claim_loop.denied
        return health if denied is None else replace(health, error=denied)

    @property
    def handled(self) -> int:
        """The number of tasks whose handlers have ended."""
        return self._parts.pool.handled

    @property
    def running(self) -> int:
        """The number of handlers that are currently running."""
        return max(0, self._parts.pool.in_flight - self._parts.pool.queued)

    @property
    def running_tasks(self) -> list[Claim]:
        """The claims of the tasks whose handlers are running. Reading this property takes no lock, so a signal handler
        may read it.
        """
        return self._parts.leases.running()

    @property
    def children(self) -> list[tuple[Claim, int]]:
        """The claims of the tasks that are running in child processes, with the process ids. Reading this property
        takes no lock.
        """
        return self._parts.leases.in_children()

    def print_stacks_of(self, child: int) -> None:
        """If the worker prints its stacks on a signal, make the child process with this id print the stacks of its
        threads to stderr.
        """
        if (children := self._parts.children) is not None:
            children.server.print_stacks(child)

    def start(self, *, burst: bool = False) -> None:
        """Start working in threads of this process.

        Raises SchemaOutOfDate or NotPermitted. Raises ConfigurationError if the worker was already started or was
        created before a fork, or if the server is a standby. Raises InvalidTarget in a test whose transaction is open,
        if the integration knows about that transaction.
        """
        if self._pid != os.getpid():
            raise ConfigurationError("this worker was created before the process forked; create one in each process")
        if self._integration.is_in_a_test():
            raise InvalidTarget(
                "a transaction is open in this thread, perhaps a test's transaction, and a worker cannot see the tasks in it; in a test, "
                "run them with `with Harness(outbox) as harness: harness.drain()`, or let the test commit (TransactionTestCase)"
            )
        self._parts.claim_loop.keep_tasks()
        children = self._parts.children
        try:
            if children is not None:
                children.start()
            self._open_metrics()
            self._start(burst=burst)
        finally:
            if not self._has_begun:  # the start may be repeated
                self._close_metrics()
                if children is not None:
                    children.close()

    def _open_metrics(self) -> None:
        """Serve the metrics, on a separate connection, if the settings name a port.

        Raises ConfigurationError if the port is taken, or if prometheus-client is not installed.
        """
        port = self.settings.metrics_port
        if port is None or self._metrics is not None:
            return
        try:
            from .prometheus import MetricsServer
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "prometheus_client":
                raise
            needs = "metrics_port (in commands, --metrics-port) needs prometheus-client"
            raise ConfigurationError(f"{needs}; run: pip install 'outboxq[prometheus]'") from error
        own = self._application.reserved(self._stopped)
        self._metrics = MetricsServer(self, own, host=self.settings.metrics_host, port=port)

    def _close_metrics(self) -> None:
        server, self._metrics = self._metrics, None
        if server is not None:
            server.close()

    def _start(self, *, burst: bool) -> None:
        prepare_database(self._application, self._tasks)
        self._application.compile_ends()
        with self._starting:
            if self._has_begun:
                raise ConfigurationError("a worker can be started only once; create a new one")
            if self._stopping.is_set():  # the worker was stopped before it could begin
                self._ending.request()
                return
            try:
                self._begin(burst=burst)
            except BaseException:
                if not self._has_begun:
                    self._parts.withdraw(within=_GIVE_BACK_TIMEOUT)
                self._parts.hooks.stopped()
                self._disconnect(for_good=self._has_begun)
                raise

    def _begin(self, *, burst: bool) -> None:
        parts = self._parts
        parts.connections.urgent.check_file()
        # A worker with `burst` may end before these threads run.
        parts.registration.run_early()
        parts.known_tasks.run_early()
        parts.planting.begin(burst=burst)
        for receiver in parts.receivers if burst else ():
            receiver.receive_all()
        self._has_begun = True
        parts.claim_loop.burst = burst
        if self.introduces_itself:
            introduce(self._info, self._application, hears=parts.distributor.means, front_end=parts.front_end)
        else:
            log.info("worker %s (%s) started", self.label, self.id, extra=self._fields)
        parts.hooks.started()
        parts.distributor.start()
        parts.pool.start()
        for thread in (parts.completer, *parts.services, parts.claim_loop):
            thread.start()
        if parts.senders is not None:
            parts.senders.start()

    def stop(self, timeout: timedelta | float | None = None) -> bool:
        """Stop claiming, give running tasks up to `timeout` to finish (default: the drain timeout), and release the rest.

        Returns whether all running tasks finished. A handler that is still running is fenced: its outcome is discarded.

        The order of the steps matters. Claiming stops first, because this worker would otherwise claim the tasks that
        it releases. Tasks that have not begun are released next, because another worker may be idle. Outcomes are
        written before the other tasks are released, because releasing a task fences its handler. Heartbeats continue
        until the tasks are released, because a task may take longer than its lease to finish. Connections are closed
        last, because all the other steps need them.
        """
        parts = self._parts
        self._stopping.set()
        if self._pid != os.getpid():  # in a forked process, whose parent owns the threads
            return True
        parts.distributor.close()
        if parts.senders is not None:
            parts.senders.request_stop()
        with self._starting:  # another thread may be about to start it
            has_begun = self._has_begun
        if not has_begun:
            return True
        limit = self.settings.drain_timeout if timeout is None else duration(timeout, "timeout")
        deadline = time.monotonic() + limit.total_seconds()
        self._stop_claiming(limit.total_seconds())
        self._announce_wait(limit.total_seconds())
        parts.pool.shutdown(deadline)
        self._write_outcomes(deadline)
        unfinished = parts.handback.give_back(_GIVE_BACK_TIMEOUT)
        self._stop_services(deadline)
        if parts.senders is not None:  # each sender finishes the batch that it is publishing
            parts.senders.stop(timedelta(seconds=max(_GIVE_BACK_TIMEOUT, deadline - time.monotonic())))
        self._end_handlers(deadline)
        parts.hooks.stopped()
        self._disconnect(for_good=True)
        released = f"; released {unfinished} unfinished {plural(unfinished, 'task')}" if unfinished else ""
        log.info("worker %s stopped%s", self.label, released, extra=self._fields)
        return unfinished == 0 and not parts.claim_loop.is_alive()

    def _stop_claiming(self, seconds: float) -> None:
        """Release the tasks that have not begun. Do so again after the claim loop has ended, because the loop may have
        claimed more tasks.
        """
        parts = self._parts
        parts.pool.wake()
        parts.completer.give_back(parts.pool.cancel_queued(), STOPPED)
        join(parts.claim_loop, seconds)
        parts.completer.give_back(parts.pool.cancel_queued(), STOPPED)

    def _announce_wait(self, seconds: float) -> None:
        """Log what the stop is waiting for, because nothing else is logged until a running task ends."""
        if (number := self.running) and seconds:
            text = f"waiting up to {seconds:g} s for {number} running {plural(number, 'task')}"
            if self._ending.hears_signals:
                text += f"; a second signal releases {plural(number, 'it', 'them')}"
            log.info("worker %s is stopping: %s", self.label, text, extra=self._fields)

    def _write_outcomes(self, deadline: float) -> None:
        """Wait for the completer to write all outcomes: until the deadline, or only briefly if a handler is still
        running.
        """
        parts = self._parts
        parts.completer.finish()
        longest = 0.0 if parts.pool.in_flight else deadline - time.monotonic()
        join(parts.completer, max(_GIVE_BACK_TIMEOUT, longest))
        self._stopped.set()

    def _stop_services(self, deadline: float) -> None:
        parts = self._parts
        parts.planting.stop()
        for service in parts.services:
            service.stop()
        for service in parts.services:
            longest = _LAST_COUNTS_TIMEOUT if service is parts.metrics else 0.0
            join(service, max(_GIVE_BACK_TIMEOUT / 4, min(longest, deadline - time.monotonic())))

    def _end_handlers(self, deadline: float) -> None:
        """End the child processes, so that their handlers are killed. Stop enforcing timeouts and keeping log lines."""
        parts = self._parts
        parts.timeouts.stop()
        if parts.keeper is not None:
            parts.keeper.leave()
        if parts.children is not None:
            left = deadline - time.monotonic()
            parts.children.close(max(_GIVE_BACK_TIMEOUT, min(_LAST_HOOKS_TIMEOUT, left)))

    def _disconnect(self, *, for_good: bool) -> None:
        """Close the worker's own connections and its metrics port. `for_good` is False if the start failed and may be
        repeated.
        """
        self._close_metrics()
        self._parts.connections.close(for_good=for_good)

    def _on_kill(self, active: ActiveClaim, thread: int) -> None:
        """Stop the worker, because the handler in this thread is not stopping, and only the exit of the process can end
        the handler.
        """
        text = "%s: the handler is not stopping, so this process must exit; it claims no more tasks, and lets its other handlers finish"
        log.error(text, active.claim, extra=fields_of(active.claim))
        self._ending.has_killed = True
        self._parts.pool.give_up(thread)
        self._fail(active.context.error)

    def _on_thread_failure(self, error: BaseException) -> None:
        """Stop the process with a non-zero exit code, because a worker thread must not end unnoticed."""
        try:
            if isinstance(error, OutcomesRefused | FileUnusable):
                log.critical("stopping: %s", error)
            else:
                log.critical("a worker thread died; stopping", exc_info=error)
        finally:  # logging may have failed because its stream is closed
            self._fail(error)

    def _fail(self, error: BaseException | None) -> None:
        self._ending.error = self._ending.error or error
        self._stopping.set()
        self._parts.distributor.wake()
        self._parts.pool.wake()
        self._ending.request()


@dataclass(eq=False, repr=False)
class Ending:
    """The state of a worker's stop. Any thread may request the stop."""

    error: BaseException | None = None
    """The first reason why the worker no longer works. None if the worker is working, or was told to stop."""
    has_killed: bool = False
    """True if the process has to exit because a handler is not stopping."""
    is_abandoned: bool = False
    """True if the worker was told to stop at once and has released its running tasks."""
    hears_signals: bool = False
    """True if the worker can still receive a stop signal while it is stopping."""
    _requests: Wakeup = field(default_factory=Wakeup)

    def request(self) -> None:
        """Make `wait` return. May be called in a signal handler."""
        self._requests.notify()

    def wait(self) -> None:
        """Wait until the stop is requested. Signals are handled in the meantime."""
        while not self._requests.wait(_SIGNAL_CHECK):
            pass

    def code(self, *, clean: bool) -> int:
        """Return the exit code of a worker that has stopped. `clean` is True if every running task has finished."""
        if self.has_killed and not self.is_abandoned:
            # The handler that is not stopping may hold a lock that Python waits for when it exits.
            if in_main_thread():
                end_process_after(_END_TIMEOUT, EXIT_KILLED)
            return EXIT_KILLED
        return 0 if clean and self.error is None and not self.is_abandoned else 1


Worker.__init__.__signature__ = with_options(  # type: ignore[attr-defined]  # for help()
    inspect.signature(Worker.__init__),
    get_type_hints(WorkerOptions),
    {one.name: one.default for one in fields(WorkerSettings)},
)
