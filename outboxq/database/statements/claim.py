"""Claim due tasks without a partition key: find the (queue, priority) pairs, take their entries, start the tasks.

Each dialect has its own statement that picks and deletes entries. The steps after that DELETE are shared, and read its
RETURNING.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    update,
)

from ...model import SUSPECT, Claim, EventType
from ..column_types import Instant
from ..tables import task_executions, task_leases, task_outbox
from . import limits, task_rows
from .fanout import matches
from .grammar import Columns, Grammar, Relations, SqlStatus, Statement, Step, Transition, insert_values, sql_literal

limit = bindparam("limit", type_=BigInteger, required=True)
worker_id = bindparam("worker_id", type_=Uuid, required=True)
lease_seconds = bindparam("lease_seconds", None, type_=Double)
"""The worker's own lease; None for the task's lease."""
passed_priority = bindparam("passed_priority", None, type_=SmallInteger)
passed_until = bindparam("passed_until", None, type_=Instant)
"""Entries of this priority are read from this due time on; None for all. Nearly every row before it is dead."""
says_begin = bindparam("says_begin", False, type_=Boolean)
"""True if the worker records with `begin` that a suspect task's handler begins."""
_any_topic = bindparam("any_topic", type_=Boolean, required=True)

_OF_THE_LEASE = {"lease_token", "lease_seconds", "worker_id"}
_CLAIM_COLUMNS = [one.name for one in fields(Claim) if one.name in task_executions.c and one.name not in _OF_THE_LEASE]
"""The columns of an execution that a Claim has as they are."""


def from_one(g: Grammar) -> Transition:
    """Claim from the queue given, which has no limits."""
    return claim(g, lambda _: g.take_from_one(pairs(given_queues(g), limits.paused_or_limited)))


def from_given(g: Grammar) -> Transition:
    """Claim from those of the queues given that have no limits."""
    return claim(g, lambda _: g.take_from(pairs(given_queues(g), limits.paused_or_limited)))


def from_all(g: Grammar) -> Transition:
    """Claim from every queue that has no limits."""
    return claim(g, lambda _: g.take_from(pairs(every_queue(), limits.paused_or_limited)))


def from_limited(g: Grammar) -> Transition:
    """Claim from the queue given, whatever its limits say."""
    return claim(g, lambda _: g.take_from_one(pairs(given_queues(g))))


def claim(g: Grammar, take: Step, *, given: Columns | None = None) -> Transition:
    """Claim the entries that `take` deletes, returning `taken()`. Each execution that is Ready starts, or expires if it is late.

    An expired task is Cancelled, and returned without a lease token. A stale entry, whose execution is finished, running or
    pruned, is returned without a lease token too: `take` has deleted it, and nothing else changes.
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


def taken(g: Grammar) -> tuple[Any, ...]:
    """Return the columns of a claim's DELETE.

    They are the execution's id, the order of the claim, `besides` (some queue needs another kind of claim) and `crowded` (many
    dead rows lie in the claim's way).
    """
    entry, keyed = task_outbox.c, task_outbox.alias("keyed")
    with_key = select(keyed.c.id).where(keyed.c.partition_key.is_not(None)).limit(1).scalar_subquery().is_not(None)
    return (
        entry.task_execution_id.label("id"),
        entry.available_at,
        entry.id.label("entry_id"),
        or_(with_key, limits.any_limited()).label("besides"),
        g.crowded.label("crowded"),
    )


def wanted(g: Grammar, topic: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the worker runs tasks of this topic."""
    given = g.topics
    mine = select(given.c.topic).where(matches(topic, given.c.topic)).correlate_except(given).exists()
    return or_(_any_topic, mine)


def given_queues(g: Grammar) -> FromClause:
    return g.rows("queues", {"queue": Text()})


def every_queue(*, with_key: bool = False) -> CTE:
    """Return the queues that have entries without a key (or with one): one index probe for each queue, whatever the backlog."""

    def counts(entry: FromClause) -> ColumnElement[bool]:
        key = entry.c.partition_key
        return key.is_not(None) if with_key else key.is_(None)

    first = select(func.min(task_outbox.c.queue).label("queue")).where(counts(task_outbox))
    queues = first.cte("keyed_queues" if with_key else "queues", recursive=True)
    entry = task_outbox.alias("entry")
    following = select(func.min(entry.c.queue)).where(entry.c.queue > queues.c.queue, counts(entry)).correlate(queues)
    return queues.union_all(select(following.scalar_subquery()).where(queues.c.queue.is_not(None)))


def pairs(
    queues: FromClause, without: Callable[[Any], ColumnElement[bool]] | None = None, *, name: str = "pairs"
) -> CTE:
    """Return the (queue, priority) pairs that have entries, by hopping through the index. A NULL ends each queue.

    Only of queues that are not `without`.
    """
    entry = task_outbox.alias("entry")

    def highest(pair: FromClause, *below: ColumnElement[bool]) -> Any:
        found = select(entry.c.priority).where(entry.c.queue == pair.c.queue, entry.c.partition_key.is_(None), *below)
        return found.order_by(entry.c.priority.desc()).limit(1).correlate(pair).scalar_subquery()

    first = select(queues.c.queue, highest(queues).label("priority")).where(queues.c.queue.is_not(None))
    if without is not None:
        first = first.where(not_(without(queues.c.queue)))
    found = first.cte(name, recursive=True)
    following = highest(found, entry.c.priority < found.c.priority)
    return found.union_all(select(found.c.queue, following).where(found.c.priority.is_not(None)))


def due(g: Grammar, pair: FromClause, *columns: Any, entry: FromClause = task_outbox) -> Select[Any]:
    """Select the due entries of one pair, oldest first: one contiguous range of the index `ix_task_outbox_due`."""
    return (
        select(*columns)
        .where(
            entry.c.partition_key.is_(None),
            entry.c.queue == pair.c.queue,
            entry.c.priority == pair.c.priority,
            entry.c.available_at <= g.now,
            wanted(g, entry.c.topic),
        )
        .order_by(entry.c.available_at, entry.c.id)
    )


def _claimed(g: Grammar, r: Relations) -> Statement:
    """Start the tasks, or cancel those that have expired.

    One statement does both: few tasks expire, and a second statement would cost every claim.
    """
    execution = task_executions.c
    lease = func.coalesce(lease_seconds, execution.lease_seconds)
    late = execution.expires_at <= g.now
    started_first = func.coalesce(execution.first_started_at, g.now)
    return (
        update(task_executions)
        .where(g.among(execution.id, r["taken"].c.id), execution.status == SqlStatus.READY)
        .values(
            status=case((late, SqlStatus.CANCELLED), else_=SqlStatus.RUNNING),
            worker_id=case((late, null()), else_=worker_id),
            lease_token=execution.lease_token + case((late, literal_column("0")), else_=literal_column("1")),
            retry_at=null(),
            first_started_at=case((late, execution.first_started_at), else_=started_first),
            started_at=case((late, execution.started_at), else_=g.now),
            completed_at=case((late, g.now), else_=null()),
            updated_at=g.now,
        )
        .returning(
            *(execution[name] for name in _CLAIM_COLUMNS),
            case((execution.status == SqlStatus.RUNNING, execution.lease_token), else_=null()).label("lease_token"),
            lease.label("lease_seconds"),
            g.later(g.now, lease).label("lease_expires_at"),
            execution.expires_at,
        )
    )


def _lease(g: Grammar, r: Relations) -> Statement:
    claimed = r["claimed"].c
    suspect = claimed.recovery_attempts >= literal_column(str(SUSPECT), Integer)
    values = {
        "task_execution_id": claimed.id,
        "queue": claimed.queue,
        "lease_token": claimed.lease_token,
        "worker_id": worker_id,
        "lease_expires_at": claimed.lease_expires_at,
        "begun": case((and_(says_begin, suspect), false()), else_=null()),
    }
    new = insert_values(g.insert(task_leases), values, r["claimed"], claimed.lease_token.is_not(None))
    # A Ready task has no lease. One that was left behind by mistake must not make its task unclaimable.
    key, *others = values
    return new.on_conflict_do_update(index_elements=[key], set_={name: new.excluded[name] for name in others})  # type: ignore[no-any-return]


def _event(g: Grammar, r: Relations) -> Statement:
    claimed = r["claimed"].c
    late = claimed.lease_token.is_(None)
    return task_rows.event(
        g,
        claimed,
        r["claimed"],
        event_type=case((late, sql_literal(EventType.EXPIRED)), else_=sql_literal(EventType.CLAIMED)),
        data=case(
            (late, g.json(expires_at=claimed.expires_at)),
            (lease_seconds.is_not(None), g.json(attempt=claimed.attempt, lease_seconds=cast(lease_seconds, Double))),
            else_=g.json(attempt=claimed.attempt),
        ),
        worker_id=worker_id,
        lease_token=claimed.lease_token,
    )
