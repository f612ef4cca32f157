"""`outboxq task steps` and `rerun`: what a task has completed, and running it again from one of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ..model import TaskStatus
from ..model.steps import Step
from ..model.wording import plural
from .confirmation import FEW, Exactly, changed, confirmation_options, confirmed
from .database import database_options
from .filters import TASK_ID, take_key_back
from .output import merged, show, tell

if TYPE_CHECKING:
    from ..store import Store

HEAD: Final = ("number", "step", "time", "token", "sleeps until")
SPARE: Final = ("token",)


@click.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--show-results", is_flag=True, help="Print the stored results too.")
@database_options
def steps(store: Store, task_id: str, *, show_results: bool) -> None:
    """List the steps that a task has completed, in that order.

    A sleep is listed once it has begun. Results are printed on request only, since they may hold personal data.
    """
    found = store.find(task_id)
    store.get(found)  # raises TaskNotFound: an unknown task has no steps
    completed = store.steps.list(found)
    head = (*HEAD, "result") if show_results else HEAD
    show(
        head,
        cells(completed, show_results=show_results),
        records=records(completed, show_results=show_results),
        spare=SPARE,
    )


@click.command()
@click.argument("task_id", type=TASK_ID)
@click.option("--from", "from_step", required=True, metavar="STEP", help="Name of the first step that runs again.")
@click.option("--reason", default="", help="Reason, kept in the task's history.")
@take_key_back
@confirmation_options
@database_options
def rerun(
    store: Store, task_id: str, *, from_step: str, reason: str, take_key_back: bool, yes: bool, dry_run: bool
) -> None:
    """Run a waiting task or a dead letter again from one of its steps.

    The results of that step, and of those completed after it, are deleted, so their functions are called again. Steps before it
    keep their results. The task is due now. A running task is left alone, and one that has completed does not run again.
    """
    found = store.find(task_id)
    later = store.steps.after(found, from_step)
    what = f"results of task {found} from the step {from_step!r} on"

    def first() -> Sequence[str]:
        return [f"{step.number}  {step.name}" for step in later[:FEW]]

    count = Exactly(number=len(later))
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="deleted", first=first):
        return
    deleted = store.steps.rewind(found, from_step, take_key_back=take_key_back, reason=reason)
    record = {"id": found, "status": TaskStatus.READY, **merged(changed("deleted", deleted, count))}
    tell(f"{TaskStatus.READY}; {deleted} {plural(deleted, 'step runs', 'steps run')} again", record)


def cells(completed: Sequence[Step], *, show_results: bool = False) -> list[tuple[object, ...]]:
    """Return the cells of each step, in the order of `HEAD`."""
    rows = []
    for step in completed:
        cells: tuple[object, ...] = (step.number, step.name, step.created_at, step.lease_token, step.due_at)
        rows.append((*cells, step.result) if show_results else cells)
    return rows


def records(completed: Sequence[Step], *, show_results: bool) -> list[dict[str, Any]]:
    """Return the steps as JSON has them."""
    return [merged(step, without=() if show_results else ("result",)) for step in completed]
