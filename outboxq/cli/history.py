"""The commands that keep the history small: partition it, and prune it."""

from __future__ import annotations

from datetime import timedelta

import click

from ..model import TaskStatus
from ..model.periods import Every
from ..store import Store
from .console import database_options, span


@click.command()
@click.option(
    "--every",
    type=click.Choice([one.value for one in Every]),
    default="month",
    show_default=True,
    help="How long each is.",
)
@click.option(
    "--ahead", default=3, show_default=True, type=click.IntRange(min=1), help="How many to make for the time to come."
)
@click.option("--dry-run", is_flag=True, help="Only say which tables would be made.")
@database_options
def partition(store: Store, every: str, ahead: int, *, dry_run: bool) -> None:
    """Divide the history by time (PostgreSQL), so that pruning drops old partitions whole.

    While it runs nobody else uses the tables: about a second for a few million tasks. Run again, it only makes what is missing.
    """
    from .. import migrations

    made = migrations.partition(store.bound_engine, every=every, ahead=ahead, schema=store.schema, dry_run=dry_run)
    for name in made:
        click.echo(name)
    click.echo(f"{len(made)} tables {'would be' if dry_run else 'were'} made", err=True)


@click.command("cleanup-events")
@click.option("--older-than", required=True, callback=span, help="For example 90d or 7d12h.")
@click.option("--failed", is_flag=True, help="Also dead letters, which are otherwise kept until they are dealt with.")
@click.option(
    "--whole-partitions",
    is_flag=True,
    help="Leave rows to their partition, which goes once all of it is old. (PostgreSQL, after `partition`.)",
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@database_options
def cleanup_events(store: Store, older_than: timedelta, *, failed: bool, whole_partitions: bool, dry_run: bool) -> None:
    """Delete tasks that ended longer ago than this, together with their events."""
    statuses = {TaskStatus.COMPLETED, TaskStatus.CANCELLED} | ({TaskStatus.FAILED} if failed else set())
    deleted = store.prune(older_than, statuses=statuses, whole_partitions=whole_partitions, dry_run=dry_run)
    click.echo(f"{deleted} tasks {'would be' if dry_run else 'were'} deleted with their events")
