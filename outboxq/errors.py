"""Everything outboxq raises on purpose.

::

    OutboxqError
    ├── ConfigurationError        wrong set-up, raised before any row is written
    │   ├── UnsupportedDatabase   a dialect or a version outboxq does not run on
    │   ├── SchemaOutOfDate       our tables are missing, too old for this code, or admit only newer code
    │   ├── NotPermitted          the database role lacks a right
    │   └── InvalidTarget         ``using()`` was given something without a usable transaction (also a TypeError)
    ├── InvalidArgument           a value out of its range (also a ValueError)
    ├── InvalidCall               arguments that do not fit the task's signature (also a TypeError)
    ├── PayloadError              arguments or a result that are not strict JSON (also a ValueError)
    │   └── UnreadableArguments   stored arguments that are no JSON object, which no code can read
    ├── UnknownTask               a name no task of this process is registered under (also a LookupError)
    ├── TaskNotFound              no task execution with this id (also a LookupError)
    ├── AmbiguousTask             several task executions have ids that begin so (also a LookupError)
    ├── DuplicateTask             the idempotency key has a task already
    ├── InvalidTransition         the task execution is in a status that does not allow this
    ├── ReadOnly                  a row read through ``outboxq.orm`` was to be written
    ├── OutcomesRefused           the database refuses to record how tasks end; the worker stops
    ├── FileUnusable              the SQLite file was replaced, deleted or damaged; the worker stops
    └── LeaseLost                 another worker may hold the task execution now

Errors of the database pass through as SQLAlchemy raises them. Inside a caller's transaction they are never caught, for a
caught error would leave that transaction aborted without its owner's knowledge.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class OutboxqError(Exception):
    """The root: ``except OutboxqError`` catches everything below and nothing else."""


class ConfigurationError(OutboxqError):
    """The set-up cannot work; nothing was written."""


class UnsupportedDatabase(ConfigurationError):
    """The database, its driver or its version is one that outboxq does not run on."""


class SchemaOutOfDate(ConfigurationError):
    """The database lacks our tables, or has those of another release that this one cannot work on."""

    def __init__(self, fault: str, *, remedy: str | None = None, code_is_older: bool = False) -> None:
        """`remedy` is the end of the message: what to do about the fault."""
        super().__init__(fault if remedy is None else f"{fault}; {remedy}")
        self.fault = fault
        self.code_is_older = code_is_older
        """Not the tables are to be upgraded, but the package: they are those of a later release."""
        self._is_mended_by_an_upgrade = remedy is not None and not code_is_older

    def mended_by(self, command: str) -> SchemaOutOfDate:
        """Return this error with the command that makes the tables where it was raised; itself where no upgrade helps."""
        return SchemaOutOfDate(self.fault, remedy=f"run: {command}") if self._is_mended_by_an_upgrade else self


class NotPermitted(ConfigurationError):
    """The database role lacks a right; the message names the role, the tables, and the command that grants what it needs."""


class InvalidTarget(ConfigurationError, TypeError):
    """What was passed to ``using()`` has no open transaction that a task could join."""


class InvalidArgument(OutboxqError, ValueError):
    """A value is out of its range, or of the wrong kind (a naive datetime, a negative limit)."""


class InvalidCall(OutboxqError, TypeError):
    """The arguments of ``enqueue`` do not fit the signature of the task."""


class PayloadError(OutboxqError, ValueError):
    """A value is not of its annotated type, cannot be stored as strict JSON, or cannot be read back as its annotation says."""


class UnreadableArguments(PayloadError):
    """The stored arguments are no JSON object, so another attempt cannot read them either: the task is Failed at once."""


class UnknownTask(OutboxqError, LookupError):
    """No task of this name is registered in this process."""


class TaskNotFound(OutboxqError, LookupError):
    """There is no task execution with this id."""


class AmbiguousTask(OutboxqError, LookupError):
    """Several task executions have ids that begin with what was given; nothing was done to any of them."""

    def __init__(self, message: str, task_ids: Sequence[UUID] = ()) -> None:
        super().__init__(message)  # with this alone does pickle make it again, and restores its attributes then
        self.task_ids = tuple(task_ids)
        """Up to five of them, the oldest first."""


class DuplicateTask(OutboxqError):
    """The idempotency key has a task already, and the enqueue said ``on_conflict`` RAISE, or a task that lost its key to that one
    was to run again; nothing was written.
    """

    def __init__(self, message: str, task_id: UUID) -> None:
        super().__init__(message)
        self.task_id = task_id
        """Of the task that has the key."""


class InvalidTransition(OutboxqError):
    """The task execution's status does not allow the operation, e.g. cancelling what is completed."""


class ReadOnly(OutboxqError):
    """A row of `outboxq.orm` was to be made, changed or deleted; tasks change through outboxq, together with their events."""


class OutcomesRefused(OutboxqError):
    """The database refuses for good to record how tasks end, so a worker that went on would run them in vain."""


class FileUnusable(OutboxqError):
    """The SQLite file was replaced or deleted while it was open, or is damaged; what is written to it would be lost."""

    def __init__(self, message: str, *, may_start_again: bool = True) -> None:
        """`may_start_again` False: a process that is started now would destroy the new file by opening it."""
        super().__init__(message)
        self.may_start_again = may_start_again


class LeaseLost(OutboxqError):
    """The claim is over: another worker may hold the task execution, so nothing was written."""
