"""`outboxq failed`: the dead letters, to be redriven or discarded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import click

from ..store import Store
from .console import database_options, database_options_after_ids, span, table, take_key_back
from .groups import Group
from .task_ids import TASK_ID

_FILTERS = (
    click.option("-q", "--queue", help="Only of this queue."),
    click.option("--task", help="Only of this task name."),
    click.option("--topic", help="Only of this topic."),
    click.option("--key", help="Only of this partition key."),
    click.option("--exception", help="Only those that raised this: module.Class, or its last part."),
    click.option("--since", callback=span, help="Only those that failed within the last, e.g. 2h."),
    click.option("--until", callback=span, help="Only those that failed longer ago than, e.g. 30m."),
)


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The filters; they reach the command as `wanted`, what was not given left out."""

    @wraps(command)
    def wrapped(*, store: Store, **options: Any) -> None:
        names = {"queue": "queue", "task": "task", "topic": "topic", "key": "partition_key"}
        wanted = {to: options.pop(name) for name, to in names.items()} | {"exception": options.pop("exception")}
        spans: dict[str, timedelta | None] = {"since": options.pop("since"), "until": options.pop("until")}
        now = store.now()
        wanted |= {name: None if ago is None else now - ago for name, ago in spans.items()}
        command(store=store, wanted={name: one for name, one in wanted.items() if one is not None}, **options)

    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped


@click.group(cls=Group)
def failed() -> None:
    """List the tasks that have failed for good; redrive or discard them."""


@failed.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="How many at most.")
@database_options
@_filtered
def list_(store: Store, limit: int, wanted: dict[str, Any]) -> None:
    """List dead letters, newest first. The last column says whose partition key waits for that."""
    head = ("failed", "id", "task", "queue", "key", "attempt", "error", "holds its key")
    letters = store.dead_letters(limit=limit, **wanted)
    table(
        head,
        [
            (d.failed_at, d.id, d.task_name, d.queue, d.partition_key, d.attempt, d.last_error, _yes(d.holds_key))
            for d in letters
        ],
        spare=("attempt", "queue", "key", "holds its key", "failed"),
    )


@failed.command()
@click.argument("task_ids", nargs=-1, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="All of them; needed where nothing says which.")
@click.option("--limit", type=click.IntRange(min=1), help="How many at most, oldest first.")
@take_key_back
@database_options_after_ids
@_filtered
def redrive(
    store: Store,
    task_ids: tuple[str, ...],
    limit: int | None,
    wanted: dict[str, Any],
    *,
    everything: bool,
    take_key_back: bool,
) -> None:
    """Run dead letters again, from their first attempt.

    Those of the ids, or all that match the filters.
    """
    _check(task_ids, wanted, limit, everything=everything)
    if take_key_back and not task_ids:
        raise click.UsageError("--take-key-back is for the ids of tasks, each of which was looked at")
    for task_id in [store.find(one) for one in task_ids]:
        store.redrive(task_id, take_key_back=take_key_back)
    count = len(task_ids) or store.redrive_all(limit=limit, **wanted)
    click.echo(f"{count} redriven")


@failed.command()
@click.argument("task_ids", nargs=-1, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="All of them; needed where nothing says which.")
@click.option("--limit", type=click.IntRange(min=1), help="How many at most, oldest first.")
@click.option("--reason", default="", help="Kept in each task's history.")
@database_options_after_ids
@_filtered
def discard(
    store: Store,
    task_ids: tuple[str, ...],
    limit: int | None,
    reason: str,
    wanted: dict[str, Any],
    *,
    everything: bool,
) -> None:
    """Give dead letters up for good.

    Those of the ids, or all that match the filters.
    """
    _check(task_ids, wanted, limit, everything=everything)
    for task_id in [store.find(one) for one in task_ids]:
        store.discard(task_id, reason=reason)
    count = len(task_ids) or store.discard_all(reason=reason, limit=limit, **wanted)
    click.echo(f"{count} discarded")


def _check(task_ids: tuple[str, ...], wanted: dict[str, Any], limit: int | None, *, everything: bool) -> None:
    if task_ids and (wanted or everything or limit):
        raise click.UsageError("give the ids of tasks, or filters, not both")
    if everything and wanted:
        raise click.UsageError("--all means all of them; leave it out to use filters")
    if not (task_ids or wanted or everything):
        raise click.UsageError("which ones? Give ids or filters, or --all")


def _yes(value: bool) -> str:
    return "yes" if value else ""
