"""Tasks that workers gave back because they did not know the names: how often, and having them due again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import unknown_tasks, workers
from ..database.statements.unknown_tasks import HOLDING
from ..database.target import Target
from ..model import Claim
from .tasks import operations, tasks
from .tasks.operations import freed
from .tasks.tasks import data_of
from .transactions import Transactions
from .workers import live_workers, read_names, takes

_PAGE = 500
"""Outbox entries that one transaction looks at, so that no other session waits long for it."""
_KNOWN = "a worker that knows the task has started"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownRun:
    """An unbroken run of releases of one task by workers that do not know it."""

    times: int = 0
    since: datetime
    known_elsewhere: bool = False
    """A live worker knows the task and would take it."""


def unknown_runs(store: Transactions, claims: Sequence[Claim], *, using: object = None) -> Mapping[UUID, UnknownRun]:
    """The run of releases as unknown that each claim's task is in, by the task's id.

    Whichever workers released it; anything but a claim in between ends the run.
    """

    def work(target: Target) -> Mapping[UUID, UnknownRun]:
        now = target.run(tasks.select_now, store.values(target))[0]["now"]
        found = releases_as_unknown(target, [(claim.id, claim.lease_token - 1) for claim in claims])
        workers = live_workers(target, now)
        runs = {}
        for claim in claims:
            known = any(
                worker.works_on(claim.queue) and worker.takes(claim.topic) and claim.task_name in worker.task_names
                for worker in workers
            )
            times, since = found.get(claim.id, (0, claim.started_at))
            runs[claim.id] = UnknownRun(times=times, since=since, known_elsewhere=known)
        return runs

    return store.run(work, using=using, begin=Begin.READ)


def make_known_due(
    store: Transactions,
    task_names: Collection[str],
    *,
    queues: Collection[str] | None = None,
    topics: Collection[str] | None = None,
    after: int = 0,
    using: object = None,
) -> int | None:
    """Have tasks that wait because a worker did not know their names due now, for a worker that knows and takes them.

    One page of the outbox, behind the entry `after`. Returns where the next page begins; None: that was the last one.
    Where no worker has met a name that this one knows, the outbox is not read at all.
    """
    names = frozenset(task_names)

    def look(target: Target) -> tuple[list[int], int | None]:
        met = target.run(workers.with_unknown_tasks)
        pairs = {(queue, name) for row in met for queue, name in read_names(row["unknown_tasks"])}
        wanted = {(queue, name) for queue, name in pairs if name in names and (queues is None or queue in queues)}
        if not wanted:
            return [], None
        page = target.run(unknown_tasks.delayed, store.values(target, after=after, limit=_PAGE))
        due = [
            row["id"]
            for row in page
            if row["released"] and (row["queue"], row["task_name"]) in wanted and takes(topics, row["topic"])
        ]
        return due, page[-1]["id"] if len(page) == _PAGE else None

    entries, following = store.run(look, using=using, begin=Begin.READ)
    if entries:
        store.run(lambda target: _make_due(store, target, entries), using=using)
    return following


def _make_due(store: Transactions, target: Target, entries: Sequence[int]) -> None:
    values = store.values(target, due_now=True, priority=None, request=None, reason=_KNOWN)
    with target.atomic():
        moved = target.run(operations.make_due, values, [(entry,) for entry in entries])
    store.wake(target, freed(moved))


def releases_as_unknown(target: Target, holding: Sequence[tuple[UUID, int]]) -> dict[UUID, tuple[int, datetime]]:
    """Return how often in a row, and since when, each task was released as unknown, up to its claim of this token.

    A task whose claim of this token did not end so is left out.
    """
    packed = target.dialect.pack("holding", HOLDING, holding)
    found = {}
    for row in target.run(unknown_tasks.releases, packed):
        data = data_of(row["event_data"])
        since = data.get("since")
        found[row["id"]] = (data.get("times", 1), row["created_at"] if since is None else datetime.fromisoformat(since))
    return found
