"""Retries and timeouts on PostgreSQL: temporary errors are retried, and a silent server is not waited for forever."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from outboxq.database.engine import make_engine

PASSES = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "55P03": "lock not available",
    "57014": "statement timeout",
    "57P01": "admin shutdown",
    "57P02": "crash shutdown",
    "57P03": "cannot connect now",
    "25006": "read only, as a standby is before it is promoted",
    "53300": "too many connections",
    "08006": "connection failure",
}
STAYS = {
    "23505": "unique violation",
    "42501": "insufficient privilege",
    "42P01": "undefined table",
    "P0001": "a trigger's",
}


def failing_once(state):
    """Return work in which the server raises this error the first time."""
    tries = []

    def work(target):
        tries.append(state)
        if len(tries) == 1:
            target.execute(f"DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$", {})
        return len(tries)

    return work


@pytest.mark.parametrize("state", PASSES, ids=PASSES.get)
def test_a_transaction_that_fails_temporarily_is_retried(postgresql, state):
    assert postgresql.store.run(failing_once(state)) == 2


@pytest.mark.parametrize("state", STAYS, ids=STAYS.get)
def test_a_permanent_error_of_a_transaction_is_raised_immediately(postgresql, state):
    with pytest.raises(DBAPIError, match="refused"):
        postgresql.store.run(failing_once(state))


def test_the_error_of_a_statement_timeout_does_not_mention_a_retry(postgresql, monkeypatch):
    """A retry would take just as long."""
    monkeypatch.setattr("outboxq.store.transactions._PATIENCE", 0)
    tries = []

    def work(target):
        tries.append(target)
        target.execute("SET LOCAL statement_timeout = '1ms'", {})
        target.execute("SELECT pg_sleep(1)", {})

    with pytest.raises(DBAPIError, match="statement timeout") as raised:
        postgresql.store.run(work)
    assert (len(tries), getattr(raised.value, "__notes__", [])) == (1, [])


def test_outboxq_connections_notice_a_silent_server_within_a_minute(postgresql):
    with postgresql.engine.connect() as connection:
        asked = connection.connection.driver_connection.info.get_parameters()
    idle, interval, count = (int(asked[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert 0 < int(asked["connect_timeout"]) <= 30
    assert 0 < idle + interval * count <= 60
    assert 0 < int(asked["tcp_user_timeout"]) <= 60_000


def test_timeouts_in_the_url_override_the_defaults(postgresql):
    url = postgresql.engine.url.update_query_dict({"connect_timeout": "3"})
    engine = postgresql.own(make_engine(url))
    with engine.connect() as connection:
        asked = connection.connection.driver_connection.info.get_parameters()
    assert (asked["connect_timeout"], asked["keepalives_idle"]) == ("3", "30")
