"""One PostgreSQL database for many tests: emptied after each test, and replaced only after a test that changed more than rows.

Creating a database takes 0.25 s, emptying one takes 5 ms, and there are more than a thousand tests. The same connection checks
and empties the database each time, because a new one would first load the catalog entries of every table.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from outboxq.database.dialects import dialect_for
from outboxq.database.tables import metadata
from outboxq.store.verify import CHECKS
from tests import postgres
from tests.warm import NOBODYS, Warm

_SHAPE = """
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
    SELECT concat('class', oid, relname, reloptions, relacl) AS part FROM pg_class
        WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT concat('column', attrelid, attnum, attname, atttypid, attnotnull) FROM pg_attribute
        WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
    UNION ALL SELECT concat('default', oid) FROM pg_attrdef
    UNION ALL SELECT concat('constraint', oid, convalidated) FROM pg_constraint
    UNION ALL SELECT concat('trigger', oid, tgenabled) FROM pg_trigger
    UNION ALL SELECT concat('rule', oid) FROM pg_rewrite
    UNION ALL SELECT concat('function', oid, md5(prosrc), proacl) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT concat('schema', nspname, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'
    UNION ALL SELECT concat('setting', setdatabase, setrole, setconfig) FROM pg_db_role_setting
    UNION ALL SELECT concat('version', version_num, oldest_code) FROM outboxq_alembic_version
    UNION ALL SELECT concat('prepared', gid) FROM pg_prepared_xacts WHERE database = current_database()
) AS parts
"""

_WRITTEN = ", ".join(
    f"(SELECT concat(count(*), ' ', sum(xmin::text::bigint), ' ', max(xmin::text::bigint)) FROM {catalog} {ours})"
    for catalog, ours in {
        "pg_attrdef": "",
        "pg_attribute": "WHERE attrelid >= 16384",
        "pg_class": "WHERE oid >= 16384",
        "pg_constraint": "WHERE oid >= 16384",
        "pg_namespace": "",
        "pg_proc": "WHERE oid >= 16384",
        "pg_rewrite": "WHERE oid >= 16384",
        "pg_trigger": "",
    }.items()
)
_CHANGES = f"""
SELECT concat_ws(' ', {_WRITTEN}, (SELECT string_agg(concat(setdatabase, setrole, setconfig), ' ') FROM pg_db_role_setting),
    (SELECT string_agg(concat(version_num, oldest_code), ' ') FROM outboxq_alembic_version),
    (SELECT string_agg(gid, ' ') FROM pg_prepared_xacts WHERE database = current_database()))
"""
"""A cheaper query whose result changes with every change of the shape: which transactions wrote the catalogs' rows."""


OTHERS = (
    "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
    f"AND application_name <> '{NOBODYS}'"
)
"""The rows of pg_stat_activity that a test counts as its database's connections, without idle shared ones and autovacuum."""


class Reused:
    """The database that tests of one process use one after another."""

    def __init__(self, cluster: postgres.Cluster, template: str) -> None:
        self._cluster = cluster
        self._template = template
        self._url: str | None = None
        self._shape: object = None
        self._changes: object = None
        self._tables: set[str] = set()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self.warm: Warm | None = None

    def take(self, *, lends_to_all: bool = True) -> str:
        if self._url is None:
            self._url = self._cluster.create_database(template=self._template)
            self.warm = Warm(self._url)
            self._shape, self._changes = (_asked(self._connected(), query) for query in (_SHAPE, _CHANGES))
            self._tables = _tables(self._connected())
        assert self.warm is not None
        self.warm.lends_to_all = lends_to_all
        return self._url

    def is_sound(self, url: str, now: datetime) -> bool:
        """Return whether every invariant holds. Return False too if that is unknown, or if the URL is another database's.

        One statement runs all checks in 2 ms. `verify` takes 11 ms on the same connection.
        """
        if url != self._url:
            return False
        try:
            connection = self._connected()
            return not _is_large(connection) and every_check_holds(connection, now)
        except psycopg.Error:
            return False

    def give_back(self) -> None:
        """Empty the database, or drop it if anything except rows has changed."""
        if self._url is None:
            return
        try:
            connection = self._connected()
            # Wait until they have ended. Otherwise, the next test would see their sessions or snapshots.
            connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OTHERS}".encode())
            if not _is_large(connection) and self._has_its_shape(connection):
                _empty(connection)
                return
        except psycopg.Error:
            pass  # a test has damaged the database too much to reuse it
        self.drop()

    def _has_its_shape(self, connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        """Remove common additions of tests, and return whether everything except rows is then unchanged."""
        if (changes := _asked(connection, _CHANGES)) == self._changes:
            return True
        self._changes = changes
        if _asked(connection, _SHAPE) == self._shape:
            return True
        _drop_tables(connection, besides=self._tables)
        connection.execute("ALTER TABLE execution_events DROP CONSTRAINT IF EXISTS refuse")  # of helpers.refuse_event
        if self.warm is not None:
            self.warm.forget_statements()
        connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(connection.info.dbname)))
        self._changes = _asked(connection, _CHANGES)
        return _asked(connection, _SHAPE) == self._shape

    def drop(self) -> None:
        if self.warm is not None:
            self.warm.close()
            self.warm = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._url is not None:
            self._cluster.drop_database(self._url)
            self._url = None

    def _connected(self) -> psycopg.Connection[tuple[object, ...]]:
        """Return the connection. Open a new one if a test has ended the last one, as some tests end all connections."""
        if self._connection is not None:
            try:
                self._connection.execute("SELECT 1")
            except psycopg.Error:
                self._connection.close()
            else:
                return self._connection
        assert self._url is not None
        url = make_url(self._url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(
            url,
            autocommit=True,
            application_name=NOBODYS,
            options="-c lock_timeout=5s -c enable_seqscan=off -c jit=off -c plan_cache_mode=force_generic_plan",
        )
        return self._connection


def every_check_holds(connection: psycopg.Connection[tuple[object, ...]], now: datetime) -> bool:
    """Return whether no check finds a row. The checks are one statement, which stays prepared on this connection."""
    values = {"now": now}
    parameters = {
        f"{name}_of_{number}": value
        for number, check in enumerate(_checks("postgresql"))
        for name, value in check.bind(values).items()
    }
    return connection.execute(_all_checks(), parameters, prepare=True).fetchone() == (False,)


class CheckedFile:
    """A SQLite file that receives the content of each test's file in turn, and a connection that has compiled all checks.

    `verify` on a test's connections takes 17 ms of CPU time, nearly all of it to compile the checks. This class takes 3 ms.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._path = Path(self._directory.name) / "checked.db"
        self._connection: sqlite3.Connection | None = None
        self._schema: bytes | None = None
        self._content = 0

    def is_sound(self, engine: Engine, now: datetime) -> bool:
        """Return whether every invariant holds in an engine's database. Return False too if that is unknown."""
        values = {"now": now}
        try:
            with engine.connect() as theirs:
                content = theirs.connection.dbapi_connection.serialize()  # type: ignore[union-attr]
            connection = self._holding(bytearray(content))
            connection.execute("BEGIN")
            try:
                return not any(
                    connection.execute(check.sql, check.bind(values)).fetchone() for check in _checks("sqlite")
                )
            finally:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, SQLAlchemyError):
            return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._directory.cleanup()

    def _holding(self, content: bytearray) -> sqlite3.Connection:
        """Replace the file's content, with a new change counter that makes SQLite drop its cached pages.

        If the schema's number differs from the first file's, it gets a new number, so that SQLite reads the schema again. The same
        number could belong to a different change.
        """
        self._content += 1
        number = self._content.to_bytes(4, "big")
        content[24:28] = content[92:96] = number
        content[18:20] = b"\x01\x01"  # it is not in WAL mode
        if self._schema is None:
            self._schema = bytes(content[40:44])
        elif content[40:44] != self._schema:
            content[40:44] = (2**31 + self._content).to_bytes(4, "big")
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(content)
            file.truncate()
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=500)
        return self._connection


@cache
def _checks(database: str) -> list[Any]:
    return [dialect_for(database).compiled[check.broken] for check in CHECKS.values()]


@cache
def _all_checks() -> bytes:
    """Return a query that is true if any check finds a row.

    Each check has its own parameters: `%(now)s` becomes `%(now_of_3)s` in check number 3.
    """
    found = (
        re.sub(r"(?<=%\()\w+(?=\)s)", rf"\g<0>_of_{number}", check.sql)
        for number, check in enumerate(_checks("postgresql"))
    )
    return f"SELECT {' OR '.join(f'EXISTS ({query})' for query in found)}".encode()


def _is_large(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    """Return whether live or dead rows fill many pages, because the checks' plans suit only a few rows.

    With five thousand tasks, the checks took 18 s, and 0.4 s after every later test.
    """
    size = "SELECT pg_relation_size('execution_events') + pg_relation_size('task_executions') > 400000"
    return connection.execute(size.encode()).fetchone() == (True,)


def _asked(connection: psycopg.Connection[tuple[object, ...]], query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return row and row[0]


def _tables(connection: psycopg.Connection[tuple[object, ...]]) -> set[str]:
    found = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    )
    return {str(name) for (name,) in found}


def _drop_tables(connection: psycopg.Connection[tuple[object, ...]], *, besides: set[str]) -> None:
    """Drop the test's tables. Most tests that change more than rows have only created a table."""
    for name in _tables(connection) - besides:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier("public", name)))


def _empty(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Empty all tables and reset the sequences in one statement, which stays prepared. If a test has left many dead entries, vacuum
    them, because the next test's claims would skip them (`outboxq/store/claims/floors.py`).

    After an ALTER SEQUENCE, psycopg would drop every prepared statement. The next test would then plan all checks again in 20 ms.
    """
    begun = ", ".join(f"setval('{name}', 1, false)" for name in _SEQUENCES)
    dead = "pg_stat_get_dead_tuples('task_outbox'::regclass) > 1000"
    if connection.execute(EMPTY.replace("SELECT 1", f"SELECT {dead}, {begun}").encode()).fetchone()[0]:  # type: ignore[index]
        connection.execute("VACUUM task_outbox")


_SEQUENCES = ("task_position", "task_outbox_id_seq", "execution_events_sequence_num_seq")
_DELETED = ", ".join(f"d{number} AS (DELETE FROM {name})" for number, name in enumerate(metadata.tables))
EMPTY = f"WITH {_DELETED} SELECT 1"
"""A statement that deletes all rows of outboxq's tables. TRUNCATE would recreate a hundred files."""
