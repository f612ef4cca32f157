"""The program of a forked process, with a built-in fault: `python -m tests.faults.run_worker '{"kind": "worker", "url": …}'`."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import runpy
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError

from outboxq.context import current
from outboxq.database.engine import configure_sqlite
from outboxq.errors import LeaseLost
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.failpoints import Failpoint, OnFailpoint, ignore_failpoint
from outboxq.worker.leases import Leases
from outboxq.worker.upkeep.recovery import Recovery
from tests.faults import app
from tests.faults.runs import Pen

FAST = {"poll": 0.05, "recover_every": 0.1, "heartbeat": 0.05, "drain_timeout": 30}
"""Short intervals, so that tests do not wait for a worker's timers."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread, so that it stops exactly here


def end_thread() -> NoReturn:
    raise SystemExit(3)


def dawdle() -> None:
    time.sleep(0.3)


ACTIONS = {action.__name__: action for action in (kill, freeze, end_thread, dawdle)}


def armed(point: str, action: str, *, arrival: int = 1, mark: str | None = None) -> OnFailpoint:
    """Return a callback that performs the action at the n-th arrival at a point. With `mark`, count only while that file exists."""
    lock, arrivals = threading.Lock(), 0

    def on_failpoint(reached: Failpoint) -> None:
        nonlocal arrivals
        if reached != point or (mark and not Path(mark).exists()):
            return
        with lock:
            arrivals += 1
            here = arrivals == arrival
        if here:
            os.write(2, f"reached {point}\n".encode())
            ACTIONS[action]()

    return on_failpoint


STATEMENT = "statement"
"""The point before each statement and each commit in a handler's thread."""


def hear_statements(on_statement: Any) -> None:
    def hear(*_: Any) -> None:
        if current.get() is not None:
            on_statement(STATEMENT)

    event.listen(Engine, "before_cursor_execute", hear)
    event.listen(Engine, "commit", hear)


def worker(fault: dict[str, Any] | None = None, runs: str | None = None, **options: Any) -> NoReturn:
    """`runs`: the file in which the handlers record their runs."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    on_failpoint = armed(**fault) if fault else ignore_failpoint
    if fault and fault["point"] == STATEMENT:
        hear_statements(on_failpoint)
        on_failpoint = ignore_failpoint
    app.pen = Pen(Path(runs)) if runs else None
    running = app.outbox.worker(on_failpoint=on_failpoint, **{**FAST, **options})
    code = running.run()
    app.outbox.store.bound_engine.dispose()
    sys.exit(code)


def cli(options: list[str]) -> NoReturn:
    from outboxq.cli import main

    sys.argv = ["outboxq", "worker", "tests.faults.app:outbox", *options]
    main()
    raise AssertionError("the command has not ended the process")


def producer(seed: int, tasks: int, acknowledged: str) -> None:
    """Enqueue tasks together with business rows, roll back a quarter of the transactions, and record the outcomes."""
    chance = random.Random(seed)
    url = app.outbox.store.bound_engine.url
    engine = create_engine(url)
    if url.get_backend_name() == "sqlite":
        configure_sqlite(engine)
    written = 0
    with Path(acknowledged).open("a") as log:
        while written < tasks:
            vain = chance.random() < 0.25
            with engine.connect() as connection, connection.begin() as transaction:
                ids = [_order(connection, chance.randrange(10**6), vain) for _ in range(chance.randint(1, 5))]
                if vain:
                    log.write("".join(f"vain {one}\n" for one in ids))
                    transaction.rollback()
            if not vain:
                log.write("".join(f"committed {one}\n" for one in ids))
                written += len(ids)
            log.flush()
    engine.dispose()


def _order(connection: Connection, number: int, vain: bool) -> str:
    task = app.entry if number % 4 == 0 else app.flaky
    task_id: str = task.using(connection).enqueue(number).id.hex
    row = {"id": uuid7().hex, "task": task_id, "vain": vain}
    connection.execute(text("INSERT INTO orders (id, task, vain) VALUES (:id, :task, :vain)"), row)
    return task_id


def module(name: str, arguments: list[str], cwd: str, environment: dict[str, str]) -> NoReturn:
    """Run `python -W error -m name arguments` as a user would."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error")
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    sys.exit(0)


def script(text: str, arguments: list[str]) -> NoReturn:
    """Run `python -c text arguments`."""
    sys.argv = ["-c", *arguments]
    exec(text, {"__name__": "__main__"})
    sys.exit(0)


def planter(clock: str) -> NoReturn:
    """Plant schedules repeatedly, using the clock in a file, until the process is killed."""
    store = Store(app.outbox.store.bound_engine, clock=partial(clock_of, Path(clock)))
    while True:
        try:
            store.schedules.plant()
        except OperationalError as error:
            if not store.may_pass(error):  # a worker continues too: on SQLite, others may hold the lock for a long time
                raise


def runner(clock: str, runs: str) -> NoReturn:
    """Plant schedules and recover and run tasks, using the clock in a file, until the process is killed. Record ticks in `runs`."""
    store = Store(app.outbox.store.bound_engine, clock=partial(clock_of, Path(clock)))
    me, looked_at = uuid7(), -math.inf
    recovery = Recovery(
        store,
        Leases(store),
        every=timedelta(seconds=0.5),
        prove_writable=lambda: None,
        on_recovery=lambda: None,
    )
    with Path(runs).open("a") as log:
        while True:
            try:
                if time.monotonic() >= looked_at + recovery.pause():
                    recovery.run_once()
                    looked_at = time.monotonic()
                store.schedules.plant()
                for claim in store.claim_ready_task(20, worker_id=me, lease=1):
                    log.write(f"{claim.id}\t{claim.headers}\n")
                    log.flush()
                    with suppress(LeaseLost):
                        store.complete(claim)
            except OperationalError as error:
                if not store.may_pass(error):
                    raise


def clock_of(path: Path) -> datetime:
    """Return the time that a test has written to a file."""
    return datetime.fromisoformat(path.read_text())


KINDS = {
    "planter": planter,
    "runner": runner,
    "worker": worker,
    "cli": cli,
    "producer": producer,
    "module": module,
    "script": script,
}


def run(plan: dict[str, Any]) -> None:
    if "url" in plan:
        app.outbox.bind(plan.pop("url"))
    KINDS[plan.pop("kind")](**plan)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
