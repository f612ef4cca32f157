"""Find which of many tasks have ended, for callers that wait for their results."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Select, Uuid, bindparam, or_, select

from ...model import TERMINAL
from ..grammar import Columns, Grammar, sql_literal
from ..tables import task_executions

TASKS: Columns = {"id": Uuid()}
_everything = bindparam("everything", type_=Boolean, required=True)


def ended(g: Grammar) -> Select[Any]:
    """Select those of the given tasks that have ended. With :everything, select the others too.

    Each is looked up by its id. A task that has not ended is read only to learn that it is there: a thousand of them, looked at
    again and again, would be most of what is sent.
    """
    execution = task_executions.c
    has_ended = execution.status.in_([sql_literal(status) for status in sorted(TERMINAL)])
    return select(
        execution.id, execution.task_name, execution.status, execution.attempt, execution.last_error, execution.result
    ).where(g.among(execution.id, g.rows("tasks", TASKS).c.id), or_(_everything, has_ended))
