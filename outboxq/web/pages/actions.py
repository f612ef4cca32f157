"""The dashboard's actions (one for each verb), the responses to their forms, the cures that pages offer for problems,
and the page that lists the changes that people made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from werkzeug.exceptions import Forbidden

from ... import errors
from ...model.actions import Interface, Operator, OperatorAction
from ...model.batches import is_batch
from ...model.display import as_json
from ...model.wording import sentence
from ...operating.fields import LONGEST_REASON, REASON, Field
from ...operating.verb import Noun, State, Target, Verb
from ...operating.verbs import RECORDED, noun_of, verb_of, verbs_of
from ...store import Cure
from ..request import PageRequest, Redirect, View

_WITH_IDS: Final = (Noun.TASK, Noun.BATCH, Noun.WORKER)
_KEYS: Final = {**dict.fromkeys(Noun, "name"), **{noun: f"{noun}_id" for noun in _WITH_IDS}}
"""The part of the URL that identifies the target. The names of queues, schedules and relays are in the query
string, because some characters would be changed in a path.
"""
_UNDOES: Final = "undoes"
"""The query parameter with the id of the action that a form undoes."""
_LISTS: Final = {**{noun: f"{noun}s" for noun in Noun}, Noun.BATCH: "batches", Noun.SESSION: "system"}
"""The page that lists the targets of each kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """A verb on a page."""

    verb: Verb
    url: str
    """The URL to which the form is sent."""

    @property
    def fields(self) -> list[Field]:
        """The fields of the form. A form that asks for nothing but a reason appears only if the verb cannot be undone."""
        asked = [one for one in self.verb.fields if one.in_form]
        return asked if self.verb.is_final or asked != [REASON] else []


def url_of(request: PageRequest, verb: Verb, target: Target, **query: object) -> str:
    """Return the URL to which the form of a verb is sent."""
    return request.url(f"{verb.noun}_{verb.key}", **{_KEYS[verb.noun]: target}, **query)


def offered(request: PageRequest, noun: Noun, target: Target, state: State) -> dict[str, Action]:
    """Return the verbs that a page offers to this viewer, by `Verb.key`."""
    queue = _queue_of(request, noun, target) if request.viewer.may_act else None
    found = [one for one in verbs_of(noun) if request.viewer.may(one.recorded_as, queue) and one.offered(state)]
    return {verb.key: Action(verb=verb, url=url_of(request, verb, target)) for verb in found}


def may(request: PageRequest, verb: Verb, target: Target) -> bool:
    """Return whether the viewer may carry out the verb on this target. Raises TaskNotFound or ScheduleNotFound."""
    return request.viewer.may(verb.recorded_as, _queue_of(request, verb.noun, target))


def _queue_of(request: PageRequest, noun: Noun, target: Target) -> str | None:
    """Return a target's queue. None for a batch, whose tasks may be in any queue, and for a relay. Also None if no
    permission depends on the queue.
    """
    if not any(one.queues is not None for one in request.viewer.permissions or ()):
        return None
    match noun:
        case Noun.TASK:
            return request.store.get(target).queue
        case Noun.SCHEDULE:
            return request.store.schedules.get(str(target)).queue
        case Noun.QUEUE:
            return str(target)
    return None


def act(verb: Verb, request: PageRequest) -> Redirect:
    """Carry out the verb, and return to the page with its form. If the verb is refused, or the button was clicked
    twice, the page shows a notice.
    """
    key = _KEYS[verb.noun]
    target: Target = request.path[key] if key in request.path else request.query.get(key, "")
    is_warning = True
    try:
        if not may(request, verb, target):
            raise Forbidden(
                f"You are not allowed to use {verb.recorded_as!r} here: {verb.noun.of(target)} was not changed."
            )
        values = verb.of_form(request.form)
        if "reason" in values:
            values["reason"] = values["reason"][:LONGEST_REASON]
        undoes = request.query.get(_UNDOES, type=UUID)
        outcome = verb.do(request.store, target, operator=operator_of(request), undoes=undoes, **values)
        notice, is_warning = sentence(outcome.sentence), not outcome.changes
        if not outcome.changes:
            notice = f"Nothing was changed: {outcome.sentence}"
    except errors.DuplicateTask as error:
        notice = f"Nothing was changed: {error}. You can take the key back on this page."
        return Redirect(url=request.url("task", task_id=target), notice=notice, is_warning=True)
    except (errors.BatchNotFound, errors.ScheduleNotFound, errors.RelayNotFound, errors.WorkerNotFound) as error:
        return Redirect(url=request.url(_LISTS[verb.noun]), notice=f"Nothing was changed: {error}.", is_warning=True)
    except (errors.InvalidArgument, errors.InvalidTransition, errors.TaskNotFound) as error:
        # The error for a batch that cannot be cancelled already says that nothing was cancelled.
        notice = sentence(str(error)) if verb.noun is Noun.BATCH else f"Nothing was changed: {error}"
    url = _page_of(request, verb.noun, target)
    opposite = next((one for one in verbs_of(verb.noun) if one.name == verb.undo), None)
    is_gone = url == request.url(_LISTS[verb.noun])
    can_undo = not (is_warning or is_gone) and opposite is not None and may(request, opposite, target)
    undo = url_of(request, opposite, target, **{_UNDOES: outcome.action}) if can_undo and opposite is not None else ""
    return Redirect(url=url, notice=f"{notice}.", is_warning=is_warning, undo=undo)


def operator_of(request: PageRequest) -> Operator:
    """Return the person who makes a change."""
    return Operator(interface=Interface.DASHBOARD, name=request.viewer.name or "")


def reason_of(request: PageRequest) -> str:
    """Return the reason that the person entered."""
    return request.form.get("reason", "").strip()[:LONGEST_REASON]


def _page_of(request: PageRequest, noun: Noun, target: Target) -> str:
    """Return the URL of the page to show next: the target's page, or the list if the target is gone."""
    match noun:
        case Noun.TASK:
            # The form may be on the page of another task, or of a batch, that waits for this one.
            with suppress(ValueError):
                target = UUID(request.form.get("back", ""))
            if is_batch(UUID(str(target))):
                return request.url("batch", batch_id=target)
        case Noun.SESSION:
            return request.url("system")
        case Noun.QUEUE if not request.store.queues.is_known(str(target)):
            return request.url("queues")
        case Noun.SCHEDULE if all(one.name != target for one in request.store.schedules.list()):
            return request.url("schedules")
        case Noun.RELAY if all(one.name != target for one in request.store.relays.list()):
            return request.url("relays")
    return request.url(noun, **{_KEYS[noun]: target})


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A cure as a page offers it: always as a command to copy and, if the dashboard can help, as a link or a button."""

    purpose: str
    command: str
    """The line to type in a shell."""
    href: str | None
    """The page on which a person can apply the cure; None if there is no such page, or if it is the current page."""
    action: str | None
    """The URL to which the button's form is sent; None if the cure is not a button, or the viewer may not act."""
    fields: Mapping[str, str]
    """The hidden fields of that form."""
    is_final: bool
    """True if the cure cannot be undone."""


def offers(request: PageRequest, cures: Iterable[Cure], *, with_final: bool = False) -> list[Offer]:
    """Return the offers for these cures. A cure that no other button can undo is offered as a button only if
    `with_final` is True, and otherwise as a link. This rule applies to a redrive too, because a redrive runs the
    handler again.
    """
    shown, found = str(request.path.get("task_id", "")), []
    here = request.url("task", task_id=shown) if shown else None
    for cure in cures:
        verb, href = verb_of(cure.command), _page_of_command(request, *cure.command)
        action: str | None = None
        is_final, of_task = verb is not None and verb.is_final, verb is not None and verb.noun is Noun.TASK
        is_safe = with_final or not (is_final or of_task)
        # A batch has its own page for its verbs, so there is no button.
        if request.viewer.may_act and is_safe and verb and verb.noun is not Noun.BATCH and len(cure.command) > 2:
            target: Target = UUID(cure.command[2]) if of_task else cure.command[2]
            with suppress(errors.TaskNotFound, errors.ScheduleNotFound):
                action = url_of(request, verb, target) if may(request, verb, target) else None
        offer = Offer(
            purpose=cure.purpose,
            command=request.typed(*cure.command),
            href=None if href == here else href,
            action=action,
            fields={"back": shown} if action and of_task else {},
            is_final=is_final,
        )
        found.append(offer)
    return found


def has_worker(request: PageRequest, queue: str, task: str) -> bool:
    """Return whether a live worker knows the task and would claim it."""
    workers = request.store.workers.list()
    return any(one.works_on(queue) and one.takes(None) and task in one.task_names for one in workers)


def unfound(title: str, sentence: str, *, data: object = None, status: int = 404, **more: Any) -> View:
    """Return the page that is shown for an object that does not exist, such as a task.

    `more` contains further values for the template: its `task_id`, `several` tasks that the person may mean, the task
    to deal with `first`, and `offers`.
    """
    values = {"sentence": sentence, "task_id": None, "several": (), "first": None, "offers": (), **more}
    return View(template="pages/unfound.html", title=title, values=values, data=data, status=status)


def _page_of_command(request: PageRequest, group: str, *words: str) -> str | None:
    """Return the URL of the page that can do what a command does; None if the dashboard has no such page."""
    match group, words:
        case "relay", ("run", "--name", name):
            return request.url(group, name=name)
        case "queue" | "schedule" | "relay", (_, name, *_):
            return request.url(group, name=name)
        case "batch", (_, batch_id, *_):
            return request.url("batch", batch_id=UUID(batch_id))
        case "queue" | "schedule" | "batch" | "relay", _:
            return request.url(_LISTS[Noun(group)])
        case "workers", ("list",):
            return request.url("workers")
        case "workers", (_, worker_id):
            return request.url("worker", worker_id=UUID(worker_id))
        case "db", ("sizes",) | ("end-session", _):
            return request.url("system")
        case "task" | "failed", ("list" | "summary", *options):
            filters = _filters(options)
            page = "tasks" if group == "task" else "failures" if "--group" not in options else "failure_group"
            return None if filters is None else request.url(page, **filters)
        case "task" | "failed", _:
            with suppress(ValueError, IndexError):
                return request.url("task", task_id=UUID(words[1] if words[-1].startswith("-") else words[-1]))
            return request.url("failures") if group == "failed" else None
    return None


_SAME_NAMES = ("queue", "task", "key", "topic", "exception", "group", "worker", "batch", "since", "until", "argument")
_FILTERS: Final = {
    "-q": "queue",
    "--status": "state",
    "--state": "state",
    "--idempotency-key": "idempotency_key",
    **{f"--{name}": name for name in _SAME_NAMES},
}
"""The options of the commands that list tasks and dead letters, and the page filters that correspond to them."""


def _filters(options: Sequence[str]) -> dict[str, str] | None:
    """Return the filters for a page that shows what a command with these options lists; None if no such page exists."""
    names, values = [_FILTERS.get(one) for one in options[::2]], options[1::2]
    if None in names or len(names) != len(values):
        return None
    return {str(name): value for name, value in zip(names, values, strict=True)}


_ROWS: Final = 50
_NARROWING: Final = ("action", "operator", "target")


def page(request: PageRequest) -> View:
    """Show the newest changes that people made. Raises InvalidArgument."""
    given: dict[str, Any] = {name: value for name in _NARROWING if (value := request.query.get(name, "")).strip()}
    before = request.query.get("before")
    try:
        last = None if before is None else UUID(before)
    except ValueError:
        raise errors.InvalidArgument(f"before must be a complete id, not {before!r}") from None
    found = request.store.actions.list(limit=_ROWS + 1, before=last, **given)
    shown = found[:_ROWS]
    values = {
        "actions": [(one, address_of(request, one), details_of(one)) for one in shown],
        "names": RECORDED,
        "filters": dict.fromkeys(_NARROWING, "") | given,
        "given": given,
        "now": request.store.now(),
        "older": request.url("actions", **given, before=shown[-1].id) if len(found) > _ROWS else None,
    }
    return View(template="pages/actions.html", title="Actions", values=values, data=shown)


def address_of(request: PageRequest, action: OperatorAction) -> str | None:
    """Return the URL of the page about the action's target. A bulk change that a task makes is recorded under that
    task's id.
    """
    noun, target = noun_of(action.action), action.target
    if noun is None or noun is Noun.SESSION or target is None:
        return None
    return request.url(noun, **{_KEYS[noun]: target})


def details_of(action: OperatorAction) -> str:
    """Return an action's values or filters in words, such as "queue: mail, limit: 300"."""
    details: dict[str, Any] = as_json(action.details)
    return ", ".join(f"{name.replace('_', ' ')}: {_words(value)}" for name, value in details.items())


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
