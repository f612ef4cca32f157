"""Schedules after a clock was wrong for a while: their ticks follow the corrected clock, and none runs twice."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest

from outboxq.model import TaskStatus
from outboxq.model.options import headers_of_json
from outboxq.model.rules import FARTHEST
from outboxq.model.schedules import HORIZON, CatchUp, NewSchedule, Overlap
from outboxq.store import HealthLimits, Rule
from tests.conftest import NOON

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
TEN = 10 * MINUTE
AHEAD = HealthLimits(oldest=None, no_worker=False)


def new(name="often", **fields):
    return NewSchedule(**{"name": name, "task_name": "tests.work", "rule": "every 600", **fields})


class Life:
    """A worker on the test's clock. It plants and runs due ticks, and records each tick that it runs."""

    def __init__(self, database):
        self.database, self.clock = database, database.clock
        self.schedules = database.frozen.schedules
        self.runs: Counter[tuple[str, datetime]] = Counter()

    def work(self):
        self.schedules.plant()
        while claims := self.database.claim(100):
            for claim in claims:
                headers = headers_of_json(claim.headers)
                if tick := headers.get("outboxq-tick"):
                    self.runs[headers["outboxq-schedule"], datetime.fromisoformat(tick)] += 1
                self.database.frozen.complete(claim)

    def live(self, span, step=MINUTE):
        """Work at each step until the time span is over."""
        end = self.clock() + span
        while self.clock() < end:
            self.clock.advance(step)
            self.work()

    def jump(self, by, lasting=5 * MINUTE):
        """Work for some minutes under a wrong clock, then correct it."""
        self.clock.advance(by)
        self.work()
        self.live(lasting)
        self.clock.advance(-by)

    def ran(self, name="often"):
        return sorted(tick for one, tick in self.runs if one == name)


@pytest.fixture
def life(database):
    return Life(database)


def ticks_of(begin, end, every=TEN):
    """Return the ticks of a rule that counts from noon, after `begin` and up to `end`."""
    number = (begin - NOON) // every + 1
    return [NOON + each * every for each in range(number, (end - NOON) // every + 1)]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "by", [HOUR, pytest.param(DAY, marks=pytest.mark.full), 30 * DAY], ids=["an_hour", "a_day", "thirty_days"]
)
@pytest.mark.parametrize("overlap", Overlap)
def test_each_tick_runs_once_at_its_time_after_the_clock_was_ahead(life, overlap, by):
    for catch_up in CatchUp:
        life.schedules.put(new(catch_up, overlap=overlap, catch_up=catch_up, jitter=MINUTE, catch_up_limit=2))
    life.live(13 * MINUTE)
    life.jump(by)
    corrected = life.clock()
    life.live(40 * MINUTE)
    for catch_up in CatchUp:
        assert set(ticks_of(corrected, life.clock() - MINUTE)) <= set(life.ran(catch_up))
    assert set(life.runs.values()) == {1}, "none runs twice"
    assert life.database.frozen.verify() == []
    life.clock.advance(by)
    life.live(11 * MINUTE)
    assert set(life.runs.values()) == {1}, "nor when the clock reaches that time again"


@pytest.mark.parametrize("overlap", Overlap)
def test_a_tick_planted_for_the_far_future_runs_once_at_its_time(life, overlap):
    """The tick was not due when the clock was corrected. Its task is cancelled, and the tick is planted again at its time."""
    life.schedules.put(new(rule="every 60", overlap=overlap))
    life.live(5 * MINUTE)
    life.clock.advance(DAY)
    life.schedules.plant()
    far = life.schedules.ticks("often")[0].tick
    assert far > NOON + DAY
    life.clock.advance(-DAY)
    life.live(10 * MINUTE)
    assert len(life.ran()) == 15
    life.clock.advance(far - 2 * MINUTE - life.clock())
    life.live(4 * MINUTE)
    assert life.runs["often", far] == 1
    assert set(life.runs.values()) == {1}


def test_a_rare_tick_that_ran_while_the_clock_was_ahead_does_not_run_again(life):
    life.schedules.put(new(rule="30 2 * * *"))
    life.live(TEN)
    life.jump(15 * HOUR)
    assert life.ran() == [NOON + 14.5 * HOUR]
    [following] = life.schedules.upcoming([life.schedules.get("often")])["often"]
    assert following == NOON + 38.5 * HOUR
    life.live(2 * DAY, step=HOUR)
    assert life.ran() == [NOON + 14.5 * HOUR, NOON + 38.5 * HOUR]
    assert set(life.runs.values()) == {1}


@pytest.mark.parametrize("age", [timedelta(0), DAY, 60 * DAY], ids=["all", "a_day", "nothing"])
def test_ticks_deleted_by_a_prune_while_the_clock_was_ahead_do_not_run_again(life, age):
    life.schedules.put(new(catch_up=CatchUp.ALL, catch_up_limit=2))
    life.live(41 * MINUTE)
    life.clock.advance(30 * DAY)
    life.work()
    life.database.frozen.prune(age)
    life.clock.advance(-30 * DAY)
    corrected = life.clock()
    life.live(HOUR)
    assert set(ticks_of(NOON, corrected)) | set(ticks_of(corrected + 20 * MINUTE, life.clock())) <= set(life.ran())
    assert all(number == 1 for (_, tick), number in life.runs.items() if tick <= corrected)


@pytest.mark.parametrize("back", [pytest.param(HOUR, marks=pytest.mark.full), 3 * DAY], ids=["an_hour", "three_days"])
def test_no_tick_runs_twice_when_the_clock_is_set_back_even_after_a_prune(life, back):
    """The ticks up to `planted_until` have run, although only this value still shows it."""
    life.schedules.put(new(rule="every 3600"))
    life.live(4 * DAY, step=HOUR)
    life.database.frozen.prune(30 * MINUTE)
    ran = life.ran()
    life.clock.advance(-back)
    life.live(30 * MINUTE, step=10 * MINUTE)
    assert life.ran() == ran
    assert life.schedules.upcoming([life.schedules.get("often")], 2)["often"][-1] >= ran[-1]
    found = [one.rule for one in life.database.frozen.health(AHEAD)]
    assert found == ([Rule.SCHEDULE_AHEAD] if back > FARTHEST else [])
    life.clock.advance(back)
    life.live(2 * HOUR, step=HOUR)
    assert set(life.runs.values()) == {1}


def test_a_schedule_stored_while_the_clock_was_ahead_begins_by_the_corrected_clock(life):
    life.clock.advance(30 * DAY)
    life.schedules.put(new("as told", starts_at=life.clock() + DAY))
    life.schedules.put(new("at once", starts_at=life.clock()))
    life.clock.advance(0.25)
    life.schedules.put(new("by itself"))
    life.clock.advance(-30 * DAY - timedelta(seconds=0.25))
    life.live(HOUR)
    assert life.ran("by itself") == [NOON + MINUTE + each * TEN for each in range(1, 6)]
    assert life.schedules.get("as told").starts_at == NOON + 31 * DAY
    assert life.schedules.get("at once").starts_at == NOON + 30 * DAY
    assert life.ran("as told") == life.ran("at once") == []


def ahead(life, *, is_there=False, **fields):
    """Plant a schedule's ticks under a clock that is 30 days ahead, and none afterwards. Return the corrected time."""
    if not is_there:
        life.schedules.put(new(**fields))
    life.live(5 * MINUTE)
    life.jump(30 * DAY, lasting=MINUTE)
    return life.clock()


CHANGES = {
    "put again": lambda schedules: schedules.put(new()),
    "put by another rule": lambda schedules: schedules.put(new(rule="every 1200")),
    "trigger": lambda schedules: schedules.trigger("often"),
    "backfill": lambda schedules: schedules.backfill("often", NOON, NOON + MINUTE),
    "pause and resume": lambda schedules: (schedules.pause("often"), schedules.resume("often")),
    "declared by a release": lambda schedules: schedules.declare([new()], declared_by="1.1"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_clock_was_corrected_plants_by_the_corrected_clock(life, change):
    """No worker has planted in the meantime."""
    is_declared = change == "declared by a release"
    if is_declared:
        life.schedules.declare([new()], declared_by="1.0")
    corrected = ahead(life, is_there=is_declared)
    CHANGES[change](life.schedules)
    assert life.schedules.get("often").planted_until <= corrected + FARTHEST
    life.live(HOUR)
    every = 2 * TEN if change == "put by another rule" else TEN
    assert set(ticks_of(corrected, life.clock(), every)) <= set(life.ran())
    assert set(life.runs.values()) == {1}


def test_a_schedule_paused_while_the_clock_was_ahead_continues_when_it_is_resumed(life):
    life.schedules.put(new())
    life.clock.advance(30 * DAY)
    life.work()
    life.schedules.pause("often")
    life.clock.advance(-30 * DAY)
    life.live(HOUR)
    assert life.database.frozen.verify() == []
    resumed = life.clock()
    life.schedules.resume("often")
    life.live(HOUR)
    assert set(ticks_of(resumed, life.clock())) <= set(life.ran())


def test_a_schedule_paused_after_the_clock_was_corrected_catches_up_from_the_correction(life):
    corrected = ahead(life, catch_up=CatchUp.ALL)
    life.schedules.pause("often")
    assert life.schedules.get("often").planted_until <= corrected
    life.clock.advance(HOUR)
    life.schedules.resume("often")
    life.live(MINUTE)
    assert set(ticks_of(corrected, life.clock())) <= set(life.ran())


def test_a_planted_until_set_by_hand_does_not_stop_a_schedule(life):
    life.schedules.put(new())
    life.live(HOUR)
    life.database.run("UPDATE task_schedules SET planted_until = '8000-01-01T00:00:00.000000+00:00'")
    [found] = life.database.frozen.verify()
    assert (found.name, found.examples) == ("planted_by_a_clock_ahead", ("often",))
    written = life.clock()
    life.live(HOUR)
    assert set(ticks_of(written, life.clock())) <= set(life.ran())


def test_planting_far_ahead_is_not_mistaken_for_a_fast_clock(life):
    """Ticks planted by `outboxq schedule plant --ahead 1d` are kept by workers, which plant a minute ahead."""
    life.schedules.put(new())
    assert life.schedules.plant(horizon=DAY) == 144
    life.live(HOUR)
    assert life.database.frozen.verify() == []
    assert [one.status for one in life.schedules.ticks("often")].count(TaskStatus.CANCELLED) == 0
    assert life.ran() == ticks_of(NOON, life.clock())


def test_check_and_verify_report_a_schedule_planted_by_a_fast_clock_until_a_worker_plants(life):
    ahead(life)
    store = life.database.frozen
    [problem] = store.health(AHEAD)
    assert (problem.rule, *problem.subjects) == (Rule.SCHEDULE_AHEAD, "often")
    assert "for the next 30 d 4 min" in problem.sentence
    assert "within 15 seconds" in problem.sentence
    assert [one.command for one in problem.cures] == [("worker",)]
    assert store.health(HealthLimits(oldest=None, no_worker=False, schedule_ahead=False)) == []
    assert [one.name for one in store.verify()] == ["planted_by_a_clock_ahead"]
    store.schedules.plant()
    assert store.health(AHEAD) == []
    assert store.verify() == []


def test_planting_logs_that_the_clock_was_ahead(life, caplog):
    ahead(life)
    life.work()
    assert "the schedule 'often' was planted until 2030-01-31T12:" in caplog.text
    assert life.schedules.plant() == 0
    assert caplog.text.count("because a clock was running fast") == 1


@pytest.mark.parametrize("catch_up", CatchUp)
def test_upcoming_lists_only_ticks_that_will_run(life, catch_up):
    """Ticks that have run early are named neither before nor after a worker has planted again."""
    corrected = ahead(life, catch_up=catch_up, catch_up_limit=4)
    schedules = life.schedules
    named = schedules.upcoming([schedules.get("often")], 5)["often"]
    schedules.plant()
    assert schedules.upcoming([schedules.get("often")], 5)["often"] == named
    before = set(life.ran())
    life.live(named[-1] - corrected)
    assert sorted(set(life.ran()) - before) == named
    if catch_up is CatchUp.ALL:
        assert named[0] > corrected + TEN, "the next ticks ran while the clock was ahead"


def test_upcoming_ticks_have_a_waiting_task_or_are_after_planted_until(life):
    life.database.corrupted = True  # the time zone of a schedule stays unreadable
    schedules = life.schedules
    one = schedules.put(new(rule="every 20", ends_at=NOON + 2 * MINUTE))
    schedules.put(new("paused"))
    schedules.pause("paused")
    schedules.put(new("unreadable"))
    life.database.run("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'unreadable'")
    second = timedelta(seconds=20)
    [first] = [each for each in life.database.frozen.tasks(limit=100) if each.headers and "12:00:40" in each.headers]
    life.database.frozen.cancel(first.id)
    found = schedules.upcoming(schedules.list(), 100)
    assert found == {"often": [NOON + each * second for each in (1, 3, 4, 5)], "paused": [], "unreadable": []}
    assert one.planted_until < NOON + HORIZON + second


def test_no_tick_runs_twice_if_one_of_two_processes_has_a_fast_clock(sqlite):
    """On SQLite, each process uses its own clock. The process with the right clock still plants, and no tick runs twice."""
    right, wrong = Life(sqlite), Life(sqlite)
    offset = HOUR
    right.schedules.put(new(rule="every 60"))
    for _ in range(40):
        sqlite.clock.advance(MINUTE)
        right.work()
        sqlite.clock.advance(offset)
        wrong.work()
        sqlite.clock.advance(-offset)
    right.work()
    runs = right.runs + wrong.runs
    assert set(runs.values()) == {1}
    assert set(ticks_of(NOON, sqlite.clock(), MINUTE)) <= {tick for _, tick in runs}
