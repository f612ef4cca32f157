"""The commands that keep the tables small and sound: `partition`, `prune` and `verify`."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from ..model import TaskStatus
from ..model.periods import Every
from .confirmation import Change
from .console import span
from .database import database_options
from .output import merged, tell, wants_json, write_json

if TYPE_CHECKING:
    from ..store import Store


@click.command()
@click.option(
    "--every",
    type=click.Choice([one.value for one in Every]),
    default="month",
    show_default=True,
    help="Time span of one partition.",
)
@click.option(
    "--ahead", default=3, show_default=True, type=click.IntRange(min=1), help="Number of future partitions to create."
)
@click.option("--dry-run", is_flag=True, help="Print the tables that would be created, and change nothing.")
@database_options
def partition(store: Store, every: str, ahead: int, *, dry_run: bool) -> None:
    """Partition the task history by time (PostgreSQL).

    `prune` can then drop old partitions whole. The tables are locked meanwhile, for about a second with a few million tasks.
    Run again, the command only creates missing partitions.
    """
    from .. import migrations

    made = migrations.partition(store.bound_engine, every=every, ahead=ahead, schema=store.schema, dry_run=dry_run)
    if wants_json():
        change = Change(action="made", changed=0 if dry_run else len(made), matched=len(made), dry_run=dry_run)
        write_json(merged(change, {"tables": made}))
        return
    for name in made:
        click.echo(name)
    click.echo(f"{len(made)} tables {'would be' if dry_run else 'were'} made", err=True)


@click.command("cleanup-events")
@click.option(
    "--older-than",
    required=True,
    callback=span,
    help="Minimum age, counted from the end of the task, e.g. 90d or 7d12h.",
)
@click.option(
    "--failed",
    is_flag=True,
    help="Delete dead letters too. They are otherwise kept until they are redriven or discarded.",
)
@click.option(
    "--whole-partitions",
    is_flag=True,
    help="Delete no single rows: drop each partition once all of it is old. Needs PostgreSQL and `partition`.",
)
@click.option("--dry-run", is_flag=True, help="Count the tasks, and delete nothing.")
@database_options
def cleanup_events(store: Store, older_than: timedelta, *, failed: bool, whole_partitions: bool, dry_run: bool) -> None:
    """Delete finished tasks and their events by age.

    A finished task is Completed or Cancelled. Unfinished tasks are kept, whatever their age.
    """
    statuses = {TaskStatus.COMPLETED, TaskStatus.CANCELLED} | ({TaskStatus.FAILED} if failed else set())
    deleted = store.prune(older_than, statuses=statuses, whole_partitions=whole_partitions, dry_run=dry_run)
    change = Change(
        action="deleted", changed=0 if dry_run else deleted, matched=deleted if dry_run else None, dry_run=dry_run
    )
    tell(f"{deleted} tasks {'would be' if dry_run else 'were'} deleted with their events", change)


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired without guessing.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that outboxq's tables are consistent.

    Tasks, outbox, leases, keys and dead letters are compared with the events. The exit code is 1 if they disagree.
    """
    broken = store.verify(repair=repair)
    if wants_json():
        write_json(broken)
        sys.exit(1 if broken else 0)
    for violation in broken:
        examples = ", ".join(str(example) for example in violation.examples)
        repaired = f"; repaired {violation.repaired}" if repair else ""
        click.echo(f"{violation.count} × {violation.name}: {violation.meaning} ({examples}){repaired}")
    if not broken:
        click.echo("every invariant holds", err=True)
    sys.exit(1 if broken else 0)
