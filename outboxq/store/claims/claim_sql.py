"""Claim due tasks without a partition key: find the (queue, priority) pairs, take their entries, and start the tasks.

Each dialect has its own statement that picks and deletes entries. The later steps are the same in both dialects, and
read the rows that the DELETE returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import queue_order
from ...database.grammar import (
    Builder,
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Step,
    Transition,
    insert_values,
    sql_literal,
    worker_id,
)
from ...database.queue_order import given_queues, pairs_beyond, queues_beyond
from ...database.tables import task_executions, task_leases, task_outbox
from ...model import SUSPECT, Claim, EventType
from .. import task_rows

lease_seconds = sa.bindparam("lease_seconds", None, type_=sa.Double)
"""The length of the worker's leases; None for the length that each task sets."""
says_begin = sa.bindparam("says_begin", False, type_=sa.Boolean)
"""True if the worker records with `begin` that a suspect task's handler is about to begin."""

_OF_THE_LEASE = {"lease_token", "lease_seconds", "worker_id"}
_CLAIM_COLUMNS = [one.name for one in fields(Claim) if one.name in task_executions.c and one.name not in _OF_THE_LEASE]
"""The columns of an execution that are copied unchanged into a Claim."""


def from_one(g: Grammar) -> Transition:
    """Claim from the given queue, which has no limits."""
    return claim(g, lambda _: g.take_from_one(pairs_beyond(g, given_queues(g), queue_order.paused_or_limited)))


def from_given(g: Grammar) -> Transition:
    """Claim from the given queues that have no limits."""
    return claim(g, lambda _: g.take_from(pairs_beyond(g, given_queues(g), queue_order.paused_or_limited)))


def from_all(g: Grammar) -> Transition:
    """Claim from every queue that has no limits."""
    return claim(g, lambda _: g.take_from(pairs_beyond(g, queues_beyond(g), queue_order.paused_or_limited)))


def _heads(g: Grammar, *, given: bool) -> sa.Select[Any]:
    """Select the first due entry for each (queue, priority) pair in the given queues, or in all queues, best first."""
    found = pairs_beyond(g, given_queues(g) if given else queues_beyond(g), queue_order.paused_or_limited)
    joined, first = g.each(found, "first", lambda entry: _due(g, found, entry))
    columns = found.c.queue, found.c.priority, first.available_at, queue_order.are_many(found).label("many")
    best_first = found.c.priority.desc(), first.available_at
    return sa.select(*columns).select_from(joined).order_by(*best_first).limit(sa.bindparam("most", type_=sa.Integer))


def _due(g: Grammar, found: sa.FromClause, entry: sa.FromClause) -> sa.Select[Any]:
    return queue_order.due(g, found, entry.c.available_at, entry.c.id, entry=entry)


HEADS: Mapping[bool, Builder] = {given: partial(_heads, given=given) for given in (False, True)}


def from_limited(g: Grammar) -> Transition:
    """Claim from the given queue without regard to its limits."""
    return claim(g, lambda _: g.take_from_one(pairs_beyond(g, given_queues(g))))


def claim(g: Grammar, take: Step, *, given: Columns | None = None) -> Transition:
    """Claim the entries that `take` deletes and returns (`taken()`). Each Ready execution starts, or expires if it is
    too late to start.

    An expired task is Cancelled and returned without a lease token. A stale entry (its execution has ended, is running
    or was pruned) is also returned without a lease token: `take` has deleted the entry, and nothing else changes.
    """
    return Transition(
        given=given or {},
        steps={
            "taken": take,
            "claimed": lambda r: _claimed(g, r),
            "lease": lambda r: _lease(g, r),
            "event": lambda r: _event(g, r),
        },
        returns="taken",
        joined_steps=("claimed",),
    )


def take_unlocked(g: Grammar, entry: sa.FromClause, *conditions: sa.ColumnElement[bool]) -> Statement:
    """Delete the entries, selected as `entry`, that meet all conditions. Skips entries that another transaction has
    locked.
    """
    free = sa.select(entry.c.id).where(*conditions).with_for_update(skip_locked=True, of=entry)
    locked = free.cte("locked").prefix_with("MATERIALIZED")
    return sa.delete(task_outbox).where(g.among(task_outbox.c.id, locked.c.id)).returning(*queue_order.taken(g))


def same_key(one: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether two rows belong to the same key of a queue."""
    return sa.and_(one.c.queue == other.c.queue, one.c.partition_key == other.c.partition_key)


def value_for(row: sa.FromClause, query: sa.Select[Any]) -> Any:
    """Return the value that `query` selects for a row. This is always a lookup by index, whereas a join or an EXISTS
    could be planned as a scan.
    """
    return query.correlate(row).scalar_subquery()


def _claimed(g: Grammar, r: Relations) -> Statement:
    """Start the tasks; cancel the expired ones.

    One statement does both, because few tasks expire and a second statement would slow down every claim.
    """
    execution = task_executions.c
    lease = sa.func.coalesce(lease_seconds, execution.lease_seconds)
    late = execution.expires_at <= g.now
    started_first = sa.func.coalesce(execution.first_started_at, g.now)
    return (
        sa.update(task_executions)
        .where(g.among(execution.id, r["taken"].c.id), execution.status == SqlStatus.READY)
        .values(
            status=sa.case((late, SqlStatus.CANCELLED), else_=SqlStatus.RUNNING),
            worker_id=sa.case((late, sa.null()), else_=worker_id),
            lease_token=execution.lease_token + sa.case((late, sa.literal_column("0")), else_=sa.literal_column("1")),
            retry_at=sa.null(),
            first_started_at=sa.case((late, execution.first_started_at), else_=started_first),
            started_at=sa.case((late, execution.started_at), else_=g.now),
            completed_at=sa.case((late, g.now), else_=sa.null()),
            updated_at=g.now,
        )
        .returning(
            *(execution[name] for name in _CLAIM_COLUMNS),
            sa.case((execution.status == SqlStatus.RUNNING, execution.lease_token), else_=sa.null()).label(
                "lease_token"
            ),
            lease.label("lease_seconds"),
            g.later(g.now, lease).label("lease_expires_at"),
            execution.expires_at,
        )
    )


def _lease(g: Grammar, r: Relations) -> Statement:
    claimed = r["claimed"].c
    suspect = claimed.recovery_attempts >= sa.literal_column(str(SUSPECT), sa.Integer)
    values = {
        "task_execution_id": claimed.id,
        "queue": claimed.queue,
        "lease_token": claimed.lease_token,
        "worker_id": worker_id,
        "lease_expires_at": claimed.lease_expires_at,
        "begun": sa.case((sa.and_(says_begin, suspect), sa.false()), else_=sa.null()),
    }
    new = insert_values(g.insert(task_leases), values, r["claimed"], claimed.lease_token.is_not(None))
    # A Ready task has no lease. A lease that was left behind by mistake must not make its task unclaimable.
    key, *others = values
    return new.on_conflict_do_update(index_elements=[key], set_={name: new.excluded[name] for name in others})  # type: ignore[no-any-return]


def _event(g: Grammar, r: Relations) -> Statement:
    claimed = r["claimed"].c
    late = claimed.lease_token.is_(None)
    return task_rows.event(
        g,
        claimed,
        r["claimed"],
        event_type=sa.case((late, sql_literal(EventType.EXPIRED)), else_=sql_literal(EventType.CLAIMED)),
        data=sa.case(
            (late, g.json(expires_at=claimed.expires_at)),
            (
                lease_seconds.is_not(None),
                g.json(attempt=claimed.attempt, lease_seconds=sa.cast(lease_seconds, sa.Double)),
            ),
            else_=g.json(attempt=claimed.attempt),
        ),
        worker_id=worker_id,
        lease_token=claimed.lease_token,
    )
