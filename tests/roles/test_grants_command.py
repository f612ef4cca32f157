"""On PostgreSQL, `outboxq grants` prints or grants a role's privileges, and one sentence reports missing privileges."""

from __future__ import annotations

import os
import re
import sys
import threading
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from outboxq import Outbox, migrations
from outboxq.cli import main
from outboxq.database.engine import make_engine
from outboxq.database.privileges import Feature, Role, rights
from outboxq.errors import ConfigurationError, InvalidArgument, NotPermitted, UnsupportedDatabase
from outboxq.store import Store
from tests import forked
from tests.roles.acts import new

ODD = ['a"; DROP TABLE task_outbox; --', "a b", "UPPER", "é%s %(x)s", "o'clock"]


class Place:
    def __init__(self, cluster, template=None):
        self.cluster, self.url = cluster, cluster.create_database(template=template)
        self.roles, self.engines = [], []

    def run(self, statement):
        with psycopg.connect(plain(self.url), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def role(self, name=None):
        name = name or f"outboxq_{uuid4().hex[:12]}"
        self.roles.append(name)
        self.run(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        return name

    def url_of(self, role):
        return make_url(self.url).set(username=role).render_as_string(hide_password=False)

    def store(self, role=None, **options):
        engine = make_engine(self.url if role is None else self.url_of(role))
        self.engines.append(engine)
        return Store(engine, **options)

    def host_engine(self, role):
        self.engines.append(create_engine(self.url if role is None else self.url_of(role)))
        return self.engines[-1]

    def close(self):
        for engine in self.engines:
            engine.dispose()
        self.cluster.drop_database(self.url)
        with psycopg.connect(plain(self.cluster.url), autocommit=True) as connection:
            for role in self.roles:
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.fixture
def place(cluster):
    place = Place(cluster)
    yield place
    place.close()


@pytest.fixture
def made(cluster, migrated_postgresql):
    """A place with outboxq's tables."""
    made = Place(cluster, template=migrated_postgresql)
    yield made
    made.close()


def plain(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def outboxq(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=True)


def granted(place, role):
    found = place.run(f"SELECT count(*) FROM information_schema.column_privileges WHERE grantee = '{role}'")
    return found[0][0]


@pytest.mark.parametrize("role", Role)
def test_the_printed_statements_grant_the_same_as_apply(made, role):
    printed, applied = made.role(), made.role()
    said = outboxq("grants", "--role", role, printed, "--url", made.url)
    assert said.exit_code == 0, said.output
    assert granted(made, printed) == 0, "without --apply, the command only prints"
    made.run(said.stdout)
    done = outboxq("grants", "--role", role, "--apply", applied, "--url", made.url)
    assert done.exit_code == 0, done.output
    assert done.stdout == said.stdout.replace(printed, applied)
    assert granted(made, printed) == granted(made, applied)
    for name in (printed, applied):
        made.store(name).rights.ensure(role) if role is not Role.PRODUCER else made.store(name).enqueue(new())


def test_the_features_of_a_producer_are_granted(made):
    name = made.role()
    said = outboxq("grants", "--role", "producer", "--with", "replace", "--with", "emit", name, "--url", made.url)
    assert len(said.stdout.splitlines()) == len(rights(Role.PRODUCER, {Feature.REPLACE, Feature.EMIT}))
    with pytest.raises(InvalidArgument, match="use --with emit only for a producer"):
        Store(made.store().bound_engine).rights.grants(Role.WORKER, name, [Feature.EMIT])


@pytest.mark.parametrize("name", ODD)
def test_role_names_are_quoted(made, name):
    made.role(name)
    done = outboxq("grants", "--role", "worker", "--apply", name, "--url", made.url)
    assert done.exit_code == 0, done.output
    made.store(name).rights.ensure(Role.WORKER)


@pytest.mark.parametrize("schema", ["jobs", None])
def test_privileges_are_granted_on_the_schema_of_the_tables(place, schema):
    migrations.upgrade(place.url, schema="jobs")
    place.run(f"ALTER DATABASE {make_url(place.url).database} SET search_path = jobs")
    name = place.role()
    options = ["--schema", schema] if schema else []
    done = outboxq("grants", "--role", "worker", "--apply", name, "--url", place.url, *options)
    assert done.exit_code == 0, done.output
    assert 'ON SCHEMA "jobs"' in done.stdout
    place.store(name, schema=schema).rights.ensure(Role.WORKER)


def test_a_failed_grant_is_an_error_and_grants_nothing(made):
    """PostgreSQL itself only warns."""
    weak, name = made.role(), made.role()
    outboxq("grants", "--role", "operator", "--apply", weak, "--url", made.url)
    done = outboxq("grants", "--role", "worker", "--apply", name, "--url", made.url_of(weak))
    assert done.exit_code == 77
    assert "nothing was granted" in done.stderr
    assert granted(made, name) == 0


def test_granting_to_an_unknown_role_prints_one_sentence(made):
    done = outboxq("grants", "--role", "worker", "--apply", "nobody_here", "--url", made.url)
    assert done.exit_code == 2
    assert "unknown database role 'nobody_here'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_role_without_privileges_is_told_to_grant_as_the_owner(made):
    weak = made.role()
    done = outboxq("grants", "--role", "worker", "mailer", "--url", made.url_of(weak))
    assert done.exit_code == 77
    assert done.stderr.endswith("run the command as their owner\n")
    assert "--role viewer" not in done.stderr


def test_only_the_owner_of_the_schema_can_grant_privileges_to_a_migrator(made):
    weak, name = made.role(), made.role()
    done = outboxq("grants", "--role", "migrator", "--apply", name, "--url", made.url_of(weak))
    assert done.exit_code == 77
    assert done.stderr.endswith("run this as the owner of the schema\n")


def test_granting_a_worker_a_producers_features_suggests_both_roles(made):
    done = outboxq("grants", "--role", "worker", "--with", "emit", "mailer", "--url", made.url)
    assert done.exit_code == 1
    assert "grant it both roles: outboxq grants --role producer --with emit mailer" in done.stderr


def test_granting_on_sqlite_does_not_create_a_file(tmp_path):
    done = outboxq("grants", "--role", "worker", "me", "--url", f"sqlite:///{tmp_path}/new.db")
    assert done.exit_code == 2
    assert "SQLite has no roles" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_granting_on_sqlite_is_refused(sqlite):
    done = outboxq("grants", "--role", "worker", "me", "--url", sqlite.url)
    assert done.exit_code == 2
    assert "SQLite has no roles" in done.stderr
    with pytest.raises(UnsupportedDatabase):
        Store(sqlite.engine).rights.grants(Role.WORKER, "me")


def test_a_worker_lacking_a_privilege_does_not_start_and_names_the_command_that_grants_it(made):
    name = made.role()
    Store(made.store().bound_engine).rights.grant(Role.WORKER, name)
    made.run(f"REVOKE INSERT ON task_metrics FROM {name}")
    with pytest.raises(NotPermitted, match=COMMAND.format(role="worker", options="", name=name)) as told:
        Outbox(made.store(name).bound_engine).worker(notifications=False).run(burst=True)
    assert f"the database role '{name}' lacks INSERT on task_metrics in the schema 'public'" in str(told.value)


# Reading other programs' tasks


@pytest.mark.parametrize("features", [[], list(set(Feature) - {Feature.RESULTS}), list(Feature)], ids=len)
def test_a_producer_cannot_read_arguments_or_end_tasks(made, features):
    name = made.role()
    Store(made.store().bound_engine).rights.grant(Role.PRODUCER, name, features)
    made.store().enqueue(new())
    with psycopg.connect(plain(made.url_of(name)), autocommit=True) as connection:
        for statement in (
            "SELECT args FROM task_executions",
            "SELECT result FROM task_executions",
            "SELECT last_error FROM task_executions",
            "SELECT headers FROM task_executions",
            "SELECT * FROM task_executions",
            "SELECT exception FROM dead_letters",
            "UPDATE task_executions SET status = 'Completed'",
            "UPDATE task_executions SET task_name = 'other'",
            "DELETE FROM task_executions",
        ):
            if Feature.RESULTS in features and statement.startswith(("SELECT result", "SELECT last_error")):
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


# Messages


COMMAND = r"outboxq grants --role {role}{options} {name} --apply"


def test_enqueueing_without_privileges_is_refused_and_the_transaction_stays_usable(made):
    name = made.role()
    store = made.store(name)
    for features, task in (("", new()), (" --with idempotency", new(idempotency_key="k"))):
        with Session(made.host_engine(name)) as session, session.begin():
            with pytest.raises(
                NotPermitted, match=COMMAND.format(role="producer", options=features, name=name)
            ) as told:
                store.enqueue(task, using=session)
            assert repr(name) in str(told.value)
            assert session.connection().exec_driver_sql("SELECT 1").scalar_one() == 1, "the transaction is still usable"
        Store(made.store().bound_engine).rights.grant(Role.PRODUCER, name)
    with Session(made.host_engine(name)) as session, session.begin():
        store.enqueue(new(), using=session)


def test_the_error_for_a_refused_enqueue_names_the_missing_privilege(made):
    name = made.role()
    Store(made.store().bound_engine).rights.grant(Role.PRODUCER, name)
    made.run(f"REVOKE INSERT ON task_outbox FROM {name}")
    with pytest.raises(NotPermitted) as told:
        made.store(name).enqueue(new())
    assert f"the database role '{name}' lacks INSERT on task_outbox in the schema 'public'" in str(told.value)
    with made.host_engine(name).begin() as connection, pytest.raises(NotPermitted):
        made.store(name).enqueue(new(), using=connection)


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (("status",), "viewer"),
        (("task", "list"), "viewer"),
        (("verify",), "viewer"),
        (("queue", "pause", "default"), "viewer"),
    ],
)
def test_a_command_without_privileges_names_the_grants_command(made, command, role):
    name = made.role()
    done = outboxq(*command, "--url", made.url_of(name))
    assert done.exit_code == 77, done.output
    assert re.search(COMMAND.format(role=role, options="", name=name), done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_viewer_that_tries_a_change_is_told_to_use_the_operator_role(made):
    name = made.role()
    outboxq("grants", "--role", "viewer", "--apply", name, "--url", made.url)
    task = made.store().enqueue(new())
    done = outboxq("task", "cancel", task.id, "--url", made.url_of(name))
    assert done.exit_code == 77
    assert re.search(COMMAND.format(role="operator", options="", name=name), done.stderr)
    outboxq("grants", "--role", "operator", "--apply", name, "--url", made.url)
    assert outboxq("task", "cancel", task.id, "--url", made.url_of(name)).exit_code == 0


def test_a_worker_without_privileges_does_not_start(made):
    name = made.role()
    outbox = Outbox(made.store(name).bound_engine)
    with pytest.raises(NotPermitted, match=COMMAND.format(role="worker", options="", name=name)):
        outbox.worker().start()
    Store(made.store().bound_engine).rights.grant(Role.WORKER, name)
    made.run(f"REVOKE DELETE ON task_leases FROM {name}")
    with pytest.raises(NotPermitted, match="DELETE on task_leases"):
        outbox.worker().start()


def test_the_worker_command_without_privileges_prints_one_sentence_and_exits_with_77(made):
    name = made.role()
    done = forked.run(
        [sys.executable, "-m", "outboxq", "worker", "tests.faults.app:outbox", "--burst"],
        env={**os.environ, "OUTBOXQ_DATABASE_URL": made.url_of(name)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 77, done.stderr
    assert re.search(COMMAND.format(role="worker", options="", name=name), done.stderr)
    assert "Traceback" not in done.stderr


def test_the_error_names_a_privilege_that_was_revoked_from_a_worker(made):
    name = made.role()
    Store(made.store().bound_engine).rights.grant(Role.WORKER, name)
    made.run(f"REVOKE UPDATE ON task_executions FROM {name}")
    store = made.store(name)
    reserved = store.reserved(threading.Event())
    made.engines.append(reserved.bound_engine)
    made.store().enqueue(new())
    with pytest.raises(NotPermitted, match="lacks UPDATE on task_executions .*--role worker"):
        reserved.claim_ready_task(1, worker_id=uuid4())


def test_an_error_of_row_level_security_is_raised_unchanged(made):
    """Granting a privilege would not help."""
    name = made.role()
    Store(made.store().bound_engine).rights.grant(Role.PRODUCER, name)
    made.run("ALTER TABLE task_outbox ENABLE ROW LEVEL SECURITY")
    with pytest.raises(Exception, match="row-level security") as told:
        made.store(name).enqueue(new())
    assert not isinstance(told.value, NotPermitted)


# Another table of the same name


@pytest.mark.parametrize("joined", [True, False])
def test_an_outbox_table_earlier_in_the_search_path_is_refused(made, joined):
    """The tenant's table comes first in the search_path, but the task itself would go to `public`."""
    made.run("CREATE SCHEMA tenant; CREATE TABLE tenant.task_outbox (LIKE public.task_outbox INCLUDING ALL)")
    made.run(f"ALTER DATABASE {make_url(made.url).database} SET search_path = tenant, public")
    said = r"a table task_outbox in the schema 'tenant' before outboxq's table in 'public'; .* schema='public'"
    with made.host_engine(None).begin() as connection:
        with pytest.raises(ConfigurationError, match=said):
            made.store().enqueue(new(), using=connection if joined else None)
        assert connection.exec_driver_sql("SELECT count(*) FROM tenant.task_outbox").scalar_one() == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM task_executions").scalar_one() == 0
        made.store(schema="public").enqueue(new(), using=connection if joined else None)
    assert made.store(schema="public").verify() == []
    with pytest.raises(ConfigurationError, match=said):
        Outbox(made.store().bound_engine).worker().start()


# A migrator


def test_a_role_that_owns_only_the_schema_can_create_the_tables(place):
    name = place.role()
    place.run(f"CREATE SCHEMA jobs AUTHORIZATION {name}")
    done = outboxq("upgrade", place.url_of(name), "--schema", "jobs")
    assert done.exit_code == 0, done.output
    place.store(name, schema="jobs").ensure_current()
    assert outboxq("upgrade", place.url_of(name), "--schema", "jobs").exit_code == 0


@pytest.mark.parametrize("schema", ["jobs", "public"])
def test_a_migrator_can_create_and_drop_the_tables_with_the_granted_privileges(place, schema):
    name = place.role()
    place.run("CREATE SCHEMA jobs")
    refused = outboxq("upgrade", place.url_of(name), "--schema", schema)
    assert refused.exit_code == 77, refused.output
    assert "Traceback" not in refused.stderr
    done = outboxq("grants", "--role", "migrator", "--apply", name, "--url", place.url, "--schema", schema)
    assert done.exit_code == 0, done.output
    assert outboxq("upgrade", place.url_of(name), "--schema", schema).exit_code == 0
    migrations.downgrade(place.url_of(name), "base", schema=schema)


def test_upgrade_creates_a_missing_schema_but_grants_refuses_it(place):
    assert outboxq("upgrade", place.url, "--schema", "jobs").exit_code == 0
    done = outboxq("grants", "--role", "migrator", "--apply", place.role(), "--url", place.url, "--schema", "nowhere")
    assert done.exit_code == 2
    assert "there is no schema 'nowhere'" in done.stderr
