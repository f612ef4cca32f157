"""An in-memory broker for tests, and a sender that tests run step by step."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from uuid import uuid4

from outboxq import CloudEvent, Confirmed, Outbox, Refused, Unsure
from outboxq.model.transports import Outcome
from outboxq.worker.relays.sender import Sender
from tests.conftest import Database

Answer = Callable[[CloudEvent], Outcome]


def lost(_: CloudEvent) -> Outcome:
    """The event did not reach the broker."""
    return Unsure("connection lost")


def refused(_: CloudEvent) -> Outcome:
    return Refused("too large")


@dataclass(eq=False)
class Broker:
    """A transport to an in-memory broker. A test chooses answers for payloads; the broker stores all other events."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    """For each payload, the functions that answer the next calls, in order."""
    is_away: bool = False
    stored: list[CloudEvent] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    """The payloads of each call."""
    poison: str | None = None
    """The payload of an event that makes every call raise an error."""
    before: Callable[[], object] = lambda: None
    """Called at the beginning of each call."""
    closed: int = 0

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        del deadline
        self.calls.append([one.data for one in events])
        self.before()
        if self.is_away:
            raise ConnectionError("no broker")
        if any(one.data == self.poison for one in events):
            raise ValueError("cannot be encoded")
        return [self._answer(one) for one in events]

    def close(self) -> None:
        self.closed += 1

    def _answer(self, event: CloudEvent) -> Outcome:
        if self.answers[event.data]:
            return self.answers[event.data].pop(0)(event)
        return self.store(event)

    def store(self, event: CloudEvent) -> Outcome:
        self.stored.append(event)
        return Confirmed()

    def stored_but_unsure(self, event: CloudEvent) -> Outcome:
        self.stored.append(event)
        return Unsure("the answer was lost")

    @property
    def payloads(self) -> list[str]:
        return [one.data for one in self.stored]

    def first_of(self, key: str | None) -> list[str]:
        """Return the payloads of a key, in the order of their first deliveries."""
        return list(dict.fromkeys(one.data for one in self.stored if one.partition_key == key))


@dataclass(eq=False)
class Cloneable(Broker):
    """A broker with a connection for each shard. The clones share the stored events and the chosen answers."""

    clones: list[Cloneable] = field(default_factory=list)

    def clone(self) -> Cloneable:
        one = copy(self)
        self.clones.append(one)
        return one


class _NoStop(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


class _NoWaiting:
    """A replacement for the senders' waiting, because the test decides when the sender runs."""

    listening = 0

    def start(self) -> None: ...

    def wait(self, relay: str, seconds: float) -> None: ...

    def close(self) -> None: ...


class Steps(Sender):
    """A sender without a thread, on the test's clock."""

    def __init__(self, database: Database, outbox: Outbox, name: str = "orders", *, burst: bool = False) -> None:
        self.worker_id = uuid4()
        self.failures: list[BaseException] = []
        self.relay = copy(outbox.tasks.relays[name])
        self.relay.lock = threading.Lock()  # as in another process
        super().__init__(
            database.frozen,
            self.relay,
            _NoWaiting(),
            worker_id=self.worker_id,
            stopping=_NoStop(),
            on_thread_failure=self.failures.append,
            burst=burst,
            clock=lambda: database.clock().timestamp(),
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._store.relays.renew(self.worker_id, self.live_leases())  # as the heartbeat does
            self.run_once()

    def take_all(self) -> Steps:
        """Lease every shard, and return the sender."""
        while len(self._shards) < self._number:
            self._take_at = 0.0
            self._take()
        return self

    @property
    def shards(self) -> list[int]:
        return sorted(self._shards)
