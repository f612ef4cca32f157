"""`outboxq task`: look at tasks, or change one."""

from __future__ import annotations

from uuid import UUID

import click

from ..model import TaskStatus
from ..store import Store
from .console import database_options, say, table, take_key_back
from .groups import Group

_STATUSES = {status.lower(): status for status in TaskStatus}


@click.group(cls=Group)
def task() -> None:
    """Look at tasks, or change one."""


@task.command("list")
@click.option("-q", "--queue", help="Only of this queue.")
@click.option("--task", "name", help="Only of this task name.")
@click.option("--status", type=click.Choice(list(_STATUSES), case_sensitive=False), help="Only of this status.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="How many at most.")
@database_options
def list_(store: Store, queue: str | None, name: str | None, status: str | None, limit: int) -> None:
    """List tasks, newest first; of long tables a bounded part is looked at."""
    found = store.tasks(status=_STATUSES[status.lower()] if status else None, queue=queue, task=name, limit=limit)
    head = ("id", "task", "queue", "status", "attempt", "created", "last error")
    table(head, [(t.id, t.task_name, t.queue, t.status, t.attempt, t.created_at, t.last_error) for t in found])


@task.command()
@click.argument("task_id", type=click.UUID)
@click.option("--show-args", is_flag=True, help="Print its arguments and result too.")
@click.option("--traceback", is_flag=True, help="Print the traceback of each attempt that failed.")
@database_options
def show(store: Store, task_id: UUID, *, show_args: bool, traceback: bool) -> None:
    """Print a task, its attempts and its history."""
    found = store.get(task_id)
    lines = [("task", found.task_name), ("queue", found.queue), ("status", found.status), ("attempt", found.attempt)]
    lines += [("priority", found.priority), ("key", found.partition_key), ("event", found.event_type)]
    lines += [("created", found.created_at), ("retry at", found.retry_at), ("last error", found.last_error)]
    if show_args:
        lines += [("arguments", found.args), ("result", found.result)]
    table(("", str(found.id)), [line for line in lines if line[1] is not None])
    attempts = store.attempts(task_id)
    if attempts:
        click.echo()
        head = ("attempt", "started", "ended", "outcome", "error", "exception")
        table(head, [(a.number, a.started_at, a.ended_at, a.outcome, a.error, a.exception) for a in attempts])
    for attempt in attempts if traceback else ():
        if attempt.traceback:
            click.echo()
            rows = [(line,) for line in attempt.traceback.splitlines()]
            table((f"traceback of attempt {attempt.number}, lease token {attempt.lease_token}",), rows)
    click.echo()
    table(
        ("time", "event", "worker", "token", "error"),
        [
            (e.created_at, e.event_type, e.worker_id, e.lease_token, e.event_data.get("error"))
            for e in store.history(task_id)
        ],
    )


@task.command()
@click.argument("task_id", type=click.UUID)
@database_options
def explain(store: Store, task_id: UUID) -> None:
    """Say in a sentence why a task is not running, or what it does."""
    say(store.explain(task_id).sentence)


@task.command()
@click.argument("task_id", type=click.UUID)
@click.option("--reason", default="", help="Kept in the task's history.")
@click.option("--force", is_flag=True, help="Do not wait for the handler of a running task: fence its worker.")
@database_options
def cancel(store: Store, task_id: UUID, reason: str, *, force: bool) -> None:
    """Cancel a task; a running one is asked to stop."""
    status = store.cancel(task_id, reason=reason, force=force)
    click.echo("asked to stop" if status is TaskStatus.RUNNING else str(status))


@task.command()
@click.argument("task_id", type=click.UUID)
@take_key_back
@database_options
def retry(store: Store, task_id: UUID, *, take_key_back: bool) -> None:
    """Run a dead letter again, from its first attempt."""
    store.redrive(task_id, take_key_back=take_key_back)
    click.echo(str(TaskStatus.READY))


@task.command("run-now")
@click.argument("task_id", type=click.UUID)
@database_options
def run_now(store: Store, task_id: UUID) -> None:
    """Have a task that is delayed, or waits for its retry, due now."""
    click.echo("due now" if store.run_now(task_id) else "was due already")


@task.command()
@click.argument("task_id", type=click.UUID)
@click.argument("value", type=click.IntRange(-100, 100), metavar="PRIORITY")
@database_options
def priority(store: Store, task_id: UUID, value: int) -> None:
    """Give a waiting task another priority, -100 to 100, higher first. (Write -- before a negative one.)"""
    click.echo(f"priority {value}" if store.set_priority(task_id, value) else f"had priority {value} already")
