"""The contract on two versions of PostgreSQL: half of its cases run on the newest that the tests know, always the same ones."""

from __future__ import annotations

import zlib

import pytest

from tests import postgres
from tests.conftest import Server
from tests.reuse import Reused


def is_on_newest(case: str) -> bool:
    """Return whether the case of this id runs on the newest server. Any bit but the one that `taken_elsewhere` goes by."""
    return zlib.crc32(case.encode()) >> 8 & 1 == 1


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The server of this case. A report of a failure names it."""
    chosen: Server = request.getfixturevalue("newest_server" if is_on_newest(request.node.nodeid) else "first_server")
    request.node.add_report_section("setup", "PostgreSQL", f"{chosen.cluster.source}, {chosen.cluster.version}")
    return chosen


@pytest.fixture
def cluster(server: Server) -> postgres.Cluster:
    return server.cluster


@pytest.fixture
def migrated_postgresql(server: Server) -> str:
    return server.migrated


@pytest.fixture
def reused_postgresql(server: Server) -> Reused:
    return server.reused
