from __future__ import annotations

import pytest

from tests.conftest import Database
from tests.reuse import Reused


@pytest.fixture
def untouched(reused_postgresql: Reused, request: pytest.FixtureRequest) -> Database:
    """A new database: of a reused one, PostgreSQL still knows the dead rows and the vacuums of earlier tests."""
    reused_postgresql.drop()
    database: Database = request.getfixturevalue("postgresql")
    return database


def report_statistics(database: Database) -> None:
    """Have the session of the database's engine report what it has counted. By itself it does so up to a second later."""
    database.run("SELECT pg_stat_force_next_flush()")
