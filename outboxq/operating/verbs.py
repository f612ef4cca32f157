"""The things that a person can do to a task, a queue, a schedule or a batch, each declared once.

The command line, the dashboard and Django's admin are adapters over `VERBS`. A verb that is added here is a command, an action of
the dashboard and, for tasks and schedules, an action of the admin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ..errors import InvalidArgument
from ..model import TaskStatus
from ..model.wording import plural, short
from .reading import NONE, read_instant, read_limit, read_priority, read_rate, read_span

if TYPE_CHECKING:
    from ..store import Store

Target = UUID | str
"""The id of a task or of a batch, or the name of a queue or of a schedule."""


class Noun(StrEnum):
    """The kind of thing that a verb is for."""

    TASK = "task"
    QUEUE = "queue"
    SCHEDULE = "schedule"
    BATCH = "batch"

    def of(self, target: Target) -> str:
        """Return the thing as the subject of a sentence: task 0197…, the queue 'mail'."""
        return f"task {target}" if self is Noun.TASK else f"the {self} {target if self is Noun.BATCH else repr(target)}"


class Right(StrEnum):
    """The right that a verb needs: the first word of a permission in Django. The dashboard has one right for all of them."""

    RETRY = "retry"
    CANCEL = "cancel"
    DISCARD = "discard"
    CHANGE = "change"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The facts about a thing that decide which verbs a page offers. The store decides whether a verb is allowed."""

    status: TaskStatus | None = None
    """The status of a task."""
    is_delayed: bool = True
    """True if the task is due later."""
    was_asked_to_stop: bool = False
    is_paused: bool = False
    """True for a queue or a schedule that is paused."""
    is_unused: bool = False
    """True for a queue that has settings and no tasks."""
    has_ended: bool = False
    """True for a batch whose tasks have all ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A value that a verb needs beside its target."""

    name: str
    """The keyword of the verb's function."""
    option: str
    """The option of the command; a word in capitals is an argument."""
    help: str = ""
    """The sentence of the option."""
    label: str = ""
    """The label in a form."""
    read: Callable[[str], Any] | None = None
    """Returns the value of a text, or raises InvalidArgument. None: the field is a flag, True or False."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    default: Any = None
    """The value where a command is not given the option."""
    is_required: bool = False
    inputs: tuple[str, ...] | None = None
    """The inputs of the form; None: one with the name of the field; (): forms do not ask for it."""
    empty: str = ""
    """The text that an empty input stands for."""
    joined: Callable[..., str] = str
    """Returns the texts of several inputs as one, as `read` takes it."""

    @property
    def in_form(self) -> tuple[str, ...]:
        """The names of the inputs in a form."""
        return (self.name,) if self.inputs is None else self.inputs

    def of_form(self, form: Mapping[str, str]) -> Any:
        """Return the value that a form gives. Raises InvalidArgument, with the label."""
        texts = [form.get(name, "").strip() for name in self.in_form]
        if self.read is None:
            return texts == ["yes"]
        try:
            text = self.joined(*texts) if any(texts) else self.empty
            if not text and self.is_required:
                raise InvalidArgument("a value is needed")
            return self.read(text) if text else self.default
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.label or self.name}: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a verb."""

    subject: str
    predicate: str
    """The rest of the sentence, without a full stop: was cancelled."""
    record: Any
    """The result for programs: a record of the store, or a mapping."""
    answer: str
    """The text that a command prints alone, such as the id of a new task; "": it prints the sentence."""

    @property
    def sentence(self) -> str:
        """The sentence about one thing, without a full stop: task 0197… is due now."""
        return f"{self.subject} {self.predicate}"

    @property
    def of_many(self) -> str:
        """The predicate of several things: were cancelled."""
        verb, _, rest = self.predicate.partition(" ")
        return f"{_PLURALS.get(verb, verb)} {rest}"


_PLURALS: Final = {"was": "were", "is": "are", "has": "have"}
Result = tuple[str, Any] | tuple[str, Any, str]
"""The predicate, the record and, where there is one, the answer of an `Outcome`."""


class ValueMissing(InvalidArgument):
    """A verb was not given what it needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One thing that a person can do."""

    noun: Noun
    name: str
    """The name of the command and the end of the URL: run-now."""
    act: Callable[..., Result]
    """The store's call. It takes the store, the target, the reason, `using` and the fields."""
    label: str
    """The words on a button."""
    help: str
    """The help of the command. Its first paragraph is one sentence."""
    right: Right
    offered: Callable[[State], bool] = lambda _state: True
    """Returns whether a page offers the verb."""
    fields: tuple[Field, ...] = ()
    command: tuple[str, ...] = ()
    """The words of the command before the target, and its options, where they are not those of the noun and the name."""
    hint: str = ""
    """The sentence below a form."""
    is_final: bool = False
    """True if nothing undoes the verb. A page asks before it."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command before the target, then its options."""
        return self.command or (self.noun, self.name)

    @property
    def key(self) -> str:
        """The name of the verb in code: run_now."""
        return self.name.replace("-", "_")

    def do(
        self, store: Store, target: Target, *, by: str = "", reason: str = "", using: object = None, **values: Any
    ) -> Outcome:
        """Do it. `by` names the person and the place; it stands in the history with the reason.

        Raises what the store raises: TaskNotFound, BatchNotFound, QueueNotFound, ScheduleNotFound; InvalidTransition; DuplicateTask;
        InvalidArgument.
        """
        why = f"{reason} ({by})" if reason and by else reason or by
        predicate, record, *answer = self.act(store, target, why, using, **values)
        return Outcome(subject=self.noun.of(target), predicate=predicate, record=record, answer="".join(answer))

    def of_form(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Return the values that a form gives, by the names of the fields. Raises InvalidArgument."""
        return {one.name: one.of_form(form) for one in self.fields if one.in_form}


def _cancel(store: Store, task: UUID, why: str, using: object, *, force: bool = False) -> Result:
    now = store.cancel(task, reason=why, force=force, using=using)
    asked = now is TaskStatus.RUNNING
    return "was asked to stop, and runs until the handler ends" if asked else "was cancelled", _status(task, now)


def _cancel_now(store: Store, task: UUID, why: str, using: object) -> Result:
    now = store.cancel(task, reason=why, force=True, using=using)
    return "was cancelled; the outcome of its worker will be refused", _status(task, now)


def _redrive(store: Store, task: UUID, why: str, using: object, *, take_key_back: bool = False) -> Result:
    store.redrive(task, take_key_back=take_key_back, reason=why, using=using)
    return "was redriven, to run now from the first attempt", _status(task, TaskStatus.READY)


def _discard(store: Store, task: UUID, why: str, using: object) -> Result:
    store.discard(task, reason=why, using=using)
    return "was discarded", _status(task, TaskStatus.CANCELLED)


def _run_now(store: Store, task: UUID, why: str, using: object) -> Result:
    changed = store.run_now(task, reason=why, using=using)
    return "is due now" if changed else "was due already", {"id": task, "changed": changed}


def _priority(store: Store, task: UUID, why: str, using: object, *, priority: int) -> Result:
    changed = store.set_priority(task, priority, reason=why, using=using)
    words = f"has the priority {priority} now" if changed else f"had the priority {priority} already"
    return words, {"id": task, "priority": priority, "changed": changed}


def _reschedule(
    store: Store,
    task: UUID,
    _why: str,
    using: object,
    *,
    at: datetime | None = None,
    delay: timedelta | None = None,
    take_key_back: bool = False,
) -> Result:
    if (at is None) is (delay is None):
        raise ValueMissing("give either the time at which the task is due, or the time span until then")
    due = at if at is not None else store.now() + (delay or timedelta(0))
    store.reschedule(task, due, take_key_back=take_key_back, using=using)
    return f"is due at {short(due)} UTC", {"id": task, "due_at": due}


def _status(task: UUID, status: TaskStatus) -> dict[str, Any]:
    return {"id": task, "status": status}


def _pause_queue(store: Store, queue: str, _why: str, using: object, *, create: bool = False) -> Result:
    settings = store.queues.pause(queue, create=create, using=using)
    return "is paused: none of its tasks is started, and running tasks go on", settings


def _resume_queue(store: Store, queue: str, _why: str, using: object) -> Result:
    return "is resumed", store.queues.resume(queue, using=using)


def _limit(store: Store, queue: str, _why: str, using: object, *, create: bool = False, **limits: Any) -> Result:
    if all(value is ... for value in limits.values()):
        raise ValueMissing(f"give one limit at least; {NONE} removes a limit")
    return "has the new limits", store.queues.limit(queue, create=create, using=using, **limits)


def _order(store: Store, queue: str, _why: str, using: object, *, fair: bool, create: bool = False) -> Result:
    words = "lets its partition keys take turns" if fair else "starts the task first that has been due the longest"
    return words, store.queues.order(queue, fair=fair, create=create, using=using)


def _forget(store: Store, queue: str, _why: str, using: object) -> Result:
    return "has lost its settings", store.queues.forget(queue, using=using)


def _pause_schedule(store: Store, schedule: str, why: str, using: object) -> Result:
    found = store.schedules.pause(schedule, reason=why, using=using)
    return "is paused; its planted ticks that were not due yet are cancelled", found


def _resume_schedule(store: Store, schedule: str, _why: str, using: object) -> Result:
    found = store.schedules.resume(schedule, using=using)
    return "is resumed; its catch-up policy decides about the ticks since the pause", found


def _trigger(store: Store, schedule: str, why: str, using: object) -> Result:
    task = store.schedules.trigger(schedule, by=why or "outboxq schedule trigger", using=using).id
    return f"was triggered: its task {task} is enqueued", {"id": task, "schedule": schedule}, str(task)


def _remove(store: Store, schedule: str, _why: str, using: object) -> Result:
    store.schedules.remove(schedule, using=using)
    return "was removed; its planted ticks that were not due yet are cancelled", {"name": schedule, "removed": True}


def _cancel_batch(store: Store, batch: UUID, why: str, using: object, *, force: bool = False) -> Result:
    number = store.batches.cancel(batch, reason=why, force=force, using=using)
    words = f"{number} {plural(number, 'task was', 'tasks were')} cancelled or asked to stop"
    return f"is cancelled: {words}, and nothing follows it", {"id": batch, "changed": number}


def _rate_of(starts: str, seconds: str) -> str:
    """Return a rate as it is typed in a command, from two inputs."""
    if not (starts and seconds):
        raise InvalidArgument("a rate needs a number of starts and its seconds; give both, or neither")
    return f"{starts}/{seconds}s"


def _is_fair(first: str) -> bool:
    if first not in _ORDERS:
        raise InvalidArgument(f"choose {' or '.join(_ORDERS)}")
    return first == "turns"


_ORDERS = ("turns", "oldest")
REASON = Field(
    name="reason",
    option="--reason",
    help="Reason, kept in the history.",
    label="Reason",
    read=str,
    default="",
)
FORCE = Field(
    name="force",
    option="--force",
    help="Cancel running tasks at once, without waiting for their handlers. The results of their workers are then refused.",
    inputs=(),
    default=False,
)
TAKE_KEY_BACK = Field(
    name="take_key_back",
    option="--take-key-back",
    help="Take the idempotency key back from another task that has it now.",
    label="Take the key from that task",
    default=False,
)
CREATE = Field(
    name="create",
    option="--create",
    help="Set up a queue that outboxq does not know yet, before its first task.",
    inputs=(),
    default=False,
)
_LIMITS = (
    Field(
        name="concurrency",
        option="--concurrency",
        help="Maximum number of the queue's tasks that run at once, over all workers. `none` removes the limit.",
        label="At once",
        read=read_limit,
        metavar="NUMBER",
        default=...,
        empty=NONE,
    ),
    Field(
        name="rate",
        option="--rate",
        help="Maximum number of starts in a time span, e.g. 100/1m. `none` removes the limit.",
        label="Starts",
        read=read_rate,
        metavar="NUMBER/SPAN",
        default=...,
        inputs=("starts", "seconds"),
        empty=NONE,
        joined=_rate_of,
    ),
    Field(
        name="rate_per_key",
        option="--per-key",
        help="Maximum number of starts of each key in a time span, e.g. 5/1m. `none` removes the limit.",
        label="Starts of a key",
        read=read_rate,
        metavar="NUMBER/SPAN",
        default=...,
        inputs=("key_starts", "key_seconds"),
        empty=NONE,
        joined=_rate_of,
    ),
    Field(
        name="concurrency_per_key",
        option="--concurrency-per-key",
        help="Maximum number of tasks of each concurrency key that run at once. `none`: one.",
        label="At once of a key",
        read=read_limit,
        metavar="NUMBER",
        default=...,
        inputs=("key_concurrency",),
        empty=NONE,
    ),
)
_WAITING_OR_FAILED = frozenset({TaskStatus.READY, TaskStatus.FAILED})

CANCEL: Final = Verb(
    noun=Noun.TASK,
    name="cancel",
    act=_cancel,
    label="Cancel",
    help="Cancel a task, or ask it to stop if it runs.",
    right=Right.CANCEL,
    offered=lambda state: (
        state.status is TaskStatus.READY or (state.status is TaskStatus.RUNNING and not state.was_asked_to_stop)
    ),
    fields=(REASON, FORCE),
    hint="A waiting task is never run then. A running one is asked to stop, and its handler decides. That cannot be undone.",
    is_final=True,
)
CANCEL_NOW: Final = Verb(
    noun=Noun.TASK,
    name="cancel-now",
    act=_cancel_now,
    label="Cancel at once",
    help="Cancel a running task at once: its worker loses it.",
    right=Right.CANCEL,
    offered=lambda state: state.status is TaskStatus.RUNNING,
    fields=(REASON,),
    command=("task", "cancel", "--force"),
    hint="Its worker loses the task: the handler goes on until it ends, and its outcome is refused.",
    is_final=True,
)
REDRIVE: Final = Verb(
    noun=Noun.TASK,
    name="redrive",
    act=_redrive,
    label="Redrive",
    help="Run a dead letter again, from its first attempt.\n\n`failed redrive` does the same with one or many.",
    right=Right.RETRY,
    offered=lambda state: state.status is TaskStatus.FAILED,
    fields=(REASON, TAKE_KEY_BACK),
    command=("failed", "redrive"),
)
DISCARD: Final = Verb(
    noun=Noun.TASK,
    name="discard",
    act=_discard,
    label="Discard",
    help="Discard a dead letter: it ends as Cancelled.\n\n`failed discard` does the same with one or many.",
    right=Right.DISCARD,
    offered=lambda state: state.status is TaskStatus.FAILED,
    fields=(REASON,),
    command=("failed", "discard"),
    is_final=True,
)
RUN_NOW: Final = Verb(
    noun=Noun.TASK,
    name="run-now",
    act=_run_now,
    label="Run now",
    help="Make a task due now that is delayed or waits for a retry.",
    right=Right.RETRY,
    offered=lambda state: state.status is TaskStatus.READY and state.is_delayed,
)
PRIORITY: Final = Verb(
    noun=Noun.TASK,
    name="priority",
    act=_priority,
    label="Set the priority",
    help="Set the priority of a waiting task, from -100 to 100.\n\nTasks with a higher priority start first. Write -- before a "
    "negative number: priority TASK_ID -- -5.",
    right=Right.RETRY,
    offered=lambda state: state.status is TaskStatus.READY,
    fields=(
        Field(
            name="priority",
            option="PRIORITY",
            label="Priority",
            read=read_priority,
            is_required=True,
        ),
    ),
)
RESCHEDULE: Final = Verb(
    noun=Noun.TASK,
    name="reschedule",
    act=_reschedule,
    label="Reschedule",
    help="Give a waiting task or a dead letter another due time.\n\nA waiting task keeps its attempt. A dead letter runs again from "
    "its first attempt, at that time. A running task is left alone.",
    right=Right.RETRY,
    offered=lambda state: state.status in _WAITING_OR_FAILED,
    fields=(
        Field(
            name="at",
            option="--at",
            help="Time at which the task is due, e.g. 2026-11-23T02:30Z.",
            read=read_instant,
            metavar="TIME",
            inputs=(),
        ),
        Field(
            name="delay",
            option="--in",
            help="Time span from now after which the task is due, e.g. 2h.",
            label="Due in, such as 2h",
            read=read_span,
            metavar="SPAN",
        ),
        TAKE_KEY_BACK,
    ),
)
PAUSE_QUEUE: Final = Verb(
    noun=Noun.QUEUE,
    name="pause",
    act=_pause_queue,
    label="Pause",
    help="Start no task of a queue until it is resumed.\n\nTasks that already run go on.",
    right=Right.CHANGE,
    offered=lambda state: not state.is_paused,
    fields=(CREATE,),
)
RESUME_QUEUE: Final = Verb(
    noun=Noun.QUEUE,
    name="resume",
    act=_resume_queue,
    label="Resume",
    help="Resume a paused queue.",
    right=Right.CHANGE,
    offered=lambda state: state.is_paused,
)
LIMIT: Final = Verb(
    noun=Noun.QUEUE,
    name="limit",
    act=_limit,
    label="Set the limits",
    help="Limit a queue, and each of its keys.\n\nAn option that is left out keeps its value. Running tasks are not stopped.",
    right=Right.CHANGE,
    fields=(*_LIMITS, CREATE),
    hint="An empty field removes its limit. What runs already is not stopped.",
)
ORDER: Final = Verb(
    noun=Noun.QUEUE,
    name="order",
    act=_order,
    label="Set the order",
    help="Choose how the partition keys of a queue share it.\n\nturns: the keys take turns (the default). oldest: the task that has "
    "been due the longest starts first, whatever its key.",
    right=Right.CHANGE,
    fields=(
        Field(
            name="fair",
            option="FIRST",
            label="First",
            read=_is_fair,
            choices=_ORDERS,
            is_required=True,
            inputs=("first",),
        ),
        CREATE,
    ),
)
FORGET: Final = Verb(
    noun=Noun.QUEUE,
    name="forget",
    act=_forget,
    label="Forget its settings",
    help="Delete the settings of a queue without tasks, and print them.\n\nFor a queue that was set up under a wrong name. While it "
    "has waiting or running tasks or dead letters, `resume` and `limit` change its settings.",
    right=Right.CHANGE,
    offered=lambda state: state.is_unused,
)
PAUSE_SCHEDULE: Final = Verb(
    noun=Noun.SCHEDULE,
    name="pause",
    act=_pause_schedule,
    label="Pause",
    help="Plant no ticks of a schedule until it is resumed.\n\nIts planted ticks that are not due yet are cancelled. Tasks that "
    "already run go on.",
    right=Right.CHANGE,
    offered=lambda state: not state.is_paused,
    fields=(REASON,),
)
RESUME_SCHEDULE: Final = Verb(
    noun=Noun.SCHEDULE,
    name="resume",
    act=_resume_schedule,
    label="Resume",
    help="Resume a paused schedule.\n\nIts catch-up policy decides about the ticks since.",
    right=Right.CHANGE,
    offered=lambda state: state.is_paused,
)
TRIGGER: Final = Verb(
    noun=Noun.SCHEDULE,
    name="trigger",
    act=_trigger,
    label="Trigger one task now",
    help="Enqueue a task of a schedule now, and print its id.\n\nThe ticks of the schedule stay as they are. A paused schedule can be "
    "triggered too.",
    right=Right.CHANGE,
)
REMOVE: Final = Verb(
    noun=Noun.SCHEDULE,
    name="remove",
    act=_remove,
    label="Remove",
    help="Delete a schedule.\n\nIts planted ticks that are not due yet are cancelled. A schedule that APP declares comes back with "
    "its next worker.",
    right=Right.CHANGE,
    hint="Its planted ticks that are not due yet are cancelled. A schedule that code declares comes back with the next worker.",
    is_final=True,
)
CANCEL_BATCH: Final = Verb(
    noun=Noun.BATCH,
    name="cancel",
    act=_cancel_batch,
    label="Cancel the batch",
    help="Cancel the tasks of a batch that have not ended. What would follow is not enqueued.\n\nA running task is asked to stop. "
    "Dead letters that the batch waits for are discarded. The batch takes no more tasks, so those that were added after the count "
    "are cancelled too.",
    right=Right.CANCEL,
    offered=lambda state: not state.has_ended,
    fields=(REASON, FORCE),
    is_final=True,
)

VERBS: Final[tuple[Verb, ...]] = (
    CANCEL,
    CANCEL_NOW,
    REDRIVE,
    DISCARD,
    RUN_NOW,
    PRIORITY,
    RESCHEDULE,
    PAUSE_QUEUE,
    RESUME_QUEUE,
    LIMIT,
    ORDER,
    FORGET,
    PAUSE_SCHEDULE,
    RESUME_SCHEDULE,
    TRIGGER,
    REMOVE,
    CANCEL_BATCH,
)
"""All verbs. The adapters walk this list."""


def verbs_of(noun: Noun) -> tuple[Verb, ...]:
    """Return the verbs of one kind of thing, in the order in which pages offer them."""
    return tuple(one for one in VERBS if one.noun is noun)


def verb_of(command: Sequence[str]) -> Verb | None:
    """Return the verb of a command that is written with its target, such as ("task", "cancel", ID, "--force"); None: it is not one."""
    words = (*command[:2], *command[3:])
    return next((one for one in VERBS if one.words == words), None)
