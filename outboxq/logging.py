"""A filter that puts the running task into an application's own log records."""

from __future__ import annotations

import logging
from typing import Final

from .context import TaskContext, current

FIELDS: Final = ("task_id", "task", "queue", "attempt")
"""The fields that the filter sets."""


class TaskContextFilter(logging.Filter):
    """Gives each record that is logged inside a handler the fields `task_id`, `task`, `queue` and `attempt`.

    A field that the record already has is kept. Outside of handlers the fields are None, so a format may always name them.
    Add it to a `logging.Handler`: a filter of a logger does not see the records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the fields that the record lacks. Every record passes."""
        context = current.get()
        for name, value in zip(FIELDS, _values(context), strict=True):
            record.__dict__.setdefault(name, value)
        return True


def _values(context: TaskContext | None) -> tuple[str | int | None, ...]:
    if context is None:
        return (None,) * len(FIELDS)
    return str(context.task_id), context.task_name, context.queue, context.attempt
