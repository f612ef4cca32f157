"""The trigger's channel on PostgreSQL: listeners receive its notifications, whatever schema the tables are in and however each side finds
them.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from outboxq import migrations
from outboxq.database.dialects import channel as channel_statements
from outboxq.database.engine import make_engine
from outboxq.database.tables import VERSION_TABLE, metadata
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.distributor import create_work_distributor
from tests.sleeper import Claimer, Sleeper
from tests.waiting import PATIENCE, PROMPTLY, until

MINUTE = timedelta(minutes=1)
LONG = "s" * 60
"""A name that is longer than the space left in a channel's name."""


class Place:
    """A new database, in which the test decides where the tables are."""

    def __init__(self, cluster, migrated):
        self.cluster, self._migrated, self.engines, self.roles = cluster, migrated, [], []

    @cached_property
    def url(self):
        return self.cluster.create_database()

    @property
    def name(self):
        return make_url(self.url).database

    def upgrade(self):
        """Create the tables where `outboxq upgrade` creates them in a new database."""
        assert "url" not in vars(self)
        self.url = self.cluster.create_database(template=self._migrated)

    def run(self, statements):
        with psycopg.connect(plain(self.url), autocommit=True) as connection:
            connection.execute(statements)

    def store(self, schema=None, role=None):
        url = make_url(self.url) if role is None else make_url(self.url).set(username=role)
        engine = make_engine(url.render_as_string(hide_password=False))
        self.engines.append(engine)
        return Store(engine, schema=schema)

    def role(self, path):
        role = f"outboxq_{uuid4().hex[:12]}"
        self.roles.append(role)
        self.run(f"CREATE ROLE {role} SUPERUSER LOGIN; ALTER ROLE {role} SET search_path = {path}")
        return role

    def search(self, path):
        self.run(f"ALTER DATABASE {self.name} SET search_path = {path}")

    def move(self, schema, source="public"):
        tables = [*metadata.tables, VERSION_TABLE]
        moves = [f"ALTER TABLE {source}.{table} SET SCHEMA {schema}" for table in tables]
        moves.append(f"ALTER SEQUENCE {source}.task_position SET SCHEMA {schema}")
        self.run(f"CREATE SCHEMA IF NOT EXISTS {schema}; {'; '.join(moves)}")

    def close(self):
        for engine in self.engines:
            engine.dispose()
        self.cluster.drop_database(self.url)
        with psycopg.connect(plain(self.cluster.url), autocommit=True) as connection:
            for role in self.roles:
                connection.execute(f"DROP ROLE {role}")


@pytest.fixture
def place(cluster, migrated_postgresql):
    place = Place(cluster, migrated_postgresql)
    yield place
    place.close()


def plain(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def by_default(place):
    place.upgrade()
    return place.store(), place.store()


def worker_names_public(place):
    place.upgrade()
    return place.store(), place.store("public")


def producer_names_public(place):
    place.upgrade()
    return place.store("public"), place.store()


def made_in_public_by_name(place):
    migrations.upgrade(place.url, schema="public")
    return place.store(), place.store()


def both_name_their_schema(place):
    migrations.upgrade(place.url, schema="jobs")
    return place.store("jobs"), place.store("jobs")


def found_by_the_databases_path(place):
    migrations.upgrade(place.url, schema="jobs")
    place.search("jobs")
    return place.store(), place.store()


def found_by_a_roles_path(place):
    migrations.upgrade(place.url, schema="jobs")
    role = place.role("jobs")
    return place.store("jobs"), place.store(role=role)


def made_where_a_path_led(place):
    place.run("CREATE SCHEMA jobs")
    place.search("jobs")
    migrations.upgrade(place.url)
    return place.store(), place.store("jobs")


def in_a_schema_with_a_long_name(place):
    place.run(f"CREATE SCHEMA {LONG}")
    place.search(LONG)
    migrations.upgrade(place.url)
    return place.store(), place.store()


def in_a_schema_whose_name_needs_quotes(place):
    place.run('CREATE SCHEMA "My ""Jobs"" é"')
    place.search('"My ""Jobs"" é"')
    migrations.upgrade(place.url)
    return place.store(), place.store()


def moved(place):
    place.upgrade()
    place.move("elsewhere")
    return place.store("elsewhere"), place.store("elsewhere")


def moved_and_found_by_a_path(place):
    place.upgrade()
    place.move("elsewhere")
    place.search("elsewhere")
    return place.store("elsewhere"), place.store()


def moved_home(place):
    migrations.upgrade(place.url, schema="jobs")
    place.move("public", source="jobs")
    return place.store(), place.store()


def in_a_schema_that_was_renamed(place):
    migrations.upgrade(place.url, schema="jobs")
    place.run("ALTER SCHEMA jobs RENAME TO work")
    return place.store("work"), place.store("work")


PLACES = [
    by_default,
    worker_names_public,
    producer_names_public,
    made_in_public_by_name,
    both_name_their_schema,
    found_by_the_databases_path,
    found_by_a_roles_path,
    made_where_a_path_led,
    in_a_schema_with_a_long_name,
    in_a_schema_whose_name_needs_quotes,
    moved,
    moved_and_found_by_a_path,
    moved_home,
    in_a_schema_that_was_renamed,
]


@contextmanager
def listening(store, ping_every=None):
    """Return a distributor that polls once a minute, so any prompt wake-up is due to a notification."""
    distributor = create_work_distributor(store, poll=MINUTE)
    if ping_every is not None:
        distributor._listener.ping_every = ping_every
    distributor.start()
    try:
        until(lambda: distributor.health.listening or distributor.health.error not in (None, "not connected yet"))
        yield distributor
    finally:
        distributor.close()


def add(store):
    handle = store.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"))
    return handle.id, time.monotonic()


ALIKE = [worker_names_public, made_in_public_by_name, found_by_the_databases_path, moved, moved_home]
"""Places whose tables are found as in another place."""


@pytest.mark.parametrize(
    "found", [pytest.param(one, marks=[pytest.mark.full] if one in ALIKE else []) for one in PLACES]
)
def test_a_task_is_claimed_promptly_whatever_schema_the_tables_are_in(place, found):
    producer, worker = found(place)
    with listening(worker) as distributor, Claimer(worker, distributor, tells=False) as claimer:
        assert distributor.health.listening, distributor.health.error
        for _ in range(3):
            until(lambda: distributor._announced_until > time.monotonic())
            task, committed = add(producer)
            assert claimer.lag(task, committed) < PROMPTLY


FEW = [by_default, found_by_the_databases_path, in_a_schema_whose_name_needs_quotes, moved]
FEW_OR_ALL = [one if one in FEW else pytest.param(one, marks=pytest.mark.full) for one in PLACES]


@pytest.mark.parametrize("found", FEW)
def test_resuming_a_queue_wakes_its_workers_whatever_schema_the_tables_are_in(place, found):
    producer, worker = found(place)
    producer.queues.pause("default", create=True)
    add(producer)
    with listening(worker) as distributor, Sleeper(distributor).asleep() as woken:
        producer.queues.resume("default")
        began = time.monotonic()
        assert woken.result(30) - began < PROMPTLY


def heard_before(word, ear):
    heard = []
    for notice in ear.notifies(timeout=PATIENCE):
        if notice.payload == word:
            return heard
        heard.append(notice.payload.partition(" ")[2])
    raise AssertionError("the last notification was not received")


@pytest.mark.parametrize("found", FEW_OR_ALL)
def test_notifications_require_a_sleeping_worker_whatever_schema_the_tables_are_in(place, found):
    producer, worker = found(place)
    find = worker.dialect.compiled[channel_statements.find]
    with worker.bound_engine.connect() as connection, psycopg.connect(plain(place.url), autocommit=True) as ear:
        [tables] = find.run(lambda text, values: connection.exec_driver_sql(text, dict(values)).all(), {})
        channel = tables["channel"]
        ear.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        for expected in ([], ["default"]):
            add(producer)
            word = f"last {uuid4()}"
            connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (channel, word))
            assert heard_before(word, ear) == expected
            Store(worker.bound_engine, schema=worker.schema).sleeping_workers.announce(uuid4(), None, MINUTE)


def test_a_listening_worker_finds_tables_that_move_to_another_schema(place):
    place.upgrade()
    place.run("CREATE SCHEMA elsewhere")
    place.search("elsewhere, public")
    with listening(place.store(), ping_every=0.1) as distributor:
        assert distributor.health.listening
        place.move("elsewhere")
        until(lambda: distributor.health.connections == 2 and distributor.health.listening)
        for engine in place.engines:
            engine.dispose()  # closing the connections discards the plans for the old schema
        worker = distributor.store
        with Claimer(worker, distributor, tells=False) as claimer:
            until(lambda: distributor._announced_until > time.monotonic())
            task, committed = add(place.store())
            assert claimer.lag(task, committed) < PROMPTLY


@pytest.mark.parametrize(
    ("silenced", "said"),
    [
        ("ALTER TABLE task_outbox DISABLE TRIGGER task_outbox_notify", "missing or switched off"),
        ("DROP TRIGGER task_outbox_notify ON task_outbox", "missing or switched off"),
        ("ALTER TABLE task_outbox RENAME TO away", "no outbox"),
        (
            "CREATE OR REPLACE FUNCTION outboxq_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "a pooler does not forward notifications",
        ),
    ],
)
def test_a_worker_without_notifications_does_not_report_that_it_listens(place, silenced, said):
    place.upgrade()
    place.run(silenced)
    with listening(place.store()) as distributor:
        assert not distributor.health.listening
        assert said in distributor.health.error


def test_a_worker_listens_again_once_the_trigger_is_enabled_again(place):
    place.upgrade()
    place.run("ALTER TABLE task_outbox DISABLE TRIGGER task_outbox_notify")
    with listening(place.store()) as distributor:
        assert not distributor.health.listening
        place.run("ALTER TABLE task_outbox ENABLE TRIGGER task_outbox_notify")
        until(lambda: distributor.health.listening)


@pytest.mark.parametrize(
    "setting", ["default_transaction_read_only = on", "default_transaction_isolation = serializable"]
)
def test_the_delivery_check_passes_whatever_the_transaction_defaults(place, setting):
    place.upgrade()
    place.run(f"ALTER DATABASE {place.name} SET {setting}")
    with listening(place.store()) as distributor:
        assert distributor.health.listening, distributor.health.error


def test_the_delivery_check_of_another_wakes_no_worker(place):
    place.upgrade()
    store = place.store()
    with listening(store) as distributor, (sleeper := Sleeper(distributor)).asleep() as woken:
        with listening(store) as other:
            assert other.health.listening
        assert sleeper.sleeps_on(woken)
