"""The reason why a task does not run, as reported while real workers live, are killed, or stop."""

from __future__ import annotations

import json
import signal
from datetime import timedelta

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.model import EventType
from outboxq.store import Reason
from tests.faults.helpers import started_by
from tests.waiting import until

pytestmark = pytest.mark.in_turn

HOUR = timedelta(hours=1)


@pytest.fixture
def told(database):
    """Run `outboxq task explain`, and return its sentence and the commands that it names."""

    def tell(task_id):
        words = ["task", "explain", str(task_id)]
        result = CliRunner().invoke(main, words, env={"OUTBOXQ_DATABASE_URL": database.url}, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        sentence, *cures = result.stdout.splitlines()
        return sentence, [cure.partition(": main ")[2] for cure in cures]

    return tell


@pytest.fixture
def put(database):
    """Enqueue one of the application's tasks in a given queue."""

    def put_task(kind, queue, *, args=None, **fields):
        values = {"task_name": f"faults.{kind}", "queue": queue, "args": json.dumps(args or {}), **fields}
        return database.add(database.store, **values).id

    return put_task


def reason(database, task_id):
    return database.store.explain(task_id).reason


def lives(worker):
    until(worker.is_up)


def waits(database, task_id, why):
    until(lambda: reason(database, task_id) is why)


def test_each_reason_to_wait_is_reported_with_its_cures(database, put, told, fork, tmp_path):
    store, running = database.store, {"directory": str(tmp_path)}
    store.queues.pause("paused", create=True)
    store.queues.limit("narrow", concurrency=1, create=True)
    store.queues.limit("slow", rate=(1, HOUR), create=True)
    lives(fork())

    late = put("nothing", "late", args={"number": 1}, delay=HOUR)
    sentence, cures = told(late)
    assert sentence.startswith("it is due in ")
    assert cures == [f"task run-now {late}"]

    away = put("away", "away")
    waits(database, away, Reason.RETRY_LATER)
    sentence, cures = told(away)
    assert sentence.startswith("attempt 2 is due in ")
    assert sentence.endswith("(OSError: the server does not answer)")
    assert cures == [f"task run-now {away}"]

    first = put("wait", "narrow", args=running)
    until(lambda: started_by(tmp_path))
    second = put("wait", "narrow", args=running)
    sentence, cures = told(second)
    assert sentence.startswith(
        "its queue may run at most 1 task at a time; running now: 1; the longest-running one is task "
    )
    assert cures == ["queue limit narrow --concurrency none", f"task explain {first}"]
    (tmp_path / "go").touch()
    until(lambda: store.get(second).completed_at and store.get(first).completed_at)

    used = put("nothing", "slow", args={"number": 1})
    until(lambda: store.get(used).completed_at)
    spare = put("nothing", "slow", args={"number": 2})
    sentence, cures = told(spare)
    assert sentence.startswith("its queue may start at most 1 task in 1 h; the next start is possible in ")
    assert cures == ["queue limit slow --rate none"]

    head = put("nothing", "keyed", args={"number": 1}, partition_key="k", delay=HOUR)
    behind = put("nothing", "keyed", args={"number": 2}, partition_key="k")
    sentence, cures = told(behind)
    assert f"task {head} has the same partition key 'k' and comes first" in sentence
    assert cures == [f"task explain {head}"]

    still = put("nothing", "paused", args={"number": 1})
    sentence, cures = told(still)
    assert sentence.startswith("its queue has been paused since ")
    assert cures == ["queue resume paused"]
    CliRunner().invoke(main, cures[0].split(), env={"OUTBOXQ_DATABASE_URL": database.url})
    until(lambda: store.get(still).completed_at)


def test_a_task_unknown_to_the_only_worker_is_explained(database, put, told, fork):
    lives(fork(unknown_task_delay=600))
    stranger = put("unheard", "faults")
    until(lambda: EventType.RELEASED in [event.event_type for event in database.store.history(stranger)])
    waits(database, stranger, Reason.TASK_UNKNOWN)
    sentence, cures = told(stranger)
    assert "no live worker for its queue and topic knows the task 'faults.unheard'; import its module" in sentence
    assert "released as unknown" in sentence
    assert cures == ["worker APP -q faults"]


def test_without_a_worker_the_cure_is_to_start_one(database, put, told):
    task_id = put("nothing", "faults", args={"number": 1})
    assert told(task_id) == ("no live worker serves its queue 'faults'", ["worker APP -q faults"])


def test_a_task_waiting_for_a_running_task_of_its_key_is_explained(database, put, told, fork, tmp_path):
    lives(fork())
    first = put("wait", "faults", args={"directory": str(tmp_path)}, partition_key="k")
    until(lambda: started_by(tmp_path))
    second = put("nothing", "faults", args={"number": 2}, partition_key="k")
    sentence, cures = told(second)
    assert sentence.startswith(
        f"task {first} has the same partition key 'k' and is running; only one task per key runs at a time; worker "
    )
    assert cures == [f"task explain {first}"]
    (tmp_path / "go").touch()
    until(lambda: database.store.get(second).completed_at)


def test_a_killed_worker_is_reported_before_and_after_its_lease_expires(database, put, told, fork, died, tmp_path):
    task_id = put("wait", "faults", args={"directory": str(tmp_path)}, lease=timedelta(minutes=10))
    worker = fork(heartbeat=None)
    until(lambda: started_by(tmp_path))
    assert reason(database, task_id) is Reason.RUNNING
    worker.send(signal.SIGKILL)
    worker.wait()
    soon = database.store.now() + timedelta(minutes=2)  # as if eight minutes had passed
    database.run(f"UPDATE task_leases SET lease_expires_at = '{soon.isoformat(timespec='microseconds')}'")
    assert reason(database, task_id) is Reason.WORKER_SILENT
    assert "should have extended the lease, but has not done so in the last 8 min" in told(task_id)[0]
    died(worker)
    assert reason(database, task_id) is Reason.LEASE_ENDED
    sentence, cures = told(task_id)
    assert "there is no other live worker to recover the task; start one" in sentence
    assert cures == ["worker APP -q faults"]
    lives(fork())
    assert reason(database, task_id) in {Reason.LEASE_ENDED, Reason.RUNNING, Reason.DUE}
    (tmp_path / "go").touch()
    until(lambda: database.store.get(task_id).completed_at)


@pytest.mark.parametrize("met", ["nothing", "a task that it does not know"])
def test_a_stopped_worker_is_no_longer_listed(database, put, told, fork, met):
    worker = fork()
    lives(worker)
    if met != "nothing":
        put("unheard", "faults")
        until(lambda: any(one.unknown_tasks for one in database.store.workers.list()))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert database.store.workers.list() == []
    task_id = put("nothing", "faults", args={"number": 1})
    assert told(task_id) == ("no live worker serves its queue 'faults'", ["worker APP -q faults"])
    assert [queue.live_workers for queue in database.store.stats()] == [0]


def test_a_task_unknown_to_a_worker_that_has_stopped_is_named(database, put, told, fork):
    worker = fork(unknown_task_delay=600)
    lives(worker)
    stranger = put("unheard", "faults")
    until(lambda: EventType.RELEASED in [event.event_type for event in database.store.history(stranger)])
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert reason(database, stranger) is Reason.NO_WORKER
    sentence, _ = told(stranger)
    assert sentence.startswith(
        "no live worker serves its queue 'faults'; it has been released as unknown, because the last worker did not know the "
        "task 'faults.unheard'; import its module where the worker starts; it will be tried again in "
    )
    assert [cure.purpose for cure in database.store.explain(stranger).cures] == ["start a worker that knows it"]
