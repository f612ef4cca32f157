"""The worker: makes its parts, starts them, and stops them in an order that loses nothing."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Unpack
from uuid import UUID, uuid4

from ..database.privileges import Role
from ..errors import ConfigurationError, FileUnusable, OutcomesRefused
from ..integration.base import Integration
from ..integration.hook_calls import HookCalls, WorkerHooks
from ..integration.hooks import WorkerInfo
from ..model import Claim, duration
from ..model.log_fields import fields_of
from ..model.wording import plural
from ..store import Store
from ..task import TaskRegistry
from .claim_loop import ClaimLoop
from .completer import Completer
from .connections import Connections
from .deadline import end_process_after, join
from .distributor import Health, create_work_distributor
from .ending import Ending
from .executor import STOPPED
from .handback import Handback
from .handlers import Handlers
from .leases import ActiveClaim, Leases
from .log_lines import fields_of_worker, introduce
from .meter import Meter
from .metrics_port import MetricsPort
from .options import WorkerOptions, WorkerSettings, with_options
from .services import Services
from .signals import handle_stop_signals
from .unknown_tasks import UnknownTasks

log = logging.getLogger("outboxq.worker")

_GIVE_BACK_TIMEOUT = 0.8
"""Seconds a worker whose time is over may take to give back what runs: the database may not answer."""


class Worker:
    """Runs the tasks of an outbox until it is told to stop.

    Any number of workers may run, on any number of machines. Each recovers the tasks of those that died. While a handler runs,
    no transaction is open for it and no connection is held, except for a transactional task, which has its own. The worker's
    own connections are in separate pools, so that handlers cannot starve its heartbeat.
    """

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        *,
        integration: Integration | None = None,
        hooks: HookCalls | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        """`integration` is what the outbox's framework does around handlers, `hooks` are those of the outbox. `WorkerSettings`
        describes the options.

        Raises InvalidArgument for values out of range, and ConfigurationError for a task whose lease is not longer than two
        heartbeats, since one late heartbeat would lose it.
        """
        self.settings = settings = WorkerSettings.of(**options)
        settings.check_leases(tasks)
        self._tasks, integration = tasks, integration or Integration()
        self._task_names = names = sorted(task.name for task in tasks)
        on_failpoint, fails = settings.on_failpoint, self._on_thread_failure

        self.id: UUID = uuid4()  # of this start of this process: a restarted worker must not beat for its predecessor
        self.label = settings.label or f"{socket.gethostname()}:{os.getpid()}"
        self.introduces_itself = True
        """The first log line says where the worker works, on what, and how it notices tasks. False: only that it has started."""
        self._pid = os.getpid()
        self._starting = threading.Lock()
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._ending = Ending()
        self._has_begun = False

        self._application = store
        self._connections = own = Connections(store, stopping=self._stopping, stopped=self._stopped)
        self._store, self._urgent, self._claiming = own.outcomes, own.urgent, own.claims

        # A claim's way: the claim loop (made at the start) waits for it, the pool runs it, the completer writes its outcome.
        self.meter = meter = Meter()
        """Counts in memory what this worker does."""
        self._metrics = MetricsPort(worker=self, settings=settings, store=store, stopped=self._stopped)
        self._leases = Leases(self._urgent, heartbeat=settings.heartbeat, on_failpoint=on_failpoint, meter=meter)
        self._connections.watch(self._leases.note_break)
        self._handback = Handback(
            self._store, self._leases, timeout=_GIVE_BACK_TIMEOUT, on_failpoint=on_failpoint, meter=meter
        )
        self._distributor = create_work_distributor(
            self._claiming,
            queues=settings.queues,
            topics=settings.topics,
            worker_id=self.id,
            poll=settings.poll,
            notifications=settings.notifications,
            listen_url=settings.listen_url,
            commits_of=store.engine,
            on_break=self._leases.note_break,
        )
        self._completer = Completer(
            self._store,
            self._leases,
            on_failpoint=on_failpoint,
            on_thread_failure=fails,
            on_unblocked=self._distributor.wake,
            durable=not settings.relaxed_durability,
            meter=meter,
        )
        info = WorkerInfo(id=self.id, label=self.label, task_names=names, **settings.scope)
        self._handlers = Handlers(
            self._completer,
            settings,
            info,
            store=store,
            own=self._store,
            tasks=tasks,
            integration=integration,
            hooks=hooks,
            on_kill=self._on_kill,
        )
        self._pool = self._handlers.pool
        unknown = UnknownTasks(
            self._claiming,
            first_delay=settings.unknown_task_delay,
            longest_delay=settings.unknown_task_longest_delay,
            limit=settings.unknown_task_limit,
        )
        self._claim_loop = ClaimLoop(
            self._claiming,
            tasks,
            settings,
            leases=self._leases,
            pool=self._pool,
            completer=self._completer,
            distributor=self._distributor,
            unknown=unknown,
            worker_id=self.id,
            stopping=self._stopping,
            on_finished=self.request_stop,
            on_thread_failure=fails,
            meter=meter,
        )

        description = {"label": self.label, "task_names": [*names, *tasks.built_in], **settings.scope}
        self._hooks = WorkerHooks(hooks, info)
        self._services = Services(
            self._claiming,
            self._urgent,
            worker_id=self.id,
            tasks=tasks,
            settings=settings,
            description=description,
            pool=self._pool,
            leases=self._leases,
            claim_loop=self._claim_loop,
            unknown=unknown,
            meter=meter,
            stopping=self._stopping,
            on_thread_failure=fails,
        )
        self._registration = self._services.registration
        self._completer.on_member_failed = self._services.batches.expect

    def run(self, *, burst: bool = False) -> int:
        """Work until SIGTERM, SIGINT or SIGHUP, then let running tasks finish. A second signal, SIGQUIT, or the drain timeout gives
        them back.

        `burst`: work until no task can be claimed, including those that the tasks enqueue. Returns the exit code: 0 after a
        clean stop, 1 if tasks had to be given back or a thread of the worker died, 75 if it had to end
        because of a handler with ``timeout_action="kill"``: start it again. Must be called in the main thread. Raises what `start`
        raises.
        """
        with handle_stop_signals(stop=self.request_stop, abandon=self.stop_at_once):
            self.start(burst=burst)
            self._ending.wait()
            # Whatever a thread is stuck in, the process ends.
            seconds = self.settings.drain_timeout.total_seconds() + 2.2 * _GIVE_BACK_TIMEOUT
            overtime = end_process_after(seconds, self._ending.forced_code)
            clean = self.stop()
            overtime.cancel()
        return self._ending.code(clean=clean)

    def request_stop(self) -> None:
        """Make `run` end as the first signal does. May be called in any thread, in a signal handler, and repeatedly."""
        self._ending.request()

    def stop_at_once(self) -> None:
        """Give back what runs, and end the process with exit code 1 whatever its threads do, as a second signal does."""
        end_process_after(2 * _GIVE_BACK_TIMEOUT)
        self._ending.is_abandoned = True  # before a handler can notice, for `run` may then end first
        self._stopping.set()
        log.warning("told to stop at once; giving back the running tasks")
        self._handback.give_back()
        # A start that is under way registers the worker: wait for it, or the worker would stay registered.
        starting = self._starting.acquire(timeout=_GIVE_BACK_TIMEOUT / 2)
        self._registration.stop()
        if self._registration.is_alive():
            self._registration.join(_GIVE_BACK_TIMEOUT / 2)
        if starting:
            self._starting.release()
        os._exit(1)

    @property
    def is_healthy(self) -> bool:
        """False once a thread of the worker itself has died, or the database refuses to record outcomes: it then claims nothing
        more, and should be stopped. Also False while its role lacks a right to claim. `health.error` says why.
        """
        return self._ending.error is None and self._claim_loop.denied is None

    @property
    def may_start_again(self) -> bool:
        """False if another process in this one's place would destroy the SQLite file by opening it."""
        return self._ending.may_start_again

    @property
    def has_stopped(self) -> bool:
        """True once `stop` has ended what `start` began."""
        return self._stopped.is_set()

    @property
    def health(self) -> Health:
        """The way in which it notices new tasks, or the reason why it no longer works."""
        if (error := self._ending.error) is not None:
            return replace(self._distributor.health, listening=False, error=str(error))
        health, denied = self._distributor.health, self._claim_loop.denied
        return health if denied is None else replace(health, error=denied)

    @property
    def handled(self) -> int:
        """The number of tasks whose handlers have ended."""
        return self._pool.handled

    @property
    def running(self) -> int:
        """The number of handlers that run now."""
        return max(0, self._pool.in_flight - self._pool.queued)

    @property
    def running_tasks(self) -> list[Claim]:
        """The claims of the tasks whose handlers run now. It takes no lock, so that a signal handler may use it."""
        return self._leases.running()

    @property
    def children(self) -> list[tuple[Claim, int]]:
        """The claims of the tasks that run in child processes now, with the ids of those. It takes no lock."""
        return self._leases.in_children()

    def print_stacks_of(self, child: int) -> None:
        """Have the child process of this id print the stacks of its threads on stderr, where the worker does so at a signal."""
        self._handlers.print_stacks_of(child)

    def start(self, *, burst: bool = False) -> None:
        """Begin to work, in threads of this process.

        Raises SchemaOutOfDate, NotPermitted, and ConfigurationError for a second start, another process, or a standby server.
        """
        if self._pid != os.getpid():
            raise ConfigurationError("this worker was made before the process forked; make one in each process")
        self._claim_loop.keep_tasks()
        with self._handlers.forking(lambda: self._has_begun), self._metrics.opening(lambda: self._has_begun):
            self._start(burst=burst)

    def _start(self, *, burst: bool) -> None:
        self._application.ensure_file()
        self._application.rights.ensure(Role.WORKER)
        self._application.ensure_current()
        self._application.ensure_primary()
        self._application.compile_ends()
        subscriptions = [one for task in self._tasks for one in task.subscriptions]
        self._application.subscriptions.replace(subscriptions, tasks=[task.name for task in self._tasks])
        with self._starting:
            if self._has_begun:
                raise ConfigurationError("a worker starts once; make a new one")
            if self._stopping.is_set():  # it was stopped before it could begin
                self._ending.request()
                return
            try:
                self._begin(burst=burst)
            except BaseException:
                self._hooks.stopped()
                self._disconnect()
                raise

    def _begin(self, *, burst: bool) -> None:
        self._urgent.check_file()
        self._services.run_early(burst=burst)
        self._has_begun = True
        self._claim_loop.burst = burst
        if self.introduces_itself:
            hears = self._distributor.means
            introduce(self.label, self.id, self._application, self.settings, hears=hears, task_names=self._task_names)
        else:
            log.info("worker %s (%s) started", self.label, self.id, extra=fields_of_worker(self.id, self.label))
        self._hooks.started()
        self._distributor.start()
        self._pool.start()
        for thread in (self._completer, *self._services, self._claim_loop):
            thread.start()

    def stop(self, timeout: timedelta | float | None = None) -> bool:
        """Stop claiming, let running tasks finish for `timeout` (default: the drain timeout), and give back the rest.

        Returns whether all of them finished. A handler that still runs is fenced: its outcome is discarded.

        The order has reasons. Claiming stops first, or this worker would claim again what it gives back. Tasks that were not
        begun go back next, since another worker may be idle. Outcomes are written before the rest is given back, since a
        release fences its handler. Heartbeats go on until then, since a task may drain for longer than its lease. Connections
        close last, since all of this needs them.
        """
        self._stopping.set()
        if self._pid != os.getpid():  # forked: the threads are the parent's
            return True
        self._distributor.close()
        with self._starting:  # another thread may be about to start it
            has_begun = self._has_begun
        if not has_begun:
            return True
        limit = self.settings.drain_timeout if timeout is None else duration(timeout, "timeout")
        deadline = time.monotonic() + limit.total_seconds()
        self._stop_claiming(limit.total_seconds())
        self._pool.shutdown(deadline)
        self._write_outcomes(deadline)
        unfinished = self._handback.give_back()
        self._stop_services()
        self._handlers.close()
        self._hooks.stopped()
        self._disconnect()
        gave = f"; gave back {unfinished} unfinished {plural(unfinished, 'task')}" if unfinished else ""
        log.info("worker %s stopped%s", self.label, gave, extra=fields_of_worker(self.id, self.label))
        return unfinished == 0 and not self._claim_loop.is_alive()

    def _stop_claiming(self, seconds: float) -> None:
        """Give back what was not begun, and again once the claim loop has ended: a claim may have been under way."""
        self._pool.wake()
        self._completer.give_back(self._pool.cancel_queued(), STOPPED)
        join(self._claim_loop, seconds)
        self._completer.give_back(self._pool.cancel_queued(), STOPPED)

    def _write_outcomes(self, deadline: float) -> None:
        """Wait until the completer has written all outcomes: until the deadline, but only for a moment if a handler still runs."""
        self._completer.finish()
        is_done = self._pool.in_flight == 0
        join(self._completer, max(_GIVE_BACK_TIMEOUT, deadline - time.monotonic()) if is_done else _GIVE_BACK_TIMEOUT)
        self._stopped.set()

    def _stop_services(self) -> None:
        self._services.stop()
        for service in self._services:
            join(service, _GIVE_BACK_TIMEOUT / 4)

    def _disconnect(self) -> None:
        """Close the worker's own connections, and the port of its metrics."""
        self._metrics.close()
        self._connections.close()

    def _on_kill(self, active: ActiveClaim, thread: int) -> None:
        """Stop: the handler in this thread does not end, and only the end of the process ends it."""
        text = (
            "%s: its handler does not end, so this process has to; it takes no more tasks, and lets the others finish"
        )
        log.error(text, active.claim, extra=fields_of(active.claim))
        self._ending.has_killed = True
        self._pool.give_up(thread)
        self._fail(active.context.error)

    def _on_thread_failure(self, error: BaseException) -> None:
        """Stop the process, with a non-zero exit code: a thread of the worker itself must not end unnoticed."""
        try:
            if isinstance(error, OutcomesRefused | FileUnusable):
                log.critical("stopping: %s", error)
            else:
                log.critical("a worker thread died; stopping", exc_info=error)
        finally:  # the failure may be that of a log whose stream was closed
            self._fail(error)

    def _fail(self, error: BaseException | None) -> None:
        self._ending.fail(error)
        self._stopping.set()
        self._distributor.wake()
        self._pool.wake()
        self._ending.request()


Worker.__init__.__signature__ = with_options(inspect.signature(Worker.__init__))  # type: ignore[attr-defined]
