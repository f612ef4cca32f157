"""`outboxq web` serves until it is stopped, and is never open to others by mistake."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from threading import Thread

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli.serving import web as command
from tests import forked
from tests.integrations.dashboard.visitor import Visitor
from tests.waiting import until

TOKEN = "correct horse battery staple"


def refused(*arguments, **variables):
    """Run the command, which must not serve. Returns its stderr."""
    result = CliRunner().invoke(main, ["web", *arguments], env=variables, catch_exceptions=False)
    assert result.exit_code == 2, result.output
    return result.stderr


@contextmanager
def serving(*arguments, **variables):
    """Run the command in a separate process. Yields the process and the printed port."""
    process = forked.Popen(
        [sys.executable, "-m", "outboxq", "web", "--port", "0", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        found = re.match(r"The dashboard is at http://[^/]*:(\d+)/", line)
        assert found, line + process.communicate()[1]
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


SEVERAL = """
from outboxq import Outbox
from outboxq.web import Dashboards, application

outbox = Outbox({url!r})
one = application(outbox, title="the shop")
app = Dashboards({{"shop": one, "billing": application(outbox)}})
"""


def test_it_serves_dashboards_that_the_application_has_made(sqlite, tmp_path):
    (tmp_path / "dashboards.py").write_text(SEVERAL.format(url=sqlite.url))
    with serving("dashboards:app", PYTHONPATH=str(tmp_path)) as (process, port):
        assert "<title>Queues – billing – outboxq</title>" in Visitor(port).get("/billing/queues").text
        assert "<title>Queues – the shop – outboxq</title>" in Visitor(port).get("/shop/queues").text
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_options_of_a_dashboard_that_the_application_has_made_are_refused(sqlite, tmp_path, monkeypatch):
    (tmp_path / "made_dashboards.py").write_text(SEVERAL.format(url=sqlite.url))
    monkeypatch.syspath_prepend(tmp_path)
    said = refused("made_dashboards:one", "--allow-actions", "--title", "shop", "--port", "0")
    assert "made_dashboards:one is a dashboard with its own options; " in said
    assert "pass the equivalents of --allow-actions, --title to application()" in said


@pytest.mark.slow
@pytest.mark.in_turn
def test_it_serves_until_it_is_stopped(database):
    with serving("--url", database.url) as (process, port):
        visitor = Visitor(port)
        assert visitor.get("/").status == 200
        assert visitor.get("/queues", Host="localhost").status == 200
        assert visitor.get("/", Host="tasks.example.org").status == 400
        for header in ("X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "X-Real-IP"):
            assert visitor.get("/", **{header: "127.0.0.1"}).status == 403, header
        answer = visitor.get("/healthz")
        assert (answer.status, answer.headers["Server"]) == (200, None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        # On a busy machine, waitress reports that a request has waited for a thread.
        assert [line for line in process.stderr if " waitress.queue " not in line] == []


@pytest.mark.slow
def test_healthz_does_not_queue_behind_pages_that_wait_for_a_lock(postgresql):
    """Each page takes some seconds on the only thread. In this queue, /healthz would be answered last."""
    pages, answered = 4, []
    with serving("--url", postgresql.url, "--threads", "1") as (_, port), postgresql.host.connect() as holder:
        holder.exec_driver_sql("LOCK TABLE task_outbox, task_executions IN ACCESS EXCLUSIVE MODE")

        def ask(path):
            answered.append((path, Visitor(port).get(path)))

        asking = [Thread(target=ask, args=(f"/tasks?limit={number + 10}",)) for number in range(pages)]
        for one in asking:
            one.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        until(lambda: postgresql.rows(waiting))
        health = Visitor(port).get("/healthz")
        assert len(answered) < pages
        for one in asking:
            one.join()
    assert (health.status, "another session has locked the tables" in health.text) == (200, True)
    assert {page.status for _, page in answered} == {503}


@pytest.mark.slow
def test_its_pages_show_commands_for_the_same_application(sqlite, tmp_path):
    (tmp_path / "shop.py").write_text(f"from outboxq import Outbox\n\noutbox = Outbox({sqlite.url!r})\n")
    with serving("shop:outbox", PYTHONPATH=str(tmp_path)) as (_, port):
        assert "worker shop:outbox</code>" in Visitor(port).get("/workers").text
        assert "schedule add-retention 90d -A shop:outbox</code>" in Visitor(port).get("/system").text


def test_its_title_can_be_set_by_an_option(sqlite):
    with serving("--url", sqlite.url, "--title", "shop, staging") as (_, port):
        assert "<title>Queues – shop, staging – outboxq</title>" in Visitor(port).get("/queues").text
    assert "title= has 61 characters" in refused("--url", sqlite.url, "--title", "x" * 61)


@pytest.mark.slow
@pytest.mark.in_turn
def test_people_can_log_in_with_a_token(database, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    options = (
        "--url",
        database.url,
        "--host",
        "0.0.0.0",
        "--token-file",
        str(file),
        "--trusted-host",
        "tasks.example.org",
    )
    with serving(*options, OUTBOXQ_WEB_TOKEN="another token altogether") as (process, port):
        visitor = Visitor(port, headers={"Host": "tasks.example.org"})
        assert visitor.get("/").location.startswith("/login")
        assert visitor.log_in(TOKEN).status == 303
        assert visitor.get("/").status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "tasks.example.org", "localhost.example.org"])
def test_it_is_not_open_to_other_machines_by_mistake(sqlite, host):
    assert "could open the dashboard; set a token" in refused("--url", sqlite.url, "--host", host)


def test_it_refuses_options_that_cannot_work(sqlite, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    assert "is empty" in refused("--url", sqlite.url, "--token-file", str(empty))
    assert "can be guessed" in refused("--url", sqlite.url, OUTBOXQ_WEB_TOKEN="short")
    assert "--from" in refused("--url", sqlite.url, "--trust-header", "X-User")
    assert "10.0.0.0/99" in refused("--url", sqlite.url, "--trust-header", "X-User", "--from", "10.0.0.0/99")
    assert "no database is given" in refused(OUTBOXQ_DATABASE_URL="")


def test_the_redact_function_must_exist(sqlite):
    assert "--redact nothing:redact cannot be imported: No module named 'nothing'" in refused(
        "--url", sqlite.url, "--redact", "nothing:redact"
    )
    assert "--redact os:sep is a str, not a function" in refused("--url", sqlite.url, "--redact", "os:sep")
    assert "write module:function, such as shop.privacy:redact" in refused("--url", sqlite.url, "--redact", "no name")


def test_a_port_in_use_is_reported_in_one_sentence(sqlite):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused("--url", sqlite.url, "--port", str(taken.getsockname()[1]))
    assert said.count("\n") == 1
    assert "in use" in said


def test_without_the_extra_it_says_what_to_install(sqlite, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("outboxq.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(command, "_server", None)
    result = CliRunner().invoke(main, ["web", "--url", sqlite.url], catch_exceptions=False)
    assert result.exit_code == 2
    assert "pip install 'outboxq[web]'" in result.stderr
