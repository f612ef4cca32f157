"""Each test runs in a transaction that is rolled back. When requests and tasks commit, they only end a savepoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import Connection, Engine

directory = TemporaryDirectory()
os.environ["SHOP_DATABASE_URL"] = f"sqlite:///{directory.name}/shop.db"  # before the shop is imported


@pytest.fixture(scope="session")
def database() -> Iterator[Engine]:
    from create_tables import create_tables
    from models import engine

    create_tables()
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def connection(database: Engine) -> Iterator[Connection]:
    from models import ReadingSession, WritingSession

    with database.connect() as connection, connection.begin() as transaction:
        for maker in (ReadingSession, WritingSession):
            maker.configure(bind=connection, join_transaction_mode="create_savepoint")
        yield connection
        transaction.rollback()


@pytest.fixture
def outboxq_using(connection: Connection) -> Connection:
    """Return the connection that outboxq's `harness` fixture uses."""
    return connection
