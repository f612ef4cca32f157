"""Helpers for an application's tests: assertions on enqueued tasks, a way to run tasks inside the test's transaction,
and a clock that tests can move.

With pytest, use the `harness` fixture (see `outboxq_app` and `outboxq_using`); with unittest and Django, `OutboxTests`;
elsewhere, `Harness`.
"""

from __future__ import annotations

from .clock import Clock
from .enqueued import Enqueued
from .harness import EndlessDrain, Harness
from .running import OutcomeDiscarded, TaskRun
from .transaction import TransactionEnded
from .unittest_case import OutboxTests

__all__ = [
    "Clock",
    "EndlessDrain",
    "Enqueued",  # returned by Harness.enqueued()
    "Harness",
    "OutboxTests",
    "OutcomeDiscarded",
    "TaskRun",  # returned by Harness.drain()
    "TransactionEnded",
]
