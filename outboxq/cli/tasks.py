"""`outboxq task`: inspects tasks, or changes one."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidArgument
from ..model import TaskStatus
from .console import plain
from .database import database_options
from .groups import Group
from .output import merged, show, tell
from .task_report import PAYLOAD, explained, report

if TYPE_CHECKING:
    from ..store import Store
    from ..store.outlook import Outlook

_STATUSES = {status.lower(): status for status in TaskStatus}


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
    records = [merged(one, _ahead(ahead.get(one.id)), without=PAYLOAD) for one in found]
    show(head, rows, records=records, spare=("created", "attempt", "due", "queue", "last error"))


def _ahead(outlook: Outlook | None) -> dict[str, object]:
    """Return what a task of a list waits for, as JSON has it."""
    if outlook is None:
        return {"reason": None, "due_at": None}
    return {"reason": outlook.reason, "due_at": outlook.due_at}


@task.command("show")
@click.argument("task_id", type=TASK_ID)
@click.option("--show-args", is_flag=True, help="Print the task's arguments and result too.")
@click.option("--traceback", is_flag=True, help="Print the traceback of each failed attempt.")
@database_options
def show_(store: Store, task_id: str, *, show_args: bool, traceback: bool) -> None:
    """Print a task, its attempts, and its history."""
    report(store, store.find(task_id), show_args=show_args, traceback=traceback)


@task.command()
@click.argument("task_id", type=TASK_ID)
@database_options
def explain(store: Store, task_id: str) -> None:
    """Explain why a task does not run, and print commands that help."""
    found = store.find(task_id)
    explanation = store.explain(found)
    record = explained(explanation, "task explain")
    lines = [explanation.sentence, *(f"  to {one['purpose']}: {one['command']}" for one in record["cures"])]
    tell("\n".join(map(plain, lines)), {"id": found, **record})


@task.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--reason", default="", help="Reason, kept in the task's history.")
@click.option("--force", is_flag=True, help="Cancel a running task at once. Its worker's result is then refused.")
@database_options
def cancel(store: Store, task_id: str, reason: str, *, force: bool) -> None:
    """Cancel a task. A running task is asked to stop.

    A running task stays Running until its handler answers; --force does not wait for that.
    """
    found = store.find(task_id)
    status = store.cancel(found, reason=reason, force=force)
    tell("asked to stop" if status is TaskStatus.RUNNING else str(status), {"id": found, "status": status})


@task.command()
@click.argument("task_id", type=TASK_ID)
@take_key_back
@database_options
def redrive(store: Store, task_id: str, *, take_key_back: bool) -> None:
    """Run a dead letter again, from its first attempt.

    `failed redrive` does the same with one or many.
    """
    found = store.find(task_id)
    store.redrive(found, take_key_back=take_key_back)
    tell(str(TaskStatus.READY), {"id": found, "status": TaskStatus.READY})


retry = copy(redrive)
"""The former name of `redrive`, kept for scripts."""
retry.name, retry.hidden = "retry", True
task.add_command(retry)


@task.command("run-now")
@click.argument("task_id", type=TASK_ID)
@database_options
def run_now(store: Store, task_id: str) -> None:
    """Make a task due now that is delayed or waits for a retry."""
    found = store.find(task_id)
    changed = store.run_now(found)
    tell("due now" if changed else "was due already", {"id": found, "changed": changed})


@task.command()
@click.argument("task_id", type=TASK_ID)
@click.argument("value", type=click.IntRange(-100, 100), metavar="PRIORITY")
@database_options
def priority(store: Store, task_id: str, value: int) -> None:
    """Set the priority of a waiting task, from -100 to 100.

    Tasks with a higher priority start first. Write -- before a negative number: priority TASK_ID -- -5.
    """
    found = store.find(task_id)
    changed = store.set_priority(found, value)
    sentence = f"priority {value}" if changed else f"had priority {value} already"
    tell(sentence, {"id": found, "priority": value, "changed": changed})
