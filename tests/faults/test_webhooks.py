"""Events sent to another service while workers are killed and the service restarts, fails and refuses some events.

The service has its own database with an inbox. At the end, each committed event must have its effect once, and no other event may have
one.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outboxq import Outbox, configure_sqlite, verify_webhook
from tests.conftest import Database
from tests.endpoints import Arrival, endpoint
from tests.faults import webhook_app
from tests.faults.webhook_app import SECRET
from tests.fleet import Fleet, figures, of_tasks
from tests.waiting import until

pytestmark = pytest.mark.in_turn


@dataclass
class Service:
    """The other service. It ignores duplicates, and sometimes answers with an error, before or after its commit."""

    path: Path
    chance: random.Random
    refuses: bool = True
    """True if it permanently refuses every hundredth event."""
    arrivals: list[int] = field(default_factory=list)
    """The numbers of the events, in the order of their effects."""
    answers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.engine = configure_sqlite(create_engine(f"sqlite:///{self.path}"))
        self.outbox = Outbox(self.engine)
        self.outbox.upgrade()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (number INTEGER)"))
        self._lock = threading.Lock()

    def receive(self, arrival: Arrival) -> int:
        """Process a request, and return the status of the answer."""
        webhook = verify_webhook(arrival.headers, arrival.body, SECRET)
        event = json.loads(webhook.body)
        number = event["data"]["number"]
        with self._lock:
            luck = self.chance.random()
            if self.refuses and is_refused(number):
                return self._count("refused", 422)
            if luck < 0.01:
                return self._count("failed before the commit", 500)
            with self.engine.begin() as connection:
                if self.outbox.inbox.accept("crm", webhook.id, source=event["source"], using=connection):
                    connection.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})
                    self.arrivals.append(number)
                else:
                    self._count("duplicate", 204)
            return self._count("failed after the commit", 500) if luck < 0.02 else 204

    def effects(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT number FROM effects ORDER BY number")).scalars())

    def _count(self, what: str, status: int) -> int:
        self.answers[what] += 1
        return status


AT_ONCE = 25
"""The number of events in one transaction."""


def is_refused(number: int) -> bool:
    return number % 100 == 0


@pytest.mark.parametrize(
    ("events", "keys", "kills", "restarts"),
    [
        (110, 10, 2, 1),
        pytest.param(20_000, 200, 50, 5, marks=[pytest.mark.campaign, pytest.mark.timeout(7200)]),
    ],
    ids=["few", "campaign"],
)
def test_each_committed_event_has_its_effect_once(
    database: Database, tmp_path: Path, events: int, keys: int, kills: int, restarts: int
) -> None:
    chance = random.Random(events)
    service = Service(tmp_path / "theirs.db", chance=random.Random(7))
    database.own(service.engine)
    sender, committed = Outbox(database.host), set[int]()
    database.store.subscriptions.replace(webhook_app.outbox.subscriptions)

    def emit(numbers: range) -> None:
        with Session(database.host) as session:
            for number in numbers:
                sender.emit("order.paid", {"number": number}, using=session, partition_key=f"key-{number % keys}")
            if chance.random() < 0.1:
                session.rollback()
                return
            session.commit()
        committed.update(numbers)

    def waiting() -> int:
        found = database.rows("SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)")
        return int(str(found[0][0]))

    with ExitStack() as stack:
        serving = stack.enter_context(ExitStack())
        other = serving.enter_context(endpoint())
        other.answer = service.receive
        command = ["worker", "tests.faults.webhook_app:outbox", "--poll", "100ms"]
        place = f"http://127.0.0.1:{other.port}/hooks"
        workers = stack.enter_context(Fleet(database, tmp_path, command, let_leases_run_out=of_tasks, ENDPOINT=place))
        for step in range(kills):
            first, end = events * step // kills, events * (step + 1) // kills
            for number in range(first, end, AT_ONCE):
                # A kill hits events in transit, because many become due with one commit.
                reached = len(service.arrivals)
                emit(range(number, min(number + AT_ONCE, end)))
            until(lambda at=reached: len(service.arrivals) > at or not waiting(), seconds=600)
            workers.kill()
            if step % max(1, kills // restarts) == 0:
                serving.close()
                other = serving.enter_context(endpoint(port=other.port))
                other.answer = service.receive
        until(lambda: not waiting(), seconds=3600)
        letters = database.store.dead_letters.list(limit=events)
        service.refuses = False
        arrived = list(service.arrivals)
        assert database.store.dead_letters.redrive_all() == len(letters)
        until(lambda: not waiting(), seconds=600)

    refused = {number for number in committed if is_refused(number)}
    assert service.effects() == sorted(committed), "each committed event once, and no other"
    assert len(letters) >= len(refused)
    for key in range(keys):
        mine = [number for number in arrived if number % keys == key]
        assert mine == sorted(mine), f"first deliveries of key-{key} are out of order"
    assert service.answers["refused"] >= len(refused)
    assert database.store.verify() == []
    print(f"HTTP on {database.name}: {figures(events, committed, refused, workers)}, {dict(service.answers)}")
