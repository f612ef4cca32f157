"""`outboxq failed`: lists, groups, redrives and discards dead letters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ..errors import InvalidTransition
from ..model import TaskStatus
from ..model.wording import plural
from .confirmation import FEW, Counted, Exactly, changed, confirmation_options, confirmed, grouped, outcome, up_to
from .database import database_options, database_options_after_ids
from .filters import OF_DEAD_LETTERS, TASK_ID, check_choice, filtered, in_words, take_key_back
from .groups import Group
from .output import show, tell
from .progress import progress

if TYPE_CHECKING:
    from ..store import Count, Store

_NOUN = "dead letters"
_NOT_DISCARDED = "been redriven or discarded meanwhile"
_NOT_REDRIVEN = f"{_NOT_DISCARDED}, or lost the idempotency key to another task"


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
@filtered(*OF_DEAD_LETTERS)
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
    show(head, rows, records=found, spare=("attempt", "queue", "key", "holds its key", "failed", "error", "task"))


@failed.command()
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Maximum number of groups.")
@database_options
@filtered(*OF_DEAD_LETTERS)
def summary(store: Store, limit: int, wanted: dict[str, Any]) -> None:
    """Group dead letters by task, exception and message.

    The largest group is the first one. The newest 10,000 dead letters are looked at. `list`, `redrive` and `discard` take the id of a group with --group.
    """
    found = store.dead_letters.groups(limit=limit, **wanted)
    head = ("count", "task", "exception", "message", "first", "last", "newest id", "group")
    rows = [
        (
            one.count,
            one.task_name,
            one.exception,
            one.message,
            one.first_failed_at,
            one.last_failed_at,
            one.newest,
            one.id,
        )
        for one in found.groups
    ]
    show(head, rows, records=found, spare=("first", "exception", "newest id", "last", "task"), whole=("group",))
    if not found.is_complete:
        looked = f"the newest {grouped(found.looked_at)} dead letters were looked at"
        click.echo(
            f"there is more: {looked}, and the largest {len(found.groups)} {plural(len(found.groups), 'group is', 'groups are')} shown",
            err=True,
        )


@failed.command()
@click.argument("task_ids", nargs=-1, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="Apply to every dead letter. Required without ids or filters.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of dead letters, oldest first.")
@take_key_back
@confirmation_options
@database_options_after_ids
@filtered(*OF_DEAD_LETTERS)
def redrive(
    store: Store,
    *,
    task_ids: tuple[str, ...],
    limit: int | None,
    wanted: dict[str, Any],
    everything: bool,
    take_key_back: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Run dead letters again, from their first attempt.

    Give the ids of tasks, or filters, or --all. One id needs no question.
    """
    check_choice(task_ids, wanted, limit, everything=everything)
    if take_key_back and not task_ids:
        raise click.UsageError("--take-key-back is for the ids of tasks, each of which was looked at")
    if task_ids:
        one = partial(store.redrive, take_key_back=take_key_back)
        _each(store, task_ids, one, "redriven", yes=yes, dry_run=dry_run)
        return
    _all(
        store, store.dead_letters.redrive_all, wanted, limit, "redriven", others=_NOT_REDRIVEN, yes=yes, dry_run=dry_run
    )


@failed.command()
@click.argument("task_ids", nargs=-1, type=TASK_ID)
@click.option("--all", "everything", is_flag=True, help="Apply to every dead letter. Required without ids or filters.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of dead letters, oldest first.")
@click.option("--reason", default="", help="Reason, kept in each task's history.")
@confirmation_options
@database_options_after_ids
@filtered(*OF_DEAD_LETTERS)
def discard(
    store: Store,
    *,
    task_ids: tuple[str, ...],
    limit: int | None,
    reason: str,
    wanted: dict[str, Any],
    everything: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Discard dead letters: they end as Cancelled.

    Give the ids of tasks, or filters, or --all. One id needs no question.
    """
    check_choice(task_ids, wanted, limit, everything=everything)
    if task_ids:
        _each(store, task_ids, partial(store.discard, reason=reason), "discarded", yes=yes, dry_run=dry_run)
        return
    act = partial(store.dead_letters.discard_all, reason=reason)
    _all(store, act, wanted, limit, "discarded", others=_NOT_DISCARDED, yes=yes, dry_run=dry_run)


def _each(
    store: Store, given: tuple[str, ...], act: Callable[[UUID], object], done: str, *, yes: bool, dry_run: bool
) -> None:
    """Act on these dead letters. One id needs no question; several ids are asked about as a filter is."""
    ids = list(dict.fromkeys(store.find(one) for one in given))

    count, found = Exactly(number=len(ids)), []
    if dry_run or len(ids) > 1:
        found = [store.get(one) for one in ids]
    for one in found:
        if one.status is not TaskStatus.FAILED:  # before any is changed
            raise InvalidTransition(f"task {one.id} is {one.status} and cannot be {done}")
    first = [f"{one.id}  {one.task_name}  {one.last_error or ''}".rstrip() for one in found]
    what = f"{plural(len(ids), 'task')} {', '.join(map(str, ids))}"
    if not confirmed(count, what, yes=yes or len(ids) == 1, dry_run=dry_run, done=done, first=lambda: first):
        return
    with progress(done, len(ids), stoppable=True) as on_progress:
        for number, task_id in enumerate(ids, 1):
            if on_progress.stop():
                break
            act(task_id)
            on_progress(number)
    tell(f"{on_progress.number} {done}", changed(done, on_progress.number, count))


def _all(
    store: Store,
    act: Callable[..., int],
    wanted: dict[str, Any],
    limit: int | None,
    done: str,
    *,
    others: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Act on the dead letters that match, and that were counted."""
    what = in_words(_NOUN, wanted, limit=limit, verb="that failed")

    @cache
    def count() -> Count:
        return store.dead_letters.count(**wanted)

    def to_change() -> Counted:
        return up_to(limit, count())

    def first() -> list[str]:
        found = store.dead_letters.oldest(limit=min(FEW, limit or FEW), **wanted)
        return [f"{one.id}  {one.task_name}  {one.last_error or ''}".rstrip() for one in found]

    if not confirmed(to_change, what, yes=yes, dry_run=dry_run, done=done, first=first):
        return
    with progress(done, to_change(), stoppable=True) as on_progress:
        moved = act(snapshot=count().snapshot, limit=limit, on_progress=on_progress, stop=on_progress.stop, **wanted)
    tell(outcome(done, moved, to_change(), others), changed(done, moved, to_change()))
