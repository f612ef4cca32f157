"""Values of schedules: a row of `task_schedules`, and what its policies may be. No I/O."""

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
    """The rule for a tick while the task of an earlier tick has not ended."""

    ALLOW = "allow"
    """They run side by side."""
    QUEUE = "queue"
    """It waits. Ticks run one at a time, in order, and none is lost."""
    SKIP = "skip"
    """It is Cancelled (`task_expired`) if the earlier one still runs `grace` after the tick."""


class CatchUp(StrEnum):
    """The policy for ticks that were missed: no worker was running, the database was unavailable, or the schedule was
    paused.
    """

    NONE = "none"
    LATEST = "latest"
    """The newest one, at once."""
    ALL = "all"
    """All of them, oldest first, up to a limit. An event counts the others."""


HORIZON = timedelta(seconds=60)
"""Ticks become tasks this long before their time."""
REMOVED = "removed from the code"
"""Beginning of the reason given when a declaration pauses a schedule that the code no longer has."""
SCHEDULE_HEADER, TICK_HEADER, TRIGGER_HEADER = "outboxq-schedule", "outboxq-tick", "outboxq-trigger"
"""Headers of a task: the schedule that it belongs to; the tick that it is for, in ISO 8601; or who triggered it."""
ZONE_HEADER = "outboxq-tz"
"""Header of the same task: the time zone of its schedule. UTC where it is missing."""
RULE_HEADER = "outboxq-rule"
"""Header of the task of a tick: the rule that the tick follows, for monitors that expect the next tick."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSchedule(TaskOptions):
    """A schedule for `Schedules.put` to store: its rule, and the task that each tick becomes. Its arguments are already
    encoded.
    """

    name: str
    task_name: str
    args: str = field(default="{}", repr=False)
    """The arguments of each task, as JSON."""
    rule: str
    """A cron expression, or `every` and a number of seconds."""
    tz: str = "UTC"
    """The IANA name of the time zone that the rule is read in."""
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_limit: int = 100
    grace: timedelta | None = None
    """The time after its due time during which a tick's task may still be started. None: however late; with
    `Overlap.SKIP`, until the next tick.
    """
    jitter: timedelta | None = None
    """A tick's task is due up to this much later; the exact delay follows from the schedule's name and the tick."""
    starts_at: datetime | None = None
    """No tick is earlier, and `every` counts from here. None: the moment at which the schedule is first stored."""
    ends_at: datetime | None = None
    """No tick is this late."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule(NewSchedule):
    """A row of `task_schedules`."""

    starts_at: datetime
    declared_by: str | None = None
    """The version of the code that declares it; "" if the code has none. None: it was stored at run time."""
    declaration: str | None = None
    """A digest of what the code declares."""
    planted_until: datetime
    """Ticks from `updated_at` up to here are planted. It only goes back when planted ticks are cancelled."""
    paused_at: datetime | None = None
    pause_reason: str | None = None
    created_at: datetime
    updated_at: datetime
    """When the schedule was last changed, or missed ticks were last planted: since then, no tick has been left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A tick of a schedule that became a task."""

    schedule: str
    tick: datetime
    """The moment that it is for."""
    task_id: UUID
    status: TaskStatus | None
    """The status of its task. None: the task was deleted."""


def tick_of(header: str) -> datetime:
    """Return the tick named in a header. Raises ValueError for anything but an aware datetime."""
    tick = datetime.fromisoformat(header)
    if tick.tzinfo is None:
        raise ValueError(f"{header!r} has no time zone")
    return tick


def digest_of(schedule: NewSchedule) -> str:
    """Return a digest of everything in a schedule, to detect whether a declaration has changed."""
    values = {one.name: str(getattr(schedule, one.name)) for one in fields(NewSchedule)}
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_older(version: str, other: str) -> bool:
    """Return whether one version comes before another. Numbers in them are compared as numbers. False if either is
    missing.
    """
    return bool(version and other) and _version_key(version) < _version_key(other)


def _version_key(version: str) -> list[tuple[int, int, str]]:
    # A release candidate has letters where the release has nothing: "1.2rc1" < "1.2" < "1.2.1".
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    return [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in parts] + [(1, 0, "")]
