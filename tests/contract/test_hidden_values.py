"""No error message or repr shows enqueued values, because both end up in logs, which more people read than the tables."""

from __future__ import annotations

import traceback

import psycopg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outboxq.database.engine import make_engine, reserve
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store

CARD = "4111-1111-1111-1111"
REFUSED = "tests.refused"


def task():
    return NewTask(id=uuid7(), task_name=REFUSED, args=f'{{"card": "{CARD}"}}', headers=f'{{"card": "{CARD}"}}')


def printed(error):
    return "".join(traceback.format_exception(error))


@pytest.fixture
def refusing(database):
    """Make the database refuse tasks with this name."""
    if database.name == "postgresql":
        database.run(f"ALTER TABLE task_executions ADD CONSTRAINT refuse CHECK (task_name <> '{REFUSED}')")
    else:
        database.run(
            f"CREATE TRIGGER refuse BEFORE INSERT ON task_executions WHEN NEW.task_name = '{REFUSED}' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    return database


def own(database):
    Store(database.engine).enqueue(task())


def in_a_session(database):
    with Session(database.host_engine()) as session:
        Store(database.engine).enqueue(task(), using=session)


def traced(database):
    """Enqueue in a session whose statements are observed, on an engine that shows parameters."""
    engine = database.host_engine()
    event.listen(engine, "before_cursor_execute", lambda *_: None)
    with Session(engine) as session:
        Store(database.engine).enqueue(task(), using=session)


@pytest.mark.parametrize("write", [own, in_a_session, traced])
def test_an_error_of_an_enqueue_shows_no_arguments(refusing, write):
    with pytest.raises(DBAPIError) as raised:
        write(refusing)
    assert "refuse" in str(raised.value)
    assert raised.value.hide_parameters
    assert CARD not in printed(raised.value)


def test_an_error_on_a_psycopg_connection_shows_no_arguments(postgresql):
    postgresql.run(f"ALTER TABLE task_executions ADD CONSTRAINT refuse CHECK (task_name <> '{REFUSED}')")
    url = postgresql.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.CheckViolation, match="refuse") as raised:
        Store(postgresql.engine).enqueue(task(), using=connection)
    assert CARD not in printed(raised.value)
    assert CARD in raised.value.diag.message_detail  # for programs that read it


def test_errors_of_outboxq_engines_show_no_parameters(database):
    for engine in (make_engine(database.url), reserve(create_engine(database.url))):
        database.own(engine)
        with engine.connect() as connection, pytest.raises(DBAPIError) as raised:
            connection.exec_driver_sql(
                "SELECT nosuch FROM nosuch WHERE x = %(x)s"
                if database.name == "postgresql"
                else "SELECT nosuch WHERE :x",
                {"x": CARD},
            )
        assert CARD not in printed(raised.value)


def test_no_repr_shows_arguments():

    assert CARD not in repr(task())
    assert REFUSED in repr(task())
