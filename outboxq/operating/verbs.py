"""The actions that a person can take on a task, queue, schedule, batch, relay or worker, declared once.

The command line, the dashboard and Django's admin are adapters for `VERBS`. A verb that is added here, or in
`worker_verbs`, becomes a command, an action in the dashboard and, if it is for tasks or schedules and does not need any
fields, an action in the admin. The decorator `declare` turns a function into a verb. The function's docstring is the
command's help, and its first paragraph is a single sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ..model import TaskStatus
from ..model.actions import CommandAction
from ..model.wording import plural, short
from . import fields, worker_verbs
from .fields import FORCE, REASON, TAKE_KEY_BACK
from .reading import NONE
from .verb import FORMER_REASON, Noun, Outcome, Right, State, ValueMissing, Verb, declare, with_changes

if TYPE_CHECKING:
    from ..model.schedules import Schedule
    from ..store import QueueSettings, Store
    from ..store.tasks.operations import OnChange


def verbs_of(noun: Noun) -> tuple[Verb, ...]:
    """Return the verbs for one kind of target."""
    return tuple(one for one in VERBS if one.noun is noun)


def verb_of(command: Sequence[str]) -> Verb | None:
    """Return the verb for a command with its target, such as ("task", "cancel", ID, "--force"), or None."""
    words = (*command[:2], *command[3:])
    return next((one for one in VERBS if one.words == words), None)


def _in_status(*statuses: TaskStatus) -> Callable[[State], bool]:
    return lambda state: state.status in statuses


# The decorators for the verbs for one kind of target. Only the verbs for tasks and batches need other rights.
_for_tasks = partial(declare, Noun.TASK)
_for_queues = partial(declare, Noun.QUEUE, right=Right.CHANGE)
_for_schedules = partial(declare, Noun.SCHEDULE, right=Right.CHANGE)
_for_relays = partial(declare, Noun.RELAY, right=Right.CHANGE)
_pauses = partial(declare, name="pause", right=Right.CHANGE, offered=lambda state: not state.is_paused, undo="resume")
_resumes = partial(declare, name="resume", right=Right.CHANGE, offered=lambda state: state.is_paused, undo="pause")


@_for_tasks("run-now", Right.RETRY, offered=lambda state: state.status is TaskStatus.READY and state.is_delayed)
def RUN_NOW(store: Store, task: UUID, why: str, using: object) -> Outcome:
    """Make a delayed or retrying task due now."""
    changed = store.run_now(task, reason=why, using=using)
    words = "is due now" if changed else f"was already due{store.explain(task, using=using).hindrance}"
    return Outcome(predicate=words, record={"id": task, "changed": changed}, changes=int(changed))


@_for_tasks(
    "priority",
    Right.RETRY,
    label="Set the priority",
    offered=_in_status(TaskStatus.READY),
    fields=(fields.PRIORITY, REASON),
)
def PRIORITY(store: Store, task: UUID, why: str, using: object, *, priority: int) -> Outcome:
    """Set the priority of a waiting task, from -100 to 100.

    Tasks with a higher priority start first. Write -- before a negative number: priority TASK_ID -- -5.
    """
    changed = store.set_priority(task, priority, reason=why, using=using)
    words = f"has priority {priority} now" if changed else f"already had priority {priority}"
    record = {"id": task, "priority": priority, "changed": changed}
    return Outcome(predicate=words, record=record, changes=int(changed))


@_for_tasks(
    "reschedule",
    Right.RETRY,
    offered=_in_status(TaskStatus.READY, TaskStatus.FAILED),
    fields=(fields.AT, fields.IN, REASON, replace(TAKE_KEY_BACK, inputs=())),
)
def RESCHEDULE(
    store: Store,
    task: UUID,
    why: str,
    using: object,
    *,
    at: datetime | None = None,
    delay: timedelta | None = None,
    take_key_back: bool = False,
) -> Outcome:
    """Change the due time of a waiting task or a dead letter.

    A waiting task keeps its attempt number. A dead letter runs again at the new due time, from its first attempt. A
    running task cannot be rescheduled.
    """
    if (at is None) is (delay is None):
        raise ValueMissing("give either the time at which the task is due, or the span of time until then")
    due = at if at is not None else store.now() + (delay or timedelta(0))
    store.reschedule(task, due, take_key_back=take_key_back, reason=why, using=using)
    return Outcome(predicate=f"is now due at {short(due)} UTC", record={"id": task, "due_at": due})


@_for_tasks(
    "cancel",
    Right.CANCEL,
    label="Cancel the task",
    offered=lambda state: (
        state.status is TaskStatus.READY or (state.status is TaskStatus.RUNNING and not state.was_asked_to_stop)
    ),
    fields=(REASON, FORCE),
    is_final=True,
    hint="If the task is waiting, it will never run. If it is running, it is asked to stop. This cannot be undone.",
)
def CANCEL(store: Store, task: UUID, why: str, using: object, *, force: bool = False) -> Outcome:
    """Cancel a task, or ask it to stop if it is running."""
    now, changes = with_changes(store.cancel, task, reason=why, force=force, using=using)
    words = "was cancelled"
    if now is TaskStatus.RUNNING:
        words = f"was {'asked' if changes else 'already asked'} to stop, and will run until the handler ends"
    return _moved(task, now, words, changes=changes)


@_for_tasks(
    "cancel-now",
    Right.CANCEL,
    label="Cancel now",
    offered=_in_status(TaskStatus.RUNNING),
    command=("task", "cancel", "--force"),
    is_final=True,
    hint="The worker loses the task: the handler keeps running until it ends, but its outcome is refused.",
)
def CANCEL_NOW(store: Store, task: UUID, why: str, using: object) -> Outcome:
    """Cancel a running task immediately, and take it away from its worker."""
    now = store.cancel(task, reason=why, force=True, using=using)
    return _moved(task, now, "was cancelled; its worker's outcome will be refused")


@_for_tasks(
    "recover",
    Right.RETRY,
    label="Recover it now",
    offered=lambda state: state.status is TaskStatus.RUNNING and not state.worker_is_live,
    is_final=True,
    hint="Its worker has not been seen lately. If the worker is only frozen, its outcome is refused when it wakes up, but the task may have run twice.",
)
def RECOVER(store: Store, task: UUID, why: str, using: object) -> Outcome:
    """Recover a running task from a worker that is gone.

    This is possible only if the worker has not been seen for at least 90 seconds. Another worker runs the task without
    waiting for the lease to expire. A frozen worker can no longer write the task's outcome. After three recoveries in a
    row, the task becomes a dead letter.
    """
    now = store.recover_lost(task, reason=why, using=using).status
    words = {
        TaskStatus.READY: "was recovered from its worker, and is due now",
        TaskStatus.CANCELLED: "was cancelled, because it had been asked to stop",
        TaskStatus.FAILED: "was recovered too often and is now a dead letter",
    }
    return _moved(task, now, words[now])


@_for_tasks(
    "redrive",
    Right.RETRY,
    offered=_in_status(TaskStatus.FAILED),
    fields=(REASON, TAKE_KEY_BACK),
    command=("failed", "redrive"),
)
def REDRIVE(store: Store, task: UUID, why: str, using: object, *, take_key_back: bool = False) -> Outcome:
    """Run a dead letter again, from its first attempt.

    `failed redrive` does the same for one or more dead letters.
    """
    store.redrive(task, take_key_back=take_key_back, reason=why, using=using)
    return _moved(task, TaskStatus.READY, "was redriven from the first attempt, due now")


@_for_tasks(
    "discard", Right.DISCARD, offered=_in_status(TaskStatus.FAILED), command=("failed", "discard"), is_final=True
)
def DISCARD(store: Store, task: UUID, why: str, using: object) -> Outcome:
    """Discard a dead letter.

    Its status becomes Cancelled. `failed discard` does the same for one or more dead letters.
    """
    store.discard(task, reason=why, using=using)
    return _moved(task, TaskStatus.CANCELLED, "was discarded")


def _moved(task: UUID, status: TaskStatus, words: str, *, changes: int = 1) -> Outcome:
    return Outcome(predicate=words, record={"id": task, "status": status, "changed": changes > 0}, changes=changes)


@_pauses(Noun.QUEUE, fields=(fields.PAUSE_REASON, fields.CREATE))
def PAUSE_QUEUE(store: Store, queue: str, why: str, using: object, *, create: bool = False) -> Outcome:
    """Stop starting tasks from a queue until the queue is resumed.

    Tasks that are already running continue.
    """
    settings, changes = with_changes(store.queues.pause, queue, reason=why, create=create, using=using)
    words = "is paused: no tasks are started, but running tasks continue"
    return _said(words if changes else _already_paused(settings), settings, changes)


@_resumes(Noun.QUEUE)
def RESUME_QUEUE(store: Store, queue: str, _why: str, using: object) -> Outcome:
    """Resume a paused queue."""
    former = next((one.pause_reason for one in store.queues.settings(using=using) if one.queue == queue), None)
    settings, changes = with_changes(store.queues.resume, queue, using=using)
    return _resumed("has been resumed", settings, changes, former)


@_for_queues(
    "limit",
    label="Set the limits",
    fields=(*fields.LIMITS, REASON, fields.CREATE),
    hint="An empty field removes its limit. Running tasks are not stopped.",
)
def LIMIT(store: Store, queue: str, _why: str, using: object, *, create: bool = False, **limits: Any) -> Outcome:
    """Set the limits of a queue and of each of its keys.

    An option that is left out keeps its value. Running tasks are not stopped.
    """
    if all(value is ... for value in limits.values()):
        raise ValueMissing(f"give at least one limit; {NONE} removes a limit")
    settings, changes = with_changes(store.queues.limit, queue, create=create, using=using, **limits)
    return _said("has the new limits" if changes else "already had these limits", settings, changes)


@_for_queues("order", label="Set the order", fields=(fields.ORDER, REASON, fields.CREATE))
def ORDER(store: Store, queue: str, _why: str, using: object, *, fair: bool, create: bool = False) -> Outcome:
    """Choose how partition keys share a queue.

    With `turns` (the default), the keys take turns. With `oldest`, the task that has been due the longest starts first,
    regardless of its key.
    """
    settings, changes = with_changes(store.queues.order, queue, fair=fair, create=create, using=using)
    words = "lets its partition keys take turns" if fair else "starts the task with the earliest due time first"
    return _said(words if changes else "already had this order", settings, changes)


@_for_queues(
    "forget",
    label="Forget its settings",
    offered=lambda state: state.is_unused,
    is_final=True,
    hint="Its limits, its order and its pause are deleted. This cannot be undone.",
)
def FORGET(store: Store, queue: str, _why: str, using: object) -> Outcome:
    """Delete and print the settings of a queue that has no tasks.

    Use this for a queue that was set up under the wrong name. If the queue has waiting or running tasks or dead
    letters, use `resume` and `limit` to change its settings.
    """
    return Outcome(predicate="no longer has any settings", record=store.queues.forget(queue, using=using))


def _said(words: str, record: object, changes: int) -> Outcome:
    return Outcome(predicate=words, record=record, changes=changes)


def _resumed(words: str, record: object, changes: int, former: str | None) -> Outcome:
    """Return the outcome of a resume, whose record keeps the reason for the pause."""
    said = _said(words if changes else "was not paused", record, changes)
    return said if former is None else replace(said, replaced={FORMER_REASON: former})


def _already_paused(settings: QueueSettings | Schedule) -> str:
    return f"was already paused{f': {settings.pause_reason}' if settings.pause_reason else ''}"


@_pauses(Noun.SCHEDULE, fields=(fields.PAUSE_REASON,))
def PAUSE_SCHEDULE(store: Store, schedule: str, why: str, using: object) -> Outcome:
    """Stop planting the ticks of a schedule until it is resumed.

    Planted ticks that are not due yet are cancelled. Tasks that are already running continue.
    """
    found, changes = with_changes(store.schedules.pause, schedule, reason=why, using=using)
    words = "is paused; planted ticks that were not due yet are cancelled"
    return _said(words if changes else _already_paused(found), found, changes)


@_resumes(Noun.SCHEDULE)
def RESUME_SCHEDULE(store: Store, schedule: str, _why: str, using: object) -> Outcome:
    """Resume a paused schedule.

    Its catch-up policy decides which missed ticks still run.
    """
    former = store.schedules.get(schedule, using=using).pause_reason
    found, changes = with_changes(store.schedules.resume, schedule, using=using)
    words = "has been resumed; the catch-up policy decides which missed ticks still run"
    return _resumed(words, found, changes, former)


@_for_schedules(
    "edit",
    offered=lambda state: not state.is_declared,
    fields=(*fields.OF_SCHEDULE, REASON),
    hint="Planted ticks that are not due yet are planted again. Leave grace empty to remove it; any other empty field keeps its value.",
)
def EDIT(store: Store, schedule: str, _why: str, using: object, **values: Any) -> Outcome:
    """Change a schedule that was stored at run time.

    An option that is left out keeps its value. A schedule that the code declares must be changed in the code.
    """
    if not (given := {name: value for name, value in values.items() if value is not ...}):
        raise ValueMissing("give at least one value to change")
    found, changes = with_changes(store.schedules.edit, schedule, using=using, **given)
    return _said("has its new values" if changes else "already had these values", found, changes)


@_for_schedules("trigger", label="Trigger one task now")
def TRIGGER(store: Store, schedule: str, why: str, using: object) -> Outcome:
    """Enqueue a schedule's task now, and print the task's id.

    The schedule's ticks do not change. A paused schedule can be triggered too.
    """
    task = store.schedules.trigger(schedule, by=why, using=using).id
    words, record = f"was triggered: task {task} was enqueued", {"id": task, "schedule": schedule}
    return Outcome(predicate=words, record=record, answer=str(task))


@_for_schedules(
    "remove",
    is_final=True,
    hint="Planted ticks that are not due yet are cancelled. A schedule that is declared in code is stored again by the next worker that starts.",
)
def REMOVE(store: Store, schedule: str, _why: str, using: object) -> Outcome:
    """Delete a schedule.

    Planted ticks that are not due yet are cancelled. A schedule that APP declares is stored again by the next
    worker that starts.
    """
    store.schedules.remove(schedule, using=using)
    words = "was removed; planted ticks that were not due yet are cancelled"
    return Outcome(predicate=words, record={"name": schedule, "removed": True})


@declare(
    Noun.BATCH,
    "cancel",
    Right.CANCEL,
    label="Cancel the batch",
    offered=lambda state: not state.has_ended,
    fields=(REASON, FORCE),
    is_final=True,
    is_long=True,
    hint="Its unfinished tasks are cancelled or asked to stop. This cannot be undone.",
)
def CANCEL_BATCH(
    store: Store, batch: UUID, why: str, using: object, *, on_change: OnChange, force: bool = False
) -> Outcome:
    """Cancel the unfinished tasks in a batch. The tasks that would follow are not enqueued.

    A running task is asked to stop. Dead letters that the batch is waiting for are discarded. The batch accepts no more
    tasks. Tasks that are added while the command waits for confirmation are cancelled too.
    """
    number = store.batches.cancel(batch, reason=why, force=force, on_change=on_change, using=using)
    words = f"{number} {plural(number, 'task was', 'tasks were')} cancelled or asked to stop"
    words = f"is cancelled: {words}, and no task follows it"
    return Outcome(predicate=words, record={"id": batch, "changed": number}, changes=number)


@_pauses(Noun.RELAY, fields=(fields.PAUSE_REASON,))
def PAUSE_RELAY(store: Store, relay: str, why: str, using: object) -> Outcome:
    """Stop publishing a relay's events until the relay is resumed.

    Events are still written. A worker that is publishing a batch finishes it.
    """
    _, changes = with_changes(store.relays.pause, relay, reason=why, using=using)
    words = "is paused: its events are written, but not published" if changes else "was already paused"
    return _said(words, {"name": relay, "paused": True}, changes)


@_resumes(Noun.RELAY)
def RESUME_RELAY(store: Store, relay: str, _why: str, using: object) -> Outcome:
    """Resume a paused relay to a broker.

    A relay that is waiting after failures tries again immediately.
    """
    former = next((one.pause_reason for one in store.relays.list(using=using) if one.name == relay), None)
    _, changes = with_changes(store.relays.resume, relay, using=using)
    return _resumed("has been resumed", {"name": relay, "paused": False}, changes, former)


@_for_relays(
    "remove",
    is_final=True,
    hint="Its unpublished events are deleted. A relay that is declared in code is stored again by the next worker that starts.",
)
def REMOVE_RELAY(store: Store, relay: str, _why: str, using: object) -> Outcome:
    """Delete a relay to a broker, with its unpublished events.

    Its dead letters remain. A relay that APP declares is stored again by the next worker that starts.
    """
    number = store.relays.remove(relay, using=using)
    words = f"was removed with {number} unpublished {plural(number, 'event')}"
    return Outcome(predicate=words, record={"name": relay, "removed": True, "messages": number})


VERBS: Final = (*(one for one in list(globals().values()) if isinstance(one, Verb)), *worker_verbs.VERBS)
"""All verbs, in the order in which pages offer them. The adapters iterate over this tuple."""
RECORDED: Final = tuple(sorted({*(one.recorded_as for one in VERBS), *map(str, CommandAction)}))
"""The actions that can be recorded, named after their commands."""


def noun_of(action: str) -> Noun | None:
    """Return the kind of a recorded action's target; None if the action has no target, such as prune."""
    first = action.partition(" ")[0]
    if first in ("failed", CommandAction.ENQUEUE):
        return Noun.TASK
    if action == worker_verbs.END_SESSION.recorded_as:
        return Noun.SESSION
    return next((one for one in Noun if one.group == first), None)
