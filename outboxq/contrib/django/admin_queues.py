"""Django's admin of queues: pauses, limits, and the order of partition keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages

from ...model.unknown_options import no_queue
from ...store.numbers.queues import Queues
from .admin_texts import local_time, plain
from .django_outbox import outboxes
from .integration import present_transaction

_MOST = 2**31 - 1
_LONGEST = timedelta(days=3650).total_seconds()
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


class QueueForm(forms.ModelForm):
    queue = forms.CharField(max_length=1000, strip=False)
    paused = forms.BooleanField(required=False, help_text="No task of the queue is started. Running tasks go on.")
    concurrency_limit = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=_MOST,
        help_text="Maximum number of tasks that run at once, on all machines together.",
    )
    rate_limit = forms.IntegerField(
        required=False, min_value=1, max_value=_MOST, help_text="Maximum number of starts within rate_seconds."
    )
    rate_seconds = forms.FloatField(required=False, min_value=0.001, max_value=_LONGEST)
    key_concurrency = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=_MOST,
        help_text="Maximum number of tasks of each concurrency key that run at once. Empty: one.",
    )
    key_rate_limit = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=_MOST,
        help_text="Maximum number of starts of each key within key_rate_seconds.",
    )
    key_rate_seconds = forms.FloatField(required=False, min_value=0.001, max_value=_LONGEST)
    fair = forms.BooleanField(
        required=False, initial=True, help_text="Partition keys take turns. Otherwise the task due the longest is next."
    )

    create = forms.BooleanField(
        required=False,
        label="new queue",
        help_text="Set up a queue of which nothing is known yet, before its first task. Otherwise such a name is refused.",
    )

    alias = "default"
    """Alias of the admin's database, which sets it."""

    def __init__(self, *args: Any, instance: Any = None, initial: Any = None, **options: Any) -> None:
        is_paused = instance is not None and instance.paused_at is not None
        super().__init__(*args, instance=instance, initial={"paused": is_paused, **(initial or {})}, **options)

    def clean(self) -> Any:
        cleaned = super().clean()
        for rate in ("rate", "key_rate"):
            starts, seconds = cleaned.get(f"{rate}_limit"), cleaned.get(f"{rate}_seconds")
            if (starts is None) is not (seconds is None) and not self.errors:
                raise forms.ValidationError("A rate needs a number of starts and its seconds; give both, or neither.")
        if (name := cleaned.get("queue")) and not cleaned.get("create"):
            self._ensure_known(name)
        return cleaned

    def _ensure_known(self, name: str) -> None:
        """Refuse a name that may be mistyped, in Django's transaction: it may have just written the queue's first task."""
        with present_transaction(self.alias, mode="DEFERRED") as using:
            queues = outboxes[self.alias].store.queues
            if not queues.is_known(name, using=using):
                known = [one.queue for one in queues.list(using=using)]
                unknown = no_queue(plain(name), known)
                end = "" if unknown.endswith("?") else "."
                self.add_error(
                    "queue", f"T{unknown[1:]}{end} Tick “new queue” to set the queue up before its first task."
                )

    def validate_unique(self) -> None:
        """Accept a queue that has settings already: they are replaced."""


class QueueSettingsAdmin(admin.ModelAdmin):
    """The admin of queues with non-default settings. Add a queue to give it settings."""

    alias = "default"
    """Alias of the outbox's database in DATABASES."""

    form = QueueForm
    fields = (
        "queue",
        "paused",
        "concurrency_limit",
        "rate_limit",
        "rate_seconds",
        "key_concurrency",
        "key_rate_limit",
        "key_rate_seconds",
        "fair",
        "create",
    )
    list_display = ("queue", "paused", "concurrency", "rate", "per_key", "order", "updated")
    search_fields = ("queue",)
    ordering = ("queue",)
    actions = ("pause", "resume")

    @admin.display(description="state")
    def paused(self, settings: Any) -> str:
        """Return the state in words: it is not clear whether a tick means paused or open."""
        at = settings.paused_at
        return "open" if at is None else f"paused since {local_time(at, with_zone=True)}"

    def concurrency(self, settings: Any) -> str:
        limit = settings.concurrency_limit
        return "" if limit is None else str(limit)

    def rate(self, settings: Any) -> str:
        return _rate(settings.rate_limit, settings.rate_seconds)

    def per_key(self, settings: Any) -> str:
        most = settings.key_concurrency
        parts = ["" if most is None else f"{most} at once", _rate(settings.key_rate_limit, settings.key_rate_seconds)]
        return ", ".join(part for part in parts if part)

    def order(self, settings: Any) -> str:
        return "keys take turns" if settings.fair else "due the longest first"

    def updated(self, settings: Any) -> str:
        return local_time(settings.updated_at, with_zone=True)

    def get_fields(self, request: Any, obj: Any = None) -> tuple[str, ...]:
        """Return the fields of the form; for users who may only view, the columns of the list."""
        if self.has_change_permission(request, obj):
            return self.fields if obj is None else tuple(name for name in self.fields if name != "create")
        return ("queue", "paused", "concurrency", "rate", "per_key", "order")

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **options: Any) -> Any:
        form = super().get_form(request, obj, change, **options)
        form.alias = self.alias
        return form

    def get_queryset(self, request: Any) -> Any:  # noqa: ARG002
        return self.model._default_manager.using(self.alias)  # noqa: SLF001 - Django's own name for it

    def get_readonly_fields(self, request: Any, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        return ("queue",) if self.has_change_permission(request, obj) else self.get_fields(request, obj)

    def has_add_permission(self, request: Any) -> bool:
        """Return whether the user may change queues: adding a row is a change of the queue."""
        return bool(self.has_change_permission(request))

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def save_model(self, request: Any, obj: Any, form: Any, change: bool) -> None:  # noqa: ARG002
        given = form.cleaned_data
        rate = None if given["rate_limit"] is None else (given["rate_limit"], given["rate_seconds"])
        key_rate = None if given["key_rate_limit"] is None else (given["key_rate_limit"], given["key_rate_seconds"])
        limits = {"concurrency": given["concurrency_limit"], "rate": rate}
        per_key = {"concurrency_per_key": given["key_concurrency"], "rate_per_key": key_rate}
        outbox = outboxes[self.alias]
        with outbox.integration.transaction() as transaction:
            # The form has refused a name that is not known, and a row that has come to the defaults is gone.
            outbox.store.queues.limit(obj.queue, **limits, **per_key, create=True, using=transaction)
            outbox.store.queues.order(obj.queue, fair=given["fair"], create=True, using=transaction)
            if given["paused"]:
                outbox.store.queues.pause(obj.queue, create=True, using=transaction)
            elif outbox.store.queues.is_known(obj.queue, using=transaction):
                outbox.store.queues.resume(obj.queue, using=transaction)

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, Queues.pause, "paused")

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, Queues.resume, "resumed")

    def _each(self, request: Any, queryset: Any, change: Any, result: str) -> None:
        outbox = outboxes[self.alias]
        for settings in list(queryset):
            with outbox.integration.transaction() as transaction:
                change(outbox.store.queues, settings.queue, using=transaction)
                self.log_change(request, settings, result)
            self.message_user(request, f"Queue {settings.queue}: {result}.", messages.SUCCESS)


def _rate(starts: int | None, seconds: float) -> str:
    return "" if starts is None else f"{starts} in {in_words(seconds)}"


def in_words(seconds: float) -> str:
    """Return a span with its units: 1 h, 1 min 30 s, 0.5 s."""
    parts = []
    for unit, length in _UNITS:
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count:g} {unit}")
    if seconds or not parts:
        parts.append(f"{round(seconds, 3):g} s")
    return " ".join(parts)
