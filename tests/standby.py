"""A PostgreSQL server that follows another, and is promoted."""

from __future__ import annotations

import shutil
import time

import psycopg
from sqlalchemy.engine import URL, make_url

from tests import postgres
from tests.waiting import until

WROTE = "cannot set transaction read-write mode during recovery"
"""What a standby answers, and logs, where a transaction that writes is to begin."""


def following(primary: postgres.Cluster) -> postgres.Cluster:
    """A new server that streams from this one, which is stopped for a moment: its files are copied."""
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
    """Have it become a primary; returns the seconds that took."""
    began = time.monotonic()
    assert _asked(standby, "SELECT pg_promote()") is True
    return time.monotonic() - began


def hosts(url: str, *servers: postgres.Cluster, **options: str) -> str:
    """The URL with all of these as its hosts, in this order, as libpq tries them."""
    names = ",".join("127.0.0.1" for _ in servers)
    ports = ",".join(str(make_url(server.url).port) for server in servers)
    made = make_url(url).set(host=None, port=None)
    return made.update_query_dict({"host": names, "port": ports, **options}).render_as_string(hide_password=False)


def _asked(server: postgres.Cluster, question: str) -> object:
    address = make_url(server.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        [row] = connection.execute(question.encode()).fetchall()
    return row[0]
