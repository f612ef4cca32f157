"""The connection to a message broker: what a transport of any broker offers. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .cloud_events import CloudEvent


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has stored the event."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker will never accept the event: it is too large, it cannot be routed, or it is malformed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """It is unknown whether the broker has the event: the connection broke, or no answer came before the deadline."""

    reason: str


Outcome = Confirmed | Refused | Unsure


class Transport(Protocol):
    """A connection to a broker, such as `RabbitMQ`. Your own class may be one. One thread at a time uses it."""

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        """Publish the events in their order, wait for the broker's answers, and return one outcome for each event.

        The transport connects when it is first used, and again after it lost the connection. `deadline` is a moment of
        `time.monotonic()`: an event without an answer by then is `Unsure`. An exception counts as `Unsure` for all events.
        """

    def close(self) -> None:
        """Close the connection. The transport may be used again afterwards."""
