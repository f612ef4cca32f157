"""Rules of schedules: the moments that they select, in zones whose clocks change."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from outboxq.errors import InvalidArgument
from outboxq.model import rules
from outboxq.model.records import EARLIEST, LATEST
from outboxq.model.rules import check_rule, describe, parse_rule, rule_of

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


def local(tz: str, text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz))


def walls(rule: str, tz: str, day: str) -> list[str]:
    """Return the ticks of one local day, in local time with the UTC offset."""
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
    # Clocks change from 02:00 to 03:00, and from 03:00 to 02:00.
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
    # Clocks change from 02:00 to 03:00, and from 02:00 to 01:00.
    ("America/New_York", "2027-03-14", "30 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2027-03-14", "*/30 2,3 * * *", ["03:00-0400", "03:30-0400"]),
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    ("America/New_York", "2026-11-01", "30 2 * * *", ["02:30-0500"]),
    ("America/New_York", "2026-11-01", "*/30 1 * * *", ["01:00-0400", "01:30-0400", "01:00-0500", "01:30-0500"]),
    # Clocks change by half an hour: from 02:00 to 02:30, and from 02:00 to 01:30.
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
def test_a_rule_has_the_expected_ticks_when_clocks_change(tz, day, rule, expected):
    assert walls(rule, tz, day) == expected


LENGTHS = [
    ("Europe/Berlin", "2027-03-28", 23),
    ("Europe/Berlin", "2026-10-25", 25),
    ("America/New_York", "2027-03-14", 23),
    ("America/New_York", "2026-11-01", 25),
    ("Australia/Lord_Howe", "2026-10-04", 23.5),
    ("Australia/Lord_Howe", "2027-04-04", 24.5),
    ("UTC", "2026-10-25", 24),
]


@pytest.mark.parametrize(("tz", "day", "hours"), LENGTHS)
def test_a_repeated_rule_has_ticks_in_proportion_to_the_length_of_the_day(tz, day, hours):
    assert len(walls("*/30 * * * *", tz, day)) == 2 * hours
    assert len(walls("0 * * * *", tz, day)) == int(hours)  # an additional or missing half-hour contains no full hour
    assert len(walls("every 1800", tz, day)) == 2 * hours


def test_every_counts_elapsed_time_from_its_start():
    start = local("Europe/Berlin", "2026-10-24T12:00").astimezone(UTC)
    rule = parse_rule("every 86400", "Europe/Berlin", starts_at=start)
    assert rule.after(start - SECOND) == start
    assert rule.after(start) == start + DAY  # the local time is then 11:00
    assert rule.after(start + DAY - SECOND) == start + DAY
    assert rule.after(start - 9 * DAY) == start


def test_no_tick_is_before_the_start():
    start = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    assert parse_rule("* * * * *", "UTC", starts_at=start).after(EARLIEST) == datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
    on_time = start.replace(microsecond=0)
    assert parse_rule("* * * * *", "UTC", starts_at=on_time).after(EARLIEST) == on_time


def test_ticks_end_at_the_latest_supported_time():
    rule = parse_rule("0 0 1 1 *", "UTC", starts_at=EARLIEST)
    assert rule.after(datetime(8999, 6, 1, tzinfo=UTC)) == datetime(9000, 1, 1, tzinfo=UTC)
    assert rule.after(datetime(9000, 1, 1, tzinfo=UTC)) is None
    assert parse_rule("every 3153600000", "UTC", starts_at=EARLIEST).after(LATEST - SECOND) is None


ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "UTC",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "America/Santiago",
]
REPEATED = [
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "*/20 2 * * *",
    "10 */2 * * *",
    "*/30 1-3 * * 0",
    "5,35 * 25-31 * *",
]
FIXED = ["30 2 * * *", "15,45 1,2,3 * * *", "0 0 * * *", "0 0,3 * * 0", "59 23 L * *"]
MOMENTS = st.integers(0, 63_072_000).map(lambda seconds: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
NEAR_CHANGES = st.builds(
    lambda day, seconds: datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(seconds=seconds),
    st.sampled_from(sorted({day for _, day, *_ in LENGTHS})),
    st.integers(-86_400, 172_800),
)


@settings(deadline=None, derandomize=True)  # tests must not depend on the speed of the machine
@given(rule=st.sampled_from(REPEATED), tz=st.sampled_from(ZONES), moment=MOMENTS | NEAR_CHANGES)
def test_a_repeated_rule_has_a_tick_at_each_minute_whose_local_time_fits(rule, tz, moment):
    hands = CronSim(rule, EARLIEST)

    def fits(minute):
        wall = minute.astimezone(ZoneInfo(tz))
        return (
            wall.minute in hands.minutes
            and wall.hour in hands.hours
            and wall.month in hands.months
            and hands.match_day(wall.date())
        )

    first = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
    minutes = [first + timedelta(minutes=n) for n in range(600)]
    expected = [minute for minute in minutes if fits(minute)]
    ticks = parse_rule(rule, tz, starts_at=EARLIEST).ticks(moment)
    assert list(takewhile(lambda tick: tick <= minutes[-1], ticks)) == expected


@settings(deadline=None, derandomize=True)  # tests must not depend on the speed of the machine
@given(rule=st.sampled_from(FIXED), tz=st.sampled_from(ZONES), moment=MOMENTS | NEAR_CHANGES)
def test_a_fixed_rule_has_the_same_ticks_from_any_starting_point(rule, tz, moment):
    parsed = parse_rule(rule, tz, starts_at=EARLIEST)
    from_before = list(takewhile(lambda tick: tick <= moment + 4 * DAY, parsed.ticks(moment - 3 * DAY)))
    assert [tick for tick in from_before if tick > moment] == list(
        takewhile(lambda tick: tick <= moment + 4 * DAY, parsed.ticks(moment))
    )
    assert all(earlier < later for earlier, later in pairwise(from_before))


@settings(deadline=None, derandomize=True)  # tests must not depend on the speed of the machine
@given(
    rule=st.sampled_from([*REPEATED, *FIXED, "*/10 30 * * * *", "0-40 */30 2 * * *", "every 7", "every 4000"]),
    tz=st.sampled_from(ZONES),
    after=NEAR_CHANGES,
    length=st.integers(0, 40_000) | st.integers(0, 300_000),
)
def test_count_and_newest_agree_with_stepping(rule, tz, after, length):
    before = after + timedelta(seconds=length)
    parsed = parse_rule(rule, tz, starts_at=EARLIEST)
    stepped = list(takewhile(lambda tick: tick < before, parsed.ticks(after)))
    assert parsed.count(after, before) == len(stepped)
    assert parsed.newest(after, before) == (stepped[-1] if stepped else None)


@pytest.mark.parametrize(
    ("tz", "day", "rule", "ticks"),
    [
        ("Europe/Berlin", "2026-10-24", "*/20 2 * * *", 3 + 6 + 3),
        ("Europe/Berlin", "2027-03-27", "*/20 2 * * *", 3 + 0 + 3),
        ("Europe/Berlin", "2027-03-27", "*/20 * * * *", 3 * (24 + 23 + 24)),
        ("Europe/Berlin", "2027-03-27", "15,45 2 * * *", 2 + 1 + 2),
        ("Australia/Lord_Howe", "2027-04-03", "*/15 1 * * *", 4 + 6 + 4),
    ],
)
def test_days_on_which_clocks_change_are_counted_correctly(tz, day, rule, ticks):
    begin = local(tz, day)
    parsed = parse_rule(rule, tz, starts_at=EARLIEST)
    assert parsed.count(begin.astimezone(UTC) - SECOND, (begin + 3 * DAY).astimezone(UTC)) == ticks


@pytest.mark.parametrize("rule", ["* * * * * *", "every 1"])
def test_a_year_of_seconds_is_counted_without_stepping_through_them(rule, monkeypatch):
    parsed = parse_rule(rule, "Europe/Berlin", starts_at=EARLIEST)
    asked = []
    after = type(parsed).after
    monkeypatch.setattr(type(parsed), "after", lambda self, moment: asked.append(moment) or after(self, moment))
    begin = datetime(2026, 3, 3, 3, 3, 3, tzinfo=UTC)
    assert parsed.count(begin, begin + 365 * DAY) == 365 * 86_400 - 1
    assert parsed.newest(begin, begin + 365 * DAY) == begin + 365 * DAY - SECOND
    assert len(asked) < 1500


BAD_RULES = [
    ("* * * *", "it has 4 fields, not five"),
    ("* * * * * * *", "it has 7 fields"),
    ("", "0 fields"),
    ("61 * * * *", "minute is wrong"),
    ("* 24 * * *", "hour is wrong"),
    ("* * * 13 *", "month is wrong"),
    ("* * * 0 *", "month is wrong"),
    ("* * 32 * *", "day-of-month is wrong"),
    ("* * * * 8", "day-of-week is wrong"),
    ("60 * * * * *", "second is wrong"),
    ("５ * * * *", "minute is wrong"),
    ("0 0 31 2 *", "never ticks: none of its months has the day that it names"),
    ("0 0 31 4,6 *", "never ticks"),
    ("0 0 30 2 */7", "never ticks"),
    ("@fortnightly", "the known rules are @hourly, @daily"),
    ("@reboot", "the known rules are"),
    ("every 0", "at least 1"),
    ("every -1", "a whole number of seconds"),
    ("every 1.5", "a whole number of seconds"),
    ("every", "a whole number of seconds"),
    (f"every {10**30}", "at most a hundred years"),
    ("\0", "without NUL"),
    ("1," * 200 + "1 * * * *", "at most 200 characters"),
    (7, "must be a string"),
]


@pytest.mark.parametrize(("rule", "said"), BAD_RULES, ids=lambda value: repr(value)[:20])
def test_a_bad_rule_is_refused_with_an_explanation(rule, said):
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        check_rule(rule, "UTC")


@settings(deadline=None, derandomize=True)  # tests must not depend on the speed of the machine
@given(
    st.lists(st.text("0123456789*/,-#LWMONJAN?", max_size=6), min_size=4, max_size=7).map(" ".join)
    | st.text(max_size=30)
)
def test_any_text_is_a_rule_or_is_refused_with_an_explanation(text):
    try:
        check_rule(text, "Europe/Berlin")
    except InvalidArgument as refusal:
        said = str(refusal)
    else:
        said = describe(text, "Europe/Berlin")
        assert rule_of(rule_of(text, None), None) == rule_of(text, None)
    assert 20 < len(said) < 500


@pytest.mark.parametrize(
    ("tz", "said"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'?"),
        ("Mars/Olympus", "there is no time zone 'Mars/Olympus'"),
        ("Europe", "there is no time zone"),
        ("../etc/passwd", "there is no time zone"),
        ("/etc/localtime", "there is no time zone"),
        ("localtime", "is not the IANA name"),
        ("right/Europe/Berlin", "is not the IANA name"),
        ("", "must be the IANA name"),
        (None, "must be the IANA name"),
        (UTC, "must be the IANA name"),
        ("x" * 5000, "must be the IANA name"),
        ("x" * 199, "there is no time zone"),
    ],
)
def test_an_unknown_zone_is_refused_with_an_explanation(tz, said):
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        check_rule("0 0 * * *", tz)


def test_without_time_zone_data_utc_works_and_other_zones_suggest_tzdata(monkeypatch):
    def no_zone(key):
        raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr(rules, "ZoneInfo", no_zone)
    monkeypatch.setattr(rules, "available_timezones", set)
    with pytest.raises(InvalidArgument, match="pip install tzdata"):
        check_rule("1 2 3 * *", "Europe/Vienna")
    check_rule("1 2 3 * *", "UTC")


def test_a_rule_has_one_canonical_text():
    assert rule_of(" 0  6 * * mon-fri ", None) == "0 6 * * MON-FRI"
    assert rule_of("@daily", None) == rule_of("@midnight", None) == "0 0 * * *"
    assert (
        rule_of(None, timedelta(minutes=15)) == rule_of("Every 900", None) == rule_of("every 0900", None) == "every 900"
    )


@pytest.mark.parametrize(
    ("rule", "every", "said"),
    [
        (None, None, "a schedule needs a rule"),
        ("* * * * *", timedelta(1), "not both"),
        (None, timedelta(milliseconds=1500), "whole seconds"),
        (None, timedelta(0), "at least 1"),
        (None, timedelta(seconds=-5), "at least 1"),
        (None, timedelta(days=40_000), "at most a hundred years"),
        (None, 60, "must be a timedelta"),
    ],
)
def test_a_rule_must_be_exactly_one_of_two_kinds(rule, every, said):
    with pytest.raises(InvalidArgument, match=said):
        rule_of(rule, every)


def test_a_rule_is_described_in_words():
    assert describe("30 2 * * 1-5", "Europe/Berlin") == "At 02:30 on Monday through Friday (Europe/Berlin)"
    assert describe("@hourly", "UTC") == "At the start of every hour (UTC)"
    assert describe("every 900", "UTC") == "Every 15 minutes, counted from the schedule's start"
    assert describe("every 3600", "UTC") == "Every hour, counted from the schedule's start"
    assert describe("every 90061", "UTC") == "Every 90061 seconds, counted from the schedule's start"


def test_a_rule_is_parsed_once():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_rule("1 2 * * *", "UTC", starts_at=start) is parse_rule(" 1 2 * * *", "UTC", starts_at=start)
    assert parse_rule("1 2 * * *", "UTC", starts_at=start) is not parse_rule(
        "1 2 * * *", "Europe/Berlin", starts_at=start
    )
