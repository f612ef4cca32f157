"""A transport that sometimes fails, and a source. Both record the events that pass through them."""

from __future__ import annotations

import json
import os
import pickle
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outboxq import CloudEvent, Unsure
from outboxq.model.transports import Message, Outcome, Source, SourceConnection, Transport


def is_refused(number: int) -> bool:
    """Return True for 1 in 100 events."""
    return number % 100 == 0


def read_place(path: Path) -> Any:
    """Return the transport or source that `tests.brokers.benches.write_place` wrote."""
    kind, fields = pickle.loads(path.read_bytes())
    return kind(**fields)


@dataclass(frozen=True)
class Route:
    """A destination that does not exist for the events that the broker must refuse."""

    place: str
    missing: str

    def __call__(self, event: CloudEvent) -> str:
        return self.missing if is_refused(number_of(event.data)) else self.place


class Faulty:
    """A transport that leaves 1 in 50 events unsure. Half of these have reached the broker."""

    def __init__(self, transport: Transport, folder: Path) -> None:
        self.transport, self.folder, self.chance = transport, folder, random.Random(f"{os.getpid()} {id(self)}")
        self.close = transport.close
        self._write = writer(folder / f"published-{os.getpid()}")

    def clone(self) -> Faulty:
        return Faulty(self.transport.clone(), self.folder)  # type: ignore[attr-defined]

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        luck = [self.chance.random() for _ in events]
        sent = [one for one, own in zip(events, luck, strict=True) if own >= 0.01]
        self._write(["sent", [number_of(one.data) for one in sent]])
        answers = iter(self.transport.publish(sent, deadline))
        outcomes: list[Outcome] = [
            Unsure("the request was lost") if own < 0.01 else next(answers) if own >= 0.02 else hide(next(answers))
            for own in luck
        ]
        told = {number_of(one.data): type(outcome).__name__ for one, outcome in zip(events, outcomes, strict=True)}
        self._write(["told", told])
        return outcomes


def hide(_: Outcome) -> Outcome:
    return Unsure("the answer was lost")


class Counting:
    """A source that records the number of each message that it delivers."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source, self.chance = source, random.Random(os.getpid())
        self._write = writer(folder / f"delivered-{os.getpid()}")

    def __str__(self) -> str:
        return str(self.source)

    def connect(self) -> SourceConnection:
        connection = self.source.connect()
        receive = connection.receive

        def receive_and_count(limit: int, deadline: float) -> Sequence[Message]:
            # With a random limit, a batch may end between the repetitions of two events.
            found = receive(self.chance.randint(1, limit), deadline)
            if found:
                self._write([json.loads(one.body)["data"]["number"] for one in found])
            return found

        connection.receive = receive_and_count  # type: ignore[method-assign]
        return connection


def number_of(data: str) -> int:
    return int(json.loads(data)["number"])


def writer(path: Path) -> Callable[[object], None]:
    """Return a function that appends the time and a value as a line. The line survives if the process is killed."""
    file = path.open("ab", buffering=0)

    def write(value: object) -> None:
        file.write(json.dumps([time.monotonic(), value]).encode() + b"\n")

    return write
