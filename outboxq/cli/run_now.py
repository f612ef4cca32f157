"""`outboxq task run-now`: make one task due now, or all tasks that match filters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from ..errors import InvalidTransition
from ..model import TaskStatus, Waiting
from ..operating.verbs import RUN_NOW
from .bulk import Chosen, change_all, choosing, oldest
from .changes import carry_out
from .console import tell
from .database import database_options
from .parameters import OF_TASKS, TASK_ID, option

if TYPE_CHECKING:
    from ..store import Store

_LATER: Final = {state.value: state for state in (Waiting.DELAYED, Waiting.RETRYING)}


@click.command("run-now")
@click.argument("task_id", required=False, type=TASK_ID)
@choosing(
    RUN_NOW,
    OF_TASKS,
    option("--status", type=click.Choice(list(_LATER)), help="Only delayed tasks, or only retrying tasks."),
    everything="Run every delayed and retrying task.",
    most="Maximum number of tasks, oldest first.",
    database=database_options,
)
def run_now(store: Store, *, task_id: str | None, status: str | None, chosen: Chosen) -> None:
    """Make a delayed or retrying task, or all matching tasks, due now.

    Give the id of a task, or filters, or --all. Pauses, limits and partition keys still apply.
    """
    if status is not None:
        chosen.wanted["waiting"] = _LATER[status]
    chosen.check((task_id,) if task_id else (), noun="a task")
    if task_id is None:
        first = partial(oldest, store, chosen.wanted, name="waiting", states=_LATER.values(), status=TaskStatus.READY)
        change_all(
            store,
            RUN_NOW,
            chosen,
            act=store.run_all_now,
            count=store.count_later,
            first=first,
            noun="delayed and retrying tasks",
            happened="enqueued",
            done="made due",
            others="become due or ended in the meantime",
        )
        return
    found = store.find(task_id)
    if chosen.dry_run:
        if (now := store.get(found).status) is not TaskStatus.READY:
            raise InvalidTransition(f"task {found} is {now} and cannot be rescheduled")
        would = store.explain(found)
        tell(f"{found} would be due now: {would.sentence}", {"id": found, "reason": would.reason})
        return
    carry_out(store, RUN_NOW, found, reason=chosen.reason)
