"""The brokers' transports, tested without a broker: configuration mistakes, and answers that a real broker rarely gives."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import uuid4

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.errors import MaxPayloadError
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError
from redis.connection import Connection

from outboxq import CloudEvent, ConfigurationError, brokers
from outboxq.brokers import (
    Kafka,
    NatsJetStream,
    RabbitMQ,
    RedisStreams,
    Sns,
    Sqs,
    aws,
    letters,
    nats_jetstream,
    rabbitmq,
    redis_streams,
)
from outboxq.errors import MessageUnreadable
from outboxq.model.cloud_events import read_event
from outboxq.model.transports import Confirmed, Outcome, Refused, Unsure

SECRET = "pa55-w0rd"


def event(data: str = "null", **fields: Any) -> CloudEvent:
    given = {"id": uuid4(), "source": "shop", "type": "order.paid", "time": datetime.now(UTC)}
    return CloudEvent(data=data, **{**given, **fields})


def soon() -> float:
    return time.monotonic() + 60


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no URL": (lambda: RabbitMQ(url="localhost"), "RabbitMQ needs a URL such as amqp://"),
    "another scheme": (lambda: RabbitMQ(url=f"redis://:{SECRET}@h"), "RabbitMQ needs a URL such as amqp://"),
    "a wrong port": (
        lambda: RedisStreams(url=f"redis://:{SECRET}@h:port"),
        "RedisStreams needs a URL such as redis://",
    ),
    "prefetch": (lambda: RabbitMQ(url="amqp://h", prefetch=0), "prefetch of .* must be from 1 to 65535, not 0"),
    "routing_key": (lambda: RabbitMQ(url="amqp://h", routing_key="{tpoic}"), r"routing_key of .*\{topic\}"),
    "stream": (lambda: RedisStreams(url="redis://h", stream=""), "stream of .* must be a name"),
    "a brace": (lambda: RedisStreams(url="redis://h", stream="a{topic"), "stream of .* must be a name"),
    "max_length": (lambda: RedisStreams(url="redis://h", max_length=0), "max_length of .* at least 1"),
    "claim_after": (
        lambda: RedisStreams(url="redis://h", claim_after=timedelta(0)),
        "claim_after of .* greater than zero",
    ),
    "body": (
        lambda: RedisStreams(url="redis://h", body="xml"),
        "body of .* must be one of cloudevent, payload, not 'xml'",
    ),
    "no server": (lambda: NatsJetStream(servers=[]), "NatsJetStream needs a URL such as nats://"),
    "no brokers": (lambda: Kafka(servers=" "), "Kafka needs servers"),
    "a password": (lambda: Kafka(servers=f"me:{SECRET}@h"), "Kafka needs servers"),
    "own options": (lambda: Kafka(servers="h", options={"acks": 0}), "options for .* cannot set acks"),
    "queue_url": (lambda: Sqs(queue_url=""), "queue_url of .* must be a name"),
    "topic_arn": (lambda: Sns(topic_arn="{x}"), "topic_arn of .* must be a name"),
    "no queue": (RabbitMQ(url="amqp://h").connect, "cannot receive from .*; write RabbitMQ"),
    "no group": (RedisStreams(url="redis://h", stream="s").connect, "cannot receive from .*; write RedisStreams"),
    "many streams": (RedisStreams(url="redis://h", group="g").connect, "cannot receive from .*; write RedisStreams"),
    "no durable": (NatsJetStream(servers="nats://h", stream="s").connect, "cannot receive from .*; write Nats"),
    "many topics": (Kafka(servers="h", group="g").connect, "cannot receive from .*; write Kafka"),
    "many queues": (Sqs(queue_url=lambda _: "").connect, "cannot receive from .*; write Sqs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_reported_when_the_transport_is_created(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(ConfigurationError, match=message) as caught:
        make()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", brokers.__all__)
def test_the_error_for_a_missing_client_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"url": "redis://h" if name == "RedisStreams" else "amqp://h", "servers": "nats://h", "queue_url": "q"}
    given["topic_arn"] = "arn"
    kind = getattr(brokers, name)
    fields = {key: value for key, value in given.items() if key in kind.__dataclass_fields__}
    kind(**fields)
    monkeypatch.setattr(letters, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=rf"{name} needs \w+; run: pip install 'outboxq\[\w+\]'"):
        kind(**fields)


def test_a_client_is_imported_when_it_is_first_used() -> None:
    assert importlib.util.find_spec("pika")
    import subprocess
    import sys

    code = (
        "import sys; from outboxq.brokers import RabbitMQ, Sqs; RabbitMQ(url='amqp://h'); Sqs(queue_url='q');"
        "assert not {'pika', 'boto3', 'redis', 'nats', 'confluent_kafka', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Redis 8.6 and later, which Debian does not include.


@contextmanager
def redis(
    version: str, *, first: Mapping[bytes, bytes] | None = None, most: int | None = None
) -> Iterator[tuple[int, list[list[bytes]]]]:
    """Yield the port of a server that answers like this version of Redis, and the list of its commands.

    `first` contains the answers of its first connection. The connection is closed after `most` answers to XADD.
    """
    noted: list[list[bytes]] = []
    connections: list[object] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            connections.append(self)
            while line := self.rfile.readline():
                parts = []
                for _ in range(int(line[1:])):
                    size = int(self.rfile.readline()[1:])
                    parts.append(self.rfile.read(size + 2)[:-2])
                noted.append(parts)
                if most is not None and sum(one[0] == b"XADD" for one in noted) > most:
                    return
                wrong = (first or {}).get(parts[0].upper()) if self is connections[0] else None
                self.wfile.write(self.answer(parts) if wrong is None else wrong)

        def answer(self, parts: list[bytes]) -> bytes:
            match parts[0].upper():
                case b"INFO":
                    text = f"redis_version:{version}\r\n".encode()
                    return b"$%d\r\n%s\r\n" % (len(text), text)
                case b"HELLO" | b"CONFIG":
                    return b"-ERR unknown command\r\n"
                case b"XADD":
                    return b"$3\r\n1-1\r\n"
            return b"+OK\r\n"

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], noted
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("version", "is_known"), [("8.6.0", True), ("10.0.1", True), ("8.4.9", False), ("7.0.15", False)]
)
def test_the_event_id_is_sent_to_redis_versions_that_support_it(version: str, is_known: bool) -> None:
    one = event()
    with redis(version) as (port, noted):
        transport = RedisStreams(url=f"redis://127.0.0.1:{port}/0?protocol=2", max_length=9)
        assert list(transport.publish([one], soon())) == [Confirmed()]
        transport.close()
    [(_, stream, *rest)] = [parts for parts in noted if parts[0] == b"XADD"]
    assert rest[:2] == ([b"IDMP", b"shop"] if is_known else [b"MAXLEN", b"~"])
    assert rest[2].startswith(str(one.id).encode()) == is_known
    assert (stream, rest[3 * is_known :][:4]) == (b"order.paid", [b"MAXLEN", b"~", b"9", b"*"])


@pytest.mark.parametrize(
    "answers",
    [
        {b"XADD": b"-READONLY You can't write against a read only replica.\r\n"},
        {b"XADD": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"},
    ],
)
def test_a_connection_to_redis_is_opened_again_after_an_unsure_event(answers: Mapping[bytes, bytes]) -> None:
    """The new connection may lead to another server, if the old one has become a replica."""
    with redis("7.0.15", first=answers) as (port, _):
        transport = RedisStreams(url=f"redis://127.0.0.1:{port}/0?protocol=2")
        assert [type(one) for one in transport.publish([event()], soon())] == [Unsure]
        assert transport.publish([event()], soon()) == [Confirmed()]
        transport.close()


def test_a_connection_to_redis_stays_open_after_a_refusal() -> None:
    with redis("7.0.15", first={b"XADD": b"-WRONGTYPE it is a list\r\n"}) as (port, _):
        transport = RedisStreams(url=f"redis://127.0.0.1:{port}/0?protocol=2")
        for _ in range(2):
            assert transport.publish([event()], soon()) == [Refused("ResponseError: WRONGTYPE it is a list")]
        transport.close()


# Kafka: a broker that refuses a batch because one of its messages is too large.


class Producer:
    """A producer whose broker has a limit of 100 bytes, and refuses all messages that were sent together."""

    made: ClassVar[list[dict[str, Any]]] = []
    """The settings of each producer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.made.append(settings)
        self.waiting: list[tuple[bytes, Callable[[Any, Any], None]]] = []

    def produce(self, _: str, *, value: bytes, on_delivery: Callable[[Any, Any], None], **__: Any) -> None:
        self.waiting.append((value, on_delivery))

    def flush(self, _: float) -> int:
        waiting, self.waiting = self.waiting, []
        is_refused = any(len(value) > 100 for value, _ in waiting)
        error = SimpleNamespace(name=lambda: "MSG_SIZE_TOO_LARGE", str=lambda: "too large") if is_refused else None
        for _, report in waiting:
            report(error, None)
        return 0

    def purge(self) -> None: ...

    def poll(self, _: float) -> int:
        return 0


def test_a_message_that_makes_kafka_refuse_its_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.Producer", Producer)
    transport = Kafka(servers="h", body="payload")
    events = [event("1"), event(json.dumps("x" * 200)), event("2")]
    first = transport.publish(events, soon())
    assert [type(one) for one in first] == [Unsure] * 3
    assert [type(one) for one in transport.publish(events, soon())] == [Confirmed, Refused, Confirmed]
    assert [type(one) for one in transport.publish(events[:1], soon())] == [Confirmed]


def test_a_single_event_does_not_make_kafka_forget_that_a_batch_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.Producer", Producer)
    transport = Kafka(servers="h", body="payload")
    small, large = event("1"), event(json.dumps("x" * 200))

    def published(*events: CloudEvent) -> list[type[Outcome]]:
        return [type(one) for one in transport.publish(events, soon())]

    assert published(small, large) == [Unsure, Unsure]
    assert published(small) == [Confirmed]
    assert published(small, large) == [Confirmed, Refused]
    assert published(small, large) == [Unsure, Unsure], "later batches are again sent together"


@pytest.mark.parametrize("given", [{}, {"topic.metadata.propagation.max.ms": 60_000}])
def test_kafka_reports_a_missing_topic_before_relays_give_up(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr("confluent_kafka.Producer", Producer)
    monkeypatch.setattr(Producer, "made", [])
    transport = Kafka(servers="h", body="payload", options=given)
    assert transport.publish([event("1")], soon()) == [Confirmed()]
    [made] = Producer.made
    assert made["topic.metadata.propagation.max.ms"] == (60_000 if given else 3000)


# SQS: a batch of which some messages fail.


class Sender:
    """An SQS client for which the messages with these bodies fail."""

    def __init__(self, *failing: str, is_final: bool = False) -> None:
        self.failing, self.is_final = failing, is_final
        self.batches: list[list[dict[str, Any]]] = []

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.batches.append(Entries)
        bad = [one for one in Entries if one["MessageBody"] in self.failing]
        failed = [{"Id": one["Id"], "Code": "Bad", "SenderFault": self.is_final} for one in bad]
        return {"Successful": [{"Id": one["Id"]} for one in Entries if one not in bad], "Failed": failed}

    def close(self) -> None: ...


def published(sender: Sender, events: list[CloudEvent], monkeypatch: pytest.MonkeyPatch, url: str) -> list[Outcome]:
    monkeypatch.setattr(Sqs, "client", lambda _: sender)
    transport = Sqs(queue_url=url, body="payload")
    outcomes = list(transport.publish(events, soon()))
    transport.close()
    return outcomes


def test_an_event_that_sqs_did_not_store_is_not_overtaken_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event(str(number), partition_key="ada" if number % 2 else "bob") for number in range(6)]
    sender = Sender("3")
    outcomes = published(sender, events, monkeypatch, "https://sqs/orders.fifo")
    assert [type(one) for one in outcomes] == [Confirmed, Confirmed, Confirmed, Unsure, Confirmed, Unsure]
    assert "5" not in {one["MessageBody"] for batch in sender.batches for one in batch}
    assert all(len({one["MessageGroupId"] for one in batch}) == len(batch) for batch in sender.batches)


def test_an_event_is_refused_if_sqs_blames_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = published(Sender("1", is_final=True), [event("1"), event("2")], monkeypatch, "https://sqs/orders")
    assert outcomes == [Refused("Bad"), Confirmed()]


def test_an_sqs_batch_has_at_most_ten_messages_and_256_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event(json.dumps("x" * size)) for size in (200_000, 100_000, 300_000, *[10] * 12)]
    sender = Sender()
    assert published(sender, events, monkeypatch, "https://sqs/orders") == [Confirmed()] * 15
    sizes = [[len(one["MessageBody"]) for one in batch] for batch in sender.batches]
    assert all(len(batch) <= 10 and (len(batch) == 1 or sum(batch) <= 262_144) for batch in sizes)
    assert sum(map(len, sizes)) == 15


@pytest.mark.parametrize("headers", [{f"h{number}": "1" for number in range(11)}, {"a b": "1"}, {"AWS.x": "1"}])
def test_an_event_with_headers_that_sqs_cannot_send_is_refused(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    sender = Sender()
    [outcome] = published(sender, [event(headers=headers)], monkeypatch, "https://sqs/orders")
    assert isinstance(outcome, Refused)
    assert sender.batches == []


class Poller:
    """An SQS client: each call of `receive_message` receives the next number of messages, and later calls receive none."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.waits: list[int] = []

    def receive_message(self, *, WaitTimeSeconds: int, **_: Any) -> dict[str, Any]:  # noqa: N803
        assert len(self.waits) < 5, "the receiver does not stop after an empty answer"
        self.waits.append(WaitTimeSeconds)
        count = self.counts.pop(0) if self.counts else 0
        return {"Messages": [{"Body": "1", "MessageId": str(number), "ReceiptHandle": "r"} for number in range(count)]}


@pytest.mark.parametrize(
    ("counts", "limit", "seconds", "waits"),
    [
        ((), 10, 0.5, [1]),
        ((), 10, -1.0, [1]),
        ((), 10, 60.0, [20]),
        ((3,), 10, 0.5, [1, 0]),
        ((10, 2), 12, 0.5, [1, 0]),
    ],
)
def test_an_idle_sqs_receiver_uses_long_polling(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], limit: int, seconds: float, waits: list[int]
) -> None:
    poller = Poller(*counts)
    monkeypatch.setattr(Sqs, "client", lambda _: poller)
    found = Sqs(queue_url="https://sqs/orders").connect().receive(limit, time.monotonic() + seconds)
    assert (len(found), poller.waits) == (sum(counts), waits)


def test_an_sqs_receiver_does_not_request_messages_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, slow answers would keep the first messages unacknowledged until SQS delivers them again."""

    class SlowPoller(Poller):
        def receive_message(self, **arguments: Any) -> dict[str, Any]:
            nonlocal now
            now += 0.3
            return super().receive_message(**arguments)

    now = 1000.0
    monkeypatch.setattr(aws, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Sqs, "client", lambda _: SlowPoller(10, 10, 10, 10))
    found = Sqs(queue_url="https://sqs/orders").connect().receive(200, now + 0.5)
    assert len(found) == 20


@pytest.mark.parametrize("place", ["a b", "a.*", ">", "a..b", "a.", "a\r\nb"])
def test_an_event_with_an_invalid_nats_subject_is_refused(place: str) -> None:
    transport = NatsJetStream(servers="nats://127.0.0.1:1", subject=lambda _: place)
    [outcome] = transport.publish([event()], soon())
    assert isinstance(outcome, Refused)


def test_an_event_with_a_line_break_in_a_header_is_refused() -> None:
    transport = NatsJetStream(servers="nats://127.0.0.1:1")
    [outcome] = transport.publish([event(headers={"a": "1\r\nNats-Msg-Id: 2"})], soon())
    assert outcome == Refused("the header 'a' cannot be sent")


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_an_event_whose_header_rabbitmq_reads_as_routing_keys_is_refused(name: str) -> None:
    """The header would make the broker close the channel, so no other event of the batch would be confirmed."""
    [outcome] = RabbitMQ(url="amqp://127.0.0.1:1").publish([event(headers={name: "ada"})], soon())
    assert outcome == Refused(f"RabbitMQ reads the header {name!r} as routing keys; give it another name")


class Nats:
    """A NATS client whose server accepts at most 1,000 bytes. It records all published messages."""

    made: ClassVar[list[Nats]] = []
    is_connected, max_payload = True, 1000

    def __init__(self) -> None:
        self.made.append(self)
        self.contexts = 0
        self.unanswered: set[bytes] = {b"0"}
        self.published: list[tuple[str, bytes, dict[str, str]]] = []

    async def connect(self, *_: Any, **__: Any) -> None: ...

    async def close(self) -> None: ...

    def jetstream(self) -> Nats:
        self.contexts += 1
        return self

    async def publish_async(self, subject: str, body: bytes, *, headers: dict[str, str]) -> asyncio.Future[None]:
        answer = asyncio.get_running_loop().create_future()
        if len(body) > self.max_payload:
            raise MaxPayloadError
        self.published.append((subject, body, headers))
        if body not in self.unanswered:
            answer.set_result(None)
        return answer

    async def _handle_async_reply(self, _: object) -> None: ...


@pytest.fixture
def fake_nats(monkeypatch: pytest.MonkeyPatch) -> list[Nats]:
    monkeypatch.setattr("nats.aio.client.Client", Nats)
    monkeypatch.setattr(Nats, "made", [])
    return Nats.made


def test_a_nats_connection_creates_one_jetstream_context(fake_nats: list[Nats]) -> None:
    transport = NatsJetStream(servers="nats://h")
    for _ in range(3):
        assert transport.publish([event(), event()], soon()) == [Confirmed()] * 2
    transport.close()
    [client] = fake_nats
    assert (client.contexts, len(client.published)) == (1, 6)


def test_only_the_message_that_is_too_large_with_its_headers_is_refused(fake_nats: list[Nats]) -> None:
    """The server closes the connection when it receives such a message."""
    transport = NatsJetStream(servers="nats://h", body="payload")
    one = event(headers={"a": "é"})
    assert transport.publish([one], soon()) == [Confirmed()]
    [(_, _, headers)] = fake_nats[0].published
    written = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    left = Nats.max_payload - len(f"NATS/1.0\r\n{written}\r\n".encode())
    fits, large = (event("1" * size, headers={"a": "é"}) for size in (left, left + 1))
    outcomes = transport.publish([large, fits], soon())
    transport.close()
    assert outcomes == [
        Refused("the event is 1001 bytes long with its headers, but the server accepts at most 1000"),
        Confirmed(),
    ]


def test_an_event_without_an_answer_of_nats_does_not_affect_the_others(fake_nats: list[Nats]) -> None:
    transport = NatsJetStream(servers="nats://h", body="payload")
    outcomes = transport.publish([event("1"), event("0"), event("2")], time.monotonic() + 0.5)
    transport.close()
    assert outcomes == [Confirmed(), Unsure("the server did not answer in time"), Confirmed()]


@pytest.mark.parametrize("name", ["a b", "a:b", "é", ""])
def test_an_event_with_an_invalid_nats_header_name_is_refused(fake_nats: list[Nats], name: str) -> None:
    transport = NatsJetStream(servers="nats://h")
    assert transport.publish([event(headers={name: "1"})], soon()) == [Refused(f"the header {name!r} cannot be sent")]
    assert fake_nats == []


def test_a_timeout_in_any_step_of_a_request_to_nats_is_not_an_error() -> None:
    """Only one of the steps raises the library's own TimeoutError."""

    class Subscription:
        async def fetch(self, *_: Any, **__: Any) -> list[Any]:
            raise TimeoutError

    consumer = nats_jetstream._Consumer.__new__(nats_jetstream._Consumer)
    consumer._subscription, consumer._check_at, consumer._most = Subscription(), soon(), 10
    assert asyncio.run(consumer._fetch(10, 0.0)) == []


class EmptyNats(Nats):
    """A client whose pull requests time out, with one durable consumer, which may be deleted."""

    consumers: ClassVar[set[tuple[str, str]]] = set()

    async def consumer_info(self, stream: str, durable: str) -> SimpleNamespace:
        if (stream, durable) not in self.consumers:
            raise NotFoundError
        return SimpleNamespace(config=ConsumerConfig())

    async def add_consumer(self, stream: str, config: Any) -> SimpleNamespace:
        self.consumers.add((stream, config.durable_name))
        return SimpleNamespace(config=config)

    async def pull_subscribe_bind(self, **_: str) -> EmptyNats:
        return self

    async def fetch(self, *_: Any, **__: Any) -> list[Any]:
        raise TimeoutError

    async def _process_headers(self, _: object) -> None: ...


def test_a_deleted_nats_consumer_is_created_again(fake_nats: list[Nats], monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer is deleted with its stream. Requests to it time out, as if there were no messages."""
    monkeypatch.setattr("nats.aio.client.Client", EmptyNats)
    monkeypatch.setattr(nats_jetstream, "_CHECK_EVERY", 0.0)
    source = NatsJetStream(servers="nats://h", stream="s", durable="d")
    connection = source.connect()
    assert connection.receive(10, time.monotonic()) == []
    EmptyNats.consumers.clear()
    with pytest.raises(NotFoundError):
        connection.receive(10, time.monotonic())
    connection.close()
    again = source.connect()
    assert again.receive(10, time.monotonic()) == []
    assert EmptyNats.consumers == {("s", "d")}
    again.close()


@pytest.mark.parametrize(("permitted", "requested"), [(None, 10), (-1, 10), (5, 5), (1000, 10)])
def test_a_nats_receiver_requests_at_most_as_many_messages_as_its_consumer_permits(
    fake_nats: list[Nats], monkeypatch: pytest.MonkeyPatch, permitted: int | None, requested: int
) -> None:
    sizes = []

    class Limited(EmptyNats):
        async def consumer_info(self, *_: str) -> SimpleNamespace:
            return SimpleNamespace(config=ConsumerConfig(max_ack_pending=permitted))

        async def fetch(self, batch: int, **_: Any) -> list[Any]:
            sizes.append(batch)
            raise TimeoutError

    monkeypatch.setattr("nats.aio.client.Client", Limited)
    connection = NatsJetStream(servers="nats://h", stream="s", durable="d").connect()
    assert connection.receive(10, time.monotonic()) == []
    connection.close()
    assert sizes == [requested]


# A stream or topic that was deleted and created again is numbered from the beginning.


def test_two_nats_streams_with_the_same_name_have_different_message_ids() -> None:
    def first(created: datetime) -> str | None:
        place = SimpleNamespace(stream="s", sequence=SimpleNamespace(stream=1), timestamp=created)
        return nats_jetstream._message(SimpleNamespace(data=b"1", headers=None, subject="a", metadata=place)).id

    now = datetime.now(UTC)
    assert first(now) == first(now)
    assert first(now) != first(now + timedelta(milliseconds=1))


def test_two_kafka_topics_with_the_same_name_have_different_message_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    class Consumer:
        def __init__(self, _: object) -> None: ...

        def subscribe(self, _: object) -> None: ...

    monkeypatch.setattr("confluent_kafka.Consumer", Consumer)
    connection = Kafka(servers="h", topic="t", group="g").connect()

    def first(created: int) -> str | None:
        given = {"topic": "t", "partition": 0, "offset": 0, "timestamp": (1, created), "value": b"1", "headers": None}
        methods = {name: lambda value=value: value for name, value in {**given, "error": None}.items()}
        return connection._message(SimpleNamespace(**methods)).id  # type: ignore[attr-defined]

    assert first(1) == first(1)
    assert first(1) != first(2)


# An event that two relays publish is not a duplicate.


DIFFERENT: dict[str, list[tuple[str, str]]] = {
    "destinations": [("a", "cloudevent"), ("b", "cloudevent")],
    "bodies": [("a", "cloudevent"), ("a", "payload")],
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_nats_drops_only_repeated_messages(fake_nats: list[Nats], case: str) -> None:
    one = event()
    for subject, body in DIFFERENT[case] * 2:
        transport = NatsJetStream(servers="nats://h", subject=subject, body=body)
        assert transport.publish([one], soon()) == [Confirmed()]
        transport.close()
    ids = [headers["Nats-Msg-Id"] for client in fake_nats for _, _, headers in client.published]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_fifo_queue_drops_only_repeated_messages(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    one, sender = event(), Sender()
    monkeypatch.setattr(Sqs, "client", lambda _: sender)
    for queue, body in DIFFERENT[case] * 2:
        transport = Sqs(queue_url=f"https://sqs/{queue}.fifo", body=body)
        assert transport.publish([one], soon()) == [Confirmed()]
        transport.close()
    ids = [one["MessageDeduplicationId"] for batch in sender.batches for one in batch]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    assert all(len(one) <= 128 for one in ids)


class Streams:
    """The streams that JetStream returns for a subject. Instead of a name, the answer may be an error, or there may be no answer."""

    def __init__(self, found: str | Exception) -> None:
        self.found = found

    async def find_stream_name_by_subject(self, _: str) -> str:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (NotFoundError(), Refused("no stream has the subject 's'")),
        ("ORDERS", Unsure("the stream 'ORDERS' is not answering at the moment")),
        (TimeoutError("late"), Unsure("TimeoutError: late")),
    ],
)
def test_an_unanswered_subject_is_refused_only_if_no_stream_has_it(found: str | Exception, outcome: Outcome) -> None:
    """While a cluster elects the leader of a stream, there is no answer either."""
    assert asyncio.run(nats_jetstream._without_stream(Streams(found), "s")) == outcome  # type: ignore[arg-type]


def test_rabbitmq_properties_that_are_not_utf_8_are_read_as_escaped_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """pika returns such properties as bytes. A receiver would fail on the same message repeatedly."""
    monkeypatch.setattr(rabbitmq._Consumer, "__init__", lambda *_: None)
    consumer = rabbitmq._Consumer(RabbitMQ(url="amqp://h", queue="q"))
    consumer._arrived = []
    for fields in (
        {"message_id": b"\xff"},
        {"message_id": "m", "type": b"\xff"},
        {"message_id": "m", "app_id": b"\xff"},
    ):
        properties = pika.BasicProperties().decode(b"".join(pika.BasicProperties(**fields).encode()))
        place = SimpleNamespace(routing_key=b"\xff", exchange="", delivery_tag=1)
        consumer._on_message(None, place, properties, b"{}")
    assert [(one.id, one.type, one.source) for one in consumer._arrived] == [
        ("\\xff", "\\xff", ""),
        ("m", "\\xff", ""),
        ("m", "\\xff", "\\xff"),
    ]


# Reading messages


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(data=_json, indent=st.sampled_from([None, 0, 2]), key=st.none() | st.text(min_size=1))
def test_the_contents_of_a_cloud_event_are_read_unchanged(data: object, indent: int | None, key: str | None) -> None:
    payload = json.dumps(data, indent=indent)
    sent = event(payload, partition_key=key, headers={"tenant": "eu"})
    read = read_event(sent.as_json().encode(), {"x": "1"})
    assert (read.id, read.source, read.type, read.data) == (str(sent.id), "shop", "order.paid", payload)
    assert (read.partition_key, read.headers["ce_tenant"], read.headers["x"]) == (key, "eu", "1")


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | _json.map(json.dumps).map(str.encode))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        read = read_event(body, {}, id="m", type="t")
    except MessageUnreadable:
        return
    assert json.loads(read.data) == json.loads(body) or json.loads(body)["specversion"]


def test_the_attributes_of_a_binary_event_are_read_from_headers() -> None:
    headers = {"ce_id": "e1", "ce_source": "erp", "ce_type": "t", "ce_partitionkey": "ada", "traceparent": "00"}
    read = read_event(b" 1.10 ", headers, id="other", source="queue", type="key")
    assert (read.id, read.source, read.type, read.data, read.partition_key) == ("e1", "erp", "t", "1.10", "ada")
    assert read.headers == {"traceparent": "00"}


def test_binary_data_is_refused() -> None:
    body = {**event().attributes, "data_base64": "AA=="}
    with pytest.raises(MessageUnreadable, match="data_base64"):
        read_event(json.dumps(body).encode(), {})


def test_a_null_attribute_is_treated_as_missing() -> None:
    """The JSON format of CloudEvents says so, and several of its libraries write null."""
    given = dict.fromkeys(["id", "source", "type", "partitionkey", "traceparent", "subject", "data_base64"])
    read = read_event(
        json.dumps({"specversion": "1.0", **given, "data": None}).encode(), {}, id="m", source="q", type="t"
    )
    assert (read.id, read.source, read.type, read.partition_key, read.data) == ("m", "q", "t", None, "null")
    assert read.headers == {"ce_specversion": "1.0"}
    with pytest.raises(MessageUnreadable, match="no id"):
        read_event(json.dumps({"specversion": "1.0", **given}).encode(), {}, type="t")


def test_an_attribute_nested_too_deeply_is_refused_as_unreadable() -> None:
    def body(depth: int) -> bytes:
        return f'{{"specversion": "1.0", "id": "i", "type": "t", "x": {"[" * depth}{"]" * depth}}}'.encode()

    depth = 500
    with pytest.raises(MessageUnreadable, match="recursion|depth"):
        while True:
            read_event(body(depth := depth + 1), {})


def test_a_data_member_inside_an_attribute_is_not_mistaken_for_the_payload() -> None:
    body = '{"x": {"data": 1, "}": "}"}, "specversion": "1.0", "data": {"data": 2.50}, "id": "i", "type": "t", "source": "s"}'
    assert read_event(body.encode(), {}).data == '{"data": 2.50}'


def test_private_headers_are_removed_from_a_message() -> None:
    [letter] = letters.letters_of([event(headers={"Cookie": "c", "a": "1"})], "{topic}", "payload", "ce_", [None])
    assert "Cookie" not in letter.headers
    assert letter.headers["a"] == "1"


def test_commands_for_redis_are_encoded_as_by_the_redis_client():
    body = b"\x00\r\n" * 100_000
    [letter] = letters.letters_of([event(headers={"a": "ü"})], "strëam", "cloudevent", "ce_", [None])
    letter = letter._replace(body=body)
    publisher = RedisStreams(url="redis://redis", max_length=10)._publisher
    own = ("XADD", "strëam", "MAXLEN", "~", 10, "*", "body", body, "header:a", "ü")
    assert publisher._command(letter) == b"".join(Connection().pack_commands([own]))
    publisher._has_idmp = True
    once = ("IDMP", "shop", f"{letter.event.id} application/cloudevents+json strëam")
    assert publisher._command(letter) == b"".join(Connection().pack_commands([(*own[:2], *once, *own[2:])]))


def test_answers_of_redis_before_a_lost_connection_are_used():
    one, two = event(), event()
    with redis("7.0.15", most=1) as (port, _):
        transport = RedisStreams(url=f"redis://127.0.0.1:{port}/0?protocol=2")
        first, second = transport.publish([one, two], soon())
        transport.close()
    assert (first, type(second)) == (Confirmed(), Unsure)


def test_commands_for_redis_are_written_in_large_chunks():
    commands = [b"x" * 1000] * 600 + [b"y" * 300_000] * 2
    parts = redis_streams._parts(commands)
    assert b"".join(parts) == b"".join(commands)
    assert 3 <= len(parts) <= 5, "each write has 256 KiB and one more command"
    assert redis_streams._parts([]) == []
