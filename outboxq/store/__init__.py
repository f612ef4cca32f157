"""The transactions: each public method is one, all of it or nothing of it."""

from __future__ import annotations

from . import (
    attempts,
    claims,
    dead_letters,
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
    replay,
    retention,
    statistics,
    units,
    unknown,
    verification,
)
from .arguments import queue_names
from .attempts import Attempt
from .claim_cursor import ClaimCursor
from .claiming import Claiming
from .dead_letters import DeadLetter
from .enqueue import check
from .explaining import Cure, Explanation, Reason
from .fanout import check_subscription
from .outlook import Outlook
from .permissions import Permissions
from .queues import QueueSettings
from .reading import Look
from .recovery import Lease, LeaseLook, Recovered
from .registry import LiveWorker
from .replay import TailCursor
from .sleeping import Sleeping
from .statistics import Percentiles, Statistics, UnknownName
from .unknown import UnknownRun
from .verification import Violation

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
    complete = claims.complete
    fail = claims.fail
    release = claims.release
    finish = claims.finish
    finish_unlocked = claims.finish_unlocked
    begin = claims.begin
    heartbeat = claims.heartbeat
    compile_ends = claims.compile_ends
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
    next_available_at = reading.next_available_at
    look_ahead = reading.look_ahead
    attempts = attempts.attempts
    state_at = replay.state_at
    tail = replay.tail
    tail_from_now = replay.tail_from_now
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
    verify = verification.verify
    prune = retention.prune
    make_partitions = partitions.make_partitions
