"""Cures of problems as pages offer them: a button or a link where the dashboard can help, and always the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from ...operating.verbs import Noun, Target, Verb, verb_of
from ...store import Cure
from ..request import PageRequest, View
from .actions import url_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A cure on a page."""

    purpose: str
    command: str
    """The line to type in a shell."""
    href: str | None = None
    """The page where it can be done; None: there is none, or it is the page that is shown."""
    action: str | None = None
    """The URL that the button's form is sent to; None: the cure is no button, or the viewer may not act."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The fields of that form."""
    is_final: bool = False
    """True: what the cure does cannot be undone."""


def offers(request: PageRequest, cures: Iterable[Cure], *, with_final: bool = False) -> list[Offer]:
    """Return what the page offers for each cure. `with_final`: also as a button what cannot be undone; else it is a link."""
    return [_offer(request, cure, with_final=with_final) for cure in cures]


def unfound(
    title: str,
    sentence: str,
    *,
    task_id: UUID | None = None,
    several: Sequence[UUID] = (),
    first: UUID | None = None,
    offered: Sequence[Offer] = (),
    data: object = None,
    status: int = 404,
) -> View:
    """Return the page. It links to `several` tasks that may be meant, and leads to the `first` task that is to be dealt with."""
    values = {"sentence": sentence, "task_id": task_id, "several": several, "first": first, "offers": offered}
    return View(template="unfound.html", title=title, values=values, data=data, status=status)


def _offer(request: PageRequest, cure: Cure, *, with_final: bool) -> Offer:
    group, *words = cure.command
    find, verb = _PAGES.get(group), verb_of(cure.command)
    is_final = verb is not None and verb.is_final
    may = request.viewer.may_act and (with_final or not is_final)
    action, fields = _button(request, cure, verb) if may else (None, {})
    href = None if find is None else find(request, words)
    return Offer(
        purpose=cure.purpose,
        command=request.outbox.integration.front_end.typed(cure.command),
        href=None if href == _here(request) else href,
        action=action,
        fields=fields,
        is_final=is_final,
    )


def _button(request: PageRequest, cure: Cure, verb: Verb | None) -> tuple[str | None, Mapping[str, str]]:
    """Return where the form of a button is sent, and its fields. The verbs of a batch have no button here but a page."""
    if verb is None or verb.noun is Noun.BATCH or len(cure.command) < 3:
        return None, {}
    target: Target = UUID(cure.command[2]) if verb.noun is Noun.TASK else cure.command[2]
    return url_of(request, verb, target), {"back": _shown_task(request)} if verb.noun is Noun.TASK else {}


def _here(request: PageRequest) -> str | None:
    """Return the URL of the task's page that is shown; None on any other page."""
    task_id = _shown_task(request)
    return request.url("task", task_id=task_id) if task_id else None


def _shown_task(request: PageRequest) -> str:
    """Return the id of the task whose page is shown, to return to it; "" on any other page."""
    return str(request.path.get("task_id", ""))


def _queue(request: PageRequest, words: list[str]) -> str:
    return request.url("queue", name=words[1]) if len(words) > 1 else request.url("queues")


def _schedule(request: PageRequest, words: list[str]) -> str:
    return request.url("schedule", name=words[1]) if len(words) > 1 else request.url("schedules")


def _task(request: PageRequest, words: list[str]) -> str | None:
    try:
        return request.url("task", task_id=UUID(words[-1] if words[-1][:1] != "-" else words[1]))
    except (ValueError, IndexError):
        return request.url("tasks") if words[:1] == ["list"] else None


def _batch(request: PageRequest, words: list[str]) -> str:
    return request.url("batch", batch_id=UUID(words[1])) if len(words) > 1 else request.url("batches")


def _failed(request: PageRequest, words: list[str]) -> str:
    return _task(request, words) or request.url("failures")


_PAGES: Final[Mapping[str, Callable[[PageRequest, list[str]], str | None]]] = {
    "queue": _queue,
    "schedule": _schedule,
    "task": _task,
    "failed": _failed,
    "batch": _batch,
}
"""The page that a command of each group has beside it."""
