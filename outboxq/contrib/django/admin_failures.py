"""Dead letters in Django's admin, grouped by what they have in common, and actions on a group."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST

from ...errors import InvalidArgument
from ...model.wording import plural
from ...store import DeadLetterGroup, Snapshot
from .admin_actions import ActingAdmin
from .admin_texts import local_time, plain
from .django_outbox import outboxes
from .integration import present_transaction

_AT_ONCE = 1_000
"""Maximum number of dead letters that one request changes."""
_PERMISSIONS = {"redrive": "retry", "discard": "discard"}
"""The permission that each action needs, without the model's name."""
_DONE = {"redrive": "redriven", "discard": "discarded"}


class FailuresAdmin(ActingAdmin):
    """An admin of tasks with a page of the groups of dead letters."""

    failures_template = "admin/outboxq/taskexecution/failures.html"
    confirm_template = "admin/outboxq/taskexecution/failures_confirm.html"

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_failures"
        view, act = self.admin_site.admin_view, require_POST(self.group_view)
        return [
            path("failures/", view(self.failures_view), name=name),
            path("failures/<slug:group>/<slug:action>/", view(act), name=f"{name}_act"),
            *super().get_urls(),
        ]

    def failures_view(self, request: Any) -> TemplateResponse:
        """Show the groups of the newest dead letters, the largest first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        with present_transaction(self.alias, mode="DEFERRED") as using:
            found = outboxes[self.alias].store.dead_letters.groups(using=using)
        context = {
            "title": "Failures",
            "groups": [_row(one) for one in found.groups],
            "looked_at": None if found.is_complete else found.looked_at,
            "offered": [name for name, permission in _PERMISSIONS.items() if self.may(request, permission)],
        }
        return self._shown(request, self.failures_template, context)

    def group_view(self, request: Any, group: str, action: str) -> Any:
        """Ask about a group with its number; once that is confirmed, redrive or discard its dead letters."""
        if action not in _PERMISSIONS:
            raise Http404(f"there is no action {action!r}")
        if not (self.has_view_permission(request) and self.may(request, _PERMISSIONS[action])):
            raise PermissionDenied
        outbox = outboxes[self.alias]
        try:
            with present_transaction(self.alias, mode="DEFERRED") as using:
                # The snapshot first: what fails before the groups are read is counted, and left alone.
                now = outbox.store.dead_letters.count(group=group, most=1, using=using).snapshot
                found = outbox.store.dead_letters.groups(limit=1, group=group, using=using).groups
            snapshot = Snapshot.parse(request.POST["snapshot"]) if "snapshot" in request.POST else None
        except InvalidArgument as error:
            raise Http404(str(error)) from None
        if not found:
            self.message_user(request, "There is no dead letter of this group any more.", messages.WARNING)
            return self._back()
        if snapshot is None:
            title = f"{action.capitalize()} {found[0].count} {plural(found[0].count, 'dead letter')}?"
            context = {"title": title, "group": _row(found[0]), "action": action, "snapshot": now}
            return self._shown(request, self.confirm_template, {**context, "at_once": _AT_ONCE})
        self._change(request, found[0], action, snapshot)
        return self._back()

    def _change(self, request: Any, group: DeadLetterGroup, action: str, snapshot: Snapshot) -> None:
        """Redrive or discard those that the question counted, in the request's transaction or in a separate one."""
        outbox, by = outboxes[self.alias], f"by {request.user.get_username()} in the admin"
        with outbox.integration.transaction() as transaction:
            dead_letters = outbox.store.dead_letters
            act = dead_letters.redrive_all if action == "redrive" else dead_letters.discard_all
            changed = act(reason=by, limit=_AT_ONCE, group=group.id, snapshot=snapshot, using=transaction)
            task = self.model._default_manager.using(self.alias).filter(pk=group.newest).first()  # noqa: SLF001 - Django's own name for it
            if changed and task is not None:
                self.log_change(request, task, f"{action}: {changed} {plural(changed, 'dead letter')} of its group")
        more = f" Repeat it for the others: one request changes {_AT_ONCE}." if changed == _AT_ONCE else ""
        level = messages.SUCCESS if changed else messages.WARNING
        noun = plural(changed, "dead letter was", "dead letters were")
        self.message_user(request, f"{changed} {noun} {_DONE[action]}.{more}", level)

    def _shown(self, request: Any, template: str, context: dict[str, Any]) -> TemplateResponse:
        return TemplateResponse(
            request, template, {**self.admin_site.each_context(request), "opts": self.opts, **context}
        )

    def _back(self) -> HttpResponseRedirect:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_failures"
        return HttpResponseRedirect(reverse(name, current_app=self.admin_site.name))


def _row(group: DeadLetterGroup) -> dict[str, Any]:
    return {
        "id": group.id,
        "task": plain(group.task_name),
        "exception": plain(group.exception or ""),
        "message": plain(group.message),
        "count": group.count,
        "first": local_time(group.first_failed_at, with_zone=True),
        "last": local_time(group.last_failed_at, with_zone=True),
        "newest": group.newest,
        "queues": ", ".join(map(plain, group.queues)),
    }
