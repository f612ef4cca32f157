"""Check-ins of schedules with Sentry's cron monitors, which are created by the first one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from sentry_sdk.crons import capture_checkin

from ..context import TaskContext
from ..model import EventType, Outcome
from ..model.schedules import RULE_HEADER, SCHEDULE_HEADER, TICK_HEADER, ZONE_HEADER

if TYPE_CHECKING:
    from sentry_sdk._types import MonitorConfig, MonitorConfigSchedule, MonitorConfigScheduleUnit

_LONGEST_SLUG = 50
_UNITS: Mapping[int, MonitorConfigScheduleUnit] = {86_400: "day", 3_600: "hour", 60: "minute"}
"""Sentry's units of an interval, by their seconds."""
_STATUSES: Mapping[EventType, str] = {
    EventType.COMPLETED: "ok",
    EventType.CANCELLED: "ok",  # as it was asked for
    EventType.FAILED: "error",
}
"""The statuses of check-ins by how the task ended. After any other outcome it is still in progress."""


@dataclass(frozen=True, kw_only=True)
class CheckIn:
    """The check-in of one tick. All attempts at its task share it: its id is the task's."""

    slug: str
    """The name of the monitor."""
    id: str
    config: MonitorConfig

    @classmethod
    def of(cls, context: TaskContext, margin: timedelta) -> CheckIn | None:
        """Return the check-in of an attempt's tick. None: it is for no tick, or Sentry cannot express the rule."""
        headers = context.headers
        name, rule = headers.get(SCHEDULE_HEADER), headers.get(RULE_HEADER)
        if name is None or rule is None or TICK_HEADER not in headers:
            return None
        schedule = schedule_of(rule)
        if schedule is None:
            return None
        config: MonitorConfig = {
            "schedule": schedule,
            "timezone": headers.get(ZONE_HEADER, "UTC"),
            "checkin_margin": _minutes(margin.total_seconds()),
        }
        if context.claim.timeout_seconds is not None:
            config["max_runtime"] = _minutes(context.claim.timeout_seconds)
        return cls(slug=slug_of(name), id=context.task_id.hex, config=config)

    def begin(self) -> None:
        """Tell Sentry that the task has begun, also where it begins again."""
        capture_checkin(self.slug, self.id, "in_progress", monitor_config=self.config)

    def end(self, outcome: Outcome, seconds: float) -> None:
        """Tell Sentry how the task has ended, unless it runs again."""
        if (status := _STATUSES.get(outcome.event_type)) is not None:
            capture_checkin(self.slug, self.id, status, duration=seconds, monitor_config=self.config)


def schedule_of(rule: str) -> MonitorConfigSchedule | None:
    """Return a rule as Sentry takes it. None: it has seconds, which Sentry does not know."""
    words = rule.split()
    if words[0] == "every":
        seconds = float(words[1])
        for size, unit in _UNITS.items():
            if seconds % size == 0:
                return {"type": "interval", "value": int(seconds // size), "unit": unit}
        return None
    return {"type": "crontab", "value": rule} if len(words) == 5 else None


def slug_of(name: str) -> str:
    """Return the name of a schedule as the name of a monitor: up to 50 characters of a-z, 0-9, `-` and `_`.

    A name that loses more than dots, spaces and capitals gets a digest at its end, so that no two share a monitor.
    """
    slug = re.sub(r"[. ]", "-", name.lower())
    if re.fullmatch(r"[a-z0-9_-]{1,50}", slug) and not slug.isdigit():
        return slug
    digest = sha256(name.encode()).hexdigest()[:8]
    kept = re.sub(r"[^a-z0-9_-]+", "-", slug)[: _LONGEST_SLUG - len(digest) - 1]
    return f"{kept.strip('-') or 'schedule'}-{digest}"


def _minutes(seconds: float) -> int:
    """Return whole minutes, at least one: Sentry's unit."""
    return max(1, math.ceil(seconds / 60))
