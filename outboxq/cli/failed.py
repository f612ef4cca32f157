"""`outboxq failed`: lists, redrives and discards dead letters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from .confirmation import Change
from .console import span
from .database import database_options, database_options_after_ids
from .filters import TASK_ID, take_key_back
from .groups import Group
from .output import show, tell

if TYPE_CHECKING:
    from ..store import Store

_FILTERS = (
    click.option("-q", "--queue", help="Only dead letters of this queue."),
    click.option("--task", help="Only dead letters with this task name."),
    click.option("--topic", help="Only dead letters of this topic."),
    click.option("--key", help="Only dead letters with this partition key."),
    click.option("--exception", help="Only dead letters of this exception, as module.Class or Class."),
    click.option("--since", callback=span, help="Only tasks that failed within this time span, e.g. 2h."),
    click.option("--until", callback=span, help="Only tasks that failed longer ago than this, e.g. 30m."),
)


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Add the filter options. The command gets those that were given as `wanted`."""

    @wraps(command)
    def wrapped(*, store: Store, **options: Any) -> None:
        given = {name: options.pop(name) for name in ("queue", "task", "topic", "exception", "since", "until")}
        given["partition_key"] = options.pop("key")
        now = store.now()
        wanted = {
            name: now - value if isinstance(value, timedelta) else value
            for name, value in given.items()
            if value is not None
        }
        command(store=store, wanted=wanted, **options)

    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped


@click.group(cls=Group)
def failed() -> None:
    """List, redrive or discard dead letters.

    A dead letter is a task that failed for good: it is not retried any more.
    """


@failed.command("list")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of dead letters."
)
@database_options
@_filtered
def list_(store: Store, limit: int, wanted: dict[str, Any]) -> None:
    """List dead letters, newest first.

    The last column marks those that hold their partition key: later tasks of the key wait until they are redriven or discarded.
    """
    head = ("failed", "id", "task", "queue", "key", "attempt", "error", "holds its key")
    found = store.dead_letters.list(limit=limit, **wanted)
    rows = []
    for one in found:
        identity = (one.failed_at, one.id, one.task_name, one.queue, one.partition_key)
        rows.append((*identity, one.attempt, one.last_error, "yes" if one.holds_key else ""))
    show(head, rows, records=found, spare=("attempt", "queue", "key", "holds its key", "failed"))


@failed.command()
@click.argument("task_ids", nargs=-1, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="Apply to every dead letter. Required without ids or filters.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of dead letters, oldest first.")
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

    Give the ids of tasks, or filters, or --all.
    """
    _check(task_ids, wanted, limit, everything=everything)
    if take_key_back and not task_ids:
        raise click.UsageError("--take-key-back is for the ids of tasks, each of which was looked at")
    for task_id in [store.find(one) for one in task_ids]:
        store.redrive(task_id, take_key_back=take_key_back)
    count = len(task_ids) or store.dead_letters.redrive_all(limit=limit, **wanted)
    tell(f"{count} redriven", Change(action="redriven", changed=count, matched=None))


@failed.command()
@click.argument("task_ids", nargs=-1, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="Apply to every dead letter. Required without ids or filters.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of dead letters, oldest first.")
@click.option("--reason", default="", help="Reason, kept in each task's history.")
@database_options_after_ids
@_filtered
def discard(
    store: Store, task_ids: tuple[str, ...], limit: int | None, reason: str, wanted: dict[str, Any], *, everything: bool
) -> None:
    """Discard dead letters: they end as Cancelled.

    Give the ids of tasks, or filters, or --all.
    """
    _check(task_ids, wanted, limit, everything=everything)
    for task_id in [store.find(one) for one in task_ids]:
        store.discard(task_id, reason=reason)
    count = len(task_ids) or store.dead_letters.discard_all(reason=reason, limit=limit, **wanted)
    tell(f"{count} discarded", Change(action="discarded", changed=count, matched=None))


def _check(task_ids: tuple[str, ...], wanted: dict[str, Any], limit: int | None, *, everything: bool) -> None:
    if task_ids and (wanted or everything or limit):
        raise click.UsageError("give the ids of tasks, or filters, not both")
    if everything and wanted:
        raise click.UsageError("--all means all of them; leave it out to use filters")
    if not (task_ids or wanted or everything):
        raise click.UsageError("which ones? Give ids or filters, or --all")
