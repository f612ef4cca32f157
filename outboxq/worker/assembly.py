"""The parts of a worker: each is made here, given what it needs, and not started."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from ..database.engine import close
from ..errors import ConfigurationError
from ..integration.base import Integration
from ..integration.hook_calls import HookCalls, WorkerHooks
from ..integration.hooks import WorkerInfo
from ..model.forks import CAN_FORK
from ..model.log_fields import fields_of
from ..store import Store
from ..task import TaskRegistry
from ..task.schedules import declare_schedules
from .claim_loop import ClaimLoop
from .completer import Completer, Handback
from .distributor import WorkDistributor, create_work_distributor
from .handler_log import KeeperPlace
from .leases import ActiveClaim, Leases
from .log_lines import EndLog
from .meter import Meter
from .options import Isolation, WorkerSettings
from .statistics import MetricsWriter, StatisticsUpkeep
from .steps import Steps, StoredSteps
from .task_runner import HandlerRunner, TaskRunner
from .thread_pool import HandlerPool
from .timeouts import Timeouts
from .upkeep import BatchCanceller, PartitionMaker, ServiceThread, WorkerRegistration
from .upkeep.planting import Planting
from .upkeep.recovery import Recovery
from .upkeep.unknown_tasks import KnownTasks, UnknownTasks

if TYPE_CHECKING:
    from .isolation import Children


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Parts:
    """The parts of one worker that it starts, asks and stops."""

    connections: Connections
    meter: Meter
    leases: Leases
    distributor: WorkDistributor
    completer: Completer
    handback: Handback
    timeouts: Timeouts
    keeper: KeeperPlace | None
    """Keeps what handlers log. None: the worker was told to keep nothing."""
    children: Children | None
    """The child processes. None: handlers run in threads."""
    pool: HandlerPool[ActiveClaim]
    claim_loop: ClaimLoop
    planting: Planting
    registration: ServiceThread
    known_tasks: ServiceThread
    services: tuple[ServiceThread, ...]
    """The threads beside those that claim tasks, run them and write their outcomes."""
    hooks: WorkerHooks


def assemble(
    store: Store,
    tasks: TaskRegistry,
    settings: WorkerSettings,
    *,
    info: WorkerInfo,
    integration: Integration,
    hooks: HookCalls | None,
    stopping: threading.Event,
    stopped: threading.Event,
    on_finished: Callable[[], None],
    on_kill: Callable[[ActiveClaim, int], object],
    on_thread_failure: Callable[[BaseException], None],
) -> Parts:
    """Make the parts of a worker; no thread and no process starts.

    `stopping` is set when the worker begins to stop, `stopped` when it has written what it had to. Raises ConfigurationError for an
    isolation that this system does not have.
    """
    failpoint, thread = settings.on_failpoint, partial(ServiceThread, on_thread_failure=on_thread_failure)
    own = Connections(store, stopping=stopping, stopped=stopped)
    meter = Meter()
    leases = Leases(own.urgent, heartbeat=settings.heartbeat, on_failpoint=failpoint, meter=meter)
    own.watch(leases.note_break)
    distributor = create_work_distributor(
        own.claims,
        queues=settings.queues,
        topics=settings.topics,
        worker_id=info.id,
        poll=settings.poll,
        notifications=settings.notifications,
        listen_url=settings.listen_url,
        commits_of=store.engine,
        on_break=leases.note_break,
    )

    # A claim's way: the claim loop takes it, a thread of the pool runs it, the completer writes its outcome.
    batches = BatchCanceller(own.claims)
    completer = Completer(
        own.outcomes,
        leases,
        on_failpoint=failpoint,
        on_thread_failure=on_thread_failure,
        on_unblocked=distributor.wake,
        on_member_failed=batches.expect,
        durable=not settings.relaxed_durability,
        meter=meter,
    )
    timeouts = Timeouts(on_thread_failure)
    keeper = KeeperPlace() if settings.handler_log else None
    ends = EndLog(tracebacks=settings.log_tracebacks, front_end=integration.front_end)
    steps = Steps(
        store=store,
        own=own.outcomes,
        rows=StoredSteps(store=store, own=own.outcomes),
        integration=integration,
        leases=leases,
        on_failpoint=failpoint,
    )
    children: Children | None = None
    if settings.isolation is Isolation.THREAD:
        attempt = HandlerRunner(
            store=store,
            own=own.outcomes,
            tasks=tasks,
            leases=leases,
            outcomes=completer,
            steps=steps,
            integration=integration,
            on_failpoint=failpoint,
            hooks=hooks,
            ends=ends,
            keeper=keeper,
            timeouts=timeouts,
            grace=settings.timeout_grace,
            on_kill=on_kill,
        ).attempt
    else:
        if not CAN_FORK:
            raise ConfigurationError(
                "isolation='process' needs a system that can fork, such as Linux or macOS; leave it out, or run the worker there"
            )
        from .isolation import ChildProcess, Children, ForkServer, IsolatedRunner

        child = ChildProcess(settings, info, store=store, tasks=tasks, integration=integration, hooks=hooks)
        children = Children(
            partial(ForkServer, child.serve, on_thread_failure), tasks_per_child=settings.tasks_per_child
        )
        attempt = IsolatedRunner(
            children=children,
            tasks=tasks,
            outcomes=completer,
            steps=steps,
            grace=settings.timeout_grace,
            hooks=hooks,
            ends=ends,
        ).attempt
    runner = TaskRunner(
        own=own.outcomes,
        leases=leases,
        outcomes=completer,
        begin=completer.begin,
        attempt=attempt,
        on_failpoint=failpoint,
    )
    pool: HandlerPool[ActiveClaim] = HandlerPool(
        settings.concurrency,
        runner.run,
        prefetch=settings.prefetch,
        on_thread_failure=on_thread_failure,
        on_thread_exit=integration.on_thread_exit,
        log_fields=lambda active: fields_of(active.claim),
    )
    unknown = UnknownTasks(
        own.claims,
        first_delay=settings.unknown_task_delay,
        longest_delay=settings.unknown_task_longest_delay,
        limit=settings.unknown_task_limit,
    )
    claim_loop = ClaimLoop(
        own.claims,
        tasks,
        settings,
        leases=leases,
        pool=pool,
        completer=completer,
        distributor=distributor,
        unknown=unknown,
        worker_id=info.id,
        stopping=stopping,
        on_finished=on_finished,
        on_thread_failure=on_thread_failure,
        meter=meter,
    )

    # The services, each in a thread of its own.
    task_names = [*info.task_names, *tasks.built_in]
    registered = WorkerRegistration(
        own.claims,
        info.id,
        unknown.recent,
        {"label": info.label, "task_names": task_names, **settings.scope},
        meter,
        partial(_described, tasks.version or None, pool, settings.isolation),
    )
    recovery = Recovery(
        own.urgent,
        leases,
        every=settings.recover_every,
        prove_writable=registered.run_once,
        on_recovery=claim_loop.expect_recovered,
        on_failpoint=failpoint,
        meter=meter,
    )
    planting = Planting(own.claims, partial(declare_schedules, tasks=tasks))
    metrics = MetricsWriter(own.claims, meter, info.id)
    registration = thread("registration", registered, wake=unknown.found_new, on_stop=registered.end)
    known_tasks = thread(
        "known-tasks", KnownTasks(own.claims, task_names, queues=settings.queues, topics=settings.topics)
    )
    return Parts(
        connections=own,
        meter=meter,
        leases=leases,
        distributor=distributor,
        completer=completer,
        handback=Handback(own.outcomes, leases, on_failpoint=failpoint, meter=meter),
        timeouts=timeouts,
        keeper=keeper,
        children=children,
        pool=pool,
        claim_loop=claim_loop,
        planting=planting,
        registration=registration,
        known_tasks=known_tasks,
        services=(
            thread("heartbeat", leases, wake=leases.beat_moved),
            thread("recovery", recovery),
            registration,
            thread("planting", planting),
            thread("batches", batches, wake=batches.wake),
            thread("partitions", PartitionMaker(own.claims)),
            known_tasks,
            thread("metrics", metrics, on_stop=metrics.end),
            thread("statistics", StatisticsUpkeep(own.claims, stopping)),
        ),
        hooks=WorkerHooks(hooks, info),
    )


class Connections:
    """Three stores on connections of the worker's own: handlers may have every one of the application's.

    There are three, so that none waits for the work of another.
    """

    def __init__(self, store: Store, *, stopping: threading.Event, stopped: threading.Event) -> None:
        """`stopping` is set when the worker begins to stop, `stopped` when it has written what it had to."""
        self.outcomes = store.reserved(stopped)
        self.urgent = store.reserved(stopped, hurried=True)
        """For heartbeats, and for what is as urgent."""
        self.claims = store.reserved(stopping)  # what waits for the database must not delay a stop

    def watch(self, on_loss: Callable[[], object]) -> None:
        """Call `on_loss` whenever the server may have broken a connection. SQLite has no server.

        A pool that tests its connections, by `pool_pre_ping=True`, replaces a broken one, and no transaction fails.
        """
        for one in (self.outcomes, self.urgent, self.claims):
            if not one.dialect.one_writer:
                one.on_retry = on_loss
                event.listen(one.bound_engine.pool, "invalidate", lambda *_broken: on_loss())

    def close(self) -> None:
        """Close all of them."""
        for one in (self.outcomes, self.claims, self.urgent):
            close(one.bound_engine)


def _described(code: str | None, pool: HandlerPool[Any], isolation: Isolation) -> Mapping[str, Any]:
    """Return the arguments of `Store.workers.describe`. `code`: the version of the application's code."""
    try:
        release = version("outboxq")
    except PackageNotFoundError:  # it runs without having been installed
        release = None
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": code,
        "release": release,
        "busy": pool.busy,
        "isolation": isolation.value,
    }
