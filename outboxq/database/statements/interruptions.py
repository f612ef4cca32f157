"""Find the releases of transactional tasks whose transaction an error from outside has ended."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Uuid, bindparam, or_, select, union_all

from ...model import ENDS_CLAIM, INTERRUPTED, EventType
from ..tables import execution_events
from .grammar import Grammar, word

_task_id = bindparam("task_id", type_=Uuid, required=True)
_SAY = ENDS_CLAIM - {EventType.RESET, EventType.RELEASED}
"""The ends of claims that tell something about the handler."""
_BY_HAND = (EventType.RETRY_SCHEDULED, EventType.REQUEUED, EventType.REPLACED)
"""The events that start a task again without a claim."""


def last_end(g: Grammar) -> Select[Any]:
    """Select the last event of a task that ended a run of interruptions (an end of its handler, an operation) or is one of them.

    Recoveries and releases of claims that never began are ignored. One part for each index.
    """
    event = execution_events.c
    mine = select(event.sequence_num, event.event_type, event.event_data).where(event.task_execution_id == _task_id)
    says = event.event_type.in_([word(kind) for kind in sorted(_SAY)])
    interrupted = g.text_in(event.event_data, "reason") == INTERRUPTED
    ends = union_all(
        mine.where(
            event.event_type != word(EventType.CLAIMED),
            event.lease_token.is_not(None),
            or_(says, (event.event_type == word(EventType.RELEASED)) & interrupted),
        ),
        mine.where(event.lease_token.is_(None), event.event_type.in_([word(kind) for kind in _BY_HAND])),
    ).subquery("ends")
    return select(ends.c.event_type, ends.c.event_data).order_by(ends.c.sequence_num.desc()).limit(1)
