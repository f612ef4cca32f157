"""Define the tables for batches, schedules and their ticks, and durable steps."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Identity, Index, Integer, Text, Uuid

from .. import bounds
from ..column_types import BigId, BoundedInstant, Number, Seconds, Xid8
from ..typed_table import TypedColumns, typed_table
from .tasks import AGGRESSIVE_VACUUM, OptionColumns, metadata


class TaskBatchesColumns(TypedColumns):
    """A row for each batch and each chain. Its id is the `pipeline_execution_id` of its tasks.

    Triggers count the ends of its tasks and enqueue what follows, so the counts are right for every end: by another release, a
    person, plain SQL. The commit of an end locks the row.
    """

    id = Column(Uuid, primary_key=True)
    kind = Column(Text, nullable=False)
    name = Column(Text)
    on_failed = Column(Text, nullable=False)
    size = Column(Integer, nullable=False)  # tasks that are counted
    completed = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)  # dead letters
    cancelled = Column(Integer, nullable=False)
    closed = Column(Boolean, nullable=False)  # False: the transaction that makes it is not over
    then_tasks = Column(Text)  # JSON array of the tasks that follow, one after the other; NULL: none
    stage = Column(Integer, nullable=False)  # the number of them that are enqueued
    runs_then = Column(Boolean, nullable=False)  # False: a person cancelled the batch, so none of them follows
    cancel_requested_at = Column(BoundedInstant)
    created_at = Column(BoundedInstant, nullable=False)
    updated_at = Column(BoundedInstant, nullable=False)
    completed_at = Column(BoundedInstant)


task_batches = typed_table(
    "task_batches", metadata, TaskBatchesColumns, *bounds.of("task_batches"), storage={"fillfactor": 50}
)

_open = task_batches.c.completed_at.is_(None)
Index("ix_task_batches_open", task_batches.c.id, postgresql_where=_open, sqlite_where=_open)


class TaskBatchChangesColumns(TypedColumns):
    """A row for each change of a batch in an open transaction. A trigger counts and deletes them when it commits.

    On SQLite, which has one writer, each is counted at once.
    """

    id = Column(BigId, Identity(), primary_key=True)
    batch_id = Column(Uuid, nullable=False)
    added = Column(Integer, nullable=False)
    completed = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)
    cancelled = Column(Integer, nullable=False)
    closes = Column(Boolean, nullable=False)
    changed_at = Column(BoundedInstant, nullable=False)
    # The migration for PostgreSQL sets a default that fills it, and an index. NULL on SQLite.
    xact_id = Column(Xid8().with_variant(Integer, "sqlite"))


task_batch_changes = typed_table(
    "task_batch_changes",
    metadata,
    TaskBatchChangesColumns,
    Index("ix_task_batch_changes_xact_id", "xact_id"),
    storage=AGGRESSIVE_VACUUM,
)


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


class TaskSchedulesColumns(OptionColumns):
    """A row for each schedule. It has all that planting a tick needs, so a worker need not know the task."""

    name = Column(Text, primary_key=True)
    task_name = Column(Text, nullable=False)
    args = Column(Text, nullable=False)
    options = OptionColumns
    rule = Column(Text, nullable=False)  # a cron expression, or `every` and a number of seconds
    tz = Column(Text, nullable=False)  # the IANA name of the zone that the rule is read in
    overlap = Column(Text, nullable=False)
    catch_up = Column(Text, nullable=False)
    catch_up_limit = Column(Integer, nullable=False)
    grace_seconds = Column(Seconds)  # a tick that has not started so long after its time is not run; NULL: it always is
    jitter_seconds = Column(Seconds)  # a tick's task is due up to so much later; NULL: at its time
    starts_at = Column(BoundedInstant, nullable=False)  # no tick is earlier, and `every` counts from here
    ends_at = Column(BoundedInstant)  # no tick is this late
    declared_by = Column(Text)  # the version of the code that declares it; NULL: it was stored at run time
    declaration = Column(Text)  # a digest of what the code declares, to see a change of it; NULL: stored at run time
    planted_until = Column(BoundedInstant, nullable=False)  # ticks up to here are planted or skipped
    paused_at = Column(BoundedInstant)
    pause_reason = Column(Text)
    created_at = Column(BoundedInstant, nullable=False)
    updated_at = Column(BoundedInstant, nullable=False)


task_schedules = typed_table("task_schedules", metadata, TaskSchedulesColumns, *bounds.of("task_schedules"))


class ScheduleTicksColumns(TypedColumns):
    """A row for each tick that became a task. The primary key refuses a second task for it."""

    schedule = Column(Text, primary_key=True)
    tick = Column(BoundedInstant, primary_key=True)
    task_execution_id = Column(Uuid, nullable=False)


schedule_ticks = typed_table(
    "schedule_ticks",
    metadata,
    ScheduleTicksColumns,
    Index("ix_schedule_ticks_task_execution_id", "task_execution_id"),
    *bounds.of("schedule_ticks"),
)
