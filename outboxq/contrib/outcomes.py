"""The error of an attempt, for tracing libraries."""

from __future__ import annotations

from ..context import TaskContext
from ..model import EventType, Outcome, Retry


def error_of(context: TaskContext, outcome: Outcome) -> BaseException | None:
    """Return the error of a failed attempt. None: it did not fail.

    A Retry is a wish of the handler, and no failure, unless there is no further attempt.
    """
    error = context.error
    if outcome.event_type is EventType.FAILED:
        return error
    wished = error is None or isinstance(error, Retry)
    return error if outcome.event_type is EventType.RETRY_SCHEDULED and not wished else None
