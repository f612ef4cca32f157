"""`outboxq task`: inspects tasks, or changes one."""

from __future__ import annotations

import sys
from contextlib import suppress
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidArgument
from ..model import TERMINAL, ExecutionEvent, TaskStatus
from .console import plain, short, table
from .database import database_options, front_end
from .groups import Group

if TYPE_CHECKING:
    from ..store import Store

_STATUSES = {status.lower(): status for status in TaskStatus}
_NAMED = ("reason", "priority", "recovery_attempts", "expires_at", "policy_error")
"""Details of an event that are written with their names. The error has a column of its own."""


class TaskId(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """A click type: the hex digits of an id or of its beginning, for `Store.find`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ..store.tasks import digits_of

        try:
            return digits_of(str(value))
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


TASK_ID = TaskId()

take_key_back = click.option(
    "--take-key-back", is_flag=True, help="Take the idempotency key back from another task that has it now."
)


@click.group(cls=Group)
def task() -> None:
    """Inspect tasks, or change one."""


@task.command("list")
@click.option("-q", "--queue", help="Only tasks in this queue.")
@click.option("--task", "name", help="Only tasks with this name.")
@click.option("--status", type=click.Choice(list(_STATUSES), case_sensitive=False), help="Only tasks in this status.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of tasks.")
@database_options
def list_(store: Store, queue: str | None, name: str | None, status: str | None, limit: int) -> None:
    """List tasks, newest first, and what each waits for.

    All running and failed tasks can be found. Of the other statuses, and without --status, only the newest 10,000 tasks are
    searched.
    """
    found = store.tasks(status=_STATUSES[status.lower()] if status else None, queue=queue, task=name, limit=limit)
    ahead = store.outlooks(found)
    rows = []
    for one in found:
        outlook = ahead.get(one.id)
        due, reason = (None, None) if outlook is None else (outlook.due_at, outlook.reason.replace("_", " "))
        identity = (one.id, one.task_name, one.queue, one.status, reason, one.attempt)
        rows.append((*identity, one.created_at, due, one.last_error))
    head = ("id", "task", "queue", "status", "reason", "attempt", "created", "due", "last error")
    table(head, rows, spare=("created", "attempt", "due", "queue", "last error"))


@task.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--show-args", is_flag=True, help="Print the task's arguments and result too.")
@click.option("--traceback", is_flag=True, help="Print the traceback of each failed attempt.")
@database_options
def show(store: Store, task_id: str, *, show_args: bool, traceback: bool) -> None:
    """Print a task, its attempts, and its history."""
    found = store.get(store.find(task_id))
    now, attempts = store.explain(found.id), store.attempts(found.id)
    lines = {
        "task": found.task_name,
        "queue": found.queue,
        "status": found.status,
        "now": None if found.status in TERMINAL else now.sentence,
        "attempt": found.attempt,
        "priority": found.priority,
        "key": found.partition_key,
        "topic": found.topic,
        "created": _moment(found.created_at),
        "due": _moment(now.due_at),
        "ended": _moment(found.completed_at),
        "headers": found.headers,
        "last error": found.last_error,
    }
    if show_args:
        lines |= {"arguments": found.args, "result": found.result}
    table(("id", str(found.id)), [(name, value) for name, value in lines.items() if value is not None])
    if attempts:
        click.echo()
        table(
            ("attempt", "started", "ended", "outcome", "error", "exception"),
            [(a.number, a.started_at, a.ended_at, a.outcome, a.error, a.exception) for a in attempts],
            spare=("exception", "ended"),
        )
    for attempt in attempts if traceback else ():
        if attempt.traceback:
            click.echo()
            head = (f"traceback of attempt {attempt.number}, lease token {attempt.lease_token}",)
            table(head, [(line,) for line in attempt.traceback.splitlines()])
    click.echo()
    history = [
        (e.created_at, e.event_type, e.worker_id, e.lease_token, _details(e), e.event_data.get("error"))
        for e in store.history(found.id)
    ]
    table(("time", "event", "worker", "token", "details", "error"), history, spare=("worker", "token"))


def _moment(moment: datetime | None) -> datetime | str | None:
    """Return the time as the tables write it on a terminal."""
    return f"{short(moment)} UTC" if moment is not None and sys.stdout.isatty() else moment


def _details(event: ExecutionEvent) -> str:
    """Return the attempt, the wait, and further details: "attempt 2, due in 9.6 s, reason: …"."""
    data = event.event_data
    parts = [f"attempt {data['attempt']}"] if data.get("attempt") is not None else []
    with suppress(KeyError, TypeError, ValueError):  # no due time, or a value that outboxq did not write
        wait = datetime.fromisoformat(data["available_at"]) - event.created_at
        if wait > timedelta(0):
            parts.append(f"due in {_brief(wait)}")
    parts += [f"{name.replace('_', ' ')}: {data[name]}" for name in _NAMED if data.get(name) is not None]
    if (times := data.get("times")) is not None:
        parts.append(f"{times} times in a row")
    return ", ".join(parts)


def _brief(span: timedelta) -> str:
    """Write a span: below a minute in tenths of a second, else as timedelta does, to the second."""
    seconds = span.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


@task.command()
@click.argument("task_id", type=TASK_ID)
@database_options
def explain(store: Store, task_id: str) -> None:
    """Explain why a task does not run, and print commands that help."""
    explanation = store.explain(store.find(task_id))
    typed = front_end("task explain").typed
    click.echo(plain(explanation.sentence))
    for cure in explanation.cures:
        click.echo(plain(f"  to {cure.purpose}: {typed(cure.command)}"))


@task.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--reason", default="", help="Reason, kept in the task's history.")
@click.option("--force", is_flag=True, help="Cancel a running task at once. Its worker's result is then refused.")
@database_options
def cancel(store: Store, task_id: str, reason: str, *, force: bool) -> None:
    """Cancel a task. A running task is asked to stop.

    A running task stays Running until its handler answers; --force does not wait for that.
    """
    status = store.cancel(store.find(task_id), reason=reason, force=force)
    click.echo("asked to stop" if status is TaskStatus.RUNNING else str(status))


@task.command()
@click.argument("task_id", type=TASK_ID)
@take_key_back
@database_options
def redrive(store: Store, task_id: str, *, take_key_back: bool) -> None:
    """Run a dead letter again, from its first attempt.

    `failed redrive` does the same with one or many.
    """
    store.redrive(store.find(task_id), take_key_back=take_key_back)
    click.echo(str(TaskStatus.READY))


retry = copy(redrive)
"""The former name of `redrive`, kept for scripts."""
retry.name, retry.hidden = "retry", True
task.add_command(retry)


@task.command("run-now")
@click.argument("task_id", type=TASK_ID)
@database_options
def run_now(store: Store, task_id: str) -> None:
    """Make a task due now that is delayed or waits for a retry."""
    click.echo("due now" if store.run_now(store.find(task_id)) else "was due already")


@task.command()
@click.argument("task_id", type=TASK_ID)
@click.argument("value", type=click.IntRange(-100, 100), metavar="PRIORITY")
@database_options
def priority(store: Store, task_id: str, value: int) -> None:
    """Set the priority of a waiting task, from -100 to 100.

    Tasks with a higher priority start first. Write -- before a negative number: priority TASK_ID -- -5.
    """
    changed = store.set_priority(store.find(task_id), value)
    click.echo(f"priority {value}" if changed else f"had priority {value} already")
