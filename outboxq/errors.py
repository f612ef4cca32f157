"""The exceptions that outboxq raises on purpose.

Database errors are passed on as SQLAlchemy raises them. outboxq never catches a database error inside a caller's
transaction, because the transaction would then be aborted without its owner's knowledge.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID


class OutboxqError(Exception):
    """The base class: ``except OutboxqError`` catches all exceptions in ``outboxq.errors``, and no others."""


class ConfigurationError(OutboxqError):
    """The configuration cannot work; nothing was written."""


class UnsupportedDatabase(ConfigurationError):
    """outboxq does not support this database, its driver or its version."""


class SchemaOutOfDate(ConfigurationError):
    """The database does not have outboxq's tables, or its tables belong to a release with which the installed release
    cannot work.
    """

    def __init__(self, fault: str, *, remedy: str | None = None, code_is_older: bool = False) -> None:
        """Build the message from the fault and the remedy, if there is one."""
        super().__init__(fault if remedy is None else f"{fault}; {remedy}")
        self.fault = fault
        self.code_is_older = code_is_older
        """True if the tables belong to a later release. The package must then be upgraded, not the tables."""
        self.is_mended_by_an_upgrade = remedy is not None and not code_is_older
        """True if `outboxq upgrade` would make the tables fit this release."""

    def mended_by(self, command: str) -> SchemaOutOfDate:
        """Return this error with the command that upgrades the tables, or unchanged if an upgrade would not help."""
        return SchemaOutOfDate(self.fault, remedy=f"run: {command}") if self.is_mended_by_an_upgrade else self


class TablesLocked(OutboxqError):
    """Other sessions are keeping the tables locked; the message says which sessions. An upgrade that raises this error
    has changed nothing, so run the upgrade again.
    """


class NotPermitted(ConfigurationError):
    """The database role lacks a privilege. The message names the role, the tables, and the command that grants the missing
    privilege.
    """


class InvalidTarget(ConfigurationError, TypeError):
    """The argument to ``using()`` has no open transaction that a task can join."""


class InvalidArgument(OutboxqError, ValueError):
    """A value is out of range or of the wrong kind, such as a negative limit or a naive datetime."""


class InvalidCall(OutboxqError, TypeError):
    """A call's arguments do not match the signature of the task or method."""


class PayloadError(OutboxqError, ValueError):
    """A value does not have its annotated type, cannot be stored as strict JSON, or cannot be read back according to
    its annotation.
    """


class UnreadableArguments(PayloadError):
    """The stored arguments are not a JSON object. No attempt could ever read them, so the task becomes Failed
    immediately.
    """


class UnknownTask(OutboxqError, LookupError):
    """No task with this name is registered in this process."""


class TaskNotFound(OutboxqError, LookupError):
    """No task execution has this id."""


class TaskFailed(OutboxqError):
    """The awaited task is Failed: it is a dead letter, or was a dead letter when its status was read."""

    def __init__(
        self,
        message: str,
        *,
        task_id: UUID | None = None,
        error: str = "",
        exception: str | None = None,
        attempt: int = 0,
    ) -> None:
        super().__init__(message)  # pickle passes only the message, and restores the attributes afterwards
        self.task_id = task_id
        """The id of the task."""
        self.error = error
        """The error from the last attempt, on one line."""
        self.exception = exception
        """The module and name of the exception's class; None if the worker gave up on the task, or if the class is not
        known.
        """
        self.attempt = attempt
        """The number of the last attempt."""


class TaskCancelled(OutboxqError):
    """The awaited task is Cancelled: it was cancelled or discarded, or it expired."""

    def __init__(self, message: str, *, task_id: UUID | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id
        """The id of the task."""
        self.reason = reason
        """The reason that was given. If none was given: "expired", "discarded", or "" for a cancellation."""


class WaitRefused(OutboxqError, RuntimeError):
    """A wait for a task was refused, because the wait could never end (in a handler, before the commit, or for an
    unclosed batch) or would block an event loop.
    """


class ProcessDied(OutboxqError):
    """The child process in which a handler was running died before the handler finished. The attempt has failed."""


class StepRefused(OutboxqError, RuntimeError):
    """A step was refused, because it was inside a transactional task or another step, because its name was already in
    use, or because its result is not JSON.

    Another attempt would be refused for the same reason. If the handler does not catch the error, the task becomes
    Failed immediately, and its completed steps are kept.
    """


class BatchNotFound(OutboxqError, LookupError):
    """No batch or chain has this id."""


class BatchClosed(OutboxqError):
    """The batch does not accept any more tasks, because it has completed or is being cancelled; nothing was written."""


class ScheduleNotFound(OutboxqError, LookupError):
    """No schedule has this name."""


class RelayNotFound(OutboxqError, LookupError):
    """No relay to a broker has this name."""


class WorkerNotFound(OutboxqError, LookupError):
    """No worker has this id or name. A worker is forgotten a week after it was last seen."""


class QueueNotFound(OutboxqError, LookupError):
    """No task, setting, declaration or live worker uses this queue, so its name is probably misspelled."""

    def __init__(self, fault: str, *, creation: str | None = None) -> None:
        """Build the message from the fault and, if the queue can be set up, the instructions for doing so."""
        how = f"{' T' if fault.endswith('?') else '; t'}o set it up before its first task, {creation}"
        super().__init__(fault if creation is None else fault + how)
        self.fault = fault
        self.can_be_created = creation is not None
        """True if the refused call has an option that sets up the queue."""

    def mended_by(self, creation: str) -> QueueNotFound:
        """Return this error with another way to set up the queue, or unchanged if the refused call cannot set one up."""
        return QueueNotFound(self.fault, creation=creation) if self.can_be_created else self


class AmbiguousTask(OutboxqError, LookupError):
    """Several task execution ids begin with the given digits; nothing was changed."""

    def __init__(self, message: str, task_ids: Sequence[UUID] = ()) -> None:
        super().__init__(message)  # pickle passes only the message, and restores the attributes afterwards
        self.task_ids = tuple(task_ids)
        """Up to five of the matching ids, oldest first."""


class DuplicateTask(OutboxqError):
    """The idempotency key belongs to another task; nothing was written.

    The enqueue used ``on_conflict="raise"``, or a redrive would run a task whose key now belongs to another task.
    """

    def __init__(self, message: str, task_id: UUID) -> None:
        super().__init__(message)
        self.task_id = task_id
        """The id of the task that has the key."""


class InvalidTransition(OutboxqError):
    """The status of the task or batch does not allow the operation. For example, a completed task cannot be cancelled."""


class ReadOnly(OutboxqError):
    """A program tried to create, change or delete a row through `outboxq.orm`. Use outboxq's methods instead, which
    also write the events.
    """


class OutcomesRefused(OutboxqError):
    """The database permanently refuses to record task outcomes, so the worker stops."""


class FileUnusable(OutboxqError):
    """The SQLite file was replaced or deleted while it was open, or it is damaged; further writes would be lost."""

    def __init__(self, message: str, *, may_start_again: bool = True) -> None:
        """`may_start_again` is False if a process that starts now would destroy the new file by opening it."""
        super().__init__(message)
        self.may_start_again = may_start_again


class WebhookFailed(OutboxqError):
    """An endpoint did not accept a webhook. The message names the host and the status, but not the URL's path."""

    retry_after: timedelta | None = None
    """The wait that the endpoint requested before another attempt; None if it did not request a wait."""


class EndpointGone(WebhookFailed):
    """An endpoint answered that it no longer exists (410). A relay then pauses its queue."""


class EndpointRefused(WebhookFailed):
    """An endpoint's address is not public, so nothing was sent to the endpoint."""


class PublishFailed(OutboxqError):
    """A broker did not confirm a redriven event, and may not have received it."""


class EventRefused(PublishFailed):
    """A broker will never accept this event, because it is too large, cannot be routed, or is malformed."""


class WebhookInvalid(OutboxqError, ValueError):
    """A received webhook has an invalid signature, was signed too long ago, or is too large."""

    status: int = 401
    """The HTTP status to answer with: 401, or 413 for a body that is too large."""


class MessageUnreadable(OutboxqError, ValueError):
    """A message from another program cannot become a task. The message is kept as a dead letter, and a redrive tries to
    read it again.
    """


class SourceUnavailable(OutboxqError):
    """A broker cannot be reached, or is not delivering messages at the moment."""


class LeaseLost(OutboxqError):
    """The claim has ended, and another worker may have claimed the task execution, so nothing was written."""
