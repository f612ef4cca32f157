"""Schedules' ticks under kills, pauses, changed rules and a clock that jumps, compared with the ticks of the rules in true time."""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import pytest

from outboxq.model.rules import parse_rule, stands_ahead
from outboxq.model.schedules import CatchUp, NewSchedule, Overlap
from outboxq.store import Store
from tests.conftest import NOON
from tests.faults.test_planting import Clock
from tests.waiting import until

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
JITTER = 5 * SECOND
LONGEST_STEP = 30 * SECOND
LONGEST_WAIT = 10 * MINUTE
"""The time within which all due tasks have run, by the test's clock, which runs faster than the clock of the leases."""
JUMPS = (HOUR, -HOUR, DAY, -DAY, 30 * DAY)
NEVER = datetime.max.replace(tzinfo=NOON.tzinfo)


@dataclass
class Epoch:
    """A period in which a schedule had one rule and was not paused, and the clock was right."""

    rule: str
    starts_at: datetime
    begin: datetime
    end: datetime = NEVER
    """The end, in true time like `begin`. Ticks after `begin` and up to `end` are due in this period."""

    def ticks(self):
        ticks = parse_rule(self.rule, "UTC", starts_at=self.starts_at).ticks(self.begin)
        for tick in ticks:
            if tick > self.end:
                return
            yield tick


@dataclass
class Model:
    """The periods in true time in which each schedule's ticks must run."""

    epochs: dict[str, list[Epoch]] = field(default_factory=lambda: defaultdict(list))

    def begin(self, schedule, moment):
        self.epochs[schedule.name].append(Epoch(rule=schedule.rule, starts_at=schedule.starts_at, begin=moment))

    def end(self, name, moment):
        if self.epochs[name] and self.epochs[name][-1].end == NEVER:
            self.epochs[name][-1].end = moment


def runs_of(path):
    """Return the tasks that ran for each schedule and tick, regardless of their number of attempts."""
    found = defaultdict(set)
    for line in path.read_text().splitlines():
        task_id, _, headers = line.partition("\t")
        said = json.loads(headers)
        found[said["outboxq-schedule"], datetime.fromisoformat(said["outboxq-tick"])].add(task_id)
    return found


class Course:
    """Processes that plant and run ticks, and a clock that is sometimes wrong, compared with true time."""

    def __init__(self, database, fork, tmp_path, *, planters, runners, schedules, seed):
        self.database, self.chance, self.clock = database, random.Random(seed), Clock(tmp_path / "clock")
        self.store, self.runs = Store(database.engine, clock=self.clock), tmp_path / "runs"
        self.names = [f"s{number:02}" for number in range(schedules)]
        self.true = self.ran_until = NOON
        self.paused, self.model = set(), Model()
        self.killed = self.changed = 0
        self.runs.touch()
        path = str(self.clock.path)
        kinds = [{"kind": "planter", "clock": path}] * planters
        kinds += [{"kind": "runner", "clock": path, "runs": str(self.runs)}] * runners
        self.forks = [partial(fork, **kind) for kind in kinds]
        self.running = [start() for start in self.forks]
        for name in self.names:
            self.model.begin(self.put(name), self.true)

    def put(self, name):
        chance = self.chance
        self.model.end(name, self.true)
        new = NewSchedule(
            name=name,
            task_name="tests.work",
            rule=f"every {chance.randint(10, 120)}",
            overlap=chance.choice(list(Overlap)),
            catch_up=chance.choice(list(CatchUp)),
            catch_up_limit=chance.choice((1, 10, 100)),
            jitter=chance.choice((None, JITTER)),
        )
        return self.store.schedules.put(new)

    def active(self):
        return [one for one in self.store.schedules.list() if one.paused_at is None]

    def is_settled(self):
        """Return whether ticks are planted further ahead than a step of the clock, and no schedule was planted by a clock that was ahead."""
        now = self.clock.now
        return not any(one.planted_until < now + LONGEST_STEP or stands_ahead(one, now) for one in self.active())

    def move(self, least, most):
        step = self.chance.uniform(least, most) * SECOND
        self.true += step
        self.clock.move(step)

    def live(self, span):
        end = self.true + span
        while self.true < end:
            self.move(5, LONGEST_STEP // SECOND)
            until(self.is_settled)
        self.run_what_is_due()

    def run_what_is_due(self):
        """Move the clock until all tasks that are due now have run. A killed runner's lease also expires by that clock."""
        due, self.ran_until = self.clock.now, self.true
        while waiting(self.database, due):
            self.move(1, 2)
            until(self.is_settled)
            rest = time.monotonic() + 0.25  # a new runner needs real time to start
            while waiting(self.database, due) and time.monotonic() < rest:
                time.sleep(0.01)
            assert self.clock.now < due + LONGEST_WAIT, waiting(self.database, due)

    def change(self):
        """Change a schedule's rule, pause the schedule, or resume it, while the clock is right."""
        name = self.chance.choice(self.names)
        self.changed += 1
        if name in self.paused:
            self.paused.remove(name)
            self.model.begin(self.store.schedules.resume(name), self.true)
        elif self.chance.random() < 0.5:
            self.paused.add(name)
            self.model.end(name, self.true - JITTER)
            self.store.schedules.pause(name)
        else:
            self.model.begin(self.put(name), self.true)

    def kill(self):
        victim = self.chance.randrange(len(self.running))
        time.sleep(self.chance.uniform(0, 0.02))  # a random moment in its work
        self.replace(victim)
        self.killed += 1

    def replace(self, number):
        self.running[number].end()
        self.running[number] = self.forks[number]()

    def jump(self, by, *, kills):
        """Let the clock be wrong for five minutes, and then correct it."""
        for name in self.names:
            self.model.end(name, self.ran_until - JITTER)
        self.clock.move(by)
        until(lambda: not any(one.planted_until < self.clock.now for one in self.active()))
        if self.chance.random() < 0.3 and (name := self.chance.choice(self.names)) not in self.paused:
            self.put(name)
        end = self.true + 5 * MINUTE
        while self.true < end:
            self.move(20, 50)
            if kills:
                self.kill()
                kills -= 1
        self.clock.move(self.true - self.clock.now)
        self.replace(-1)  # only a new runner notices that the clock in the file was set back
        until(self.is_settled)
        for one in self.active():
            self.model.begin(one, self.true)

    def end(self):
        self.live(5 * MINUTE)
        # On a busy machine, a task may still be running under a lease from before the last jump.
        until(lambda: self.store.verify() == [])
        assert [one.poll() for one in self.running] == [None] * len(self.running), [one.text() for one in self.running]
        for one in self.running:
            one.end()
        for name in self.names:
            self.model.end(name, self.true)
        self.database.clock.now = self.clock.now


def tick_through(database, fork, tmp_path, *, planters, runners, schedules, jumps, kills, seed):
    """Let processes plant and run ticks while the clock jumps `jumps` times, and return their course."""
    course = Course(database, fork, tmp_path, planters=planters, runners=runners, schedules=schedules, seed=seed)
    for number in range(jumps):
        for _ in range(2):
            course.change()
        course.live(5 * MINUTE)
        course.jump(JUMPS[number % len(JUMPS)], kills=kills * (number + 1) // jumps - kills * number // jumps)
    course.end()
    return course


def waiting(database, now):
    """Return whether a due task has not been claimed yet."""
    then = now.isoformat(timespec="microseconds")
    return database.rows(f"SELECT 1 FROM task_outbox WHERE available_at <= '{then}' LIMIT 1")


def judged(course):
    """Return the number of ticks that had to run, and the number of ticks that ran."""
    database, runs = course.database, runs_of(course.runs)
    assert {tick: tasks for tick, tasks in runs.items() if len(tasks) > 1} == {}, "a tick ran twice"
    rows = database.rows("SELECT schedule, tick FROM schedule_ticks")
    found = {(name, at if isinstance(at, datetime) else datetime.fromisoformat(at)) for name, at in rows}
    wanted = {(name, tick) for name, epochs in course.model.epochs.items() for one in epochs for tick in one.ticks()}
    assert sorted(wanted - found) == [], "a tick that a correct clock passed did not become a task"
    assert course.store.verify() == []
    return len(wanted), len(runs)


@pytest.mark.in_turn
def test_no_tick_is_lost_or_runs_twice_although_the_clock_jumps_thirty_days(database, fork, tmp_path):
    course = tick_through(database, fork, tmp_path, planters=1, runners=2, schedules=4, jumps=5, kills=5, seed=1)
    wanted, _ = judged(course)
    assert wanted > 50


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_no_tick_is_lost_or_runs_twice_through_jumps_kills_pauses_and_rule_changes(database, fork, tmp_path):
    """OUTBOXQ_TEST_SEED sets another course, and OUTBOXQ_TEST_JUMPS another number of jumps and kills."""
    seed, jumps = (
        int(os.environ.get(f"OUTBOXQ_TEST_{name}", number)) for name, number in (("SEED", 1), ("JUMPS", 100))
    )
    began = time.monotonic()
    course = tick_through(
        database, fork, tmp_path, planters=2, runners=3, schedules=20, jumps=jumps, kills=jumps, seed=seed
    )
    wanted, ran = judged(course)
    print(
        f"{database.name}: seed {seed}, {jumps} jumps, {course.killed} kills, {course.changed} changes and pauses, {wanted} "
        f"ticks that had to run, {ran} that ran, in {time.monotonic() - began:.0f} s"
    )
    assert course.killed == jumps
