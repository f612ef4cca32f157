"""`outboxq task run-now`: make one task due now, or all tasks that match filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidTransition
from ..model import TaskStatus, Waiting
from ..operating.verbs import RUN_NOW
from .bulk import change_all, oldest
from .changes import carry_out, confirmation_options, with_fields
from .console import tell
from .database import database_options
from .parameters import OF_TASKS, TASK_ID, check_choice, filtered, flag, number_option, option

if TYPE_CHECKING:
    from ..store import Store

_LATER: Final = {state.value: state for state in (Waiting.DELAYED, Waiting.RETRYING)}


@click.command("run-now")
@click.argument("task_id", required=False, type=TASK_ID)
@flag("--all", "everything", help="Run every delayed and retrying task.")
@option("--status", type=click.Choice(list(_LATER)), help="Only delayed tasks, or only retrying tasks.")
@number_option("--limit", help="Maximum number of tasks, oldest first.")
@with_fields(*RUN_NOW.fields)
@confirmation_options
@database_options
@filtered(*OF_TASKS)
def run_now(
    store: Store,
    *,
    task_id: str | None,
    wanted: dict[str, Any],
    status: str | None,
    limit: int | None,
    reason: str,
    everything: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make a delayed or retrying task, or all matching tasks, due now.

    Give the id of a task, or filters, or --all. Pauses, limits and partition keys still apply.
    """
    if status is not None:
        wanted["waiting"] = _LATER[status]
    check_choice((task_id,) if task_id else (), wanted, limit, everything=everything, noun="a task")
    if task_id is None:
        change_all(
            store,
            RUN_NOW,
            wanted,
            act=store.run_all_now,
            count=store.count_later,
            first=lambda number: oldest(store, wanted, number, "waiting", _LATER.values(), status=TaskStatus.READY),
            limit=limit,
            reason=reason,
            noun="delayed and retrying tasks",
            happened="enqueued",
            done="made due",
            others="become due or ended in the meantime",
            yes=yes,
            dry_run=dry_run,
        )
        return
    found = store.find(task_id)
    if dry_run:
        if (now := store.get(found).status) is not TaskStatus.READY:
            raise InvalidTransition(f"task {found} is {now} and cannot be rescheduled")
        would = store.explain(found)
        tell(f"{found} would be due now: {would.sentence}", {"id": found, "reason": would.reason})
        return
    carry_out(store, RUN_NOW, found, reason=reason)
