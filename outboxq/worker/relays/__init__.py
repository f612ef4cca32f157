"""The senders of relays to brokers: one thread for each relay, and one that extends their leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import Engine

from ...database.engine import close
from ...store import Store
from ...task.broker_relay import BrokerRelay
from ..timeouts import join
from ..upkeep import ServiceThread
from .sender import Sender
from .waiting import waiting_for

_HEARTBEAT = 3.0
"""Seconds between two extensions of the leases, a third of a lease."""


class Senders:
    """Sends the messages of some relays, and shares their shards with the senders of other processes."""

    def __init__(
        self,
        store: Store,
        relays: Collection[BrokerRelay],
        *,
        worker_id: UUID | None = None,
        notifications: bool = True,
        listen_url: str | None = None,
        commits_of: Engine | None = None,
        on_thread_failure: Callable[[BaseException], None],
        burst: bool = False,
    ) -> None:
        """Prepare the senders. With `burst`, each of them ends when it finds nothing to publish."""
        self._gone = threading.Event()
        self._stopping = threading.Event()
        self.id = worker_id or uuid4()
        self._store = store.reserved(self._gone)
        self._waiting = waiting_for(
            self._store,
            [one.declared.name for one in relays],
            notifications=notifications,
            listen_url=listen_url,
            commits_of=commits_of,
        )
        self.senders = [
            Sender(
                self._store,
                one,
                self._waiting,
                worker_id=self.id,
                stopping=self._stopping,
                on_thread_failure=on_thread_failure,
                burst=burst,
            )
            for one in relays
        ]
        self._heartbeat = ServiceThread("relay-heartbeat", self, on_thread_failure)
        self._has_begun = False

    def start(self) -> None:
        self._has_begun = True
        self._waiting.start()
        self._heartbeat.start()
        for one in self.senders:
            one.start()

    def run_once(self) -> None:
        """Extend the leases, except those of senders whose transport does not return."""
        leases = [lease for one in self.senders for lease in one.live_leases()]
        if leases:
            self._store.relays.renew(self.id, leases)

    def pause(self) -> float:
        return _HEARTBEAT

    @property
    def have_ended(self) -> bool:
        """True if all senders have ended, which they do in a burst."""
        return not any(one.is_alive() for one in self.senders)

    def request_stop(self) -> None:
        """Make the senders end after the batch that they are publishing."""
        self._stopping.set()
        self._waiting.close()

    def stop(self, timeout: timedelta) -> bool:
        """Stop the senders, and return whether all of them have ended in time."""
        self.request_stop()
        if self._has_begun:
            end = time.monotonic() + timeout.total_seconds()
            for one in self.senders:
                join(one, max(0.0, end - time.monotonic()))
            self._heartbeat.stop()
            join(self._heartbeat, 1.0)
        self._gone.set()
        close(self._store.bound_engine)
        return self.have_ended
