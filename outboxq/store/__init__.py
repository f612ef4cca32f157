"""The transactions: each public method is one, all of it or nothing of it."""

from __future__ import annotations

from .arguments import queue_names
from .attempts import Attempt, Attempts
from .claiming import Claiming
from .claims import Claims
from .dead_letters import DeadLetter, DeadLetters
from .enqueue import Enqueue, check
from .explaining import Cure, Explaining, Explanation, Reason
from .fanout import Fanout, check_subscription
from .finding import Finding
from .interruptions import Interruptions
from .listing import Listing
from .outlook import Outlook, Outlooks
from .permissions import Permissions
from .queues import Queues, QueueSettings
from .reading import Look, Reading
from .recovery import Lease, LeaseLook, Recovered, Recovering
from .registry import LiveWorker, Registry
from .replay import Replay, TailCursor
from .retention import Retention
from .sleeping import Sleeping
from .statistics import Percentiles, Statistics, Stats, UnknownName
from .units import Units
from .unknown import Unknown, UnknownRun
from .verification import Verification, Violation

__all__ = [
    "Attempt",
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


class Store(
    Enqueue,
    Fanout,
    Claiming,
    Claims,
    Recovering,
    Units,
    DeadLetters,
    Queues,
    Listing,
    Attempts,
    Replay,
    Reading,
    Finding,
    Retention,
    Verification,
    Stats,
    Registry,
    Explaining,
    Outlooks,
    Unknown,
    Interruptions,
):
    """Everything outboxq does to its tables, usable on its own from any synchronous code.

    Each method runs in a transaction of its own (READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite), which is run again
    from its start when the database says that it may succeed then (deadlock, lost connection, busy). With ``using=`` a method
    runs in that connection's transaction instead: nothing is committed and nothing run again.
    """
