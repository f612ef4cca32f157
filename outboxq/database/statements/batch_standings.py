"""Find which batches have gone on, or go on no more, for callers that wait for what follows them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Integer, Select, Text, Uuid, and_, bindparam, literal_column, not_, or_, select

from ...model.batches import BatchKind, OnFailed
from ..grammar import Columns, Grammar, sql_literal
from ..tables import task_batches, task_executions

PLACES: Columns = {"batch_id": Uuid(), "number": Integer()}
_batch, _execution = task_batches.c, task_executions.c
_everything = bindparam("everything", type_=Boolean, required=True)
_batch_id = bindparam("batch_id", type_=Uuid, required=True)
_status = bindparam("status", type_=Text, required=True)
_other_status = bindparam("other_status", type_=Text, required=True)
_zero, _one = literal_column("0", Integer), literal_column("1", Integer)


def standings(g: Grammar) -> Select[Any]:
    """Select the batch of each given place, if the task at that place is enqueued, or may never be. With :everything, of all places.

    Each is looked up by its id. What a batch passes on to its tasks is not read: a producer may not.
    """
    place = g.rows("places", PLACES)
    has_come = and_(place.c.number > _zero, _batch.stage >= place.c.number)
    waits = and_(_batch.on_failed == sql_literal(OnFailed.WAIT), _batch.failed > _zero)
    breaks = and_(_batch.kind == sql_literal(BatchKind.CHAIN), _batch.failed + _batch.cancelled > _zero)
    is_over = or_(_batch.completed_at.is_not(None), not_(_batch.runs_then))
    return (
        select(
            place.c.number,
            _batch.id,
            _batch.kind,
            _batch.on_failed,
            _batch.size,
            _batch.completed,
            _batch.failed,
            _batch.cancelled,
            _batch.closed,
            _batch.stage,
            _batch.runs_then,
            _batch.cancel_requested_at,
            _batch.completed_at,
        )
        .select_from(task_batches.join(place, place.c.batch_id == _batch.id))
        .where(g.among(_batch.id, place.c.batch_id), or_(_everything, has_come, waits, breaks, is_over))
    )


def first(_: Grammar) -> Select[Any]:
    """Select the first task of a batch, in the order of the ids, that has one of two statuses.

    All of them are found by the index of batches. With a LIMIT there, a planner may walk through all ids of the table instead.
    """
    those = (
        select(_execution.id, _execution.task_name, _execution.status)
        .where(
            _execution.pipeline_execution_id == _batch_id,
            _execution.pipeline_execution_id != _execution.id,
            _execution.status.in_([_status, _other_status]),
        )
        .cte("those")
        .prefix_with("MATERIALIZED")
    )
    return select(those).order_by(those.c.id).limit(_one)
