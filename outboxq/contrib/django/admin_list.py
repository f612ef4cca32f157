"""The admin's list of tasks: a bounded number of the newest tasks, with links to older ones, for tables of any size.

An id contains its time, so the primary key is the order. Ready, Running and Failed tasks are found through the small tables that
contain just those. No query of a page reads more than `LOOK` tasks, except a search for the outbox entries of a rare queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import F, Lookup, Q
from django.db.models.functions import Left
from django.utils import timezone
from django.utils.timezone import get_current_timezone_name as zone

from ... import model
from ...model import TaskStatus
from ...store import Reason
from .admin_texts import plain
from .django_outbox import outboxes
from .models import DeadLetter, OutboxEntry, TaskExecution, TaskLease

LOOK = 10_000
"""Number of tasks from which a page is chosen."""
_KNOWN = 1_000
"""Number of tasks that are read to find the queues and task names in use."""
_CHOICES = 100
_ERROR = 300
"""Number of characters of an error that the list reads."""

BEFORE = "before"
"""Query parameter with the id below which the list begins."""

_KEPT_APART: dict[str | None, Any] = {
    TaskStatus.READY: OutboxEntry,
    TaskStatus.RUNNING: TaskLease,
    TaskStatus.FAILED: DeadLetter,
}

_UNREAD: Mapping[str, Any] = {"args": "", "headers": None, "result": None, "last_error": None}
"""Columns that the list does not read, and that no rule needs."""
_READ = {field.name for field in fields(model.TaskExecution)} - {*_UNREAD, "status", "lease_expires_at"}


class TaskList(ChangeList):
    """A page of tasks. `older` is the query string of the tasks after those it was chosen from; None: there are none."""

    older: str | None = None
    newest: str | None = None
    """Query string of the beginning of the list; None: this page is the beginning."""
    look = LOOK
    zone = staticmethod(zone)

    def get_filters_params(self, params: Any = None) -> Any:
        """Return the parameters without BEFORE, which is no field."""
        found = super().get_filters_params(params)
        found.pop(BEFORE, None)
        return found

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        found = super().get_queryset(request, exclude_parameters).defer("args", "headers", "result", "last_error")
        found = found.annotate(beginning_of_error=Left("last_error", _ERROR))
        if as_uuid(self.query) is not None:
            return found
        chosen = {spec.parameter_name: spec.value() for spec in self.filter_specs}
        ids, column = self._where_they_are(chosen)
        within: dict[str, UUID] = {}
        if (before := self.params.get(BEFORE)) is not None:
            if (below := as_uuid(before)) is None:
                raise IncorrectLookupParameters(f"{before!r} is no task id")
            within["lt"] = below
            self.newest = self.get_query_string(remove=[BEFORE])
        if (span := chosen.get(CreatedFilter.parameter_name)) in _SPANS:
            within["gte"] = first_id(timezone.now() - _SPANS[span][1])
        newest = ids.filter(**_bounds(column, within)).order_by(f"-{column}").values_list(column, flat=True)
        for last in newest[self.look - 1 : self.look]:
            within["gte"] = last
            self.older = self.get_query_string({BEFORE: str(last)})
        if ids.model is not TaskExecution:
            found = found.filter(pk__in=ids.filter(**_bounds(column, within)).values(column))
        return found.filter(**_bounds("pk", within))

    def get_results(self, request: Any) -> None:
        """Read the page, and give each task its `glance`: its due time, and the reason why it does not run."""
        super().get_results(request)
        self.result_list: list[Any] = list(self.result_list)
        seen = glances(self.root_queryset.db, self.result_list)
        for task in self.result_list:
            task.glance = seen[task.pk]

    def _where_they_are(self, chosen: dict[str, str | None]) -> tuple[Any, str]:
        """Return the rows that select the tasks, and the name of their column with the task's id."""
        database = self.root_queryset.db
        if (batch_id := chosen.get(BatchFilter.parameter_name)) is not None:
            return TaskExecution.objects.using(database).filter(*_in_batch(batch_id)), "id"
        small = _KEPT_APART.get(chosen.get(StatusFilter.parameter_name))
        if small is None:
            return TaskExecution.objects.using(database), "id"
        ids = small.objects.using(database)
        if (queue := chosen.get(QueueFilter.parameter_name)) is not None:
            ids = ids.filter(queue=queue)
        if small is DeadLetter and (name := chosen.get(TaskFilter.parameter_name)) is not None:
            ids = ids.filter(task_name=name)
        return ids, "task_execution_id"


class StatusFilter(SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, _request: Any, _model_admin: Any) -> list[tuple[str, str]]:
        return [(status.value, status.value) for status in TaskStatus]

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(status=_one_of(list(TaskStatus), self.value()))


class KnownFilter(SimpleListFilter):
    """A filter by one of the values in use now, or by any other value in the URL."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        names = set(known(request, model_admin.alias)[self.parameter_name])
        chosen = self.value()
        if chosen is not None:
            if "\0" in chosen:
                raise IncorrectLookupParameters("no name has a NUL")
            names.add(chosen)
        return [(name, plain(name)) for name in sorted(names)]

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(**{self.parameter_name: self.value()})


class BatchFilter(SimpleListFilter):
    """A filter by a batch. The page of a batch links to it; without a batch the list does not offer it."""

    title = "batch"
    parameter_name = "batch"

    def lookups(self, _request: Any, _model_admin: Any) -> list[tuple[str, str]]:
        chosen = self.value()
        return [] if chosen is None else [(chosen, str(_batch_id(chosen)))]

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(*_in_batch(self.value()))


class QueueFilter(KnownFilter):
    title = "queue"
    parameter_name = "queue"


class TaskFilter(KnownFilter):
    title = "task"
    parameter_name = "task_name"


class CreatedFilter(SimpleListFilter):
    """A filter by the time in the id, which is also the order of the list."""

    title = "created"
    parameter_name = "created"

    def lookups(self, _request: Any, _model_admin: Any) -> list[tuple[str, str]]:
        return [(name, label) for name, (label, _) in _SPANS.items()]

    def queryset(self, _request: Any, queryset: Any) -> Any:
        if self.value() is not None:
            _one_of(_SPANS, self.value())
        return queryset  # the list reads from there on


_SPANS = {
    "hour": ("Past hour", timedelta(hours=1)),
    "day": ("Past 24 hours", timedelta(days=1)),
    "week": ("Past 7 days", timedelta(days=7)),
    "month": ("Past 30 days", timedelta(days=30)),
}


def first_id(moment: datetime) -> UUID:
    """The lowest id of an aware moment; before 1970 that of 1970."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def known(request: Any, alias: str) -> dict[str, list[str]]:
    """Queues and task names: those this process registered, and those of the newest tasks, entries and dead letters."""
    if not hasattr(request, "_outboxq_known"):
        pairs = [(task.options.queue, task.name) for task in outboxes[alias].tasks]
        for rows, newest in ((TaskExecution, "-id"), (DeadLetter, "-failed_at")):
            pairs += rows.objects.using(alias).order_by(newest).values_list("queue", "task_name")[:_KNOWN]
        waiting = OutboxEntry.objects.using(alias).order_by("-id").values_list("queue", flat=True)[:_KNOWN]
        queues, names = (
            dict.fromkeys([*(queue for queue, _ in pairs), *waiting]),
            dict.fromkeys(name for _, name in pairs),
        )
        # Two filters ask within one request.
        request._outboxq_known = {"queue": list(queues)[:_CHOICES], "task_name": list(names)[:_CHOICES]}  # noqa: SLF001
    return request._outboxq_known  # noqa: SLF001


def _bounds(column: str, within: dict[str, UUID]) -> dict[str, UUID]:
    return {f"{column}__{operator}": value for operator, value in within.items()}


class Differs(Lookup):
    """The comparison `<>`: as `~Q(…)` writes it, SQLite does not use a partial index."""

    lookup_name = "differs"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        left, of_left = self.process_lhs(compiler, connection)
        right, of_right = self.process_rhs(compiler, connection)
        return f"{left} <> {right}", [*of_left, *of_right]


def _in_batch(batch_id: str | None) -> tuple[Any, ...]:
    """Return the conditions of the tasks of a batch, as the index of tasks that were made together has them."""
    ours = Q(pipeline_execution_id=_batch_id(batch_id))
    return ours, Differs(F("pipeline_execution_id"), F("id"))


def _batch_id(text: str | None) -> UUID:
    if text is None or (found := as_uuid(text)) is None:
        raise IncorrectLookupParameters(f"{text!r} is no id of a batch")
    return found


def _one_of(choices: Iterable[str], value: str | None) -> str:
    if value not in set(choices):
        raise IncorrectLookupParameters(f"{value!r} is no choice")
    return str(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """The reason of one task for the list."""

    reason: str = ""
    due: datetime | None = None
    """The due time of a Ready task."""


def glances(alias: str, rows: Iterable[Any]) -> dict[UUID, Glance]:
    """Return the glance of each of these rows (of the model TaskExecution), by the task's id. A few queries read them all."""
    found = list(rows)
    running = [row.pk for row in found if row.status == TaskStatus.RUNNING]
    leases = TaskLease.objects.using(alias).filter(task_execution_id__in=running)
    ends = dict(leases.values_list("task_execution_id", "lease_expires_at")) if running else {}
    tasks = [_task(row, ends.get(row.pk)) for row in found]
    with transaction.atomic(using=alias, savepoint=False):
        outlooks = outboxes[alias].store.outlooks(tasks, using=alias)
    seen = {
        key: Glance(reason="" if one.reason is Reason.RUNNING else one.reason.words, due=one.due_at)
        for key, one in outlooks.items()
    }
    return {row.pk: seen.get(row.pk, Glance()) for row in found}


def _task(row: Any, lease_ends: datetime | None) -> model.TaskExecution:
    known = {name: getattr(row, name) for name in _READ}
    return model.TaskExecution(status=TaskStatus(row.status), lease_expires_at=lease_ends, **known, **_UNREAD)
