"""`outboxq subscription`: lists and removes subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .confirmation import FEW, Exactly, changed, confirmation_options, confirmed
from .console import EXIT_NOT_FOUND, fail
from .database import database_options, database_options_after_ids
from .groups import Group
from .output import show, tell

if TYPE_CHECKING:
    from ..store import Store


@click.group(cls=Group)
def subscription() -> None:
    """List or remove the subscriptions of tasks to topics."""


@subscription.command("list")
@click.option("--topic", help="Only those that an event of this topic reaches.")
@click.option("--task", help="Only those of this task.")
@database_options
def list_(store: Store, topic: str | None, task: str | None) -> None:
    """List the subscriptions, by topic and task.

    A task that subscribes to a topic, or to a pattern of it, is enqueued for each event that is emitted.
    """
    from ..store.claims.workers import takes

    found = [
        one
        for one in store.subscriptions.list()
        if (topic is None or takes((one.topic,), topic)) and (task is None or one.task_name == task)
    ]
    rows = [(one.topic, one.task_name, one.parameter, one.queue, one.priority, one.max_attempts) for one in found]
    show(
        ("topic", "task", "parameter", "queue", "priority", "attempts"),
        rows,
        records=found,
        spare=("attempts", "priority", "parameter"),
    )


@subscription.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK…")
@confirmation_options
@database_options_after_ids
def remove(store: Store, names: Sequence[str], *, yes: bool, dry_run: bool) -> None:
    """Remove all subscriptions of tasks whose code is gone.

    What was emitted before stays enqueued. A worker that still declares the task stores its subscriptions again at its start.
    """
    wanted = dict.fromkeys(names)
    found = [one for one in store.subscriptions.list() if one.task_name in wanted]
    if missing := [name for name in wanted if name not in {one.task_name for one in found}]:
        fail(f"no subscription of {', '.join(map(repr, missing))} is stored; nothing was removed", EXIT_NOT_FOUND)
    count = Exactly(number=len(found))
    what = f"subscriptions of {', '.join(map(repr, wanted))}"
    first = [f"{one.task_name}  {one.topic}" for one in found[:FEW]]
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="removed", first=lambda: first):
        return
    store.subscriptions.replace([], tasks=wanted)
    tell(f"{len(found)} removed", changed("removed", len(found), count))
