"""The number of connections to PostgreSQL that docs/how-to/poolers.md gives for relays and the dashboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, make_url, text
from werkzeug.test import Client

from outboxq import Outbox
from outboxq.web import application
from outboxq.worker.relays import Senders
from tests.memory_broker import Cloneable
from tests.waiting import until

COUNT = text(
    "SELECT count(*) FILTER (WHERE query ~ 'LISTEN'), count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'counted'"
)

Most = Callable[[Callable[[], object]], tuple[int, int]]


@pytest.fixture
def most(postgresql) -> Iterator[Most]:
    """Return a function that returns the maximum numbers of listening connections and of all connections during a call."""
    watcher = create_engine(postgresql.url, isolation_level="AUTOCOMMIT")

    def most_during(run: Callable[[], object]) -> tuple[int, int]:
        found, over = [], threading.Event()

        def watch() -> None:
            with watcher.connect() as connection:
                while not over.wait(0.002):
                    found.append(connection.execute(COUNT).one())

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                run()
            finally:
                over.set()
            watching.result()
        return max(listening for listening, _ in found), max(number for _, number in found)

    yield most_during
    watcher.dispose()


@pytest.fixture
def outbox(postgresql) -> Iterator[Outbox]:
    """Return an outbox whose connections have their own application name. No connection is open yet."""
    url = make_url(postgresql.url).update_query_dict({"application_name": "counted"})
    outbox = Outbox(url, source="shop")
    yield outbox
    outbox.store.bound_engine.dispose()


def test_relays_use_one_listening_connection_one_other_and_one_for_each_shard(outbox, most):
    broker = Cloneable()
    outbox.relay("order.*", to=broker, name="orders", shards=4)
    outbox.sync_subscriptions()
    for number in range(100):
        outbox.emit("order.paid", number, using=outbox, partition_key=str(number))
    outbox.store.bound_engine.dispose()
    senders = Senders(outbox.store, list(outbox.tasks.relays.values()), on_thread_failure=print)

    def send() -> None:
        senders.start()
        until(lambda: len(broker.stored) == 100)
        time.sleep(1)
        senders.stop(timedelta(seconds=10))

    listening, number = most(send)
    assert listening <= 1
    assert 2 <= number <= 4 + 2


def test_a_dashboard_uses_one_connection_for_each_simultaneous_request(outbox, most):
    site, threads = application(outbox), 4
    outbox.store.bound_engine.dispose()

    def status_of(path: str) -> int:
        overrides = {"REMOTE_ADDR": "127.0.0.1"}
        return Client(site).get(path, base_url="http://127.0.0.1", environ_overrides=overrides).status_code

    def ask() -> None:
        with ThreadPoolExecutor(threads) as pool:
            assert set(pool.map(status_of, ["/", "/tasks", "/queues", "/healthz"] * 10)) == {200}

    listening, number = most(ask)
    assert listening == 0
    assert 1 <= number <= threads + 1
