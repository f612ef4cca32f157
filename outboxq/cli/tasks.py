"""`outboxq task`: inspects tasks, or changes one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ..errors import InvalidTransition
from ..model import TERMINAL, TaskExecution, TaskStatus
from ..model.display import as_json
from .confirmation import FEW, Counted, changed, confirmation_options, confirmed, grouped, outcome, up_to
from .console import plain
from .database import database_options, front_end
from .events import PAYLOAD
from .filters import OF_TASKS, TASK_ID, check_choice, filtered, in_words, take_key_back
from .groups import Group
from .output import merged, show, tell
from .progress import progress
from .steps import rerun, steps
from .task_history import history, reschedule, state_at
from .task_report import explained, report

if TYPE_CHECKING:
    from ..store import Count, Outlook, Store, TaskPage

_STATUSES = {status.lower(): status for status in TaskStatus}


@click.group(cls=Group)
def task() -> None:
    """Inspect tasks, or change one."""


@task.command("list")
@click.option("--status", type=click.Choice(list(_STATUSES), case_sensitive=False), help="Only tasks in this status.")
@click.option("--worker", type=click.UUID, help="Only tasks that this worker claimed last.")
@click.option("--batch", type=click.UUID, help="Only tasks of this batch or chain, and those that follow it.")
@click.option("--before", type=TASK_ID, help="Only tasks older than the one with this id: the next page.")
@click.option("--after", type=TASK_ID, help="Only tasks newer than the one with this id: the page before.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of tasks.")
@database_options
@filtered(*OF_TASKS)
def list_(
    store: Store,
    *,
    wanted: dict[str, Any],
    status: str | None,
    worker: UUID | None,
    batch: UUID | None,
    before: str | None,
    after: str | None,
    limit: int,
) -> None:
    """List tasks, newest first, and what each waits for.

    All running and failed tasks can be found, and all of a batch. Of the other statuses, and without --status, 10,000 tasks are
    looked at. If there may be more, the command for the next page is printed on stderr.
    """
    chosen = None if status is None else _STATUSES[status.lower()]
    given = {"status": chosen, "worker": worker, "batch": batch}
    wanted |= {name: value for name, value in given.items() if value is not None}
    place = {name: store.find(one) for name, one in (("before", before), ("after", after)) if one is not None}
    page, found = _listed(store, wanted, place, limit)
    if batch is not None and not found:
        store.batches.get(batch)  # raises if there is none: an empty list would say that all is well
    ahead = store.outlooks(found)
    rows = []
    for one in found:
        outlook = ahead.get(one.id)
        due, reason = (None, None) if outlook is None else (outlook.due_at, outlook.reason.words)
        identity = (one.id, one.task_name, one.queue, one.status, reason, one.attempt)
        rows.append((*identity, one.created_at, due, one.last_error))
    head = ("id", "task", "queue", "status", "reason", "attempt", "created", "due", "last error")
    records = [merged(one, _ahead(ahead.get(one.id)), without=PAYLOAD) for one in found]
    show(head, rows, records=records, spare=("created", "attempt", "due", "queue", "last error"))
    _point_onward(page, {**wanted, "limit": limit}, upward=place.keys() == {"after"})


def _listed(
    store: Store, wanted: Mapping[str, Any], place: Mapping[str, Any], limit: int
) -> tuple[TaskPage, list[TaskExecution]]:
    """Return the page and its tasks. Running and failed tasks are looked through to the end, since they are few."""
    page = store.task_page(limit=limit, **wanted, **place)
    found, upward = page.tasks, place.keys() == {"after"}
    whole = wanted.get("status") in {TaskStatus.RUNNING, TaskStatus.FAILED}
    while whole and page.is_cut and len(found) < limit:
        further: dict[str, Any] = {"after": page.newer} if upward else {**place, "before": page.older}
        page = store.task_page(limit=limit - len(found), **wanted, **further)
        found = page.tasks + found if upward else found + page.tasks
    return page, found


def _point_onward(page: TaskPage, wanted: Mapping[str, Any], *, upward: bool) -> None:
    """Print on stderr how the next page is listed, and that the look was ended before all was found."""
    following, option = (page.newer, "--after") if upward else (page.older, "--before")
    if following is None:
        return
    cut = f"only {grouped(page.looked_at)} tasks were looked at; " if page.is_cut else ""
    options = [f"--{name}={as_json(value)}" for name, value in {**wanted, option[2:]: following}.items()]
    command = front_end("task list").typed(("task", "list", *options))
    click.echo(plain(f"{cut}{'newer' if upward else 'older'} ones: {command}"), err=True)


def _ahead(outlook: Outlook | None) -> dict[str, object]:
    """Return what a task of a list waits for, as JSON has it."""
    if outlook is None:
        return {"reason": None, "due_at": None}
    return {"reason": outlook.reason, "due_at": outlook.due_at}


@task.command("show")
@click.argument("task_id", type=TASK_ID)
@click.option("--show-args", is_flag=True, help="Print the task's arguments and result too.")
@click.option("--traceback", is_flag=True, help="Print the traceback of each failed attempt.")
@click.option("--handler-log", is_flag=True, help="Print all kept lines that the handler logged, of each attempt.")
@database_options
def show_(store: Store, task_id: str, *, show_args: bool, traceback: bool, handler_log: bool) -> None:
    """Print a task, its attempts, and its history.

    Below the attempts are the newest 10 lines that its handler logged in the last attempt that logged anything.
    """
    report(store, store.find(task_id), show_args=show_args, traceback=traceback, handler_log=handler_log)


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
@click.argument("task_id", required=False, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="Cancel every waiting and running task.")
@click.option("--status", type=click.Choice(["ready", "running"]), help="Only waiting tasks, or only running ones.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of tasks, oldest first.")
@click.option("--reason", default="", help="Reason, kept in the task's history.")
@click.option("--force", is_flag=True, help="Cancel a running task at once. Its worker's result is then refused.")
@confirmation_options
@database_options
@filtered(*OF_TASKS)
def cancel(
    store: Store,
    *,
    task_id: str | None,
    wanted: dict[str, Any],
    status: str | None,
    limit: int | None,
    reason: str,
    everything: bool,
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Cancel a task, or all that match. A running task is asked to stop.

    Give the id of a task, or filters, or --all. A running task stays Running until its handler answers; --force does not wait for that.
    """
    if status is not None:
        wanted["status"] = _STATUSES[status]
    check_choice((task_id,) if task_id else (), wanted, limit, everything=everything, noun="a task")
    if task_id is None:
        _cancel_all(store, wanted, limit, yes=yes, dry_run=dry_run, reason=reason, force=force)
        return
    found = store.find(task_id)
    if dry_run:
        known = store.get(found)
        if known.status in TERMINAL:
            raise InvalidTransition(f"task {found} is {known.status} and cannot be cancelled")
        would = "be asked to stop" if known.status is TaskStatus.RUNNING and not force else "be cancelled"
        tell(f"{found}, {known.task_name}, is {known.status} and would {would}", {"id": found, "status": known.status})
        return
    now = store.cancel(found, reason=reason, force=force)
    tell("asked to stop" if now is TaskStatus.RUNNING else str(now), {"id": found, "status": now})


def _cancel_all(
    store: Store,
    wanted: dict[str, Any],
    limit: int | None,
    *,
    force: bool,
    reason: str,
    yes: bool,
    dry_run: bool,
) -> None:
    what = in_words("waiting and running tasks", wanted, limit=limit, verb="enqueued")

    def first() -> list[str]:
        statuses = [wanted["status"]] if "status" in wanted else [TaskStatus.RUNNING, TaskStatus.READY]
        pages = [store.tasks(**{**wanted, "status": one}, after=UUID(int=0), limit=FEW) for one in statuses]
        oldest = sorted((one for page in pages for one in page), key=lambda one: one.id)
        return [f"{one.id}  {one.task_name}  {one.status}" for one in oldest[: min(FEW, limit or FEW)]]

    @cache
    def count() -> Count:
        return store.count_tasks(force=force, **wanted)

    def to_change() -> Counted:
        return up_to(limit, count())

    if not confirmed(to_change, what, yes=yes, dry_run=dry_run, done="cancelled", first=first):
        return
    with progress("cancelled", to_change(), stoppable=True) as on_progress:
        moved = store.cancel_all(
            force=force,
            reason=reason,
            snapshot=count().snapshot,
            limit=limit,
            on_progress=on_progress,
            stop=on_progress.stop,
            **wanted,
        )
    sentence = outcome("cancelled or asked to stop", moved, to_change(), "ended or been changed meanwhile")
    tell(sentence, changed("cancelled", moved, to_change()))


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


for _command in (history, state_at, reschedule, steps, rerun):
    task.add_command(_command)
