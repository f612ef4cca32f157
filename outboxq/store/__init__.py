"""The store: each public method is one transaction, which takes effect completely or not at all."""

from __future__ import annotations

from functools import cached_property

from ..model.unknown_options import Answering

# `as` makes a name public to type checkers.
from . import retention
from . import verify as checks
from .actions import Actions
from .arguments import queue_names as queue_names
from .claims import due, ends, lost_workers, recovery, units_of_work
from .claims import unknown_runs as unknown_tasks
from .claims.claim import ClaimCursor as ClaimCursor
from .claims.claim import Claiming
from .claims.floors import Floors as Floors
from .claims.recovery import Lease as Lease
from .claims.recovery import LeaseLook as LeaseLook
from .claims.recovery import OutlastingLook as OutlastingLook
from .claims.recovery import Recovered as Recovered
from .claims.sleeping_workers import SleepingWorkers
from .claims.unknown_runs import UnknownRun as UnknownRun
from .claims.worker_orders import WorkerOrders
from .claims.worker_orders import WorkerStacks as WorkerStacks
from .claims.workers import LiveWorker as LiveWorker
from .claims.workers import RecoveredTasks as RecoveredTasks
from .claims.workers import Workers
from .explain import explain as explaining
from .explain.explain import TaskDetail as TaskDetail
from .explain.reasons import Cure as Cure
from .explain.reasons import Explanation as Explanation
from .explain.reasons import Reason as Reason
from .messages.inbox import InboxMessages
from .messages.relays import RelayFailure as RelayFailure
from .messages.relays import RelayLook as RelayLook
from .messages.relays import Relays
from .numbers import dead_rows, statistics
from .numbers import overview as overviews
from .numbers import system as systems
from .numbers.maintenance_jobs import MaintenanceJobs
from .numbers.metrics import MetricPoint as MetricPoint
from .numbers.metrics import Metrics as Metrics
from .numbers.metrics import Percentiles as Percentiles
from .numbers.metrics import TaskMetric as TaskMetric
from .numbers.overview import Trends as Trends
from .numbers.problem import HealthLimits as HealthLimits
from .numbers.problem import Problem as Problem
from .numbers.problem import Rule as Rule
from .numbers.queues import Queues
from .numbers.queues import QueueSettings as QueueSettings
from .numbers.samples import DepthPoint as DepthPoint
from .numbers.samples import QueueSample as QueueSample
from .numbers.samples import Samples
from .numbers.statistics import Statistics as Statistics
from .numbers.system import TableSize as TableSize
from .producing import enqueue as enqueueing
from .producing import fanout
from .producing.batches import Batches
from .producing.batches import Member as Member
from .producing.enqueue import check as check
from .producing.fanout import Subscriptions
from .producing.fanout import check_subscription as check_subscription
from .producing.schedules import Schedules
from .producing.schedules import check_schedule as check_schedule
from .retention import TimePartitions
from .tasks import cancelling, operations, results, running_now, task_pages
from .tasks import slowest as slow_tasks
from .tasks import tasks as reading
from .tasks.cancelling import Part as Part
from .tasks.dead_letter_groups import DeadLetterGroup as DeadLetterGroup
from .tasks.dead_letters import DeadLetter as DeadLetter
from .tasks.dead_letters import DeadLetters
from .tasks.event_log import Count as Count
from .tasks.event_log import EventLog
from .tasks.event_log import Snapshot as Snapshot
from .tasks.event_log import TailCursor as TailCursor
from .tasks.results import BatchStanding as BatchStanding
from .tasks.results import ResultReader as ResultReader
from .tasks.results import Standing as Standing
from .tasks.slowest import Slow as Slow
from .tasks.slowest import SlowTasks as SlowTasks
from .tasks.steps import NewStep as NewStep
from .tasks.steps import Steps
from .tasks.steps import Written as Written
from .tasks.task_pages import TaskPage as TaskPage
from .tasks.tasks import Attempt as Attempt
from .verify import Violation as Violation

FOR_APPLICATIONS = frozenset(
    [
        "enqueue",
        "enqueue_many",
        "emit",
        "end_session",
        "get",
        "history",
        "attempts",
        "find",
        "tasks",
        "task_page",
        "slowest",
        "count_tasks",
        "explain",
        "outlooks",
        "progress",
        "now",
        "cancel",
        "cancel_all",
        "run_all_now",
        "redrive",
        "discard",
        "run_now",
        "set_priority",
        "reschedule",
        "schedule_retry",
        "stats",
        "health",
        "overview",
        "change_mark",
        "actions",
        "verify",
        "prune",
        "claim_ready_task",
        "complete",
        "fail",
        "release",
        "heartbeat",
        "recover",
        "recover_lost",
        "get_ready_for_retry",
        "next_available_at",
        "ensure_current",
        "engine",
        "schema",
        "batches",
        "dead_letters",
        "log",
        "metrics",
        "queues",
        "relays",
        "samples",
        "schedules",
        "steps",
        "subscriptions",
        "worker_orders",
        "workers",
    ]
)
"""The attributes of a Store that are meant for applications. Tab completion lists only these; the others are for
workers and front ends.
"""


class Store(Answering, Claiming):
    """All operations on outboxq's tables, for any synchronous code.

    Task and maintenance operations are methods. The other operations are grouped by noun, as in ``queues.pause()`` and
    ``dead_letters.list()``.

    Each method runs in its own transaction (READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite). After a temporary
    error, such as a deadlock, a lost connection or a busy database, the transaction is retried from the start for up to
    5 seconds (``Outbox(outage_timeout=…)``), or for up to 30 seconds in a handler. With ``using=``, a method runs in
    the transaction that ``using`` specifies. The method then neither commits nor retries.
    """

    _noun = "the store"

    # The right-hand sides do not name other verbs (`tests/unit/test_nouns.py`), so the order of these lines does not
    # matter.

    # Producers
    enqueue_many = enqueueing.enqueue_many
    enqueue = enqueueing.enqueue
    emit = fanout.emit

    # Claims and how they end
    complete = ends.complete
    fail = ends.fail
    release = ends.release
    finish = ends.finish
    finish_unlocked = ends.finish_unlocked
    begin = ends.begin
    heartbeat = ends.heartbeat
    compile_ends = ends.compile_ends
    unit = units_of_work.unit
    interruptions = ends.interruptions
    unknown_runs = unknown_tasks.unknown_runs
    make_known_due = unknown_tasks.make_known_due

    # Leases of dead workers
    recover = recovery.recover
    expired_leases = recovery.expired_leases
    outlasting_leases = recovery.outlasting_leases
    due_again = recovery.due_again

    # Operations that people perform on a task
    schedule_retry = operations.schedule_retry
    reschedule = operations.reschedule
    cancel = operations.cancel
    cancel_all = cancelling.cancel_all
    redrive = operations.redrive
    discard = operations.discard
    recover_lost = lost_workers.recover_lost
    recover_all_lost = lost_workers.recover_all_lost
    lost_tasks = lost_workers.lost_tasks
    ensure_lost = lost_workers.ensure_lost
    run_now = operations.run_now
    run_all_now = running_now.run_all_now
    set_priority = operations.set_priority

    # Queries
    now = reading.now
    get = reading.get
    history = reading.history
    recent_history = reading.recent_history
    restarted_at = reading.restarted_at
    get_ready_for_retry = reading.get_ready_for_retry
    next_available_at = due.next_available_at
    look_ahead = due.look_ahead
    attempts = reading.attempts
    find = reading.find
    count_later = running_now.count_later
    count_tasks = cancelling.count_tasks
    later_parts = running_now.later_parts
    parts = cancelling.parts
    task_page = task_pages.task_page
    tasks = task_pages.tasks
    slowest = slow_tasks.slowest
    explain = explaining.explain
    progress = explaining.progress
    task_detail = explaining.task_detail
    outlooks = explaining.outlooks
    standings = results.standings
    first_of_batch = results.first_of_batch
    batch_standings = results.batch_standings
    stats = statistics.stats
    state_counts = statistics.state_counts
    health = overviews.health
    change_mark = overviews.change_mark
    trends = overviews.trends
    overview = overviews.overview
    deletes_old_tasks = overviews.deletes_old_tasks
    stuck = overviews.stuck
    held_snapshots = dead_rows.held_snapshots_now
    end_session = systems.end_session
    table_sizes = systems.table_sizes
    why_locked = systems.why_locked
    tables_are_locked = systems.tables_are_locked
    system = systems.system

    # Maintenance
    verify = checks.verify
    prune = retention.prune

    # By noun
    actions = cached_property(Actions)
    subscriptions = cached_property(Subscriptions)
    dead_letters = cached_property(DeadLetters)
    queues = cached_property(Queues)
    batches = cached_property(Batches)
    log = cached_property(EventLog)
    workers = cached_property(Workers)
    worker_orders = cached_property(WorkerOrders)
    sleeping_workers = cached_property(SleepingWorkers)
    schedules = cached_property(Schedules)
    steps = cached_property(Steps)
    time_partitions = cached_property(TimePartitions)
    metrics = cached_property(Metrics)
    samples = cached_property(Samples)
    maintenance_jobs = cached_property(MaintenanceJobs)
    inbox = cached_property(InboxMessages)
    relays = cached_property(Relays)

    @property
    def upgrade_command(self) -> str:
        """The command that a user types to create and upgrade the tables and to store the subscriptions."""
        return "outboxq upgrade APP"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("_") or name in FOR_APPLICATIONS]

    def _cure(self, name: str) -> str:
        nouns = [f"outbox.store.{noun}.{name}(…)" for noun in sorted(FOR_APPLICATIONS) if name in dir(_noun_of(noun))]
        return super()._cure(name) or " or ".join(nouns)


def in_the_store(name: str) -> str:
    """Return the correct expression for a store attribute that was looked up on the outbox; "" if the store has no such
    attribute.
    """
    if name not in FOR_APPLICATIONS:
        return ""
    noun = _noun_of(name)
    called = "(…)" if callable(getattr(Store, name, None)) else ""
    example = f", as in outbox.store.{name}.list()" if hasattr(noun, "list") else ""
    return f"outbox.store.{name}{called}{example}"


def _noun_of(name: str) -> object:
    return getattr(vars(Store).get(name), "func", None)
