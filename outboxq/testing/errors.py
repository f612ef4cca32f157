"""What is wrong with a test, or with what it tests. All of them fail it: they are AssertionErrors."""

from __future__ import annotations


class EndlessDrain(AssertionError):
    """`drain()` ran very many tasks, and there were still others."""


class TaskFailed(AssertionError):
    """A task has not ended as itself wanted, and without an exception: its lease was lost."""


class TransactionEnded(AssertionError):
    """A handler has committed or rolled back the transaction that belongs to the test."""
