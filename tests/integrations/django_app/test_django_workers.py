"""Real `manage.py outboxq worker` processes that die during a commit, and orders that are placed while a worker runs."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from outboxq.model import NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from tests.conftest import Database
from tests.forked import Popen
from tests.integrations.django_app.conftest import Project
from tests.waiting import until

pytestmark = pytest.mark.in_turn

KEY = {"sqlite": "integer PRIMARY KEY AUTOINCREMENT", "postgresql": "bigserial PRIMARY KEY"}


@pytest.fixture
def shop(database):
    database.run(f'CREATE TABLE shop_booking (id {KEY[database.name]}, "order" integer NOT NULL)')
    return Project(database.url)


@contextmanager
def workers(project, log: Path, *options: str) -> Iterator[Popen]:
    with log.open("a") as output, project.start("manage.py", "outboxq", "worker", *options, stdout=output) as process:
        yield process
        process.kill()


def enqueue(database: Database, name: str, orders: range) -> None:
    database.store.enqueue_many(
        [
            NewTask(
                id=uuid7(),
                task_name=f"shop.tasks.{name}",
                args=json.dumps({"order": order}),
                queue="deadly",
                lease=timedelta(seconds=3),
            )
            for order in orders
        ]
    )


def left(database: Database) -> int:
    """The number of waiting and running tasks, read at once, because a task can move between two statements."""
    [(tasks,)] = database.rows("SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)")
    return int(str(tasks))


def assert_each_once(database: Database, orders: int) -> None:
    booked = Counter(order for (order,) in database.rows('SELECT "order" FROM shop_booking'))
    assert booked == Counter(range(orders))
    ended = Counter(database.rows("SELECT task_name, status FROM task_executions"))
    done = TaskStatus.COMPLETED.value
    assert {name: number for (name, status), number in ended.items() if status == done} == {
        next(name for name, _ in ended if "book" in name): orders,
        "shop.tasks.send": orders,
    }
    assert len(ended) == 2, ended


def test_bookings_of_a_dying_worker_are_made_once(database, shop, tmp_path):
    enqueue(database, "book_once", range(20))
    log = tmp_path / "workers.log"
    with workers(shop, log, "-c", "2", "--skip-checks") as process:
        assert process.wait(240) == -signal.SIGKILL, log.read_text()
    assert database.rows('SELECT count(*) FROM shop_booking WHERE "order" = 7') == [(0,)]
    with workers(shop, log, "-c", "2", "--skip-checks") as process:
        until(lambda: left(database) == 0 or process.poll() is not None, seconds=240)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0, log.read_text()
    assert_each_once(database, 20)
    assert database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'task_reset'") > [(0,)]


def test_child_processes_book_in_transactions_of_separate_connections(database, shop, tmp_path):
    enqueue(database, "book_once", range(7))
    log = tmp_path / "workers.log"
    with workers(shop, log, "-c", "2", "--skip-checks", "--isolation", "process", "--burst") as process:
        assert process.wait(240) == 0, log.read_text()
    assert_each_once(database, 7)
    assert "task_failed" not in log.read_text()


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_each_effect_occurs_exactly_once_while_workers_are_killed(database, shop, tmp_path):
    seconds, orders = int(os.environ.get("OUTBOXQ_SECONDS", "60")), int(os.environ.get("OUTBOXQ_TASKS", "4000"))
    enqueue(database, "book_slowly", range(orders))
    log, kills, chance = tmp_path / "workers.log", 0, random.Random()
    with workers(shop, log, "--processes", "3", "-c", "4") as process:
        deadline = time.monotonic() + seconds
        while left(database) and process.poll() is None:
            if time.monotonic() < deadline:
                for pid in chance.sample(children(process.pid), k=min(1, len(children(process.pid)))):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
            with suppress(AssertionError):
                until(lambda: left(database) == 0, seconds=chance.uniform(0.5, 3), every=0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0, log.read_text()[-5000:]
    print(f"{database.name}: {orders} tasks, {kills} kills")
    assert kills > 5
    assert_each_once(database, orders)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_tasks_see_every_committed_order_and_no_refused_order(project):
    rounds = int(os.environ.get("OUTBOXQ_ROUNDS", "20000"))
    project.manage("migrate")
    # SQLite has one writer at a time, in no fair order: with four others, a writer may wait too long.
    threads, delay = ("1", "0.004") if project.name == "sqlite" else ("4", "0.02")
    printed = project.python("-m", "shop.rounds", str(rounds), threads, delay, seconds=3000)
    print(project.url.partition(":")[0], printed)
    refused = rounds // 3
    expected = {"refused": refused, "seen": rounds - refused, "missed": 0, "of refused": 0}
    assert printed.endswith(f"{expected}\n")


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
