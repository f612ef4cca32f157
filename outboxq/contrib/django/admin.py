"""outboxq in Django's admin: the tasks, what happened to each, and what can be done about it."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.utils.html import format_html

from .admin_actions import ActingAdmin
from .admin_detail import payload, plain, story_of
from .admin_list import CreatedFilter, QueueFilter, StatusFilter, TaskFilter, TaskList, as_uuid
from .admin_queues import QueueSettingsAdmin
from .models import QueueSettings, TaskExecution

_ROW = (
    (None, {"fields": ("id", "state", "name", "queue", "priority", "tries", "error")}),
    (
        "Times",
        {
            "fields": (
                "created_at",
                "first_started_at",
                "started_at",
                "completed_at",
                "retry_at",
                "expires_at",
                "cancel_requested_at",
                "updated_at",
            )
        },
    ),
    (
        "Details",
        {
            "classes": ("collapse",),
            "fields": (
                "pipeline_execution_id",
                "event_type",
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


class TaskExecutionAdmin(ActingAdmin):
    """Tasks, for those who may view them; what is done to one needs a permission of its own.

    Subclass it, and register that instead, to show more or less: see `alias`, `hidden` and `show_arguments`.
    """

    alias = "default"
    """Whose outbox is shown: one of DATABASES."""
    show_arguments = True
    """False: neither arguments nor results are shown."""
    hidden: re.Pattern[str] | None = re.compile(
        r"passw|secret|token|api_?key|credential|cookie|authoriz", re.IGNORECASE
    )
    """Arguments, and members of them at any depth, whose names match are shown as asterisks; None: nothing is hidden.

    What an exception says is shown as it says it.
    """

    list_display = ("id", "name", "queue", "state", "priority", "tries", "due", "created_at", "completed_at")
    list_display_links = ("id",)
    list_filter = (StatusFilter, QueueFilter, TaskFilter, CreatedFilter)
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

    def name(self, task: Any) -> str:
        return plain(task.task_name)

    def state(self, task: Any) -> Any:
        return format_html('<span class="outboxq-status outboxq-{}">{}</span>', task.status.lower(), task.status)

    def tries(self, task: Any) -> str:
        return str(task.attempt) if task.max_attempts is None else f"{task.attempt} of {task.max_attempts}"

    def due(self, task: Any) -> Any:
        return task.available_at

    def error(self, task: Any) -> str:
        return plain(task.last_error or "")

    name.short_description, state.short_description = "task", "status"  # type: ignore[attr-defined]  # Django's decorator for
    tries.short_description, error.short_description = "attempt", "last error"  # type: ignore[attr-defined]  # it has no types
    due.empty_value_display = ""  # type: ignore[attr-defined]

    def get_queryset(self, request: Any) -> Any:  # noqa: ARG002
        """Of our database, without a router's opinion."""
        return self.model._default_manager.using(self.alias)  # noqa: SLF001 - Django's own name for it

    def get_changelist(self, request: Any, **_options: Any) -> type[TaskList]:  # noqa: ARG002
        return TaskList

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        """By id, wherever that is; else by the beginning of the name, among the tasks that are looked at."""
        if not search_term:
            return queryset, False
        if (task_id := as_uuid(search_term)) is not None:
            return queryset.filter(pk=task_id), False
        return queryset.filter(task_name__startswith=search_term), False

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:  # noqa: ARG002
        """Only our filters: any other would read the whole table, and find out arguments that are hidden."""
        return lookup in {one.parameter_name for one in self.list_filter}

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Nobody edits a row: see the actions."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        task_id = as_uuid(object_id)
        story = None if task_id is None or not self.has_view_permission(request) else story_of(self.alias, task_id)
        return super().change_view(request, object_id, form_url, {"story": story, **(extra_context or {})})

    def render_change_form(self, request: Any, context: Any, *args: Any, obj: Any = None, **options: Any) -> Any:
        """With what the row does not say as it is stored."""
        if obj is not None:
            context |= {"offered": self.offered(request, obj), "subtitle": plain(str(obj))}
            if self.show_arguments:
                context |= {"arguments": payload(obj.args, self.hidden), "result": payload(obj.result, self.hidden)}
        return super().render_change_form(request, context, *args, obj=obj, **options)


admin.site.register(TaskExecution, TaskExecutionAdmin)
admin.site.register(QueueSettings, QueueSettingsAdmin)
