"""Define the tables of schedules and their ticks."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, SmallInteger, Text, Uuid

from .. import bounds
from ..column_types import Attempts, BoundedInstant, Seconds
from ..typed_table import TypedColumns, typed_table
from .metadata import metadata


class TaskSchedulesColumns(TypedColumns):
    """A row for each schedule. It has all that planting a tick needs, so a worker need not know the task."""

    name = Column(Text, primary_key=True)
    task_name = Column(Text, nullable=False)
    args = Column(Text, nullable=False)
    queue = Column(Text, nullable=False)
    priority = Column(SmallInteger, nullable=False)
    max_attempts = Column(Attempts)
    lease_seconds = Column(Seconds, nullable=False)
    timeout_seconds = Column(Seconds)
    on_dead_letter = Column(Text, nullable=False)
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
