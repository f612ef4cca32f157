"""`outboxq upgrade` waits for a server that is still starting, as in a container that has just been created."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from click.testing import CliRunner
from sqlalchemy.engine import make_url

from outboxq.cli import main

STARTING = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"


@contextmanager
def starting(url: str, *, refusals: int) -> Iterator[str]:
    """A proxy for the server at the URL. It answers the first `refusals` connections as a starting server does."""
    real, front = make_url(url), socket.create_server(("127.0.0.1", 0))

    def refuse(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client may have disconnected
            if connection.recv(8)[4:] == (80877103).to_bytes(4, "big"):  # the client requests TLS first
                connection.sendall(b"N")
                connection.recv(4096)
            connection.sendall(b"E" + (len(STARTING) + 4).to_bytes(4, "big") + STARTING)

    def pass_on(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while part := one.recv(65536):
                other.sendall(part)
            other.shutdown(socket.SHUT_WR)

    def pass_both_ways(client: socket.socket) -> None:
        with client, socket.create_connection((real.host, real.port)) as server:
            back = threading.Thread(target=pass_on, args=(server, client))
            back.start()
            pass_on(client, server)
            back.join()

    def serve() -> None:
        with suppress(OSError):  # the socket was shut down
            for number in count():
                client, _ = front.accept()
                threading.Thread(target=refuse if number < refusals else pass_both_ways, args=(client,)).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield real.set(host="127.0.0.1", port=front.getsockname()[1]).render_as_string(hide_password=False)
    finally:
        front.shutdown(socket.SHUT_RDWR)  # wakes the thread
        front.close()
        thread.join()


def upgrade(url: str, *words: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, ["upgrade", url, *words])
    return result.exit_code, result.stderr.splitlines()


def test_upgrade_waits_and_logs_the_reason_once(postgresql) -> None:
    with starting(postgresql.url, refusals=2) as url:
        code, (waiting, done) = upgrade(url)
    assert code == 0
    assert waiting.startswith("outboxq: waiting up to 10 s for the database: connection failed: ")
    assert waiting.endswith("FATAL: the database system is starting up")
    assert "is now" in done


def test_the_wait_for_the_server_ends(postgresql) -> None:
    with starting(postgresql.url, refusals=1000) as url:
        code, (waiting, error) = upgrade(url, "--wait-for-server", "600ms")
        assert (code, waiting[:36]) == (69, "outboxq: waiting up to 600 ms for th")
        assert error.startswith("outboxq: the database cannot be used: ")
        code, (error,) = upgrade(url, "--wait-for-server", "0s")
        assert (code, error.endswith("the database system is starting up")) == (69, True)


def test_upgrade_waits_for_a_closed_port_but_not_for_an_unknown_host() -> None:
    code, (waiting, _error) = upgrade("postgresql://me:canary@127.0.0.1:1/shop", "--wait-for-server", "600ms")
    assert (code, "Connection refused" in waiting, "canary" in waiting) == (69, True, False)
    code, (error,) = upgrade("postgresql://me@nowhere.invalid/shop")
    assert (code, error.startswith("outboxq: the database cannot be used: ")) == (69, True)
