"""The interfaces for connections to message brokers: for publishing events and for receiving messages. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .cloud_events import CloudEvent


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has stored the event."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker will never accept the event, because it is too large, cannot be routed, or is malformed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """It is unknown whether the broker has the event, because the connection broke or no answer arrived before the
    deadline.
    """

    reason: str


Outcome = Confirmed | Refused | Unsure


class Transport(Protocol):
    """A connection to a broker, such as `RabbitMQ`. You can also write your own transport class. A transport is used
    by only one thread at a time.

    If a transport also has a `clone()` method, which returns a transport with a separate connection, a process
    publishes its relay shards in parallel, each through its own clone. Otherwise, the shards take turns.
    """

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        """Publish the events in order, wait for the broker's answers, and return one outcome for each event.

        The transport connects when it is first used, and again after it has lost the connection. `deadline` is a value
        of `time.monotonic()`: an event for which no answer has arrived by then is `Unsure`. An exception counts as
        `Unsure` for all events.
        """

    def close(self) -> None:
        """Close the connection. The transport may be used again afterwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message that a broker has delivered."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers that the broker delivered. The names of CloudEvents attributes begin with ``ce_``."""
    id: str | None = None
    """The id that the message keeps when it is delivered again. It is used if the message is not a CloudEvent."""
    type: str | None = None
    """The kind of the message, such as its routing key. Like the id, it is used if the message is not a CloudEvent."""
    source: str = ""
    """The place from which the message comes. Like the id, it is used if the message is not a CloudEvent."""
    tag: Any = field(default=None, repr=False)
    """The value with which the connection acknowledges the message."""


class SourceConnection(Protocol):
    """A connection that receives messages, used by one thread. Any method may raise any exception if the connection is
    lost.
    """

    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        """Return up to `limit` messages as soon as there are any. If there are none by `deadline` (`time.monotonic()`),
        return an empty sequence.
        """

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Tell the broker not to redeliver the messages. They are the oldest of the unacknowledged messages that
        `receive` has returned.
        """

    def close(self) -> None:
        """Close the connection. The broker then redelivers messages that were not acknowledged."""


class Source(Protocol):
    """A place in a broker that messages come from, such as a `RabbitMQ` with a queue. You can also write your own
    source class.
    """

    def connect(self) -> SourceConnection:
        """Return a new connection. This method may raise any exception if the broker cannot be reached."""
