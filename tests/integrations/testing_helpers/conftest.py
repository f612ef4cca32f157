"""The test's own transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection
from sqlalchemy.orm import Session, sessionmaker

from tests.integrations.testing_helpers.shop import Base, Shop, declared


@pytest.fixture
def connection(database) -> Iterator[Connection]:
    """The test's own transaction, rolled back at its end; then nothing may be left."""
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
    """Bound to a database that nobody may open: a test's harness says where it lives."""
    return Shop(*declared(sessions))
