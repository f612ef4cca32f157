"""Plans of schedules: which ticks become tasks and which are skipped. No tick is planned twice or lost."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxq.model.rules import REST, jitter_of, parse_rule, plan
from outboxq.model.schedules import CatchUp, Schedule
from tests.examples import STEADY

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)


def schedule(rule="0 * * * *", **fields):
    fields = {"starts_at": NOON, "planted_until": NOON, "created_at": NOON, "updated_at": NOON} | fields
    return Schedule(name="hourly", task_name="tasks.report", rule=rule, **fields)


def planned(it, now, *, limit=1000):
    return plan(it, now=now, horizon=MINUTE, limit=limit)


def at(*hours):
    return tuple(NOON + hour * HOUR for hour in hours)


def test_a_new_schedule_starts_at_its_next_tick():
    found = planned(schedule(), NOON)
    assert (found.ticks, found.skipped) == ((), 0)
    assert found.planted_until == NOON + HOUR - MICROSECOND


def test_ticks_within_the_horizon_are_planted():
    found = planned(schedule(), NOON + HOUR - MINUTE)
    assert found.ticks == at(1)
    assert found.planted_until == NOON + 2 * HOUR - MICROSECOND


def test_a_tick_beyond_the_horizon_waits():
    found = planned(schedule(), NOON + HOUR - MINUTE - MICROSECOND)
    assert found.ticks == ()
    assert found.planted_until == NOON + HOUR - MICROSECOND


def test_a_tick_that_is_due_now_is_not_missed():
    assert planned(schedule(catch_up=CatchUp.NONE), NOON + HOUR).ticks == at(1)


def test_a_schedule_with_rare_ticks_is_planned_a_day_ahead():
    assert planned(schedule("0 0 1 1 *"), NOON).planted_until == NOON + REST


@pytest.mark.parametrize(
    ("catch_up", "limit", "ticks", "skipped", "first", "last"),
    [
        (CatchUp.NONE, 100, (), 5, 1, 5),
        (CatchUp.LATEST, 100, (5,), 4, 1, 4),
        (CatchUp.ALL, 100, (1, 2, 3, 4, 5), 0, None, None),
        (CatchUp.ALL, 5, (1, 2, 3, 4, 5), 0, None, None),
        (CatchUp.ALL, 3, (1, 2, 3), 2, 4, 5),
        (CatchUp.ALL, 1, (1,), 4, 2, 5),
    ],
)
def test_missed_ticks_follow_policy(catch_up, limit, ticks, skipped, first, last):
    found = planned(schedule(catch_up=catch_up, catch_up_limit=limit), NOON + 5.5 * HOUR)
    assert found.ticks == at(*ticks)
    assert found.skipped == skipped
    assert found.first_skipped == (None if first is None else NOON + first * HOUR)
    assert found.last_skipped == (None if last is None else NOON + last * HOUR)
    assert found.planted_until == NOON + 6 * HOUR - MICROSECOND


@pytest.mark.parametrize(
    ("catch_up", "limit", "ticks", "skipped", "first", "last"),
    [
        (CatchUp.NONE, 100, (), 5, 1, 5),
        (CatchUp.LATEST, 100, (5,), 4, 1, 4),
        (CatchUp.ALL, 100, (4, 5), 3, 1, 3),
        (CatchUp.ALL, 1, (4,), 4, 1, 5),
    ],
)
def test_a_tick_past_its_grace_is_not_caught_up(catch_up, limit, ticks, skipped, first, last):
    missed = schedule(catch_up=catch_up, catch_up_limit=limit, grace=2 * HOUR)
    found = planned(missed, NOON + 5.5 * HOUR)
    assert (found.ticks, found.skipped) == (at(*ticks), skipped)
    assert (found.first_skipped, found.last_skipped) == at(first, last)


def test_nothing_is_caught_up_when_all_are_past_their_grace():
    found = planned(schedule(grace=MINUTE), NOON + 5.5 * HOUR)
    assert (found.ticks, found.skipped) == ((), 5)


def test_missed_and_coming_ticks_are_in_one_plan():
    found = planned(schedule(), NOON + 6 * HOUR - SECOND)
    assert found.ticks == at(5, 6)
    assert found.skipped == 4


def test_a_limit_divides_upcoming_ticks():
    every = schedule("every 1", planted_until=NOON - SECOND)
    found = planned(every, NOON, limit=10)
    assert found.ticks == tuple(NOON + n * SECOND for n in range(10))
    assert found.planted_until == found.ticks[-1]
    rest = planned(replace(every, planted_until=found.planted_until), NOON, limit=1000)
    assert rest.ticks == tuple(NOON + n * SECOND for n in range(10, 61))


def test_a_limit_does_not_divide_caught_up_ticks():
    found = planned(schedule(catch_up=CatchUp.ALL), NOON + 50.5 * HOUR, limit=10)
    assert len(found.ticks) == 50


def test_no_tick_is_planned_at_or_after_the_end_of_a_schedule():
    assert planned(schedule(ends_at=NOON + HOUR), NOON + HOUR - SECOND).ticks == ()
    assert planned(schedule(ends_at=NOON + HOUR + MICROSECOND), NOON + HOUR - SECOND).ticks == at(1)
    late = planned(schedule(ends_at=NOON + 3 * HOUR, catch_up=CatchUp.ALL), NOON + 9.5 * HOUR)
    assert (late.ticks, late.skipped) == (at(1, 2), 0)
    assert late.planted_until == NOON + 9.5 * HOUR + REST


@pytest.mark.parametrize("rule", ["* * * * *", "every 60"])
def test_setting_the_clock_back_does_not_plant_ticks_again(rule):
    first = planned(schedule(rule), NOON)
    again = planned(schedule(rule, planted_until=first.planted_until), NOON - HOUR)
    assert (again.ticks, again.skipped) == ((), 0)
    assert again.planted_until >= first.planted_until


@pytest.mark.parametrize("rule", ["* * * * * *", "every 1"])
@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_day_of_missed_seconds_plants_only_the_ticks_of_the_catch_up_policy(rule, catch_up, monkeypatch):
    missed = schedule(rule, catch_up=catch_up)
    asked = []
    kind = type(parse_rule(rule, "UTC", starts_at=NOON))
    after = kind.after
    monkeypatch.setattr(kind, "after", lambda self, moment: asked.append(moment) or after(self, moment))
    found = planned(missed, NOON + 24 * HOUR + SECOND / 2)
    caught_up = {CatchUp.NONE: 0, CatchUp.LATEST: 1, CatchUp.ALL: 100}[catch_up]
    assert len(found.ticks) == caught_up + 60
    assert found.skipped == 86_400 - caught_up
    assert len(asked) < 600


RULES = ["* * * * *", "*/7 * * * *", "30 2 * * *", "*/20 2 * * *", "every 61", "every 5000", "*/13 * * * * *"]
AUTUMN = datetime(2026, 10, 24, 22, tzinfo=UTC)
STEPS = st.lists(st.integers(-3600, 30_000).map(lambda seconds: timedelta(seconds=seconds)), max_size=12)


@STEADY
@given(
    rule=st.sampled_from(RULES),
    tz=st.sampled_from(["Europe/Berlin", "UTC"]),
    catch_up=st.sampled_from(CatchUp),
    catch_up_limit=st.integers(1, 30),
    grace=st.none() | st.integers(1, 40_000).map(lambda seconds: timedelta(seconds=seconds)),
    steps=STEPS,
    limit=st.integers(1, 200),
)
def test_every_tick_is_planted_or_skipped_once_however_the_clock_changes(
    rule, tz, catch_up, catch_up_limit, grace, steps, limit
):
    it = Schedule(
        name="any",
        task_name="task",
        rule=rule,
        tz=tz,
        catch_up=catch_up,
        catch_up_limit=catch_up_limit,
        grace=grace,
        starts_at=AUTUMN,
        planted_until=AUTUMN,
        created_at=AUTUMN,
        updated_at=AUTUMN,
    )
    now, planted, skipped = AUTUMN, [], 0
    for step in steps:
        now += step
        found = planned(it, now, limit=limit)
        assert all(tick > it.planted_until for tick in found.ticks)
        assert found.planted_until >= max([it.planted_until, *found.ticks])
        assert (found.skipped == 0) == (found.first_skipped is None) == (found.last_skipped is None)
        if found.first_skipped is not None:
            assert it.planted_until < found.first_skipped <= found.last_skipped < now
        planted += found.ticks
        skipped += found.skipped
        it = replace(it, planted_until=found.planted_until)
    ticks = parse_rule(rule, tz, starts_at=AUTUMN).ticks(AUTUMN)
    expected = list(takewhile(lambda tick: tick <= it.planted_until, ticks))
    assert all(earlier < later for earlier, later in pairwise(planted))
    assert set(planted) <= set(expected)
    assert len(planted) + skipped == len(expected)


@STEADY
@given(rule=st.sampled_from(RULES), steps=st.lists(st.integers(0, 59), max_size=30), limit=st.integers(1, 100))
def test_without_an_outage_many_small_plans_equal_one_large_plan(rule, steps, limit):
    it = schedule(rule, starts_at=AUTUMN, planted_until=AUTUMN, catch_up=CatchUp.NONE)
    now, planted = AUTUMN, []
    for step in [0, *steps]:
        now += step * SECOND
        while True:  # like a planter, until nothing is left
            found = planned(it, now, limit=limit)
            assert found.skipped == 0
            planted += found.ticks
            it = replace(it, planted_until=found.planted_until)
            if not found.ticks:
                break
    once = schedule(rule, starts_at=AUTUMN, planted_until=AUTUMN)
    assert tuple(planted) == plan(once, now=AUTUMN, horizon=now + MINUTE - AUTUMN, limit=100_000).ticks


def test_jitter_is_the_same_in_all_processes_and_spreads_ticks():
    spread = schedule(jitter=HOUR)
    drawn = [jitter_of(spread, NOON + n * MINUTE) for n in range(1000)]
    assert jitter_of(spread, NOON).total_seconds() == JITTER_AT_NOON
    assert all(timedelta(0) <= one < HOUR for one in drawn)
    assert len(set(drawn)) == 1000
    assert 25 * MINUTE < sum(drawn, timedelta(0)) / 1000 < 35 * MINUTE
    assert jitter_of(replace(spread, name="other"), NOON) != jitter_of(spread, NOON)
    assert jitter_of(schedule(), NOON) == timedelta(0)


JITTER_AT_NOON = 1931.623322
"""A value that must never change, because workers of two releases may plant at the same time."""
