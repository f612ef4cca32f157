"""A database or a connection whose encoding is not UTF-8 is refused with a clear message before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from outboxq import InvalidTarget, Outbox, UnsupportedDatabase, migrations
from outboxq.cli import main
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.executor import unwritable
from tests import forked, postgres
from tests.contract.helpers import claimed

ELEPHANT = "\N{ELEPHANT}"


def plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def new(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "EUC_JP"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def elsewhere(cluster: postgres.Cluster, encoding: str) -> Iterator[str]:
    url = cluster.create_database(template="template0", encoding=encoding)
    yield url
    cluster.drop_database(url)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("upgrade",), 2),
        (("status",), 2),
        (("verify",), 2),
    ],
    ids=["upgrade", "status", "verify"],
)
def test_every_command_reports_the_encoding_and_ends(elsewhere, encoding, command, code):
    done = CliRunner().invoke(main, command, env={"OUTBOXQ_DATABASE_URL": elsewhere})
    assert done.exit_code == code, done.stderr
    assert_sentences(done.stderr, encoding)


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("encoding", ["LATIN1"], indirect=True)
def test_workers_report_the_encoding_in_sentences(elsewhere, encoding, processes):
    command = [*forked.PYTHON, "-m", "outboxq", "worker", "tests.faults.app:outbox", "--processes", str(processes)]
    environment = {**os.environ, "OUTBOXQ_DATABASE_URL": elsewhere}
    done = forked.run(command, starts_others=processes > 1, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert_sentences(done.stderr, encoding)


def assert_sentences(said, encoding):
    sentences = [line for line in said.splitlines() if line.startswith("outboxq: ")]
    assert sentences
    for sentence in sentences:
        assert f"uses the encoding {encoding}" in sentence
        assert "CREATE DATABASE" in sentence
    assert "Traceback" not in said


def test_the_first_call_on_an_engine_made_by_outboxq_is_refused(elsewhere, encoding):
    outbox = Outbox(elsewhere)
    with pytest.raises(UnsupportedDatabase, match=encoding):
        outbox.store.enqueue(new())
    with pytest.raises(UnsupportedDatabase, match=encoding):
        outbox.worker().start()
    with pytest.raises(UnsupportedDatabase, match=encoding):
        outbox.upgrade()
    outbox.store.bound_engine.dispose()


def test_a_connection_of_a_caller_is_refused_before_any_statement(elsewhere, encoding):
    with psycopg.connect(plain(elsewhere)) as caller:
        with pytest.raises(UnsupportedDatabase, match=encoding):
            Store(None).enqueue(new(), using=caller)
        assert caller.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("encoding", ["LATIN1"], indirect=True)
def test_an_engine_of_an_application_is_also_refused(elsewhere, encoding):
    engine = create_engine(elsewhere)
    with pytest.raises(UnsupportedDatabase, match=encoding):
        Store(engine).enqueue(new())
    with pytest.raises(UnsupportedDatabase, match=encoding):
        Outbox(engine).worker().start()
    with pytest.raises(UnsupportedDatabase, match=encoding):
        migrations.upgrade(engine)
    with engine.begin() as connection, pytest.raises(UnsupportedDatabase, match=encoding):
        migrations.upgrade(connection)
    engine.dispose()


def test_a_connection_with_client_encoding_sql_ascii_is_refused(postgresql):
    """Otherwise, the driver would return text as bytes."""
    with psycopg.connect(plain(postgresql.url), client_encoding="SQL_ASCII") as caller:
        with pytest.raises(InvalidTarget, match="client_encoding=utf8"):
            Store(None).enqueue(new(), using=caller)
        assert caller.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_unencodable_arguments_are_refused_and_the_transaction_stays_usable(postgresql, kind):
    engine = postgresql.own(create_engine(postgresql.url, connect_args={"client_encoding": "latin1"}))
    caller = (
        engine.begin() if kind == "sqlalchemy" else psycopg.connect(plain(postgresql.url), client_encoding="latin1")
    )
    with caller as connection:
        with pytest.raises(InvalidTarget, match="LATIN1"):
            postgresql.store.enqueue(new(args=f'{{"animal": "{ELEPHANT}"}}'), using=connection)
        postgresql.store.enqueue(new(args='{"animal": "\N{LATIN SMALL LETTER E WITH ACUTE}"}'), using=connection)
    assert postgresql.counts()[0] == 1


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_a_connection_whose_datestyle_is_not_iso_is_refused(postgresql, kind):
    handle = postgresql.add()
    german = {"options": "-c datestyle=German"}
    engine = postgresql.own(create_engine(postgresql.url, connect_args=german))
    caller = engine.begin() if kind == "sqlalchemy" else psycopg.connect(plain(postgresql.url), **german)
    with caller as connection, pytest.raises(InvalidTarget, match="datestyle=ISO"):
        postgresql.store.get(handle.id, using=connection)


@pytest.mark.parametrize("kind", ["sqlalchemy", "sqlalchemy heard", "psycopg"])
def test_the_error_for_a_lost_prepared_statement_names_the_setting(postgresql, kind):
    """This happens behind a pooler, which assigns another server session to each transaction."""
    engine = postgresql.own(create_engine(postgresql.url, connect_args={"prepare_threshold": 0}))
    if kind == "psycopg":
        raw = psycopg.connect(plain(postgresql.url), prepare_threshold=0)
        postgresql.store.enqueue(new(), using=raw)
        raw.pgconn.exec_(b"DEALLOCATE ALL")  # without psycopg, which would otherwise forget its statements too
        with pytest.raises(psycopg.Error, match="does not exist") as gone:
            postgresql.store.enqueue(new(), using=raw)
        said = " ".join(gone.value.__notes__)
        raw.close()
    else:
        if kind == "sqlalchemy heard":
            event.listen(engine, "before_cursor_execute", lambda *_: None)
        with engine.connect() as connection:
            postgresql.store.enqueue(new(), using=connection)
            connection.connection.dbapi_connection.pgconn.exec_(b"DEALLOCATE ALL")
            with pytest.raises(DBAPIError, match="does not exist") as wrapped:
                postgresql.store.enqueue(new(), using=connection)
            said = str(wrapped.value)
    assert "prepare_threshold" in said
    assert "PgBouncer" in said


def test_the_error_of_an_outcome_that_cannot_be_stored_is_short_and_ascii(postgresql):
    claim = claimed(postgresql)
    refused = ValueError(ELEPHANT * 5000)
    told = unwritable(Outcome(claim=claim, event_type=EventType.COMPLETED), refused)
    assert told.error is not None
    assert told.error.isascii()
    assert len(told.error) <= 1000
    assert "were cut" in told.error
    postgresql.frozen.finish([told])


def test_a_caller_may_change_the_encoding_of_a_connection_between_two_tasks(postgresql):
    """The store keeps the cursor that wrote the first task. That cursor would send the second task's text in the old encoding."""
    said = '{"said": "é"}'
    engine = create_engine(postgresql.engine.url)
    with engine.connect() as connection:
        tasks = [new(args=said), new(args=said)]
        postgresql.store.enqueue(tasks[0], using=connection)
        connection.exec_driver_sql("SET client_encoding = 'LATIN1'")
        postgresql.store.enqueue(tasks[1], using=connection)
        connection.exec_driver_sql("SET client_encoding = 'UTF8'")
        connection.commit()
    engine.dispose()
    assert [postgresql.store.get(one.id).args for one in tasks] == [said, said]
