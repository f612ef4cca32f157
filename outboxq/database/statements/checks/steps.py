"""Check the durable steps: each result has one event, which a claim wrote while it held; and no result is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, and_, cast, select

from ....model import EventType
from ...tables import execution_events, task_steps
from ..grammar import Grammar
from .check import EXECUTION, Check, broken_ones, is_a, of_claim, task_of

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
    event, claim = execution_events.alias("event").c, execution_events.alias("claim").c
    is_recorded = select(event.sequence_num).where(
        event.task_execution_id == _step.task_execution_id,
        _is_completion(event),
        g.text_in(event.event_data, "step") == _step.name,
        ~_was_rewound(g, event),
    )
    claimed = of_claim(claim.sequence_num, _step.task_execution_id, _step.lease_token, claim)
    is_there = TASK_OF_STEP.exists()
    return broken_ones(
        select(task_of(task_steps)),
        {
            "step_without_task": ~is_there,
            "step_not_recorded": and_(is_there, ~is_recorded.exists()),
            "step_without_claim": and_(is_there, ~claimed.exists()),
        },
    )


def _events_differ(g: Grammar) -> Select[Any]:
    completed = execution_events.alias("completed")
    event, again = completed.c, execution_events.alias("again").c
    claim, ended = execution_events.alias("claim").c, execution_events.alias("ended")
    end = ended.c
    name, lasts = g.text_in(event.event_data, "step"), ~_was_rewound(g, event)
    stored = select(_step.name).where(_step.task_execution_id == event.task_execution_id, _step.name == name)
    repeated = select(again.sequence_num).where(
        again.task_execution_id == event.task_execution_id,
        _is_completion(again),
        again.sequence_num > event.sequence_num,
        g.text_in(again.event_data, "step") == name,
    )
    has_ended = (
        select(end.sequence_num)
        .where(
            end.task_execution_id == claim.task_execution_id,
            end.lease_token == claim.lease_token,
            ~is_a(EventType.CLAIMED, end),
            end.lease_token.is_not(None),
            end.sequence_num < event.sequence_num,
        )
        .correlate_except(ended)
        .exists()
    )
    held = select(claim.sequence_num).where(
        claim.task_execution_id == event.task_execution_id,
        is_a(EventType.CLAIMED, claim),
        claim.sequence_num < event.sequence_num,
        ~has_ended,
    )
    return broken_ones(
        select(task_of(completed)).where(_is_completion(event)),
        {
            "step_lost": and_(lasts, ~stored.exists()),
            "step_completed_twice": and_(lasts, repeated.exists()),
            "step_outside_claim": ~held.exists(),
        },
    )


def _is_completion(event: Any) -> ColumnElement[bool]:
    return and_(event.lease_token.is_(None), is_a(EventType.STEP_COMPLETED, event))


def _was_rewound(g: Grammar, event: Any) -> ColumnElement[bool]:
    """Return a condition: the step that this event completed was deleted later, by a rewind from it or from one before it."""
    rewound = execution_events.alias("rewound").c
    return (
        select(rewound.sequence_num)
        .where(
            rewound.task_execution_id == event.task_execution_id,
            rewound.lease_token.is_(None),
            is_a(EventType.REWOUND, rewound),
            rewound.sequence_num > event.sequence_num,
            _number(g, rewound) <= _number(g, event),
        )
        .exists()
    )


def _number(g: Grammar, event: Any) -> ColumnElement[int]:
    return cast(g.text_in(event.event_data, "number"), Integer)
