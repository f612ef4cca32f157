"""Engines that outboxq creates."""

from __future__ import annotations

import threading

import pytest

from outboxq.database.engine import close, make_engine
from outboxq.store import Store


@pytest.mark.parametrize("begun", ["before", "after"])
def test_a_connection_that_a_thread_still_has_is_closed_when_it_is_returned(database, begun):
    own = database.own(make_engine(database.url))  # no connection outlives this engine
    engine = Store(own).reserved(threading.Event()).bound_engine
    if begun == "before":
        connection = engine.connect()
        close(engine)
    else:
        close(engine)
        connection = engine.connect()
    raw = connection.connection.driver_connection
    connection.exec_driver_sql("SELECT 1")
    connection.close()
    with pytest.raises(Exception, match="closed"):
        raw.execute("SELECT 1")


def test_a_second_close_adds_no_listener_while_a_thread_returns_a_connection(database):
    engine = Store(database.engine).reserved(threading.Event()).bound_engine
    close(engine)
    first = list(engine.pool.dispatch.checkin)
    close(engine)
    assert list(engine.pool.dispatch.checkin) == first
    assert first


def test_an_engine_that_was_closed_connects_anew_for_what_comes_late(database):
    """A claim that was in progress when its worker stopped has to be released."""
    engine = Store(database.engine).reserved(threading.Event()).bound_engine
    close(engine)
    for _ in range(3):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_the_engine_whose_connections_were_copied_keeps_its_own(database):
    close(Store(database.engine).reserved(threading.Event()).bound_engine)
    for _ in range(2):
        with database.engine.connect() as connection:
            raw = connection.connection.driver_connection
    raw.execute("SELECT 1")
