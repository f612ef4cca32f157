"""The store's own transactions, which use no SQLAlchemy Connection. Applications see the same events and the same errors."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from outboxq.database.dialects import Begin
from outboxq.database.engine import make_engine
from outboxq.database.target import OwnTarget
from outboxq.store import Store
from tests.conftest import Database

POOL = ("checkout", "reset", "checkin")
ENGINE = ("engine_connect", "begin", "before_cursor_execute", "commit")


@pytest.fixture
def created(monkeypatch) -> list[Connection]:
    """Return the Connections that were created."""
    found: list[Connection] = []
    real = Connection.__init__

    def create(self: Connection, *args: Any, **kwargs: Any) -> None:
        found.append(self)
        real(self, *args, **kwargs)

    monkeypatch.setattr(Connection, "__init__", create)
    return found


def test_an_enqueue_in_a_separate_transaction_creates_no_sqlalchemy_connection(database: Database, created):
    database.add(database.store)
    created.clear()
    database.add(database.store)
    assert created == []


def test_pool_listeners_receive_events_of_each_transaction(database: Database):
    database.add(database.store)
    told: Counter[str] = Counter()
    for name in POOL:
        event.listen(database.engine, name, lambda *_, name=name: told.update([name]))
    database.add(database.store)
    assert told == dict.fromkeys(POOL, 1)


@pytest.mark.parametrize("late", [False, True], ids=["first", "after a transaction"])
def test_engine_listeners_receive_events_of_each_kind(database: Database, late):
    if late:
        database.add(database.store)
    told: Counter[str] = Counter()
    for name in ENGINE:
        event.listen(database.engine, name, lambda *_, name=name, **__: told.update([name]))
    database.add(database.store)
    assert set(told) == set(ENGINE)


def test_a_sqlalchemy_connection_requested_in_a_transaction_commits_it(database: Database):
    ended: list[str] = []
    with database.store.transaction(Begin.HANDLER) as target:
        assert isinstance(target, OwnTarget)
        event.listen(target.connection, "commit", lambda _: ended.append("commit"))
        target.connection.exec_driver_sql("CREATE TABLE written (id INTEGER)")
    assert ended == ["commit"]
    assert database.rows("SELECT * FROM written") == []


def failed(engine: Engine, *, observed: bool, fail: Callable[[Store], object]) -> tuple[type, str, bool]:
    """Return the error's type and text, and whether SQLAlchemy considers the connection lost. If `observed` is True, SQLAlchemy's
    Connection is created and raises the error.
    """
    if observed:
        event.listen(engine, "engine_connect", lambda _: None)
    with pytest.raises(DBAPIError) as caught:
        fail(Store(engine))
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    text = re.sub("\nDETAIL:.*", "", str(caught.value))  # SQLAlchemy includes the values of a row that a COMMIT refuses
    return type(caught.value), text, caught.value.connection_invalidated


def refused(store: Store) -> None:
    with store.transaction(Begin.WRITE) as target:
        target.execute("SELECT nothing FROM nowhere", {})


def refused_at_commit(store: Store) -> None:
    with store.transaction(Begin.WRITE) as target:
        target.execute(
            "CREATE TABLE pairs (id INTEGER PRIMARY KEY, other INTEGER REFERENCES pairs DEFERRABLE INITIALLY DEFERRED)",
            {},
        )
        target.execute("INSERT INTO pairs VALUES (1, 2)", {})


def lost(store: Store) -> None:
    with store.transaction(Begin.WRITE) as target:
        target.execute("SELECT pg_terminate_backend(pg_backend_pid())", {})


def lost_before_commit(store: Store) -> None:
    with store.transaction(Begin.WRITE) as target:
        target._raw().close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("fail", [refused, refused_at_commit, lost, lost_before_commit])
def test_an_error_is_the_same_as_the_one_that_sqlalchemy_raises(postgresql, fail):
    plain, observed = (
        failed(postgresql.own(make_engine(postgresql.url)), observed=observed, fail=fail) for observed in (False, True)
    )
    assert plain == observed


def test_a_connection_lost_at_the_commit_invalidates_the_whole_pool(postgresql):
    engine = postgresql.own(make_engine(postgresql.url))
    both = [engine.raw_connection(), engine.raw_connection()]
    [before, _] = drivers = [one.driver_connection for one in both]
    for one in both:
        one.close()
    with pytest.raises(DBAPIError):
        lost_before_commit(Store(engine))
    with engine.connect() as connection, engine.connect() as other:
        assert not {connection.connection.driver_connection, other.connection.driver_connection} & set(drivers)
    assert before.closed or drivers[1].closed


@pytest.mark.parametrize("begin", [Begin.WRITE, Begin.READ, Begin.HANDLER])
@pytest.mark.parametrize("observed", [False, True])
def test_an_error_on_a_lost_connection_is_raised_and_the_loss_is_not_logged(postgresql, caplog, begin, observed):
    """The connection is lost after the last statement, so only the rollback notices the loss."""
    engine = postgresql.own(make_engine(postgresql.url))
    store, own = Store(engine), ZeroDivisionError()
    other = engine.raw_connection()
    before = other.driver_connection
    with pytest.raises(ZeroDivisionError) as caught, store.transaction(begin) as target:
        other.close()
        if observed:
            assert target.connection  # type: ignore[attr-defined]
        [[pid]] = target.execute("SELECT pg_backend_pid()", {})
        postgresql.rows(f"SELECT pg_terminate_backend({pid}, 10000)")
        raise own
    assert caught.value is own
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    with engine.connect() as connection:
        assert connection.connection.driver_connection is not before, "the whole pool has been discarded"


def test_a_failure_to_connect_raises_the_same_error_as_sqlalchemy(tmp_path):
    def fail(store: Store) -> None:
        with store.transaction(Begin.READ):
            raise AssertionError

    url = f"sqlite:///{tmp_path}/nowhere/file.db"
    plain, observed = (failed(create_engine(url), observed=observed, fail=fail) for observed in (False, True))
    assert plain == observed
    plain, observed = (failed(make_engine(url), observed=observed, fail=fail) for observed in (False, True))
    assert plain == observed


def test_a_connection_whose_commit_was_interrupted_by_ctrl_c_is_not_used_again(database: Database, monkeypatch):
    store = database.own_store()
    database.add(store)
    dropped: list[object] = []
    event.listen(store.bound_engine, "invalidate", lambda connection, _record, error: dropped.append(error))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store.bound_engine.dialect, "do_commit", interrupted)
        with store.transaction(Begin.WRITE):
            pass
    assert [type(one) for one in dropped] == [KeyboardInterrupt]
    assert store.bound_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
