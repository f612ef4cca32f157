"""PostgreSQL: no work is lost when the listening connection breaks in any way."""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import threading
import time
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from outboxq import migrations
from outboxq.database.dialects import dialect_for
from outboxq.database.engine import make_engine
from outboxq.errors import ConfigurationError, UnsupportedDatabase
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.distributor import create_work_distributor
from outboxq.worker.distributor import listener as module
from outboxq.worker.distributor.listener import Listener
from tests import postgres
from tests.poolers import KINDS, pooling
from tests.proxy import Proxy
from tests.reuse import OTHERS
from tests.sleeper import Claimer, Sleeper
from tests.waiting import PROMPTLY, until

DEAF = 0.5
"""The interval, in seconds, at which a distributor polls while it does not listen."""
MINUTE = timedelta(minutes=1)
SPOKEN = dialect_for("postgresql")
QUICK = {"ping_every": 0.1, "answer_timeout": 0.5}


@pytest.fixture
def make(postgresql):
    """Create distributors that quickly notice a silent peer. They are closed after the test."""
    made = []

    def make_one(store=None, *, quick=True, **options):
        """If `quick` is False, a machine that pauses for half a second does not count as a silent peer."""
        distributor = create_work_distributor(store or postgresql.store, **{"poll": MINUTE, **options})
        for name, value in QUICK.items() if quick else ():
            setattr(distributor._listener, name, value)
        made.append(distributor)
        return distributor

    yield make_one
    for distributor in made:
        distributor.close()


@pytest.fixture
def start(make):
    def start_one(store=None, **options):
        distributor = make(store, **options)
        distributor.start()
        until(lambda: distributor.health.listening)
        return distributor

    return start_one


@pytest.fixture
def proxy(postgresql):
    with Proxy(postgresql.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_cluster():
    """A server that may be restarted and whose processes may be stopped."""
    server = postgres.start(prefer="own", durable=True)
    yield server
    server.stop()


@pytest.fixture
def own_store(own_cluster):
    url = own_cluster.create_database()
    migrations.upgrade(url)
    engine = make_engine(url)
    yield Store(engine)
    engine.dispose()
    own_cluster.drop_database(url)


def plain(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def add(store):
    handle = store.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"))
    return handle.id, time.monotonic()


def listening_backend(distributor):
    return distributor._listener._connection.info.backend_pid


def listens_again(distributor, since):
    """Wait until it listens on a connection after the first `since` ones. On a machine that pauses, another one may break."""
    until(lambda: distributor.health.listening and distributor.health.connections > since)
    assert distributor.health.error is None


def wakes(distributor, store):
    """Return whether a commit wakes it immediately, which polling would not."""
    with Sleeper(distributor).asleep() as woken:
        _, committed = add(store)
        return woken.result(30) - committed < PROMPTLY


# The connection breaks and is restored


def test_a_listener_whose_connection_is_terminated_reconnects(postgresql, start):
    distributor = start()
    assert distributor.health.connections == 1
    for _ in range(3):
        since = distributor.health.connections
        with Sleeper(distributor).asleep() as woken:
            began = time.monotonic()
            postgresql.rows(f"SELECT pg_terminate_backend({listening_backend(distributor)})")
            assert woken.result(30) - began < PROMPTLY, "it is woken because it may have missed notifications"
        listens_again(distributor, since)
        assert time.monotonic() - began < PROMPTLY
        assert wakes(distributor, postgresql.store)
        postgresql.claim(10, store=postgresql.store)


def test_a_worker_is_woken_for_missed_tasks_when_it_listens_again(postgresql, start, proxy):
    """It is woken when it listens again, not only by its next poll, which is a minute away."""
    distributor = start(listen_url=proxy.url)
    distributor._poll_without_listener = MINUTE.total_seconds()
    before = proxy.accepted
    proxy.pause()
    until(lambda: not distributor.health.listening)
    until(lambda: proxy.accepted > before)  # its next attempt gets no answer
    with Sleeper(distributor).asleep() as woken:
        add(postgresql.store)
        proxy.resume()
        assert woken.result(30)
        listens_again(distributor, 1)
    assert len(postgresql.claim(10, store=postgresql.store)) == 1
    assert wakes(distributor, postgresql.store)


def test_a_worker_polls_while_it_cannot_listen_and_reports_why(postgresql, start, proxy, caplog):
    distributor = start(listen_url=proxy.url)
    with Claimer(postgresql.store, distributor) as claimer:
        proxy.refuse()
        proxy.drop()
        until(lambda: not distributor.health.listening)
        for _ in range(3):
            task, committed = add(postgresql.store)
            assert claimer.lag(task, committed) < DEAF + PROMPTLY
            assert not distributor.health.listening
            assert "OperationalError" in distributor.health.error
        proxy.accept()
        listens_again(distributor, 1)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, "one for the outage, not one for each attempt"
    assert "polling" in warnings[0].getMessage()


def test_an_unresponsive_network_is_noticed(postgresql, start, proxy):
    """Nothing arrives, not even the end of the connection, so the distributor must ask."""
    distributor = start(listen_url=proxy.url)
    with Claimer(postgresql.store, distributor) as claimer:
        for _ in range(2):
            since = distributor.health.connections
            proxy.pause()
            until(lambda: not distributor.health.listening)
            task, committed = add(postgresql.store)
            assert claimer.lag(task, committed) < DEAF + PROMPTLY
            proxy.resume()
            listens_again(distributor, since)
    assert proxy.accepted >= 3


def test_the_listener_pings_often_enough_to_keep_firewall_connections_open(postgresql):
    distributor = create_work_distributor(postgresql.store)
    assert distributor._listener.ping_every + distributor._listener.answer_timeout <= 90


def test_a_frozen_server_process_is_noticed(own_store, make):
    distributor = make(own_store)
    distributor.start()
    until(lambda: distributor.health.listening)
    frozen = []
    try:
        for _ in range(2):
            since = distributor.health.connections
            frozen.append(listening_backend(distributor))
            os.kill(frozen[-1], signal.SIGSTOP)
            listens_again(distributor, since)
            assert listening_backend(distributor) != frozen[-1]
            assert wakes(distributor, own_store)
            own_store.claim_ready_task(10, worker_id=uuid7())
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def test_a_worker_listens_again_after_a_crash_of_the_server(own_cluster, own_store, make):
    distributor = make(own_store)
    distributor.start()
    until(lambda: distributor.health.listening)
    with Claimer(own_store, distributor) as claimer:
        task, committed = add(own_store)
        assert claimer.lag(task, committed) < PROMPTLY
        own_cluster.restart("immediate")
        back = time.monotonic()
        task, committed = add(own_store)
        assert claimer.lag(task, back) < PROMPTLY
        listens_again(distributor, 1)
    again = make(own_store)
    again.start()
    until(lambda: again.health.listening)
    assert wakes(again, own_store)


def test_many_consecutive_connection_losses_lose_no_task(postgresql, start):
    distributor = start()
    chance = random.Random(5)
    with Claimer(postgresql.store, distributor, tells=False) as claimer:
        for _ in range(8):
            connection = distributor._listener._connection
            if connection is not None and not connection.closed:
                postgresql.rows(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
            time.sleep(chance.uniform(0, 0.05))  # a random moment of its reconnection
            task, committed = add(postgresql.store)
            assert claimer.lag(task, committed) < DEAF + PROMPTLY
    assert distributor.health.connections > 2


# The interval between attempts


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("refused"), ConnectionRefusedError("refused"), RuntimeError("no token")]
)
def test_pauses_between_connection_attempts_grow(monkeypatch, error):
    """This holds for every error, because an engine's creator may raise its own."""
    asked, tried = [], []

    def longest_pause(_, longest):
        if threading.current_thread() is listener:  # a listener of an earlier test may still retry
            asked.append(longest)
        return longest

    monkeypatch.setattr(random, "uniform", longest_pause)

    def refused():
        tried.append(time.monotonic())
        raise error

    listener = Listener(refused, SPOKEN, on_notify=lambda _: None, on_change=lambda: None)
    listener.start()
    until(lambda: len(tried) == 4)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    listener.close()
    assert not listener.is_alive()
    assert all(pause > at_least * 0.95 for pause, at_least in zip(pauses, asked, strict=False)), (pauses, asked)
    assert sum(asked[:3]) > 0.33, asked
    assert asked[2] > 3 * asked[0]


def test_pauses_grow_if_connections_break_as_soon_as_the_listener_listens(postgresql, monkeypatch, caplog):
    """This happens behind a load balancer whose server is down. Connecting is not a success if no notification ever arrives."""
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    listened = []

    def changed():
        if listener.health.listening:
            listened.append(time.monotonic())
            postgresql.rows(f"SELECT pg_terminate_backend({listener._connection.info.backend_pid})")

    listener = Listener(
        lambda: psycopg.connect(plain(postgresql.url)), SPOKEN, on_notify=lambda _: None, on_change=changed
    )
    listener.start()
    until(lambda: len(listened) == 4)
    listener.close()
    assert listened[-1] - listened[0] > 0.33  # 0.05, 0.1, 0.2
    assert caplog.messages


def test_a_listener_that_never_connected_logs_only_one_warning(make, proxy, caplog):
    proxy.refuse()
    distributor = make(listen_url=proxy.url)
    connect, tries = distributor._listener.connect, []
    distributor._listener.connect = lambda: tries.append(None) or connect()
    distributor.start()
    until(lambda: len(tries) > 3)
    assert not distributor.health.listening
    assert "OperationalError" in distributor.health.error
    assert len(caplog.messages) == 1
    proxy.accept()
    listens_again(distributor, 0)


def test_a_failed_connection_attempt_wakes_no_worker(start, proxy):
    """A failed attempt is no sign of new work. Polling finds new work meanwhile."""
    distributor = start(listen_url=proxy.url)
    proxy.refuse()
    proxy.drop()
    until(lambda: not distributor.health.listening)
    tries, connect = [], distributor._listener.connect

    def counted():
        tries.append(None)
        return connect()

    distributor._listener.connect = counted
    distributor._poll_without_listener = MINUTE.total_seconds()
    with Sleeper(distributor).asleep() as woken:
        until(lambda: len(tries) >= 3)
        assert not woken.done()


# The server that it listens to


def test_the_listen_url_is_used_only_for_listening(postgresql, start, proxy):
    with Proxy(postgresql.url) as other:
        store = Store(postgresql.own(make_engine(other.url)))
        distributor = start(store, listen_url=proxy.url, quick=False)
        assert wakes(distributor, store)
        assert (proxy.connections, proxy.accepted) == (1, 1), "only the listener uses this URL"
        assert other.connections == 1
        distributor.close()
        until(lambda: proxy.connections == 0)


def test_a_listen_url_of_another_database_is_detected(postgresql, cluster, make, caplog):
    elsewhere = cluster.create_database()
    distributor = make(listen_url=elsewhere)
    distributor.start()
    until(lambda: caplog.messages)
    until(lambda: not distributor._listener.is_alive())
    assert not distributor.health.listening
    assert "another database" in distributor.health.error
    distributor.close()
    cluster.drop_database(elsewhere)


@pytest.mark.parametrize(
    ("url", "error"), [("nowhere", ConfigurationError), ("mysql://host/database", UnsupportedDatabase)]
)
def test_a_listen_url_without_postgresql_is_refused_immediately(postgresql, url, error):
    """Otherwise, the thread would try to connect for ever."""
    with pytest.raises(error):
        create_work_distributor(postgresql.store, listen_url=url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pooler_that_forwards_no_notifications_is_detected_and_the_worker_polls(postgresql, make, caplog, kind):
    with pooling(kind, postgresql.url, pool_size=2) as pooler:
        engine = postgresql.own(create_engine(pooler.url, connect_args={"prepare_threshold": None}))
        distributor = make(Store(engine))
        distributor.start()
        until(lambda: caplog.messages)
        until(lambda: not distributor._listener.is_alive())
        assert (distributor.health.listening, distributor.health.connections) == (False, 0)
        assert "pooler" in distributor.health.error
        with Claimer(distributor.store, distributor) as claimer:
            for _ in range(3):
                task, committed = add(postgresql.store)
                assert claimer.lag(task, committed) < DEAF + PROMPTLY
        assert "pooler" in distributor.health.error
        (message,) = caplog.messages
        assert "listen_url" in message
        engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_a_listen_url_bypasses_the_pooler(postgresql, start, kind):
    with pooling(kind, postgresql.url, pool_size=2) as pooler:
        engine = postgresql.own(create_engine(pooler.url, connect_args={"prepare_threshold": None}))
        distributor = start(Store(engine), listen_url=postgresql.url)
        assert wakes(distributor, distributor.store)
        distributor.close()
        engine.dispose()


def test_a_network_that_stalls_during_the_delivery_check_is_not_taken_for_a_pooler(postgresql, proxy):
    """Otherwise, it would never listen again. The network stalls just before the other connection notifies this one."""
    opened = []

    def connect():
        opened.append(None)
        if len(opened) == 2:
            proxy.pause()
        return psycopg.connect(plain(postgresql.url if len(opened) == 2 else proxy.url))

    listener = Listener(connect, SPOKEN, on_notify=lambda _: None, on_change=lambda: None, answer_timeout=0.5)
    listener.start()
    until(lambda: len(opened) == 3 or not listener.is_alive())
    proxy.resume()
    assert listener.is_alive(), listener.health.error
    until(lambda: listener.health.listening)
    listener.close()


def test_a_notifying_connection_that_stalls_is_given_up(postgresql, proxy):
    """The network stalls just after the connection was opened. Nothing else would end the wait for its answer."""
    spoken = []

    def speak():
        spoken.append(psycopg.connect(plain(proxy.url if not spoken else postgresql.url)))
        if len(spoken) == 1:
            proxy.pause()
        return spoken[-1]

    def connect():
        return psycopg.connect(plain(postgresql.url))

    listener = Listener(
        connect, SPOKEN, connect_notifier=speak, on_notify=lambda _: None, on_change=lambda: None, answer_timeout=0.5
    )
    listener.start()
    try:
        until(lambda: listener.health.listening, seconds=PROMPTLY)
    finally:
        proxy.resume()
        listener.close()


# The end


def test_close_ends_a_listener_that_waits_for_a_silent_server(start, proxy):
    distributor = start(listen_url=proxy.url)
    proxy.pause()
    began = time.monotonic()
    distributor.close()
    assert time.monotonic() - began < PROMPTLY
    assert not distributor._listener.is_alive()


def test_close_does_not_wait_forever_for_an_unresponsive_connection(make, proxy, monkeypatch):
    assert module._CLOSE_TIMEOUT <= 5
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT", 0.5)
    proxy.pause()
    distributor = make(listen_url=proxy.url)
    distributor.start()
    until(lambda: proxy.accepted)
    began = time.monotonic()
    distributor.close()
    assert time.monotonic() - began < PROMPTLY
    proxy.resume()
    until(lambda: not distributor._listener.is_alive())
    until(lambda: proxy.connections == 0)
    assert not distributor.health.listening


@pytest.mark.parametrize("fault", ["refuse", "pause"])
def test_close_does_not_wait_for_an_unavailable_database(postgresql, start, proxy, fault):
    """Its row in `sleeping_workers` expires."""
    store = Store(postgresql.own(make_engine(proxy.url)))
    distributor = start(store)
    woken = Sleeper(distributor).falls_asleep()
    getattr(proxy, fault)()
    if fault == "refuse":
        proxy.drop()
        distributor.wake()
        woken = None
    began = time.monotonic()
    closing = threading.Thread(target=distributor.close, daemon=True)
    closing.start()
    closing.join(30)
    late = closing.is_alive()
    proxy.accept()
    proxy.resume()
    closing.join()
    assert not late, f"{time.monotonic() - began:.1f} s"
    if woken is not None:
        assert woken.result(30) - began < PROMPTLY


def test_close_during_a_reconnection_leaves_no_thread_or_connection(postgresql, start):
    chance = random.Random(9)
    for _ in range(6):
        distributor = start()
        pid = listening_backend(distributor)
        postgresql.rows(f"SELECT pg_terminate_backend({pid})")
        time.sleep(chance.uniform(0, 0.05))  # a random moment of its reconnection
        began = time.monotonic()
        distributor.close()
        assert time.monotonic() - began < PROMPTLY
        assert not distributor._listener.is_alive()
        assert not distributor.health.listening
    postgresql.engine.dispose()
    others = f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS}"
    until(lambda: postgresql.rows(others) == [(0,)])
