"""Values of schedules: a row of `task_schedules`, and what its policies may be. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from .options import TaskOptions


class Overlap(StrEnum):
    """The fate of a tick whose predecessor has not ended yet."""

    ALLOW = "allow"
    """They run side by side."""
    QUEUE = "queue"
    """It waits. Ticks run one at a time, in their order, and none is lost."""
    SKIP = "skip"
    """It is Cancelled (`task_expired`) if the earlier one still runs `grace` after the tick."""


class CatchUp(StrEnum):
    """The choice of missed ticks that still run. Ticks are missed while no worker runs, the database is away, or the schedule is paused."""

    NONE = "none"
    LATEST = "latest"
    """The newest one, at once."""
    ALL = "all"
    """All of them, oldest first, up to a limit. An event counts those beyond it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule(TaskOptions):
    """A schedule: its rule, and the task that each tick becomes."""

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
    """The time after a tick from which on its task is not started any more. None: it is, however late."""
    jitter: timedelta | None = None
    """A tick's task is due up to so much later; how much follows from the schedule's name and the tick."""
    starts_at: datetime
    """No tick is earlier, and `every` counts from here."""
    ends_at: datetime | None = None
    declared_by: str | None = None
    """The version of the code that declares it; None: it was stored at run time."""
    declaration: str | None = None
    """A digest of what the code declares."""
    planted_until: datetime
    """Ticks up to here are planted or skipped. It only grows."""
    paused_at: datetime | None = None
    pause_reason: str | None = None
    created_at: datetime
    updated_at: datetime
