"""The commands that keep the tables small and sound: `partition`, `prune` and `verify`."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING
from uuid import UUID

import click

from ..model import EARLIEST, TaskStatus
from ..model.periods import Every
from ..model.wording import plural
from .confirmation import FEW, Change, Exactly, changed, confirmation_options, confirmed
from .console import plain, short, span
from .database import database_options, rounds_options
from .output import merged, tell, wants_json, write_json
from .progress import progress

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
@rounds_options
@confirmation_options
@database_options
def partition(
    store: Store, every: str, ahead: int, *, lock_timeout: timedelta, wait: timedelta, yes: bool, dry_run: bool
) -> None:
    """Partition the task history by time (PostgreSQL).

    `prune` can then drop old partitions whole. The tables are locked meanwhile, for about a second with a few million tasks. No
    command undoes it, so the first run asks. Run again, the command only creates missing partitions, without a question.
    """
    from .. import migrations

    make = partial(
        migrations.partition,
        store.bound_engine,
        every=every,
        ahead=ahead,
        schema=store.schema,
        lock_timeout=lock_timeout,
        wait=wait,
    )
    made = make(dry_run=True)
    if not dry_run:
        is_first = any(name.endswith("_first") for name in made)  # the tables become partitions of that name
        what = f"tables for the task history by {every}, which is locked and read once meanwhile"
        if not confirmed(Exactly(number=len(made)), what, yes=yes or not is_first, dry_run=False, done="made"):
            return
        with progress("made", len(made)):
            made = make()
    if wants_json():
        change = Change(action="made", changed=0 if dry_run else len(made), matched=len(made), dry_run=dry_run)
        write_json(merged(change, {"tables": made}))
        return
    for name in made:
        click.echo(name)
    were = "would be" if dry_run else plural(len(made), "was", "were")
    click.echo(f"{len(made)} {plural(len(made), 'table')} {were} made", err=True)


@click.command()
@click.option(
    "--older-than",
    required=True,
    callback=span,
    metavar="SPAN",
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
@confirmation_options
@database_options
def prune(
    store: Store, older_than: timedelta, *, failed: bool, whole_partitions: bool, yes: bool, dry_run: bool
) -> None:
    """Delete finished tasks and their events by age.

    A finished task is Completed or Cancelled. Unfinished tasks are kept, whatever their age.
    """
    statuses = [TaskStatus.COMPLETED, *([TaskStatus.FAILED] if failed else []), TaskStatus.CANCELLED]
    now = store.now()
    before = now - min(older_than, now - EARLIEST)
    # This moment and not the age: what becomes old while the question is read was not counted.
    prune = partial(store.prune, before, statuses=statuses, whole_partitions=whole_partitions)

    @cache
    def count() -> Exactly:
        return Exactly(number=prune(dry_run=True))

    def first() -> list[str]:
        oldest = (
            one
            for status in statuses
            for one in store.tasks(status=status, until=before, after=UUID(int=0), limit=FEW)
            if one.completed_at is not None and one.completed_at < before
        )
        return [f"{one.id}  {one.task_name}  {one.status}" for one in sorted(oldest, key=lambda one: one.id)[:FEW]]

    names = " and ".join(filter(None, (", ".join(statuses[:-1]), statuses[-1])))
    what = f"{names} tasks that ended before {short(before)} UTC, with their events"
    if not confirmed(
        count, what, yes=yes, dry_run=dry_run, done="deleted", first=lambda: [] if whole_partitions else first()
    ):
        return
    total = None if yes else count()  # with millions of tasks, counting takes seconds
    with progress("deleted", total, stoppable=True) as on_progress:
        deleted = prune(stop=on_progress.stop, on_progress=on_progress)
    done = f"{deleted} {plural(deleted, 'task was deleted with its', 'tasks were deleted with their')} events"
    tell(done, changed("deleted", deleted, total))


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired without guessing.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that outboxq's tables are consistent.

    Tasks, outbox, leases, keys and dead letters are compared with the events. The exit code is 1 if they disagree. Nothing is
    changed without --repair, which writes only what the events say already, so it asks nothing.
    """
    with progress("checked", commits=False) as on_progress:
        broken = store.verify(repair=repair, on_progress=on_progress)
    if wants_json():
        write_json(broken)
        sys.exit(1 if broken else 0)
    for violation in broken:
        examples = ", ".join(str(example) for example in violation.examples)
        repaired = f"; repaired {violation.repaired}" if repair else ""
        sentence = f"{violation.count} × {violation.name}: {violation.meaning} ({examples}){repaired}"
        click.echo(plain(sentence))
    if not broken:
        click.echo("every invariant holds", err=True)
    sys.exit(1 if broken else 0)
