"""The tests' proxy, which breaks the network on demand: each fault, as seen by a client of PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

from tests import postgres
from tests.proxy import Proxy
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(cluster: postgres.Cluster) -> Iterator[str]:
    """Return the URL of a database with an empty table."""
    url = cluster.create_database()
    with connect(url) as connection:
        connection.execute("CREATE TABLE written (word text)")
    yield url
    cluster.drop_database(url)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy
    with connect(url) as connection:
        connection.execute("TRUNCATE written")


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """A thread pool for calls that are not answered immediately."""
    with ThreadPoolExecutor() as aside:
        yield aside


def test_without_faults_data_passes_and_connections_are_counted(proxy: Proxy) -> None:
    assert (proxy.connections, proxy.accepted) == (0, 0)
    with connect(proxy.url) as first, connect(proxy.url) as second:
        assert ask(first, "SELECT 1") == ask(second, "SELECT 1") == 1
        long = "x" * 10_000_000
        assert ask(first, "SELECT %s", long) == long
        assert (proxy.connections, proxy.accepted) == (2, 2)
    until(lambda: proxy.connections == 0)
    assert proxy.accepted == 2


def test_only_the_host_and_port_of_the_url_differ(url: str, proxy: Proxy) -> None:
    given, made = make_url(url), make_url(proxy.url)
    assert made.host == "127.0.0.1"
    assert made.port not in {None, given.port}
    assert made.set(host=given.host, port=given.port, query={}) == given


def test_the_last_message_of_a_server_is_passed_on(url: str, proxy: Proxy) -> None:
    with connect(proxy.url) as connection:
        with connect(url) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    until(lambda: proxy.connections == 0)


def test_a_pause_delays_all_data_until_it_ends(url: str, proxy: Proxy, aside: ThreadPoolExecutor) -> None:
    with connect(proxy.url) as connection:
        proxy.pause()
        insert = aside.submit(connection.execute, "INSERT INTO written VALUES ('late')")
        arrived = aside.submit(connect, proxy.url)
        until(lambda: proxy.accepted == 2)
        assert select.select([connection.fileno()], [], [], 0.2) == ([], [], [])
        assert not insert.done()
        assert not arrived.done()
        assert states(url) == ["idle"], "only the earlier connection has reached the server"
        assert proxy.connections == 2
        proxy.resume()
        insert.result(60)
        arrived.result(60).close()
    assert written(url) == ["late"]


def test_a_pause_also_delays_an_answer_that_is_on_its_way(url: str, proxy: Proxy, aside: ThreadPoolExecutor) -> None:
    with connect(url) as holder, connect(proxy.url) as connection:
        ask(holder, "SELECT pg_advisory_lock(1)")
        answer = aside.submit(ask, connection, "SELECT pg_advisory_xact_lock(1)::text")
        until(lambda: states(url) == ["active", "idle"])
        proxy.pause()
        ask(holder, "SELECT pg_advisory_unlock(1)")
        until(lambda: states(url) == ["idle", "idle"])
        assert select.select([connection.fileno()], [], [], 0.2) == ([], [], [])
        proxy.resume()
        assert answer.result(60) == ""


def test_a_pause_hides_a_closed_client_from_the_server(url: str, proxy: Proxy) -> None:
    connection = connect(proxy.url, autocommit=False)
    connection.execute("INSERT INTO written VALUES ('lost')")
    proxy.pause()
    connection.close()
    until(lambda: states(url) == ["idle in transaction"])  # connections of earlier tests may still be closing
    assert proxy.connections == 1
    proxy.resume()
    until(lambda: states(url) == [])
    assert written(url) == []
    until(lambda: proxy.connections == 0)


@pytest.mark.parametrize("paused", [False, True])
def test_a_drop_ends_every_connection_on_both_sides(url: str, proxy: Proxy, paused: bool) -> None:
    with connect(proxy.url) as first, connect(proxy.url, autocommit=False) as second:
        second.execute("INSERT INTO written VALUES ('lost')")
        if paused:
            proxy.pause()
        proxy.drop()
        assert proxy.connections == 0
        for connection in (first, second):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
            assert connection.closed
    until(lambda: states(url) == [])
    assert written(url) == []
    proxy.resume()
    with connect(proxy.url) as third:
        assert ask(third, "SELECT 1") == 1


def test_a_drop_resets_the_connection(proxy: Proxy) -> None:
    with plain(proxy.url) as client:
        until(lambda: proxy.connections == 1)
        proxy.drop()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_only_existing_connections_work_while_the_proxy_refuses(proxy: Proxy) -> None:
    with connect(proxy.url) as old:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            connect(proxy.url)
        assert ask(old, "SELECT 1") == 1
        assert (proxy.connections, proxy.accepted) == (1, 1)
        proxy.accept()
        with connect(proxy.url) as new:
            assert ask(new, "SELECT 1") == 1


def test_a_commit_whose_answer_is_lost_is_still_committed(url: str, proxy: Proxy) -> None:
    with connect(proxy.url) as bystander, connect(proxy.url, autocommit=False) as connection:
        connection.execute("INSERT INTO written VALUES ('kept')")
        proxy.cut_after(b"COMMIT")
        assert proxy.armed
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert connection.closed
        assert written(url) == ["kept"]
        assert not proxy.armed
        until(lambda: proxy.connections == 1)
        assert ask(bystander, "SELECT 1") == 1


def test_an_answer_in_many_pieces_is_lost_completely_and_once(url: str, proxy: Proxy) -> None:
    for _ in range(2):
        with connect(proxy.url) as connection:
            connection.execute("SELECT 'the mark'")  # an earlier message does not count
            proxy.cut_after(b"the mark")
            assert ask(connection, "SELECT 1") == 1
            with pytest.raises(psycopg.OperationalError):
                connection.execute(
                    "INSERT INTO written SELECT 'the mark' FROM generate_series(1, 9) RETURNING repeat('x', 1000000)"
                )
    assert written(url) == ["the mark"] * 18


def test_a_pattern_is_recognised_across_pieces() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = URL.create("postgresql", host="127.0.0.1", port=listener.getsockname()[1])
        with Proxy(address.render_as_string()) as proxy, plain(proxy.url) as client:
            server, _ = listener.accept()
            with server:
                proxy.cut_after(b"COMMIT")
                client.sendall(b"COM")
                assert server.recv(100) == b"COM"
                client.sendall(b"MIT")
                assert server.recv(100) == b"MIT"
                server.sendall(b"C\0\0\0\x0bCOMMIT\0")
                server.sendall(b"Z\0\0\0\5I")
                with pytest.raises(ConnectionResetError):
                    client.recv(1)


def test_the_server_may_listen_on_a_unix_socket() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as directory,  # a socket's path must be short
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"{directory}/.s.PGSQL.5433")
        listener.listen()
        with Proxy(f"postgresql+psycopg://me@/db?host={directory}&port=5433") as proxy, plain(proxy.url) as client:
            assert {"host", "port"}.isdisjoint(make_url(proxy.url).query)
            server, _ = listener.accept()
            with server:
                client.sendall(b"there")
                assert server.recv(100) == b"there"
                server.sendall(b"back")
                assert client.recv(100) == b"back"
                proxy.drop()
                assert server.recv(100) == b""


def test_an_unreachable_server_is_an_error_only_for_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Proxy(f"postgresql://127.0.0.1:{port}/db") as proxy, pytest.raises(psycopg.OperationalError):
        connect(proxy.url)


@pytest.mark.parametrize("paused", [False, True])
def test_closing_the_proxy_leaves_nothing_behind(url: str, paused: bool) -> None:
    before = set(threading.enumerate())  # some of these threads may end during the test
    with Proxy(url) as proxy:
        connection = connect(proxy.url)
        if paused:
            proxy.pause()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(proxy.url)
    until(lambda: states(url) == [])
    gc.collect()  # an open socket would cause a warning
    assert set(threading.enumerate()) <= before


def test_a_client_accepted_while_the_proxy_closes_is_closed() -> None:
    go_on = threading.Event()
    with Proxy("postgresql://127.0.0.1:1/db") as proxy:
        proxy._loop.call_soon_threadsafe(go_on.wait, 60)
        clients = [plain(proxy.url) for _ in range(5)]
        end = asyncio.run_coroutine_threadsafe(proxy._close(), proxy._loop)
        go_on.set()
        end.result(60)
    for client in clients:
        client.close()
    gc.collect()  # an open socket would cause a warning


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(address, autocommit=autocommit)


def plain(url: str) -> socket.socket:
    """Return a client that speaks no protocol."""
    address = make_url(url)
    return socket.create_connection((address.host, address.port), timeout=20)


def ask(connection: psycopg.Connection[Any], query: str, *values: object) -> object:
    row = connection.execute(query, values or None).fetchone()
    assert row is not None
    return row[0]


def written(url: str) -> list[str]:
    with connect(url) as connection:
        return [word for (word,) in connection.execute("SELECT word FROM written")]


def states(url: str) -> list[str]:
    """Return the states of all other connections to the database, in alphabetical order."""
    with connect(url) as connection:
        query = (
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state IS NOT NULL ORDER BY state"
        )
        return [state for (state,) in connection.execute(query)]
