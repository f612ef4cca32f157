"""Define the tables for batches, schedules and their ticks, and durable steps."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Identity, Index, Integer, Text, Uuid

from ..column_types import BigId, BoundedInstant, Number, Seconds, Xid8
from ..typed_table import TypedColumns, typed_table
from .tasks import AGGRESSIVE_VACUUM, OptionColumns


class TaskBatchesColumns(TypedColumns):
    """A row for each batch and each chain. A batch's id is the `pipeline_execution_id` of its tasks.

    Triggers count a batch's finished tasks and enqueue the following tasks, so the counts are right even if another
    release, a person or plain SQL ends a task. The row is locked when a task's outcome is committed.
    """

    id = Column(Uuid, primary_key=True)
    kind = Column(Text, nullable=False)
    name = Column(Text)
    on_failed = Column(Text, nullable=False)
    size = Column(Integer, nullable=False)  # tasks that are counted
    completed = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)  # dead letters
    cancelled = Column(Integer, nullable=False)
    closed = Column(Boolean, nullable=False)  # False: the transaction that creates it has not ended
    then_tasks = Column(Text)  # JSON array of the tasks that follow, in order; NULL: none
    stage = Column(Integer, nullable=False)  # the number of these tasks that are enqueued
    runs_then = Column(Boolean, nullable=False)  # False: a person cancelled the batch, so these tasks are not enqueued
    cancel_requested_at = Column(BoundedInstant)
    created_at = Column(BoundedInstant, nullable=False)
    updated_at = Column(BoundedInstant, nullable=False)
    completed_at = Column(BoundedInstant)


task_batches = typed_table("task_batches", TaskBatchesColumns, storage={"fillfactor": 50})

_open = task_batches.c.completed_at.is_(None)
Index("ix_task_batches_open", task_batches.c.id, postgresql_where=_open, sqlite_where=_open)


class TaskBatchChangesColumns(TypedColumns):
    """A row for each change that an open transaction has made to a batch. A trigger counts and deletes the rows when
    the transaction commits.

    On SQLite, which has one writer, each row is counted immediately.
    """

    id = Column(BigId, Identity(), primary_key=True)
    batch_id = Column(Uuid, nullable=False)
    added = Column(Integer, nullable=False)
    completed = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)
    cancelled = Column(Integer, nullable=False)
    closes = Column(Boolean, nullable=False)
    changed_at = Column(BoundedInstant, nullable=False)
    # The migration for PostgreSQL sets a default that fills this column. It is NULL on SQLite.
    xact_id = Column(Xid8().with_variant(Integer, "sqlite"))


task_batch_changes = typed_table(
    "task_batch_changes",
    TaskBatchChangesColumns,
    Index("ix_task_batch_changes_xact_id", "xact_id"),
    storage=AGGRESSIVE_VACUUM,
)


class TaskStepsColumns(TypedColumns):
    """A row for each step that a task has completed, and for each sleep that it has begun. The row is never updated.

    The primary key keeps all steps of a task in one range, and prevents a second result for a step.
    """

    task_execution_id = Column(Uuid, primary_key=True)
    name = Column(Text, primary_key=True)
    number = Column(Integer, nullable=False)  # the order in which the task completed them, from 1
    lease_token = Column(Number, nullable=False)  # the lease token of the claim that wrote it
    result = Column(Text)  # as JSON; NULL: the function returned None, or it is a sleep
    due_at = Column(BoundedInstant)  # the end of a sleep; NULL: it is not a sleep
    created_at = Column(BoundedInstant, nullable=False)


task_steps = typed_table("task_steps", TaskStepsColumns)


class TaskSchedulesColumns(OptionColumns):
    """A row for each schedule. The row has everything that is needed to plant a tick, so the worker that plants it does
    not need to know the task.
    """

    name = Column(Text, primary_key=True)
    task_name = Column(Text, nullable=False)
    args = Column(Text, nullable=False)
    options = OptionColumns
    rule = Column(Text, nullable=False)  # a cron expression, or `every` and a number of seconds
    tz = Column(Text, nullable=False)  # the IANA name of the rule's time zone
    overlap = Column(Text, nullable=False)
    catch_up = Column(Text, nullable=False)
    catch_up_limit = Column(Integer, nullable=False)
    grace_seconds = Column(Seconds)  # a tick must start within this time; NULL: it always runs
    jitter_seconds = Column(Seconds)  # a tick's task is due up to this many seconds later; NULL: at the tick's time
    starts_at = Column(BoundedInstant, nullable=False)  # ticks begin at this time, and `every` counts from it
    ends_at = Column(BoundedInstant)  # all ticks are before this time
    declared_by = Column(Text)  # the version of the code that declares it; NULL: it was stored at run time
    declaration = Column(Text)  # a digest of what the code declares, to detect changes; NULL: stored at run time
    planted_until = Column(BoundedInstant, nullable=False)  # ticks up to this time are planted or skipped
    paused_at = Column(BoundedInstant)
    pause_reason = Column(Text)
    created_at = Column(BoundedInstant, nullable=False)
    updated_at = Column(BoundedInstant, nullable=False)


task_schedules = typed_table("task_schedules", TaskSchedulesColumns)


class ScheduleTicksColumns(TypedColumns):
    """A row for each tick that became a task. The primary key prevents a second task for the same tick."""

    schedule = Column(Text, primary_key=True)
    tick = Column(BoundedInstant, primary_key=True)
    task_execution_id = Column(Uuid, nullable=False)


schedule_ticks = typed_table(
    "schedule_ticks", ScheduleTicksColumns, Index("ix_schedule_ticks_task_execution_id", "task_execution_id")
)
