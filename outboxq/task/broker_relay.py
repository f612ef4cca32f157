"""A relay to a broker as a process knows it: its declaration, and its connection."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

from ..errors import EventRefused, PublishFailed
from ..model import TaskOptions
from ..model.cloud_events import CloudEvent
from ..model.relays import NewRelay
from ..model.transports import Confirmed, Refused, Transport


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
