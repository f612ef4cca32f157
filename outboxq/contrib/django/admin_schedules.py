"""Django's admin of schedules: what they are, their ticks, and actions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from ...errors import InvalidArgument, ScheduleNotFound
from ...model.rules import sentence_of, stands_ahead, zone_of
from ...model.schedules import CatchUp
from ...store import Store
from .admin_queues import in_words
from .admin_texts import local_time, plain
from .django_outbox import outboxes
from .models import TaskExecution

_TICKS = 5
"""Number of ticks that a page shows, of those to come and of the last ones."""

_ROW = (
    (None, {"fields": ("name", "task", "when", "state", "pause_reason", "next_ticks", "last_ticks")}),
    ("Rule", {"fields": ("rule", "tz", "starts", "ends", "stored_by")}),
    ("Ticks", {"fields": ("queue", "priority", "overlap", "caught_up", "grace", "jitter")}),
)


class TaskScheduleAdmin(admin.ModelAdmin):
    """The admin of schedules, for users with the view permission. The actions need the change permission."""

    alias = "default"
    """Alias of the outbox's database in DATABASES."""

    list_display = ("name", "task", "when", "next_tick", "state")
    search_fields = ("name", "task_name")
    ordering = ("name",)
    sortable_by = ("name",)
    actions = ("pause", "resume", "trigger")
    fieldsets = _ROW
    readonly_fields = tuple(field for _, options in _ROW for field in options["fields"])

    def task(self, schedule: Any) -> str:
        return plain(schedule.task_name)

    def when(self, schedule: Any) -> str:
        return plain(sentence_of(schedule))

    def next_tick(self, schedule: Any) -> str:
        return local_time(next(iter(schedule.upcoming), None), with_zone=True)

    @admin.display(description="state")
    def state(self, schedule: Any) -> str:
        if schedule.paused_at is not None:
            return f"paused since {local_time(schedule.paused_at, with_zone=True)}"
        return "planted by a clock that was ahead" if stands_ahead(schedule, timezone.now()) else "open"

    @admin.display(description="next ticks", empty_value="")
    def next_ticks(self, schedule: Any) -> Any:
        """Return the next ticks in the schedule's zone, and in Django's where that is another."""
        found = self._upcoming(schedule, _TICKS)
        zone = zone_of(schedule.tz) if found else None
        there = (f"{one.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}" for one in found)
        lines = ((one, local_time(tick, with_zone=True)) for one, tick in zip(there, found, strict=True))
        return format_html_join("", "<div>{} ({})</div>", lines)

    @admin.display(description="last ticks", empty_value="")
    def last_ticks(self, schedule: Any) -> Any:
        """Return the last ticks that became tasks, with the status of each and a link to it."""
        ticks = outboxes[self.alias].store.schedules.ticks(schedule.name, _TICKS, using=self.alias)
        lines = ((local_time(one.tick, with_zone=True), self._task_link(one)) for one in ticks)
        return format_html_join("", "<div>{}: {}</div>", lines)

    def starts(self, schedule: Any) -> str:
        return local_time(schedule.starts_at, with_zone=True)

    def ends(self, schedule: Any) -> str:
        return local_time(schedule.ends_at, with_zone=True)

    def stored_by(self, schedule: Any) -> str:
        by = schedule.declared_by
        return "a program, at run time" if by is None else f"the code {by}".rstrip()

    @admin.display(description="catch-up")
    def caught_up(self, schedule: Any) -> str:
        limit = f", at most {schedule.catch_up_limit}" if schedule.catch_up == CatchUp.ALL else ""
        return f"{schedule.catch_up}{limit}"

    def grace(self, schedule: Any) -> str:
        return "" if schedule.grace_seconds is None else in_words(schedule.grace_seconds)

    def jitter(self, schedule: Any) -> str:
        return "" if schedule.jitter_seconds is None else in_words(schedule.jitter_seconds)

    def get_queryset(self, request: Any) -> Any:  # noqa: ARG002
        return self.model._default_manager.using(self.alias)  # noqa: SLF001 - Django's own name for it

    def get_changelist_instance(self, request: Any) -> Any:
        """Read the next ticks of all the schedules of a page at once."""
        page = super().get_changelist_instance(request)
        found = list(page.result_list)
        upcoming = outboxes[self.alias].store.schedules.upcoming(found, 1, using=self.alias)
        for schedule in found:
            schedule.upcoming = upcoming[schedule.name]
        page.result_list = found
        return page

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether the user may take the actions. No page of a schedule can be edited."""
        return obj is None and bool(super().has_change_permission(request))

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: Any, queryset: Any) -> None:
        def act(store: Store, name: str, by: str, using: object) -> str:
            store.schedules.pause(name, reason=by, using=using)
            return "paused"

        self._each(request, queryset, act)

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: Any, queryset: Any) -> None:
        def act(store: Store, name: str, _by: str, using: object) -> str:
            store.schedules.resume(name, using=using)
            return "resumed"

        self._each(request, queryset, act)

    @admin.action(description="Trigger (one task now)", permissions=["change"])
    def trigger(self, request: Any, queryset: Any) -> None:
        def act(store: Store, name: str, by: str, using: object) -> str:
            return f"task {store.schedules.trigger(name, by=by, using=using).id} was enqueued"

        self._each(request, queryset, act)

    def _each(self, request: Any, queryset: Any, act: Callable[[Store, str, str, object], str]) -> None:
        outbox, by = outboxes[self.alias], f"by {request.user.get_username()} in the admin"
        for schedule in list(queryset):
            try:
                with outbox.integration.transaction() as transaction:
                    result = act(outbox.store, schedule.name, by, transaction)
                    self.log_change(request, schedule, result)
            except (ScheduleNotFound, InvalidArgument) as error:  # or its rule cannot be read here
                self.message_user(request, f"{plain(str(error))}.", messages.WARNING)
            else:
                self.message_user(request, f"Schedule {plain(schedule.name)}: {result}.", messages.SUCCESS)

    def _upcoming(self, schedule: Any, number: int) -> list[datetime]:
        return outboxes[self.alias].store.schedules.upcoming([schedule], number, using=self.alias)[schedule.name]

    def _task_link(self, tick: Any) -> Any:
        if tick.status is None:
            return "deleted"
        page = f"admin:{TaskExecution._meta.app_label}_{TaskExecution._meta.model_name}_change"  # noqa: SLF001
        try:
            address = reverse(page, args=(tick.task_id,), current_app=self.admin_site.name)
        except NoReverseMatch:  # tasks are not registered in this site
            return tick.status
        return format_html('<a href="{}">{}</a>', address, tick.status)
