"""The dashboard reports a database that is read-only, a standby, locked or unreachable, and recovers without help."""

from __future__ import annotations

import re
import time
from html import unescape
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url

from outboxq import Outbox
from outboxq.database.privileges import Role
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.web import application
from outboxq.web.pages import ROUTES
from tests import postgres
from tests.integrations.dashboard.pages import Local

PAGES = {
    "/queue": "/queue?name=mail",
    "/schedule": "/schedules",
    "/relay": "/relays",
    "/bulk": "/bulk?action=cancel&queue=mail",
}
"""The paths of pages that need to know what to show."""
PATHS = [PAGES.get(one.path, one.path) for one in ROUTES if not one.is_action and "<" not in one.path]


def filled(outbox):
    """Enqueue a task and return its id."""
    return outbox.store.enqueue(NewTask(id=uuid7(), task_name="tests.nothing", queue="mail", args="{}")).id


def asked(visitor, *paths):
    """The statuses other than 200, by path."""
    return {path: status for path in paths if (status := visitor.get(path).status_code) != 200}


def acted(visitor, path):
    """Send an action with the token of a dashboard form, and return the response."""
    form_token = unescape(re.search(r'name="csrf" value="([^"]*)"', visitor.get("/queue?name=mail").text)[1])
    return visitor.post(path, data={"csrf": form_token})


def test_a_viewer_role_can_open_each_page_and_an_action_names_the_missing_privileges(postgresql, caplog):
    task_id = filled(Outbox(postgresql.engine))
    role = f"viewer_{uuid4().hex}"
    postgresql.run(f"CREATE ROLE {role} LOGIN")
    try:
        postgresql.store.rights.grant(Role.VIEWER, role)
        engine = postgresql.own(create_engine(make_url(postgresql.url).set(username=role)))
        visitor = Local(application(Outbox(engine), allow_actions=True))
        assert asked(visitor, *PATHS, f"/tasks/{task_id}", "/api/overview.json", "/healthz", "/metrics") == {}
        assert caplog.records == []
        for action in ("/queue/pause?name=mail", f"/tasks/{task_id}/cancel"):
            answer = acted(visitor, action)
            assert answer.status_code == 403
            assert "The database does not permit that" in answer.text
            assert f"run: outboxq grants --role operator {role}" in answer.text
        assert "is not responding" not in caplog.text
        assert len(caplog.records) == 1, "logged for each request"
    finally:
        for one in postgresql.engines:
            one.dispose()
        postgresql.run(f"DROP OWNED BY {role}")
        postgresql.run(f"DROP ROLE {role}")


@pytest.fixture
def server():
    server = postgres.start(prefer="own")
    yield server
    server.stop()


@pytest.fixture
def outbox(server):
    outbox = Outbox(server.create_database(), outage_timeout=30)
    outbox.upgrade()
    yield outbox
    outbox.store.engine.dispose()


def test_a_standby_shows_each_page_and_quickly_refuses_an_action(server, outbox):
    task_id = filled(outbox)
    outbox.store.engine.dispose()
    (server.data_directory / "standby.signal").touch()
    server.restart()
    visitor = Local(application(outbox, allow_actions=True))
    assert asked(visitor, *PATHS, f"/tasks/{task_id}", "/api/overview.json", "/healthz", "/metrics") == {}
    began = time.monotonic()
    answer = acted(visitor, "/queue/pause?name=mail")
    assert (answer.status_code, time.monotonic() - began < 25) == (503, True), "the store itself would retry for 30 s"
    assert "The database does not accept writes" in answer.text


def test_an_outage_is_reported_quickly_and_pages_recover_afterwards(server, outbox):
    task_id = filled(outbox)
    visitor = Local(application(outbox, allow_actions=True))
    paths = ["/", f"/tasks/{task_id}", "/healthz", "/api/overview.json"]
    assert asked(visitor, *paths) == {}
    visitor.application._freshness.forget()
    server.halt()
    began = time.monotonic()
    assert asked(visitor, *paths) == dict.fromkeys(paths, 503)
    assert time.monotonic() - began < 60, "the store itself would retry for 30 s for each page"
    server.launch()
    assert asked(visitor, *paths) == {}


def test_a_locked_table_is_not_reported_as_an_outage_and_viewers_see_who_holds_the_lock(postgresql, caplog):
    visitor = Local(application(Outbox(postgresql.engine), allow_actions=True))
    engine = postgresql.own(create_engine(postgresql.url, connect_args={"application_name": "psql <b>"}))
    assert visitor.get("/healthz").text == "ok\n"
    visitor.application._freshness.forget()
    with engine.connect() as holder:
        pid = holder.connection.driver_connection.info.backend_pid
        holder.exec_driver_sql("LOCK TABLE task_outbox, task_executions IN ACCESS EXCLUSIVE MODE")
        page, data = (visitor.get(path) for path in ("/", "/api/overview.json"))
        health = visitor.get("/healthz")
    assert (page.status_code, data.status_code) == (503, 503)
    assert "The tables are locked" in page.text
    for text in (unescape(page.text), data.json["error"]):
        assert f"process {pid} (psql <b>, its transaction began " in text
        assert "last statement: LOCK TABLE task_outbox, task_executions IN ACCESS EXCLUSIVE MODE" in text
    assert "<b>" not in page.text
    assert (health.status_code, "another session has locked the tables" in health.text) == (200, True)
    assert str(pid) not in health.text, "anyone can read /healthz"
    assert "is not responding" not in page.text + caplog.text
    assert "cannot reach" not in caplog.text
    assert visitor.get("/").status_code == 200
    assert "the dashboard is no longer waiting for a lock" in caplog.text


def test_an_unauthorized_visitor_does_not_see_who_holds_a_lock(postgresql):
    """The application's own check of the viewer may also wait for the lock."""

    def authorize(_environ):
        outbox.store.run(lambda target: target.execute("SELECT 1 FROM task_outbox", {}))

    outbox = Outbox(postgresql.engine)
    visitor = Local(application(outbox, authorize=authorize))
    with postgresql.host.connect() as holder:
        holder.exec_driver_sql("LOCK TABLE task_outbox IN ACCESS EXCLUSIVE MODE")
        answer = visitor.get("/")
    assert answer.status_code == 503
    assert "process" not in answer.text


def test_a_missing_sqlite_file_is_not_created(tmp_path):
    path = tmp_path / "none.db"
    visitor = Local(application(Outbox(f"sqlite:///{path}")))
    assert [visitor.get(one).status_code for one in ("/healthz", "/healthz?deep=1", "/", "/api/overview.json")] == [
        503
    ] * 4
    assert not path.exists()
