"""Events sent to a broker while relay processes are killed and the broker restarts, fails and refuses some events.

The receiver has its own database with an inbox. At the end, it must have each committed event and no other. Each event has its effect
once, and its first delivery comes after those of the earlier events with the same key.
"""

from __future__ import annotations

import json
import random
import socket
import socketserver
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outboxq import Outbox, configure_sqlite
from tests.conftest import Database
from tests.faults import relay_app
from tests.fleet import Fleet, Member, figures, of_relays, unsettled
from tests.waiting import until

pytestmark = pytest.mark.in_turn
AT_ONCE = 25
"""The number of events in one transaction."""


def is_refused(number: int) -> bool:
    return number % 100 == 0


@dataclass
class Broker:
    """A broker in threads of this process, together with its receiver."""

    path: Path
    chance: random.Random
    refuses: bool = True
    arrivals: list[int] = field(default_factory=list)
    """The numbers of the events, in the order of their first deliveries."""
    answers: Counter[str] = field(default_factory=Counter)
    excused: set[int] = field(default_factory=set)
    """The numbers of the events that may arrive again because of a fault."""
    unexcused: list[int] = field(default_factory=list)
    """The numbers of the events that arrived again without a fault."""
    port: int = 0

    def __post_init__(self) -> None:
        self.engine = configure_sqlite(create_engine(f"sqlite:///{self.path}"))
        self.outbox = Outbox(self.engine)
        self.outbox.upgrade()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (number INTEGER)"))
        self._lock = threading.Lock()
        self._server: socketserver.ThreadingTCPServer | None = None
        self.open: dict[socket.socket, int | None] = {}
        """The connections whose last line may not be stored yet, with the pids of the processes that opened them."""

    def start(self) -> None:
        broker = self

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                broker.open[self.connection] = None
                try:
                    with suppress(OSError, ValueError):
                        while line := self.rfile.readline():
                            broker.open[self.connection], events = json.loads(line)
                            answers = [broker.answer(*one) for one in events]
                            self.wfile.write(json.dumps(answers).encode() + b"\n")
                finally:
                    broker.open.pop(self.connection)

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Break all connections, and accept no new ones."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for one in list(self.open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        until(lambda: not self.open)

    def excuse(self, database: Database) -> None:
        """Remember the events that the broker has stored but that a relay process may not have deleted."""
        self.excused |= unsettled(database) & set(self.arrivals)

    def answer(self, identity: str, data: str) -> str:
        """Return an answer, and store the event for the receiver unless it is refused or lost."""
        number = json.loads(data)["number"]
        with self._lock:
            luck = self.chance.random()
            if self.refuses and is_refused(number):
                return self._count("refused", "refused")
            if luck < 0.01:
                return self._count("lost", "unsure")
            with self.engine.begin() as connection:
                if self.outbox.inbox.accept("crm", identity, source="shop", using=connection):
                    connection.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})
                    self.arrivals.append(number)
                else:
                    self._count("duplicate", "")
                    self.unexcused += {number} - self.excused
            if luck < 0.02:
                self.excused.add(number)
                return self._count("stored, but unsure", "unsure")
            return "confirmed"

    def effects(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT number FROM effects ORDER BY number")).scalars())

    def _count(self, what: str, answer: str) -> str:
        self.answers[what] += 1
        return answer


@pytest.mark.parametrize(
    ("events", "keys", "kills", "restarts"),
    [
        (200, 20, 2, 1),
        pytest.param(20_000, 200, 50, 5, marks=[pytest.mark.campaign, pytest.mark.timeout(7200)]),
    ],
    ids=["few", "campaign"],
)
def test_committed_events_arrive_in_order_for_each_key(
    database: Database, tmp_path: Path, events: int, keys: int, kills: int, restarts: int
) -> None:
    chance = random.Random(events)
    broker = Broker(tmp_path / "theirs.db", chance=random.Random(7))
    database.own(broker.engine)
    sender, committed = Outbox(database.host), set[int]()
    database.store.relays.declare([relay_app.outbox.tasks.relays["orders"].declared])
    database.store.subscriptions.replace(relay_app.outbox.subscriptions)

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
        return int(str(database.rows("SELECT count(*) FROM relay_messages")[0][0]))

    broker.start()

    def bury(database: Database, gone: Member) -> None:
        until(lambda: not {None, gone.pid} & {*broker.open.values()})  # everything that it sent is stored
        broker.excuse(database)
        of_relays(database, gone)

    command = ["relay", "run", "tests.faults.relay_app:outbox"]
    relays = Fleet(database, tmp_path, command, let_leases_run_out=bury, BROKER_PORT=str(broker.port))
    with ExitStack() as stack:
        stack.callback(broker.stop)
        stack.enter_context(relays)
        for step in range(kills):
            first, end = events * step // kills, events * (step + 1) // kills
            reached = len(broker.arrivals)
            for number in range(first, end, AT_ONCE):
                emit(range(number, min(number + AT_ONCE, end)))
            until(lambda at=reached: len(broker.arrivals) > at or not waiting(), seconds=600)  # type: ignore[misc]
            relays.kill()
            if step % max(1, kills // restarts) == 0:
                broker.stop()
                broker.excuse(database)
                broker.start()
        until(lambda: not waiting(), seconds=3600)

    refused = {number for number in committed if is_refused(number)}
    assert broker.effects() == sorted(committed - refused), "each committed event once, and no other"
    for key in range(keys):
        mine = [number for number in broker.arrivals if number % keys == key]
        assert mine == sorted(mine), f"first deliveries of key-{key} are out of order"
    assert broker.unexcused == [], "events arrived again without a fault"
    assert len(database.store.dead_letters.list(limit=events)) == len(refused)
    assert database.store.verify() == []
    print(f"in memory on {database.name}: {figures(events, committed, refused, relays)}, {dict(broker.answers)}")
