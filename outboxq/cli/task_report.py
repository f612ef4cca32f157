"""The report on one task: its state, when it is due and why, its attempts and its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from ..errors import TaskNotFound
from ..model import TERMINAL, EventType, ExecutionEvent, TaskExecution, TaskStatus, status_after
from ..model.actions import CommandAction
from ..model.batches import is_batch
from ..model.running import Step
from ..model.wording import plural, short, span
from ..operating.fields import REASON, TAKE_KEY_BACK
from .changes import FEW, Exactly, changed, confirmation_options, confirmed
from .console import EXIT_NOT_FOUND, add_table, card, fail, in_utc, merged, show, table, tell, wants_json, write_json
from .database import database_options, with_cures
from .log import HANDLER_LOG, HEAD, PAYLOAD, SPARE, lines, record_of, wait_of
from .parameters import INSTANT, TASK_ID, flag, option
from .verbs import present_operator, recorded, with_fields

if TYPE_CHECKING:
    from ..store import Explanation, Store
    from ..store.tasks.tasks import Attempt

_FEW_LINES = 10
"""The number of handler log lines that are printed by default."""
_CAUSES: Mapping[EventType | str, str] = {
    EventType.CREATED: "it was enqueued with a delay of {wait}",
    EventType.RETRY_SCHEDULED: "an attempt failed, and attempt {attempt} follows {wait} later",
    EventType.SNOOZED: "its handler snoozed it for {wait}",
    EventType.RELEASED: "a worker released it, with a delay of {wait}",
    EventType.RESET: "it was recovered from a dead worker, with a delay of {wait}",
    EventType.REPLACED: "it was replaced, with a delay of {wait}",
    EventType.RESCHEDULED: "it was rescheduled to run {wait} later",
}
"""Explanations for a due time in the future, keyed by the event that caused it."""


def report(store: Store, task_id: UUID, *, show_args: bool, traceback: bool, handler_log: bool) -> None:
    """Print a task with its attempts and history. The arguments, the result, tracebacks and old log lines are printed
    only on request.
    """
    found = _found(store, task_id)
    now, attempts, history = store.explain(found.id), store.attempts(found.id), store.history(found.id)
    steps = store.steps.list(found.id)
    if wants_json():
        hidden = () if show_args else PAYLOAD
        beside = (*(() if traceback else ("traceback",)), *(() if handler_log else HANDLER_LOG))
        more = {
            "due_because": due_because(found, history),
            "explanation": with_cures(now, "task show"),
            "attempts": [merged(one, without=beside) for one in attempts],
            "steps": _records(steps, show_results=show_args),
            "history": [record_of(one, show_args=show_args, traceback=traceback) for one in history],
        }
        write_json(merged(found, {"due_at": now.due_at}, more, without=hidden))
        return
    known = _lines(found, now, history)
    if show_args:
        known |= {"arguments": found.args, "result": found.result}
    card(("id", str(found.id)), known.items())
    _print_attempts(attempts, traceback=traceback)
    add_table(*_steps_table(steps, show_results=show_args), spare=_SPARE_OF_STEPS)
    logged = [one for one in attempts if one.log]
    for one in logged if handler_log else logged[-1:]:
        _print_log(one, whole=handler_log)
    click.echo()
    table(HEAD, lines(history), spare=SPARE)


def _found(store: Store, task_id: UUID) -> TaskExecution:
    """Return the task. If there is none, the error says whether the id belongs to an event, or to a task that will be
    enqueued only after a batch or the previous task in its chain has ended.
    """
    from ..store import Reason

    try:
        return store.get(task_id)
    except TaskNotFound:
        why = store.explain(task_id)
        if why.reason is Reason.NOT_ENQUEUED:
            raise TaskNotFound(f"there is no task {task_id}; {why.sentence}") from None
        if why.reason.is_of_event:
            raise TaskNotFound(f"there is no task {task_id}, but an event may have this id: {why.sentence}") from None
        return store.get(task_id)  # it has just been enqueued


def _lines(found: TaskExecution, now: Explanation, history: Iterable[ExecutionEvent]) -> dict[str, object]:
    is_running = found.status is TaskStatus.RUNNING
    is_alone = found.pipeline_execution_id == found.id
    return {
        "task": found.task_name,
        "queue": found.queue,
        "status": found.status,
        "now": None if found.status in TERMINAL else now.sentence,
        "attempt": found.attempt,
        "max attempts": found.max_attempts,
        "recoveries": found.recovery_attempts or None,
        "priority": found.priority,
        "key": found.partition_key if found.concurrency_key is None else None,
        "concurrency key": found.concurrency_key,
        "topic": found.topic,
        ("batch" if is_batch(found.pipeline_execution_id) else "pipeline"): (
            None if is_alone else str(found.pipeline_execution_id)
        ),
        "created": in_utc(found.created_at),
        "due": in_utc(now.due_at),
        "due because": due_because(found, history),
        "expires": in_utc(found.expires_at),
        "worker": str(found.worker_id) if is_running and found.worker_id else None,
        "started": in_utc(found.started_at) if is_running else None,
        "lease ends": in_utc(found.lease_expires_at) if is_running else None,
        "progress": now.progress,
        "cancel requested": in_utc(found.cancel_requested_at),
        "ended": in_utc(found.completed_at),
        "headers": found.headers,
        "last error": found.last_error,
    }


def due_because(found: TaskExecution, history: Iterable[ExecutionEvent]) -> str | None:
    """Return the reason for the due time of a Ready task; None if the task was due immediately."""
    cause = None
    for one in history if found.status is TaskStatus.READY else ():
        # A priority change is recorded as a rescheduling without a due time.
        is_priority = one.event_type is EventType.RESCHEDULED and "priority" in one.event_data
        if status_after(one.event_type) is TaskStatus.READY and not is_priority:
            cause = one
    if cause is None or (wait := wait_of(cause)) is None or cause.event_type not in _CAUSES:
        return None
    if (sleep := cause.event_data.get("step")) is not None:
        return f"it is sleeping for {span(wait)} in its step {sleep!r}"
    return _CAUSES[cause.event_type].format(wait=span(wait), attempt=cause.event_data.get("attempt"))


def _print_attempts(attempts: Sequence[Attempt], *, traceback: bool) -> None:
    rows = [(a.number, a.started_at, a.ended_at, a.outcome, a.error, a.exception) for a in attempts]
    add_table(("attempt", "started", "ended", "outcome", "error", "exception"), rows, spare=("exception", "ended"))
    for attempt in attempts if traceback else ():
        head = (f"traceback of attempt {attempt.number}, lease token {attempt.lease_token}",)
        add_table(head, [(line,) for line in (attempt.traceback or "").splitlines()])


def _print_log(attempt: Attempt, *, whole: bool) -> None:
    """Print the lines that the handler logged: all of them if `whole`, otherwise only the newest."""
    shown = attempt.log if whole else attempt.log[-_FEW_LINES:]
    left = attempt.log_omitted + len(attempt.log) - len(shown)
    more = f"; {left} earlier {plural(left, 'line')} omitted{'' if whole else ' (see --handler-log)'}" if left else ""
    lines = [f"{line.at:%H:%M:%S} {line.level} {line.logger} {line.text}" for line in shown]
    head = (f"last lines of attempt {attempt.number}, lease token {attempt.lease_token}{more}",)
    add_table(head, [(part,) for line in lines for part in line.splitlines()])


@click.command()
@click.argument("task_id", type=TASK_ID)
@flag("--show-args", help="With --json, also print the arguments that were replaced.")
@flag("--traceback", help="With --json, also print the traceback of each failed attempt.")
@database_options
def history(store: Store, task_id: str, *, show_args: bool, traceback: bool) -> None:
    """Print the events of a task, oldest first.

    Each line is one transition, such as enqueued, claimed, failed or retried. `outboxq log` follows the events of all
    tasks.
    """
    found = store.find(task_id)
    store.get(found)  # raises TaskNotFound, because the history of an unknown task is empty
    events = store.history(found)
    records = [record_of(one, show_args=show_args, traceback=traceback) for one in events]
    show(HEAD, lines(events), records=records, spare=SPARE)


@click.command("state-at")
@click.argument("task_id", type=TASK_ID)
@click.argument("moment", type=INSTANT, metavar="TIME")
@database_options
def state_at(store: Store, task_id: str, moment: datetime) -> None:
    """Print a task as it was at a time in the past.

    The task's events are replayed up to TIME. Write TIME with a UTC offset, such as 2026-11-23T02:30Z.
    """
    found = store.find(task_id)
    state = store.log.state_at(found, moment)
    if state is None:
        fail(f"task {found} did not exist yet at {short(moment)} UTC", EXIT_NOT_FOUND)
    values = {one.name: getattr(state, one.name) for one in fields(state)} | {"steps": ", ".join(state.steps) or None}
    rows = [(name.replace("_", " "), value) for name, value in values.items() if value is not None]
    show(("id", str(found)), rows, records={"id": str(found), "at": moment, **merged(state)})


_SPARE_OF_STEPS: Final = ("token",)


@click.command()
@click.argument("task_id", type=TASK_ID)
@flag("--show-results", help="Also print the stored results.")
@database_options
def steps(store: Store, task_id: str, *, show_results: bool) -> None:
    """List the steps that a task has completed, in order.

    A sleep is listed as soon as it begins. Results are printed only on request, because they may contain personal data.
    """
    found = store.find(task_id)
    store.get(found)  # raises TaskNotFound, because an unknown task has no steps
    completed = store.steps.list(found)
    head, rows = _steps_table(completed, show_results=show_results)
    show(head, rows, records=_records(completed, show_results=show_results), spare=_SPARE_OF_STEPS)


@click.command()
@click.argument("task_id", type=TASK_ID)
@option("--from", "from_step", required=True, metavar="STEP", help="Name of the first step to run again.")
@with_fields(REASON, TAKE_KEY_BACK)
@confirmation_options
@database_options
def rerun(
    store: Store, task_id: str, *, from_step: str, reason: str, take_key_back: bool, yes: bool, dry_run: bool
) -> None:
    """Run a waiting task or a dead letter again from one of its steps.

    The results of this step and of all later steps are deleted, so their functions are called again. Earlier steps keep
    their results. The task, which must not be running or completed, becomes due now.
    """
    found = store.find(task_id)
    later = store.steps.after(found, from_step)
    what = f"results of task {found} from the step {from_step!r} onward"
    first = [f"{step.number}  {step.name}" for step in later[:FEW]]
    count = Exactly(number=len(later))
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="deleted", first=lambda: first):
        return
    because = present_operator().because(reason)
    rewind = partial(store.steps.rewind, found, from_step, take_key_back=take_key_back, reason=because)
    action, details = CommandAction.TASK_RERUN, {"from": from_step}
    deleted = recorded(store, action, str(found), rewind, details=details, reason=reason, number=int)
    record = {"id": found, "status": TaskStatus.READY, **merged(changed("deleted", deleted, count))}
    tell(f"{TaskStatus.READY}; {deleted} {plural(deleted, 'step runs', 'steps run')} again", record)


def _steps_table(completed: Sequence[Step], *, show_results: bool) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the column headings, and a row for each step."""
    names = {"number": "number", "step": "name", "time": "created_at", "token": "lease_token", "sleeps until": "due_at"}
    names |= {"result": "result"} if show_results else {}
    return [*names], [attrgetter(*names.values())(step) for step in completed]


def _records(completed: Sequence[Step], *, show_results: bool) -> list[dict[str, Any]]:
    """Return the steps in their JSON form."""
    return [merged(step, without=() if show_results else ("result",)) for step in completed]
