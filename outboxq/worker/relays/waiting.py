"""Wait for relay messages: on PostgreSQL through notifications, and on SQLite by watching the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol
from uuid import uuid4

from sqlalchemy import Engine

from ...database.dialects.channel import RELAYED
from ...store import Store
from ..distributor.base import Wakeup
from ..distributor.sqlite import FileWatch


class Waiting(Protocol):
    """Waits for the messages of several relays, each in a separate thread."""

    @property
    def listening(self) -> int:
        """The number of the listening connection; 0 if senders are not notified. If this number has changed,
        notifications may have been missed.
        """

    def start(self) -> None: ...

    def wait(self, relay: str, seconds: float) -> None:
        """Wait until messages for the relay may be available, this many seconds have passed, or `close` is called."""

    def close(self) -> None:
        """Wake all threads. From then on, `wait` returns immediately."""


class NotifiedWaiting:
    """Listens on one connection for all relays in the process (PostgreSQL)."""

    def __init__(self, store: Store, relays: Collection[str], *, notifications: bool, listen_url: str | None) -> None:
        from ..distributor.listener import Listener  # imported here because it imports psycopg

        self._wakeups: Mapping[str, Wakeup] = {name: Wakeup() for name in relays}
        self._notifications = notifications
        self._listener = Listener.of(store, listen_url, on_notify=self._on_notify, on_change=self._wake_all)

    @property
    def listening(self) -> int:
        return self._listener.connections if self._listener.health.listening else 0

    def start(self) -> None:
        if self._notifications and self._listener.ident is None:
            self._listener.start()

    def wait(self, relay: str, seconds: float) -> None:
        self._wakeups[relay].wait(seconds)

    def close(self) -> None:
        for one in self._wakeups.values():
            one.close()
        self._listener.close()

    def _on_notify(self, payload: str) -> None:
        head, _, relay = payload.partition(" ")
        if head == RELAYED and relay in self._wakeups:
            self._wakeups[relay].notify()

    def _wake_all(self) -> None:
        for one in self._wakeups.values():
            one.notify()


class FileWaiting:
    """Watches the SQLite file, once for each relay."""

    listening = 0

    def __init__(
        self, store: Store, relays: Collection[str], *, notifications: bool, commits_of: Engine | None
    ) -> None:
        self._watches = {
            name: FileWatch(store, queues=None, worker_id=uuid4(), notifications=notifications, commits_of=commits_of)
            for name in relays
        }

    def start(self) -> None:
        for one in self._watches.values():
            one.start()

    def wait(self, relay: str, seconds: float) -> None:
        self._watches[relay].wait_for_work(seconds)

    def close(self) -> None:
        for one in self._watches.values():
            one.close()
