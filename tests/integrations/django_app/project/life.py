"""`manage.py` adopts, removes, creates and checks the tables, which `outboxq upgrade` has created."""

import io
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest import mock

import django

django.setup()

from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connection, connections, transaction  # noqa: E402
from django.test import override_settings  # noqa: E402
from shop import tasks  # noqa: E402
from sqlalchemy.pool import NullPool  # noqa: E402

from outboxq import ConfigurationError, SchemaOutOfDate  # noqa: E402
from outboxq.contrib.django import DjangoOutbox, outbox, outboxes  # noqa: E402
from outboxq.contrib.django.django_outbox import engine_of  # noqa: E402
from outboxq.contrib.django.models import (  # noqa: E402
    OutboxEntry,
    TaskExecution,
    TaskSubscription,
    table,
)
from outboxq.contrib.django.operations import _DRIVERS, bring_to  # noqa: E402
from outboxq.database.dialects import dialect_for  # noqa: E402
from outboxq.database.revisions import REVISION, fingerprint  # noqa: E402
from outboxq.database.tables import VERSION_TABLE, metadata  # noqa: E402


class Nowhere:
    """A router that keeps outboxq out of `other`."""

    def allow_migrate(self, db, app_label, **hints):
        return False if (db, app_label) == ("other", "outboxq") else None


class OfOthers:
    """A router that writes orders to `other`."""

    def db_for_write(self, model, **hints):
        return "other"


LATER = f"{int(REVISION) + 1:04}"


def tables(alias="default"):
    return set(connections[alias].introspection.table_names()) & {*metadata.tables, VERSION_TABLE}


def said(*arguments, **options):
    """The ids of the messages that `check` prints."""
    heard = io.StringIO()
    try:
        call_command("check", *arguments, stderr=heard, **options)
    except CommandError as error:
        heard.write(str(error))
    return sorted(word.strip("():") for word in heard.getvalue().split() if word.startswith("(outboxq."))


def migrate(*arguments, **options):
    call_command("migrate", *arguments, verbosity=0, **options)


def refuses(sentence, *words):
    with redirect_stderr(io.StringIO()):
        try:
            call_command(*words)
        except CommandError as error:
            assert sentence in str(error), error  # noqa: PT017
        else:
            raise AssertionError(words)


ALL = {*metadata.tables, VERSION_TABLE}

assert tables() == ALL
before = outbox.store.ensure_current()
migrate()  # adopts the existing tables
assert tables() == ALL
tasks.send.enqueue(1)
assert TaskExecution.objects.get().task_name == "shop.tasks.send"
call_command("makemigrations", "--check", "--dry-run")

migrate("outboxq", "zero")
assert tables() <= {VERSION_TABLE}
assert said("--database", "default") == ["outboxq.W003"]  # Django itself reports unapplied migrations
with transaction.atomic(), mock.patch.object(outbox.store, "_current", new=False):
    try:
        tasks.send.enqueue(1)
    except SchemaOutOfDate as error:
        assert str(error).endswith("; run: manage.py migrate")  # noqa: PT017
    else:
        raise AssertionError

migrate()
assert tables() == ALL
assert outbox.store.verify() == []
handle = tasks.send.enqueue(1)
assert outbox.worker(queues=["mail"]).run(burst=True) == 0
assert TaskExecution.objects.get(pk=handle.id).status == "Completed"
assert said("--database", "default") == ["outboxq.W003"]
call_command("flush", interactive=False, verbosity=0)
assert TaskExecution.objects.count() == 0
outbox.store.ensure_current()

# tables are missing although Django's migrations have run, as after `--fake` or with a new SCHEMA in the settings
migrate("outboxq", "zero")
outbox.store._current = False  # as in a new process
with suppress(CommandError):
    migrate("outboxq", fake=True)
heard = io.StringIO()
call_command("check", "--database", "default", stderr=heard)
assert "(outboxq.W002) default: " in heard.getvalue()
assert "run: manage.py migrate" not in heard.getvalue()  # `migrate` would find nothing to do
refuses("or, if you do not need its data, `migrate outboxq zero` and `migrate`", "migrate")
migrate("outboxq", "zero")
migrate()

# checks
with connection.cursor() as cursor:
    cursor.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0000'")
assert said("--database", "default") == ["outboxq.W002", "outboxq.W003"]
refuses("exit code 4", "outboxq", "worker", "--burst")


# tables of an unreleased version
def pretend_text(digest):
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{REVISION}', fingerprint = '{digest}'")


pretend_text("another")
assert said("--database", "default") == ["outboxq.W002", "outboxq.W003"]
refuses("exit code 4", "outboxq", "worker", "--burst")
refuses("unreleased version", "migrate", "outboxq", "zero")
pretend_text(fingerprint())


# a later release's tables
def pretend(version, oldest_code):
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{version}', oldest_code = '{oldest_code}'")


pretend(LATER, "0001")  # the tables admit this release
assert said("--database", "default") == ["outboxq.W003"]
migrate()
migrate("outboxq", "zero", fake=True)
migrate("outboxq")  # Django believes that there are none, as after the later release's `outboxq upgrade`
refuses(f"which this release ({REVISION}) does not know", "migrate", "outboxq", "zero")
with transaction.atomic(), mock.patch.object(outbox.store, "_current", new=False):
    admitted = tasks.send.enqueue(2)
with connection.cursor() as cursor:
    cursor.execute(
        "INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, created_at) "
        "SELECT pipeline_execution_id, task_execution_id, 'task_exploded', created_at FROM execution_events "
        "WHERE event_type = 'task_created'"
    )
call_command("outboxq", "worker", "-q", "mail", "--burst", "--concurrency", "1", "--log-level", "ERROR")
assert TaskExecution.objects.get(pk=admitted.id).status == "Completed"
assert "task_exploded" in {event.event_type for event in outbox.store.history(admitted.id)}
pretend(LATER, LATER)  # the tables no longer admit this release
assert said("--database", "default") == ["outboxq.W002", "outboxq.W003"]
refuses("exit code 4", "outboxq", "worker", "--burst")
with transaction.atomic(), mock.patch.object(outbox.store, "_current", new=False):
    try:
        tasks.send.enqueue(1)
    except SchemaOutOfDate as error:
        assert str(error).endswith("run: pip install --upgrade outboxq")  # noqa: PT017 - no migration of Django's would help
    else:
        raise AssertionError
pretend(REVISION, "0001")
call_command("flush", interactive=False, verbosity=0)
assert said("--database", "default") == ["outboxq.W003"]

if connection.vendor == "sqlite":
    for mode, complaints in (("exclusive", []), ("DEFERRED", ["outboxq.W001"]), (None, ["outboxq.W001"])):
        with mock.patch.dict(connection.settings_dict["OPTIONS"], transaction_mode=mode):
            assert said() == [*complaints, "outboxq.W003"]
with override_settings(OUTBOXQ={"SCHEME": "x"}):
    assert said() == ["outboxq.E001"]
with override_settings(DATABASE_ROUTERS=[OfOthers()]):
    assert said() == ["outboxq.W003"]  # about the default database now
with override_settings(DATABASE_ROUTERS=[Nowhere()]):
    assert said() == ["outboxq.E003"]
    migrate(database="other")
    assert tables("other") == set()
with mock.patch.dict(_DRIVERS):
    del _DRIVERS["sqlite"]
    assert set(said()) == {"outboxq.E002"}
migrate("outboxq", "zero", database="other")
with override_settings(MIGRATION_MODULES={"outboxq": None, "shop": None}):
    migrate(database="other", run_syncdb=True)
    assert tables("other") == ALL  # also if tests run no migrations
    tasks.elsewhere.enqueue()
    other, (subscription,) = outboxes["other"].store, outbox.subscriptions
    with transaction.atomic(using="other"):
        other.subscriptions.replace([replace(subscription, task_name=tasks.elsewhere.name)], using="other")
    migrate(database="other", run_syncdb=True)
assert TaskSubscription.objects.using("other").count() == 0  # removed, because `elsewhere` does not subscribe

# commands
printed = io.StringIO()
call_command("outboxq", "status", "--by", "task", stdout=printed)
assert printed.getvalue().startswith("queue\ttask\tdue")
printed = io.StringIO()
call_command("outboxq", "prune", "--older-than", "0s", "--dry-run", stdout=printed)
assert ": 0 would be deleted\n" in printed.getvalue()
refuses("exit code 2", "outboxq", "prune", "--older-than", "0s")  # `call_command` cannot ask for confirmation
printed = io.StringIO()
call_command("outboxq", "prune", "--older-than", "0s", "--yes", stdout=printed)
assert printed.getvalue() == "0 tasks were deleted with their events\n"
tasks.send.enqueue(7)
call_command("outboxq", "worker", "-q", "mail", "--burst", "--concurrency", "1", "--log-level", "ERROR")
assert tasks.seen[-1:] == [7]
refuses("is not in the range", "outboxq", "worker", "--concurrency", "0")
refuses("from the command line", "outboxq", "worker", "--processes", "2")
refuses("exit code 2", "outboxq", "worker", "--database", "nowhere", "--burst")
refuses("exit code 2", "outboxq", "worker", "--database", "other", "--burst")  # the database is in memory
refuses("Missing option '--older-than'", "outboxq", "prune")

# settings: USE_TZ is False here, and the local time is that of India
moment = datetime(2030, 1, 1, 12, tzinfo=UTC)
later = tasks.send.using(run_after=moment).enqueue(8)
with transaction.atomic():
    (event,) = outbox.store.history(later.id, using="default")
    assert OutboxEntry.objects.get(task_execution_id=later.id).available_at == moment
    assert TaskExecution.objects.get(pk=later.id).created_at == event.created_at
    assert abs(event.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert OutboxEntry.objects.filter(available_at__range=(moment, moment)).count() == 1
    assert OutboxEntry.objects.filter(available_at__gt=datetime(2030, 1, 1, 17, 31)).count() == 0  # noqa: DTZ001
    assert OutboxEntry.objects.filter(available_at__gt=datetime(2030, 1, 1, 17, 29)).count() == 1  # noqa: DTZ001

with override_settings(OUTBOXQ={"SCHEMA": "apart"}):
    apart = DjangoOutbox("default")
    apart.task(tasks.send.function, name="send")
    send = next(iter(apart.tasks))
    if connection.vendor == "postgresql":
        with transaction.atomic():
            bring_to("head", connection)
        send.enqueue(9)
        assert apart.worker().run(burst=True) == 0
        assert tasks.seen[-1] == 9
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {connection.ops.quote_name(table('task_executions'))}")
            assert cursor.fetchone() == (1,)
    else:
        with transaction.atomic(), suppress(ConfigurationError):
            send.enqueue(9)
            raise AssertionError


def named(**changes):
    """Return the name of our engine's database in messages, with these changes in the settings."""
    with mock.patch.dict(connection.settings_dict, {"NAME": "shop", "PASSWORD": "hush"} | changes):
        url = engine_of("default", poolclass=NullPool).url
    return dialect_for("postgresql", schema=None).place(url, lambda: None)


if connection.vendor == "postgresql":
    here = {"USER": "ann", "HOST": "db.example", "PORT": "5433"}
    assert named(**here) == "the database postgresql+psycopg://ann@db.example:5433/shop"
    assert named(**here | {"PORT": ""}) == "the database postgresql+psycopg://ann@db.example/shop"
    assert named(**here | {"HOST": "/run/pg"}) == "the database postgresql+psycopg://ann@/shop?host=%2Frun%2Fpg"
    assert named(**here | {"HOST": "one,two", "PORT": "1,2"}) == "the database postgresql+psycopg://ann@/shop"
    assert named(USER="", HOST="", PORT="") == "the database postgresql+psycopg:///shop"


def asked(sql, **changes):
    """Run a query on one of our engines, with these changes in the settings."""
    with mock.patch.dict(connection.settings_dict, changes), engine_of("default", poolclass=NullPool).connect() as own:
        return own.exec_driver_sql(sql).scalar(), getattr(own.connection.dbapi_connection, "prepare_threshold", None)


if connection.vendor == "postgresql":
    with connection.cursor() as cursor:
        cursor.execute('DROP ROLE IF EXISTS "odd \\role"')
        cursor.execute('CREATE ROLE "odd \\role"')
    options = {
        "assume_role": "odd \\role",
        "application_name": "shop",
        "isolation_level": 4,
        "server_side_binding": True,
    }
    assert asked("SELECT current_user", OPTIONS=options) == ("odd \\role", 5)
    assert asked("SHOW application_name", OPTIONS=options) == ("shop", 5)
    assert asked("SELECT 1", DISABLE_SERVER_SIDE_CURSORS=True) == (1, None)
    assert asked("SELECT 1", OPTIONS={"prepare_threshold": 2}) == (1, 2)
    with connection.cursor() as cursor:
        cursor.execute('DROP ROLE "odd \\role"')
else:
    name = connection.settings_dict["NAME"]
    assert asked("SELECT count(*) > 0 FROM task_executions", NAME=f"file:{name}?mode=ro") == (1, None)
connections.close_all()
print("to the end")
