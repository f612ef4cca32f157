"""Rules of schedules: which moments they name, in zones whose clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from outboxq.model.records import EARLIEST
from outboxq.model.rules import parse_rule

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


def local(tz: str, text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz))


def walls(rule: str, tz: str, day: str) -> list[str]:
    """Return the ticks of one local day, as the clock shows them with its offset."""
    begin = local(tz, day)
    end = (begin + DAY).astimezone(UTC)
    parsed = parse_rule(rule, tz, starts_at=EARLIEST)
    found = []
    for tick in parsed.ticks(begin.astimezone(UTC) - SECOND):
        if tick >= end:
            return found
        found.append(tick.astimezone(ZoneInfo(tz)).strftime("%H:%M%z"))
    return found


SPRING_AND_AUTUMN = [
    # Clocks go from 02:00 to 03:00, and from 03:00 to 02:00.
    ("Europe/Berlin", "2027-03-28", "30 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2027-03-28", "15,30 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2027-03-28", "0 30 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2027-03-28", "30 1-3 * * *", ["01:30+0100", "03:00+0200", "03:30+0200"]),
    ("Europe/Berlin", "2027-03-28", "0 2,3 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2027-03-28", "*/30 2,3 * * *", ["03:00+0200", "03:30+0200"]),
    ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["02:30+0200"]),
    ("Europe/Berlin", "2026-10-25", "0 30 2 * * *", ["02:30+0200"]),
    ("Europe/Berlin", "2026-10-25", "30 1-3 * * *", ["01:30+0200", "02:30+0200", "03:30+0100"]),
    ("Europe/Berlin", "2026-10-25", "*/30 2 * * *", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
    ("Europe/Berlin", "2026-07-01", "30 2 * * *", ["02:30+0200"]),
    # From 02:00 to 03:00, and from 02:00 to 01:00.
    ("America/New_York", "2027-03-14", "30 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2027-03-14", "*/30 2,3 * * *", ["03:00-0400", "03:30-0400"]),
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    ("America/New_York", "2026-11-01", "30 2 * * *", ["02:30-0500"]),
    ("America/New_York", "2026-11-01", "*/30 1 * * *", ["01:00-0400", "01:30-0400", "01:00-0500", "01:30-0500"]),
    # From 02:00 to 02:30, and from 02:00 to 01:30: half an hour.
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "30 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "*/15 2 * * *", ["02:30+1100", "02:45+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "*/30 3 * * *", ["03:00+1100", "03:30+1100"]),
    ("Australia/Lord_Howe", "2027-04-04", "45 1 * * *", ["01:45+1100"]),
    (
        "Australia/Lord_Howe",
        "2027-04-04",
        "*/15 1 * * *",
        [f"01:{m}+1100" for m in ("00", 15, 30, 45)] + ["01:30+1030", "01:45+1030"],
    ),
    ("Australia/Lord_Howe", "2027-04-04", "*/30 2 * * *", ["02:00+1030", "02:30+1030"]),
    ("UTC", "2027-03-28", "30 2 * * *", ["02:30+0000"]),
    ("UTC", "2026-10-25", "30 2 * * *", ["02:30+0000"]),
]


@pytest.mark.parametrize(("tz", "day", "rule", "expected"), SPRING_AND_AUTUMN, ids=lambda value: str(value)[:20])
def test_a_rule_on_a_day_on_which_clocks_change(tz, day, rule, expected):
    assert walls(rule, tz, day) == expected
