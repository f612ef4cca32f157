"""Taking due work: which (queue, priority) pairs there are, and what a claim does with the entries it took.

How entries are picked is each dialect's own statement; everything behind the DELETE is shared and uses its RETURNING.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import CTE, BigInteger, Double, FromClause, Select, Text, Uuid, bindparam, func, null, select, update

from ..model import EventType, TaskStatus
from ..tables import task_executions, task_leases, task_outbox
from . import follow
from .grammar import Grammar, Relations, Statement, Transition, word

limit = bindparam("limit", type_=BigInteger, required=True)
worker_id = bindparam("worker_id", type_=Uuid, required=True)
lease_seconds = bindparam("lease_seconds", None, type_=Double)
"""A worker's own lease in place of the task's; None: the task's."""

_CLAIM_COLUMNS = (
    "id",
    "pipeline_execution_id",
    "task_name",
    "queue",
    "priority",
    "event_type",
    "partition_key",
    "args",
    "headers",
    "attempt",
    "max_attempts",
    "recovery_attempts",
    "lease_token",
    "timeout_seconds",
    "created_at",
    "first_started_at",
    "started_at",
)


def claim(g: Grammar, name: str, take: Callable[[], Statement]) -> Transition:
    """`take` deletes due entries and returns `taken()`; those whose execution is Ready begin to run, all else is stale.

    A stale entry (its execution is finished, running or gone) was deleted by `take` and ends there; it is returned without
    a lease token.
    """
    return Transition(
        name=name,
        steps={
            "taken": lambda _: take(),
            "claimed": lambda r: _claimed(g, r),
            "lease": lambda r: _lease(g, r),
            "event": lambda r: _event(g, r),
        },
        passes={"claimed": ("id", "pipeline_execution_id", "queue", "attempt", "lease_token", "lease_expires_at")},
        returns="taken",
        completed_by=("claimed",),
    )


def taken() -> tuple[Any, ...]:
    """What `take` returns: the execution's id, and by what the claim is ordered."""
    entry = task_outbox.c
    return entry.task_execution_id.label("id"), entry.available_at, entry.id.label("entry_id")


def given_queues(g: Grammar) -> FromClause:
    return g.rows("queues", {"queue": Text()})


def every_queue() -> CTE:
    """The queues that have entries, by hopping through the index: one probe a queue, whatever the backlog."""
    first = select(func.min(task_outbox.c.queue).label("queue")).where(task_outbox.c.partition_key.is_(None))
    queues = first.cte("queues", recursive=True)
    entry = task_outbox.alias("entry")
    following = (
        select(func.min(entry.c.queue))
        .where(entry.c.queue > queues.c.queue, entry.c.partition_key.is_(None))
        .correlate(queues)
        .scalar_subquery()
    )
    return queues.union_all(select(following).where(queues.c.queue.is_not(None)))


def pairs(queues: FromClause) -> CTE:
    """The (queue, priority) pairs that have entries, by hopping through the index; ends each queue with a NULL."""

    def highest(queue: Any, below: Any = None) -> Any:
        entry = task_outbox.alias("entry")
        found = select(entry.c.priority).where(entry.c.queue == queue, entry.c.partition_key.is_(None))
        if below is not None:
            found = found.where(entry.c.priority < below)
        return found.order_by(entry.c.priority.desc()).limit(1)

    first = select(queues.c.queue, highest(queues.c.queue).correlate(queues).scalar_subquery().label("priority"))
    found = first.where(queues.c.queue.is_not(None)).cte("pairs", recursive=True)
    following = highest(found.c.queue, found.c.priority).correlate(found).scalar_subquery()
    return found.union_all(select(found.c.queue, following).where(found.c.priority.is_not(None)))


def due(g: Grammar, pair: FromClause, *columns: Any, entry: FromClause = task_outbox) -> Select[Any]:
    """The due entries of one pair, oldest first: one contiguous range of `ix_task_outbox_due`."""
    return (
        select(*columns)
        .where(
            entry.c.partition_key.is_(None),
            entry.c.queue == pair.c.queue,
            entry.c.priority == pair.c.priority,
            entry.c.available_at <= g.now,
        )
        .order_by(entry.c.available_at, entry.c.id)
    )


def any_due(g: Grammar, found: CTE) -> Select[Any]:
    """One row if something can be claimed from these pairs. Reads only."""
    entry = task_outbox.alias("entry_due")
    return select(found.c.queue).where(due(g, found, entry.c.id, entry=entry).correlate(found).exists()).limit(1)


def next_available_at(g: Grammar, found: CTE) -> Select[Any]:
    """The earliest moment in the future at which an entry of these pairs becomes due; NULL where none waits."""
    entry = task_outbox.alias("entry_later")
    first = (
        select(entry.c.available_at)
        .where(
            entry.c.partition_key.is_(None),
            entry.c.queue == found.c.queue,
            entry.c.priority == found.c.priority,
            entry.c.available_at > g.now,
        )
        .order_by(entry.c.available_at, entry.c.id)
        .limit(1)
        .correlate(found)
        .scalar_subquery()
    )
    return select(func.min(first, type_=task_outbox.c.available_at.type).label("available_at")).select_from(found)


def _claimed(g: Grammar, r: Relations) -> Statement:
    execution, taken = task_executions.c, r["taken"].c
    lease = func.coalesce(lease_seconds, execution.lease_seconds)
    return (
        update(task_executions)
        .where(g.among(execution.id, taken.id), execution.status == word(TaskStatus.READY))
        .values(
            status=word(TaskStatus.RUNNING),
            worker_id=worker_id,
            lease_token=execution.lease_token + 1,
            retry_at=null(),
            first_started_at=func.coalesce(execution.first_started_at, g.now),
            started_at=g.now,
            updated_at=g.now,
        )
        .returning(
            *(execution[name] for name in _CLAIM_COLUMNS),
            lease.label("lease_seconds"),
            g.later(g.now, lease).label("lease_expires_at"),
        )
    )


def _lease(g: Grammar, r: Relations) -> Statement:
    claimed = r["claimed"].c
    new = g.insert(task_leases).from_select(
        ["task_execution_id", "queue", "lease_token", "worker_id", "lease_expires_at"],
        select(claimed.id, claimed.queue, claimed.lease_token, worker_id, claimed.lease_expires_at).where(
            claimed.id.is_not(None)
        ),
    )
    # A Ready task has no lease. Should one have been left behind all the same, it must not make its task unclaimable.
    return (  # type: ignore[no-any-return]
        new.on_conflict_do_update(
            index_elements=[task_leases.c.task_execution_id],
            set_={name: new.excluded[name] for name in ("queue", "lease_token", "worker_id", "lease_expires_at")},
        )
    )


def _event(g: Grammar, r: Relations) -> Statement:
    claimed = r["claimed"].c
    return follow.event(
        g,
        claimed,
        r["claimed"],
        event_type=word(EventType.CLAIMED),
        data=g.json(attempt=claimed.attempt),
        worker_id=worker_id,
        lease_token=claimed.lease_token,
    )
