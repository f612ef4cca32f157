"""`outboxq batch`: lists, shows and cancels batches and chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from .confirmation import Exactly, changed, confirmation_options, confirmed
from .console import plain
from .database import database_options
from .groups import Group
from .output import show, tell, wants_json, write_json

if TYPE_CHECKING:
    from ..model.batches import Batch
    from ..store import Store

_HEAD = ("BATCH", "KIND", "NAME", "STATUS", "SIZE", "PENDING", "COMPLETED", "FAILED", "CANCELLED", "CREATED")


@click.group(cls=Group)
def batch() -> None:
    """List, show or cancel batches and chains."""


@batch.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only those that go on.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of batches."
)
@database_options
def list_(store: Store, only_open: bool, limit: int) -> None:
    """List the newest batches and chains."""
    found = store.batches.list(limit=limit, only_open=only_open)
    show(_HEAD, [_cells(one) for one in found], records=[_record(one) for one in found])


@batch.command("show")
@click.argument("batch_id", type=click.UUID)
@database_options
def show_(store: Store, batch_id: UUID) -> None:
    """Show the counts of a batch, and what follows it."""
    found = store.batches.get(batch_id)
    statuses = {str(status): number for status, number in store.batches.statuses(batch_id).items()}
    if wants_json():
        write_json({**_record(found), "statuses": statuses})
        return
    lines = [
        ("kind", found.kind),
        ("name", found.name or "-"),
        ("status", found.status),
        ("tasks", f"{found.size}, of which {found.pending} have not ended"),
        ("counts", f"{found.completed} completed, {found.failed} failed, {found.cancelled} cancelled"),
        ("on failed", found.on_failed),
        ("created", f"{found.created_at:%Y-%m-%d %H:%M:%S}"),
        ("completed", "-" if found.completed_at is None else f"{found.completed_at:%Y-%m-%d %H:%M:%S}"),
    ]
    for place, (task_id, name) in enumerate(zip(found.then_ids, found.then_names, strict=True)):
        lines.append(("then", f"{name} {task_id}{'' if place < found.stage else ' (not enqueued)'}"))
    if statuses:
        lines.append(("now", ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))))
    for label, value in lines:
        click.echo(f"{label:<11}{plain(str(value))}")


@batch.command()
@click.argument("batch_id", type=click.UUID)
@click.option("--reason", default="", help="The reason, which is stored with each task.")
@click.option("--force", is_flag=True, help="Cancel running tasks at once, without waiting for their handlers.")
@confirmation_options
@database_options
def cancel(store: Store, batch_id: UUID, *, reason: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Cancel the tasks of a batch that have not ended. What would follow is not enqueued.

    A running task is asked to stop.
    """
    found = store.batches.get(batch_id)
    what = f"tasks of the {found.kind} {batch_id} that have not ended"
    if not confirmed(Exactly(number=found.pending), what, yes=yes, dry_run=dry_run, done="cancelled"):
        return
    number = store.batches.cancel(batch_id, reason=reason, force=force)
    tell(f"cancelled {number} tasks", changed("cancelled", number))


def _cells(one: Batch) -> tuple[object, ...]:
    created = f"{one.created_at:%Y-%m-%d %H:%M:%S}"
    counts = (one.size, one.pending, one.completed, one.failed, one.cancelled)
    return (one.id, one.kind, one.name or "-", one.status, *counts, created)


def _record(one: Batch) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "pending": one.pending, "status": one.status}
