"""Workers plant the ticks of all schedules, each tick once."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from outboxq import Outbox, TaskContext
from outboxq.model import NewTask, TaskStatus
from outboxq.model.schedules import NewSchedule, Overlap
from outboxq.model.uuid7 import uuid7
from outboxq.worker import upkeep
from outboxq.worker.upkeep import Planting
from tests.waiting import until

SECOND = timedelta(seconds=1)


def new(name="seconds", **fields):
    return NewSchedule(**{"name": name, "task_name": "tests.tick", "rule": "every 1", **fields})


@pytest.fixture
def often(monkeypatch):
    """Let workers plant every 50 ms."""
    for name in ("_PLANT_EVERY", "_PLANT_SOON"):
        monkeypatch.setattr(upkeep, name, (0.05, 0.05))


def outbox_of(database, seen):
    outbox = Outbox(database.url)
    database.own(outbox.store.bound_engine)

    @outbox.task(name="tests.tick")
    def tick() -> None:
        seen.append(None)

    return outbox


@pytest.mark.in_turn
def test_a_worker_plants_all_schedules_and_runs_its_tasks_when_they_are_due(database):
    """One of the stored schedules belongs to a task that this worker does not know."""
    seen = []
    outbox = outbox_of(database, seen)
    database.store.schedules.put(new())
    database.store.schedules.put(new("others", task_name="others.tick", rule="every 3600"))
    database.run("DELETE FROM schedule_ticks")
    for table in ("task_outbox", "task_executions", "execution_events"):
        database.run(f"DELETE FROM {table}")
    now = database.store.now()
    stale = (now - timedelta(hours=1)).isoformat(timespec="microseconds")
    database.run(f"UPDATE task_schedules SET planted_until = '{stale}'")
    worker = outbox.worker(concurrency=1, poll=60)
    worker.start()
    try:
        until(lambda: len(seen) >= 2)
    finally:
        worker.stop()
    found = database.store.schedules.ticks("seconds", 1000)
    assert len({one.tick for one in found}) == len(found)
    assert {one.status for one in database.store.schedules.ticks("others")} <= {TaskStatus.READY}


def test_a_burst_runs_a_missed_tick(database):
    seen = []
    outbox = outbox_of(database, seen)
    database.store.schedules.put(new(rule="every 3600", starts_at=database.store.now() - timedelta(hours=5)))
    past = (database.store.now() - timedelta(hours=2)).isoformat(timespec="microseconds")
    database.run(f"UPDATE task_schedules SET planted_until = '{past}'")
    worker = outbox.worker(concurrency=1)
    worker.start(burst=True)
    try:
        until(lambda: seen)
    finally:
        worker.stop()
    assert len(seen) == 1


def test_a_starting_worker_stores_declared_schedules(database):
    outbox = outbox_of(database, [])
    outbox.tasks.version = "1.2"
    outbox.periodic("30 2 * * *", name="seconds")(outbox.tasks.get("tests.tick"))
    worker = outbox.worker()
    worker.start()
    worker.stop()
    assert [(one.name, one.declared_by) for one in database.store.schedules.list()] == [("seconds", "1.2")]


@pytest.mark.in_turn
def test_a_declaration_that_cannot_be_stored_does_not_stop_the_worker(database, often, caplog):
    """A schedule with that name was stored at run time. The worker tries again, but logs the refusal only once."""
    database.store.schedules.put(new(rule="30 2 * * *"))
    outbox = outbox_of(database, seen := [])
    outbox.periodic(every=1, name="seconds")(outbox.tasks.get("tests.tick"))
    worker = outbox.worker(poll=0.05)
    worker.start()
    try:
        database.store.enqueue(NewTask(id=uuid7(), task_name="tests.tick", args="{}"))
        until(lambda: seen)
        refused = [one.getMessage() for one in caplog.records if "are not stored" in one.getMessage()]
        assert len(refused) == 1
        assert "stored at run time" in refused[0]
        database.store.schedules.remove("seconds")
        until(lambda: [one.declared_by for one in database.store.schedules.list()] == [""])
    finally:
        worker.stop()


def test_planting_locks_nothing_if_no_tick_is_near(database):
    database.store.schedules.put(new(rule="0 0 1 1 *"))
    before = database.rows("SELECT * FROM task_schedules")
    with database.host.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE task_schedules SET priority = 1")  # on SQLite, no other connection can write
        assert database.own_store().schedules.plant() == 0
        connection.rollback()
    assert database.rows("SELECT * FROM task_schedules") == before


def test_two_simultaneous_planters_create_one_task_for_a_tick(postgresql):
    """One of them has locked the schedule. The other one skips it without waiting."""
    postgresql.store.schedules.put(new(rule="every 1", overlap=Overlap.QUEUE))
    with postgresql.host.connect() as connection, connection.begin():
        assert postgresql.store.schedules.get("seconds", using=connection)
        connection.exec_driver_sql("SELECT * FROM task_schedules FOR UPDATE")
        assert postgresql.store.schedules.plant(horizon=timedelta(hours=1)) == 0
    assert postgresql.store.schedules.plant(horizon=timedelta(hours=1)) > 3500


def test_each_tick_is_planted_only_once_if_the_schedule_is_paused_and_resumed(database):
    """Threads with separate connections plant, cancel and replant ticks."""
    database.store.schedules.put(new())
    stores = [database.own_store() for _ in range(3)]
    errors = []

    def plants(store):
        try:
            for number in range(15):
                store.schedules.plant(horizon=timedelta(seconds=60 + number))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=plants, args=(store,)) for store in stores[:2]]
    for thread in threads:
        thread.start()
    for _ in range(8):
        stores[2].schedules.pause("seconds")
        stores[2].schedules.resume("seconds")
    for thread in threads:
        thread.join(60)
    assert errors == []
    found = database.rows(
        "SELECT headers, count(*) FROM task_executions WHERE status <> 'Cancelled' GROUP BY headers HAVING count(*) > 1"
    )
    assert found == []
    ticks = [one.tick for one in database.store.schedules.ticks("seconds", 1000)]
    assert {a - b for a, b in pairwise(ticks)} == {SECOND}, "a tick is missing"


WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def test_a_pause_waits_for_a_planter_that_has_locked_the_schedule(postgresql):
    """It then cancels the ticks that were planted."""
    store = postgresql.frozen
    store.schedules.put(new(rule="every 30"))
    postgresql.clock.advance(30)
    with postgresql.host.connect() as connection, connection.begin():
        store.schedules.put(new(rule="every 30", priority=7), using=connection)
        paused = threading.Thread(target=store.schedules.pause, args=("seconds",))
        paused.start()
        until(lambda: postgresql.rows(WAITING))
    paused.join(60)
    assert store.schedules.get("seconds").paused_at
    assert [one.status for one in store.schedules.ticks("seconds")] == [TaskStatus.READY]


def test_the_newer_of_two_releases_that_declare_a_schedule_simultaneously_wins(postgresql):
    """The older release has seen no schedule and waits for the newer one's row."""
    schedules = postgresql.frozen.schedules
    with postgresql.host.connect() as connection, connection.begin():
        schedules.declare([new(rule="every 30")], declared_by="1.10", using=connection)
        older = threading.Thread(
            target=schedules.declare, args=([new(rule="every 20")],), kwargs={"declared_by": "1.9"}
        )
        older.start()
        until(lambda: postgresql.rows(WAITING))
    older.join(60)
    stored = schedules.get("seconds")
    assert (stored.declared_by, stored.rule) == ("1.10", "every 30")


def test_planting_runs_at_random_intervals_to_spread_the_workers():
    service = Planting(None, None)  # type: ignore[arg-type]
    assert 5 <= min(service.pause() for _ in range(50)) < max(service.pause() for _ in range(50)) <= 15


@pytest.mark.campaign
def test_a_tick_starts_within_20_ms_of_its_time(database):
    """An idle worker runs 20 schedules for 20 seconds. Each ticks every second, 50 ms after the previous one."""
    outbox, late = Outbox(database.url), []

    @outbox.task(name="tests.tick")
    def tick(ctx: TaskContext) -> None:
        late.append(time.time() - datetime.fromisoformat(ctx.headers["outboxq-tick"]).timestamp())

    begin = database.store.now().replace(microsecond=0)
    for number in range(20):
        database.store.schedules.put(new(f"s{number:02}", starts_at=begin + number * timedelta(milliseconds=50)))
    worker = outbox.worker(concurrency=4)
    worker.start()
    try:
        until(lambda: len(late) >= 400)
    finally:
        worker.stop()
        outbox.store.bound_engine.dispose()
    measured = sorted(late[20:])  # skips the first second, in which the worker starts
    p50, p99 = (1000 * measured[int(len(measured) * share)] for share in (0.5, 0.99))
    print(
        f"{database.name}: {len(measured)} ticks, p50 {p50:.1f} ms, p99 {p99:.1f} ms, latest {1000 * measured[-1]:.1f} ms"
    )
    assert p99 <= 20
