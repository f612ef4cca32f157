"""Define the table of durable steps."""

from __future__ import annotations

from sqlalchemy import Column, Integer, Text, Uuid

from .. import bounds
from ..column_types import BoundedInstant, Number
from ..typed_table import TypedColumns, typed_table
from .metadata import metadata


class TaskStepsColumns(TypedColumns):
    """A row for each step that a task has completed, and for each sleep that it has begun. It is never updated.

    The primary key finds all steps of a task in one range, and refuses a second result of one.
    """

    task_execution_id = Column(Uuid, primary_key=True)
    name = Column(Text, primary_key=True)
    number = Column(Integer, nullable=False)  # the order in which the task completed them, from 1
    lease_token = Column(Number, nullable=False)  # of the claim that wrote it
    result = Column(Text)  # as JSON; NULL: the function returned None, or it is a sleep
    due_at = Column(BoundedInstant)  # the end of a sleep; NULL: it is no sleep
    created_at = Column(BoundedInstant, nullable=False)


task_steps = typed_table("task_steps", metadata, TaskStepsColumns, *bounds.of("task_steps"))
