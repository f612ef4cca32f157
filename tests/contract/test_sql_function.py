"""Revision 0004 gives the SQL function an argument, and keeps whose it is and who may call it."""

from __future__ import annotations

import json
import uuid

import pytest
from sqlalchemy.exc import DBAPIError

from outboxq import Outbox, TaskContext, migrations
from outboxq.database.revisions import REVISION
from tests.conftest import Database

ROLES = ("outboxq_owner", "outboxq_caller", "outboxq_other")
SHAPE = """
    SELECT pg_get_functiondef(oid), proowner::regrole::text, prosecdef, ARRAY(
        SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END || CASE WHEN is_grantable THEN ' may grant' ELSE '' END
        FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) ORDER BY 1
    ) FROM pg_proc WHERE proname = 'outboxq_enqueue'
"""


@pytest.fixture
def own(cluster, migrated_postgresql):
    """A database with the tables, which no other test uses."""
    url = cluster.create_database(template=migrated_postgresql)
    own = Database("postgresql", url)
    yield own
    own.close()
    cluster.drop_database(url)


def test_it_is_that_of_revision_0001_again_after_a_downgrade(own):
    migrations.downgrade(own.engine, "base")
    migrations.upgrade(own.engine, "0001")
    [before] = own.rows(SHAPE)
    migrations.upgrade(own.engine)
    [now] = own.rows(SHAPE)
    assert "headers jsonb DEFAULT NULL::jsonb" in now[0]
    assert now[1:] == before[1:]
    migrations.downgrade(own.engine, "0003")
    assert own.rows(SHAPE) == [before]
    migrations.upgrade(own.engine)
    assert own.rows(SHAPE) == [now]


def test_who_owns_it_and_who_may_call_it_stays(own):
    owner, caller, other = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ROLES)
    own.run(
        f"""
        CREATE ROLE {owner}; CREATE ROLE {caller}; CREATE ROLE {other};
        GRANT CREATE ON SCHEMA public TO {owner};
        REVOKE EXECUTE ON FUNCTION outboxq_enqueue FROM PUBLIC;
        GRANT EXECUTE ON FUNCTION outboxq_enqueue TO {caller} WITH GRANT OPTION;
        GRANT EXECUTE ON FUNCTION outboxq_enqueue TO {other};
        ALTER FUNCTION outboxq_enqueue OWNER TO {owner};
        ALTER FUNCTION outboxq_enqueue SECURITY DEFINER;
        ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {other} WITH GRANT OPTION
        """
    )
    [(_, *before)] = own.rows(SHAPE)
    assert before[:2] == [owner, True]
    assert before[2] == sorted([owner, f"{caller} may grant", other])
    migrations.downgrade(own.engine, "0003")
    [(older, *rights)] = own.rows(SHAPE)
    assert "headers" not in older
    assert rights == before
    migrations.upgrade(own.engine)
    [(newer, *rights)] = own.rows(SHAPE)
    assert "headers" in newer
    assert rights == before
    own.run(f"DROP OWNED BY {owner}, {caller}, {other}; DROP ROLE {owner}, {caller}, {other}")


def test_it_ignores_a_namesake_with_other_arguments_and_one_that_is_gone(own):
    own.run("CREATE FUNCTION outboxq_enqueue(text, integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    migrations.downgrade(own.engine, "0003")
    migrations.upgrade(own.engine)
    assert len(own.rows(SHAPE)) == 2
    own.run("DROP FUNCTION outboxq_enqueue(text, integer); DROP FUNCTION outboxq_enqueue")
    migrations.downgrade(own.engine, "0003")
    assert own.rows(SHAPE) == []
    migrations.upgrade(own.engine)
    assert own.rows(SHAPE) == []


def test_a_view_that_uses_it_is_not_dropped(own):
    own.run("CREATE VIEW asking AS SELECT outboxq_enqueue('t') AS id")
    before = own.rows(SHAPE)
    with pytest.raises(DBAPIError, match="view asking depends on function outboxq_enqueue"):
        migrations.downgrade(own.engine, "0003")
    assert own.rows(SHAPE) == before
    assert migrations.current(own.engine) == REVISION


def test_a_producer_with_a_prepared_call_goes_on_during_the_upgrade(own):
    migrations.downgrade(own.engine, "0003")
    with own.host.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        raw = connection.connection.dbapi_connection
        for _ in range(2):
            raw.execute("SELECT outboxq_enqueue('t', queue => 'mail')", prepare=True)
        migrations.upgrade(own.engine)
        raw.execute("SELECT outboxq_enqueue('t', queue => 'mail')", prepare=True)
    assert own.counts() == (3, 3, 3)


def call(database, headers):
    literal = "NULL" if headers is None else "'" + headers.replace("'", "''") + "'::jsonb"
    with database.engine.connect() as connection, connection.begin():
        return connection.exec_driver_sql(f"SELECT outboxq_enqueue('t', headers => {literal})").scalar_one()


def test_its_headers_reach_the_handler(postgresql):
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
        ("[]", "headers must be a JSON object of texts, not array"),
        ("null", "headers must be a JSON object of texts, not null"),
        ('"a=b"', "headers must be a JSON object of texts, not string"),
        ('{"a": 1}', "the header 'a' must be a text, not number"),
        ('{"a": null}', "the header 'a' must be a text, not null"),
        ('{"": "x"}', "the names of headers must be 1 to 100 characters"),
        (json.dumps({"n" * 101: "x"}), "the names of headers must be 1 to 100 characters"),
        ('{"OutboxQ-tick": "x"}', "the header 'OutboxQ-tick' has a reserved name: outboxq-…"),
        (json.dumps({"a": "x" * 8192}), "headers must be at most 8192 bytes of JSON"),
    ],
    ids=range(9),
)
def test_other_headers_are_refused(postgresql, headers, text):
    with pytest.raises(DBAPIError) as refused:
        call(postgresql, headers)
    assert refused.value.orig.sqlstate == "22023"
    assert str(refused.value.orig).startswith(f"outboxq_enqueue of task 't': {text}")
    assert postgresql.counts() == (0, 0, 0)
