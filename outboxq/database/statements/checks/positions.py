"""Check positions, which order a key's tasks: they stay as they were drawn, and no two are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Select, Text, cast, func, literal_column, select

from ...tables import task_executions
from ..grammar import Grammar
from .check import EVENT, EXECUTION, Check


def checks() -> Mapping[str, Check]:
    return {
        "position_differs_from_events": Check(
            meaning="a task's position differs from the one it was enqueued with, so the order of its partition key is broken",
            broken=_moved,
        ),
        "position_taken_twice": Check(
            meaning="two tasks of a partition key have the same position, so their order is left to chance",
            broken=lambda _: _taken_twice(),
        ),
    }


def said_position(g: Grammar) -> Any:
    """Select the position that EXECUTION's task got in its key; NULL if no event has it."""
    said = g.text_in(EVENT.event_data, "position")
    return (
        select(cast(said, BigInteger))
        .where(
            EVENT.task_execution_id == EXECUTION.id,
            EVENT.lease_token.is_(None),
            EVENT.event_data.like(literal_column("'%\"position\"%'", Text)),
            said.is_not(None),
        )
        .order_by(EVENT.sequence_num.desc())
        .limit(1)
        .correlate(task_executions)
        .scalar_subquery()
    )


def _moved(g: Grammar) -> Select[Any]:
    return select(EXECUTION.id).where(EXECUTION.partition_key.is_not(None), EXECUTION.position != said_position(g))


def _taken_twice() -> Select[Any]:
    place = (EXECUTION.queue, EXECUTION.partition_key, EXECUTION.position)
    nth = func.row_number().over(partition_by=place, order_by=EXECUTION.id)
    placed = select(EXECUTION.id, nth.label("nth")).where(EXECUTION.partition_key.is_not(None)).subquery("placed")
    return select(placed.c.id).where(placed.c.nth > literal_column("1"))
