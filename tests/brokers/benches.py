"""The benches on which the tests of transports run: for each broker, a place, a transport to it, and the messages that arrived there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import boto3
import nats
import pika
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from nats.js.api import ConsumerConfig

from outboxq.brokers import Kafka, NatsJetStream, RabbitMQ, RedisStreams, Sns, Sqs
from outboxq.model.cloud_events import CloudEvent
from outboxq.model.transports import Source, Transport
from tests.brokers.faulty import Route
from tests.brokers.servers import SECRET, AwsServer, KafkaServer, NatsServer, RabbitMQServer, RedisServer, Server


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A message as the broker's own client library receives it."""

    body: str
    id: str | None
    headers: Mapping[str, str] = field(default_factory=dict)


SHORT = timedelta(seconds=1)
"""The time after which a broker redelivers messages that a dead consumer has received."""


class Bench(ABC):
    """A separate place in a broker for one test."""

    server_type: ClassVar[type[Server]]
    wrong_secret_is_refused = True
    destination: ClassVar[str]
    """The transport's argument for a destination, which can be a function of the event."""
    prefix = "ce_"
    count = 300
    """The number of events in tests that publish many."""
    missing: ClassVar[str]
    """The name of a destination that does not exist."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.cable = server.cable
        self.place = f"orders-{uuid4().hex[:12]}"
        """The topic of the events, which is also the name of the place."""
        self.again_after = SHORT
        """The time after which the broker redelivers a message, if `prepare` sets it."""
        self._ends = contextlib.ExitStack()

    @abstractmethod
    def prepare(self) -> None:
        """Create the place."""

    @abstractmethod
    def transport(self, *, secret: str = SECRET, **options: Any) -> Transport:
        """Return a transport to the place, through the cable."""

    @abstractmethod
    def source(self) -> Source:
        """Return the place as a source, through the cable."""

    def routed(self) -> Transport:
        """Return a transport to the place. The broker refuses every hundredth event: see `Route`."""
        return self.transport(**{self.destination: Route(self.address(self.place), self.missing)})

    def stored(self) -> list[str]:
        """Return the body of each message that a routed transport has stored. Call this method only once."""
        return [one.body for one in self.arrived()]

    def deliver_again_soon(self) -> None:  # noqa: B027 - most brokers do not wait
        """Make the broker wait only `SHORT` before it redelivers a message."""

    def keep_order(self) -> None:  # noqa: B027 - most brokers keep the order
        """Make the broker redeliver a message before it delivers later ones."""

    def pickle_source(self, path: Path) -> None:
        """Write a file from which another process can create the same source."""
        write_place(path, self.source())

    @abstractmethod
    def arrived(self) -> list[Arrived]:
        """Return all messages in the place."""

    @abstractmethod
    def send(self, body: str, *, message_id: str | None = None) -> None:
        """Send a message to the place, as another program would."""

    def unsendable(self) -> CloudEvent:
        """Return an event that the broker never accepts."""
        return self.event(type=self.missing)

    @abstractmethod
    def too_large(self) -> CloudEvent: ...

    def address(self, topic: str) -> str:
        """Return the destination for a topic, which is also another place's name."""
        return topic

    def event(self, data: str = "null", **fields: Any) -> CloudEvent:
        fields = {"id": uuid4(), "source": "shop", "type": self.place, "time": datetime.now(UTC), **fields}
        return CloudEvent(data=data, **fields)

    def events(self, count: int) -> list[CloudEvent]:
        return [self.event(str(number), partition_key=f"key{number % 7}") for number in range(count)]

    def close(self) -> None:
        self._ends.close()


class RabbitMQBench(Bench):
    server_type = RabbitMQServer
    destination, prefix = "routing_key", "cloudEvents_"
    missing = "a-queue-that-is-missing"

    def prepare(self) -> None:
        self._channel = self._connected()
        self._channel.queue_declare(self.place, durable=True)

    def _connected(self) -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(self.server.direct))
        self._ends.callback(_close, connection)
        return connection.channel()

    def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Create another queue."""
        self._channel.queue_declare(queue, exclusive=True, arguments=dict(arguments))

    def _url(self, secret: str = SECRET) -> str:
        return f"amqp://outboxq:{secret}@127.0.0.1:{self.cable.port}/?heartbeat=30"

    def transport(self, *, secret: str = SECRET, **options: Any) -> Transport:
        return RabbitMQ(url=self._url(secret), **options)

    def source(self) -> Source:
        return RabbitMQ(url=self._url(), queue=self.place)

    def routed(self) -> Transport:
        """Return a transport to an exchange that also fills a second queue, from which no consumer receives."""
        self._channel.exchange_declare(self.place, "direct", durable=True)
        for queue in (self.place, f"{self.place}-copy"):
            self._channel.queue_declare(queue, durable=True)
            self._channel.queue_bind(queue, self.place, self.place)
        return self.transport(exchange=self.place, routing_key=Route(self.place, self.missing))

    def stored(self) -> list[str]:
        self._channel = self._connected()  # the broker has crashed in the meantime
        return [one.body for one in self._arrived(f"{self.place}-copy")]

    def arrived(self) -> list[Arrived]:
        return self._arrived(self.place)

    def _arrived(self, queue: str) -> list[Arrived]:
        found = []
        while True:
            got, properties, body = self._channel.basic_get(queue, auto_ack=True)
            if got is None:
                return found
            assert properties.delivery_mode == 2
            found.append(Arrived(body=body.decode(), id=properties.message_id, headers=properties.headers))

    def send(self, body: str, *, message_id: str | None = None) -> None:
        self._channel.basic_publish("", self.place, body.encode(), pika.BasicProperties(message_id=message_id))

    def too_large(self) -> CloudEvent:
        return self.event('"' + "x" * self.server.max_message_size + '"')


def _close(connection: pika.BlockingConnection) -> None:
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


class RedisBench(Bench):
    server_type = RedisServer
    destination = "stream"
    missing = "a-key-that-is-not-a-stream"

    def prepare(self) -> None:
        self._client = redis.Redis.from_url(self.server.direct)
        self._ends.callback(self._client.close)
        self._client.set(self.missing, "")

    def command(self, *words: str) -> Any:
        """Send a command to the server."""
        return self._client.execute_command(*words)

    def _url(self, secret: str = SECRET) -> str:
        return f"redis://:{secret}@127.0.0.1:{self.cable.port}/0"

    def transport(self, *, secret: str = SECRET, **options: Any) -> Transport:
        return RedisStreams(url=self._url(secret), **options)

    def source(self) -> Source:
        return RedisStreams(url=self._url(), stream=self.place, group="billing", claim_after=self.again_after)

    def arrived(self) -> list[Arrived]:
        found = []
        for _, fields in self._client.xrange(self.place):
            texts = {name.decode(): value.decode() for name, value in fields.items()}
            headers = {name.removeprefix("header:"): value for name, value in texts.items() if name != "body"}
            found.append(Arrived(body=texts["body"], id=None, headers=headers))
        return found

    def send(self, body: str, *, message_id: str | None = None) -> None:
        self._client.xadd(self.place, {"body": body})

    def too_large(self) -> CloudEvent:
        return self.event('"' + "x" * (8 << 20) + '"')


class KafkaBench(Bench):
    server_type = KafkaServer
    destination = "topic"
    missing = "not a topic"
    wrong_secret_is_refused = False

    def prepare(self) -> None:
        self._address = f"127.0.0.1:{self.cable.port}"
        admin = AdminClient({"bootstrap.servers": self._address})
        for made in admin.create_topics([NewTopic(self.place, 1, 1)]).values():
            made.result(60)

    def transport(self, *, secret: str = SECRET, **options: Any) -> Transport:
        # Tansu does not check the password. The test checks that this setting stays secret.
        return Kafka(servers=self._address, **{"options": {"ssl.key.password": secret, **QUICK}, **options})

    def source(self) -> Source:
        return Kafka(servers=self._address, topic=self.place, group="billing", options={**QUICK, **MEMBER})

    def arrived(self) -> list[Arrived]:
        settings = {"bootstrap.servers": self._address, "group.id": uuid4().hex, "enable.auto.commit": False}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        consumer.assign([TopicPartition(self.place, 0, 0)])
        found: list[Arrived] = []
        while (one := consumer.poll(60)) is not None and (error := one.error()) is None:
            headers = {name: value.decode() for name, value in one.headers() or ()}
            found.append(Arrived(body=one.value().decode(), id=None, headers=headers))
        assert one is not None
        assert error.name() == "_PARTITION_EOF", error
        consumer.close()
        return found

    def send(self, body: str, *, message_id: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self._address})
        producer.produce(self.place, body.encode())
        assert producer.flush(60) == 0

    def too_large(self) -> CloudEvent:
        return self.event('"' + "x" * 1_000_000 + '"')


MEMBER = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 300}
"""Settings with which Tansu lets a consumer join within a second."""
QUICK = {"reconnect.backoff.max.ms": 100, "socket.connection.setup.timeout.ms": 5000}
"""Settings with which librdkafka retries quickly."""


class NatsBench(Bench):
    server_type = NatsServer
    destination, prefix = "subject", "ce-"
    missing = "a-subject-without-a-stream"

    def prepare(self) -> None:
        self._run(lambda context: context.add_stream(name=self.place, subjects=[self.place]))
        self.configure()

    def keep_order(self) -> None:
        self.configure(max_ack_pending=1)

    def configure(self, **options: Any) -> None:
        wait = self.again_after.total_seconds()
        config = ConsumerConfig(durable_name="billing", ack_wait=wait, **options)
        self._run(lambda context: context.add_consumer(self.place, config))

    def limit(self, **limits: Any) -> None:
        """Give the stream these limits."""
        self._run(lambda context: context.update_stream(name=self.place, subjects=[self.place], **limits))

    def _run(self, work: Any) -> Any:
        async def run() -> Any:
            client = await nats.connect(self.server.direct)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())

    def _url(self, secret: str = SECRET) -> str:
        return f"nats://outboxq:{secret}@127.0.0.1:{self.cable.port}"

    def transport(self, *, secret: str = SECRET, **options: Any) -> Transport:
        return NatsJetStream(servers=self._url(secret), **options)

    def source(self) -> Source:
        return NatsJetStream(servers=self._url(), stream=self.place, durable="billing")

    def arrived(self) -> list[Arrived]:
        async def read(context: Any) -> list[Arrived]:
            count = (await context.stream_info(self.place)).state.messages
            subscription = await context.subscribe(self.place, ordered_consumer=True)
            found = [await subscription.next_msg(60) for _ in range(count)]
            return [
                Arrived(body=one.data.decode(), id=one.headers["Nats-Msg-Id"].partition(" ")[0], headers=one.headers)
                for one in found
            ]

        return self._run(read)

    def send(self, body: str, *, message_id: str | None = None) -> None:
        headers = None if message_id is None else {"Nats-Msg-Id": message_id}
        self._run(lambda context: context.publish(self.place, body.encode(), headers=headers))

    def too_large(self) -> CloudEvent:
        return self.event('"' + "x" * self.server.max_payload + '"')


class SqsBench(Bench):
    server_type = AwsServer
    destination = "queue_url"
    missing = "a-queue-that-is-missing-too"
    wrong_secret_is_refused = False
    count = 50

    def prepare(self) -> None:
        self._client = boto3.client("sqs", **self._options(self.server.port))
        self._ends.callback(self._client.close)
        self._url = self._queue(self.place)

    def _queue(self, name: str) -> str:
        """Create a queue, and return its URL."""
        made = self._client.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})
        return str(made["QueueUrl"])

    def _options(self, port: int, secret: str = SECRET) -> dict[str, str]:
        address = f"http://127.0.0.1:{port}"
        keys = {"aws_access_key_id": "outboxq", "aws_secret_access_key": secret}
        return {"region_name": "eu-central-1", "endpoint_url": address, **keys}

    def transport(self, *, secret: str = SECRET, **options: Any) -> Transport:
        return Sqs(
            **{
                "queue_url": lambda event: self.address(event.type),
                "options": self._options(self.cable.port, secret),
                **options,
            }
        )

    def source(self) -> Source:
        return Sqs(queue_url=self._url, options=self._options(self.cable.port))

    def arrived(self) -> list[Arrived]:
        found: list[Arrived] = []
        wanted = {"QueueUrl": self._url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        while messages := self._client.receive_message(**wanted).get("Messages", ()):
            for one in messages:
                headers = {name: value["StringValue"] for name, value in one.get("MessageAttributes", {}).items()}
                found.append(Arrived(body=one["Body"], id=None, headers=headers))
                self._client.delete_message(QueueUrl=self._url, ReceiptHandle=one["ReceiptHandle"])
        return found

    def send(self, body: str, *, message_id: str | None = None) -> None:
        self._client.send_message(
            QueueUrl=self._url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=message_id or uuid4().hex
        )

    def topic(self, *queues: str, **attributes: str) -> tuple[str, dict[str, str]]:
        """Create an SNS topic to which this queue and `queues` subscribe. Return its ARN and a client's options."""
        with contextlib.closing(boto3.client("sns", **self._options(self.server.port))) as client:
            topic: str = client.create_topic(Name=f"{self.place}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
            for url in (self._url, *queues):
                wanted = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
                queue = wanted["Attributes"]["QueueArn"]
                client.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes=attributes)
        return topic, self._options(self.cable.port)

    def routed(self) -> Transport:
        """Return a transport to an SNS topic that forwards the bodies to the queue and to one from which no consumer receives."""
        arn, options = self.topic(self._queue(f"{self.place}-copy"), RawMessageDelivery="true")
        return Sns(topic_arn=Route(arn, arn.replace(self.place, self.missing)), options=options)

    def stored(self) -> list[str]:
        bodies: list[str] = self.server.bodies(f"{self.place}-copy.fifo")
        return bodies

    def deliver_again_soon(self) -> None:
        self._client.set_queue_attributes(QueueUrl=self._url, Attributes={"VisibilityTimeout": "1"})

    def address(self, topic: str) -> str:
        return self._url.replace(self.place, topic)

    def too_large(self) -> CloudEvent:
        return self.event('"' + "x" * (2 << 20) + '"')


def write_place(path: Path, place: Any) -> None:
    """Write a file from which `tests.brokers.faulty.read_place` can create the same transport or source in another process."""
    fields = {each.name: getattr(place, each.name) for each in dataclasses.fields(place) if each.init}
    path.write_bytes(pickle.dumps((type(place), fields)))


BENCHES: Mapping[str, type[Bench]] = {
    "rabbitmq": RabbitMQBench,
    "redis": RedisBench,
    "kafka": KafkaBench,
    "nats": NatsBench,
    "sqs": SqsBench,
}
