"""The question, `--yes` and `--dry-run` of every command that makes many changes, on a terminal and in a pipe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from outboxq import migrations
from outboxq.cli import changes, main
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.schedules import NewSchedule
from outboxq.model.uuid7 import uuid7
from tests.contract.helpers import everything
from tests.terminal import Answer, shown
from tests.waiting import until

HOSTILE = "\x1b[31mred\u202e'; --yes"


@dataclass(frozen=True)
class Case:
    """A command that makes many changes."""

    words: Sequence[str]
    question: str
    """A regular expression for the line above the question."""
    prints: str
    """The last words of its output."""
    needs: str = "sqlite"
    """The database on which it runs here. Other tests cover the store on both databases."""
    database: Any = None


CASES = {
    "redrive by filter": Case(
        ("failed", "redrive", "-q", "mail"),
        r"dead letters in the queue 'mail': 3 will be redriven",
        "3 redriven",
    ),
    "redrive ids": Case(
        ("failed", "redrive", "{failed0}", "{failed1}"), r"tasks {failed0}, {failed1}: 2 will be redriven", "2 redriven"
    ),
    "discard by filter": Case(
        ("failed", "discard", "--since", "1h", "--limit", "2"),
        r"dead letters that failed since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, limited to the oldest 2: 2 will be discarded",
        "2 discarded",
    ),
    "discard all": Case(("failed", "discard", "--all"), "all dead letters: 3 will be discarded", "3 discarded"),
    "cancel by filter": Case(
        ("task", "cancel", "--queue", "mail", "--status", "ready"),
        "waiting and running tasks in the queue 'mail', with the status Ready: 2 will be cancelled",
        "2 cancelled or asked to stop",
    ),
    "prune": Case(
        ("prune", "--older-than", "0s"),
        r"Completed and Cancelled tasks that ended before .{19} UTC, with their events: 1 will be deleted",
        "1 task was deleted with its events",
    ),
    "prune failed": Case(
        ("prune", "--older-than", "0s", "--failed"),
        r"Completed, Failed and Cancelled tasks that ended before .{19} UTC, with their events: 4 will be deleted",
        "4 tasks were deleted with their events",
    ),
    "backfill": Case(
        ("schedule", "backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-03"),
        r"ticks of the schedule 'nightly' from 2026-01-01 .* up to, but not including, 2026-01-03 .*: 2 will be enqueued",
        "2 ticks were enqueued",
    ),
    "partition": Case(
        ("partition", "--ahead", "1"),
        r"tables that partition the task history by month \(the history is locked and read once\): 6 will be made",
        "6 tables were created",
        needs="postgresql",
    ),
}


def failed(database, **fields: Any) -> str:
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields["queue"]])
    data = {"error": "ValueError: no", "exception": "builtins.ValueError"}
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    return str(handle.id)


def fill(database) -> dict[str, str]:
    """Create three dead letters, two waiting tasks, a completed task and a schedule. Return the dead letters' ids."""
    names = {f"failed{number}": failed(database, queue="mail") for number in range(3)}
    database.add(database.store, queue="done")
    database.store.complete(database.claim(store=database.store)[0])
    for _ in range(2):
        database.add(database.store, queue="mail", delay=timedelta(hours=1))
    new = NewSchedule(name="nightly", task_name="tests.work", rule="30 2 * * *", args="{}")
    database.store.schedules.put(new)
    return names


@pytest.fixture(params=CASES)
def case(request) -> Case:
    found = CASES[request.param]
    database = request.getfixturevalue(found.needs)
    names = fill(database)
    words = [word.format(**names) for word in found.words]
    question = re.sub(r"\{failed\d\}", lambda name: names[name[0][1:-1]], found.question)
    return Case(words, question, found.prints, database=database)


def environment(database) -> dict[str, str]:
    names = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    return {**names, "OUTBOXQ_DATABASE_URL": database.url}


def command(*words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "outboxq", *words]


def on_terminal(database, *words: str, answers: Sequence[Answer] = (), columns: int = 400) -> tuple[int, str]:
    return shown(command(*words), env=environment(database), answers=answers, columns=columns)


def in_pipe(database, *words: str, code: int = 0) -> Result:
    """Run the command in this process. Its stdin is not a terminal, but contains an answer."""
    given = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, words, env=given, input="y\n" * 9, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def attended(database, *words: str, answer: str, code: int = 0) -> Result:
    """Run the command as a person at a terminal would, with this answer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(changes, "is_attended", lambda: True)
        given = {"OUTBOXQ_DATABASE_URL": database.url}
        result = CliRunner().invoke(main, words, env=given, input=answer, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def state(database) -> object:
    """Return everything that a command could change."""
    partitions = migrations.partition(database.url, dry_run=True) if database.name == "postgresql" else []
    return everything(database), database.store.schedules.list(), partitions


def test_the_question_shows_filter_and_count_and_return_changes_nothing(case):
    before = state(case.database)
    said = attended(case.database, *case.words, answer="\n", code=1)
    assert said.stdout == ""
    question, answered = said.stderr.splitlines()
    assert re.fullmatch(case.question, question), question
    assert answered == "Continue? [y/N] outboxq: nothing was changed"
    assert state(case.database) == before


@pytest.mark.in_turn
def test_on_a_real_terminal_return_changes_nothing(database):
    fill(database)
    before = state(database)
    code, said = on_terminal(database, "task", "cancel", "-q", "mail", answers=[("Continue? [y/N] ", "\n")])
    assert code == 1
    assert "waiting and running tasks in the queue 'mail': 2 will be cancelled\nContinue? [y/N] \n" in said
    assert said.endswith("outboxq: nothing was changed\n")
    assert state(database) == before


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yess\n"], ids=["end", "return", "no", "typo"])
def test_any_other_answer_changes_nothing(sqlite, answer):
    fill(sqlite)
    before = state(sqlite)
    assert attended(sqlite, "failed", "discard", "--all", answer=answer, code=1).stdout == ""
    assert state(sqlite) == before


def test_a_yes_makes_the_change(case):
    before = state(case.database)
    assert case.prints in attended(case.database, *case.words, answer="y\n").output
    assert state(case.database) != before


def test_a_yes_on_a_real_terminal_makes_the_change(sqlite):
    database = sqlite
    fill(database)
    code, said = on_terminal(database, "failed", "discard", "--all", answers=[("Continue? [y/N] ", "y\n")])
    assert (code, "3 discarded" in said) == (0, True), said
    assert database.store.dead_letters.list() == []


def test_a_pipe_needs_the_option_yes(case):
    before = state(case.database)
    refused = in_pipe(case.database, *case.words, code=2)
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("outboxq: nothing was changed: without a terminal, nobody can confirm that")
    assert "--yes" in line
    assert "--dry-run" in line
    assert state(case.database) == before
    assert case.prints in in_pipe(case.database, *case.words, "--yes").output
    assert state(case.database) != before


def test_a_dry_run_changes_nothing_and_prints_the_count(case):
    before = state(case.database)
    number = re.search(r"(\d) will be", case.question)[1]
    for said in (
        in_pipe(case.database, *case.words, "--dry-run"),
        in_pipe(case.database, *case.words, "--dry-run", "--yes"),
    ):
        assert re.search(rf"\b{number} .*would be", said.output), said.output
    assert "[y/N]" not in attended(case.database, *case.words, "--dry-run", answer="").output
    assert state(case.database) == before


ONE = {
    "redrive one": ("failed", "redrive", "{failed0}"),
    "discard one": ("failed", "discard", "{failed0}"),
    "cancel one": ("task", "cancel", "{ready}"),
    "remove a schedule": ("schedule", "remove", "nightly"),
}


@pytest.mark.parametrize("words", ONE.values(), ids=ONE)
def test_a_single_name_needs_no_confirmation_but_has_a_dry_run(sqlite, words):
    names = {**fill(sqlite), "ready": str(sqlite.add(sqlite.store).id)}
    before = state(sqlite)
    given = [word.format(**names) for word in words]
    assert "would be" in in_pipe(sqlite, *given, "--dry-run").stdout
    assert state(sqlite) == before
    in_pipe(sqlite, *given)
    assert state(sqlite) != before


def test_no_id_is_changed_if_one_of_several_is_not_a_dead_letter(database):
    names = fill(database)
    ready = str(database.add(database.store).id)
    before = everything(database)
    for options in (("--dry-run",), ("--yes",)):
        error = in_pipe(database, "failed", "discard", names["failed0"], ready, *options, code=1).stderr
        assert "is Ready and cannot be discarded" in error
    assert everything(database) == before


def test_a_hostile_name_in_the_question_cannot_control_the_terminal(sqlite):
    database = sqlite
    failed(database, queue=HOSTILE, task_name=HOSTILE)
    code, said = on_terminal(database, "failed", "discard", "-q", HOSTILE, answers=[("[y/N] ", "n\n")])
    assert code == 1
    assert not set("\x1b\u202e") & set(said)
    assert "\\x1b[31mred\\u202e" in said
    dry = in_pipe(database, "failed", "discard", "-q", HOSTILE, "--dry-run")
    assert not set("\x1b\u202e") & set(dry.output)


def test_a_task_that_fails_after_the_question_is_not_changed(postgresql):
    database = postgresql
    fill(database)

    def fails_then(running: subprocess.Popen[bytes]) -> None:
        failed(database, queue="mail")

    answers: list[Answer] = [("[y/N] ", fails_then), ("", "y\n")]
    code, said = on_terminal(database, "failed", "discard", "-q", "mail", answers=answers)
    assert (code, "3 discarded" in said) == (0, True), said
    assert len(database.store.dead_letters.list()) == 1


def test_json_with_a_question_prints_only_the_document_on_stdout(sqlite, tmp_path):
    fill(sqlite)
    script = " ".join(command("failed", "discard", "--all", "--json")) + ' >out.json; echo "ended $?"; cat out.json'
    answers: list[Answer] = [("[y/N] ", "y\n")]
    code, said = shown(["sh", "-c", f"cd {tmp_path}; {script}"], env=environment(sqlite), answers=answers, columns=400)
    assert code == 0
    assert 'ended 0\n{"action": "discarded", "changed": 3, "matched": 3' in said


# -- Ctrl-C


def many_dead_letters(database, number: int) -> None:
    tasks = [NewTask(id=uuid7(), task_name="tests.work", args="{}", queue="mail") for _ in range(number)]
    database.store.enqueue_many(tasks)
    while claims := database.claim(500, store=database.store):
        database.store.finish(
            [Outcome(claim=one, event_type=EventType.FAILED, error="ValueError: no") for one in claims]
        )


STOPPED = "outboxq: stopped: 500 of 1,100 redriven; these changes are committed\n"


def test_ctrl_c_during_a_long_redrive_reports_and_keeps_the_finished_part(database, monkeypatch):
    many_dead_letters(database, 1100)
    take_note = changes.Progress.__call__

    def interrupted(self: changes.Progress, number: int, total: int | None = None) -> None:
        take_note(self, number, total)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(changes.Progress, "__call__", interrupted)
        result = in_pipe(database, "failed", "redrive", "-q", "mail", "--yes", "--json", code=130)
    assert (result.stdout, STOPPED in result.stderr) == ("", True)
    assert len(database.store.dead_letters.list(limit=2000)) == 600
    assert in_pipe(database, "failed", "redrive", "-q", "mail", "--yes").stdout == "600 redriven\n"


def test_ctrl_c_on_a_terminal_waits_for_the_current_batch(postgresql):
    many_dead_letters(postgresql, 1100)
    with postgresql.host.connect() as holding:
        holding.execute(text("LOCK TABLE dead_letters IN SHARE MODE"))

        def interrupt(running: subprocess.Popen[bytes]) -> None:
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            until(lambda: postgresql.rows(waits))
            running.send_signal(signal.SIGINT)
            holding.rollback()

        answers: list[Answer] = [("[y/N] ", "y\n"), ("0/1100", interrupt)]
        code, said = on_terminal(postgresql, "failed", "redrive", "-q", "mail", answers=answers)
    assert (code, STOPPED in said) == (130, True), said
    assert len(postgresql.store.dead_letters.list(limit=2000)) == 600
