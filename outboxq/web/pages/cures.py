"""Cures of problems as pages offer them: a button or a link where the dashboard can help, and always the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from ...integration.front_end import FrontEnd
from ...store import Cure
from ..request import PageRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A cure on a page."""

    purpose: str
    command: str
    """The line to type in a shell."""
    href: str | None = None
    """The page where it can be done; None: there is none."""
    action: str | None = None
    """The URL that the button's form is sent to; None: the cure is no button, or the viewer may not act."""
    fields: Mapping[str, str]
    """The fields of that form."""


def offers(request: PageRequest, cures: tuple[Cure, ...]) -> list[Offer]:
    """Return what the page offers for each cure."""
    return [_offer(request, cure) for cure in cures]


def _offer(request: PageRequest, cure: Cure) -> Offer:
    group, *words = cure.command
    href, action, fields = None, None, dict[str, str]()
    if (found := _PAGES.get(group)) is not None:
        href = found(request, words)
    if (route := _ACTIONS.get(cure.command[:2])) is not None and request.viewer.may_act and len(cure.command) > 2:
        action, fields = request.url(route), {"name": cure.command[2]}
    typed = FrontEnd().typed(cure.command)
    return Offer(purpose=cure.purpose, command=typed, href=href, action=action, fields=fields)


def _queue(request: PageRequest, words: list[str]) -> str:
    return request.url("queue", name=words[1]) if len(words) > 1 else request.url("queues")


def _schedule(request: PageRequest, words: list[str]) -> str:
    return request.url("schedule", name=words[1]) if len(words) > 1 else request.url("schedules")


def _task(request: PageRequest, words: list[str]) -> str | None:
    try:
        return request.url("task", task_id=UUID(words[-1] if words[-1][:1] != "-" else words[1]))
    except (ValueError, IndexError):
        return request.url("tasks") if words[:1] == ["list"] else None


def _failed(request: PageRequest, words: list[str]) -> str:
    return _task(request, words) or request.url("failures")


_PAGES: Mapping[str, Callable[[PageRequest, list[str]], str | None]] = {
    "queue": _queue,
    "schedule": _schedule,
    "task": _task,
    "failed": _failed,
}
"""The page that a command of each group has beside it."""
_ACTIONS: Mapping[tuple[str, ...], str] = {
    ("queue", "resume"): "queue_resume",
    ("schedule", "resume"): "schedule_resume",
}
"""The commands that are a button: an action that takes a name and can be undone."""
