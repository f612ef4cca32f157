"""Django's admin of batches and chains: what they are, what follows them, and their cancelling."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.timezone import get_current_timezone_name as zone
from django.views.decorators.http import require_POST

from ...errors import BatchNotFound, InvalidTransition
from ...model import TaskStatus
from ...model.batches import UNCLOSED, OnFailed
from ...model.batches import Batch as Found
from ...model.wording import plural
from ...store.batches import Batches, already_ended
from .admin_links import has_pages, page_of, short_id
from .admin_list import BEFORE, BatchFilter, StatusFilter, as_uuid
from .admin_texts import local_time, localized, plain
from .django_outbox import outboxes
from .integration import present_transaction
from .models import TaskExecution

_PAGE = 100
"""Maximum number of batches on a page."""
_AT_ONCE = 1_000
"""Maximum number of tasks that one request cancels."""
_OPEN = "open"
"""Value of the query parameter `state` that leaves out the batches that have ended."""

_POLICIES = {
    OnFailed.CONTINUE: "goes on without it",
    OnFailed.WAIT: "waits until it is redriven or discarded",
    OnFailed.CANCEL: "cancels the other tasks",
}
"""The effect of a dead letter, in words."""


class BatchAdmin(admin.ModelAdmin):
    """The admin of batches and chains, for users with the view permission.

    Who may cancel tasks may also cancel those of a batch.
    """

    alias = "default"
    """Alias of the outbox's database in DATABASES."""

    list_template = "admin/outboxq/batch/list.html"
    page_template = "admin/outboxq/batch/page.html"
    confirm_template = "admin/outboxq/batch/confirm.html"

    @property
    def batches(self) -> Batches:
        """The batches of the outbox."""
        return outboxes[self.alias].store.batches

    def get_urls(self) -> list[Any]:
        act = self.admin_site.admin_view(require_POST(self.cancel_view))
        name = f"{self.opts.app_label}_{self.opts.model_name}_cancel"
        return [path("<uuid:batch_id>/cancel/", act, name=name), *super().get_urls()]

    def get_queryset(self, request: Any) -> Any:  # noqa: ARG002
        return self.model._default_manager.using(self.alias)  # noqa: SLF001 - Django's own name for it

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:  # noqa: ARG002
        """Return the row for Django's own pages; None if it is not there."""
        found = self._find(as_uuid(object_id))
        return None if found is None else self.model(pk=found.id)

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Return False: batches change through their tasks."""
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def has_cancel_permission(self, request: Any) -> bool:
        """Return whether the user may see batches and cancel tasks."""
        tasks = TaskExecution._meta  # noqa: SLF001 - Django's public name for it
        codename = get_permission_codename("cancel", tasks)
        may = bool(request.user.has_perm(f"{tasks.app_label}.{codename}"))
        return may and bool(self.has_view_permission(request))

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show the newest batches, or those before a given one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if asked := request.GET.get("q", "").strip():
            if (batch_id := as_uuid(asked)) is not None:
                return self._go("change", batch_id)
            return self._back(request, "Search for the whole id of a batch; its name is not searched.")
        only_open, before = request.GET.get("state") == _OPEN, request.GET.get(BEFORE)
        below = None if before is None else as_uuid(before)
        if before is not None and below is None:
            return self._back(request, f"{plain(before)} is not the id of a batch.")
        context: dict[str, Any] = {"title": self.opts.verbose_name_plural.capitalize(), "zone": zone()}
        with present_transaction(self.alias, mode="DEFERRED") as using:
            found = self.batches.list(limit=_PAGE + 1, before=below, only_open=only_open, using=using)
        state = {"state": _OPEN} if only_open else {}
        more = {BEFORE: found[_PAGE - 1].id, **state} if len(found) > _PAGE else None
        context |= {
            "batches": [self._row(one) for one in found[:_PAGE]],
            "only_open": only_open,
            "older": None if more is None else self._address("changelist", **more),
            "newest": None if below is None else self._address("changelist", **state),
            "open_ones": self._address("changelist", state=_OPEN),
        }
        return self._shown(request, self.list_template, context, extra_context)

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:  # noqa: ARG002
        """Show a batch with its counts, and with what follows it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = self._find(as_uuid(object_id))
        if found is None:
            return self._gone(request, object_id)
        context = {
            "title": plain(found.name or f"{found.kind.capitalize()} {found.id}"),
            "batch": {**self._row(found), "policy": _POLICIES[found.on_failed]},
            "then": list(self._then(request, found)),
            "may_cancel": found.completed_at is None and self.has_cancel_permission(request),
            "unclosed": UNCLOSED,
            "zone": zone(),
            **self._tasks_of(request, found),
        }
        return self._shown(request, self.page_template, context, extra_context)

    def cancel_view(self, request: Any, batch_id: UUID) -> Any:
        """Ask, with the number of tasks; once that is confirmed, cancel them."""
        if not self.has_cancel_permission(request):
            raise PermissionDenied
        found = self._find(batch_id)
        if found is None:
            return self._gone(request, str(batch_id))
        if found.completed_at is not None:
            self._refuse(request, already_ended(found))
            return self._go("change", batch_id)
        if "confirmed" not in request.POST:
            title = f"Cancel the {found.kind}?"
            context = {"title": title, "batch": self._row(found), "then": found.then_names, "at_once": _AT_ONCE}
            return self._shown(request, self.confirm_template, context)
        self._cancel(request, found)
        return self._go("change", batch_id)

    def _cancel(self, request: Any, found: Found) -> None:
        """Cancel and write Django's log, in the request's transaction or in a separate one."""
        by = f"by {request.user.get_username()} in the admin"
        with outboxes[self.alias].integration.transaction() as transaction:
            try:
                number = self.batches.cancel(found.id, reason=by, limit=_AT_ONCE, using=transaction)
            except InvalidTransition as error:
                self._refuse(request, error)
                return
            self.log_change(request, self.model(pk=found.id), f"cancel: {number} {plural(number, 'task')}")
        more = " Workers cancel the others." if number == _AT_ONCE else ""
        tasks = plural(number, "task"), plural(number, "was", "were")
        text = (
            f"{number} {tasks[0]} of the {found.kind} {tasks[1]} cancelled or asked to stop. Nothing follows it.{more}"
        )
        self.message_user(request, text, messages.SUCCESS)

    def _refuse(self, request: Any, error: InvalidTransition) -> None:
        words = localized(plain(str(error)))
        self.message_user(request, f"{words[:1].upper()}{words[1:]}.", messages.WARNING)

    def _find(self, batch_id: UUID | None) -> Found | None:
        if batch_id is None:
            return None
        try:
            with present_transaction(self.alias, mode="DEFERRED") as using:
                return self.batches.get(batch_id, using=using)
        except BatchNotFound:
            return None

    def _row(self, found: Found) -> dict[str, Any]:
        address = self._address("change", found.id)
        return {
            "id": found.id,
            "link": short_id(found.id, address),
            "name": plain(found.name or ""),
            "kind": found.kind,
            "status": found.status,
            "size": found.size,
            "pending": found.pending,
            "awaited": found.awaited,
            "completed": found.completed,
            "failed": found.failed,
            "cancelled": found.cancelled,
            "created_at": local_time(found.created_at),
            "completed_at": local_time(found.completed_at),
        }

    def _then(self, request: Any, found: Found) -> Any:
        """Yield the name of each task that follows, and its address once it is enqueued."""
        has_tasks = has_pages(self.admin_site, TaskExecution, self.alias, request)
        for place, (task_id, name) in enumerate(zip(found.then_ids, found.then_names, strict=True)):
            is_enqueued = place < found.stage
            address = page_of(self.admin_site, TaskExecution, "change", task_id) if is_enqueued and has_tasks else ""
            yield {"name": plain(name), "address": address, "is_enqueued": is_enqueued}

    def _tasks_of(self, request: Any, found: Found) -> dict[str, Any]:
        """Return the addresses of the list of its tasks: of all, and of those with each status."""
        if not has_pages(self.admin_site, TaskExecution, self.alias, request):
            return {}
        of_it = {BatchFilter.parameter_name: found.id}
        statuses = [
            (
                status,
                page_of(self.admin_site, TaskExecution, "changelist", **of_it, **{StatusFilter.parameter_name: status}),
            )
            for status in TaskStatus
        ]
        return {"tasks": page_of(self.admin_site, TaskExecution, "changelist", **of_it), "statuses": statuses}

    def _address(self, page: str, *args: object, **query: object) -> str:
        return page_of(self.admin_site, self.model, page, *args, **query)

    def _shown(self, request: Any, template: str, context: dict[str, Any], extra: Any = None) -> TemplateResponse:
        shown = {**self.admin_site.each_context(request), "opts": self.opts, **context, **(extra or {})}
        return TemplateResponse(request, template, shown)

    def _go(self, page: str, *args: object) -> HttpResponseRedirect:
        return HttpResponseRedirect(self._address(page, *args))

    def _back(self, request: Any, text: str) -> HttpResponseRedirect:
        self.message_user(request, text, messages.WARNING)
        return self._go("changelist")

    def _gone(self, request: Any, object_id: str) -> HttpResponseRedirect:
        return self._back(request, f"There is no batch {plain(object_id)}. A batch goes once its tasks are pruned.")
