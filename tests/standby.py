"""A PostgreSQL server that follows another one and can be promoted."""

from __future__ import annotations

import shutil
import time

import psycopg
from sqlalchemy.engine import URL, make_url

from tests import postgres
from tests.waiting import until

WROTE = "cannot set transaction read-write mode during recovery"
"""The error that a standby returns and logs when a read-write transaction is to begin."""


def following(primary: postgres.Cluster) -> postgres.Cluster:
    """Return a new standby of this server. The server stops briefly while its files are copied."""
    own = primary._own
    server = postgres._Server(own._flags)
    try:
        primary.halt()
        server._postgres = own._postgres
        shutil.copytree(own.data, server.data, ignore=shutil.ignore_patterns("postmaster.*"))
        primary.launch()
        (server.data / "standby.signal").touch()
        with (server.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"\nprimary_conninfo = 'host=127.0.0.1 port={own.port} user=postgres'\n")
            settings.write("wal_retrieve_retry_interval = '100ms'\n")
        server.give(server.data)
        server.launch()
        url = URL.create("postgresql", "postgres", host="127.0.0.1", port=server.port, database="postgres")
        standby = postgres.Cluster(url, primary.source, server)
        until(lambda: _asked(primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == 1)
    except BaseException:
        server.stop()
        raise
    return standby


def promote(standby: postgres.Cluster) -> float:
    """Promote the standby to a primary, and return how many seconds that took."""
    began = time.monotonic()
    assert _asked(standby, "SELECT pg_promote()") is True
    return time.monotonic() - began


def hosts(url: str, *servers: postgres.Cluster, **options: str) -> str:
    """Return the URL with all these servers as hosts, in the order in which libpq tries them."""
    names = ",".join("127.0.0.1" for _ in servers)
    ports = ",".join(str(make_url(server.url).port) for server in servers)
    made = make_url(url).set(host=None, port=None)
    return made.update_query_dict({"host": names, "port": ports, **options}).render_as_string(hide_password=False)


def _asked(server: postgres.Cluster, question: str) -> object:
    address = make_url(server.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        [row] = connection.execute(question.encode()).fetchall()
    return row[0]
