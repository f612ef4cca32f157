"""Workers that have ended: a stopped worker is no longer listed, and a killed worker shows the tasks that it ran."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli import workers as cli_workers
from outboxq.model import EventType, TaskStatus
from outboxq.store.claims import workers
from tests.contract import helpers

DAY = timedelta(days=1)
PAST = "2026-01-01T00:00:00.000000+00:00"


def outboxq(database, *words: object, code: int = 0):
    given = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, [str(one) for one in words], env=given, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def registered(store, worker_id) -> None:
    store.workers.register(worker_id, label="web-1:7", concurrency=2, task_names=["tests.work"])
    store.workers.describe(worker_id, host="web-1", pid=7, busy=0)


@pytest.mark.parametrize("met", [True, False])
def test_a_stopped_worker_is_kept_as_ended(database, met):
    store, worker = database.store, uuid4()
    unknown = [("default", "tests.later")] if met else []
    store.workers.register(worker, label="web-1:7", concurrency=2, task_names=["tests.work"], unknown_tasks=unknown)
    before = store.change_mark()
    store.workers.unregister(worker, met_unknown=met)
    assert store.workers.list(DAY) == []
    assert json.loads(outboxq(database, "workers", "list", "--json").stdout) == []
    [ended] = json.loads(outboxq(database, "workers", "list", "--all", "--json").stdout)
    assert (ended["id"], ended["is_live"], ended["ended_at"]) == (str(worker), False, ended["last_seen_at"])
    assert "it stopped normally" in outboxq(database, "workers", "show", worker).stdout
    assert "a worker is forgotten a week after" in outboxq(database, "workers", "show", uuid4(), code=3).stderr
    assert store.change_mark() != before
    assert not store.stats(queues=["default"]) or store.stats(queues=["default"])[0].live_workers == 0
    kept = database.rows("SELECT started_at <= last_seen_at, unknown_tasks IS NOT NULL FROM workers")
    assert [(bool(order), bool(unknown)) for order, unknown in kept] == [(True, met)]


def test_a_killed_worker_shows_its_running_and_recovered_tasks(database):
    """It was killed immediately, so the number of busy threads that it last wrote is 0."""
    registered(database.frozen, database.worker)
    taken, abandoned, held = (helpers.claimed(database) for _ in range(3))
    other = database.frozen.claim_ready_task(1, worker_id=uuid4())
    assert other == []
    database.run(f"UPDATE task_executions SET recovery_attempts = 3 WHERE id = '{_key(database, abandoned.id)}'")
    database.run(
        f"UPDATE task_leases SET lease_expires_at = '{PAST}' WHERE task_execution_id != '{_key(database, held.id)}'"
    )
    database.frozen.recover()
    database.clock.advance(3600)
    found = database.frozen.workers.recovered(database.worker)
    assert found.is_complete
    assert {(one.task_id, one.event_type, one.status, one.task_name) for one in found.tasks} == {
        (taken.id, EventType.RESET, TaskStatus.READY, "tests.work"),
        (abandoned.id, EventType.ABANDONED, TaskStatus.FAILED, "tests.work"),
    }
    assert [one.id for one in database.frozen.tasks(status=TaskStatus.RUNNING, worker=database.worker)] == [held.id]
    assert not database.frozen.workers.recovered(database.worker, limit=1).is_complete
    assert database.frozen.workers.recovered(uuid4()).tasks == []


def test_the_search_for_recovered_tasks_is_bounded_and_reports_it(database, monkeypatch):
    registered(database.frozen, database.worker)
    claim = helpers.claimed(database)
    for _ in range(5):
        database.add()
    helpers.recovered(database, claim)
    assert len(database.frozen.workers.recovered(database.worker).tasks) == 1
    monkeypatch.setattr(workers, "LOOKED_AT", 4)
    found = database.frozen.workers.recovered(database.worker)
    assert (found.tasks, found.is_complete) == ([], False)


def test_the_commands_show_a_killed_worker(database, monkeypatch):
    store = database.store
    registered(store, database.worker)
    for _ in range(2):
        database.add(store)
    first, second = database.claim(2, store=store)
    database.run(
        f"UPDATE task_leases SET lease_expires_at = '{PAST}' WHERE task_execution_id = '{_key(database, first.id)}'"
    )
    store.recover()
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="microseconds")
    database.run(f"UPDATE workers SET started_at = '{hour_ago}', last_seen_at = '{hour_ago}'")
    assert outboxq(database, "workers", "list").stderr == "no worker is live\n"
    listed = outboxq(database, "workers", "list", "--all").stdout
    assert "\t?/2\t" in listed
    assert "not seen lately, 1 recovered, 1 not yet" in listed
    with monkeypatch.context() as bounded:
        bounded.setattr(cli_workers, "_MOST_TASKS", 1)
        assert "1 recovered, 1+ not yet" in outboxq(database, "workers", "list", "--all").stdout
    (record,) = json.loads(outboxq(database, "workers", "list", "--all", "--json").stdout)
    assert (record["is_live"], record["holds"]) == (False, 1)
    assert [one["task_id"] for one in record["recovered"]["tasks"]] == [str(first.id)]
    text = outboxq(database, "workers", "show", record["id"]).stdout
    for part in (
        "killed, cut off, or frozen",
        "holds\t1 task\n",
        "recovered\t1 task\n",
        f"{first.id}\ttests.work\ttask_reset\t",
    ):
        assert part in text, text
    shown = json.loads(outboxq(database, "workers", "show", record["id"], "--json").stdout)
    assert [one["id"] for one in shown["running"]] == [str(second.id)]
    assert (shown["is_live"], shown["recovered"]["is_complete"]) == (False, True)


def test_a_live_worker_is_shown_with_its_running_tasks(database):
    registered(database.store, database.worker)
    database.add(database.store)
    (claim,) = database.claim(store=database.store)
    text = outboxq(database, "workers", "show", database.worker).stdout
    assert f"{claim.id}\ttests.work\tdefault\t1\t" in text
    assert "runs\t1 task\n" in text
    assert "recovered" not in text


def _key(database, task_id) -> str:
    return task_id.hex if database.name == "sqlite" else str(task_id)
