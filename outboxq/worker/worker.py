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
from .claim_loop import Claimer
from .completer import Completer
from .deadline import end_process_after
from .distributor import Health, create_work_distributor
from .end_log import EndLog
from .executor import STOPPED, released
from .failpoints import Reach, unarmed
from .handback import Handback
from .introduction import Introduction
from .maintenance import Held, Leases, Loop, Presence, partitions_pause
from .options import positive, whole
from .recovery import Recovery
from .signals import obeyed
from .task_runner import Handling
from .thread_pool import Crew
from .unknown_tasks import KnownAgain, UnknownTasks

log = logging.getLogger("outboxq.worker")

DRAIN_TIMEOUT = timedelta(seconds=25)
RECOVER_EVERY = timedelta(seconds=5)
UNKNOWN_TASK_DELAY = timedelta(seconds=15)
UNKNOWN_TASK_LONGEST_DELAY = timedelta(minutes=15)
UNKNOWN_TASK_LIMIT = timedelta(days=1)
_LISTENING = 0.1
_LAST_WORDS = 0.8
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
        event_types: Sequence[str] | None = None,
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
        reach: Reach = unarmed,
    ) -> None:
        """`host` is what the outbox's framework does around handlers. `queues` None: all. `event_types`: only tasks of these
        emitted events, exact or as patterns (``order.*``); None: all tasks. `concurrency`: handler threads. `prefetch`: how many
        claims may lie before busy threads; None: what they do in 50 ms by their recent pace, so none for slow handlers. `poll`, `notifications` and `listen_url` are
        those of `create_work_distributor`. `heartbeat` bounds the time between beats; None: a third of each lease.
        A task that this process does not know is given back for `unknown_task_delay`, then for twice as long each time, up to
        `unknown_task_longest_delay`, and fails after `unknown_task_limit`.
        `max_tasks`: stop after so many. `relaxed_durability`: the database need not have flushed the end of a task before it
        answers; a crash of the server (of the machine, with SQLite) may then have tasks of its last moments run again
        (transactional tasks excepted).
        `log_tracebacks`: whose log records have the exception as `exc_info`. None: those of last attempts, and at the level DEBUG
        those of all that failed; True: all that failed; False: none. What a message or a traceback says may be personal data.
        `reach` is called at each `Failpoint`, in tests. Durations are timedelta or seconds.

        Raises InvalidArgument for values out of range, ConfigurationError where a task's lease is not longer than two
        heartbeats, so that one late beat would lose it.
        """
        self.label = label or f"{socket.gethostname()}:{os.getpid()}"
        self._tasks = tasks
        self._drain_timeout = duration(drain_timeout, "drain_timeout")
        self._reach = reach
        beat = None if heartbeat is None else positive(heartbeat, "heartbeat")
        self._check_leases(beat)
        every = positive(recover_every, "recover_every")
        size = whole(concurrency, "concurrency", 1)
        ahead = None if prefetch is None else whole(prefetch, "prefetch", 0)
        longest = None if poll is None else positive(poll, "poll")
        first_delay = duration(unknown_task_delay, "unknown_task_delay")
        longest_delay = duration(unknown_task_longest_delay, "unknown_task_longest_delay")
        unknown_limit = duration(unknown_task_limit, "unknown_task_limit")
        names, patterns = queue_names(queues), queue_names(event_types, "event_types")
        self._claimer_options: dict[str, Any] = {
            "queues": names,
            "event_types": patterns,
            "max_tasks": None if max_tasks is None else whole(max_tasks, "max_tasks", 1),
        }

        self.id: UUID = uuid4()  # of this start of this process: a restarted worker must not beat for its predecessor
        self._pid = os.getpid()
        self._died: BaseException | None = None
        self._abandoned = False
        """It was told to stop at once, so that what ran was given back."""
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping, self._gone = threading.Event(), threading.Event()
        self._application, host = store, host or Host()
        self._store, self._beating = store.reserved(self._gone), store.reserved(self._gone, hurried=True)
        self._leases = Leases(self._beating, heartbeat=beat, reach=reach)
        self._handback = Handback(self._store, self._leases, within=_LAST_WORDS, reach=reach)
        self._claiming = store.reserved(self._stopping)  # what waits for the database must not delay a stop
        self._distributor = create_work_distributor(
            self._claiming,
            queues=names,
            event_types=patterns,
            worker_id=self.id,
            poll=longest,
            notifications=notifications,
            listen_url=listen_url,
            commits_of=store.engine,
        )
        self._completer = Completer(
            self._store,
            self._leases,
            reach=reach,
            died=self._die,
            made_way=self._distributor.wake,
            durable=not relaxed_durability,
        )
        ends = EndLog(tracebacks=log_tracebacks, front_end=host.front_end)
        self._crew: Crew[Held] = Crew(
            size,
            Handling(
                store, tasks, self._leases, self._completer, own=self._store, host=host, reach=reach, ends=ends
            ).handle,
            prefetch=ahead,
            died=self._die,
            left=host.leave,
        )
        task_names = [task.name for task in tasks]
        works_on: dict[str, Any] = {"queues": names, "event_types": patterns, "concurrency": size}
        self._unknown = UnknownTasks(
            self._claiming, first_delay=first_delay, longest_delay=longest_delay, limit=unknown_limit
        )
        self._known_again = KnownAgain(self._claiming, task_names, queues=names, event_types=patterns)
        self._presence = Presence(
            self._claiming,
            self.id,
            met=self._unknown.met,
            label=self.label,
            task_names=task_names,
            **works_on,
        )
        recovery = Recovery(
            self._beating,  # as urgent as a heartbeat, and never long
            self._leases,
            every=every,
            writes=self._presence.run_once,
            recovering=self._expect_recovered,
            reach=reach,
        )
        self._presence_loop = Loop(
            "presence", self._presence.run_once, self._presence.pause, self._die, last=self._presence.end
        )
        self._loops = [
            Loop("heartbeat", self._leases.beat, self._leases.pause, self._die),
            Loop("recovery", recovery.run_once, recovery.pause, self._die),
            self._presence_loop,
            Loop("partitions", self._claiming.make_partitions, partitions_pause, self._die),
            Loop("known-again", self._known_again.run_once, self._known_again.pause, self._die),
        ]
        self._leases.changed, self._unknown.changed = self._loops[0].look, self._presence_loop.look
        self._introduction = Introduction(
            store=store, hears=self._distributor.means, task_names=sorted(task_names), **works_on
        )
        self.introduces_itself = True
        """The worker says in the log where it works, on what, and how it hears of it. False: only that it has started."""
        self._claimer: Claimer | None = None  # until started
        self._starting = threading.Lock()

    def run(self, *, burst: bool = False) -> int:
        """Work until SIGTERM, SIGINT or SIGHUP, then finish what runs; a second signal, SIGQUIT, or the drain timeout, gives
        it back.

        `burst`: work until nothing is claimable, what the tasks enqueue included. Returns the exit code: 0 after a clean
        stop, 1 if tasks had to be given back or a thread of the worker died. Must be called in the main thread. Raises what
        `start` raises.
        """
        with obeyed(stop=self.request_stop, abandon=self.stop_at_once):
            self.start(burst=burst)
            while self._waits():
                pass
            # Whatever a thread is stuck in.
            overtime = end_process_after(self._drain_timeout.total_seconds() + 2.2 * _LAST_WORDS)
            clean = self.stop()
            overtime.cancel()
        return 0 if clean and self._died is None and not self._abandoned else 1

    def request_stop(self) -> None:
        """Make `run` end as the first signal does. May be called in any thread, by a signal handler, and more than once."""
        self._bell.put(None)

    def stop_at_once(self) -> None:
        """Give back what runs and end the process with 1, whatever its threads do, as a second signal does."""
        end_process_after(2 * _LAST_WORDS)
        self._abandoned = True  # before a handler can notice, for `run` may then end first
        self._stopping.set()
        log.warning("told to stop at once; giving back what runs")
        self._handback.give_back()
        starting = self._starting.acquire(timeout=_LAST_WORDS / 2)  # a start that is under way puts it into the list
        presence = self._presence_loop
        presence.stop()
        if presence.is_alive():
            presence.join(_LAST_WORDS / 2)
        if starting:
            self._starting.release()
        os._exit(1)

    @property
    def is_healthy(self) -> bool:
        """False once a thread of the worker itself has died, or the database refuses to record how tasks end: it claims nothing
        more then, and is to be stopped. False also while its role lacks a right to claim. `health.error` says why.
        """
        return self._died is None and self._denied is None

    @property
    def may_start_again(self) -> bool:
        """False once another process in this one's place would destroy the SQLite file by opening it."""
        return not isinstance(self._died, FileUnusable) or self._died.may_start_again

    @property
    def has_stopped(self) -> bool:
        """Whether `stop` has ended what `start` began."""
        return self._gone.is_set()

    @property
    def health(self) -> Health:
        """The way it hears of new work, or the reason why it works no more."""
        if self._died is not None:
            return replace(self._distributor.health, listening=False, error=str(self._died))
        health = self._distributor.health
        return health if self._denied is None else replace(health, error=self._denied)

    @property
    def _denied(self) -> str | None:
        return None if self._claimer is None else self._claimer.denied

    @property
    def handled(self) -> int:
        """Tasks whose handlers have ended."""
        return self._crew.handled

    @property
    def running(self) -> int:
        """Handlers that run now."""
        return max(0, self._crew.in_flight - self._crew.lying)

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
            if self._claimer is not None:
                raise ConfigurationError("a worker starts once; make a new one")
            if self._stopping.is_set():  # it was stopped before it could begin
                self._bell.put(None)
                return
            self._begin(burst=burst)

    def _begin(self, *, burst: bool) -> None:
        self._beating.check_file()
        self._presence.begin()
        self._known_again.begin()
        self._claimer = Claimer(
            self._claiming,
            self._tasks,
            worker_id=self.id,
            crew=self._crew,
            leases=self._leases,
            completer=self._completer,
            distributor=self._distributor,
            stopping=self._stopping,
            finished=lambda: self._bell.put(None),
            died=self._die,
            reach=self._reach,
            unknown=self._unknown,
            burst=burst,
            **self._claimer_options,
        )
        self._introduction.say(self.label, self.id, in_full=self.introduces_itself)
        self._distributor.start()
        self._crew.start()
        for thread in (self._completer, *self._loops, self._claimer):
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
            if self._claimer is None:
                return True
        limit = self._drain_timeout if timeout is None else duration(timeout, "timeout")
        deadline = time.monotonic() + limit.total_seconds()
        self._crew.wake()
        self._release_unstarted()
        self._claimer.join(limit.total_seconds())
        self._release_unstarted()  # of a claim that was under way
        self._crew.dismiss(deadline)
        self._completer.finish()
        self._completer.join(
            max(_LAST_WORDS, deadline - time.monotonic()) if self._crew.in_flight == 0 else _LAST_WORDS
        )
        self._gone.set()
        left = self._handback.give_back()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(_LAST_WORDS / 4)
        for own in (self._store, self._claiming, self._beating):
            own.bound_engine.dispose()
        log.info("worker %s stopped%s", self.label, f"; gave back {left} unfinished tasks" if left else "")
        return left == 0 and not self._claimer.is_alive()

    def _expect_recovered(self) -> None:
        if self._claimer is not None:
            self._claimer.be_careful()

    def _waits(self) -> bool:
        """False once there is a reason to end. Wakes now and then: a signal that another thread met is handled only then."""
        with suppress(queue.Empty):
            self._bell.get(timeout=_LISTENING)
            return False
        return True

    def _release_unstarted(self) -> None:
        """At once: another worker may be idle."""
        for held in self._crew.take_back():
            held.ending = True
            self._completer.put(released(held.claim, STOPPED))

    def _die(self, error: BaseException) -> None:
        """A thread of the worker itself must not end unnoticed: the process stops, with a non-zero exit code."""
        if isinstance(error, OutcomesRefused | FileUnusable):
            log.critical("stopping: %s", error)
        else:
            log.critical("a worker thread died; stopping", exc_info=error)
        self._died = self._died or error
        self._stopping.set()
        self._distributor.wake()
        self._crew.wake()
        self._bell.put(None)

    def _check_leases(self, heartbeat: timedelta | None) -> None:
        for task in self._tasks:
            if heartbeat is not None and task.options.lease <= 2 * heartbeat:
                raise ConfigurationError(
                    f"the lease of task {task.name} ({task.options.lease}) must be longer than two heartbeats "
                    f"({2 * heartbeat}), or one late beat loses it"
                )
