"""Schedules are stored, changed and paused, and each tick becomes a task exactly once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from outboxq.database.dialects import Begin
from outboxq.errors import InvalidArgument, ScheduleNotFound
from outboxq.model import OnDeadLetter, TaskStatus
from outboxq.model.schedules import CatchUp, NewSchedule, Overlap, is_older
from outboxq.store.producing import planting
from outboxq.store.producing.planting import HORIZON, plant, prepare
from tests.conftest import NOON

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def new(name="nightly", **fields):
    return NewSchedule(**{"name": name, "task_name": "tests.work", "rule": "every 20", **fields})


def tasks(database):
    """Each task with its tick, in the order of the ticks."""
    rows = database.frozen.tasks(limit=1000)
    found = [(json.loads(one.headers or "{}").get("outboxq-tick"), one) for one in rows]
    return sorted(found, key=lambda one: (one[0] or "", one[1].id))


def moments(database, status=None):
    """The ticks of all tasks, or of the tasks with one status, in seconds after noon."""
    return [
        (datetime.fromisoformat(tick) - NOON).total_seconds()
        for tick, one in tasks(database)
        if tick and status in (None, one.status)
    ]


def skipped(database):
    rows = database.rows("SELECT event_data FROM execution_events WHERE event_type = 'schedule_skipped'")
    return [json.loads(data) for (data,) in rows]


def test_a_stored_schedule_is_planted_immediately_within_the_horizon(database):
    schedules = database.frozen.schedules
    stored = schedules.put(new(args='{"n":1}', queue="reports", priority=3))
    assert schedules.get("nightly") == stored
    assert stored.starts_at == NOON
    assert moments(database) == [20, 40, 60]
    first = tasks(database)[0][1]
    assert (first.task_name, first.args, first.queue, first.priority) == ("tests.work", '{"n":1}', "reports", 3)
    assert json.loads(first.headers) == {
        "outboxq-schedule": "nightly",
        "outboxq-tick": "2030-01-01T12:00:20.000000+00:00",
        "outboxq-rule": "every 20",
    }
    assert database.claim() == []
    database.clock.advance(20)
    assert [claim.id for claim in database.claim(10)] == [first.id]


def test_planting_continues_where_it_stopped(database):
    schedules = database.frozen.schedules
    schedules.put(new())
    assert schedules.plant() == 0
    for expected in (1, 1, 1, 0):
        database.clock.advance(20 if expected else 1)
        assert schedules.plant() == expected
    assert moments(database) == [20, 40, 60, 80, 100, 120]
    assert [one.tick for one in schedules.ticks("nightly", 2)] == [NOON + 2 * MINUTE, NOON + timedelta(seconds=100)]
    assert {one.status for one in schedules.ticks("nightly")} == {TaskStatus.READY}


@pytest.mark.parametrize("change", ["resume", "trigger"])
def test_a_change_that_cannot_be_planted_writes_nothing_in_a_transaction_of_the_caller(database, change):
    database.corrupted = True  # its time zone remains unreadable
    schedules = database.frozen.schedules
    schedules.put(new())
    if change == "resume":
        schedules.pause("nightly")
    database.run("UPDATE task_schedules SET tz = 'Moon/Base'")
    database.clock.advance(3600)
    tables = ("task_schedules", "task_executions", "task_outbox", "execution_events")
    before = [database.rows(f"SELECT * FROM {table}") for table in tables]
    with database.host.connect() as connection, connection.begin():
        with pytest.raises(InvalidArgument, match="Moon/Base"):
            getattr(schedules, change)("nightly", using=connection)
        connection.exec_driver_sql("SELECT 1")
    assert [database.rows(f"SELECT * FROM {table}") for table in tables] == before


def test_a_rare_schedule_is_not_written_until_its_tick_is_near(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="0 0 * * *"))
    before = schedules.get("nightly")
    for _ in range(5):
        database.clock.advance(HOUR)
        assert schedules.plant() == 0
    assert schedules.get("nightly") == before
    database.clock.advance(7 * HOUR)
    assert schedules.plant() == 1


def test_many_schedules_and_many_ticks_are_all_planted(database):
    schedules = database.frozen.schedules
    for number in range(120):
        schedules.put(new(f"s{number:03}", rule="every 3600"))
    schedules.put(new("seconds", rule="every 1"))
    assert len(moments(database)) == 60
    assert schedules.plant(horizon=HOUR) == 120 + 3540
    assert schedules.plant(horizon=HOUR) == 0


def test_a_schedule_that_cannot_be_planted_does_not_limit_the_ticks_of_others(database, monkeypatch):
    """It is the only one in the last page, so nothing is planted from that page."""
    database.corrupted = True  # its time zone remains unreadable
    monkeypatch.setattr(planting, "PAGE", 1)
    schedules = database.frozen.schedules
    schedules.put(new("seconds", rule="every 1"))
    schedules.put(new("the broken"))
    database.run("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'the broken'")
    assert schedules.plant(horizon=timedelta(minutes=20)) == 19 * 60


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_start_in_the_future_that_is_no_longer_given_ends(database, is_declared):
    schedules = database.frozen.schedules

    def store(schedule):
        if is_declared:
            schedules.declare([schedule])
        else:
            schedules.put(schedule)

    store(new(starts_at=NOON + 300 * DAY))
    assert moments(database) == []
    database.clock.advance(10)
    store(new())
    assert moments(database) == [30, 50, 70]
    before = schedules.get("nightly")
    database.clock.advance(10)
    store(new())
    assert schedules.get("nightly") == before


def test_a_start_in_the_past_stays_when_it_is_no_longer_given(database):
    """`every` keeps counting from it."""
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 3600", starts_at=NOON - 90 * MINUTE))
    assert schedules.put(new(rule="every 3600", priority=1)).starts_at == NOON - 90 * MINUTE


def test_storing_an_equal_schedule_again_writes_nothing(database):
    schedules = database.frozen.schedules
    first = schedules.put(new())
    database.clock.advance(1)
    assert schedules.put(new()) == first
    assert moments(database, TaskStatus.CANCELLED) == []


def test_a_change_cancels_planted_ticks_and_plants_them_again(database):
    schedules = database.frozen.schedules
    schedules.put(new(args='{"n":1}'))
    database.clock.advance(30)
    changed = schedules.put(new(args='{"n":2}'))
    assert changed.updated_at == database.clock()
    assert [(tick[17:19], one.args) for tick, one in tasks(database) if one.status is TaskStatus.READY] == [
        ("20", '{"n":1}'),  # was due before the change
        ("40", '{"n":2}'),
        ("00", '{"n":2}'),
        ("20", '{"n":2}'),
    ]
    assert moments(database, TaskStatus.CANCELLED) == [40, 60]
    cancelled = next(one for _, one in tasks(database) if one.status is TaskStatus.CANCELLED)
    assert "'nightly'" in database.frozen.history(cancelled.id)[-1].event_data["reason"]
    assert "planted again" in database.frozen.explain(cancelled.id).sentence


def test_ticks_missed_before_a_change_are_planted_by_the_old_rule(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 3600", catch_up=CatchUp.ALL))
    database.clock.advance(3 * HOUR)
    schedules.put(new(rule="every 7200", catch_up=CatchUp.ALL))
    assert moments(database) == [3600, 7200, 10800]
    database.clock.advance(HOUR - MINUTE)
    assert schedules.plant() == 1


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "jitter"])
def test_a_pause_cancels_future_ticks_and_keeps_due_ones(database, waits):
    schedules = database.frozen.schedules
    schedules.put(new(jitter=timedelta(microseconds=1) if not waits else HOUR, catch_up=CatchUp.ALL))
    database.clock.advance(30)
    paused = schedules.pause("nightly", reason="too much mail")
    assert (paused.paused_at, paused.pause_reason) == (database.clock(), "too much mail")
    assert moments(database, TaskStatus.READY) == ([] if waits else [20])
    assert [one.tick for one in schedules.ticks("nightly")] == ([] if waits else [NOON + timedelta(seconds=20)])
    database.clock.advance(HOUR)
    assert schedules.plant() == 0
    assert schedules.pause("nightly", reason="again") == paused
    assert "too much mail" in database.frozen.explain(tasks(database)[-1][1].id).sentence
    schedules.resume("nightly")  # no tick is lost, because the catch-up policy is ALL
    assert moments(database, TaskStatus.READY)[:100] == [20 * (one + 1) for one in range(100)]


def test_a_resumed_schedule_continues_from_now(database):
    schedules = database.frozen.schedules
    schedules.put(new(catch_up=CatchUp.NONE))
    schedules.pause("nightly")
    database.clock.advance(HOUR)
    assert schedules.resume("nightly").paused_at is None
    assert moments(database, TaskStatus.READY) == [3600, 3620, 3640, 3660]
    assert schedules.resume("nightly").paused_at is None
    [event] = skipped(database)
    assert (event["schedule"], event["count"]) == ("nightly", 179)
    assert event["first"] == "2030-01-01T12:00:20.000000+00:00"
    assert event["last"] == "2030-01-01T12:59:40.000000+00:00"


def test_a_schedule_with_an_unreadable_time_zone_can_be_changed(database):
    schedules = database.frozen.schedules
    schedules.put(new())
    database.run("UPDATE task_schedules SET tz = 'Mars/Olympus'")
    database.clock.advance(HOUR)
    assert schedules.put(new()).tz == "UTC"
    assert moments(database, TaskStatus.READY) == [20, 40, 60, 3620, 3640, 3660]


def test_explain_names_the_schedule_and_the_tick(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 60"))
    [(_, task)] = tasks(database)
    sentence = database.frozen.explain(task.id).sentence
    assert sentence.startswith("it is due in")
    assert sentence.endswith("; it is the tick of the schedule 'nightly' for 2030-01-01 12:01:00 UTC")
    for by, said in (("ada", "'nightly' by ada"), ("", "'nightly'")):
        sentence = database.frozen.explain(schedules.trigger("nightly", by=by).id).sentence
        assert sentence.endswith(f"; it was triggered from the schedule {said}")
    database.corrupted = True  # a schedule never writes these headers
    for headers in (
        "{",
        "[]",
        '{"outboxq-schedule":1}',
        '"outboxq-schedule"',
        '{"outboxq-schedule":"a","outboxq-tick":"b"}',
    ):
        strange = database.add(headers=headers)
        assert "schedule" not in database.frozen.explain(strange.id).sentence


def test_a_tick_is_pruned_together_with_its_task(database):
    schedules = database.frozen.schedules
    schedules.put(new(catch_up=CatchUp.NONE))
    schedules.pause("nightly")
    schedules.resume("nightly")
    database.clock.advance(HOUR)
    schedules.plant()
    for claim in database.claim(10):
        database.frozen.complete(claim)
    database.clock.advance(DAY)
    assert len(skipped(database)) == 1
    assert len(schedules.ticks("nightly")) == 7
    assert database.frozen.prune(HOUR, dry_run=True) == 4 + 3
    assert database.frozen.prune(HOUR) == 4 + 3  # four that completed, and three that the pause cancelled
    assert len(schedules.ticks("nightly")) == 3
    assert skipped(database) == []


def test_a_started_tick_is_neither_cancelled_nor_planted_again(database):
    """A person ran the task early, and it was released."""
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 30"))
    early = tasks(database)[1][1]
    database.frozen.run_now(early.id)
    [claim] = database.claim()
    database.frozen.release(claim, reason="not yet")
    schedules.put(new(rule="every 30", priority=5))
    assert [one.priority for _, one in tasks(database) if one.status is TaskStatus.READY] == [5, 0]
    assert moments(database, TaskStatus.READY) == [30, 60]


def test_removing_a_schedule_keeps_its_due_ticks(database):
    schedules = database.frozen.schedules
    schedules.put(new())
    database.clock.advance(20)
    schedules.remove("nightly")
    assert schedules.list() == []
    assert moments(database, TaskStatus.READY) == [20]
    assert len(schedules.ticks("nightly")) == 1
    for act in (schedules.get, schedules.remove, schedules.pause, schedules.resume, schedules.trigger):
        with pytest.raises(ScheduleNotFound, match="'nightly'"):
            act("nightly")
    with pytest.raises(ScheduleNotFound):
        schedules.backfill("nightly", NOON, NOON + MINUTE)
    # A new schedule with the same name does not repeat the ticks of the removed one.
    database.clock.advance(-20)
    schedules.put(new())
    assert moments(database, TaskStatus.READY) == [20, 40, 60]


def test_a_trigger_enqueues_an_additional_task(database):
    schedules = database.frozen.schedules
    schedules.put(new(overlap=Overlap.QUEUE))
    schedules.pause("nightly")
    handle = schedules.trigger("nightly", by="ada")
    task = database.frozen.get(handle.id)
    assert json.loads(task.headers) == {"outboxq-schedule": "nightly", "outboxq-trigger": "ada"}
    assert [claim.id for claim in database.claim()] == [handle.id]
    assert schedules.ticks("nightly") == []


def test_a_trigger_runs_before_ticks_that_are_not_due(database):
    database.frozen.schedules.put(new(overlap=Overlap.SKIP))
    handle = database.frozen.schedules.trigger("nightly")
    assert [claim.id for claim in database.claim(5)] == [handle.id]


def test_a_backfill_plants_only_missing_ticks(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="0 * * * *", catch_up=CatchUp.NONE, grace=MINUTE))
    database.clock.advance(30 * MINUTE)
    day = (NOON - 3 * HOUR, NOON + MINUTE)
    wanted = [NOON - 3 * HOUR, NOON - 2 * HOUR, NOON - HOUR, NOON]
    assert schedules.backfill("nightly", *day, dry_run=True) == wanted
    assert moments(database) == []
    assert schedules.backfill("nightly", *day) == wanted
    assert schedules.backfill("nightly", *day) == []
    assert len(database.claim(10)) == 4
    for start, end, why in (
        (NOON, NOON, "after its start"),
        (NOON, NOON + DAY, "in the past"),
        (NOON - 5000 * DAY, NOON, "more than 10000"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            schedules.backfill("nightly", start, end)


def test_a_backfill_is_due_immediately_whatever_the_jitter(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 600", jitter=HOUR, catch_up=CatchUp.NONE))
    database.clock.advance(HOUR)
    ticks = schedules.backfill("nightly", NOON - HOUR, NOON + HOUR)
    assert len(ticks) == len(database.claim(20)) == 12


def test_a_backfill_continues_an_interval_backwards_before_its_start(database):
    database.frozen.schedules.put(new(rule="every 3600", starts_at=NOON - 90 * MINUTE))
    found = database.frozen.schedules.backfill("nightly", NOON - 3 * HOUR, NOON)
    assert found == [NOON - 150 * MINUTE, NOON - 90 * MINUTE, NOON - 30 * MINUTE]


def test_a_backfill_enqueues_no_tick_after_the_end_of_the_schedule(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="0 * * * *", catch_up=CatchUp.NONE, ends_at=NOON + 2 * HOUR))
    database.clock.advance(5 * HOUR)
    period = (NOON, NOON + 5 * HOUR)
    assert schedules.backfill("nightly", *period, dry_run=True) == [NOON, NOON + HOUR]
    assert schedules.backfill("nightly", *period) == [NOON, NOON + HOUR]
    assert schedules.backfill("nightly", NOON + 3 * HOUR, NOON + 5 * HOUR) == []


OUTCOMES = {
    # The ticks that are planted after three missed ticks and before one upcoming tick, and the number of skipped ticks.
    CatchUp.NONE: ([80], 3),
    CatchUp.LATEST: ([60, 80], 2),
    CatchUp.ALL: ([20, 40, 60, 80], 0),
}


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("overlap", Overlap)
def test_every_overlap_works_with_every_catch_up(database, overlap, catch_up):
    schedules, running = database.frozen.schedules, []
    schedules.put(new(overlap=overlap, catch_up=catch_up))
    schedules.pause("nightly")
    database.clock.advance(70)
    schedules.resume("nightly")
    expected, lost = OUTCOMES[catch_up]
    assert moments(database, TaskStatus.READY)[: len(expected)] == expected
    assert sum(one["count"] for one in skipped(database)) == lost
    due = [one for one in expected if one <= 70]
    running += database.claim(10)
    assert len(running) == (len(due) if overlap is Overlap.ALLOW else min(1, len(due)))
    # The next two ticks become due while the earlier ones are still running.
    database.clock.advance(10)
    more = database.claim(10)
    # With `allow`, no tick waits.
    assert len(more) == (1 if overlap is Overlap.ALLOW or not due else 0)
    running += more
    database.clock.advance(20)
    schedules.plant()
    handled = []
    while running or (running := database.claim(10)):
        handled += [json.loads(claim.headers)["outboxq-tick"][14:19] for claim in running]
        for claim in running:
            database.frozen.complete(claim)
        running = []
    times = [f"0{one // 60}:{one % 60:02}" for one in [*due, 80, 100]]
    if overlap is Overlap.SKIP and due:
        # The tick of 01:20 was still waiting when the next one became due, so it was cancelled.
        times.remove("01:20")
        assert moments(database, TaskStatus.CANCELLED)[-1] == 80
    assert sorted(handled) == times


def test_ticks_expire_after_their_grace_or_with_skip_at_the_next_tick(database):
    schedules = database.frozen.schedules
    schedules.put(new("a", overlap=Overlap.SKIP))
    schedules.put(new("b", overlap=Overlap.SKIP, grace=timedelta(seconds=5)))
    schedules.put(new("c", grace=timedelta(seconds=5)))
    schedules.put(new("d"))
    found = {json.loads(one.headers)["outboxq-schedule"]: one for tick, one in tasks(database) if tick[17:19] == "20"}
    waits = {name: one.expires_at and (one.expires_at - NOON).total_seconds() for name, one in found.items()}
    assert waits == {"a": 40, "b": 25, "c": 25, "d": None}


def test_jitter_delays_a_tick_by_the_same_time_whenever_it_is_planted(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 10", jitter=timedelta(seconds=10)))
    due = database.rows("SELECT available_at FROM task_outbox ORDER BY available_at")
    assert len(due) == 6
    schedules.pause("nightly")
    schedules.resume("nightly")
    assert database.rows("SELECT available_at FROM task_outbox ORDER BY available_at") == due


def test_no_tick_is_planted_twice_if_the_clock_is_set_back_an_hour(database):
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 60", catch_up=CatchUp.ALL))
    for _ in range(90):
        database.clock.advance(MINUTE)
        schedules.plant()
    before = moments(database)
    database.clock.advance(-HOUR)
    assert schedules.plant() == 0
    schedules.pause("nightly")
    schedules.resume("nightly")
    database.clock.advance(2 * HOUR)
    schedules.plant()
    ready = [one for one in moments(database, TaskStatus.READY) if one > 0]
    assert len(ready) == len(set(ready)), "a tick was planted twice"
    assert set(before) <= set(ready)
    assert max(ready) == 151 * 60


@pytest.mark.in_turn
@pytest.mark.parametrize("away", [10 * MINUTE, DAY], ids=["ten_minutes", "a_day"])
@pytest.mark.parametrize("catch_up", CatchUp)
def test_after_an_outage_only_the_ticks_allowed_by_the_catch_up_policy_are_planted(database, away, catch_up):
    schedules = database.frozen.schedules
    schedules.put(new(rule="every 60", catch_up=catch_up, catch_up_limit=50))
    database.clock.advance(away)
    missed = int(away / MINUTE) - 2  # the first is planted already, and the current one is not missed
    expected = {CatchUp.NONE: 0, CatchUp.LATEST: 1, CatchUp.ALL: min(50, missed)}[catch_up]
    assert schedules.plant() == expected + 2
    assert sum(one["count"] for one in skipped(database)) == missed - expected
    assert schedules.plant() == 0


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": ""}, "a schedule name must be"),
        ({"name": "n" * 192}, "1 to 191 characters"),
        ({"task_name": "a\0"}, "task_name"),
        ({"queue": ""}, "queue"),
        ({"args": "\ud800"}, "args"),
        ({"rule": "30 2 31 2 *"}, "never ticks"),
        ({"rule": "whenever"}, "not a cron expression"),
        ({"tz": "Europe/Berlln"}, "Europe/Berlin"),
        ({"overlap": "skip"}, "Overlap"),
        ({"on_dead_letter": OnDeadLetter.HOLD}, "'queue' or 'skip'"),
        ({"catch_up_limit": 0}, "catch_up_limit"),
        ({"catch_up_limit": 10**6}, "catch_up_limit"),
        ({"grace": timedelta(seconds=-1)}, "grace"),
        ({"jitter": timedelta(0)}, "jitter"),
        ({"starts_at": datetime(2030, 1, 1)}, "naive"),  # noqa: DTZ001
        ({"ends_at": datetime(9500, 1, 1, tzinfo=UTC)}, "1970 and 9000"),
        ({"starts_at": NOON, "ends_at": NOON}, "after its starts_at"),
    ],
)
def test_a_schedule_that_could_not_be_planted_is_refused(database, fields, why):
    with pytest.raises(InvalidArgument, match=why):
        database.frozen.schedules.put(new(**fields))
    assert database.frozen.schedules.list() == []


def test_a_name_belongs_to_one_task_and_is_either_declared_or_stored(database):
    schedules = database.frozen.schedules
    schedules.put(new("stored"))
    schedules.declare([new("declared")])
    for act, why in (
        (lambda: schedules.put(new("stored", task_name="tests.other")), "belongs to a schedule of the task tests.work"),
        (lambda: schedules.put(new("declared")), "is declared in code"),
        (lambda: schedules.declare([new("another"), new("stored")]), "stored at run time"),
        (lambda: schedules.declare([new("declared", task_name="tests.other")]), "belongs to a schedule of"),
        (lambda: schedules.declare([new("twice"), new("twice")]), "two schedules"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            act()
    assert [(one.name, one.task_name) for one in schedules.list()] == [
        ("declared", "tests.work"),
        ("stored", "tests.work"),
    ]


def test_a_declaration_is_written_only_if_it_differs(database):
    schedules = database.frozen.schedules
    schedules.declare([new("a"), new("b")])
    first = schedules.list()
    assert [one.declared_by for one in first] == ["", ""]
    database.clock.advance(5)
    schedules.declare([new("a"), new("b", priority=1)])
    again = schedules.list()
    assert again[0] == first[0]
    assert (again[1].priority, again[1].starts_at, again[1].updated_at) == (1, NOON, database.clock())


def test_a_schedule_removed_from_the_code_is_paused_until_declared_again(database):
    schedules = database.frozen.schedules
    schedules.declare([new("a"), new("b"), new("of_others", task_name="others.work")])
    schedules.put(new("stored"))
    schedules.declare([new("a")], tasks=["tests.work"])
    assert [one.name for one in schedules.list() if one.paused_at] == ["b"]
    assert schedules.get("b").pause_reason == "removed from the code"
    schedules.declare([new("a"), new("b")])
    assert schedules.get("b").paused_at is None
    schedules.pause("b", reason="by hand")
    schedules.declare([new("a"), new("b", priority=2)])
    assert (schedules.get("b").pause_reason, schedules.get("b").priority) == ("by hand", 2)


def test_versions_are_compared_by_their_numbers():
    ordered = ["1.2rc1", "1.2", "1.2.0-5-gabc123", "1.2.0+20260101", "1.2.1", "1.10"]
    for place, one in enumerate(ordered):
        assert [is_older(one, other) for other in ordered] == [False] * (place + 1) + [True] * (
            len(ordered) - place - 1
        )
    for one, same in (("1.2", "1.2.0"), ("1.2.0rc1", "1.2rc1"), ("1.2", "1.2.00.0"), ("1.2", ""), ("", "1.2")):
        assert not is_older(one, same)
        assert not is_older(same, one)


def test_an_older_release_keeps_declarations_of_a_newer_one(database):
    schedules = database.frozen.schedules
    schedules.declare([new("a"), new("b")], declared_by="1.9")
    schedules.declare([new("a", priority=1), new("c")], declared_by="1.10", tasks=["tests.work"])
    newest = schedules.list()
    assert [(one.name, one.paused_at is None) for one in newest] == [("a", True), ("b", False), ("c", True)]
    assert newest[1].pause_reason == "removed from the code of release 1.10"
    schedules.declare([new("a"), new("b")], declared_by="1.9", tasks=["tests.work"])
    found = schedules.list()
    assert [found[0], found[2]] == [newest[0], newest[2]]
    schedules.declare([new("a", priority=3)], declared_by="1.10", tasks=["tests.work"])
    assert schedules.get("a").priority == 3
    assert schedules.get("c").paused_at is not None


def test_a_rollback_by_the_caller_undoes_all_changes(database):
    schedules = database.frozen.schedules
    with database.host.connect() as connection:
        schedules.put(new(), using=connection)
        schedules.declare([new("declared")], using=connection)
        schedules.trigger("nightly", using=connection)
        assert len(schedules.list(using=connection)) == 2
        connection.rollback()
    assert schedules.list() == []
    assert database.counts() == (0, 0, 0)
    with database.host.begin() as connection:
        schedules.put(new(), using=connection)
    with database.host.connect() as connection:
        schedules.pause("nightly", using=connection)
        connection.rollback()
    with database.host.connect() as connection:
        schedules.remove("nightly", using=connection)
        connection.rollback()
    assert moments(database, TaskStatus.READY) == [20, 40, 60]
    assert HORIZON == MINUTE


def test_a_schedule_that_cannot_be_planted_does_not_block_the_others(database, caplog):
    database.corrupted = True  # its time zone remains unreadable
    schedules = database.frozen.schedules
    schedules.put(new("broken"))
    schedules.put(new("sound"))
    database.run("UPDATE task_schedules SET tz = 'Mars/Olympus' WHERE name = 'broken'")
    database.clock.advance(MINUTE)
    assert schedules.plant() == 3
    assert "'broken' cannot be planted" in caplog.text
    assert "Mars/Olympus" in caplog.text


def test_planting_from_an_outdated_row_plants_no_tick_twice_and_keeps_planted_until(database):
    """A planter locks the row first, so this cannot happen. If it did, the primary key of the ticks would refuse it."""
    schedules = database.frozen.schedules
    stale = schedules.put(new())
    planting = prepare(stale, NOON, timedelta(minutes=2))
    assert schedules.plant(horizon=HOUR) == 177
    until = schedules.get("nightly").planted_until
    with database.frozen.transaction(Begin.WRITE) as target:
        assert plant(database.frozen, target, [planting]) == 0
    assert schedules.get("nightly").planted_until == until
    assert len(moments(database)) == 180
