"""Run the contract tests on two versions of PostgreSQL: a fixed half of the cases uses the newest version that the tests know."""

from __future__ import annotations

import zlib

import pytest

from tests import postgres
from tests.conftest import Server
from tests.reuse import Reused


def is_on_newest(case: str) -> bool:
    """Return whether the case with this id runs on the newest server. `taken_elsewhere` uses a different bit of the hash."""
    return zlib.crc32(case.encode()) >> 8 & 1 == 1


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """Return the server for this case. Failure reports name it."""
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
