"""The shops under load, each on both databases: customers order over HTTP while workers are killed.

`python -m tests.integrations.examples.load --seconds 30`
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text

from outboxq.database.engine import make_engine
from outboxq.model import MAX_RECOVERIES
from tests import postgres
from tests.integrations.examples import audit
from tests.integrations.examples.customers import Customers
from tests.integrations.examples.shops import LEASE, SHOPS, Child, Premises, Shop
from tests.waiting import until

WORKERS = 2
PATIENCE = 60.0
"""The time in seconds that the workers have for the remaining tasks after the last kill."""

_HELD = text(
    "SELECT count(*), coalesce(max(recovery_attempts), 0) FROM task_leases"
    " JOIN task_executions ON task_executions.id = task_leases.task_execution_id"
    " JOIN workers ON workers.id = task_leases.worker_id WHERE workers.label LIKE :label"
)
_LEFT = text("SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)")


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of one run."""

    shop: str
    database: str
    requests: int
    accepted: int
    refused: int
    unknown: int
    repeated: int
    kills: int
    recoveries: int
    slowest: float
    seconds: float
    complaints: list[str]


def run(
    shop: Shop, url: str, directory: Path, *, seconds: float, rate: float = 100, seed: int = 1, at_least: int = 0
) -> Report:
    """Start the shop on a fresh database, and let customers order for `seconds` and until `at_least` orders were
    accepted and a tenth of that number refused. Report what has become of their orders.
    """
    began = time.monotonic()
    with _reading(url) as engine, Premises(shop, directory, url) as premises:
        premises.prepare()
        before = audit.stocked(engine)
        server, workers = premises.serve(), [premises.work() for _ in range(WORKERS)]
        customers = Customers(premises.port, threads=8, rate=rate, seed=seed)
        killer = Killer(engine, premises, workers)
        until(lambda: all(killer.is_up(worker) for worker in workers), seconds=240)
        customers.start()
        killer.run(until=time.monotonic() + seconds)
        until(lambda: _are_answered(customers, at_least), seconds=240)
        customers.stop()
        _wait_for_workers(engine, customers)
        _ask_for(customers)
        server.send(signal.SIGTERM)  # it may still be answering a customer who has disconnected
        premises.wait(server)
        _wait_for_workers(engine, customers)
        for worker in workers:
            until(lambda one=worker: killer.is_up(one), seconds=240)  # until then, it cannot stop cleanly
            worker.send(signal.SIGTERM)
        ends = [premises.wait(worker) for worker in workers]
        answers = [status for wanted in customers.wanted for status, _ in wanted.answers]
        return Report(
            shop=shop.name,
            database=engine.dialect.name,
            requests=len(answers),
            accepted=sum(wanted.is_accepted for wanted in customers.wanted),
            refused=sum(wanted.is_refused for wanted in customers.wanted),
            unknown=answers.count(0),
            repeated=answers.count(200),
            kills=killer.kills,
            recoveries=audit.recoveries(engine),
            slowest=customers.slowest,
            seconds=time.monotonic() - began,
            complaints=[
                *customers.surprises,
                *(f"a worker that was asked to stop ended with {code}" for code in ends if code != 0),
                *audit.complaints(engine, customers.wanted, before),
            ],
        )


class Killer:
    """Kills a worker during its work every second, and starts another one."""

    def __init__(self, engine: Engine, premises: Premises, workers: list[Child]) -> None:
        self.kills = 0
        self._engine = engine
        self._premises = premises
        self._workers = workers
        """The oldest worker comes first."""

    def run(self, *, until: float) -> None:
        due = time.monotonic()
        while (due := due + 1) < until:
            time.sleep(max(0.0, due - time.monotonic()))
            self._kill(self._workers.pop(0), patience=0.5)
            self._workers.append(self._premises.work())
        time.sleep(max(0.0, until - time.monotonic()))

    def is_up(self, worker: Child) -> bool:
        assert worker.poll() is None, worker.text()
        with self._engine.connect() as connection:
            known = text("SELECT count(*) FROM workers WHERE label LIKE :label")
            return bool(connection.scalar(known, {"label": f"%:{worker.pid}"}))

    def _kill(self, worker: Child, *, patience: float) -> None:
        """Kill the worker while it has a task, if it gets one soon, unless one of its tasks would then fail permanently."""
        deadline = time.monotonic() + patience
        while True:
            worker.send(signal.SIGSTOP)
            held, recovered = self._held_by(worker)
            if recovered < MAX_RECOVERIES and (held or time.monotonic() > deadline):
                break
            worker.send(signal.SIGCONT)
            time.sleep(0.005)
        worker.send(signal.SIGKILL)
        assert self._premises.wait(worker) == -signal.SIGKILL, worker.text()
        self.kills += 1

    def _held_by(self, worker: Child) -> tuple[int, int]:
        """The number of the worker's tasks, and the highest number of recoveries among them."""
        with self._engine.connect() as connection:
            held, recovered = connection.execute(_HELD, {"label": f"%:{worker.pid}"}).one()
        return held, recovered


def _are_answered(customers: Customers, at_least: int) -> bool:
    answered = [wanted for wanted in customers.wanted[:] if wanted.answers]
    accepted, refused = (sum(getattr(one, name) for one in answered) for name in ("is_accepted", "is_refused"))
    return accepted >= at_least and refused >= at_least / 10


def _wait_for_workers(engine: Engine, customers: Customers) -> None:
    deadline = time.monotonic() + PATIENCE
    while (left := _left(engine)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        customers.surprises.append(f"after {PATIENCE:.0f} s, {left} tasks are not done")


def _ask_for(customers: Customers) -> None:
    """Ask the shop about the orders that it has accepted."""
    for wanted in [one for one in customers.wanted if one.is_accepted][:20]:
        status, order = customers.show(str(min(wanted.ids)))
        if (status, order.get("booked")) != (200, True):
            customers.surprises.append(f"{wanted.reference} is shown as {status} {order}")


def _left(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(_LEFT) or 0)


@contextmanager
def _reading(url: str) -> Iterator[Engine]:
    engine = make_engine(url)
    yield engine
    engine.dispose()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=100, help="Orders per second, from all customers together.")
    parser.add_argument("--shop", choices=SHOPS, action="append")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    given = parser.parse_args(arguments)
    cluster = postgres.start()
    failed = False
    print(
        f"8 customers, {WORKERS} workers, leases of {LEASE:.0f} s, one worker killed each second for {given.seconds:.0f} s"
    )
    columns = ("requests", "accepted", "refused", "unknown", "repeated", "kills", "recoveries", "slowest", "seconds")
    print(f"{'shop':14}{'database':12}" + "".join(f"{column:>12}" for column in columns))
    try:
        for name in given.shop or SHOPS:
            for database in given.database or ("sqlite", "postgresql"):
                with tempfile.TemporaryDirectory(prefix="outboxq-shop-") as directory:
                    url = cluster.create_database() if database == "postgresql" else f"sqlite:///{directory}/shop.db"
                    report = run(SHOPS[name], url, Path(directory), seconds=given.seconds, rate=given.rate)
                figures = [getattr(report, column) for column in columns]
                print(f"{report.shop:14}{report.database:12}" + "".join(_cell(figure) for figure in figures))
                failed |= bool(report.complaints)
                for complaint in report.complaints[:20]:
                    print(f"    {complaint}")
                sys.stdout.flush()
    finally:
        cluster.stop()
    print("FAILED" if failed else "every accepted order was booked exactly once, and none of the refused ones")
    return int(failed)


def _cell(figure: float) -> str:
    return f"{figure:>12}" if isinstance(figure, int) else f"{figure:>12.1f}"


if __name__ == "__main__":
    sys.exit(main())
