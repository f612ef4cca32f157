"""`outboxq batch`: lists, shows and cancels batches and chains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ..model import TaskStatus
from ..model.batches import UNCLOSED, BatchKind, BatchStatus
from ..model.wording import plain, plural
from ..operating.verbs import CANCEL_BATCH
from .acting import with_fields
from .changes import Exactly, changed, confirmation_options, confirmed
from .console import in_utc, merged, show, table, tell, wants_json, write_json
from .database import database_options, front_end
from .groups import Group
from .parameters import number_option

if TYPE_CHECKING:
    from ..model.batches import Batch
    from ..store import Store
    from ..store.producing.batches import Member

_HEAD = ("batch", "kind", "name", "status", "tasks", "not ended", "completed", "failed", "cancelled", "created")
_SHOWN = 20
"""The number of tasks that `batch show` lists. As in the dashboard, failed ones come first."""
_LISTED = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.RUNNING, TaskStatus.READY)


@click.group(cls=Group)
def batch() -> None:
    """List, show or cancel batches and chains."""


@batch.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only those that go on.")
@number_option("--limit", help="Maximum number of batches.", most=10_000, default=50)
@database_options
def list_(store: Store, only_open: bool, limit: int) -> None:
    """List the newest batches and chains."""
    found = store.batches.list(limit=limit, only_open=only_open)
    show(_HEAD, [_cells(one) for one in found], records=[_record(one) for one in found])
    if unclosed := [one.id for one in found if one.status is BatchStatus.UNCLOSED]:
        command = front_end("batch list").typed(("batch", "cancel", str(unclosed[0])))
        number = f"{len(unclosed)} {plural(len(unclosed), 'batch is', 'batches are')} not closed, so nothing follows"
        click.echo(plain(f"{number}; to cancel the {plural(len(unclosed), 'batch', 'newest')}: {command}"), err=True)


@batch.command("show")
@click.argument("batch_id", type=click.UUID)
@database_options
def show_(store: Store, batch_id: UUID) -> None:
    """Show the counts of a batch, and its tasks that have not completed."""
    found = store.batches.get(batch_id)
    statuses = {str(status): number for status, number in store.batches.statuses(batch_id).items()}
    listed = [one for status in _LISTED if statuses.get(status) for one in _some(store, batch_id, status)][:_SHOWN]
    omitted = max(0, sum(statuses.get(status, 0) for status in _LISTED) - len(listed))
    if wants_json():
        tasks = [merged(one, without=("result",)) for one in listed]
        beside = {"statuses": statuses, "not_completed": tasks, "not_completed_omitted": omitted}
        write_json({**_record(found), **beside})
        return
    table(("id", str(found.id)), [line for line in _lines(found) if line[1] is not None])
    if found.status is BatchStatus.UNCLOSED:
        click.echo(plain(f"  to cancel it: {front_end('batch show').typed(('batch', 'cancel', str(found.id)))}"))
    if not listed:
        return
    if found.awaited and listed[0].status is TaskStatus.FAILED:
        typed = front_end("batch show").typed
        for act in ("redrive", "discard"):
            click.echo(plain(f"  to {act} the first: {typed(('failed', act, str(listed[0].id)))}"))
    click.echo()
    table(
        ("not completed", "task", "status", "error"), [(one.id, one.task_name, one.status, one.error) for one in listed]
    )
    if omitted:
        command = front_end("batch show").typed(("task", "list", "--batch", str(batch_id)))
        click.echo(f"{omitted} more: {command}", err=True)


def _some(store: Store, batch_id: UUID, status: TaskStatus) -> Iterator[Member]:
    return islice(store.batches.members(batch_id, (status,)), _SHOWN)


def _lines(found: Batch) -> list[tuple[str, object]]:
    # the last task of a chain follows the others, and is not among them
    before = " before the last" if found.kind is BatchKind.CHAIN else ""
    return [
        ("kind", found.kind),
        ("name", found.name),
        ("status", found.status),
        ("fault", UNCLOSED if found.status is BatchStatus.UNCLOSED else None),
        ("tasks", f"{found.size}{before}, of which {found.pending} {plural(found.pending, 'has', 'have')} not ended"),
        ("counts", f"{found.completed} completed, {found.failed} failed, {found.cancelled} cancelled"),
        ("on failed", found.on_failed),
        ("waits for", f"{found.awaited} {plural(found.awaited, 'dead letter')}" if found.awaited else None),
        ("created", in_utc(found.created_at)),
        ("ended", in_utc(found.completed_at)),
        *(
            ("then", f"{name} {task_id}{'' if place < found.stage else ' (not enqueued)'}")
            for place, (task_id, name) in enumerate(zip(found.then_ids, found.then_names, strict=True))
        ),
        ("then", None if found.then_is_readable else "what follows cannot be read; `outboxq verify` says more"),
    ]


@batch.command(help=CANCEL_BATCH.help)
@click.argument("batch_id", type=click.UUID)
@with_fields(*CANCEL_BATCH.fields)
@confirmation_options
@database_options
def cancel(store: Store, batch_id: UUID, *, reason: str, force: bool, yes: bool, dry_run: bool) -> None:
    from ..store.producing.batches import already_ended

    found = store.batches.get(batch_id)
    if found.completed_at is not None:
        raise already_ended(found)
    what = f"tasks of the {found.kind} {batch_id} that have not ended (and any that are added meanwhile)"
    count = Exactly(number=found.pending)
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="cancelled"):
        return
    outcome = CANCEL_BATCH.do(store, batch_id, reason=reason, force=force)
    tell(outcome.sentence, changed("cancelled", outcome.record["changed"], count))


def _cells(one: Batch) -> tuple[object, ...]:
    counts = (one.size, one.pending, one.completed, one.failed, one.cancelled)
    return (one.id, one.kind, one.name, one.status, *counts, one.created_at)


def _record(one: Batch) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "pending": one.pending, "awaited": one.awaited, "status": one.status}
