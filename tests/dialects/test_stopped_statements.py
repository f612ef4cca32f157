"""Ctrl-C in the midst of a statement of PostgreSQL: it ends the command, and is never taken for an outage."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from outboxq.cli import main
from outboxq.database.dialects import Begin
from tests.waiting import until

COMMANDS = {
    "status": ["status"],
    "prune": ["prune", "--older-than", "0s", "--yes"],
    "redrive": ["failed", "redrive", "--all", "--yes"],
    "verify": ["verify"],
    "watch": ["status", "--watch", "1000"],
}
ON_EXIT = [KeyboardInterrupt, SystemExit, GeneratorExit]


def stop_after_sending(raw: Any, stop: type[BaseException]) -> None:
    """Raise what a signal raises, where the server has a statement and its answer was not read."""
    raw.pgconn.send_query(b"SELECT 1")
    raise stop


@pytest.mark.parametrize("stop", ON_EXIT)
@pytest.mark.parametrize("begin", [Begin.READ, Begin.WRITE, Begin.HANDLER])
def test_an_exception_of_a_signal_is_neither_replaced_nor_tried_again(postgresql, stop, begin):
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
    assert ran[0] != ran[1], "the connection is of no use any more"


def test_a_second_signal_during_the_rollback_is_not_replaced_either(postgresql, monkeypatch):
    def rollback(raw: Any) -> None:
        stop_after_sending(raw, KeyboardInterrupt)

    def work(target):
        monkeypatch.setattr(psycopg.Connection, "rollback", rollback)
        raise ValueError("no")

    with pytest.raises(KeyboardInterrupt):
        postgresql.store.run(work)
    monkeypatch.undo()
    assert postgresql.store.stats() == []


def test_the_file_in_memory_outlives_the_exception_of_a_signal(sqlite):
    """An SQLite statement is whole or not there when a signal is seen, so the connection stays."""
    used = []

    def work(target):
        used.append(target.connection.connection.driver_connection)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            sqlite.store.run(work)
    assert used[0] is used[1]


@pytest.mark.parametrize("name", ["status", "redrive", "verify"])
def test_ctrl_c_behind_any_statement_ends_a_command(postgresql, name, monkeypatch):
    """Behind the first, the second, … statement that is sent, until the command is through without it."""
    words = COMMANDS[name]
    for number in (*range(1, 12), *range(12, 1000, 12)):
        sent = count(1)
        waits = psycopg.Connection.wait

        def stopping(raw: Any, wanted: Generator, *args: Any, sent=sent, number=number, waits: Callable = waits) -> Any:
            if next(sent) == number:
                next(wanted, None)  # it is sent
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


@pytest.mark.in_turn
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_a_process_whose_statement_waits(postgresql, name):
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    words = [sys.executable, "-m", "outboxq", *COMMANDS[name], "--url", postgresql.url]
    with postgresql.host.connect() as holder:
        holder.execute(text("LOCK TABLE task_executions, task_outbox, dead_letters IN ACCESS EXCLUSIVE MODE"))
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            try:
                until(lambda: postgresql.rows(waiting))
                running.send_signal(signal.SIGINT)
                if name == "prune":  # the first one waits for the present batch
                    assert "Ctrl-C again stops at once" in running.stderr.readline()
                    running.send_signal(signal.SIGINT)
                elif name == "watch":  # it waits for the present look
                    holder.rollback()
                _, said = running.communicate(timeout=30)
            finally:
                running.kill()
    assert "Traceback" not in said
    assert running.returncode == (0 if name == "watch" else 130), said
