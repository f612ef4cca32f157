"""Measure the events that a relay publishes per second: `python -m benchmarks.relays`, or `nox -s bench_relays -- --broker redis`.

Events with 200 partition keys wait in PostgreSQL. They are published to a real broker on this machine, in turns:

* by the bare client, which gets the events from memory: redis-py's pipeline, or pika without confirms;
* by outboxq's transport, which also gets the events from memory, and waits for the confirms;
* by a relay written by hand: `SELECT … FOR UPDATE SKIP LOCKED`, the same transport, `DELETE`, and a commit for each 500 events;
* by outboxq's relay with one shard, and with four;
* by outboxq's relay in two processes. Each has leased one shard before the events are committed.

The last row is the time from a commit to the broker's confirmation while nothing else is published.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pika
import redis
from sqlalchemy import Connection, Engine, create_engine, text

from benchmarks.bench import SERVER
from outboxq import Outbox, migrations
from outboxq.brokers import RabbitMQ, RedisStreams
from outboxq.database.tables import relay_messages
from outboxq.model.cloud_events import CloudEvent
from outboxq.model.transports import Confirmed, Outcome, Transport
from outboxq.worker.relays import Senders
from tests import postgres
from tests.brokers.servers import RabbitMQServer, RedisServer

_AT_ONCE = 500
_KEYS = 200
_TOPIC = "orders"
_RELAY = "bench"
_PROCESSES = 2
_DATA = '{"order_id": 17, "customer": "ada", "lines": [{"sku": "A-1", "quantity": 2}]}'


Run = Callable[[], Callable[[], None] | None]
"""A function that publishes the events. It may return a function that ends its processes."""


def main() -> int:
    given = _arguments()
    cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
    for broker in given.broker:
        with _BROKERS[broker]() as (transport, bare, empty):
            engine = create_engine(cluster.create_database())
            migrations.upgrade(engine)
            _print(broker, _measure(engine, transport, bare, empty, given.events, given.rounds))
            delays = _delays(engine, transport, given.single)
            p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
            print(
                f"| commit to confirmation, p50 and p99 of {len(delays)} | {p50 * 1e3:.1f} and {p99 * 1e3:.1f} ms | |"
            )
            engine.dispose()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relays", description=__doc__)
    parser.add_argument("--broker", choices=list(_BROKERS), nargs="+", default=list(_BROKERS))
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", type=int, default=200, help="number of events that are published one at a time")
    return parser.parse_args()


def _print(broker: str, found: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    print(f"| {broker} | events a second | of the bare client |\n|---|---|---|")
    for name, rate in middle.items():
        print(f"| {name} | {rate:,.0f} | {rate / middle['bare client']:.2f} |", flush=True)


def _measure(
    engine: Engine,
    transport: RabbitMQ | RedisStreams,
    bare: Callable[[Sequence[CloudEvent]], None],
    empty: Callable[[], object],
    number: int,
    rounds: int,
) -> dict[str, list[float]]:
    ways: dict[str, Callable[[int], Run]] = {
        "bare client": lambda many: partial(bare, _events(many)),
        "transport": lambda many: partial(_publish_all, transport, _events(many)),
        "relay by hand": lambda many: _by_hand(engine, transport, many),
        "relay, one shard": lambda many: _by_relay(engine, transport, many, shards=1),
        "relay, four shards": lambda many: _by_relay(engine, transport, many, shards=4),
        "relay, two processes": lambda many: _by_processes(engine, transport, many),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number_of_events in (_AT_ONCE, *[number] * rounds):
        for name, prepare in ways.items():
            run = prepare(number_of_events)
            empty()
            began = time.perf_counter()
            end = run()
            found[name].append(number_of_events / (time.perf_counter() - began))
            if end is not None:
                end()
    return {name: rates[1:] for name, rates in found.items()}  # the first rounds connect, and compile the statements


def _events(number: int) -> list[CloudEvent]:
    return [
        CloudEvent(
            id=uuid4(),
            source="shop",
            type=_TOPIC,
            time=datetime.now(UTC),
            data=_DATA,
            partition_key=f"key-{one % _KEYS}",
        )
        for one in range(number)
    ]


def _batches(events: Sequence[CloudEvent]) -> Iterator[Sequence[CloudEvent]]:
    for start in range(0, len(events), _AT_ONCE):
        yield events[start : start + _AT_ONCE]


def _publish_all(transport: Transport, events: Sequence[CloudEvent]) -> None:
    for some in _batches(events):
        _publish(transport, some)


def _publish(transport: Transport, events: Sequence[CloudEvent]) -> None:
    outcomes = transport.publish(events, time.monotonic() + 30)
    assert set(map(type, outcomes)) == {Confirmed}, outcomes


def _by_hand(engine: Engine, transport: Transport, number: int) -> Callable[[], None]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS by_hand (id bigserial PRIMARY KEY, key text, data text)"))
        rows = [{"key": f"key-{one % _KEYS}", "data": _DATA} for one in range(number)]
        connection.execute(text("INSERT INTO by_hand (key, data) VALUES (:key, :data)"), rows)

    def run() -> None:
        read = text(f"SELECT id, key, data FROM by_hand ORDER BY id LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED")
        with engine.connect() as connection:
            while True:
                with connection.begin():
                    if not (rows := connection.execute(read).all()):
                        return
                    now = datetime.now(UTC)
                    events = [
                        CloudEvent(
                            id=uuid4(), source="shop", type=_TOPIC, time=now, data=row.data, partition_key=row.key
                        )
                        for row in rows
                    ]
                    _publish(transport, events)
                    connection.execute(
                        text("DELETE FROM by_hand WHERE id = ANY(:ids)"), {"ids": [row.id for row in rows]}
                    )

    return run


def _by_relay(engine: Engine, transport: Transport, number: int, *, shards: int) -> Callable[[], None]:
    outbox = _outbox(engine, transport, shards)
    with engine.begin() as connection:
        _emit(outbox, connection, number)

    def run() -> None:
        senders = _senders(outbox, burst=True)
        senders.start()
        while not senders.have_ended:
            time.sleep(0.001)
        senders.stop(timedelta(seconds=5))
        assert _is_empty(engine)

    return run


def _emit(outbox: Outbox, connection: Connection, number: int) -> None:
    """Emit one event for each key, and insert copies of these events."""
    names = ", ".join(column.name for column in relay_messages.c if column.name not in {"id", "event_id"})
    for one in range(_KEYS):
        outbox.emit(_TOPIC, json.loads(_DATA), using=connection, partition_key=f"key-{one}")
    copies = f"SELECT gen_random_uuid(), {names} FROM relay_messages, generate_series(2, :times) AS n ORDER BY n, id"
    connection.execute(text(f"INSERT INTO relay_messages (event_id, {names}) {copies}"), {"times": number // _KEYS})


def _senders(outbox: Outbox, *, burst: bool = False) -> Senders:
    return Senders(outbox.store, list(outbox.tasks.relays.values()), on_thread_failure=print, burst=burst)


def _is_empty(engine: Engine) -> bool:
    with engine.connect() as connection:
        return not connection.execute(text("SELECT EXISTS (SELECT FROM relay_messages)")).scalar()


def _until(condition: Callable[[], bool]) -> None:
    """Check every 10 ms whether the condition is true, and return when it is."""
    while not condition():
        time.sleep(0.01)


def _by_processes(engine: Engine, transport: RabbitMQ | RedisStreams, number: int) -> Run:
    outbox = _outbox(engine, transport, _PROCESSES)
    context = multiprocessing.get_context("spawn")
    stops, processes = [], []
    for _ in range(_PROCESSES):
        told, stop = context.Pipe(duplex=False)
        url = engine.url.render_as_string(hide_password=False)
        process = context.Process(target=_send, args=(url, type(transport), transport.url, told), daemon=True)
        process.start()
        stops.append(stop)
        processes.append(process)
    _until(lambda: outbox.store.relays.show(_RELAY).relay.is_sent)
    with engine.begin() as connection:
        _emit(outbox, connection, _AT_ONCE)
    _until(partial(_is_empty, engine))
    connection = engine.connect()
    _emit(outbox, connection, number)

    def end() -> None:
        for stop, process in zip(stops, processes, strict=True):
            stop.send(None)
            process.join()

    def run() -> Callable[[], None]:
        connection.commit()
        connection.close()
        _until(partial(_is_empty, engine))
        return end

    return run


def _send(
    url: str, kind: type[RabbitMQ | RedisStreams], broker: str, told: multiprocessing.connection.Connection
) -> None:
    """Publish events in this process until a message asks it to stop."""
    senders = _senders(_outbox(create_engine(url), kind(url=broker), _PROCESSES))
    senders.start()
    told.recv()
    senders.stop(timedelta(seconds=5))


def _outbox(engine: Engine, transport: Transport, shards: int = 1) -> Outbox:
    outbox = Outbox(engine, source="shop")
    outbox.relay(_TOPIC, to=transport, name=_RELAY, shards=shards)
    outbox.sync_subscriptions()
    return outbox


@dataclass
class _Timed:
    """A transport that records when events were confirmed."""

    transport: Transport
    confirmed_at: list[float] = field(default_factory=list)
    has_come: threading.Event = field(default_factory=threading.Event)

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        outcomes = self.transport.publish(events, deadline)
        self.confirmed_at.append(time.perf_counter())
        self.has_come.set()
        return outcomes

    def close(self) -> None:
        self.transport.close()


def _delays(engine: Engine, transport: Transport, number: int) -> list[float]:
    timed = _Timed(transport)
    outbox = _outbox(engine, timed)
    senders = _senders(outbox)
    senders.start()
    delays = []
    for one in range(number + 10):
        timed.has_come.clear()
        with engine.begin() as connection:
            outbox.emit(_TOPIC, {"n": one}, using=connection, partition_key=f"key-{one % _KEYS}")
        committed = time.perf_counter()
        assert timed.has_come.wait(30)
        delays.append(timed.confirmed_at[-1] - committed)
        time.sleep(0.05)
    senders.stop(timedelta(seconds=5))
    return delays[10:]  # the first events connect


Broker = tuple[RabbitMQ | RedisStreams, Callable[[Sequence[CloudEvent]], None], Callable[[], object]]
"""A transport, the bare client, and a function that empties the stream or queue to which both publish."""


@contextmanager
def _redis() -> Iterator[Broker]:
    with RedisServer() as server:
        client = redis.Redis.from_url(server.direct)

        def bare(events: Sequence[CloudEvent]) -> None:
            for some in _batches(events):
                pipeline = client.pipeline(transaction=False)
                for one in some:
                    pipeline.xadd(_TOPIC, {"body": one.as_json()})
                pipeline.execute()

        yield RedisStreams(url=server.direct), bare, lambda: client.delete(_TOPIC)


@contextmanager
def _rabbitmq() -> Iterator[Broker]:
    with RabbitMQServer() as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.direct))
        channel = connection.channel()
        channel.queue_declare(_TOPIC, durable=True)

        def properties(event: CloudEvent) -> pika.BasicProperties:
            """Return the properties that the transport sends."""
            return pika.BasicProperties(
                content_type="application/cloudevents+json",
                headers={},
                delivery_mode=2,
                message_id=str(event.id),
                timestamp=int(event.time.timestamp()),
                type=event.type,
                app_id=event.source,
            )

        def bare(events: Sequence[CloudEvent]) -> None:
            for some in _batches(events):
                for one in some:
                    channel.basic_publish("", _TOPIC, one.as_json().encode(), properties(one), mandatory=True)
                connection.process_data_events(0)
            channel.queue_declare(_TOPIC, passive=True)  # the broker answers once it has read all earlier messages

        yield RabbitMQ(url=server.direct), bare, lambda: channel.queue_purge(_TOPIC)
        connection.close()


_BROKERS = {"redis": _redis, "rabbitmq": _rabbitmq}


if __name__ == "__main__":
    sys.exit(main())
