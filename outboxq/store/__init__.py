"""The transactions: each public method is one, all of it or nothing of it."""

from __future__ import annotations

from . import (
    attempts,
    checks,
    dead_letters,
    ends,
    enqueue,
    explaining,
    fanout,
    finding,
    interruptions,
    listing,
    operations,
    outlook,
    partitions,
    queues,
    reading,
    recovery,
    registry,
    retention,
    statistics,
    tail,
    units,
    unknown,
    waiting,
)
from .arguments import queue_names
from .attempts import Attempt
from .checks import Violation
from .claim import Claiming
from .claim_cursor import ClaimCursor
from .dead_letters import DeadLetter
from .enqueue import check
from .explaining import Cure, Explanation, Reason
from .fanout import check_subscription
from .outlook import Outlook
from .permissions import Permissions
from .queues import QueueSettings
from .recovery import Lease, LeaseLook, Recovered
from .registry import LiveWorker
from .sleeping import Sleeping
from .statistics import Percentiles, Statistics, UnknownName
from .tail import TailCursor
from .unknown import UnknownRun
from .waiting import Look

__all__ = [
    "Attempt",
    "ClaimCursor",
    "Cure",
    "DeadLetter",
    "Explanation",
    "Lease",
    "LeaseLook",
    "LiveWorker",
    "Look",
    "Outlook",
    "Percentiles",
    "Permissions",
    "QueueSettings",
    "Reason",
    "Recovered",
    "Sleeping",
    "Statistics",
    "Store",
    "TailCursor",
    "UnknownName",
    "UnknownRun",
    "Violation",
    "check",
    "check_subscription",
    "queue_names",
]


class Store(Claiming):
    """Everything outboxq does to its tables, usable on its own from any synchronous code.

    Each method runs in a transaction of its own (READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite), which is run again
    from its start when the database says that it may succeed then (deadlock, lost connection, busy). With ``using=`` a method
    runs in that connection's transaction instead: nothing is committed and nothing run again.
    """

    # Producers
    enqueue_many = enqueue.enqueue_many
    enqueue = enqueue.enqueue
    emit = fanout.emit
    subscribe = fanout.subscribe
    unsubscribe = fanout.unsubscribe
    subscriptions = fanout.subscriptions

    # Claims and their ends
    complete = ends.complete
    fail = ends.fail
    release = ends.release
    finish = ends.finish
    finish_unlocked = ends.finish_unlocked
    begin = ends.begin
    heartbeat = ends.heartbeat
    compile_ends = ends.compile_ends
    unit = units.unit
    interruptions = interruptions.interruptions
    unknown_runs = unknown.unknown_runs
    make_known_due = unknown.make_known_due

    # Leases of workers that are gone
    recover = recovery.recover
    expired_leases = recovery.expired_leases
    outlasting_leases = recovery.outlasting_leases
    due_again = recovery.due_again

    # What people do to a task
    schedule_retry = operations.schedule_retry
    cancel = operations.cancel
    redrive = operations.redrive
    discard = operations.discard
    run_now = operations.run_now
    set_priority = operations.set_priority
    redrive_all = dead_letters.redrive_all
    discard_all = dead_letters.discard_all
    dead_letters = dead_letters.dead_letters

    # Queues
    pause = queues.pause
    resume = queues.resume
    limit = queues.limit
    order = queues.order
    queue_settings = queues.queue_settings

    # Questions
    now = reading.now
    get = reading.get
    history = reading.history
    recent_history = reading.recent_history
    get_ready_for_retry = reading.get_ready_for_retry
    next_available_at = waiting.next_available_at
    look_ahead = waiting.look_ahead
    attempts = attempts.attempts
    state_at = tail.state_at
    tail_from_now = tail.tail_from_now
    tail = tail.tail
    find = finding.find
    tasks = listing.tasks
    explain = explaining.explain
    outlooks = outlook.outlooks
    stats = statistics.stats

    # Live workers
    register = registry.register
    seen = registry.seen
    unregister = registry.unregister
    workers = registry.workers

    # Upkeep
    verify = checks.verify
    prune = retention.prune
    make_partitions = partitions.make_partitions
