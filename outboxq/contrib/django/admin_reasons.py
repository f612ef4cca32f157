"""Reasons why the tasks of a page of the admin's list do not run, in a few words each and in a few queries for all of them.

The words are a glance: a task's own page has the sentence of `explain`, which asks more, and all of it as of one moment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, OuterRef, Subquery
from django.utils import timezone

from ...model import TaskStatus
from ...store.registry import LIVE_WITHIN, takes
from .aliases import outboxes
from .models import LiveWorker, OutboxEntry, PartitionClaim, QueueSettings, TaskLease


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """The words of the list about one task, besides its row."""

    reason: str = ""
    due: datetime | None = None
    """None: it is not Ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Around:
    """The facts that the reasons of a page's tasks depend on."""

    now: datetime
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of each queue."""
    running: Mapping[str, int] = field(default_factory=dict)
    """The number of tasks that run, by queue with a limit."""
    workers: tuple[_Worker, ...] = ()
    given_back: Collection[UUID] = ()
    """The tasks that a worker gave back since it did not know them, and that are due later for that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Worker:
    queues: frozenset[str] | None
    topics: tuple[str, ...] | None
    knows: frozenset[str]


def glances(alias: str, tasks: Iterable[Any]) -> dict[UUID, Glance]:
    """Return what to say of each of the tasks, by its id."""
    found = list(tasks)
    now = timezone.now()
    ready = [task.pk for task in found if task.status == TaskStatus.READY]
    running = [task.pk for task in found if task.status == TaskStatus.RUNNING]
    entries = _entries(alias, ready) if ready else {}
    leases = dict(_leases(alias, running)) if running else {}
    around = _around(alias, now, {task.queue for task in found if task.pk in entries}) if entries else _Around(now=now)
    later = [(task.pk, task.lease_token) for task in found if _is_later(entries.get(task.pk), now) and task.lease_token]
    if later:
        with transaction.atomic(using=alias):
            around = replace(around, given_back=outboxes[alias].store.given_back_as_unknown(later, using=alias))
    said = {}
    for task in found:
        if (entry := entries.get(task.pk)) is not None:
            said[task.pk] = Glance(reason=_waiting(task, entry, around), due=entry["available_at"])
        elif task.status == TaskStatus.RUNNING:
            said[task.pk] = Glance(reason=_running(task, leases.get(task.pk), now))
        else:
            said[task.pk] = Glance()
    return said


def _entries(alias: str, ready: list[UUID]) -> dict[UUID, dict[str, Any]]:
    """With the claim of the task's key, and the first that waits for it: both are looked up by an index, task by task."""
    same = {"queue": OuterRef("queue"), "partition_key": OuterRef("partition_key")}
    first = OutboxEntry.objects.filter(**same).order_by("-priority", "position").values("task_execution_id")
    claims = PartitionClaim.objects.filter(**same).values("held")
    entries = OutboxEntry.objects.using(alias).filter(task_execution_id__in=ready)
    found = entries.annotate(first=Subquery(first[:1]), held=Subquery(claims[:1]))
    return {one["task_execution_id"]: one for one in found.values("task_execution_id", "available_at", "first", "held")}


def _is_later(entry: Mapping[str, Any] | None, now: datetime) -> bool:
    return entry is not None and entry["available_at"] > now


def _leases(alias: str, running: list[UUID]) -> Any:
    leases = TaskLease.objects.using(alias).filter(task_execution_id__in=running)
    return leases.values_list("task_execution_id", "lease_expires_at")


def _around(alias: str, now: datetime, queues: set[str]) -> _Around:
    settings = {one.queue: one for one in QueueSettings.objects.using(alias).filter(queue__in=queues)}
    limited = [one.queue for one in settings.values() if one.concurrency_limit is not None]
    leases = TaskLease.objects.using(alias).filter(queue__in=limited)
    running = dict(leases.values_list("queue").annotate(Count("pk"))) if limited else {}
    live = LiveWorker.objects.using(alias).filter(last_seen_at__gte=now - LIVE_WITHIN)
    return _Around(now=now, settings=settings, running=running, workers=tuple(map(_worker, live)))


def _worker(row: Any) -> _Worker:
    return _Worker(
        queues=None if row.queues is None else frozenset(json.loads(row.queues)),
        topics=None if row.topics is None else tuple(json.loads(row.topics)),
        knows=frozenset(json.loads(row.task_names)),
    )


def _waiting(task: Any, entry: Mapping[str, Any], around: _Around) -> str:
    """Return the reason, in the order of `explain`."""
    if task.expires_at is not None and task.expires_at <= around.now:
        return "expired"
    unmanned = _unmanned(task, around.workers)
    if entry["available_at"] > around.now:
        if unmanned and task.pk in around.given_back:
            return unmanned
        return "delayed" if task.retry_at is None else "waits for its retry"
    settings = around.settings.get(task.queue)
    if settings is not None and settings.paused_at is not None:
        return "queue paused"
    return _behind(task, entry) or _limited(settings, around) or unmanned or "due"


def _behind(task: Any, entry: Mapping[str, Any]) -> str:
    if task.partition_key is None:
        return ""
    if entry["held"] is not None:
        return "a dead letter holds its key" if entry["held"] else "another of its key runs"
    return "behind another of its key" if entry["first"] not in (None, task.pk) else ""


def _limited(settings: Any, around: _Around) -> str:
    if settings is None:
        return ""
    if settings.concurrency_limit is not None and around.running.get(settings.queue, 0) >= settings.concurrency_limit:
        return "concurrency limit"
    if settings.rate_limit is not None and settings.rate_full_at is not None:
        spent = timedelta(seconds=settings.rate_seconds - settings.rate_seconds / settings.rate_limit)
        if settings.rate_full_at - spent > around.now:
            return "rate limit"
    return ""


def _unmanned(task: Any, workers: Iterable[_Worker]) -> str:
    here = [one for one in workers if one.queues is None or task.queue in one.queues]
    taking = [one for one in here if takes(one.topics, task.topic)]
    if not taking:
        return "no worker takes its topic" if here else "no worker on its queue"
    return "" if any(task.task_name in one.knows for one in taking) else "no worker knows it"


def _running(task: Any, lease_ends: datetime | None, now: datetime) -> str:
    if lease_ends is not None and lease_ends < now:
        return "its lease ended"
    return "" if task.cancel_requested_at is None else "asked to stop"
