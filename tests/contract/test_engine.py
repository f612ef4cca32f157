"""Engines that outboxq creates."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from outboxq.database.engine import close, make_engine
from outboxq.store import Store


@pytest.mark.parametrize("begun", ["before", "after"])
def test_a_connection_returned_to_a_closed_engine_is_closed(database, begun):
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


def test_a_second_close_of_an_engine_adds_no_listener(database):
    engine = Store(database.engine).reserved(threading.Event()).bound_engine
    close(engine)
    first = list(engine.pool.dispatch.checkin)
    close(engine)
    assert list(engine.pool.dispatch.checkin) == first
    assert first


def test_a_closed_engine_can_still_open_connections(database):
    """A claim that was in progress when its worker stopped has to be released."""
    engine = Store(database.engine).reserved(threading.Event()).bound_engine
    close(engine)
    for _ in range(3):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_closing_a_reserved_engine_keeps_connections_of_the_original_open(database):
    close(Store(database.engine).reserved(threading.Event()).bound_engine)
    for _ in range(2):
        with database.engine.connect() as connection:
            raw = connection.connection.driver_connection
    raw.execute("SELECT 1")


def test_an_engine_leaves_nothing_behind_for_the_next_fork(database, monkeypatch):
    """Python cannot unregister a function that runs at each fork, and each wait for results creates an engine."""
    registered = []
    monkeypatch.setattr(os, "register_at_fork", lambda **when: registered.append(when), raising=False)
    store = Store(database.own(make_engine(database.url)))
    reserved = [store.reserved(threading.Event()).bound_engine for _ in range(3)]
    assert registered == []
    forgotten = [weakref.ref(engine) for engine in reserved]
    for engine in reserved:
        close(engine)
    del engine, reserved
    gc.collect()
    assert [one() for one in forgotten] == [None] * 3
