"""`outboxq task history`, `state-at` and `reschedule`: what was, and what is to be."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from .console import EXIT_NOT_FOUND, fail, short, span
from .database import database_options
from .events import HEAD, SPARE, lines, record_of
from .filters import TASK_ID, take_key_back
from .moments import INSTANT
from .output import merged, show, tell

if TYPE_CHECKING:
    from ..store import Store


@click.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--show-args", is_flag=True, help="With --json, print the arguments of replaced tasks too.")
@click.option("--traceback", is_flag=True, help="With --json, print the traceback of each failed attempt too.")
@database_options
def history(store: Store, task_id: str, *, show_args: bool, traceback: bool) -> None:
    """Print the events of a task, oldest first.

    Each line is one transition: enqueued, claimed, failed, retried. `outboxq log` follows the events of all tasks.
    """
    found = store.find(task_id)
    store.get(found)  # raises TaskNotFound: an unknown task has an empty history
    events = store.history(found)
    records = [record_of(one, show_args=show_args, traceback=traceback) for one in events]
    show(HEAD, lines(events), records=records, spare=SPARE)


@click.command("state-at")
@click.argument("task_id", type=TASK_ID)
@click.argument("moment", type=INSTANT, metavar="TIME")
@database_options
def state_at(store: Store, task_id: str, moment: datetime) -> None:
    """Print a task as it was at a moment of the past.

    The task's events are replayed up to then. TIME is written with its offset: 2026-11-23T02:30Z.
    """
    found = store.find(task_id)
    state = store.log.state_at(found, moment)
    if state is None:
        fail(f"task {found} was not there yet at {short(moment)} UTC", EXIT_NOT_FOUND)
    values = {**_fields(state), "steps": ", ".join(state.steps) or None}
    rows = [(name.replace("_", " "), value) for name, value in values.items() if value is not None]
    show(("id", str(found)), rows, records={"id": str(found), "at": moment, **merged(state)})


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}  # type: ignore[attr-defined]


@click.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--at", type=INSTANT, metavar="TIME", help="Time at which the task is due, e.g. 2026-11-23T02:30Z.")
@click.option(
    "--in", "delay", callback=span, metavar="SPAN", help="Time span from now after which the task is due, e.g. 2h."
)
@take_key_back
@database_options
def reschedule(
    store: Store, task_id: str, at: datetime | None, delay: timedelta | None, *, take_key_back: bool
) -> None:
    """Give a waiting task or a dead letter another due time.

    A waiting task keeps its attempt. A dead letter runs again from its first attempt, at that time. A running task is left
    alone.
    """
    if (at is None) is (delay is None):
        raise click.UsageError("give the time with --at, or the span until then with --in")
    found = store.find(task_id)
    due = at if at is not None else store.now() + (delay or timedelta(0))
    store.reschedule(found, due, take_key_back=take_key_back)
    tell(f"due at {short(due)} UTC", {"id": found, "due_at": due})
