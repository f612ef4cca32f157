"""Pages of tasks for people, newest first, from tables of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import task_pages as statements
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import TaskExecution, TaskStatus
from ..model.batches import is_batch
from ..model.periods import first_id
from .arguments import aware, identifier, positive, storable
from .tasks import execution_of
from .transactions import Transactions

SCAN = 10_000
"""The number of rows that one look reads at most."""
FIRST, LAST = UUID(int=0), UUID(int=2**128 - 1)
_SOURCES = {TaskStatus.READY: "entries", TaskStatus.RUNNING: "leases", TaskStatus.FAILED: "letters"}
"""The table that holds the tasks of a status; those of all others are in `task_executions` alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """A page of tasks, and the way to the pages beside it."""

    tasks: list[TaskExecution]
    """The tasks, newest first."""
    older: UUID | None
    """The id to pass as `before` for the following page; None: there are no older tasks."""
    newer: UUID | None
    """The id to pass as `after` for the page before; None: this is the newest."""
    is_cut: bool
    """True: the look was ended after `looked_at` rows, though fewer tasks than wanted were found. `older`, or with `after` `newer`,
    goes on behind what was looked at.
    """
    looked_at: int = SCAN
    """The number of rows that one look reads at most."""


def tasks(
    store: Transactions,
    *,
    status: TaskStatus | None = None,
    queue: str | None = None,
    task: str | None = None,
    key: str | None = None,
    topic: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    worker: UUID | None = None,
    batch: UUID | None = None,
    before: UUID | None = None,
    after: UUID | None = None,
    limit: int = 100,
    using: object = None,
) -> list[TaskExecution]:
    """Up to `limit` tasks of this status, queue, task name, partition key and topic, newest first; None: any.

    `since` and `until`, which are aware, are about the enqueue as the task's id has it, to the millisecond; `until` is the first
    moment that is too late. `worker` has claimed the task, or with RUNNING runs it. `batch` is the batch or chain of the task, or the
    one that it follows. With `before` the newest of the tasks with
    smaller ids are returned, with `after` the oldest of those with larger ids.

    For people: it looks at a bounded number of rows, whatever the size of the tables. Running and Failed tasks are found
    all; of the finished ones, and without a status, the next 10 000 tasks are looked at; of the Ready ones, the next
    10 000 entries, or so many of the queue. Of a batch, all tasks are looked at. `task_page` says where the look ended.
    Raises InvalidArgument.
    """
    values = wanted(queue=queue, task=task, key=key, topic=topic, since=since, until=until, worker=worker, batch=batch)
    look = partial(_page, store, status=status, values=values, limit=positive(limit))
    page = store.run(partial(look, before=before, after=after), using=using, begin=Begin.READ)
    found = page.tasks
    while page.is_cut and status in {TaskStatus.RUNNING, TaskStatus.FAILED} and len(found) < limit:
        on = {"before": page.older, "after": None} if after is None else {"before": before, "after": page.newer}
        page = store.run(partial(look, **on), using=using, begin=Begin.READ)
        found = found + page.tasks if after is None else page.tasks + found
    return found[:limit] if after is None else found[-limit:]


def task_page(
    store: Transactions,
    *,
    status: TaskStatus | None = None,
    queue: str | None = None,
    task: str | None = None,
    key: str | None = None,
    topic: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    worker: UUID | None = None,
    batch: UUID | None = None,
    before: UUID | None = None,
    after: UUID | None = None,
    limit: int = 100,
    using: object = None,
) -> TaskPage:
    """Return a page of the tasks that `tasks` lists. All statuses are looked at in the same bounded way.

    From page to page by `older`, no task is missed and none is listed twice, as long as the tables stay as they are. Raises
    InvalidArgument.
    """
    values = wanted(queue=queue, task=task, key=key, topic=topic, since=since, until=until, worker=worker, batch=batch)
    look = partial(_page, store, status=status, values=values, limit=positive(limit), before=before, after=after)
    return store.run(look, using=using, begin=Begin.READ)


def wanted(
    *,
    queue: str | None,
    task: str | None,
    key: str | None,
    topic: str | None,
    since: datetime | None,
    until: datetime | None,
    worker: UUID | None = None,
    batch: UUID | None = None,
) -> dict[str, Any]:
    """Return the values of the filters. Raises InvalidArgument."""
    return {
        "queue": storable(queue, "queue"),
        "task_name": storable(task, "task"),
        "partition_key": storable(key, "key"),
        "topic": storable(topic, "topic"),
        "from_id": FIRST if since is None else first_id(aware(since, "since")),
        "to_id": LAST if until is None else first_id(aware(until, "until")),
        "worker": None if worker is None else identifier(worker),
        "batch": None if batch is None else _batch(batch),
    }


def _batch(batch_id: UUID) -> UUID:
    if not is_batch(identifier(batch_id)):
        raise InvalidArgument(f"{batch_id} is not the id of a batch or a chain")
    return batch_id


def source_of(target: Target, status: TaskStatus | None, values: Mapping[str, Any]) -> str:
    """Return what is looked through for tasks of this status: the tasks of the batch, or the entries of the queue, if they are few."""
    if values["batch"] is not None:
        return "batch"
    source = "executions" if status is None else _SOURCES.get(status, "executions")
    if source == "entries" and values["queue"] is not None:
        few = not target.run(statements.queue_is_longer, {"queue": values["queue"], "scan": values["scan"]})
        return "queue" if few else source
    return source


def ending(target: Target, source: str, given: dict[str, Any], *, up: bool) -> UUID | None:
    """Bound the look, and return the last id that it looks at; None: it comes to the end before.

    What is written or deleted after this makes the look longer or shorter, but it ends at the same id.
    """
    if source in {"queue", "batch"}:
        return None
    end = target.run(statements.END[f"{source}_{'up' if up else 'down'}"], given)
    if not end[1:]:
        return None
    last: UUID = end[0]["id"]
    given |= {"to_id": next_id(last)} if up else {"from_id": last}
    return last


def _is_filtered(status: TaskStatus | None, given: Mapping[str, Any]) -> bool:
    """Return whether a look may leave rows out."""
    named = ("queue", "task_name", "partition_key", "topic", "worker")
    return status in {TaskStatus.COMPLETED, TaskStatus.CANCELLED} or any(given[name] is not None for name in named)


def _page(
    store: Transactions,
    target: Target,
    *,
    status: TaskStatus | None,
    values: Mapping[str, Any],
    limit: int,
    before: UUID | None,
    after: UUID | None,
) -> TaskPage:
    if status is not None and not isinstance(status, TaskStatus):
        raise InvalidArgument(f"status takes a TaskStatus, not {status!r}")
    given = {**values, "status": status, "scan": max(limit, SCAN), "limit": limit + 1}
    if before is not None:
        given["to_id"] = min(given["to_id"], identifier(before))
    if after is not None:
        given["from_id"] = max(given["from_id"], next_id(identifier(after)))
    given = store.values(target, **given)
    up = after is not None and before is None
    source = source_of(target, status, given)
    ended = ending(target, source, given, up=up) if _is_filtered(status, given) else None
    found = [execution_of(row) for row in target.run(statements.PAGE[f"{source}_{'up' if up else 'down'}"], given)]
    rest = len(found) > limit
    if rest:
        ended = None
    page = partial(TaskPage, is_cut=ended is not None, looked_at=given["scan"])
    if after is not None and up:
        listed = found[-limit:]
        return page(
            tasks=listed, newer=listed[0].id if rest else ended, older=listed[-1].id if listed else next_id(after)
        )
    listed = found[:limit]
    newer = listed[0].id if listed else UUID(int=max(0, given["to_id"].int - 1))
    is_newest = before is None and after is None
    return page(tasks=listed, older=listed[-1].id if rest else ended, newer=None if is_newest else newer)


def next_id(task_id: UUID) -> UUID:
    """Return the id after this one."""
    return UUID(int=min(task_id.int + 1, LAST.int))
