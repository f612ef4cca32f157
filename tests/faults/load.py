"""Workers and a producer that run while a fault affects their database, and checks of the outcome."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from outboxq.model import EventType, NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.faults.blows import LEASE
from tests.faults.helpers import left
from tests.faults.runs import Runs
from tests.faults.workers import Process
from tests.waiting import until

_SLOW = (0.8 * LEASE, 1.4 * LEASE)
"""The shortest and longest duration, in seconds, of the handlers that a fault interrupts."""


class Load:
    """A load in which half of the tasks are transactional, and each task has only one attempt."""

    def __init__(self, database: Database, fork: Callable[..., Process], directory: Path, *, tasks: int) -> None:
        self.database, self.directory, self.tasks = database, directory, tasks
        self.runs = Runs(directory / "runs")
        self.acknowledged: dict[UUID, str] = {}
        self.refused: list[Exception] = []
        self._chance = random.Random(7)
        self._over = threading.Event()
        self._producer = threading.Thread(target=self._produce, daemon=True)
        options = {"concurrency": 4, "heartbeat": None, "recover_every": 1.0, "runs": str(self.runs.path)}
        self.workers = [fork(**options) for _ in range(2)]

    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def begin(self) -> None:
        """Return once slow handlers of both kinds run in live workers. The producer keeps enqueuing short ones."""
        until(lambda: all(worker.is_up() for worker in self.workers))
        for kind in ("errand", "ledger", "errand", "ledger"):
            self._enqueue(self.database.store, kind, self._chance.uniform(*_SLOW), priority=100)
        self._producer.start()
        until(lambda: {run.task_name for run in self.runs.under_way()} >= {"faults.errand", "faults.ledger"})

    def run_on(self, more: int = 20) -> None:
        """Return once `more` more handlers have started."""
        wanted = len(self.runs.all()) + more
        until(lambda: len(self.runs.all()) >= wanted or not self._producer.is_alive(), seconds=60)

    def end(self, *, seconds: float = 90) -> None:
        """Wait until all tasks have ended, and stop the workers."""
        until(lambda: not self._producer.is_alive(), seconds=seconds)
        until(lambda: left(self.database) == 0, seconds=seconds, every=0.1)
        for worker in self.workers:
            worker.send(15)
        assert [worker.wait() for worker in self.workers] == [0, 0], self.logs()[-3000:]

    def abandon(self) -> None:
        self._over.set()

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("forked-*.log")))

    def check(self, what: str, effects: list[str], *, refuses: bool = False) -> None:
        """Print the figures, and compare them with the guarantees. With `refuses`, an enqueue may fail."""
        rows = self.database.rows("SELECT id, task_name, status, attempt, recovery_attempts FROM task_executions")
        found = {UUID(str(row[0])): row[1:] for row in rows}
        transactional = sorted(one.hex for one, row in found.items() if row[0] == "faults.ledger")
        kinds = Counter(
            dict(self.database.rows("SELECT event_type, count(*) FROM execution_events GROUP BY event_type"))
        )
        per_task = Counter(run.task_id for run in self.runs.all() if run.task_name == "faults.errand")
        twice = [one for one, times in per_task.items() if times > 1]
        lost = self.acknowledged.keys() - found.keys()
        unfinished = Counter(str(row[1]) for row in found.values() if row[1] != "Completed")
        used = [one for one, row in found.items() if row[2] != 1]
        log = self.logs()
        print(
            f"\n{what}: {len(found)} tasks, {len(transactional)} of them transactional; {len(self.acknowledged)} acknowledged, "
            f"{len(lost)} lost, {len(self.refused)} enqueues refused; {len(effects)} effects of {len(transactional)}; "
            f"{len(twice)} plain handlers ran twice; not Completed: {dict(unfinished)}; {len(used)} used an attempt; "
            f"{kinds[EventType.RELEASED]} released, {kinds[EventType.RESET]} recovered; "
            f"{len(log.splitlines())} lines of log, {log.count('Traceback')} tracebacks"
        )
        assert not lost
        assert refuses or not self.refused, self.refused[:1]
        assert effects == transactional, "each transactional task has its effect exactly once"
        assert not twice, "a handler ran twice although its worker lived"
        assert not unfinished, self.logs()[-3000:]
        assert not used
        assert kinds[EventType.RETRY_SCHEDULED] == 0
        assert self.database.store.verify() == []
        assert "Traceback" not in log
        assert "[SQL" not in log, "the log contains a SQL statement"

    def _produce(self) -> None:
        """Enqueue tasks as fast as the workers run them, each in its own transaction, and record the acknowledged tasks."""
        while len(self.acknowledged) < self.tasks and not self._over.wait(0.01):
            kind = "ledger" if len(self.acknowledged) % 2 else "errand"
            try:
                self._enqueue(self.database.store, kind, self._chance.uniform(0.01, 0.1))
            except Exception as error:  # noqa: BLE001 - for the test to see
                self.refused.append(error)

    def _enqueue(self, store: Store, kind: str, seconds: float, priority: int = 0) -> None:
        row = NewTask(
            id=uuid7(),
            task_name=f"faults.{kind}",
            queue="faults",
            args=json.dumps({"seconds": round(seconds, 3)}),
            lease=timedelta(seconds=LEASE),
            priority=priority,
        )
        self.acknowledged[store.enqueue(row).id] = kind
