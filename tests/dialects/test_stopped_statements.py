"""Signals during a statement on PostgreSQL: Ctrl-C, SIGTERM and SIGHUP end the command, and are never mistaken for an outage."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from outboxq.cli import main
from outboxq.database.dialects import Begin
from outboxq.store import Store
from tests import forked
from tests.waiting import PROMPTLY, until

COMMANDS = {
    "status": ["status"],
    "prune": ["prune", "--older-than", "0s", "--yes"],
    "redrive": ["failed", "redrive", "--all", "--yes"],
    "verify": ["verify"],
    "watch": ["status", "--watch", "1000"],
}
ON_EXIT = [KeyboardInterrupt, SystemExit, GeneratorExit]


def stop_after_sending(raw: Any, stop: type[BaseException]) -> None:
    """Raise a signal's exception when the server has received a statement but its answer has not been read."""
    raw.pgconn.send_query(b"SELECT 1")
    raise stop


@pytest.mark.parametrize("stop", ON_EXIT)
@pytest.mark.parametrize("begin", [Begin.READ, Begin.WRITE, Begin.HANDLER])
def test_the_exception_of_a_signal_is_raised_and_the_work_is_not_retried(postgresql, stop, begin):
    ran = []

    def work(target):
        ran.append(target.execute("SELECT pg_backend_pid()", {})[0][0])
        if len(ran) == 1:
            stop_after_sending(target.connection.connection.driver_connection, stop)
        return ran

    with pytest.raises(stop):
        postgresql.store.run(work, begin=begin)
    assert len(ran) == 1
    postgresql.store.run(work, begin=begin)
    assert ran[0] != ran[1], "the connection is no longer usable"


def test_the_exception_of_a_signal_during_the_rollback_is_raised(postgresql, monkeypatch):
    def rollback(raw: Any) -> None:
        stop_after_sending(raw, KeyboardInterrupt)

    def work(target):
        monkeypatch.setattr(psycopg.Connection, "rollback", rollback)
        raise ValueError("no")

    with pytest.raises(KeyboardInterrupt):
        postgresql.store.run(work)
    monkeypatch.undo()
    assert postgresql.store.stats() == []


def test_a_signal_does_not_close_the_sqlite_connection(sqlite):
    """When a signal is noticed, a SQLite statement has run completely or not at all, so the connection stays usable."""
    used = []

    def work(target):
        used.append(target.connection.connection.driver_connection)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            sqlite.store.run(work)
    assert used[0] is used[1]


@pytest.mark.parametrize("name", ["status", "redrive", "verify"])
def test_ctrl_c_after_any_statement_ends_a_command(postgresql, name, monkeypatch):
    """The interruption comes after the first, second, … statement, until the command completes without being interrupted."""
    words = COMMANDS[name]
    for number in (*range(1, 12), *range(12, 1000, 12)):
        sent = count(1)
        waits = psycopg.Connection.wait

        def stopping(raw: Any, wanted: Generator, *args: Any, sent=sent, number=number, waits: Callable = waits) -> Any:
            if next(sent) == number:
                next(wanted, None)  # now it has been sent
                raise KeyboardInterrupt
            return waits(raw, wanted, *args)

        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Connection, "wait", stopping)
            result = CliRunner().invoke(main, [*words, "--url", postgresql.url])
        if next(sent) <= number:
            break
        assert result.exit_code == 130, (number, result.output)
        assert "cannot be used" not in result.output
    assert result.exit_code == 0, result.output
    assert number > 3


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
ENDINGS = [
    *((name, signal.SIGINT) for name in COMMANDS),
    ("prune", signal.SIGTERM),
    *(pytest.param(name, signal.SIGTERM, marks=pytest.mark.full) for name in COMMANDS if name != "prune"),
    pytest.param("verify", signal.SIGHUP, marks=pytest.mark.full),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "number"), ENDINGS)
def test_a_signal_ends_a_process_and_its_waiting_statement(postgresql, name, number):
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    command = [*forked.PYTHON, "-m", "outboxq", *COMMANDS[name], "--url", postgresql.url]
    with postgresql.host.connect() as holder:
        holder.execute(text("LOCK TABLE task_executions, task_outbox, dead_letters IN ACCESS EXCLUSIVE MODE"))
        with forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
            until(lambda: postgresql.rows(waiting))
            running.send_signal(number)
            if name == "prune":  # the first signal waits for the current batch
                again = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
                assert f"{again} stops immediately" in running.stderr.readline()
                running.send_signal(number)
            elif name == "watch":  # the command waits for the current refresh
                holder.rollback()
            _, said = running.communicate(timeout=60)
        until(lambda: not postgresql.rows(waiting), seconds=PROMPTLY)  # although the lock is still held
    assert "Traceback" not in said
    assert running.returncode == (0 if name == "watch" else CODES[number]), said
    if name == "verify":
        assert re.search(r"outboxq: stopped: \d+( of \d+)? checked", said)


LONG = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query ~ 'pg_sleep' AND state = 'active' "
    "AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("begin", [Begin.SNAPSHOT, Begin.MIGRATION])
def test_a_statement_does_not_outlive_its_killed_client(postgresql, begin):
    """Without this, the server would continue until it wants to send the answer. For a `verify`, that could hold up vacuum for minutes."""
    script = (
        "import sys; from outboxq.database.dialects import Begin; from outboxq.database.engine import make_engine; "
        "from outboxq.store import Store; "
        "Store(make_engine(sys.argv[1])).run(lambda target: target.execute('SELECT pg_sleep(600)', {}), begin=Begin(sys.argv[2]))"
    )
    with forked.Popen([*forked.PYTHON, "-c", script, postgresql.url, begin]) as client:
        until(lambda: postgresql.rows(LONG))
        client.kill()
    until(lambda: not postgresql.rows(LONG), seconds=PROMPTLY)


def test_a_variable_sets_the_statement_timeout_of_commands(postgresql, monkeypatch):
    asked = []

    def verify(store: Store, **_options: Any) -> list[Any]:
        return store.run(
            lambda target: asked.extend(target.execute("SHOW statement_timeout", {})) or [], begin=Begin.SNAPSHOT
        )

    monkeypatch.setattr(Store, "verify", verify)
    for variables in ({}, {"OUTBOXQ_STATEMENT_TIMEOUT": "90s"}, {"OUTBOXQ_STATEMENT_TIMEOUT": "0s"}):
        result = CliRunner(env=variables).invoke(main, ["verify", "--url", postgresql.url])
        assert result.exit_code == 0, result.output
    assert [row[0] for row in asked] == ["1h", "90s", "0"]
    verify(postgresql.store)
    assert asked[-1][0] == "0", "a program that calls the store has no limit"
    refused = CliRunner(env={"OUTBOXQ_STATEMENT_TIMEOUT": "soon"}).invoke(main, ["verify", "--url", postgresql.url])
    assert (refused.exit_code, "OUTBOXQ_STATEMENT_TIMEOUT is 'soon': write a span" in refused.stderr) == (2, True)
