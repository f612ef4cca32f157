"""The parts that the transports for all brokers share: the checks of their configuration, and the steps that publish a
batch of events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..model.cloud_events import Body, CloudEvent
from ..model.transports import Outcome, Refused, Unsure
from .letters import Destination, Letter, check_body, check_client, check_destination, letters_of


class BrokerTransport(ABC):
    """A transport that is a frozen dataclass. Its connection is in its publisher."""

    _client_package: ClassVar[str]
    """The package with the broker's client."""
    _extra: ClassVar[str]
    """The extra of outboxq that installs the client."""
    _destination_field: ClassVar[str]
    """The name of the field that contains the destination."""
    prefix: ClassVar[str] = "ce_"
    """The prefix of the headers that contain attributes."""
    _publisher: Publisher[Any]

    @property
    @abstractmethod
    def body(self) -> Body | str: ...

    def __post_init__(self) -> None:
        """Raise ConfigurationError if the configuration cannot work or the broker's client is not installed."""
        check_client(self._client_package, self._extra, type(self).__name__)
        self._check()
        check_destination(self.destination, self._destination_field, str(self))
        check_body(self.body, str(self))
        object.__setattr__(self, "_publisher", self._new_publisher())

    def _check(self) -> None:  # noqa: B027 - not every broker has further settings
        """Raise ConfigurationError if one of the broker's own settings is wrong."""

    @abstractmethod
    def _new_publisher(self) -> Publisher[Any]: ...

    @property
    def destination(self) -> Destination:
        return getattr(self, self._destination_field)  # type: ignore[no-any-return]

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        """Publish the events, wait for the broker's answers until the deadline, and return one outcome for each event."""
        return self._publisher.publish(events, deadline)

    def close(self) -> None:
        """Close the connection that `publish` uses."""
        self._publisher.close()

    def clone(self) -> Self:
        """Return a transport for the same destination, with its own connection."""
        return replace(self)  # type: ignore[type-var]


TransportT = TypeVar("TransportT", bound=BrokerTransport)


class Publisher(ABC, Generic[TransportT]):
    """A transport's connection, which is opened when it is needed."""

    _link: Any = None
    """The connection; None if it is not open."""

    def __init__(self, place: TransportT) -> None:
        self._place = place

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        place = self._place
        outcomes: list[Outcome | None] = [None] * len(events)
        letters = letters_of(events, place.destination, place.body, place.prefix, outcomes)
        for letter in letters:
            if fault := self._fault_of(letter):
                outcomes[letter.number] = Refused(fault)
        left = [letter for letter in letters if outcomes[letter.number] is None]
        reason = self._send(left, outcomes, deadline) if left else ""
        # `outcomes` is copied first, because an answer may arrive late in another thread.
        found = [Unsure(reason) if one is None else one for one in list(outcomes)]
        if any(isinstance(one, Unsure) for one in found):
            self._discard()
        return found

    def _fault_of(self, letter: Letter) -> str:  # noqa: ARG002 - some brokers accept every letter
        """Return the reason why the broker cannot accept the letter, or ""."""
        return ""

    @abstractmethod
    def _send(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> str:
        """Send the letters, and record the outcomes that arrive by the deadline. Return the reason why the other
        outcomes are missing.
        """

    def close(self) -> None:
        """Close the connection. `publish` opens it again."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(Exception):
                link.close()

    def _discard(self) -> None:
        """Give up the connection after an event whose outcome is unsure. After a failover, the next connection may
        reach the new primary.
        """
        self.close()
