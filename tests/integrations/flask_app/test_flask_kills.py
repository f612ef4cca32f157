"""The effects of a transactional task through `db.session` occur once, even if workers are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forked
from tests.integrations.flask_app import kill_shop
from tests.waiting import until

pytestmark = pytest.mark.in_turn

ROOT = Path(__file__).parents[3]


@pytest.fixture
def app(database):
    app = kill_shop.create_app(database.url)
    with app.app_context():
        kill_shop.db.create_all()
        yield app
        kill_shop.db.session.remove()
        kill_shop.db.drop_all()
        kill_shop.db.engine.dispose()


@contextmanager
def workers(database, log, *options):
    """Run `flask … outboxq worker` as a process, and end it with all processes that it has started."""
    command = [*forked.PYTHON, "-m", "flask", "--app", kill_shop.__name__, "outboxq", "worker"]
    command += ["--poll", "100ms", "--queue", "default", *options]
    with log.open("a") as output:
        given = {"env": {**os.environ, "KILLS_URL": database.url}, "stdout": output, "stderr": output}
        process = forked.Popen(
            command, warm=forked.FRAMEWORKS, starts_others="--processes" in options, start_new_session=True, **given
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def left(database):
    ((count,),) = database.rows(
        "SELECT count(*) FROM task_executions WHERE queue = 'default' AND status NOT IN ('Completed', 'Failed')"
    )
    return count


def expect_each_once(database, numbers):
    for step in ("committed", "flushed"):
        assert database.rows(f"SELECT number FROM ledger WHERE step = '{step}' ORDER BY number") == [
            (n,) for n in numbers
        ]
    assert database.rows("SELECT count(*) FROM task_executions WHERE task_name = 'kills.followed'") == [(len(numbers),)]


def test_each_effect_occurs_once_even_if_a_worker_dies(app, database, tmp_path):
    deaths = {1: "after the first", 4: "after the second"}
    for number in range(6):
        kill_shop.book.enqueue(number, deaths.get(number, ""))
    kill_shop.db.session.commit()
    with workers(database, tmp_path / "log", "--processes", "2") as supervisor:
        until(lambda: left(database) == 0, seconds=240, every=0.05)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(240) == 0, (tmp_path / "log").read_text()
    expect_each_once(database, range(6))
    assert database.rows("SELECT count(*) FROM task_executions WHERE status = 'Completed'") == [(6,)]
    assert database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'task_reset'")[0][0] >= 2


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_effects_occur_once_despite_kills(app, database, tmp_path):
    """Two workers are killed repeatedly, and then another one finishes the tasks."""
    numbers = range(400 if database.name == "sqlite" else 5000)  # every round needs unfinished tasks
    rounds, chance, kills = 8, random.Random(7), 0
    handles = [kill_shop.book.enqueue(number) for number in numbers]
    kill_shop.db.session.commit()
    for turn in range(rounds):
        log = tmp_path / f"log {turn}"
        with workers(database, log) as worker, workers(database, log) as other:
            before = left(database)
            until(lambda at=before: left(database) < at, seconds=240, every=0.02)
            time.sleep(chance.uniform(0, 0.3))  # a campaign: the kill comes at a random moment
            for process in (worker, other):
                kills += process.poll() is None
                process.kill()
    with workers(database, tmp_path / "last log", "--burst"):
        until(lambda: left(database) == 0, seconds=300)
    tasks = [kill_shop.outbox.store.get(handle.id) for handle in handles]
    given_up = [task for task in tasks if task.status == "Failed"]
    assert all(task.last_error.startswith("ABANDONED:") for task in given_up), (
        "only tasks whose worker died four times may fail, as the docs say"
    )
    assert {task.status for task in tasks} <= {"Completed", "Failed"}
    expect_each_once(database, [number for number in numbers if tasks[number].status == "Completed"])
    recovered = database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'task_reset'")[0][0]
    assert recovered > 0, "no task was running at any kill"
    print(f"{database.name}: {len(numbers)} tasks, {kills} kills, {recovered} recoveries, {len(given_up)} given up")
