"""With real workers, a rolled-back task leaves no row, and a task sees its business row, however late the commit."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from tests import forked
from tests.integrations.sqlalchemy_session.commit_app import Base, Order, see
from tests.waiting import until

pytestmark = pytest.mark.in_turn

ROOT = Path(__file__).parents[3]


class Refused(Exception):
    """The error that a request handler raises."""


@contextmanager
def worker(database, tmp_path):
    command = [*forked.PYTHON, "-m", "outboxq", "worker", "tests.integrations.sqlalchemy_session.commit_app:outbox"]
    command += ["--log-level", "WARNING"]
    env = {**os.environ, "OUTBOXQ_DATABASE_URL": database.url}
    with (tmp_path / "log").open("w") as log, forked.Popen(command, env=env, stdout=log, stderr=log) as process:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0, (tmp_path / "log").read_text()


def request(engine, chance, longest):
    """Run one request, and return whether it was accepted."""
    try:
        with Session(engine) as session, session.begin():
            order = Order()
            session.add(order)
            session.flush()
            see.using(session).enqueue(order.id)
            time.sleep(chance.uniform(0, longest))  # between the enqueue and the commit, which this test is about
            if chance.random() < 0.2:
                raise Refused
    except Refused:
        return False
    return True


def shop(engine, seed, accepted, longest):
    chance = random.Random(seed)
    while accepted:
        accepted -= request(engine, chance, longest)


@pytest.mark.parametrize(
    "accepted", [60, pytest.param(20_000, marks=[pytest.mark.campaign, pytest.mark.timeout(1800)])]
)
def test_committed_tasks_see_their_rows_and_refused_ones_do_not_exist(accepted, database, tmp_path):
    engine = database.host_engine()
    Base.metadata.create_all(engine)
    longest = 0.002 if database.name == "sqlite" else 0.02  # SQLite has one writer at a time
    threads = 4
    with worker(database, tmp_path), ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda seed: shop(engine, seed, accepted // threads, longest), range(threads)))
        ready = "SELECT count(*) FROM task_executions WHERE status IN ('Ready', 'Running')"
        until(lambda: database.rows(ready) == [(0,)], seconds=240, every=0.05)
    assert database.rows("SELECT status, count(*) FROM task_executions GROUP BY status") == [("Completed", accepted)]
    assert database.rows("SELECT count(*) FROM orders") == [(accepted,)]
    Base.metadata.drop_all(engine)
