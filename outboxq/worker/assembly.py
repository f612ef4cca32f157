"""The parts of a worker. This module creates and connects the parts, but does not start them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from ..database.engine import close
from ..errors import ConfigurationError
from ..integration.hooks import WorkerHooks, WorkerInfo
from ..model.forks import CAN_FORK
from ..model.records import fields_of
from ..store import ClaimCursor, Store
from ..task.receivers import Reader
from ..task.schedules import declare_schedules
from ..webhooks import WebhookSource
from .claim_loop import ClaimLoop, ObeyedOrders
from .completer import Completer, Handback
from .distributor import create_work_distributor
from .handler_log import KeeperPlace
from .leases import ActiveClaim, Leases
from .log_lines import EndLog
from .meter import Meter
from .options import Isolation, WorkerSettings
from .receiver import Receiver
from .relays import Senders
from .stacks import describe
from .steps import Steps
from .task_runner import Application, HandlerRunner, TaskRunner
from .thread_pool import HandlerPool
from .timeouts import Timeouts
from .upkeep import (
    BatchCanceller,
    MetricsWriter,
    Obedience,
    PartitionMaker,
    Planting,
    ServiceThread,
    StatisticsUpkeep,
    WorkerRegistration,
)
from .upkeep.recovery import Recovery
from .upkeep.unknown_tasks import KnownTasks, UnknownTasks
from .work_failures import WorkFailures

if TYPE_CHECKING:
    from .isolation.runner import Children

_STACKS_TIMEOUT = 2.0
"""Seconds to wait for the stacks of child processes. Within a tenth of a second, the worker asks each child for its
stacks.
"""


class Parts:
    """The parts of one worker. The worker starts and stops its parts."""

    children: Children | None = None
    """The child processes. None if handlers run in threads."""

    def __init__(
        self,
        application: Application,
        settings: WorkerSettings,
        info: WorkerInfo,
        *,
        stopping: threading.Event,
        stopped: threading.Event,
        on_finished: Callable[[], None],
        on_kill: Callable[[ActiveClaim, int], object],
        on_thread_failure: Callable[[BaseException], None],
    ) -> None:
        """Create the parts, without starting a thread or a process.

        `stopping` is set when the worker begins to stop, and `stopped` when it has written its outcomes. Raises
        ConfigurationError for an isolation that this system does not support.
        """
        self._settings, self._version = settings, application.tasks.version or None
        store, tasks, integration = application.store, application.tasks, application.integration
        failpoint = settings.on_failpoint
        thread = partial(ServiceThread, on_thread_failure=on_thread_failure)
        self.connections = own = Connections(store, stopping=stopping, stopped=stopped)
        self.meter = meter = Meter()
        self.leases = Leases(own.urgent, heartbeat=settings.heartbeat, on_failpoint=failpoint, meter=meter)
        own.watch(self.leases.note_break)
        cursor = ClaimCursor(dict.fromkeys((task.options.queue, task.options.priority) for task in tasks))
        self.distributor = create_work_distributor(
            own.claims,
            queues=settings.queues,
            topics=settings.topics,
            worker_id=info.id,
            poll=settings.poll,
            notifications=settings.notifications,
            listen_url=settings.listen_url,
            commits_of=store.engine,
            on_break=self.leases.note_break,
            floors=cursor.floors,
        )

        # The path of a claim: the claim loop acquires it, a thread in the pool runs it, and the completer writes its
        # outcome.
        batches = BatchCanceller(own.claims)
        unknown = UnknownTasks(
            own.claims,
            first_delay=settings.unknown_task_delay,
            longest_delay=settings.unknown_task_longest_delay,
            limit=settings.unknown_task_limit,
            how_to_import=integration.how_to_import,
        )
        self.completer = Completer(
            own.outcomes,
            self.leases,
            on_thread_failure=on_thread_failure,
            on_unblocked=self.distributor.wake,
            on_member_failed=batches.expect,
            failures=WorkFailures(unknown.found_new.set),
            durable=not settings.relaxed_durability,
        )
        self.handback = Handback(own.outcomes, self.leases)
        self.timeouts = Timeouts(on_thread_failure)
        self.keeper = KeeperPlace() if settings.handler_log else None
        self.front_end = integration.front_end
        ends = EndLog(tracebacks=settings.log_tracebacks, front_end=self.front_end)
        steps = Steps(store, own.outcomes, own.outcomes.steps, integration, self.leases, failpoint)
        if settings.isolation is Isolation.THREAD:
            attempt = HandlerRunner(
                application,
                own.outcomes,
                steps,
                self.leases,
                self.completer,
                on_failpoint=failpoint,
                ends=ends,
                keeper=self.keeper,
                timeouts=self.timeouts,
                grace=settings.timeout_grace,
                on_kill=on_kill,
            ).attempt
        else:
            if not CAN_FORK:
                raise ConfigurationError(
                    "isolation='process' needs a system that can fork, such as Linux or macOS; leave out isolation=, or run the worker on one of these systems"
                )
            from .isolation.child import ChildProcess
            from .isolation.fork_server import ForkServer
            from .isolation.runner import Children, IsolatedRunner

            child = ChildProcess(application, settings, info)
            new_server = partial(ForkServer, child.serve, on_thread_failure)
            self.children = Children(new_server, tasks_per_child=settings.tasks_per_child)
            attempt = IsolatedRunner(
                application, self.children, steps, self.completer, ends=ends, grace=settings.timeout_grace
            ).attempt
        runner = TaskRunner(own.outcomes, self.leases, self.completer, self.completer.begin, attempt)
        self.pool: HandlerPool[ActiveClaim] = HandlerPool(
            settings.concurrency,
            runner.run,
            prefetch=settings.prefetch,
            on_thread_failure=on_thread_failure,
            on_thread_exit=integration.on_thread_exit,
            log_fields=lambda active: fields_of(active.claim),
        )
        self.claim_loop = ClaimLoop(
            own.claims,
            tasks,
            settings,
            leases=self.leases,
            pool=self.pool,
            completer=self.completer,
            distributor=self.distributor,
            unknown=unknown,
            worker_id=info.id,
            cursor=cursor,
            stopping=stopping,
            on_finished=on_finished,
            on_thread_failure=on_thread_failure,
            failures=self.completer.failures,
        )

        self.receivers = [
            Receiver(source, Reader(source, receivers), own.receivers, stopping, unknown.found_new.set)
            for source, receivers in tasks.receivers
            if not isinstance(source, WebhookSource)  # the application itself receives webhooks
        ]

        # The services, each in a separate thread.
        names = [*info.task_names, *tasks.built_in]
        registration = WorkerRegistration(
            own.claims,
            info.id,
            unknown.recent,
            {"label": info.label, "task_names": names, **settings.scope},
            meter,
            self._process,
            failures=self._failures,
            orders=self._orders(on_finished, changed=unknown.found_new),
        )
        recovery = Recovery(
            own.urgent,
            self.leases,
            every=settings.recover_every,
            prove_writable=registration.run_once,
            on_recovery=self.claim_loop.expect_recovered,
        )
        self.withdraw = registration.withdraw
        self.planting = Planting(own.claims, partial(declare_schedules, tasks=tasks))
        self.registration = thread("registration", registration, wake=unknown.found_new, on_stop=registration.end)
        self.known_tasks = thread(
            "known-tasks", KnownTasks(own.claims, names, queues=settings.queues, topics=settings.topics)
        )
        metrics = MetricsWriter(own.claims, meter, info.id)
        self.metrics = thread("metrics", metrics, on_stop=metrics.end)
        self.services: tuple[ServiceThread, ...] = (
            thread("heartbeat", self.leases, wake=self.leases.beat_moved),
            thread("recovery", recovery),
            self.registration,
            thread("planting", self.planting),
            thread("batches", batches, wake=batches.wake),
            thread("partitions", PartitionMaker(own.claims)),
            self.known_tasks,
            self.metrics,
            thread("statistics", StatisticsUpkeep(own.claims, stopping)),
            *(thread(f"receiver-{number}", one, on_stop=one.close) for number, one in enumerate(self.receivers, 1)),
        )
        relays = list(tasks.relays.values()) if settings.relay else []
        self.senders = (
            Senders(
                store,
                relays,
                worker_id=info.id,
                notifications=settings.notifications,
                listen_url=settings.listen_url,
                on_thread_failure=on_thread_failure,
            )
            if relays
            else None
        )
        """The senders for relays to brokers; None if there are none."""
        self.hooks = WorkerHooks(application.hooks, info)

    def _orders(self, request_stop: Callable[[], None], *, changed: threading.Event) -> Obedience:
        """Return the functions that the registration calls to obey a person's orders. `changed` is set when the worker
        has become quiet.
        """
        obeyed = ObeyedOrders(self.claim_loop, request_stop)
        self.claim_loop.on_quiet = changed.set
        return Obedience(obey=obeyed.obey, state=obeyed.state, stacks=self._stacks)

    def _failures(self) -> list[object]:
        """Return the failures that the registration reports."""
        return [*(one.state.failing_since for one in self.receivers), self.completer.failures.current]

    def _process(self) -> Mapping[str, Any]:
        """Return the arguments for `Store.workers.describe`."""
        try:
            release = version("outboxq")
        except PackageNotFoundError:  # outboxq is not installed as a package
            release = None
        failing = self.completer.failures.current
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": self._version,
            "release": release,
            "busy": self.pool.busy,
            "isolation": self._settings.isolation.value,
            "receivers": [one.state for one in self.receivers],
            "failure": None if failing is None else failing.failure,
            "failing_since": None if failing is None else failing.since,
        }

    def _stacks(self) -> str:
        """Return the stacks of this process's threads and of the child processes that run handlers."""
        busy = {} if self.children is None else {child: claim for claim, child in self.leases.in_children()}
        found = {} if self.children is None else self.children.stacks_of(busy, _STACKS_TIMEOUT)
        return describe(self.leases.running(), {child: (claim, found[child]) for child, claim in busy.items()})


class Connections:
    """Three stores on the worker's own connections, since handlers may occupy all of the application's connections.

    There are three stores, so that none of them has to wait for another.
    """

    def __init__(self, store: Store, *, stopping: threading.Event, stopped: threading.Event) -> None:
        """`stopping` is set when the worker begins to stop, and `stopped` when it has written its outcomes."""
        self.outcomes = store.reserved(stopped)
        self.urgent = store.reserved(stopped, hurried=True)
        """The store for heartbeats and for other writes that are just as urgent."""
        self.claims = store.reserved(stopping)  # a claim that is waiting for the database must not delay a stop
        self._reserved = partial(store.reserved, stopping)

    @cached_property
    def receivers(self) -> Store:
        """A fourth store, which is needed only if there are receivers. The store is separate, because a receiver's
        transaction can last for a second.
        """
        return self._reserved()

    def watch(self, on_loss: Callable[[], object]) -> None:
        """Call `on_loss` whenever a connection to the server may have broken. SQLite has no such connection.

        This method also listens to the pools, because with `pool_pre_ping=True`, a pool replaces a broken connection
        without failing a transaction.
        """
        for one in (self.outcomes, self.urgent, self.claims):
            if not one.dialect.one_writer:
                one.on_retry = on_loss
                event.listen(one.bound_engine.pool, "invalidate", lambda *_broken: on_loss())

    def close(self, *, for_good: bool) -> None:
        """Close the connections of all stores. If `for_good` is False, the stores may connect again later, but no
        thread may be using a connection when this is called.
        """
        end = close if for_good else Engine.dispose
        for one in (self.outcomes, self.claims, self.urgent, vars(self).get("receivers")):
            if one is not None:
                end(one.bound_engine)
