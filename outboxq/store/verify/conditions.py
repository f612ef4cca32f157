"""The columns and the conditions that checks and repairs share."""

from __future__ import annotations

from ...database.grammar import sql_literal
from ...database.history import kinds
from ...database.tables import execution_events, task_executions
from ...model import STATUS_AFTER, TERMINAL, TaskStatus

EXECUTION = task_executions.c
EVENT = execution_events.c
READY, RUNNING, FAILED = (
    EXECUTION.status == sql_literal(status) for status in (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED)
)
UNFINISHED = EXECUTION.status.in_([sql_literal(TaskStatus.READY), sql_literal(TaskStatus.RUNNING)])
ENDED = EXECUTION.status.in_([sql_literal(status) for status in sorted(TERMINAL)])
EVENT_OF_TASK = EVENT.task_execution_id == EXECUTION.id
CLAIMS, ENDS, OTHERS = kinds(EVENT).values()
"""Conditions of the three indexes of events by task."""
TRANSITION = EVENT.event_type.in_([sql_literal(kind) for kind in STATUS_AFTER])
"""The condition that the event changed its task's status."""
