"""The tests' pooler, which lends server connections for one transaction: it provides what PgBouncer's clients rely on, and lacks what they
lack.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from tests import postgres
from tests.pooler import Pooler
from tests.waiting import until

pytestmark = pytest.mark.slow

PID = "SELECT pg_backend_pid()"


@pytest.fixture(scope="module")
def url(cluster: postgres.Cluster) -> Iterator[str]:
    """Return the URL of a database with an empty table."""
    url = cluster.create_database()
    with connect(url) as connection:
        connection.execute("CREATE TABLE written (word text)")
    yield url
    cluster.drop_database(url)


@pytest.fixture
def direct(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection that bypasses the pooler."""
    with connect(url) as connection:
        yield connection
        connection.execute("TRUNCATE written")


@pytest.fixture
def pooler(direct: psycopg.Connection[Any], url: str) -> Iterator[Pooler]:
    with Pooler(url, pool_size=2) as pooler:
        yield pooler


def test_the_server_connection_changes_only_between_transactions(pooler: Pooler) -> None:
    with connect(pooler.url) as client:
        used = []
        for _ in range(4):
            with client.transaction():
                pids = {ask(client, PID) for _ in range(3)}
            assert len(pids) == 1
            used += pids
        assert used[0] != used[1]
        assert used[:2] == used[2:], "the server connections take turns"
        assert [ask(client, PID) for _ in range(4)] == used, "this also holds without BEGIN"


def test_overlapping_transactions_do_not_share_a_connection(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    with connect(pooler.url) as first, connect(pooler.url) as second:
        for _ in range(3):
            with first.transaction(), second.transaction():
                first.execute("INSERT INTO written VALUES ('first')")
                mine, other = ask(first, PID), ask(second, PID)
                assert mine != other
                assert ask(second, "SELECT count(*) FROM written WHERE word = 'first'") == ask(
                    direct, "SELECT count(*) FROM written"
                )
                assert (ask(first, PID), ask(second, PID)) == (mine, other)
    assert ask(direct, "SELECT count(*) FROM written") == 3
    assert pooler.accepted == 2


def test_a_failed_transaction_keeps_its_server_connection_until_the_rollback(pooler: Pooler) -> None:
    with connect(pooler.url) as first, connect(pooler.url) as second:
        with pytest.raises(psycopg.errors.DivisionByZero), first.transaction():
            first.execute("INSERT INTO written VALUES ('lost')")
            with pytest.raises(psycopg.errors.UndefinedTable), first.transaction():  # a savepoint
                first.execute("SELECT * FROM nowhere")
            taken = ask(first, PID)
            assert taken not in {ask(second, PID) for _ in range(3)}
            first.execute("SELECT 1/0")
        assert ask(second, "SELECT count(*) FROM written") == 0
        assert taken in {ask(second, PID) for _ in range(2)}


def test_listening_does_not_follow_the_client_to_the_next_transaction(pooler: Pooler) -> None:
    with connect(pooler.url) as client:
        client.execute("LISTEN x")
        assert listening(client) == []
        assert listening(client) == ["x"], "the LISTEN stays on the server connection for the next client"
        assert listening(client) == []


def test_a_notification_never_reaches_the_client(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    with connect(pooler.url) as client:
        client.execute("LISTEN x")
        direct.execute("NOTIFY x")
        until(lambda: pooler.discarded == 1)
        assert len({ask(client, PID) for _ in range(2)}) == 2
        assert list(client.notifies(timeout=0)) == []


def test_settings_are_left_behind_for_others(pooler: Pooler) -> None:
    with connect(pooler.url) as first, connect(pooler.url) as second:
        first.execute("SET search_path TO left_behind")
        assert [ask(second, "SHOW search_path") for _ in range(2)] == ['"$user", public', "left_behind"]


def test_prepared_statements_are_left_behind_too(pooler: Pooler) -> None:
    with connect(pooler.url, prepare_threshold=0) as client:
        with client.transaction():
            assert ask(client, "SELECT 1") == 1
        with client.transaction(), pytest.raises(psycopg.errors.InvalidSqlStatementName):
            ask(client, "SELECT 1")


def test_more_clients_than_server_connections_take_turns(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    with ThreadPoolExecutor() as aside, connect(pooler.url) as first, connect(pooler.url) as second:
        others = [connect(pooler.url) for _ in range(3)]
        with first.transaction():
            held = ask(first, PID)
            with second.transaction():
                ask(second, PID)
                answers = []
                for waiting, other in enumerate(others, 1):
                    answers.append(aside.submit(ask, other, PID))
                    until(lambda wanted=waiting: pooler.waiting == wanted)
                assert backends(direct) == 2
                assert not any(answer.done() for answer in answers)
            freed = [answer.result(60) for answer in answers]
            assert len(set(freed)) == 1
            assert held not in freed
        assert pooler.waiting == 0
        assert backends(direct) == 2
        for other in others:
            other.close()


def test_many_simultaneous_clients_are_all_served(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    def work(word: str) -> None:
        with connect(pooler.url) as client:
            for _ in range(20):
                with client.transaction():
                    pid = ask(client, PID)
                    client.execute("INSERT INTO written VALUES (%s)", [word])
                    assert ask(client, PID) == pid

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(work, "abcdefgh"))
    rows = direct.execute("SELECT word, count(*) FROM written GROUP BY word ORDER BY word").fetchall()
    assert rows == [(word, 20) for word in "abcdefgh"]
    assert backends(direct) == 2


def test_pipelines_and_copies_are_pooled_as_transactions(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    with connect(pooler.url) as client:
        for _ in range(3):
            with client.pipeline() as pipeline:
                first = client.execute(PID)
                client.execute("INSERT INTO written VALUES ('sent')")
                second = client.execute(PID)
                pipeline.sync()
                assert first.fetchone() == second.fetchone()
            with client.cursor().copy("COPY written FROM STDIN") as copy:
                copy.write_row(["copied"])
            with (
                pytest.raises(psycopg.errors.BadCopyFileFormat),
                client.cursor().copy("COPY written FROM STDIN") as copy,
            ):
                copy.write_row(["too", "many"])
            with client.cursor().copy("COPY written TO STDOUT") as copy:
                assert ("copied",) in list(copy.rows())
        assert len({ask(client, PID) for _ in range(2)}) == 2
    assert ask(direct, "SELECT count(*) FROM written") == 6


def test_a_disconnect_closes_the_server_connection_only_in_a_transaction(
    pooler: Pooler, direct: psycopg.Connection[Any]
) -> None:
    with connect(pooler.url) as client:
        before = {ask(client, PID) for _ in range(2)}
    until(lambda: pooler.connections == 0)
    client = connect(pooler.url, autocommit=False)
    client.execute("INSERT INTO written VALUES ('lost')")
    client.close()
    until(lambda: backends(direct) == 1)
    with connect(pooler.url) as client:
        after = {ask(client, PID) for _ in range(2)}
    assert len(before & after) == 1
    assert len(after) == 2
    assert ask(direct, "SELECT count(*) FROM written") == 0


def test_a_server_connection_that_ends_is_replaced(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    with connect(pooler.url) as idle, connect(pooler.url, autocommit=False) as busy:
        until(lambda: backends(direct) == 1)  # an earlier test's connections may still be closing
        ask(busy, PID)
        direct.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with pytest.raises(psycopg.errors.AdminShutdown):
            ask(busy, PID)
        until(lambda: backends(direct) == 0)
        until(lambda: (pooler.connections, pooler.servers) == (1, 0))
        assert len({ask(idle, PID) for _ in range(2)}) == 2


def test_a_client_that_the_server_refuses_gets_the_reason(cluster: postgres.Cluster) -> None:
    nowhere = make_url(cluster.url).set(database="nowhere").render_as_string(hide_password=False)
    with Pooler(nowhere, pool_size=1) as pooler:
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError, match='"nowhere" does not exist'):
                connect(pooler.url)


def test_sqlalchemy_works_without_prepared_statements(pooler: Pooler, direct: psycopg.Connection[Any]) -> None:
    engine = create_engine(pooler.url, connect_args={"prepare_threshold": None})
    for number in range(10):
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO written VALUES (:word)"), {"word": str(number)})
    engine.dispose()
    assert ask(direct, "SELECT count(*) FROM written") == 10


def test_closing_the_pooler_leaves_nothing_behind(direct: psycopg.Connection[Any], url: str) -> None:
    before = set(threading.enumerate())  # some of these threads may end during the test
    with ThreadPoolExecutor(1) as aside:
        with Pooler(url, pool_size=1) as pooler:
            holder, waiter = connect(pooler.url, autocommit=False), connect(pooler.url)
            ask(holder, PID)
            answer = aside.submit(ask, waiter, PID)
            until(lambda: pooler.waiting == 1)
        with pytest.raises(psycopg.OperationalError):
            answer.result(60)
    for client in (holder, waiter):
        client.close()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(pooler.url)
    until(lambda: backends(direct) == 0)
    gc.collect()  # an open socket would cause a warning
    assert set(threading.enumerate()) <= before


def connect(url: str, *, autocommit: bool = True, prepare_threshold: int | None = None) -> psycopg.Connection[Any]:
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(address, autocommit=autocommit, prepare_threshold=prepare_threshold)


def ask(connection: psycopg.Connection[Any], query: str) -> object:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def listening(connection: psycopg.Connection[Any]) -> list[str]:
    return [channel for (channel,) in connection.execute("SELECT * FROM pg_listening_channels()")]


def backends(direct: psycopg.Connection[Any]) -> object:
    """Return the number of other connections to the database."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    return ask(direct, query)
