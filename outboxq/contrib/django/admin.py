"""The Django admin for an outbox: its tasks, dead letters and schedules. The mounted dashboard shows everything else.

Lists contain only the newest rows, so the cost of a page does not depend on the size of the table. Forms cannot change
rows. The actions in the lists change rows through the store.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import OuterRef, Subquery
from django.db.models.functions import Left
from django.http import HttpResponse
from django.utils import timezone
from django.utils.html import format_html

from ...errors import DuplicateTask, InvalidArgument, InvalidTransition, ScheduleNotFound, SchemaOutOfDate, TaskNotFound
from ...model import TaskStatus
from ...model.actions import Interface, Operator
from ...model.display import HIDDEN, redacted
from ...model.rules import sentence_of, stands_ahead
from ...model.wording import plain_text, plural, sentence
from ...operating.fields import LONGEST_REASON
from ...operating.verb import Noun, Outcome, State, Verb
from ...operating.verbs import REMOVE, VERBS
from .dashboard import VIEW, page_of, permission_of
from .django_outbox import outboxes
from .integration import present_transaction
from .models import DeadLetter, OutboxEntry, TaskExecution, TaskLease, TaskSchedule

NEWEST = 10_000
"""The maximum number of rows, newest first, that a list's pages show."""
AT_ONCE = 1_000
"""The maximum number of rows that one request changes."""
_NAMED = 1_000
"""The number of newest rows whose names a filter offers."""
_CHOICES = 100
_REFUSALS = 10
"""The maximum number of refusals that are shown individually."""
_ERROR = 2_000
"""The maximum number of characters of each error that are read for the list of dead letters."""

_SOURCES: Mapping[str, Any] = {
    TaskStatus.READY: OutboxEntry,
    TaskStatus.RUNNING: TaskLease,
    TaskStatus.FAILED: DeadLetter,
}
"""The tables that contain only the tasks with one status."""
_ASKED_FOR = {"reason"}
_LEFT_OUT = {"force", "take_key_back"}
"""The verb fields that the admin asks for, and those that it omits. The admin offers only verbs that have no other
fields.
"""


def _verbs(noun: Noun, *states: State) -> tuple[Verb, ...]:
    """Return the verbs that need no values and are offered in at least one of these states."""
    simple = (
        one for one in VERBS if one.noun is noun and {field.name for field in one.fields} <= _ASKED_FOR | _LEFT_OUT
    )
    return tuple(one for one in simple if any(map(one.offered, states)) and one is not REMOVE)


def _action(verb: Verb) -> Callable[..., None]:
    """Return the verb as a Django action."""

    @admin.action(description=verb.label)
    def act(shown: OutboxAdmin, request: Any, rows: Any) -> None:
        shown.act_on(request, verb, rows)

    act.__name__ = verb.key
    return act


def _columns(*names: str) -> tuple[Callable[[Any], str], ...]:
    """Return page fields that show these columns: times in Django's active time zone, everything else as plain text."""
    return tuple(map(_column, names))


def _column(column: str) -> Callable[[Any], str]:
    label = column.removesuffix("_at").removesuffix("_name").replace("_", " ")

    @admin.display(description=label, empty_value="")
    def shown(row: Any) -> str:
        value = getattr(row, column)
        return local_time(value) if isinstance(value, datetime) else plain_text(value)

    shown.__name__ = column
    return shown


class NewestRows(ChangeList):
    """A list of the newest rows. Searching for an id finds any row."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        found = super().get_queryset(request, exclude_parameters)
        chosen = {spec.parameter_name: spec.value() for spec in self.filter_specs}
        return found if _as_uuid(self.query) is not None else self.model_admin.newest(found, chosen)


class NameFilter(admin.SimpleListFilter):
    """A filter that offers the names in the newest rows, and accepts any other name in the URL."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        rows = model_admin.get_queryset(request).order_by(*model_admin.ordering)
        names = sorted(set(rows.values_list(self.parameter_name, flat=True)[:_NAMED]))[:_CHOICES]
        if (chosen := self.value()) is not None and chosen not in names:
            if "\0" in chosen:
                raise IncorrectLookupParameters("a name must not contain NUL")
            names.append(chosen)
        return [(name, plain_text(name)) for name in names]

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(**{self.parameter_name: self.value()})


def _filter(title: str, parameter_name: str, choices: list[tuple[str, str]] | None = None) -> type[NameFilter]:
    """Return a filter by a column. If `choices` is None, the filter offers the names in the newest rows."""
    values: dict[str, Any] = {"title": title, "parameter_name": parameter_name}
    if choices is not None:
        values["lookups"] = lambda *_: choices
    return type(f"{title.title()}Filter", (NameFilter,), values)


QueueFilter, TaskFilter = _filter("queue", "queue"), _filter("task", "task_name")
StatusFilter = _filter("status", "status", [(status.value, status.value) for status in TaskStatus])


class ReasonedAction(ActionForm):
    """The form above a list: the action, and the reason to record."""

    reason = forms.CharField(
        required=False, label="Reason:", widget=forms.TextInput({"maxlength": LONGEST_REASON, "size": 30})
    )


class OutboxAdmin(admin.ModelAdmin):
    """The admin for one kind of row. Users need the view permission, and a separate permission for each action.

    The history of a task or schedule records which user changed it. Each change is also written to Django's own log.
    """

    alias = "default"
    """The alias of the outbox's database in DATABASES."""
    noun: ClassVar[str]
    verbs: ClassVar[tuple[Verb, ...]]
    dashboard_page: ClassVar[str]
    """The dashboard page that shows all rows."""
    redact: ClassVar[Callable[[str], str] | None] = None
    """A function that takes a string and returns it without its sensitive parts. The function is applied to arguments,
    results and errors.
    """

    action_form = ReasonedAction
    sortable_by = ()
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    def get_queryset(self, request: Any) -> Any:  # noqa: ARG002
        """Return the rows in the database `alias`, regardless of the routers."""
        return self.model._default_manager.using(self.alias)  # noqa: SLF001 - Django's own name for it

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:  # noqa: ARG002
        """Allow only the list's filters. Other lookups could read the whole table, or reveal hidden arguments."""
        return lookup in {one.parameter_name for one in self.list_filter}

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Return False, because rows are changed only by actions."""
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def get_actions(self, request: Any, action_location: Any = None) -> Any:
        """Return the actions that the user is permitted to take. Only Django 6.1 and later pass the location of the
        actions.
        """
        missing = {verb.key for verb in self.verbs if not request.user.has_perm(permission_of(verb))}
        location = {} if action_location is None else {"action_location": action_location}
        return {name: one for name, one in super().get_actions(request, **location).items() if name not in missing}

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        if (missing := self._without_tables()) is not None:
            return missing
        address = self._in_dashboard(request, self.dashboard_page)
        return super().changelist_view(request, {"dashboard": address, **(extra_context or {})})

    def changeform_view(self, request: Any, *where: Any, **options: Any) -> Any:
        return self._without_tables() or super().changeform_view(request, *where, **options)

    def history_view(self, request: Any, *where: Any, **options: Any) -> Any:
        return self._without_tables() or super().history_view(request, *where, **options)

    def _without_tables(self) -> HttpResponse | None:
        """Return a response that names the command to run, if the tables are missing or are incompatible with this
        release.
        """
        try:
            with present_transaction(self.alias, mode="DEFERRED") as using:
                outboxes[self.alias].store.join(using)
        except SchemaOutOfDate as error:
            return HttpResponse(f"{sentence(str(error))}.\n", "text/plain; charset=utf-8", 503)
        return None

    def private(self, text: str | None) -> str:
        """Return a string as users may see it; "" for None."""
        redact = type(self).redact  # self.redact would be a method
        return plain_text(redact(text) if redact is not None and text else text or "")

    def render_change_form(self, request: Any, context: Any, *args: Any, obj: Any = None, **options: Any) -> Any:
        if obj is not None:
            address = self._in_dashboard(request, *self.place_of(obj))
            context |= {"subtitle": plain_text(str(obj)), "dashboard": address}
        return super().render_change_form(request, context, *args, obj=obj, **options)

    def place_of(self, row: Any) -> tuple[str, Mapping[str, str]]:
        """Return the dashboard page that shows the row, and its query parameters."""
        return f"tasks/{row.pk}", {}

    def response_action(self, request: Any, queryset: Any, **where: Any) -> Any:
        """Act on the selected rows, even if the list has changed in the meantime."""
        if "1" not in request.POST.getlist("select_across"):
            queryset = self.get_queryset(request)
        try:
            return super().response_action(request, queryset, **where)
        except ValidationError:  # one of the keys is not a UUID
            self.message_user(request, "The selection contains no valid row, so nothing was changed.", messages.WARNING)
            return None

    def act_on(self, request: Any, verb: Verb, rows: Any) -> None:
        """Apply the verb to each row of a query, and show the user the results."""
        reason = request.POST.get("reason", "").strip()[:LONGEST_REASON]
        chosen = list(rows[: AT_ONCE + 1])
        done, refused = list[Outcome](), list[str]()
        for row in chosen[:AT_ONCE]:
            try:
                done.append(self._act(request, verb, row, reason))
            except (DuplicateTask, InvalidArgument, InvalidTransition, ScheduleNotFound, TaskNotFound) as error:
                refused.append(str(error))
        for (predicate, is_change), number in Counter((one.of_many, bool(one.changes)) for one in done).items():
            several = f"{number} of {len(chosen[:AT_ONCE])} {self.noun}s {predicate}"
            words = several if number > 1 else next(one.sentence for one in done if one.of_many == predicate)
            self._tell(request, words, messages.SUCCESS if is_change else messages.INFO)
        warnings = refused[:_REFUSALS]
        if (left := len(refused) - _REFUSALS) > 0:
            warnings.append(f"{left} {plural(left, 'other was', 'others were')} refused too")
        if len(chosen) > AT_ONCE:
            warnings.append(f"only the first {AT_ONCE} {self.noun}s were changed; repeat the action for the others")
        if not chosen:
            warnings.append(f"the {self.noun} no longer exists")
        for warning in warnings:
            self._tell(request, warning, messages.WARNING)

    def _tell(self, request: Any, words: str, level: int) -> None:
        self.message_user(request, f"{sentence(plain_text(words))}.", level)

    def _act(self, request: Any, verb: Verb, row: Any, reason: str) -> Outcome:
        """Change the row and write to Django's log, in the request's transaction or in a separate one."""
        outbox = outboxes[self.alias]
        operator = Operator(interface=Interface.ADMIN, name=request.user.get_username())
        with outbox.integration.transaction() as transaction:
            outcome = verb.do(outbox.store, row.pk, operator=operator, reason=reason, using=transaction)
            if outcome.changes:
                self.log_change(request, row, outcome.sentence)
        return outcome

    def _in_dashboard(self, request: Any, page: str, query: Mapping[str, str] | None = None) -> str | None:
        """Return the URL of a dashboard page; None if the dashboard is not mounted, or if the user may not see it."""
        address = page_of(page, self.alias) if request.user.has_perm(VIEW) else None
        return f"{address}?{urlencode(query)}" if address and query else address


class NewestAdmin(OutboxAdmin):
    """The admin for a table with a task name in each row. The table may have millions of rows."""

    search_fields = ("task_name",)
    search_help_text = (
        f"Search for a complete task id, or for the beginning of a task name (newest {NEWEST:,} rows only)."
    )

    def get_changelist(self, request: Any, **_options: Any) -> type[ChangeList]:  # noqa: ARG002
        return NewestRows

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        """Search all rows by id, or the listed rows by the beginning of the task name."""
        if (task_id := _as_uuid(search_term)) is not None:
            return queryset.filter(pk=task_id), False
        return queryset.filter(task_name__startswith=search_term) if search_term else queryset, False


class TaskExecutionAdmin(NewestAdmin):
    """The admin for tasks. To change what this admin shows, register a subclass that sets `alias`, `hidden` or
    `show_arguments`.
    """

    noun, dashboard_page = "task", "tasks"
    show_arguments = True
    """False hides arguments and results."""
    hidden: re.Pattern[str] | None = HIDDEN
    """The pattern for the names whose values are shown as asterisks, at any depth of the arguments; None if all values
    are shown.

    Exception messages are shown unchanged, unless there is a `redact`.
    """

    ordering = ("-id",)
    list_display = _columns("task_name", "status", "queue", "attempt", "created_at", "completed_at", "id")
    list_filter = (StatusFilter, QueueFilter, TaskFilter)
    fields = (
        *_columns("id", "task_name", "status"),
        "now",
        "error",
        "arguments",
        "returned",
        *_columns("queue", "priority", "attempt", "max_attempts", "recovery_attempts", "topic", "partition_key"),
        *_columns("created_at", "first_started_at", "started_at", "completed_at", "retry_at", "expires_at"),
        *_columns("worker_id", "lease_token", "pipeline_execution_id"),
    )
    verbs = _verbs(Noun.TASK, State(status=TaskStatus.READY), State(status=TaskStatus.RUNNING))
    actions = tuple(map(_action, verbs))

    def now(self, task: Any) -> str:
        """Return why the task is not running, or what it is doing."""
        with suppress(TaskNotFound), present_transaction(self.alias, mode="DEFERRED") as using:
            return self.private(outboxes[self.alias].store.explain(task.pk, using=using).sentence)
        return ""

    @admin.display(description="last error", empty_value="")
    def error(self, task: Any) -> str:
        return self.private(task.last_error)

    def arguments(self, task: Any) -> Any:
        return _written(self.private(redacted(task.args, self.hidden)))

    @admin.display(description="result")
    def returned(self, task: Any) -> Any:
        return _written(self.private(redacted(task.result, self.hidden)))

    def get_queryset(self, request: Any) -> Any:
        """Return the tasks without the long columns, which a list does not show."""
        return super().get_queryset(request).defer("args", "headers", "result", "last_error")

    def get_fields(self, request: Any, obj: Any = None) -> list[Any]:
        hidden = () if self.show_arguments else ("arguments", "returned")
        return [name for name in super().get_fields(request, obj) if name not in hidden]

    def newest(self, found: Any, chosen: Mapping[str, str | None]) -> Any:
        """Return the listed rows that are among the newest tasks. If the chosen status has a separate table, read that
        table.
        """
        source = _SOURCES.get(chosen["status"] or "")
        if source is None:
            return found.filter(**_since("id", TaskExecution.objects.using(self.alias)))
        rows = source.objects.using(self.alias)
        if chosen["queue"] is not None:
            rows = rows.filter(queue=chosen["queue"])
        column = "task_execution_id"
        return found.filter(pk__in=rows.filter(**_since(column, rows)).values(column))


class DeadLetterAdmin(NewestAdmin):
    """The admin for tasks that have failed permanently."""

    noun, dashboard_page = "dead letter", "failures"
    ordering = ("-failed_at", "-task_execution_id")
    list_display = (*_columns("task_name"), "first_line", *_columns("queue", "failed_at", "task_execution_id"))
    list_filter = (QueueFilter, TaskFilter)
    fields = (
        *_columns("task_execution_id", "task_name", "exception"),
        "message",
        *_columns("failed_at", "queue", "topic", "partition_key"),
    )
    verbs = _verbs(Noun.TASK, State(status=TaskStatus.FAILED))
    actions = tuple(map(_action, verbs))

    @admin.display(description="error", empty_value="")
    def message(self, dead_letter: Any) -> str:
        return self.private(dead_letter.error)

    @admin.display(description="error")
    def first_line(self, dead_letter: Any) -> str:
        return self.private(dead_letter.error).partition("\n")[0][:100]

    def get_queryset(self, request: Any) -> Any:
        """Return the dead letters, each with the beginning of its error."""
        tasks = TaskExecution.objects.using(self.alias).filter(pk=OuterRef("pk"))
        return super().get_queryset(request).annotate(error=Subquery(tasks.values(text=Left("last_error", _ERROR))))

    def newest(self, found: Any, _chosen: Mapping[str, str | None]) -> Any:
        return found.filter(**_since("failed_at", DeadLetter.objects.using(self.alias)))

    def log_change(self, request: Any, obj: Any, message: Any) -> Any:
        """Write the change to the task's log, because the task outlives its dead letter."""
        return super().log_change(request, TaskExecution(pk=obj.pk, task_name=obj.task_name), message)


class TaskScheduleAdmin(OutboxAdmin):
    """The admin for schedules. This admin does not show the schedules' arguments."""

    noun, dashboard_page = "schedule", "schedules"
    search_fields = ("name", "task_name")
    ordering = ("name",)
    list_display = (*_columns("name", "task_name"), "when", *_columns("next_tick"), "state")
    fields = (
        *list_display,
        *_columns("pause_reason", "rule", "tz", "starts_at", "ends_at", "declared_by", "queue", "priority"),
        *_columns("overlap", "catch_up", "grace_seconds", "jitter_seconds"),
    )
    verbs = _verbs(Noun.SCHEDULE, State(), State(is_paused=True))
    actions = tuple(map(_action, verbs))

    def when(self, schedule: Any) -> str:
        return plain_text(sentence_of(schedule))

    def state(self, schedule: Any) -> str:
        if schedule.paused_at is not None:
            return f"paused since {local_time(schedule.paused_at)}"
        return "planted by a clock that was running fast" if stands_ahead(schedule, timezone.now()) else "open"

    def get_changelist_instance(self, request: Any) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = self._with_next_ticks(page.result_list)
        return page

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        return found and self._with_next_ticks([found])[0]

    def place_of(self, row: Any) -> tuple[str, Mapping[str, str]]:
        return "schedule", {"name": row.name}

    def _with_next_ticks(self, schedules: Iterable[Any]) -> list[Any]:
        """Return the schedules with their next ticks, which are read in one call."""
        found = list(schedules)
        with present_transaction(self.alias, mode="DEFERRED") as using:
            upcoming = outboxes[self.alias].store.schedules.upcoming(found, 1, using=using)
        for schedule in found:
            schedule.next_tick = next(iter(upcoming[schedule.name]), None)
        return found


admin.site.register(TaskExecution, TaskExecutionAdmin)
admin.site.register(DeadLetter, DeadLetterAdmin)
admin.site.register(TaskSchedule, TaskScheduleAdmin)


def local_time(moment: datetime | None) -> str:
    """Format an aware datetime in Django's active time zone, followed by the zone's name. Return "" for None."""
    if moment is None:
        return ""
    try:
        here = moment.astimezone(timezone.get_current_timezone())
    except OverflowError:  # at the end of the calendar
        return moment.isoformat(" ", "seconds")
    return f"{here.replace(tzinfo=None).isoformat(' ', 'seconds')} {here.tzname()}"


def _written(text: str) -> Any:
    """Return plain JSON, keeping its line breaks and indentation. If a Content-Security-Policy forbids the inline
    style, long lines are not wrapped.
    """
    return text and format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', text)


def _since(column: str, rows: Any) -> dict[str, Any]:
    """Return a condition on an indexed column that selects the newest of these rows."""
    last = rows.order_by(f"-{column}").values_list(column, flat=True)[NEWEST - 1 : NEWEST]
    return {f"{column}__gte": one for one in last}


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None
