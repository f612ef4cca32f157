"""Read in one statement what a page about one task needs of the tables that hold one row for it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Uuid, bindparam, case, func, select

from ...store.tasks.tasks import with_lease
from ..grammar import Columns, Grammar
from ..tables import (
    dead_letters,
    idempotency_keys,
    partition_claims,
    queue_settings,
    task_executions,
    task_leases,
    task_outbox,
    workers,
)
from .explaining import SETTINGS, first_of_key

_task_id = bindparam("task_id", type_=Uuid, required=True)
NAMED: Columns = {"id": Uuid()}
"""The columns of the batch :named."""


def one(g: Grammar) -> Select[Any]:
    """Select a task with its lease, its outbox entry, its dead letter, its idempotency key, its queue's settings, and the owner
    and the first waiting task of its partition key.

    Each is one look-up. The running tasks of the queue are counted if it has a limit of them.
    """
    execution, entry, claim, key = task_executions.c, task_outbox.c, partition_claims.c, idempotency_keys.c
    settings, letter, first = queue_settings.c, dead_letters.c, task_outbox.alias("first").c
    # As subqueries: a join of the claims reads all of them, since the planner cannot tell that one key has one row.
    of_key = select(claim.task_execution_id).where(
        claim.queue == execution.queue, claim.partition_key == execution.partition_key
    )
    lease = task_leases.alias("lease")
    running = select(func.count()).select_from(lease).where(lease.c.queue == execution.queue)
    head = first_of_key(first, execution.queue, execution.partition_key)
    idempotency = select(key.key).where(key.task_execution_id == execution.id).order_by(key.key).limit(1)
    return (
        with_lease()
        .outerjoin(task_outbox, entry.task_execution_id == execution.id)
        .outerjoin(queue_settings, settings.queue == execution.queue)
        .outerjoin(dead_letters, letter.task_execution_id == execution.id)
        .add_columns(
            g.now.label("now"),
            entry.id.label("entry_id"),
            entry.available_at.label("entry_available_at"),
            entry.priority.label("entry_priority"),
            *(settings[name].label(f"queue_{name}") for name in SETTINGS),
            of_key.correlate(task_executions).scalar_subquery().label("key_owner"),
            of_key.with_only_columns(claim.held).correlate(task_executions).scalar_subquery().label("key_held"),
            head.correlate(task_executions).scalar_subquery().label("key_head"),
            head.with_only_columns(first.available_at)
            .correlate(task_executions)
            .scalar_subquery()
            .label("key_head_due"),
            case((settings.concurrency_limit.is_not(None), running.correlate(task_executions).scalar_subquery())).label(
                "queue_running"
            ),
            letter.exception.label("dead_letter_exception"),
            letter.failed_at.label("dead_letter_failed_at"),
            letter.lost_key.label("lost_key"),
            idempotency.correlate(task_executions).scalar_subquery().label("idempotency_key"),
        )
        .where(execution.id == _task_id)
    )


def labels(g: Grammar) -> Select[Any]:
    """Select the labels of the workers of :named that are registered."""
    return select(workers.c.id, workers.c.label).where(g.among(workers.c.id, g.rows("named", NAMED).c.id))
