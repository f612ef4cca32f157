"""Errors of a test, or of the application under test. All are AssertionErrors, so they fail the test."""

from __future__ import annotations


class EndlessDrain(AssertionError):
    """`drain()` ran `Harness.max_runs` tasks, and others were still due."""


class TaskFailed(AssertionError):
    """A task failed without an exception: its lease was lost."""


class TransactionEnded(AssertionError):
    """A handler committed or rolled back the transaction of the test."""
