"""Schedules' ticks under kills and clocks that jump: each tick becomes exactly one task."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from outboxq.model import TaskStatus
from outboxq.model.rules import parse_rule
from outboxq.model.schedules import HORIZON, CatchUp, NewSchedule, Overlap
from outboxq.store import Store
from tests.conftest import NOON
from tests.faults.workers import Process
from tests.waiting import until

HOUR = timedelta(hours=1)


class Clock:
    """A clock in a file, which all processes use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(NOON)
        self.latest = NOON

    def set(self, moment: datetime) -> None:
        self.now = moment
        new = self.path.with_suffix(".new")
        new.write_text(moment.isoformat())
        new.rename(self.path)

    def move(self, by: timedelta) -> None:
        self.set(self.now + by)
        self.latest = max(self.latest, self.now)

    def __call__(self) -> datetime:
        return datetime.fromisoformat(self.path.read_text())


def planted(database):
    """Return the number of tasks for each schedule and tick, without cancelled tasks."""
    rows = database.rows("SELECT headers FROM task_executions WHERE status <> 'Cancelled'")
    found = (json.loads(str(headers)) for (headers,) in rows)
    return Counter((one["outboxq-schedule"], datetime.fromisoformat(one["outboxq-tick"])) for one in found)


def plant_through(database, fork, tmp_path, *, planters, schedules, ticks, kills, jumps, seed):
    """Let processes plant `ticks` ticks while they are killed and the clock jumps. Return a store that uses that clock."""
    chance, clock = random.Random(seed), Clock(tmp_path / "clock")
    store = Store(database.engine, clock=clock)
    for number in range(schedules):
        store.schedules.put(
            NewSchedule(
                name=f"s{number:02}",
                task_name="tests.work",
                rule=f"every {chance.randint(5, 60)}",
                overlap=chance.choice(list(Overlap)),
                catch_up=CatchUp.ALL,
                catch_up_limit=10_000,
            )
        )
    count = lambda: database.rows("SELECT count(*) FROM schedule_ticks")[0][0]  # noqa: E731
    running: list[Process] = [fork("planter", clock=str(clock.path)) for _ in range(planters)]
    killed, jumped = 0, 0
    while (done := count()) < ticks or killed < kills or jumped < jumps:
        share = min(1.0, done / ticks)
        if jumped < jumps and share * jumps >= jumped:
            # An hour forward and an hour back by turns: later ticks are already planted, and the ticks passed over were missed.
            clock.move(-HOUR if jumped % 2 else HOUR)
            jumped += 1
        else:
            clock.move(timedelta(seconds=chance.uniform(1, 20)))
        if killed < kills and share * kills >= killed:
            victim = chance.randrange(planters)
            time.sleep(chance.uniform(0, 0.02))  # a random moment in its work
            running[victim].end()
            running[victim] = fork("planter", clock=str(clock.path))
            killed += 1
        # Otherwise, planters that wait for one another would fall behind further than they can catch up.
        until(lambda: not behind(database, clock.now))
    clock.set(clock.latest)
    database.clock.now = clock.latest  # the final check of the invariants uses this clock
    until(lambda: not behind(database, clock.latest + HORIZON))
    assert [one.poll() for one in running] == [None] * planters, [one.text() for one in running]
    for one in running:
        one.end()
    return Store(database.engine, clock=lambda: clock.latest), killed, jumped


def behind(database, moment):
    """Return whether a schedule is not yet planted up to `moment`."""
    until_then = f"planted_until < '{moment.isoformat(timespec='microseconds')}'"
    return database.rows(f"SELECT 1 FROM task_schedules WHERE {until_then} LIMIT 1")


def each_tick_once(database, store):
    """Check that each tick was planted once, and return the number of ticks."""
    found, expected = planted(database), set()
    for schedule in store.schedules.list():
        rule = parse_rule(schedule.rule, schedule.tz, starts_at=schedule.starts_at)
        tick = rule.after(NOON)
        while tick is not None and tick <= store.now() + HORIZON:
            expected.add((schedule.name, tick))
            tick = rule.after(tick)
    assert {tick: number for tick, number in found.items() if number != 1} == {}, "a tick was planted twice"
    assert expected - found.keys() == set(), "a tick was lost"
    assert found.keys() - expected == set()
    assert len(expected) == database.rows("SELECT count(*) FROM schedule_ticks")[0][0]
    assert database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'schedule_skipped'") == [(0,)]
    assert store.verify() == []
    return len(expected)


@pytest.mark.in_turn
def test_each_tick_is_planted_once_although_planters_are_killed(database, fork, tmp_path):
    store, *_ = plant_through(database, fork, tmp_path, planters=3, schedules=4, ticks=1000, kills=4, jumps=2, seed=1)
    assert each_tick_once(database, store) >= 1000


@pytest.mark.campaign
def test_each_tick_is_planted_once_through_a_hundred_kills_and_clock_jumps(database, fork, tmp_path):
    began = time.monotonic()
    store, killed, jumped = plant_through(
        database, fork, tmp_path, planters=5, schedules=50, ticks=50_000, kills=100, jumps=20, seed=2
    )
    ticks = each_tick_once(database, store)
    seconds = time.monotonic() - began
    print(
        f"{database.name}: {ticks} ticks of 50 schedules, {killed} kills, {jumped} jumps of an hour, in {seconds:.0f} s"
    )
    assert (ticks >= 50_000, killed, jumped) == (True, 100, 20)
    assert {one.status for one in store.schedules.ticks("s00", 100_000)} == {TaskStatus.READY}
