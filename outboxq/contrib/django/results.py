"""Django's TaskResult, built from outboxq's tables."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from ...errors import TaskNotFound
from ...model import Claim, EventType, TaskExecution, TaskStatus
from ...store import Attempt, Store
from .compat import TaskError, TaskResult, TaskResultStatus
from .django_task import changed, local

STATUS = {
    TaskStatus.READY: TaskResultStatus.READY,
    TaskStatus.RUNNING: TaskResultStatus.RUNNING,
    TaskStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
    TaskStatus.FAILED: TaskResultStatus.FAILED,
    TaskStatus.CANCELLED: TaskResultStatus.FAILED,
}

_UNUSED = frozenset({EventType.RESET, EventType.RELEASED, EventType.SNOOZED})
"""Ends of an attempt that is repeated under the same number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The stored arguments of a task that was enqueued through Django."""

    args: list[Any]
    kwargs: dict[str, Any]
    backend: str | None = None
    """Alias of the backend; None: that of the declared task."""
    run_after: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read stored arguments; None if the task was not enqueued through Django's tasks."""
        stored = json.loads(text)
        match stored:
            case {"args": list(args), "kwargs": dict(kwargs)}:
                due = stored.get("run_after")
                run_after = None if due is None else datetime.fromisoformat(due)
                return cls(args=args, kwargs=kwargs, backend=stored.get("backend"), run_after=run_after)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """The past attempts of a task."""

    worker_ids: list[str] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, store: Store, execution: TaskExecution, *, using: object) -> Self:
        """Read the attempts up to the moment at which `execution` was read; later events are left out."""
        if execution.first_started_at is None and execution.status is not TaskStatus.CANCELLED:
            return cls()
        try:
            attempts = store.attempts(execution.id, using=using)
        except TaskNotFound:  # its events were pruned
            attempts = []
        running = execution.status is TaskStatus.RUNNING
        known = [one for one in attempts if one.lease_token <= execution.lease_token]
        ended = [one for one in known if not (running and one.lease_token == execution.lease_token)]
        past = cls(
            worker_ids=[str(one.worker_id) for one in known if one not in ended or one.outcome not in _UNUSED],
            errors=[_error_of(one) for one in ended if one.outcome in _FAILED],
        )
        if execution.status is TaskStatus.CANCELLED:
            past.errors.append(_cancelled(store, execution, using=using))
        return past


def result_of(store: Store, execution: TaskExecution, call: Call, task: Any, *, using: object) -> Any:
    """Return the result of a task from the tables; `using` is that of the store's methods."""
    past = Past.read(store, execution, using=using)
    result = new_result(execution, call, task, past, status=STATUS[execution.status])
    amend(result, finished_at=local(execution.completed_at))
    if execution.status is TaskStatus.COMPLETED and execution.result is not None:
        amend(result, _return_value=json.loads(execution.result))
    return result


def new_result(row: TaskExecution | Claim, call: Call, task: Any, past: Past, *, status: Any) -> Any:
    """Return the result of a task, without its end: `finished_at` is None."""
    return TaskResult(
        task=task,
        id=str(row.id),
        status=status,
        enqueued_at=local(row.created_at),
        started_at=local(row.first_started_at),
        last_attempted_at=local(row.started_at),
        finished_at=None,
        args=call.args,
        kwargs=call.kwargs,
        backend=task.backend,
        errors=past.errors,
        worker_ids=past.worker_ids,
    )


def task_as_enqueued(declared: Any, call: Call, row: TaskExecution | Claim) -> Any:
    """Return the declared task with the options of its enqueue, whatever the settings are by now."""
    of_row = {
        "partition_key": row.partition_key if row.concurrency_key is None else None,
        "concurrency_key": row.concurrency_key,
        "max_attempts": row.max_attempts,
    }
    given = {name: value for name, value in of_row.items() if hasattr(declared, name)}
    return changed(
        declared,
        queue_name=row.queue,
        priority=row.priority,
        backend=call.backend or declared.backend,
        run_after=local(call.run_after),
        **given,
    )


def amend(result: Any, **values: Any) -> None:
    """Set attributes of a frozen TaskResult."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def error(kind: str | None, text: str | None) -> Any:
    """Return a TaskError. `kind` is the import path of the exception's class; None: the worker gave the task up."""
    return TaskError(exception_class_path=kind or "outboxq.errors.OutboxqError", traceback=text or "")


def cancelled(why: str) -> Any:
    return error("outboxq.model.records.Cancel", why)


_FAILED = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED, EventType.ABANDONED})
_CANCELLED = frozenset({EventType.CANCELLED, EventType.EXPIRED, EventType.DISCARDED})


def _error_of(attempt: Attempt) -> Any:
    kind = attempt.exception or ("outboxq.errors.LeaseLost" if attempt.outcome is EventType.ABANDONED else None)
    return error(kind, attempt.traceback or attempt.error)


def _cancelled(store: Store, execution: TaskExecution, *, using: object) -> Any:
    ends = [one for one in store.history(execution.id, using=using) if one.event_type in _CANCELLED]
    if not ends:
        return cancelled("Cancelled")
    reason = ends[-1].event_data.get("reason")
    return cancelled(f"{ends[-1].event_type}: {reason}" if reason else str(ends[-1].event_type))
