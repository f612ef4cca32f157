"""Verbs: the actions that a person can take, with their targets, rights and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from inspect import cleandoc
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from ..errors import InvalidArgument
from ..model import TaskStatus
from ..model.actions import NewAction, Operator
from ..model.workers import WorkerOrder
from . import fields
from .fields import REASON, Field

if TYPE_CHECKING:
    from ..store import Store

T = TypeVar("T")
Target = UUID | str
"""The id of a task, batch or worker, or the name of a queue, schedule or relay."""


class Noun(StrEnum):
    """The kind of target that a verb is for."""

    TASK = "task"
    QUEUE = "queue"
    SCHEDULE = "schedule"
    BATCH = "batch"
    RELAY = "relay"
    WORKER = "worker"
    SESSION = "session"
    """A PostgreSQL session."""

    @property
    def group(self) -> str:
        """The name of the noun's command group. For workers, it is plural, because `worker` runs a worker."""
        return "workers" if self is Noun.WORKER else self.value

    def of(self, target: Target) -> str:
        """Return the target as the subject of a sentence, such as "task 0197…" or "the queue 'mail'"."""
        if self is Noun.TASK:
            return f"task {target}"
        return f"the {self} {target if self in (Noun.BATCH, Noun.WORKER, Noun.SESSION) else repr(target)}"


class Right(StrEnum):
    """The right that a verb needs. Its value is the first word of a Django permission."""

    RETRY = "retry"
    CANCEL = "cancel"
    DISCARD = "discard"
    CHANGE = "change"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The facts that decide which verbs a page offers. The store decides whether a verb is allowed."""

    status: TaskStatus | None = None
    """A task's status."""
    is_delayed: bool = True
    """True if the task is not due yet."""
    was_asked_to_stop: bool = False
    worker_is_live: bool = False
    """True if the worker of a running task has been seen recently."""
    is_paused: bool = False
    """True if the queue, schedule or relay is paused, or the relay is waiting after failures."""
    is_declared: bool = False
    """True if code declares the schedule."""
    is_unused: bool = False
    """True if the queue has settings but no tasks."""
    has_ended: bool = False
    """True if all tasks in the batch have ended, or if the worker has ended."""
    holds_lost_tasks: bool = False
    """True if the worker has not been seen recently, but still holds running tasks."""
    asked_to: WorkerOrder | None = None
    """The order that was given to the worker, if any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a verb."""

    subject: str = ""
    """The target in words. `Verb.do` fills it in."""
    predicate: str
    """The rest of the sentence, without a full stop, such as "was cancelled"."""
    record: Any
    """The result for programs: a record from the store, or a mapping."""
    answer: str = ""
    """The text that a command prints instead of the sentence, such as a new task's id; "" to print the sentence."""
    changes: int = 1
    """The number of changes; 0 if nothing had to be changed."""
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """The values that the change replaced. The action's record keeps them so that the change can be undone."""
    action: UUID | None = None
    """The id of the action's record. `Verb.do` fills it in."""

    @property
    def sentence(self) -> str:
        """The sentence about a single target, without a full stop, such as "task 0197… is due now"."""
        return f"{self.subject} {self.predicate}"

    @property
    def of_many(self) -> str:
        """The predicate for several targets, such as "were cancelled"."""
        first, _, rest = self.predicate.partition(" ")
        return f"{_PLURALS.get(first, first)} {rest}"


FORMER_REASON: Final = "pause_reason"
"""The name under which the record of a resume keeps the reason for the pause."""
_PLURALS: Final = {"was": "were", "is": "are", "has": "have"}


def with_changes(call: Callable[..., T], *arguments: object, **options: object) -> tuple[T, int]:
    """Call a method of the store that takes `on_change`, and return its result and the number of changes that it made."""
    numbers: list[int] = []
    made = call(*arguments, on_change=lambda _transaction, number: numbers.append(number), **options)
    return made, sum(numbers)


class ValueMissing(InvalidArgument):
    """A value that the verb requires is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """An action that a person can take."""

    noun: Noun
    name: str
    """The name of the command and the last part of the URL, such as run-now."""
    act: Callable[..., Outcome]
    """The function that calls the store. It takes the store, the target, the reason, `using` and the fields."""
    label: str
    """The words on a button."""
    help: str
    """The command's help text."""
    right: Right
    offered: Callable[[State], bool]
    """A function that returns whether a page offers the verb in this state."""
    fields: tuple[Field, ...]
    command: tuple[str, ...] = ()
    """The words of the command before the target, followed by its options. () means the noun and the name."""
    hint: str = ""
    """The sentence below a form."""
    is_final: bool = False
    """True if the verb cannot be undone. A page then asks for confirmation."""
    undo: str = ""
    """The name of the verb that undoes this one; "" if there is none."""
    is_long: bool = False
    """True if the verb uses several transactions. The verb's function then has the parameter `on_change`, for the
    record of the action.
    """

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command before the target, followed by its options."""
        return self.command or (self.noun.group, self.name)

    @property
    def recorded_as(self) -> str:
        """The name under which an action is recorded: the command without its options, such as task cancel."""
        return " ".join(word for word in self.words if not word.startswith("--"))

    @property
    def key(self) -> str:
        """The name of the verb in code, such as run_now."""
        return self.name.replace("-", "_")

    def do(
        self,
        store: Store,
        target: Target,
        *,
        operator: Operator,
        reason: str = "",
        undoes: UUID | None = None,
        using: object = None,
        **values: Any,
    ) -> Outcome:
        """Carry out the verb, and record the action in the same transaction. A task's history also contains the reason
        and the operator. If nothing changes, nothing is recorded.

        If `undoes` is the id of a recorded resume, a pause gets back the reason that the resume deleted. Raises the
        store's errors: TaskNotFound, BatchNotFound, QueueNotFound, ScheduleNotFound, RelayNotFound, WorkerNotFound,
        InvalidTransition, DuplicateTask and InvalidArgument.
        """
        former = None if undoes is None else self._former_reason(store, undoes, target, using)
        reason = former or reason
        why = former or operator.because(reason)
        given = {one.name: values[one.name] for one in self.fields if one.name in values}
        given |= {one.name: "changed" for one in self.fields if one.is_hidden and given.get(one.name, ...) is not ...}
        action = self.action(operator, target=str(target), details=given, reason=reason)
        act = partial(self.act, store, target, why, **values)
        if self.is_long:
            outcome = act(using, on_change=store.actions.adding(action))
        else:
            number, replaced = attrgetter("changes"), attrgetter("replaced")
            outcome = store.actions.record(action, act, number=number, replaced=replaced, using=using)
        return replace(outcome, subject=self.noun.of(target), action=action.id)

    def _former_reason(self, store: Store, action_id: UUID, target: Target, using: object) -> str | None:
        """Return the reason for the pause that this action ended; None if the action did not end a pause, or the pause
        had no reason.
        """
        found = store.actions.get(action_id, using=using)
        undone = (self.noun.group, self.undo)
        if found is None or found.target != str(target) or tuple(found.action.split()) != undone:
            return None
        return found.details.get(FORMER_REASON)

    def action(
        self, operator: Operator, *, target: str | None = None, details: Mapping[str, Any], reason: str = ""
    ) -> NewAction:
        """Return this verb's action on a target or, with None, on everything that matches the filters in `details`.
        Values that were not given are left out.
        """
        unset = {one.name: one.default for one in self.fields}
        given = {
            name: value
            for name, value in details.items()
            if value is not unset.get(name) and (value is not False or name == fields.ORDER.name)
        }
        given |= {word.removeprefix("--"): True for word in self.words if word.startswith("--")}
        return NewAction(operator=operator, action=self.recorded_as, target=target, details=given, reason=reason)

    def of_form(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Return a form's values, keyed by field name. Raises InvalidArgument."""
        return {one.name: one.of_form(form) for one in self.fields if one.in_form}


def declare(noun: Noun, name: str, right: Right, **more: Any) -> Callable[[Callable[..., Outcome]], Verb]:
    """Return the decorator that turns a function that calls the store into a verb.

    `more` contains further fields of `Verb`. By default, pages always offer the verb, its label is its name, and its
    only field is the reason.
    """
    more = {"label": name.replace("-", " ").capitalize(), "offered": lambda _state: True, "fields": (REASON,), **more}
    return lambda act: Verb(noun=noun, name=name, right=right, act=act, help=cleandoc(act.__doc__ or ""), **more)
