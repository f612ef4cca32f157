"""Short reasons why the tasks of a page of the admin's list do not run, read by a few queries for the whole page.

The rules are those of `Store.outlooks`. The page of a single task shows the whole sentence of `Store.explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from ... import model
from ...model import TaskStatus
from ...store import Reason
from .aliases import outboxes
from .models import TaskLease

_WORDS: Mapping[Reason, str] = {
    Reason.CANCEL_REQUESTED: "asked to stop",
    Reason.LEASE_ENDED: "its lease ended",
    Reason.WORKER_SILENT: "its worker is silent",
    Reason.RUNNING: "",
    Reason.EXPIRED: "expired",
    Reason.RETRY_LATER: "waits for its retry",
    Reason.DELAYED: "delayed",
    Reason.QUEUE_PAUSED: "queue paused",
    Reason.KEY_HELD: "a dead letter holds its key",
    Reason.KEY_RUNNING: "another of its key runs",
    Reason.KEY_WAITING: "behind another of its key",
    Reason.CONCURRENCY_LIMIT: "concurrency limit",
    Reason.RATE_LIMIT: "rate limit",
    Reason.NO_WORKER: "no worker on its queue",
    Reason.TOPIC_UNWANTED: "no worker takes its topic",
    Reason.TASK_UNKNOWN: "no worker knows it",
    Reason.DUE: "due",
    Reason.INCONSISTENT: "see outboxq verify",
}
"""The words for each reason that `Store.outlooks` returns."""

_UNREAD: Mapping[str, Any] = {"args": "", "headers": None, "result": None, "last_error": None}
"""Columns that the list does not read, and that no rule needs."""
_READ = {field.name for field in fields(model.TaskExecution)} - {*_UNREAD, "status", "lease_expires_at"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """The reason of one task for the list."""

    reason: str = ""
    due: datetime | None = None
    """The due time of a Ready task."""


def glances(alias: str, rows: Iterable[Any]) -> dict[UUID, Glance]:
    """Return the glance of each of these rows (of the model TaskExecution), by the task's id."""
    found = list(rows)
    running = [row.pk for row in found if row.status == TaskStatus.RUNNING]
    leases = TaskLease.objects.using(alias).filter(task_execution_id__in=running)
    ends = dict(leases.values_list("task_execution_id", "lease_expires_at")) if running else {}
    tasks = [_task(row, ends.get(row.pk)) for row in found]
    with transaction.atomic(using=alias, savepoint=False):
        outlooks = outboxes[alias].store.outlooks(tasks, using=alias)
    seen = {key: Glance(reason=_WORDS[one.reason], due=one.due_at) for key, one in outlooks.items()}
    return {row.pk: seen.get(row.pk, Glance()) for row in found}


def _task(row: Any, lease_ends: datetime | None) -> model.TaskExecution:
    known = {name: getattr(row, name) for name in _READ}
    return model.TaskExecution(status=TaskStatus(row.status), lease_expires_at=lease_ends, **known, **_UNREAD)
