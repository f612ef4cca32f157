"""`outboxq demo` shows that nothing is lost, and would report any loss."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, update

from outboxq.cli.demo import run as demo
from outboxq.cli.demo import shop
from outboxq.database.tables import task_executions, task_outbox
from tests import forked
from tests.terminal import shown

pytestmark = pytest.mark.in_turn

SMALL = ("--orders", "20", "--workers", "2")
CHECKS = 9


@pytest.fixture
def _forked_workers(monkeypatch):
    """Fork the workers that the demo starts from this process. As a separate program, the demo starts its own."""
    replaced = SimpleNamespace(**{**vars(subprocess), "Popen": forked.Popen})
    monkeypatch.setattr(demo, "subprocess", replaced)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}


def outboxq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "outboxq", "demo", *arguments]
    return forked.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=240, starts_others=True
    )


def assert_all_well(output: str) -> None:
    marks = re.findall(r"^(ok |BAD)  ", output, re.MULTILINE)
    assert marks == ["ok "] * CHECKS, output
    assert "Nothing was lost" in output
    assert "Traceback" not in output


@pytest.mark.usefixtures("_forked_workers")
def test_the_demo_works_twice_in_a_row_on_a_given_database(database, capsys):
    assert demo.run(database.url, orders=20, workers=2) == 0
    assert_all_well(capsys.readouterr().out)
    done = outboxq("--url", database.url, *SMALL)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert_all_well(done.stdout)
    assert re.search(r"^orders \d+ · .* · worker killed (not yet|\d+)$", done.stdout, re.MULTILINE)
    (queue,) = database.store.stats()
    assert (queue.queue, queue.failed) == (shop.QUEUE, 2)
    done = database.rows("SELECT count(*) FROM task_executions WHERE status = 'Completed'")
    assert done == [(2 * 16 * 3 - 2,)]


def test_the_demo_works_without_a_database_and_shows_a_live_table_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = shown(
        [sys.executable, "-m", "outboxq", "demo", *SMALL],
        env={**environment(), "TERM": "xterm-256color"},
        starts_others=True,
    )
    assert code == 0, output
    assert list(tmp_path.iterdir()) == []
    assert output.count("the shop's outbox") > 2  # drawn repeatedly
    assert "worker killed" in output
    assert "\x1b[?25l" in output
    assert "\x1b[?25h" in output, "the cursor was not restored"
    assert_all_well(output)


def spoil(sql: str):
    def spoiled(_day: demo.Day) -> None:
        with shop.engine().begin() as connection:
            assert connection.exec_driver_sql(sql).rowcount > 0

    return spoiled


def completed_back_to_ready(day: demo.Day) -> None:
    of_one = update(task_executions).where(task_executions.c.id == day.tasks[0])
    with shop.engine().begin() as connection:
        assert connection.execute(of_one.values(status="Ready", completed_at=None)).rowcount == 1


def undone_task_is_there(day: demo.Day) -> None:
    day.undone_tasks.append(day.tasks.pop())


def task_never_enqueued(day: demo.Day) -> None:
    day.tasks.append(day.undone_tasks[0])


def worker_crashed(day: demo.Day) -> None:
    day.exit_codes[-1] = 1


def nobody_killed(day: demo.Day) -> None:
    day.killed = None


ENTRY_LEFT_BEHIND = """
    INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
    SELECT id, queue, priority, position, created_at, created_at FROM task_executions LIMIT 1
"""

SABOTAGE = [
    (spoil("DELETE FROM outboxq_demo_orders WHERE number = 1"), "orders are in the database"),
    (spoil("INSERT INTO outboxq_demo_orders (number) VALUES (5)"), "orders are in the database"),
    (undone_task_is_there, "tasks were enqueued with the orders"),
    (task_never_enqueued, "tasks were enqueued with the orders"),
    (completed_back_to_ready, "dead letter, because a card was declined"),
    (spoil(ENTRY_LEFT_BEHIND), "the outbox is empty"),
    (spoil("DELETE FROM execution_events WHERE event_type = 'task_retry_scheduled'"), "failed attempts were retried"),
    (spoil("DELETE FROM outboxq_demo_receipts WHERE number = 1"), "receipts were sent"),
    (spoil("INSERT INTO outboxq_demo_receipts (number) VALUES (5)"), "receipts were sent"),
    (nobody_killed, "was killed with SIGKILL"),
    (spoil("DELETE FROM execution_events WHERE event_type = 'task_reset'"), "was killed with SIGKILL"),
    (worker_crashed, "the other workers stopped cleanly"),
    (completed_back_to_ready, "every invariant holds (status_differs_from_events, ready_without_entry"),
    (spoil("DELETE FROM execution_events WHERE event_type = 'task_created'"), "every invariant holds (birth_not"),
]


@pytest.mark.usefixtures("_forked_workers")
def test_the_demo_works_in_process_and_each_of_its_checks_can_fail(sqlite_url, tmp_path, capsys, monkeypatch, subtests):
    kept = tmp_path / "kept.db"
    days: list[demo.Day] = []
    with monkeypatch.context() as patch:
        patch.setattr(demo, "_report", lambda day: days.append(day) or 0)
        assert demo.run(sqlite_url, orders=20, workers=2) == 0
    shutil.copy(tmp_path / "outboxq.db", kept)
    capsys.readouterr()

    def report(number: int, spoiled) -> tuple[int, str]:
        copy = Path(shutil.copy(kept, tmp_path / f"{number}.db"))
        day = demo.Day(
            **{name: value[:] if isinstance(value, list) else value for name, value in vars(days[0]).items()}
        )
        shop.outbox.bind(f"sqlite:///{copy}")
        try:
            spoiled(day)
            return demo._report(day), capsys.readouterr().out
        finally:
            shop.close()

    code, output = report(0, lambda _: None)
    assert code == 0
    assert_all_well(output)
    for number, (spoiled, line) in enumerate(SABOTAGE, 1):
        with subtests.test(line, number=number):
            code, output = report(number, spoiled)
            assert code == 1
            assert "Something went wrong" in output
            bad = [said for said in output.splitlines() if said.startswith("BAD")]
            assert any(line in said for said in bad), output


@pytest.mark.full  # the test above shows that the check can fail
@pytest.mark.usefixtures("_forked_workers")
def test_a_lost_outbox_entry_is_reported(sqlite_url, capsys, monkeypatch):
    place_order = shop.place_order

    def lose_one(session, number):
        handles = place_order(session, number)
        if number == 2:
            session.execute(delete(task_outbox).where(task_outbox.c.task_execution_id == handles[1].id))
        return handles

    monkeypatch.setattr(shop, "place_order", lose_one)
    assert demo.run(sqlite_url, orders=20, workers=2) == 1
    output = capsys.readouterr().out
    assert re.search(r"^BAD  every invariant holds \(ready_without_entry\)", output, re.MULTILINE)


def test_a_worker_that_does_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "STOP_TIMEOUT", 0.05)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with forked.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.terminate()
        assert demo._ended(worker) == -9
