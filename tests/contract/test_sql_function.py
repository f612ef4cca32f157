"""The SQL function accepts the same headers as Python."""

from __future__ import annotations

import json

import pytest
from sqlalchemy.exc import DBAPIError

from outboxq import Outbox, TaskContext
from tests.conftest import Database


@pytest.fixture
def own(cluster, migrated_postgresql):
    """A database with outboxq's tables that no other test uses."""
    url = cluster.create_database(template=migrated_postgresql)
    own = Database("postgresql", url)
    yield own
    own.close()
    cluster.drop_database(url)


def call(database, headers):
    literal = "NULL" if headers is None else "'" + headers.replace("'", "''") + "'::jsonb"
    with database.engine.connect() as connection, connection.begin():
        return connection.exec_driver_sql(f"SELECT outboxq_enqueue('t', headers => {literal})").scalar_one()


def test_headers_from_sql_reach_the_handler(postgresql):
    outbox, seen = Outbox(postgresql.engine), []

    @outbox.task(name="t")
    def handler(ctx: TaskContext) -> None:
        seen.append(dict(ctx.headers))

    given = [{"request-id": "r1", "Ü": "'\"ß"}, {"n" * 100: ""}, {}, None]
    ids = [call(postgresql, None if one is None else json.dumps(one)) for one in given]
    assert [outbox.store.get(one).headers is None for one in ids] == [False, False, True, True]
    assert outbox.worker(notifications=False, concurrency=1).run(burst=True) == 0
    assert seen == [one or {} for one in given]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ("[]", "headers must be a JSON object whose values are strings, not array"),
        ("null", "headers must be a JSON object whose values are strings, not null"),
        ('"a=b"', "headers must be a JSON object whose values are strings, not string"),
        ('{"a": 1}', "the header 'a' must be a string, not number"),
        ('{"a": null}', "the header 'a' must be a string, not null"),
        ('{"": "x"}', "a header's name must be 1 to 100 characters long"),
        (json.dumps({"n" * 101: "x"}), "a header's name must be 1 to 100 characters long"),
        ('{"OutboxQ-tick": "x"}', "the header 'OutboxQ-tick' has a reserved name: outboxq-…"),
        (json.dumps({"a": "x" * 8192}), "headers must be at most 8192 bytes of JSON"),
    ],
    ids=range(9),
)
def test_invalid_headers_are_refused(postgresql, headers, text):
    with pytest.raises(DBAPIError) as refused:
        call(postgresql, headers)
    assert refused.value.orig.sqlstate == "22023"
    assert str(refused.value.orig).startswith(f"outboxq_enqueue of task 't': {text}")
    assert postgresql.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("on_dead_letter => 'hold'", "on_dead_letter => 'hold' needs a partition_key that is not a concurrency key"),
        (
            "on_dead_letter => 'hold', partition_key => 'concurrency:ada'",
            "on_dead_letter => 'hold' needs a partition_key that is not a concurrency key",
        ),
        ("max_attempts => 0", "max_attempts must be from 1 to 2147483646, not 0"),
        ("max_attempts => 2147483647", "max_attempts must be from 1 to 2147483646, not 2147483647"),
    ],
)
def test_options_that_python_refuses_are_refused(postgresql, given, text):
    with postgresql.engine.connect() as connection, pytest.raises(DBAPIError) as refused:
        connection.exec_driver_sql(f"SELECT outboxq_enqueue('t', {given})")
    assert refused.value.orig.sqlstate == "22023"
    assert str(refused.value.orig).startswith(f"outboxq_enqueue of task 't': {text}\n")
    assert postgresql.counts() == (0, 0, 0)
