"""The actions of people on one task. Each is one call of the store, and the task's history names the person."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ...errors import DuplicateTask, InvalidArgument, InvalidTransition, TaskNotFound
from ...model import TaskStatus
from ..request import PageRequest, Redirect

_LONGEST_REASON = 500
"""Maximum number of characters of a reason that a person types."""


def cancel(request: PageRequest) -> Redirect:
    """Cancel the task, or ask it to stop if it runs."""

    def act(task_id: UUID, reason: str) -> str:
        if request.store.cancel(task_id, reason=reason) is TaskStatus.RUNNING:
            return "was asked to stop; it runs until its handler agrees"
        return "was cancelled"

    return _done(request, act)


def cancel_now(request: PageRequest) -> Redirect:
    """Cancel the task at once: its worker loses it."""

    def act(task_id: UUID, reason: str) -> str:
        request.store.cancel(task_id, reason=reason, force=True)
        return "was cancelled; the outcome of its worker will be refused"

    return _done(request, act)


def redrive(request: PageRequest) -> Redirect:
    """Redrive the dead letter. With the field `take_key_back`, its idempotency key is taken from the task that has it now."""
    takes_key_back = request.form.get("take_key_back") == "yes"

    def act(task_id: UUID, reason: str) -> str:
        request.store.redrive(task_id, take_key_back=takes_key_back, reason=reason)
        return "was redriven: it is due now, and runs from its first attempt"

    return _done(request, act)


def discard(request: PageRequest) -> Redirect:
    """Give the dead letter up."""

    def act(task_id: UUID, reason: str) -> str:
        request.store.discard(task_id, reason=reason)
        return "was discarded"

    return _done(request, act)


def run_now(request: PageRequest) -> Redirect:
    """Have the waiting task due now."""

    def act(task_id: UUID, reason: str) -> str:
        return "is due now" if request.store.run_now(task_id, reason=reason) else "was due already"

    return _done(request, act)


def prioritize(request: PageRequest) -> Redirect:
    """Give the waiting task another priority."""
    given = request.form.get("priority", "")

    def act(task_id: UUID, reason: str) -> str:
        try:
            priority = int(given)
        except ValueError:
            raise InvalidArgument(f"priority must be a whole number from -100 to 100, not {given!r}") from None
        if not request.store.set_priority(task_id, priority, reason=reason):
            return f"had the priority {priority} already"
        return f"has the priority {priority} now"

    return _done(request, act)


def reason_of(request: PageRequest) -> str:
    """Return the reason for the task's history: what the person typed, and who it is."""
    typed = request.form.get("reason", "").strip()[:_LONGEST_REASON]
    who = f"by {request.viewer.name} in the dashboard" if request.viewer.name else "in the dashboard"
    return f"{typed} ({who})" if typed else who


def _done(request: PageRequest, act: Callable[[UUID, str], str]) -> Redirect:
    """Do it, and return to the page that the form was on. A refusal is a notice there; so is a second click."""
    task_id = request.path["task_id"]
    page = request.url("task", task_id=_page_of(request) or task_id)
    try:
        return Redirect(url=page, notice=f"Task {task_id} {act(task_id, reason_of(request))}.")
    except DuplicateTask as error:
        notice = f"Nothing was done: {error}. Its page can take the key back."
        return Redirect(url=request.url("task", task_id=task_id), notice=notice, is_warning=True)
    except (InvalidTransition, TaskNotFound, InvalidArgument) as error:
        return Redirect(url=page, notice=f"Nothing was done: {error}.", is_warning=True)


def _page_of(request: PageRequest) -> UUID | None:
    """Return the task whose page has the form, where that is another one: a task that waits for this one."""
    try:
        return UUID(request.form.get("back", ""))
    except ValueError:
        return None
