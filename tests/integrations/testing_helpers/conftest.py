"""A test's own transaction, and a shop that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection
from sqlalchemy.orm import Session, sessionmaker

from tests.integrations.testing_helpers.shop import Base, Shop, declared


@pytest.fixture
def connection(database) -> Iterator[Connection]:
    """The test's own transaction, which is rolled back at the end and must leave nothing behind."""
    engine = database.host_engine()
    with engine.connect() as made:
        transaction = made.begin()
        Base.metadata.create_all(made)
        yield made
        transaction.rollback()
    assert database.counts() == (0, 0, 0)
    with pytest.raises(Exception, match="test_orders"):
        database.rows("SELECT * FROM test_orders")


@pytest.fixture
def sessions(connection) -> sessionmaker[Session]:
    return sessionmaker(bind=connection, join_transaction_mode="create_savepoint")


@pytest.fixture
def session(sessions) -> Iterator[Session]:
    with sessions() as session:
        yield session


@pytest.fixture
def shop(sessions) -> Shop:
    """A shop whose own database cannot be opened. A test's harness determines the database."""
    return Shop(*declared(sessions))
