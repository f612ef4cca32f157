"""Check the durable steps: each result has one event, which a claim wrote while it held; and no result is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Integer, Select, and_, case, cast, func, or_, select

from ....model import EventType
from ...grammar import Grammar
from ...tables import execution_events, task_steps
from .check import CLAIMS, ENDS, EVENT, EXECUTION, Check, broken_ones, is_a, of_claim, task_of

_step = task_steps.c
TASK_OF_STEP = select(EXECUTION.id).where(EXECUTION.id == _step.task_execution_id)


def checks() -> Mapping[str, Check]:
    return {
        "step_without_task": Check(
            meaning="a step belongs to a task that does not exist",
            broken=_rows_differ,
            also={
                "step_not_recorded": "the result of a step is stored that no event records",
                "step_without_claim": "a step has a lease token under which its task was never claimed",
                "step_not_json": "the result of a step is not JSON, so no later attempt of its task can read it; rewind the task to that step",
            },
        ),
        "step_lost": Check(
            meaning="an event records a completed step whose result is gone, so its function would be called again",
            broken=_events_differ,
            also={
                "step_completed_twice": "a step was completed again, although its result was stored",
                "step_outside_claim": "a step was completed while no claim of its task held",
            },
        ),
    }


def _rows_differ(g: Grammar) -> Select[Any]:
    lasting = _completions(g)
    claim = execution_events.alias("claim").c
    recorded = select(lasting.c.id, lasting.c.name).where(lasting.c.lasts).distinct().subquery("recorded")
    claimed = of_claim(claim.sequence_num, _step.task_execution_id, _step.lease_token, claim)
    is_there = TASK_OF_STEP.exists()
    return broken_ones(
        select(task_of(task_steps)).select_from(
            task_steps.outerjoin(
                recorded, and_(recorded.c.id == _step.task_execution_id, recorded.c.name == _step.name)
            )
        ),
        {
            "step_without_task": ~is_there,
            "step_not_recorded": and_(is_there, recorded.c.id.is_(None)),
            "step_without_claim": and_(is_there, ~claimed.exists()),
            "step_not_json": and_(_step.result.is_not(None), ~g.is_json(_step.result)),
        },
    )


def _events_differ(g: Grammar) -> Select[Any]:
    event = _completions(g).c
    stored = select(_step.name).where(_step.task_execution_id == event.id, _step.name == event.name)
    return broken_ones(
        select(event.id),
        {
            "step_lost": and_(event.lasts, ~stored.exists()),
            "step_completed_twice": and_(event.lasts, event.sequence_num < event.latest),
            "step_outside_claim": ~event.was_held,
        },
    )


def _completions(g: Grammar) -> FromClause:
    """Select each event of a completed step, in one pass over the events of the tasks that have steps.

    It `lasts` unless it was deleted later, by a rewind from its step or from one before it. It `was_held` if the last event of a claim
    before it began one. `latest` is the last completion of the same step.
    """
    completes, rewinds = (
        and_(EVENT.lease_token.is_(None), is_a(kind)) for kind in (EventType.STEP_COMPLETED, EventType.REWOUND)
    )
    stepped = select(EVENT.task_execution_id).where(completes)
    rows = (
        select(
            task_of(execution_events),
            EVENT.sequence_num,
            completes.label("completes"),
            case((rewinds, _number(g))).label("rewound_from"),
            case((completes, _number(g))).label("number"),
            case((completes, g.text_in(EVENT.event_data, "step"))).label("name"),
            case((CLAIMS, EVENT.sequence_num)).label("begun"),
            case((ENDS, EVENT.sequence_num)).label("ended"),
        )
        .where(EVENT.task_execution_id.in_(stepped), or_(completes, rewinds, EVENT.lease_token.is_not(None)))
        .subquery("rows")
    )
    row = rows.c
    rewound = func.min(row.rewound_from).over(partition_by=row.id, order_by=row.sequence_num.desc())
    begun, ended = (
        func.max(one).over(partition_by=row.id, order_by=row.sequence_num) for one in (row.begun, row.ended)
    )
    latest = func.max(row.sequence_num).over(partition_by=(row.id, row.name))
    read = select(
        row.id,
        row.sequence_num,
        row.name,
        row.completes,
        or_(rewound.is_(None), rewound > row.number).label("lasts"),
        and_(begun.is_not(None), or_(ended.is_(None), begun > ended)).label("was_held"),
        latest.label("latest"),
    ).subquery("read")
    return select(read).where(read.c.completes).subquery("completed")


def _number(g: Grammar) -> ColumnElement[int]:
    return cast(g.text_in(EVENT.event_data, "number"), Integer)
