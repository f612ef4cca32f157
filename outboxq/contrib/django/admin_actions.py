"""Actions on tasks in the admin. Each goes through the store, in one transaction of Django."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.views.decorators.http import require_POST

from ...errors import DuplicateTask, InvalidTransition, TaskNotFound
from ...model import TaskStatus
from ...model.wording import plural
from ...store import Store
from .admin_list import as_uuid
from .admin_texts import plain
from .django_outbox import outboxes

_AT_ONCE = 1_000
"""Maximum number of tasks that one request changes."""
_SHOWN = 10
"""Maximum number of refusals that are shown one by one."""


@dataclass(frozen=True, slots=True)
class TaskAction:
    """An action on a task."""

    act: Callable[[Store, UUID, str, object], str]
    """Function that does it. It takes the store, the task's id, the reason and `using`, and returns what it did in words."""
    _: KW_ONLY
    label: str
    """Label in the list."""
    button: str
    """Label of the button on the task's page."""
    permission: str
    """Codename of the permission, without the model's name."""
    statuses: frozenset[TaskStatus]
    """Statuses in which a task's page offers the action. The store decides whether it is allowed."""
    is_for_delayed: bool = False
    """True: the page offers the action only if the task is due later."""

    @property
    def name(self) -> str:
        return self.act.__name__


@partial(
    TaskAction,
    label="Redrive (failed tasks)",
    button="Redrive",
    permission="retry",
    statuses=frozenset({TaskStatus.FAILED}),
)
def retry(store: Store, task_id: UUID, reason: str, using: object) -> str:
    store.redrive(task_id, reason=reason, using=using)
    return "redriven, to run from the first attempt"


@partial(
    TaskAction,
    label="Run now (delayed tasks, and those that wait for a retry)",
    button="Run now",
    permission="retry",
    statuses=frozenset({TaskStatus.READY}),
    is_for_delayed=True,
)
def run_now(store: Store, task_id: UUID, reason: str, using: object) -> str:
    return "due now" if store.run_now(task_id, reason=reason, using=using) else "due already"


@partial(
    TaskAction,
    label="Cancel (running tasks are asked to stop)",
    button="Cancel",
    permission="cancel",
    statuses=frozenset({TaskStatus.READY, TaskStatus.RUNNING}),
)
def cancel(store: Store, task_id: UUID, reason: str, using: object) -> str:
    status = store.cancel(task_id, reason=reason, using=using)
    return "asked to stop, and running until it does" if status is TaskStatus.RUNNING else "cancelled"


@partial(
    TaskAction,
    label="Cancel at once (running tasks too: their workers lose them)",
    button="Cancel at once",
    permission="cancel",
    statuses=frozenset({TaskStatus.RUNNING}),
)
def cancel_now(store: Store, task_id: UUID, reason: str, using: object) -> str:
    store.cancel(task_id, reason=reason, force=True, using=using)
    return "cancelled; the outcome of its worker will be refused"


@partial(
    TaskAction,
    label="Discard (failed tasks)",
    button="Discard",
    permission="discard",
    statuses=frozenset({TaskStatus.FAILED}),
)
def discard(store: Store, task_id: UUID, reason: str, using: object) -> str:
    store.discard(task_id, reason=reason, using=using)
    return "discarded"


ACTIONS = {action.name: action for action in (retry, run_now, cancel, cancel_now, discard)}


def _ticked(action: TaskAction) -> Callable[..., None]:
    """Return the action for the tasks that are ticked in the list."""

    @admin.action(description=action.label, permissions=[action.permission])
    def act(model_admin: ActingAdmin, request: Any, queryset: Any) -> None:
        model_admin.act_on(request, action, queryset)

    act.__name__ = action.name
    return act


class ActingAdmin(admin.ModelAdmin):
    """An admin that offers the actions, in the list and on a task's page, to users with the permission.

    The task's history names the user. Each change is also in Django's own log.
    """

    alias: str
    actions = tuple(map(_ticked, ACTIONS.values()))

    def may(self, request: Any, permission: str) -> bool:
        codename = get_permission_codename(permission, self.opts)
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))

    def has_retry_permission(self, request: Any) -> bool:
        return self.may(request, "retry")

    def has_cancel_permission(self, request: Any) -> bool:
        return self.may(request, "cancel")

    def has_discard_permission(self, request: Any) -> bool:
        return self.may(request, "discard")

    def offered(self, request: Any, task: Any, *, is_delayed: bool = True) -> list[TaskAction]:
        """Return the actions that the user may take on the task now. `is_delayed` False leaves out "run now"."""
        allowed = [one for one in ACTIONS.values() if task.status in one.statuses and self.may(request, one.permission)]
        return [one for one in allowed if is_delayed or not one.is_for_delayed]

    def get_urls(self) -> list[Any]:
        act = self.admin_site.admin_view(require_POST(self.act_view))
        name = f"{self.opts.app_label}_{self.opts.model_name}_act"
        return [path("<uuid:task_id>/act/<slug:action>/", act, name=name), *super().get_urls()]

    def act_view(self, request: Any, task_id: UUID, action: str) -> HttpResponseRedirect:
        """Handle a button on a task's page."""
        chosen = ACTIONS.get(action)
        if chosen is None:
            raise Http404(f"there is no action {action!r}")
        if not (self.has_view_permission(request) and self.may(request, chosen.permission)):
            raise PermissionDenied
        self.act_on(request, chosen, self.get_queryset(request).filter(pk=task_id))
        page = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return HttpResponseRedirect(reverse(page, args=(task_id,), current_app=self.admin_site.name))

    def response_action(self, request: Any, queryset: Any, **where: Any) -> Any:
        """Act on the ticked tasks, even if the list has changed meanwhile."""
        if any(as_uuid(ticked) is None for ticked in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            self.message_user(
                request,
                "The selection contains something other than tasks, so nothing was changed; select tasks in the list.",
                messages.WARNING,
            )
            return None
        if "1" not in request.POST.getlist("select_across"):
            queryset = self.get_queryset(request)
        return super().response_action(request, queryset, **where)

    def act_on(self, request: Any, action: TaskAction, tasks: Any) -> None:
        """Take the action on each task of a query, and show the user the results."""
        done: Counter[str] = Counter()
        refused: list[str] = []
        chosen = list(tasks.only("id", "task_name")[: _AT_ONCE + 1])
        for task in chosen[:_AT_ONCE]:
            try:
                done[self._act(request, action, task)] += 1
            except (DuplicateTask, InvalidTransition, TaskNotFound) as error:
                refused.append(str(error))
        for result, count in done.items():
            whom = f"Task {chosen[0].pk}" if len(chosen) == 1 else f"{count} of {len(chosen[:_AT_ONCE])} tasks"
            self.message_user(request, f"{whom}: {result}.", messages.SUCCESS)
        warnings = [f"{plain(sentence)}." for sentence in refused[:_SHOWN]]
        if len(refused) > _SHOWN:
            left = len(refused) - _SHOWN
            warnings.append(f"{left} {plural(left, 'other was', 'others were')} refused too.")
        if len(chosen) > _AT_ONCE:
            warnings.append(f"Only the first {_AT_ONCE} tasks were changed; repeat the action for the others.")
        if not chosen:
            warnings.append("The task does not exist any more; it may have been pruned.")
        for warning in warnings:
            self.message_user(request, warning, messages.WARNING)

    def _act(self, request: Any, action: TaskAction, task: Any) -> str:
        """Take the action and write Django's log, in the request's transaction or in a separate one."""
        outbox = outboxes[self.alias]
        with outbox.integration.transaction() as transaction:
            result = action.act(outbox.store, task.pk, f"by {request.user.get_username()} in the admin", transaction)
            self.log_change(request, task, f"{action.name}: {result}")
        return result
