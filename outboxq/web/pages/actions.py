"""The verbs as actions of the dashboard: those that a page offers, and the answer to the form of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from ...errors import (
    BatchNotFound,
    DuplicateTask,
    InvalidArgument,
    InvalidTransition,
    ScheduleNotFound,
    TaskNotFound,
)
from ...model.wording import sentence
from ...operating.verbs import REASON, Field, Noun, State, Target, Verb, verb_of, verbs_of
from ...store import Cure
from ..request import PageRequest, Redirect, View

_LONGEST_REASON: Final = 500
"""Maximum number of characters of a reason that a person types."""
_KEYS: Final = {Noun.TASK: "task_id", Noun.BATCH: "batch_id", Noun.QUEUE: "name", Noun.SCHEDULE: "name"}
"""The part of the URL that names a thing. A queue's and a schedule's name is in the query: a path would not keep each character."""
_LISTS: Final = {Noun.TASK: "tasks", Noun.BATCH: "batches", Noun.QUEUE: "queues", Noun.SCHEDULE: "schedules"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """A verb on a page."""

    verb: Verb
    url: str
    """The URL to which its form is sent."""

    @property
    def fields(self) -> list[Field]:
        """The fields that the form asks for. A reason alone is asked for only before what cannot be undone."""
        asked = [one for one in self.verb.fields if one.in_form]
        return asked if self.verb.is_final or asked != [REASON] else []


def url_of(request: PageRequest, verb: Verb, target: Target) -> str:
    """Return the URL to which the form of a verb is sent."""
    return request.url(f"{verb.noun}_{verb.key}", **{_KEYS[verb.noun]: target})


def offered(request: PageRequest, noun: Noun, target: Target, state: State) -> dict[str, Action]:
    """Return the verbs that a page offers to this viewer, by their keys."""
    found = [verb for verb in verbs_of(noun) if request.viewer.may_act and verb.offered(state)]
    return {verb.key: Action(verb=verb, url=url_of(request, verb, target)) for verb in found}


def act(verb: Verb, request: PageRequest) -> Redirect:
    """Do it, and return to the page that the form was on. A refusal is a notice there; so is a second click."""
    key = _KEYS[verb.noun]
    target: Target = request.path[key] if key in request.path else request.query.get(key, "")
    try:
        values = verb.of_form(request.form)
        if "reason" in values:
            values["reason"] = values["reason"][:_LONGEST_REASON]
        outcome = verb.do(request.store, target, by=by(request), **values)
    except DuplicateTask as error:
        notice = f"Nothing was changed: {error}. Its page can take the key back."
        return Redirect(url=request.url("task", task_id=target), notice=notice, is_warning=True)
    except (BatchNotFound, ScheduleNotFound) as error:
        return Redirect(url=request.url(_LISTS[verb.noun]), notice=f"Nothing was changed: {error}.", is_warning=True)
    except (InvalidArgument, InvalidTransition, TaskNotFound) as error:
        # The refusal to cancel a batch says itself that nothing was cancelled.
        refusal = sentence(str(error)) if verb.noun is Noun.BATCH else f"Nothing was changed: {error}"
        return Redirect(url=_page_of(request, verb.noun, target), notice=f"{refusal}.", is_warning=True)
    return Redirect(url=_page_of(request, verb.noun, target), notice=f"{sentence(outcome.sentence)}.")


def by(request: PageRequest) -> str:
    """Return the words for the history: who did it, and where."""
    return f"by {request.viewer.name} in the dashboard" if request.viewer.name else "in the dashboard"


def reason_of(request: PageRequest) -> str:
    """Return the reason for the history of many tasks: what the person typed, and who it is."""
    typed = request.form.get("reason", "").strip()[:_LONGEST_REASON]
    return f"{typed} ({by(request)})" if typed else by(request)


def _page_of(request: PageRequest, noun: Noun, target: Target) -> str:
    """Return the URL of the page to go on with: that of the thing, or of the list if the thing is gone."""
    values: dict[str, Any] = {_KEYS[noun]: target}
    match noun:
        case Noun.TASK:
            values["task_id"] = _task_with_the_form(request) or target
        case Noun.QUEUE if not request.store.queues.is_known(str(target)):
            return request.url("queues")
        case Noun.SCHEDULE if all(one.name != target for one in request.store.schedules.list()):
            return request.url("schedules")
    return request.url(noun, **values)


def _task_with_the_form(request: PageRequest) -> UUID | None:
    """Return the task whose page has the form, where that is another one: a task that waits for this one."""
    try:
        return UUID(request.form.get("back", ""))
    except ValueError:
        return None


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
