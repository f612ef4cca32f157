"""For the tests of an application: what was enqueued, real claims inside the test's own transaction, and a clock to advance.

With pytest: the fixture `outbox`, see `outboxq_app` and `outboxq_using`. With unittest and Django: `OutboxTests`. By hand: `Harness`.
"""

from __future__ import annotations

from .case import OutboxTests
from .clock import Clock
from .enqueued import Enqueued
from .errors import EndlessDrain, TaskFailed, TransactionEnded
from .harness import Harness
from .running import TaskRun

__all__ = [
    "Clock",
    "EndlessDrain",
    "Enqueued",  # what Harness.enqueued() returns
    "Harness",
    "OutboxTests",
    "TaskFailed",
    "TaskRun",  # what Harness.drain() returns
    "TransactionEnded",
]
