"""Django's admin of tasks: the list, a page with the history of each task, and actions."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.timezone import get_current_timezone_name as zone

from ...model import TaskStatus
from ...model.batches import is_batch
from ...model.display import HIDDEN, redacted
from .admin_batches import BatchAdmin
from .admin_detail import story_of
from .admin_failures import FailuresAdmin
from .admin_links import has_pages, page_of, short_id
from .admin_list import BatchFilter, CreatedFilter, QueueFilter, StatusFilter, TaskFilter, TaskList, as_uuid
from .admin_queues import QueueSettingsAdmin
from .admin_schedules import TaskScheduleAdmin
from .admin_texts import local_time, plain
from .models import Batch, QueueSettings, TaskExecution, TaskSchedule

_LINE = 60
"""Number of characters of an error in the list. The tooltip shows more."""

_MOMENTS = ("created", "first_started", "started", "completed", "retry", "expires", "cancel_requested", "updated")
"""Columns `…_at`. Each is a method here, since Django would format the times in another way."""

_ROW = (
    (None, {"fields": ("whole_id", "state", "name", "queue", "priority", "tries", "error")}),
    ("Times", {"fields": _MOMENTS}),
    (
        "Details",
        {
            "classes": ("collapse",),
            "fields": (
                "pipeline_execution_id",
                "topic",
                "partition_key",
                "position",
                "on_dead_letter",
                "recovery_attempts",
                "lease_seconds",
                "timeout_seconds",
                "lease_token",
                "worker_id",
            ),
        },
    ),
)


def _moment(name: str) -> Any:
    """Return the method for one of these columns."""

    @admin.display(description=name.replace("_", " "), empty_value="")
    def moment(_admin: TaskExecutionAdmin, task: Any) -> str:
        return local_time(getattr(task, f"{name}_at"))

    return moment


class TaskExecutionAdmin(FailuresAdmin):
    """The admin of tasks, for users with the view permission. Each action needs a permission of its own.

    To show more or less, register a subclass instead: see `alias`, `hidden` and `show_arguments`.
    """

    alias = "default"
    """Alias of the outbox's database in DATABASES."""
    show_arguments = True
    """False hides arguments and results."""
    hidden: re.Pattern[str] | None = HIDDEN
    """Pattern of the names whose values are shown as asterisks, in arguments and their members at any depth; None hides nothing.

    Messages of exceptions are shown unchanged.
    """

    list_display = (
        "short_id",
        "state",
        "name",
        "queue",
        "now",
        "failure",
        "tries",
        "due",
        "created",
        "completed",
        "batch",
    )
    list_display_links = ("short_id", "name")
    list_filter = (BatchFilter, StatusFilter, QueueFilter, TaskFilter, CreatedFilter)
    search_fields = ("task_name",)
    search_help_text = "A task's id, or the beginning of a task name."
    ordering = ("-id",)
    sortable_by = ()
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "admin/outboxq/taskexecution/change_list.html"
    change_form_template = "admin/outboxq/taskexecution/change_form.html"
    fieldsets = _ROW
    readonly_fields = tuple(field for _, options in _ROW for field in options["fields"])

    @admin.display(description="task")
    def name(self, task: Any) -> str:
        return plain(task.task_name)

    @admin.display(description="status")
    def state(self, task: Any) -> Any:
        return format_html('<span class="outboxq-status outboxq-{}">{}</span>', task.status.lower(), task.status)

    @admin.display(description="attempt")
    def tries(self, task: Any) -> str:
        return str(task.attempt) if task.max_attempts is None else f"{task.attempt} of {task.max_attempts}"

    created, first_started, started, completed, retry, expires, cancel_requested, updated = map(_moment, _MOMENTS)

    @admin.display(description="id")
    def short_id(self, task: Any) -> Any:
        """Return the beginning of the id (its time) and its end (random digits), with the whole id as tooltip."""
        return short_id(task.pk)

    @admin.display(description="id")
    def whole_id(self, task: Any) -> Any:
        """Return the id, which one click selects."""
        return format_html('<code class="outboxq-whole-id">{}</code>', task.pk)

    def due(self, task: Any) -> str:
        """Return the due time. Only the list has this column and the next two."""
        return local_time(task.glance.due)

    def now(self, task: Any) -> str:
        return str(task.glance.reason)

    @admin.display(description="last error")
    def failure(self, task: Any) -> Any:
        """Return the first line of the last error, unless the task has completed."""
        text = "" if task.status == TaskStatus.COMPLETED else plain(task.beginning_of_error or "")
        line = text.partition("\n")[0]
        shown = line if len(line) <= _LINE else f"{line[:_LINE]}…"
        return format_html('<span class="outboxq-error" title="{}">{}</span>', text, shown) if text else ""

    @admin.display(description="batch")
    def batch(self, task: Any) -> Any:
        """Return a link to the task's batch or chain. The list has this column for users who may view batches."""
        if not is_batch(batch_id := task.pipeline_execution_id):
            return ""
        return short_id(batch_id, page_of(self.admin_site, Batch, "change", batch_id))

    @admin.display(description="last error")
    def error(self, task: Any) -> str:
        return plain(task.last_error or "")

    def get_queryset(self, request: Any) -> Any:  # noqa: ARG002
        """Return the tasks of the database `alias`, whatever the routers say."""
        return self.model._default_manager.using(self.alias)  # noqa: SLF001 - Django's own name for it

    def get_list_display(self, request: Any) -> Any:
        """Return the columns: that of batches only if the user may view them here."""
        found = super().get_list_display(request)
        return found if self._has_batches(request) else [column for column in found if column != "batch"]

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Return the fieldsets, with the time zone in the title of the times."""
        found = super().get_fieldsets(request, obj)
        return [(f"{name} ({zone()})" if name == "Times" else name, options) for name, options in found]

    def get_changelist(self, request: Any, **_options: Any) -> type[TaskList]:  # noqa: ARG002
        return TaskList

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        """Search by id among all tasks, or by the beginning of the name among the tasks of the list."""
        if not search_term:
            return queryset, False
        if (task_id := as_uuid(search_term)) is not None:
            return queryset.filter(pk=task_id), False
        return queryset.filter(task_name__startswith=search_term), False

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:  # noqa: ARG002
        """Allow only the filters of this list: any other could read the whole table, or reveal hidden arguments."""
        return lookup in {one.parameter_name for one in self.list_filter}

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Return False: tasks change by actions only."""
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        task_id = as_uuid(object_id)
        story = None if task_id is None or not self.has_view_permission(request) else story_of(self.alias, task_id)
        return super().change_view(request, object_id, form_url, {"story": story, **(extra_context or {})})

    def render_change_form(self, request: Any, context: Any, *args: Any, obj: Any = None, **options: Any) -> Any:
        """Add the history, the arguments and the offered actions to the context of the page."""
        if obj is not None:
            story = context.get("story")
            offered = self.offered(request, obj, is_delayed=story is None or story.is_delayed)
            context |= {"offered": offered, "subtitle": plain(str(obj)), "zone": zone()}
            context |= {"failed_at": local_time(story.dead_letter.failed_at) if story and story.dead_letter else ""}
            if is_batch(obj.pipeline_execution_id) and self._has_batches(request):
                context |= {"batch_address": page_of(self.admin_site, Batch, "change", obj.pipeline_execution_id)}
            if self.show_arguments:
                context |= {"arguments": self._payload(obj.args), "result": self._payload(obj.result)}
        return super().render_change_form(request, context, *args, obj=obj, **options)

    def _has_batches(self, request: Any) -> bool:
        return has_pages(self.admin_site, Batch, self.alias, request)

    def _payload(self, text: str | None) -> str:
        return plain(redacted(text, self.hidden))


admin.site.register(TaskExecution, TaskExecutionAdmin)
admin.site.register(Batch, BatchAdmin)
admin.site.register(QueueSettings, QueueSettingsAdmin)
admin.site.register(TaskSchedule, TaskScheduleAdmin)
