"""The transactions: each public method is one, all of it or nothing of it."""

from __future__ import annotations

from .base import queue_names
from .claims import Claims
from .enqueue import Enqueue, check
from .operations import Operations
from .reading import Look, QueueCount, Reading
from .retention import Retention
from .sleeping import Sleeping
from .units import Units
from .verification import Verification, Violation

__all__ = ["Look", "QueueCount", "Sleeping", "Store", "Violation", "check", "queue_names"]


class Store(Enqueue, Claims, Units, Operations, Reading, Retention, Verification):
    """Everything outboxq does to its tables, usable on its own from any synchronous code.

    Each method runs in a transaction of its own (READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite), which is run again
    from its start when the database says that it may succeed then (deadlock, lost connection, busy). With ``using=`` a method
    runs in that connection's transaction instead: nothing is committed and nothing run again.
    """
