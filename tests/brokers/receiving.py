"""A service that receives from a broker and is killed between its commit and the acknowledgement. A file sets the number of kills."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from outboxq import Outbox, configure_sqlite
from outboxq.model.transports import Message, Source, SourceConnection
from tests.brokers.faulty import read_place


class Deadly:
    """A source whose connection kills the process before each acknowledgement, while the file `deaths` is not empty."""

    def __init__(self, source: Source, deaths: Path) -> None:
        self.source, self.deaths = source, deaths

    def __str__(self) -> str:
        return str(self.source)

    def connect(self) -> SourceConnection:
        return DeadlyConnection(self.source.connect(), self.deaths)


class DeadlyConnection:
    def __init__(self, connection: SourceConnection, deaths: Path) -> None:
        self.connection, self.deaths = connection, deaths
        self.receive, self.close = connection.receive, connection.close

    def acknowledge(self, messages: Sequence[Message]) -> None:
        if left := self.deaths.read_text():
            self.deaths.write_text(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        self.connection.acknowledge(messages)


def service(folder: Path, source: Source) -> tuple[Outbox, list[Any]]:
    """Return the service's outbox, and a list of the payloads that this process has handled."""
    outbox = Outbox(configure_sqlite(create_engine(f"sqlite:///{folder / 'service.db'}")))
    handled: list[Any] = []

    @outbox.receive("*", source=source, name="book")
    def book(payload: object) -> None:
        handled.append(payload)

    return outbox, handled


if __name__ == "__main__":
    home = Path(sys.argv[1])
    made, _ = service(home, Deadly(read_place(home / "source"), home / "deaths"))
    queues = ["another"] if (home / "deaths").read_text() else None  # a dead worker's task waits for its lease
    made.worker(concurrency=1, notifications=False, queues=queues).run()
