"""Tasks that workers gave back because they did not know the names: how often, and having them due again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Select, Uuid, and_, bindparam, exists, select

from ...database.column_types import BigId
from ...database.dialects import Begin
from ...database.grammar import Columns, Grammar, limit, sql_literal
from ...database.tables import execution_events, task_executions, task_outbox
from ...database.target import Target
from ...model import UNKNOWN_TASK, Claim, EventType
from ..tasks import operations, tasks
from ..tasks.operations import freed
from ..tasks.tasks import data_of
from ..transactions import Transactions
from . import workers
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
        page = target.run(delayed, store.values(target, after=after, limit=_PAGE))
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
    for row in target.run(releases, packed):
        data = data_of(row["event_data"])
        since = data.get("since")
        found[row["id"]] = (data.get("times", 1), row["created_at"] if since is None else datetime.fromisoformat(since))
    return found


HOLDING: Columns = {"id": Uuid(), "lease_token": BigInteger()}
_after = bindparam("after", type_=BigId, required=True)


def releases(g: Grammar) -> Select[Any]:
    """Select the events that ended the claims of :holding as releases of unknown tasks, if only claims have happened to them
    since.
    """
    given, event = g.rows("holding", HOLDING), execution_events.c
    return (
        select(event.task_execution_id.label("id"), event.event_data, event.created_at)
        .join_from(
            given,
            execution_events,
            and_(event.task_execution_id == given.c.id, event.lease_token == given.c.lease_token),
        )
        .where(*_released_last(g, given.c.id))
    )


def delayed(g: Grammar) -> Select[Any]:
    """Select a page of the outbox entries that are due later, by id after :after, with those that wait since such a release."""
    entry = task_outbox.c
    page = (
        select(entry.id, entry.task_execution_id, entry.queue, entry.topic)
        .where(entry.id > _after, entry.available_at > g.now)
        .order_by(entry.id)
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    execution, event = task_executions.c, execution_events.c
    released = exists().where(
        event.task_execution_id == execution.id,
        event.lease_token == execution.lease_token,
        *_released_last(g, page.c.task_execution_id),
    )
    return (
        select(page.c.id, page.c.queue, page.c.topic, execution.task_name, released.label("released"))
        .join_from(page, task_executions, execution.id == page.c.task_execution_id)
        .where(g.among(execution.id, page.c.task_execution_id))
        .order_by(page.c.id)
    )


def _released_last(g: Grammar, ids: ColumnElement[Any]) -> tuple[ColumnElement[bool], ...]:
    """Return a condition: the event released a claim of one of these tasks as unknown, and no event without a lease token
    followed.
    """
    event, other = execution_events.c, execution_events.alias("other").c
    later = exists().where(
        g.among(other.task_execution_id, ids),
        other.task_execution_id == event.task_execution_id,
        other.lease_token.is_(None),
        other.sequence_num > event.sequence_num,
    )
    return (
        g.among(event.task_execution_id, ids),
        event.event_type != sql_literal(EventType.CLAIMED),  # the condition of the index over the ends of claims
        event.lease_token.is_not(None),
        event.event_type == sql_literal(EventType.RELEASED),
        g.text_in(event.event_data, "reason") == UNKNOWN_TASK,
        ~later,
    )
