"""Find the tasks that workers released as unknown, and make them due for a worker that knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import BigId
from ...database.dialects import Begin
from ...database.grammar import Grammar, limit, sql_literal
from ...database.tables import execution_events, task_executions, task_outbox, workers
from ...database.target import Target
from ...model import UNKNOWN_TASK, Claim, EventType
from ..tasks import operations
from ..tasks.operations import freed
from ..tasks.tasks import data_of
from ..transactions import Transactions
from .ends import HELD
from .workers import live_workers, read_names, takes

UNKNOWN_KEPT = timedelta(days=1)
"""Time for which the unknown tasks that a worker has come across are kept after the worker was last seen."""
_PAGE = 500
"""Maximum number of outbox entries that one transaction reads, so that other sessions do not wait long for it."""
_KNOWN = "a worker that knows the task has started"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownRun:
    """An unbroken series of releases of one task by workers that do not know it."""

    times: int = 0
    since: datetime
    known_elsewhere: bool = False
    """True if a live worker knows the task and would run it."""


def unknown_runs(store: Transactions, claims: Sequence[Claim], *, using: object = None) -> Mapping[UUID, UnknownRun]:
    """Return, keyed by task id, the series of releases that preceded each claim: releases by workers that did not know
    the task.

    The releases may have been made by any worker. Every event other than a claim ends the series.
    """

    def work(target: Target) -> Mapping[UUID, UnknownRun]:
        now = store.now_in(target)
        found = releases_as_unknown(target, [(claim.id, claim.lease_token - 1) for claim in claims])
        present = live_workers(target, now)
        runs = {}
        for claim in claims:
            known = any(
                worker.works_on(claim.queue) and worker.takes(claim.topic) and claim.task_name in worker.task_names
                for worker in present
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
    """Make tasks due that are waiting because a worker did not know their names, if this worker knows them.

    The call handles one page of the outbox, after the entry `after`. Returns the entry after which the next page
    begins; None after the last page. If this worker knows none of the names that workers have reported as unknown, the
    outbox is not read.
    """
    names = frozenset(task_names)

    def look(target: Target) -> tuple[list[int], int | None]:
        met = target.run(with_unknown_tasks, store.values(target))
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
    """Return, for each task, the number of consecutive releases as unknown up to its claim under this token, and the
    time of the first of these releases.

    A task whose claim under this token ended in another way is left out.
    """
    packed = target.dialect.pack("holding", HELD, holding)
    found = {}
    for row in target.run(releases, packed):
        data = data_of(row["event_data"])
        since = data.get("since")
        found[row["id"]] = (data.get("times", 1), row["created_at"] if since is None else datetime.fromisoformat(since))
    return found


_a_day_ago = sa.bindparam("a_day_ago", -UNKNOWN_KEPT.total_seconds(), type_=sa.Double)
_after = sa.bindparam("after", type_=BigId, required=True)


def with_unknown_tasks(g: Grammar) -> sa.Select[Any]:
    """Select the unknown tasks of the workers that were seen in the last day, including workers that have ended."""
    is_recent = workers.c.last_seen_at >= g.later(g.now, _a_day_ago)
    return sa.select(workers.c.unknown_tasks).where(workers.c.unknown_tasks.is_not(None), is_recent)


def releases(g: Grammar) -> sa.Select[Any]:
    """Select the events that ended the claims of :holding as releases of unknown tasks, if nothing but claims has
    happened to these tasks since.
    """
    given, event = g.rows("holding", HELD), execution_events.c
    return (
        sa.select(event.task_execution_id.label("id"), event.event_data, event.created_at)
        .join_from(
            given,
            execution_events,
            sa.and_(event.task_execution_id == given.c.id, event.lease_token == given.c.lease_token),
        )
        .where(*_released_last(g, given.c.id))
    )


def delayed(g: Grammar) -> sa.Select[Any]:
    """Select a page of the delayed outbox entries after the id :after, and whether each has been waiting since a worker
    released its task as unknown.
    """
    entry = task_outbox.c
    page = (
        sa.select(entry.id, entry.task_execution_id, entry.queue, entry.topic)
        .where(entry.id > _after, entry.available_at > g.now)
        .order_by(entry.id)
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    execution, event = task_executions.c, execution_events.c
    released = sa.exists().where(
        event.task_execution_id == execution.id,
        event.lease_token == execution.lease_token,
        *_released_last(g, page.c.task_execution_id),
    )
    return (
        sa.select(page.c.id, page.c.queue, page.c.topic, execution.task_name, released.label("released"))
        .join_from(page, task_executions, execution.id == page.c.task_execution_id)
        .where(g.among(execution.id, page.c.task_execution_id))
        .order_by(page.c.id)
    )


def _released_last(g: Grammar, ids: sa.ColumnElement[Any]) -> tuple[sa.ColumnElement[bool], ...]:
    """Return a condition that tests whether the event released a claim of one of these tasks as unknown and was not
    followed by an event without a lease token.
    """
    event, other = execution_events.c, execution_events.alias("other").c
    later = sa.exists().where(
        g.among(other.task_execution_id, ids),
        other.task_execution_id == event.task_execution_id,
        other.lease_token.is_(None),
        other.sequence_num > event.sequence_num,
    )
    return (
        g.among(event.task_execution_id, ids),
        event.event_type != sql_literal(EventType.CLAIMED),  # the condition of the index on the ends of claims
        event.lease_token.is_not(None),
        event.event_type == sql_literal(EventType.RELEASED),
        g.text_in(event.event_data, "reason") == UNKNOWN_TASK,
        ~later,
    )
