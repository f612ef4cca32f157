from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests import postgres
from tests.conftest import Database
from tests.reuse import Reused


@pytest.fixture
def untouched(reused_postgresql: Reused, request: pytest.FixtureRequest) -> Database:
    """Return a new database. In a reused one, PostgreSQL still has the statistics of earlier tests' dead rows and vacuums."""
    reused_postgresql.drop()
    database: Database = request.getfixturevalue("postgresql")
    return database


@pytest.fixture
def new_url(cluster: postgres.Cluster, migrated_postgresql: str) -> Callable[[], str]:
    """Return a function that creates a database with outboxq's tables and returns its URL."""
    return partial(cluster.create_database, template=migrated_postgresql)


def report_statistics(database: Database) -> None:
    """Make the session of the database's engine report its statistics now. It would otherwise do so within a second."""
    database.run("SELECT pg_stat_force_next_flush()")
