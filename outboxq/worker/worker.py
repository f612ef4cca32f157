"""Claims tasks, runs them in threads, and ends their claims."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from ..database.privileges import Role
from ..errors import ConfigurationError, FileUnusable, OutcomesRefused
from ..integration.base import Host
from ..model import duration
from ..store import Store, queue_names
from ..task import Registry
from .claim_loop import ClaimLoop
from .completer import Completer
from .deadline import end_process_after
from .distributor import Health, create_work_distributor
from .end_log import EndLog
from .executor import STOPPED, released
from .failpoints import OnFailpoint, ignore_failpoint
from .handback import Handback
from .introduction import Introduction
from .leases import ActiveClaim, Leases
from .maintenance import ServiceThread, WorkerRegistration, partitions_pause
from .options import positive, whole
from .recovery import Recovery
from .signals import handle_stop_signals
from .task_runner import TaskRunner
from .thread_pool import HandlerPool
from .unknown_tasks import KnownTaskScheduler, UnknownTasks

log = logging.getLogger("outboxq.worker")

DRAIN_TIMEOUT = timedelta(seconds=25)
RECOVER_EVERY = timedelta(seconds=5)
UNKNOWN_TASK_DELAY = timedelta(seconds=15)
UNKNOWN_TASK_LONGEST_DELAY = timedelta(minutes=15)
UNKNOWN_TASK_LIMIT = timedelta(days=1)
_SIGNAL_CHECK = 0.1
_GIVE_BACK_TIMEOUT = 0.8
"""Seconds a worker whose time is over may take to give back what runs: the database may not answer."""


class Worker:
    """Runs the tasks of an outbox until it is told to stop.

    Any number of workers may run, on any number of machines; each takes back what a dead one left behind. While a handler
    runs, no transaction is open for it and no connection held (but for a transactional task, which has its own); the worker's
    own connections are in pools of their own, so that handlers cannot starve its heartbeat.
    """

    def __init__(
        self,
        store: Store,
        tasks: Registry,
        *,
        host: Host | None = None,
        queues: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        concurrency: int = 8,
        prefetch: int | None = None,
        poll: timedelta | float | None = None,
        notifications: bool = True,
        listen_url: str | None = None,
        drain_timeout: timedelta | float = DRAIN_TIMEOUT,
        heartbeat: timedelta | float | None = None,
        recover_every: timedelta | float = RECOVER_EVERY,
        unknown_task_delay: timedelta | float = UNKNOWN_TASK_DELAY,
        unknown_task_longest_delay: timedelta | float = UNKNOWN_TASK_LONGEST_DELAY,
        unknown_task_limit: timedelta | float = UNKNOWN_TASK_LIMIT,
        max_tasks: int | None = None,
        relaxed_durability: bool = False,
        log_tracebacks: bool | None = None,
        label: str | None = None,
        on_failpoint: OnFailpoint = ignore_failpoint,
    ) -> None:
        """`host` is what the outbox's framework does around handlers. `queues` None: all. `topics`: only tasks of these
        topics, exact or as patterns (``order.*``); None: all tasks. `concurrency`: handler threads. `prefetch`: how many
        claims may lie before busy threads; None: what they do in 50 ms by their recent pace, so none for slow handlers. `poll`, `notifications` and `listen_url` are
        those of `create_work_distributor`. `heartbeat` bounds the time between beats; None: a third of each lease.
        A task that this process does not know is given back for `unknown_task_delay`, then for twice as long each time, up to
        `unknown_task_longest_delay`, and fails after `unknown_task_limit`.
        `max_tasks`: stop after so many. `relaxed_durability`: the database need not have flushed the end of a task before it
        answers; a crash of the server (of the machine, with SQLite) may then have tasks of its last moments run again
        (transactional tasks excepted).
        `log_tracebacks`: whose log records have the exception as `exc_info`. None: those of last attempts, and at the level DEBUG
        those of all that failed; True: all that failed; False: none. What a message or a traceback says may be personal data.
        `on_failpoint` is called at each `Failpoint`, in tests. Durations are timedelta or seconds.

        Raises InvalidArgument for values out of range, ConfigurationError where a task's lease is not longer than two
        heartbeats, so that one late beat would lose it.
        """
        self.label = label or f"{socket.gethostname()}:{os.getpid()}"
        self._tasks = tasks
        self._drain_timeout = duration(drain_timeout, "drain_timeout")
        self._on_failpoint = on_failpoint
        beat = None if heartbeat is None else positive(heartbeat, "heartbeat")
        self._check_leases(beat)
        every = positive(recover_every, "recover_every")
        size = whole(concurrency, "concurrency", 1)
        ahead = None if prefetch is None else whole(prefetch, "prefetch", 0)
        longest = None if poll is None else positive(poll, "poll")
        first_delay = duration(unknown_task_delay, "unknown_task_delay")
        longest_delay = duration(unknown_task_longest_delay, "unknown_task_longest_delay")
        unknown_limit = duration(unknown_task_limit, "unknown_task_limit")
        names, patterns = queue_names(queues), queue_names(topics, "topics")
        self._claim_options: dict[str, Any] = {
            "queues": names,
            "topics": patterns,
            "max_tasks": None if max_tasks is None else whole(max_tasks, "max_tasks", 1),
        }

        self.id: UUID = uuid4()  # of this start of this process: a restarted worker must not beat for its predecessor
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._abandoned = False
        """It was told to stop at once, so that what ran was given back."""
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._application, host = store, host or Host()
        self._store, self._urgent = store.reserved(self._stopped), store.reserved(self._stopped, hurried=True)
        self._leases = Leases(self._urgent, heartbeat=beat, on_failpoint=on_failpoint)
        self._handback = Handback(self._store, self._leases, timeout=_GIVE_BACK_TIMEOUT, on_failpoint=on_failpoint)
        self._claiming = store.reserved(self._stopping)  # what waits for the database must not delay a stop
        self._distributor = create_work_distributor(
            self._claiming,
            queues=names,
            topics=patterns,
            worker_id=self.id,
            poll=longest,
            notifications=notifications,
            listen_url=listen_url,
            commits_of=store.engine,
        )
        self._completer = Completer(
            self._store,
            self._leases,
            on_failpoint=on_failpoint,
            on_thread_failure=self._on_thread_failure,
            on_unblocked=self._distributor.wake,
            durable=not relaxed_durability,
        )
        ends = EndLog(tracebacks=log_tracebacks, front_end=host.front_end)
        self._pool: HandlerPool[ActiveClaim] = HandlerPool(
            size,
            TaskRunner(
                store,
                tasks,
                self._leases,
                self._completer,
                own=self._store,
                host=host,
                on_failpoint=on_failpoint,
                ends=ends,
            ).run,
            prefetch=ahead,
            on_thread_failure=self._on_thread_failure,
            on_thread_exit=host.leave,
        )
        task_names = [task.name for task in tasks]
        works_on: dict[str, Any] = {"queues": names, "topics": patterns, "concurrency": size}
        self._unknown = UnknownTasks(
            self._claiming, first_delay=first_delay, longest_delay=longest_delay, limit=unknown_limit
        )
        self._known_tasks = KnownTaskScheduler(self._claiming, task_names, queues=names, topics=patterns)
        self._registration = WorkerRegistration(
            self._claiming,
            self.id,
            unknown_tasks=self._unknown.recent,
            label=self.label,
            task_names=task_names,
            **works_on,
        )
        recovery = Recovery(
            self._urgent,  # as urgent as a heartbeat, and never long
            self._leases,
            every=every,
            prove_writable=self._registration.run_once,
            on_recovery=self._expect_recovered,
            on_failpoint=on_failpoint,
        )
        self._registration_thread = ServiceThread(
            "presence",
            self._registration.run_once,
            self._registration.pause,
            self._on_thread_failure,
            on_stop=self._registration.end,
        )
        self._services = [
            ServiceThread("heartbeat", self._leases.beat, self._leases.pause, self._on_thread_failure),
            ServiceThread("recovery", recovery.run_once, recovery.pause, self._on_thread_failure),
            self._registration_thread,
            ServiceThread("partitions", self._claiming.make_partitions, partitions_pause, self._on_thread_failure),
            ServiceThread("known-again", self._known_tasks.run_once, self._known_tasks.pause, self._on_thread_failure),
        ]
        self._leases.changed, self._unknown.changed = self._services[0].wake, self._registration_thread.wake
        self._introduction = Introduction(
            store=store, hears=self._distributor.means, task_names=sorted(task_names), **works_on
        )
        self.introduces_itself = True
        """The worker says in the log where it works, on what, and how it hears of it. False: only that it has started."""
        self._claim_loop: ClaimLoop | None = None  # until started
        self._starting = threading.Lock()

    def run(self, *, burst: bool = False) -> int:
        """Work until SIGTERM, SIGINT or SIGHUP, then finish what runs; a second signal, SIGQUIT, or the drain timeout, gives
        it back.

        `burst`: work until nothing is claimable, what the tasks enqueue included. Returns the exit code: 0 after a clean
        stop, 1 if tasks had to be given back or a thread of the worker died. Must be called in the main thread. Raises what
        `start` raises.
        """
        with handle_stop_signals(stop=self.request_stop, abandon=self.stop_at_once):
            self.start(burst=burst)
            while self._keep_waiting():
                pass
            # Whatever a thread is stuck in.
            overtime = end_process_after(self._drain_timeout.total_seconds() + 2.2 * _GIVE_BACK_TIMEOUT)
            clean = self.stop()
            overtime.cancel()
        return 0 if clean and self._failure is None and not self._abandoned else 1

    def request_stop(self) -> None:
        """Make `run` end as the first signal does. May be called in any thread, by a signal handler, and more than once."""
        self._ended.put(None)

    def stop_at_once(self) -> None:
        """Give back what runs and end the process with 1, whatever its threads do, as a second signal does."""
        end_process_after(2 * _GIVE_BACK_TIMEOUT)
        self._abandoned = True  # before a handler can notice, for `run` may then end first
        self._stopping.set()
        log.warning("told to stop at once; giving back what runs")
        self._handback.give_back()
        starting = self._starting.acquire(
            timeout=_GIVE_BACK_TIMEOUT / 2
        )  # a start that is under way puts it into the list
        thread = self._registration_thread
        thread.stop()
        if thread.is_alive():
            thread.join(_GIVE_BACK_TIMEOUT / 2)
        if starting:
            self._starting.release()
        os._exit(1)

    @property
    def is_healthy(self) -> bool:
        """False once a thread of the worker itself has died, or the database refuses to record how tasks end: it claims nothing
        more then, and is to be stopped. False also while its role lacks a right to claim. `health.error` says why.
        """
        return self._failure is None and self._denied is None

    @property
    def may_start_again(self) -> bool:
        """False once another process in this one's place would destroy the SQLite file by opening it."""
        return not isinstance(self._failure, FileUnusable) or self._failure.may_start_again

    @property
    def has_stopped(self) -> bool:
        """Whether `stop` has ended what `start` began."""
        return self._stopped.is_set()

    @property
    def health(self) -> Health:
        """The way it hears of new work, or the reason why it works no more."""
        if self._failure is not None:
            return replace(self._distributor.health, listening=False, error=str(self._failure))
        health = self._distributor.health
        return health if self._denied is None else replace(health, error=self._denied)

    @property
    def _denied(self) -> str | None:
        return None if self._claim_loop is None else self._claim_loop.denied

    @property
    def handled(self) -> int:
        """Tasks whose handlers have ended."""
        return self._pool.handled

    @property
    def running(self) -> int:
        """Handlers that run now."""
        return max(0, self._pool.in_flight - self._pool.queued)

    def start(self, *, burst: bool = False) -> None:
        """Begin to work, in threads of this process.

        Raises SchemaOutOfDate; NotPermitted; ConfigurationError when started twice, in another process than it was made in, or
        on a standby.
        """
        if self._pid != os.getpid():
            raise ConfigurationError("this worker was made before the process forked; make one in each process")
        self._application.ensure_file()
        self._application.ensure_permitted(Role.WORKER)
        self._application.ensure_current()
        self._application.ensure_primary()
        self._application.compile_ends()
        self._application.subscribe(
            [one for task in self._tasks for one in task.subscriptions], tasks=[task.name for task in self._tasks]
        )
        with self._starting:
            if self._claim_loop is not None:
                raise ConfigurationError("a worker starts once; make a new one")
            if self._stopping.is_set():  # it was stopped before it could begin
                self._ended.put(None)
                return
            self._begin(burst=burst)

    def _begin(self, *, burst: bool) -> None:
        self._urgent.check_file()
        self._registration.begin()
        self._known_tasks.begin()
        self._claim_loop = ClaimLoop(
            self._claiming,
            self._tasks,
            worker_id=self.id,
            pool=self._pool,
            leases=self._leases,
            completer=self._completer,
            distributor=self._distributor,
            stopping=self._stopping,
            on_finished=lambda: self._ended.put(None),
            on_thread_failure=self._on_thread_failure,
            on_failpoint=self._on_failpoint,
            unknown=self._unknown,
            burst=burst,
            **self._claim_options,
        )
        self._introduction.say(self.label, self.id, in_full=self.introduces_itself)
        self._distributor.start()
        self._pool.start()
        for thread in (self._completer, *self._services, self._claim_loop):
            thread.start()

    def stop(self, timeout: timedelta | float | None = None) -> bool:
        """Claim nothing more, give back what was not begun, let running tasks finish for `timeout` (default: the drain
        timeout), give back the rest.

        Returns whether all of them finished. Handlers that still run are fenced: what they return is discarded.
        """
        self._stopping.set()
        if self._pid != os.getpid():  # forked: the threads are the parent's
            return True
        self._distributor.close()
        with self._starting:  # another thread may be about to
            if self._claim_loop is None:
                return True
        limit = self._drain_timeout if timeout is None else duration(timeout, "timeout")
        deadline = time.monotonic() + limit.total_seconds()
        self._pool.wake()
        self._release_unstarted()
        self._claim_loop.join(limit.total_seconds())
        self._release_unstarted()  # of a claim that was under way
        self._pool.shutdown(deadline)
        self._completer.finish()
        self._completer.join(
            max(_GIVE_BACK_TIMEOUT, deadline - time.monotonic()) if self._pool.in_flight == 0 else _GIVE_BACK_TIMEOUT
        )
        self._stopped.set()
        left = self._handback.give_back()
        for service in self._services:
            service.stop()
        for service in self._services:
            service.join(_GIVE_BACK_TIMEOUT / 4)
        for own in (self._store, self._claiming, self._urgent):
            own.bound_engine.dispose()
        log.info("worker %s stopped%s", self.label, f"; gave back {left} unfinished tasks" if left else "")
        return left == 0 and not self._claim_loop.is_alive()

    def _expect_recovered(self) -> None:
        if self._claim_loop is not None:
            self._claim_loop.expect_recovered()

    def _keep_waiting(self) -> bool:
        """False once there is a reason to end. Wakes now and then: a signal that another thread met is handled only then."""
        with suppress(queue.Empty):
            self._ended.get(timeout=_SIGNAL_CHECK)
            return False
        return True

    def _release_unstarted(self) -> None:
        """At once: another worker may be idle."""
        for held in self._pool.cancel_queued():
            held.finishing = True
            self._completer.put(released(held.claim, STOPPED))

    def _on_thread_failure(self, error: BaseException) -> None:
        """A thread of the worker itself must not end unnoticed: the process stops, with a non-zero exit code."""
        if isinstance(error, OutcomesRefused | FileUnusable):
            log.critical("stopping: %s", error)
        else:
            log.critical("a worker thread died; stopping", exc_info=error)
        self._failure = self._failure or error
        self._stopping.set()
        self._distributor.wake()
        self._pool.wake()
        self._ended.put(None)

    def _check_leases(self, heartbeat: timedelta | None) -> None:
        for task in self._tasks:
            if heartbeat is not None and task.settings.lease <= 2 * heartbeat:
                raise ConfigurationError(
                    f"the lease of task {task.name} ({task.settings.lease}) must be longer than two heartbeats "
                    f"({2 * heartbeat}), or one late beat loses it"
                )
