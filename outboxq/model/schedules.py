"""Schedules as records: a row of `task_schedules`, and the possible policies. No I/O."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from uuid import UUID

from .options import TaskOptions
from .records import TaskStatus


class Overlap(StrEnum):
    """The policy for a tick when an earlier tick's task has not ended."""

    ALLOW = "allow"
    """The tasks run side by side."""
    QUEUE = "queue"
    """The later task waits. Ticks run one at a time, in order, and no tick is lost."""
    SKIP = "skip"
    """The later task becomes Cancelled (`task_expired`) if the earlier one is still running when the later tick's
    `grace` ends.
    """


class CatchUp(StrEnum):
    """The policy for ticks that were missed because no worker was running, the database was unavailable, or the
    schedule was paused.
    """

    NONE = "none"
    LATEST = "latest"
    """Only the newest missed tick runs, immediately."""
    ALL = "all"
    """All missed ticks run, oldest first, up to a limit. An event records how many ticks were skipped."""


HORIZON = timedelta(seconds=60)
"""The lead time: a tick's task is enqueued this long before the tick."""
REMOVED = "removed from the code"
"""The beginning of the reason that is recorded when a schedule is paused because the code no longer declares it."""
SCHEDULE_HEADER, TICK_HEADER, TRIGGER_HEADER = "outboxq-schedule", "outboxq-tick", "outboxq-trigger"
"""The headers of a schedule's task: the schedule's name, and either the tick (in ISO 8601) or the person who triggered
the task.
"""
ZONE_HEADER = "outboxq-tz"
"""The header that contains a schedule's time zone, on the tasks of that schedule. If it is missing, the zone is UTC."""
RULE_HEADER = "outboxq-rule"
"""The header that contains the rule that a tick follows, so that monitors know when to expect the next tick."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSchedule(TaskOptions):
    """A schedule for `Schedules.put` to store: its rule, and the task that each tick becomes. The task's arguments are
    already encoded.
    """

    name: str
    task_name: str
    args: str = field(default="{}", repr=False)
    """The arguments for each task, as JSON."""
    rule: str
    """A cron expression, or `every` and a number of seconds."""
    tz: str = "UTC"
    """The IANA name of the time zone in which the rule is read."""
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_limit: int = 100
    grace: timedelta | None = None
    """The time after a tick during which its task may still start. None means no limit or, with `Overlap.SKIP`, the
    time until the next tick.
    """
    jitter: timedelta | None = None
    """The maximum delay for a tick's task. The exact delay is derived from the schedule's name and the tick."""
    starts_at: datetime | None = None
    """The time before which there are no ticks, and at which the interval `every` starts. None means the time at which
    the schedule is first stored.
    """
    ends_at: datetime | None = None
    """The time from which there are no more ticks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule(NewSchedule):
    """A row of `task_schedules`."""

    starts_at: datetime
    declared_by: str | None = None
    """The version of the code that declares the schedule; "" if the code does not have a version. None if the schedule
    was stored at run time.
    """
    declaration: str | None = None
    """A digest of what the code declares."""
    planted_until: datetime
    """All ticks from `updated_at` up to this time are planted. The time moves back only when planted ticks are
    cancelled.
    """
    paused_at: datetime | None = None
    pause_reason: str | None = None
    created_at: datetime
    updated_at: datetime
    """The time at which the schedule was last changed, or at which missed ticks were last planted. No tick since then
    has been left out.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A schedule's tick that became a task."""

    schedule: str
    tick: datetime
    """The scheduled time."""
    task_id: UUID
    status: TaskStatus | None
    """The status of the tick's task; None if the task has been deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TickRun(Tick):
    """A schedule's tick, and how long its task ran."""

    ran: timedelta | None
    """The run time of the last attempt; None if the task has not started, has not ended or has been deleted."""


def tick_of(header: str) -> datetime:
    """Return the tick in a header. Raises ValueError for anything that is not an aware datetime."""
    tick = datetime.fromisoformat(header)
    if tick.tzinfo is None:
        raise ValueError(f"{header!r} has no time zone")
    return tick


def digest_of(schedule: NewSchedule) -> str:
    """Return a digest of everything in a schedule, to detect whether a declaration has changed."""
    values = {one.name: str(getattr(schedule, one.name)) for one in fields(NewSchedule)}
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_older(version: str, other: str) -> bool:
    """Return whether one version comes before another. Numbers inside versions are compared as numbers. If either
    version is missing, return False.
    """
    return bool(version and other) and _version_key(version) < _version_key(other)


_FINAL_ZEROS = re.compile(r"(\.0+)+(?=$|[-_.+]?[a-z])")
"""Zeros at the end of a release, but not before the number of a build or a post-release, as in "1.2.0-5"."""


def _version_key(version: str) -> list[tuple[int, int, str]]:
    # A release candidate has letters where the release ends: "1.2rc1" < "1.2" < "1.2.1". "1.2.0" equals "1.2".
    parts = re.findall(r"\d+|[a-z]+", _FINAL_ZEROS.sub("", version.lower()))
    return [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts] + [(1, 0, "")]
