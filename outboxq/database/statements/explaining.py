"""Find what keeps a task from being claimed, one question for each statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from ..column_types import BigId, Instant
from ..grammar import Grammar
from ..queue_order import LIMITS_OF_KEYS
from ..tables import partition_claims, queue_settings, task_leases, task_outbox

MOST = 1000
"""The largest number of tasks ahead that is counted."""

_entry: Any = task_outbox.c
_task_id = bindparam("task_id", type_=Uuid, required=True)
_queue = bindparam("queue", type_=Text, required=True)
_key = bindparam("partition_key", type_=Text, required=True)
_entry_id = bindparam("entry_id", type_=BigId, required=True)
_priority = bindparam("priority", type_=SmallInteger, required=True)
_available_at = bindparam("available_at", type_=Instant, required=True)


def entry(_: Grammar) -> Select[Any]:
    """Select the task's outbox entry."""
    return select(_entry.id, _entry.available_at, _entry.priority).where(_entry.task_execution_id == _task_id)


SETTINGS = ("paused_at", "concurrency_limit", "rate_limit", "rate_seconds", "rate_full_at", *LIMITS_OF_KEYS)
"""The columns of a queue's settings that keep tasks from being claimed."""
WAITING = {"id": Uuid()}
"""The columns of the batch :tasks."""


def waiting(g: Grammar) -> Select[Any]:
    """Select, for each waiting task of :tasks, its due time, the first task of its key, if the key is taken or held, the settings
    of its queue, and the number of tasks that run there if they are limited.

    They are subqueries, so each task costs three look-ups, however many tasks wait. The settings are read once for each queue.
    """
    among = g.among(_entry.task_execution_id, g.rows("tasks", WAITING).c.id)
    columns = (_entry.task_execution_id.label("id"), _entry.queue, _entry.partition_key, _entry.available_at)
    page = select(*columns).where(among).cte("page").prefix_with("MATERIALIZED")
    set_up, claim = _of_queues(g, page.c.queue), partition_claims.alias("claim").c
    first = first_of_key(task_outbox.alias("first").c, page.c.queue, page.c.partition_key).correlate(page)
    taken = select(claim.held).where(claim.queue == page.c.queue, claim.partition_key == page.c.partition_key)
    return select(
        page.c.id,
        page.c.available_at,
        g.now.label("now"),
        first.scalar_subquery().label("head"),
        taken.correlate(page).scalar_subquery().label("held"),
        *(column for column in set_up.c if column.key != "queue"),
    ).outerjoin_from(page, set_up, set_up.c.queue == page.c.queue)


def _of_queues(g: Grammar, queues: ColumnElement[str]) -> CTE:
    """Select the settings of queues, and the number of tasks that run where that is limited."""
    mine, lease = queue_settings.c, task_leases.c
    running = select(func.count()).select_from(task_leases).where(lease.queue == mine.queue).correlate(queue_settings)
    count = case((mine.concurrency_limit.is_not(None), running.scalar_subquery())).label("running")
    found = select(mine.queue, *(mine[name] for name in SETTINGS), count).where(g.among(mine.queue, queues))
    return found.cte("set_up").prefix_with("MATERIALIZED")


def settings(_: Grammar) -> Select[Any]:
    """Select the settings of the queue."""
    mine = queue_settings.c
    return select(*(mine[name] for name in SETTINGS)).where(mine.queue == _queue)


def holder(_: Grammar) -> Select[Any]:
    """Select the task that holds the key."""
    claim = partition_claims.c
    return select(claim.task_execution_id, claim.held).where(claim.queue == _queue, claim.partition_key == _key)


def head(_: Grammar) -> Select[Any]:
    """Select the first waiting task of the key."""
    return first_of_key(_entry, _queue, _key).add_columns(_entry.available_at)


def first_of_key(entry: Any, queue: Any, key: Any) -> Select[Any]:
    """Select the task that a claim takes first of a key, from the columns of an alias of the outbox."""
    first = select(entry.task_execution_id).where(entry.queue == queue, entry.partition_key == key)
    return first.order_by(entry.priority.desc(), entry.position).limit(1)


def ahead(g: Grammar) -> Select[Any]:
    """Count the due tasks of the queue that a claim takes before this one, up to one more than MOST."""
    older = or_(_entry.available_at < _available_at, and_(_entry.available_at == _available_at, _entry.id < _entry_id))
    before = select(_entry.id).where(
        _entry.queue == _queue,
        _entry.available_at <= g.now,
        _entry.priority >= _priority,
        or_(_entry.priority > _priority, older),
    )
    # Two parts, each with an index of its own.
    parts = union_all(before.where(_entry.partition_key.is_(None)), before.where(_entry.partition_key.is_not(None)))
    counted = select(parts.subquery("parts")).limit(literal_column(str(MOST + 1))).subquery("counted")
    return select(func.count().label("tasks")).select_from(counted)
