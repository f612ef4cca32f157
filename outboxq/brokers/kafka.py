"""Kafka: publish with an idempotent producer, and receive with a consumer group."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..model.cloud_events import Body
from ..model.transports import Confirmed, Message, Outcome, Refused, SourceConnection, Unsure
from ..model.unknown_options import naming_fields
from .letters import Destination, Letter, reason_of
from .transport import BrokerTransport, Publisher

if TYPE_CHECKING:
    import confluent_kafka

log = logging.getLogger("confluent_kafka")

_CLOSE_TIMEOUT = 2.0
_OWN = frozenset({"bootstrap.servers", "enable.idempotence", "acks", "group.id", "enable.auto.commit"})
"""The librdkafka settings that this module sets."""
_DEFAULTS = {
    "partitioner": "murmur2_random",  # this puts a key into the same partition as the Java client does
    # librdkafka waits 30 s before it reports an unknown topic. Relays give a batch 10 s.
    "topic.metadata.propagation.max.ms": 3000,
}
"""Producer settings that `options` may override."""
_REFUSALS = frozenset(
    {"INVALID_MSG", "INVALID_RECORD", "MSG_SIZE_TOO_LARGE", "TOPIC_EXCEPTION"}
    | {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"}
)
"""The names of the errors that would recur on every attempt."""


@naming_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class Kafka(BrokerTransport):
    """A Kafka cluster: topics that relays publish to, or a topic that a consumer group receives from.

    A message's key is the event's partition key. An event is confirmed when all in-sync replicas have it. An event that
    is too large or has no topic is refused.
    """

    _client_package, _extra, _destination_field = "confluent_kafka", "kafka", "topic"
    servers: str
    """The broker addresses: ``host:9092,host:9092``."""
    topic: Destination = "{topic}"
    """The topic in Kafka, in which ``{topic}`` stands for the event's topic, or a function that returns the Kafka topic
    for an event.
    """
    group: str | None = None
    """The consumer group to receive with. A new group begins with the oldest message."""
    body: Body | str = Body.CLOUDEVENT
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # they may contain a password
    """More librdkafka settings, such as ``{"security.protocol": "SASL_SSL", "sasl.password": …}``."""

    def _check(self) -> None:
        if not str(self.servers).strip() or "@" in str(self.servers):
            raise ConfigurationError("Kafka needs servers such as 'host:9092,host:9092'")
        if own := sorted(_OWN & set(self.options)):
            raise ConfigurationError(f"options for {self} cannot set {', '.join(own)}")

    def _new_publisher(self) -> _Publisher:
        return _Publisher(self)

    def __str__(self) -> str:
        name = f"the Kafka topic {self.topic!r}" if isinstance(self.topic, str) else "the Kafka topic of each event"
        return f"{name} at {self.servers}"

    def connect(self) -> SourceConnection:
        """Return a new consumer for the topic."""
        if self.group is None or not isinstance(self.topic, str) or "{topic}" in self.topic:
            raise ConfigurationError(f"cannot receive from {self}; write Kafka(…, topic='NAME', group='GROUP')")
        return _Consumer(self, self.topic, self.group)

    def settings(self, **own: Any) -> dict[str, Any]:
        """Return the settings for a client."""
        return {"bootstrap.servers": self.servers, "client.id": "outboxq", "logger": log, **self.options, **own}


class _Publisher(Publisher[Kafka]):
    """A transport's producer, which is created when it is needed."""

    _producer: confluent_kafka.Producer | None = None
    _fault = ""
    """The last connection error."""
    _one_by_one = False
    """True if a broker has refused a message as too large. The broker then refuses all messages that were sent together
    with that one.
    """

    def _send(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> str:
        self._fault = ""
        groups = [[letter] for letter in letters] if self._one_by_one else [letters]
        was_one_by_one, published = self._one_by_one, 0
        for group in groups:
            if deadline > time.monotonic():
                self._produce(group, outcomes, deadline)
                published += len(group)
        if was_one_by_one and published > 1:  # a single event may be only a part of the refused batch
            self._one_by_one = False
        return self._fault or "the broker did not answer in time"

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(_CLOSE_TIMEOUT)
        self._discard()

    def _discard(self) -> None:
        """Discard the producer and its unsent messages. An idempotent producer cannot skip a message."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.poll(0)

    def _produce(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> None:
        import confluent_kafka

        if self._producer is None:
            settings = {"enable.idempotence": True, "acks": "all", "error_cb": self._on_error}
            self._producer = confluent_kafka.Producer({**_DEFAULTS, **self._place.settings(**settings)})
        producer = self._producer
        refused: list[Letter] = []
        """The letters that a broker has refused as too large."""
        for letter in letters:
            self._produce_one(producer, letter, outcomes, deadline, refused)
        producer.flush(max(0.0, deadline - time.monotonic()))
        if len(refused) > 1 or (refused and len(letters) > 1):
            self._one_by_one = True
            for letter in refused:
                outcomes[letter.number] = Unsure("the event, or another event that was sent with it, is too large")

    def _produce_one(
        self,
        producer: confluent_kafka.Producer,
        letter: Letter,
        outcomes: list[Outcome | None],
        deadline: float,
        refused: list[Letter],
    ) -> None:
        import confluent_kafka

        def report(error: Any, _: Any) -> None:
            outcomes[letter.number] = Confirmed() if error is None else _judged(error)
            if error is not None and error.name() == "MSG_SIZE_TOO_LARGE":
                refused.append(letter)

        event = letter.event
        key = event.partition_key
        headers = {"content-type": letter.content_type, **letter.headers}
        produce = partial(
            producer.produce,
            letter.to,
            value=letter.body,
            key=None if key is None else key.encode(),
            headers=[(name, value.encode()) for name, value in headers.items()],
            timestamp=int(event.time.timestamp() * 1000),
            on_delivery=report,
        )
        while True:
            try:
                return produce()
            except BufferError:  # the producer's queue is full until the broker has answered
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                producer.poll(left)
            except confluent_kafka.KafkaException as error:
                outcomes[letter.number] = _judged(error.args[0])
                return None

    def _on_error(self, error: Any) -> None:
        self._fault = reason_of(error)


def _judged(error: Any) -> Outcome:
    reason = reason_of(f"{error.name()}: {error.str()}")
    return Refused(reason) if error.name() in _REFUSALS else Unsure(reason)


class _Consumer:
    """A member of a consumer group."""

    def __init__(self, place: Kafka, topic: str, group: str) -> None:
        import confluent_kafka

        own = {"group.id": group, "enable.auto.commit": False}
        settings = {"auto.offset.reset": "earliest", **place.settings(**own)}
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe([topic])

    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        first = self._consumer.poll(max(0.0, deadline - time.monotonic()))
        if first is None:
            return []
        others = self._consumer.consume(limit - 1, 0.01) if limit > 1 else ()
        return [self._message(one) for one in (first, *others)]

    def acknowledge(self, messages: Sequence[Message]) -> None:
        import confluent_kafka

        last: dict[Any, Any] = {one.tag[:2]: one.tag for one in messages}
        offsets = [confluent_kafka.TopicPartition(topic, number, at + 1) for topic, number, at in last.values()]
        if offsets:
            for done in self._consumer.commit(offsets=offsets, asynchronous=False) or ():
                if done.error is not None:
                    raise ConnectionError(f"the offset was not stored: {reason_of(done.error)}")

    def close(self) -> None:
        with suppress(Exception):
            self._consumer.close()

    def _message(self, one: Any) -> Message:
        if (error := one.error()) is not None:
            raise ConnectionError(reason_of(error))
        headers = {name: value.decode(errors="backslashreplace") for name, value in one.headers() or () if value}
        tag = one.topic(), one.partition(), one.offset()
        return Message(
            body=one.value() or b"",
            headers=headers,
            # The time distinguishes the messages of a topic that was deleted and created again, with offsets from 0.
            id="/".join(map(str, (*tag, one.timestamp()[1]))),
            type=one.topic(),
            source=one.topic(),
            tag=tag,
        )
