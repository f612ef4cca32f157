"""Create, upgrade and remove outboxq's tables: from the shell, from code, and inside a host's migrations."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from outboxq import migrations
from outboxq.database.engine import configure_sqlite, make_engine
from outboxq.database.revisions import OLDEST_SCHEMA, REVISION, UPGRADE, fingerprint
from outboxq.database.tables import metadata
from outboxq.errors import ConfigurationError, InvalidTarget, SchemaOutOfDate
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests import forked
from tests.contract.helpers import LATER, called
from tests.contract.test_schema import ear
from tests.faults.workers import Forked, Nursery
from tests.waiting import until

ROOT = Path(__file__).parents[2]
VARIABLE = "OUTBOXQ_DATABASE_URL"
OURS = {*metadata.tables, "outboxq_alembic_version"}
PASSWORD = "100%% %(here)s @/:?#é"


@dataclass
class Empty:
    """A database without tables."""

    name: str
    url: str

    def __post_init__(self) -> None:
        self.engine = make_engine(self.url)
        self.host = create_engine(self.url)
        """An engine as an application creates it, without outboxq's configuration."""

    def tables(self, schema: str | None = None) -> set[str]:
        return set(inspect(self.engine).get_table_names(schema=schema))

    def run(self, sql: str) -> None:
        with self.engine.connect() as connection:
            connection.exec_driver_sql(sql)

    def close(self) -> None:
        self.engine.dispose()
        self.host.dispose()


@pytest.fixture
def sqlite_empty(tmp_path: Path) -> Iterator[Empty]:
    empty = Empty("sqlite", f"sqlite:///{tmp_path / 'empty.db'}")
    yield empty
    empty.close()


@pytest.fixture
def postgresql_empty(cluster) -> Iterator[Empty]:
    empty = Empty("postgresql", cluster.create_database())
    yield empty
    empty.close()
    cluster.drop_database(empty.url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest) -> Empty:
    return request.getfixturevalue(f"{request.param}_empty")  # type: ignore[no-any-return]


@pytest.fixture
def sqlite_migrated(sqlite_url: str) -> Iterator[Empty]:
    copied = Empty("sqlite", sqlite_url)
    yield copied
    copied.close()


@pytest.fixture
def postgresql_migrated(cluster, migrated_postgresql) -> Iterator[Empty]:
    copied = Empty("postgresql", cluster.create_database(template=migrated_postgresql))
    yield copied
    copied.close()
    cluster.drop_database(copied.url)


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated(request: pytest.FixtureRequest) -> Empty:
    """A database with outboxq's tables. It is a copy, which is faster than an upgrade."""
    return request.getfixturevalue(f"{request.param}_migrated")  # type: ignore[no-any-return]


def new(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


def python(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return forked.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def background(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Run a script in a separate process, which does not outlive the test."""
    started: list[Forked] = []

    def start(script: str, *arguments: str) -> Forked:
        plan = {"kind": "script", "text": textwrap.dedent(script), "arguments": arguments}
        started.append(Forked(nursery, tmp_path / f"script-{len(started)}.log", plan))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def alembic(nursery: Nursery, tmp_path: Path) -> Callable[..., str]:
    """Run the alembic command in a process that has already imported everything. Return the output."""
    numbers = itertools.count()

    def run(*arguments: str, cwd: Path = ROOT, fails: bool = False, **environment: str) -> str:
        known = {name: value for name, value in os.environ.items() if name != VARIABLE}
        plan = {"arguments": arguments, "cwd": str(cwd), "environment": {**known, **environment}}
        log = tmp_path / f"alembic-{next(numbers)}.log"
        process = Forked(nursery, log, {"kind": "module", "name": "alembic", **plan})
        try:
            assert (process.wait() != 0) is fails, process.text()
        finally:
            process.end()
        return process.text()

    return run


def shape(database: Empty, schema: str = "public") -> set[tuple[str, ...]]:
    """The database's own description of outboxq's schema."""
    if database.name == "sqlite":
        with database.engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
            ).all()
        return {(kind, name, " ".join((sql or "").split())) for kind, name, sql in rows}
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            """
            SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                   concat(a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
            WHERE c.relnamespace = %(schema)s::text::regnamespace AND c.relkind = 'r'
            UNION ALL SELECT 'relation', relname, relkind::text, reloptions::text, ''
            FROM pg_class WHERE relnamespace = %(schema)s::text::regnamespace
            UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid), '', ''
            FROM pg_constraint WHERE connamespace = %(schema)s::text::regnamespace
            UNION ALL SELECT 'index', indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = %(schema)s::text
            UNION ALL SELECT 'function', proname, pg_get_functiondef(oid), proacl::text, ''
            FROM pg_proc WHERE pronamespace = %(schema)s::text::regnamespace
            UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(t.oid), '', ''
            FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE c.relnamespace = %(schema)s::text::regnamespace
            """,
            {"schema": schema},
        ).all()
    return {tuple(" ".join(str(cell).replace(f"{schema}.", "").split()) for cell in row) for row in rows}


def differences(database: Empty) -> list[object]:
    with database.engine.connect() as connection:
        options = {"include_name": migrations.ours, "version_table": migrations.VERSION_TABLE, "compare_type": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


# From the shell


@pytest.mark.in_turn
def test_the_alembic_command_upgrades_downgrades_and_upgrades_again(empty, alembic):
    done = python("-m", "alembic", "upgrade", "head", **{VARIABLE: empty.url})
    assert done.returncode == 0, done.stderr
    assert empty.tables() == OURS
    first = shape(empty)
    alembic("downgrade", "base", **{VARIABLE: empty.url})
    assert empty.tables() == {"outboxq_alembic_version"}
    alembic("upgrade", "head", **{VARIABLE: empty.url})
    assert shape(empty) == first
    Store(empty.engine).ensure_current()


@pytest.mark.in_turn
def test_the_alembic_command_takes_a_url_that_overrides_the_environment(empty, alembic, tmp_path):
    alembic("-x", f"url={empty.url}", "upgrade", "head", **{VARIABLE: f"sqlite:///{tmp_path / 'other.db'}"})
    assert empty.tables() == OURS
    assert not (tmp_path / "other.db").exists()


@pytest.mark.full  # like the check of a schema, but without the schema
@pytest.mark.in_turn
@pytest.mark.current  # older releases reflect a domain as its base type and omit SQLite's Identity
def test_alembic_check_finds_no_differences_after_an_upgrade(empty, alembic):
    migrations.upgrade(empty.url)
    assert "No new upgrade operations detected" in alembic("check", **{VARIABLE: empty.url})


def test_the_alembic_command_takes_a_schema(postgresql_empty, alembic):
    for command in (["upgrade", "head"], ["current"]):
        alembic("-x", f"url={postgresql_empty.url}", "-x", "schema=tasks", *command)
    assert postgresql_empty.tables("tasks") == OURS
    assert postgresql_empty.tables() == set()


@pytest.mark.in_turn
def test_the_alembic_command_prints_sql_without_a_database(empty, alembic):
    assert "CREATE TABLE task_outbox" in alembic("upgrade", "head", "--sql", **{VARIABLE: empty.url})
    assert empty.tables() == set()


def test_a_password_with_percent_signs_survives_the_alembic_command(postgresql_empty, alembic):
    url = make_url(postgresql_empty.url).set(password=PASSWORD).render_as_string(hide_password=False)
    alembic("upgrade", "head", **{VARIABLE: url})
    alembic("-x", f"url={url}", "current")
    assert postgresql_empty.tables() == OURS


def test_the_alembic_folder_is_not_a_package_so_alembic_is_the_library():
    assert not (ROOT / "alembic" / "__init__.py").exists()
    assert not (ROOT / "alembic" / "versions" / "__init__.py").exists()
    done = python("-c", "import alembic; print(alembic.__file__)", PYTHONPATH="")
    assert "site-packages" in done.stdout, done.stderr


# From code


@pytest.mark.in_turn
def test_upgrade_takes_a_url_and_may_run_again(empty):
    migrations.upgrade(empty.url)
    migrations.upgrade(make_url(empty.url))
    assert empty.tables() == OURS
    assert migrations.current(empty.url) == REVISION


@pytest.mark.in_turn
def test_upgrade_accepts_an_engine_of_outboxq_or_of_the_host(empty):
    migrations.upgrade(empty.host)
    migrations.downgrade(empty.host, "base")
    migrations.upgrade(empty.engine)
    assert migrations.current(empty.engine) == migrations.current(empty.host) == REVISION


@pytest.mark.in_turn
def test_current_is_none_without_outboxq_tables(empty):
    assert migrations.current(empty.url) is None
    migrations.upgrade(empty.url)
    migrations.downgrade(empty.url, "base")
    assert migrations.current(empty.url) is None


@pytest.mark.parametrize(
    ("empty", "right"),
    [
        pytest.param("sqlite", True, id="sqlite-configured"),
        pytest.param("sqlite", False, id="sqlite-as it comes"),
        pytest.param("postgresql", False, id="postgresql"),
    ],
    indirect=["empty"],
)
def test_upgrade_on_a_connection_is_part_of_its_transaction(empty, right):
    if right:
        configure_sqlite(empty.host)
    with empty.host.connect() as connection:
        migrations.upgrade(connection)
        assert connection.in_transaction()
        assert set(inspect(connection).get_table_names()) == OURS
        connection.rollback()
    assert empty.tables() == set()
    with empty.host.begin() as connection:
        migrations.upgrade(connection)
    assert empty.tables() == OURS


def test_upgrade_takes_the_connection_of_a_session(empty):
    with Session(empty.host) as session:
        migrations.upgrade(session.connection())
        session.rollback()
        assert empty.tables() == set()
        migrations.upgrade(session.connection())
        session.commit()
    assert empty.tables() == OURS


def test_upgrade_refuses_a_connection_that_could_not_roll_back_the_tables(empty):
    with (
        empty.host.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(InvalidTarget, match="pass an Engine or its URL, or a connection with an open transaction"),
    ):
        migrations.upgrade(connection)
    assert empty.tables() == set()


def test_a_password_with_percent_signs_reaches_the_server(postgresql_empty):
    url = make_url(postgresql_empty.url).set(password=PASSWORD)
    seen = []

    def look(_dialect, _record, _arguments, parameters):
        seen.append(parameters.get("password"))

    event.listen(Engine, "do_connect", look)
    try:
        migrations.upgrade(url)
        migrations.upgrade(url.render_as_string(hide_password=False))
    finally:
        event.remove(Engine, "do_connect", look)
    assert seen == [PASSWORD, PASSWORD]


@pytest.mark.current
def test_alembic_check_can_check_a_schema(postgresql_empty, alembic):
    migrations.upgrade(postgresql_empty.url, schema="tasks")
    alembic("-x", f"url={postgresql_empty.url}", "-x", "schema=tasks", "check")


@pytest.mark.current
def test_the_migrations_create_the_declared_tables(empty):
    migrations.upgrade(empty.url)
    assert differences(empty) == []


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE workers ADD COLUMN more text", "DROP INDEX ix_task_outbox_due", "DROP TABLE workers"],
)
def test_the_comparison_would_notice_a_difference(migrated, change):
    migrated.run(change)
    assert differences(migrated) != []


def test_the_comparison_would_notice_another_type(postgresql_migrated):
    postgresql_migrated.run("ALTER TABLE task_outbox ALTER COLUMN position TYPE text")
    assert differences(postgresql_migrated) != []


@pytest.mark.in_turn
def test_the_version_table_of_the_host_is_unchanged(empty):
    with empty.engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('host')")
    migrations.upgrade(empty.url)
    migrations.downgrade(empty.url, "base")
    with empty.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM alembic_version").all() == [("host",)]


# In a separate schema


def test_everything_is_created_inside_the_schema(postgresql_empty):
    migrations.upgrade(postgresql_empty.url, schema="tasks_a")
    assert postgresql_empty.tables() == set()
    assert shape(postgresql_empty) == set()
    inside = shape(postgresql_empty, "tasks_a")
    assert {name for kind, name, *_ in inside if kind in {"function", "trigger"}} == {
        "task_batch_changes_count",
        "task_batches_advance",
        "outboxq_advance_batch",
        "outboxq_backlog",
        "outboxq_count_ends",
        "outboxq_note_end",
        "task_executions_batch",
        "outboxq_enqueue",
        "outboxq_notify",
        "outboxq_notify_relay",
        "relay_messages_notify",
        "task_outbox_notify",
    }
    assert ("relation", "task_position", "S", "None", "") in inside
    assert migrations.current(postgresql_empty.url, schema="tasks_a") == REVISION
    assert migrations.current(postgresql_empty.url) is None
    Store(postgresql_empty.engine, schema="tasks_a").ensure_current()
    migrations.downgrade(postgresql_empty.url, "base", schema="tasks_a")
    assert postgresql_empty.tables("tasks_a") == set()


def test_outboxes_in_one_database_receive_only_their_tasks_and_notifications(postgresql_empty):
    worker, stores = uuid4(), {}
    for schema in (None, "tasks_a", "tasks_b"):
        migrations.upgrade(postgresql_empty.url, schema=schema)
        stores[schema] = Store(postgresql_empty.engine, schema=schema)
    with (
        ear(postgresql_empty.url, "task_ready") as heard,
        ear(postgresql_empty.url, "task_ready_tasks_a") as heard_a,
        ear(postgresql_empty.url, "task_ready_tasks_b") as heard_b,
    ):
        stores["tasks_a"].enqueue(new(queue="a"))
        stores["tasks_b"].enqueue_many([new(queue="b"), new(queue="b")])
        assert (heard(), heard_a(), heard_b()) == ([], ["a"], ["b"])
    for schema, queues in ((None, []), ("tasks_a", ["a"]), ("tasks_b", ["b", "b"])):
        claims = stores[schema].claim_ready_task(10, worker_id=worker)
        assert [claim.queue for claim in claims] == queues
        assert stores[schema].finish([]) == frozenset()
        for claim in claims:
            stores[schema].complete(claim)
        assert stores[schema].verify() == []


def test_the_search_path_and_dialect_of_the_host_are_unchanged(postgresql_empty):
    with postgresql_empty.host.begin() as connection:
        connection.exec_driver_sql("SET search_path TO pg_catalog, public")
        migrations.upgrade(connection, schema="tasks_a")
        assert connection.exec_driver_sql("SHOW search_path").scalar_one() == "pg_catalog, public"
        assert inspect(connection).default_schema_name == "public"
    migrations.upgrade(postgresql_empty.host, schema="tasks_b")
    assert inspect(postgresql_empty.host).get_table_names() == []


@pytest.mark.parametrize("schema", ["Tasks", "a-b", "a b", "1a", "", "a;drop table x", 'a"b', "a" * 49, "ä", "a\n"])
def test_a_schema_that_would_need_quoting_is_refused(cluster, schema):
    engine = make_engine(cluster.url)
    for attempt in (
        lambda: migrations.upgrade(cluster.url, schema=schema),
        lambda: migrations.current(cluster.url, schema=schema),
        lambda: migrations.sql(cluster.url, schema=schema),
        lambda: Store(engine, schema=schema).ensure_current(),
    ):
        with pytest.raises(ConfigurationError, match="is not a plain lower-case name"):
            attempt()
    engine.dispose()


@pytest.mark.parametrize("schema", ["user", pytest.param("order", marks=pytest.mark.full)])
def test_a_schema_may_be_named_like_an_sql_keyword(postgresql_empty, schema):
    migrations.upgrade(postgresql_empty.url, schema=schema)
    store = Store(postgresql_empty.engine, schema=schema)
    with ear(postgresql_empty.url, f"task_ready_{schema}") as heard:
        store.enqueue(new(queue="mail"))
        assert heard() == ["mail"]
    assert store.verify() == []
    migrations.downgrade(postgresql_empty.url, "base", schema=schema)


def test_the_longest_schema_name_has_a_working_notification_channel(postgresql_empty):
    schema = "s" * 48
    migrations.upgrade(postgresql_empty.url, schema=schema)
    with ear(postgresql_empty.url, f"task_ready_{schema}") as heard:
        Store(postgresql_empty.engine, schema=schema).enqueue(new(queue="mail"))
        assert heard() == ["mail"]


def test_sqlite_refuses_a_schema(sqlite_empty):
    with pytest.raises(ConfigurationError, match="SQLite has no schemas"):
        migrations.upgrade(sqlite_empty.url, schema="tasks")
    with pytest.raises(ConfigurationError, match="SQLite has no schemas"):
        migrations.sql(sqlite_empty.url, schema="tasks")
    assert sqlite_empty.tables() == set()


# Concurrent upgrades, interrupted upgrades and conflicting tables


def test_processes_can_upgrade_an_empty_database_simultaneously(empty, background, tmp_path):
    script = """
        import sys
        from pathlib import Path
        from outboxq import migrations
        from tests.waiting import until
        print("ready", flush=True)
        until(Path(sys.argv[2]).exists, every=0.001)
        migrations.upgrade(sys.argv[1])
        print("upgraded", flush=True)
    """
    processes = [background(script, empty.url, str(tmp_path / "go")) for _ in range(2)]
    for process in processes:
        until(lambda: process.text() == "ready\n")  # noqa: B023
    (tmp_path / "go").touch()
    for process in processes:
        assert process.wait() == 0, process.text()
        assert process.text() == "ready\nupgraded\n"
    assert empty.tables() == OURS
    assert migrations.current(empty.url) == REVISION


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "last",
    [
        pytest.param("CREATE TABLE outboxq_alembic_version", marks=pytest.mark.full),
        "CREATE TABLE execution_events",
        "INSERT INTO",
    ],
)
def test_a_migration_that_is_killed_halfway_leaves_nothing(empty, background, last):
    script = """
        import signal
        import sys
        from sqlalchemy import event
        from outboxq import migrations
        from outboxq.database.engine import make_engine

        engine = make_engine(sys.argv[1])

        @event.listens_for(engine, "after_cursor_execute")
        def stop(connection, cursor, statement, *rest):
            if sys.argv[2] in statement:
                print("half way", flush=True)
                signal.pause()

        migrations.upgrade(engine)
    """
    process = background(script, empty.url, last)
    until(lambda: process.text() == "half way\n")
    assert empty.tables() == set()
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert empty.tables() == set()
    migrations.upgrade(empty.url)
    assert empty.tables() == OURS
    Store(empty.engine).ensure_current()


@pytest.mark.in_turn
@pytest.mark.parametrize("by", ["engine", "url in the shell"])
def test_a_failing_migration_leaves_nothing_behind(empty, alembic, by):
    empty.run("CREATE TABLE queue_settings (in_the_way integer)")
    if by == "engine":
        with pytest.raises(Exception, match="already exists"):
            migrations.upgrade(empty.engine)
    else:
        assert "already exists" in alembic("upgrade", "head", fails=True, **{VARIABLE: empty.url})
    assert empty.tables() == {"queue_settings"}
    empty.run("DROP TABLE queue_settings")
    migrations.upgrade(empty.url)
    assert empty.tables() == OURS


# Inside a host's migrations

HOST_ENV = """
    from alembic import context
    from sqlalchemy import Column, Integer, MetaData, Table, create_engine
    from outboxq import migrations

    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    Table("parcels", metadata, Column("id", Integer, primary_key=True))

    engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
    options = {"include_name": migrations.not_ours} if context.get_x_argument(as_dictionary=True).get("ours") else {}
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, **options)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""
HOST_VERSION = """
    import sqlalchemy as sa
    from alembic import context, op
    from outboxq import migrations

    revision = "host1"
    down_revision = None

    def upgrade():
        op.create_table("orders", sa.Column("id", sa.Integer(), primary_key=True))
        migrations.upgrade(op.get_bind(), "head")
        op.create_table("parcels", sa.Column("id", sa.Integer(), primary_key=True))
        assert context.get_context().version_table == "alembic_version"
        op.execute("INSERT INTO parcels (id) VALUES (1)")

    def downgrade():
        op.drop_table("parcels")
        migrations.downgrade(op.get_bind(), "base")
        op.drop_table("orders")
"""


@pytest.fixture
def host(tmp_path: Path, empty: Empty) -> Path:
    """A project with its own migrations, one of which calls outboxq's."""
    project = tmp_path / "host"
    (project / "migrations" / "versions").mkdir(parents=True)
    (project / "migrations" / "env.py").write_text(textwrap.dedent(HOST_ENV))
    (project / "migrations" / "versions" / "host1.py").write_text(textwrap.dedent(HOST_VERSION))
    (project / "alembic.ini").write_text(
        "[alembic]\nscript_location = %(here)s/migrations\npath_separator = os\n"
        f"sqlalchemy.url = {empty.url.replace('%', '%%')}\n"
    )
    return project


@pytest.mark.in_turn
def test_a_migration_of_the_host_can_call_outboxq_migrations(host, empty, alembic):
    alembic("upgrade", "head", cwd=host)
    assert empty.tables() == {*OURS, "orders", "parcels", "alembic_version"}
    Store(empty.engine).ensure_current()
    alembic("downgrade", "base", cwd=host)
    assert empty.tables() == {"alembic_version"}


def test_a_failed_migration_of_the_host_rolls_back_the_outboxq_migration(host, empty, alembic):
    version = host / "migrations" / "versions" / "host1.py"
    version.write_text(version.read_text().replace("VALUES (1)", "VALUES (nonsense)"))
    assert "nonsense" in alembic("upgrade", "head", cwd=host, fails=True)
    # On SQLite, Alembic runs the steps before outboxq's outside a transaction.
    assert empty.tables() <= {"alembic_version", "orders"}


@pytest.mark.in_turn
def test_the_migration_from_the_installation_page_works(host, empty, alembic):
    """A second migration, for an update of outboxq, follows it, as on the page."""
    page = (ROOT / "docs" / "install.md").read_text()
    [written] = re.findall(r"^  ```py\n(.*?)^  ```$", page, re.DOTALL | re.MULTILINE)
    code, schema = textwrap.dedent(written), "outboxq"
    if empty.name == "sqlite":
        code, schema = code.replace(', schema="outboxq"', ""), None
    folder = host / "migrations" / "versions"
    (folder / "host1.py").write_text(f'revision = "host1"\ndown_revision = None\n{code}')
    later = code.partition("def downgrade")[0] + "def downgrade() -> None:\n    pass\n"
    (folder / "host2.py").write_text(f'revision = "host2"\ndown_revision = "host1"\n{later}')
    alembic("upgrade", "head", cwd=host)
    Store(empty.engine, schema=schema).ensure_current()
    assert empty.tables(schema) >= OURS
    assert schema is None or empty.tables() == {"alembic_version"}
    alembic("downgrade", "host1", cwd=host)
    Store(empty.engine, schema=schema).ensure_current()
    alembic("downgrade", "base", cwd=host)
    assert migrations.current(empty.engine, schema=schema) is None


@pytest.mark.in_turn
def test_autogenerate_of_the_host_ignores_outboxq_tables_if_they_are_excluded(host, empty, alembic):
    alembic("upgrade", "head", cwd=host)
    alembic("-x", "ours=no", "check", cwd=host)
    untold = alembic("check", cwd=host, fails=True)
    assert "remove_table" in untold
    assert "task_outbox" in untold


def test_names_of_outboxq_tables_are_recognized():
    assert not any(migrations.not_ours(name, "table") for name in OURS)
    assert all(migrations.ours(name, "table") for name in metadata.tables)
    assert not migrations.ours("orders", "table")
    assert migrations.not_ours("orders", "table")
    assert migrations.not_ours("ix_orders", "index")


# As a script


def test_the_script_creates_the_same_schema_as_the_upgrade(empty, cluster, tmp_path):
    migrations.upgrade(empty.url)
    expected = shape(empty)
    script = migrations.sql(empty.url)
    if empty.name == "sqlite":
        other = Empty("sqlite", f"sqlite:///{tmp_path / 'other.db'}")
        with sqlite3.connect(tmp_path / "other.db") as connection:
            connection.executescript(script)
        connection.close()
    else:
        other = Empty("postgresql", cluster.create_database())
        execute(other.url, script)
    assert shape(other) == expected
    Store(other.engine).ensure_current()
    other.close()


@pytest.mark.parametrize("schema", [pytest.param("tasks", marks=pytest.mark.full), "user"])
def test_the_script_for_a_named_schema_creates_the_same_as_the_upgrade(postgresql_empty, cluster, schema):
    migrations.upgrade(postgresql_empty.url, schema=schema)
    other = Empty("postgresql", cluster.create_database())
    execute(other.url, migrations.sql(other.url, schema=schema))
    assert shape(other, schema) == shape(postgresql_empty, schema)
    assert other.tables() == set()
    store = Store(other.engine, schema=schema)
    store.enqueue(new())
    assert len(store.claim_ready_task(1, worker_id=uuid4())) == 1
    other.close()


def test_the_script_is_printed_without_a_connection_or_a_password():
    script = migrations.sql("postgresql+psycopg://user:secret%25@nowhere.invalid/db")
    assert "CREATE TRIGGER task_outbox_notify" in script
    assert "secret" not in script
    assert script.count("CREATE TABLE") == len(OURS)


def execute(url: str, script: str) -> None:
    address = make_url(url).set(drivername="postgresql").render_as_string()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(script)


# A schema that is too old, too new or missing


def versions(database: Empty, version: str | None) -> str:
    """Bring the database to the version. Return the message that is then expected."""
    if version is None:
        database.run("SELECT 1")  # creates the file
        return f"{called(database.url)} has no outboxq tables; this release needs {REVISION}; {UPGRADE}"
    migrations.upgrade(database.url)
    pretend(database, version, oldest_code=version)
    if version < OLDEST_SCHEMA:
        return f"{called(database.url)} has the outboxq schema {version}; this release needs {OLDEST_SCHEMA} or later; {UPGRADE}"
    return (
        f"{called(database.url)} has the outboxq schema {version}, which supports only releases that know schema {version} or later; "
        f"this release knows schema {REVISION}; run: pip install --upgrade outboxq"
    )


def pretend(database: Empty, version: str, *, oldest_code: str) -> None:
    database.run(f"UPDATE outboxq_alembic_version SET version_num = '{version}', oldest_code = '{oldest_code}'")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "version", [None, *(pytest.param(one, marks=pytest.mark.full) for one in ("0000", "9999"))]
)  # the next test expects these sentences, too
def test_an_incompatible_schema_is_reported_in_one_sentence(empty, version):
    sentence = versions(empty, version)
    with pytest.raises(SchemaOutOfDate, match=f"^{re.escape(sentence)}$"):
        Store(empty.engine).ensure_current()


@pytest.mark.in_turn
@pytest.mark.parametrize("version", [None, "0000", "9999"])
def test_an_incompatible_schema_is_found_before_any_write_and_keeps_the_transaction_usable(empty, version):
    sentence = versions(empty, version)
    if empty.name == "sqlite":
        configure_sqlite(empty.host)
    empty.run("CREATE TABLE orders (id integer)")
    before = empty.tables()
    by_the_connection = sentence
    if empty.name == "postgresql":  # the connection shows the database's name, but no address
        by_the_connection = sentence.replace(called(empty.url), f"the database {make_url(empty.url).database}")
    with empty.host.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (1)")
        for store, said in ((Store(empty.engine), sentence), (Store(None), by_the_connection)):
            with pytest.raises(SchemaOutOfDate) as raised:
                store.enqueue(new(), using=connection)
            assert str(raised.value) == said
        connection.exec_driver_sql("INSERT INTO orders VALUES (2)")
    assert empty.tables() == before
    with empty.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM orders").scalar_one() == 2
        if version is not None:
            assert connection.exec_driver_sql("SELECT count(*) FROM task_outbox").scalar_one() == 0


@pytest.mark.in_turn
def test_a_store_that_found_the_schema_missing_works_after_the_upgrade(empty):
    store = Store(empty.engine)
    with empty.host.begin() as connection, pytest.raises(SchemaOutOfDate):
        store.enqueue(new(), using=connection)
    migrations.upgrade(empty.url)
    with empty.host.begin() as connection:
        store.enqueue(new(), using=connection)
    store.ensure_current()
    assert store.verify() == []


FORMER = {
    "another text of 0001": ("UPDATE outboxq_alembic_version SET fingerprint = 'another'",),
    "no fingerprint": ("ALTER TABLE outboxq_alembic_version DROP COLUMN fingerprint",),
    "further revisions": (
        "ALTER TABLE outboxq_alembic_version DROP COLUMN fingerprint",
        "UPDATE outboxq_alembic_version SET version_num = '0010'",
    ),
    "taken back": (
        "ALTER TABLE outboxq_alembic_version DROP COLUMN fingerprint",
        "DELETE FROM outboxq_alembic_version",
    ),
}
"""Contents of the version tables of unreleased versions: with an earlier text of 0001, or with ten revisions."""


@pytest.mark.in_turn
@pytest.mark.parametrize("made", FORMER)
def test_tables_of_an_unreleased_version_are_refused_with_instructions(migrated, made):
    for statement in FORMER[made]:
        migrated.run(statement)
    before = shape(migrated)
    sentence = (
        f"{called(migrated.url)} has outboxq tables from an unreleased version, which cannot be upgraded; "
        "delete them or use an empty database, then run outboxq upgrade"
    )
    store = Store(migrated.engine)
    for attempt in (
        store.ensure_current,
        lambda: migrations.upgrade(migrated.url),
        lambda: migrations.downgrade(migrated.url, "base"),
        lambda: migrations.current(migrated.url),
    ):
        with pytest.raises(SchemaOutOfDate, match=f"^{re.escape(sentence)}$") as refused:
            attempt()
        assert not refused.value.code_is_older
        assert refused.value.mended_by("outboxq upgrade app:outbox") is refused.value, "an upgrade does not help"
    if migrated.name == "sqlite":
        configure_sqlite(migrated.host)
    with migrated.host.begin() as connection:
        with pytest.raises(SchemaOutOfDate, match="unreleased version"):
            store.enqueue(new(), using=connection)
        assert connection.exec_driver_sql("SELECT count(*) FROM task_outbox").scalar_one() == 0
    assert shape(migrated) == before


@pytest.mark.in_turn
def test_a_fully_downgraded_schema_counts_as_missing(empty):
    migrations.upgrade(empty.url)
    migrations.downgrade(empty.url, "base")
    with pytest.raises(SchemaOutOfDate, match="has no outboxq tables"):
        Store(empty.engine).ensure_current()


@pytest.mark.in_turn
def test_a_schema_records_the_oldest_release_it_supports(empty):
    for _ in range(2):  # a downgrade to base leaves the version table
        migrations.upgrade(empty.url)
        with empty.engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT version_num, oldest_code, fingerprint FROM outboxq_alembic_version"
            ).all()
        assert [tuple(row) for row in found] == [(REVISION, "0001", fingerprint())]
        migrations.downgrade(empty.url, "base")


@pytest.mark.in_turn
def test_a_later_schema_that_supports_this_release_can_be_used(migrated):
    pretend(migrated, LATER, oldest_code=REVISION)
    store = Store(migrated.engine)
    store.ensure_current()
    with migrated.host.begin() as connection:
        Store(None).enqueue(new(), using=connection)
    assert len(store.claim_ready_task(1, worker_id=uuid4())) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("revision", ["head", REVISION])
def test_a_later_schema_that_supports_this_release_is_not_changed_by_an_upgrade(migrated, revision, caplog):
    pretend(migrated, LATER, oldest_code=REVISION)
    with caplog.at_level("INFO", "outboxq.migrations"):
        migrations.upgrade(migrated.url, revision)
    assert migrations.current(migrated.url) == LATER
    assert (
        f"the schema {LATER} was created by a later release but also works with this one, which knows {REVISION}; nothing was changed"
        in caplog.text
    )


@pytest.mark.in_turn
def test_an_upgrade_of_a_later_schema_that_does_not_support_this_release_is_refused(empty):
    sentence = versions(empty, LATER)
    with pytest.raises(SchemaOutOfDate, match=f"^{re.escape(sentence)}$") as refused:
        migrations.upgrade(empty.url)
    assert refused.value.code_is_older
    assert migrations.current(empty.url) == LATER


@pytest.mark.in_turn
def test_a_later_schema_can_be_downgraded_only_by_the_release_that_created_it(migrated):
    pretend(migrated, LATER, oldest_code=REVISION)
    with pytest.raises(
        SchemaOutOfDate, match=rf"{LATER}, which this release \({REVISION}\) does not know and so cannot downgrade"
    ):
        migrations.downgrade(migrated.url, "base")
    assert migrated.tables() == OURS


def test_tables_that_do_not_support_this_release_are_not_partitioned(postgresql_empty):
    sentence = versions(postgresql_empty, LATER)
    with pytest.raises(SchemaOutOfDate, match=f"^{re.escape(sentence)}$"):
        migrations.partition(postgresql_empty.url)


def test_an_upgrade_that_waited_for_the_migration_of_a_later_release_changes_nothing(postgresql_empty):
    migrations.upgrade(postgresql_empty.url)
    with ThreadPoolExecutor(1) as pool, postgresql_empty.host.begin() as later:
        later.exec_driver_sql(migrations.LOCK)
        waiting = pool.submit(migrations.upgrade, postgresql_empty.url)
        with postgresql_empty.engine.connect() as looking:
            locks = (
                "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
            )
            until(lambda: looking.exec_driver_sql(locks).scalar_one() == 1)
        later.exec_driver_sql("UPDATE outboxq_alembic_version SET version_num = '" + LATER + "'")
        later.commit()
        waiting.result(60)
    assert migrations.current(postgresql_empty.url) == LATER


@pytest.mark.in_turn
def test_a_database_that_was_never_upgraded_can_be_downgraded_to_base(empty):
    """Alembic leaves its version table behind, without outboxq's column."""
    migrations.downgrade(empty.url, "base")
    assert migrations.current(empty.url) is None
    with pytest.raises(SchemaOutOfDate, match="has no outboxq tables"):
        Store(empty.engine).ensure_current()
    migrations.upgrade(empty.url)
    assert migrations.current(empty.url) == REVISION


def test_threads_can_upgrade_simultaneously(tmp_path):
    """Alembic keeps its state in global variables."""
    urls = [f"sqlite:///{tmp_path / f'{number}.db'}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrations.upgrade, urls))
    assert [migrations.current(url) for url in urls] == [REVISION] * 4
