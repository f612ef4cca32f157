"""A relay to a broker as a process knows it: its declaration, and its connection."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from ..errors import EventRefused, PublishFailed
from ..model import TaskOptions
from ..model.cloud_events import CloudEvent
from ..model.relays import NewRelay
from ..model.transports import Confirmed, Refused, Transport


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokerConnection:
    """A transport with the lock of the thread that uses it."""

    transport: Transport = field(repr=False)
    lock: threading.Lock = field(repr=False)
    is_own: bool
    """True if no other shard and no other relay uses the transport."""

    def close(self) -> None:
        """Close the transport, unless others use it."""
        if self.is_own:
            with suppress(Exception):
                self.transport.close()


@dataclass(kw_only=True, eq=False)
class BrokerRelay:
    """A relay to a broker as this process knows it."""

    declared: NewRelay
    transport: Transport = field(repr=False)
    source: str
    timeout: timedelta
    options: TaskOptions
    """The options of its dead letters."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held by the thread that uses the transport."""

    def connection(self) -> BrokerConnection:
        """Return a connection of its own for a shard, if the transport can be cloned; otherwise the one that all share."""
        if (clone := getattr(self.transport, "clone", None)) is None:
            return BrokerConnection(transport=self.transport, lock=self.lock, is_own=False)
        return BrokerConnection(transport=clone(), lock=threading.Lock(), is_own=True)

    def publish_again(self, event: CloudEvent) -> None:
        """Publish one event whose dead letter was redriven. Raises EventRefused, or PublishFailed without an answer."""
        seconds = self.timeout.total_seconds()
        if not self.lock.acquire(timeout=seconds):
            raise PublishFailed(f"the connection of relay {self.declared.name!r} was in use for {seconds:g} s")
        try:
            [outcome] = self.transport.publish([event], time.monotonic() + seconds)
        finally:
            self.lock.release()
        if isinstance(outcome, Refused):
            raise EventRefused(outcome.reason)
        if not isinstance(outcome, Confirmed):
            raise PublishFailed(outcome.reason)
