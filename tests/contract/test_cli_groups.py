"""`failed summary` and `--group`, reasons for due times, Ctrl-C in other long commands, and options before a command's name."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import changes, main
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7

HOUR = timedelta(hours=1)


def outboxq(database, *words: object, exit_code: int = 0) -> Result:
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, [str(one) for one in words], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def failed(database, message: str, **fields: Any) -> UUID:
    database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store)
    data = {"error": f"ValueError: {message}", "exception": "builtins.ValueError"}
    database.store.finish(
        [Outcome(claim=claim, event_type=EventType.FAILED, error=f"ValueError: {message}", data=data)]
    )
    return UUID(str(claim.id))


def test_dead_letters_are_grouped_and_can_be_redriven_by_group(database):
    declined = [failed(database, f"order {number} was declined") for number in (1, 22, 333)]
    late = failed(database, "too late", task_name="tests.send")
    head, *rows = [line.split("\t") for line in outboxq(database, "failed", "summary").stdout.splitlines()]
    assert head == ["count", "task", "exception", "message", "first", "last", "newest id", "group", "versions"]
    assert [row[:4] for row in rows] == [
        ["3", "tests.work", "builtins.ValueError", "ValueError: order … was declined"],
        ["1", "tests.send", "builtins.ValueError", "ValueError: too late"],
    ]
    assert [row[6] for row in rows] == [str(declined[-1]), str(late)]
    group = rows[0][7]
    listed = outboxq(database, "failed", "list", "--group", group).stdout.splitlines()[1:]
    assert {line.split("\t")[1] for line in listed} == set(map(str, declined))
    dry = outboxq(database, "failed", "discard", "--group", group, "--dry-run").stdout
    assert f"dead letters in the group '{group}': 3 would be discarded" in dry
    assert outboxq(database, "failed", "redrive", "--group", group, "--yes").stdout == "3 redriven\n"
    assert [one.id for one in database.store.dead_letters.list()] == [late]
    whole = json.loads(outboxq(database, "failed", "summary", "--json").stdout)
    assert ([one["count"] for one in whole["groups"]], whole["is_complete"]) == ([1], True)


def test_an_incomplete_summary_prints_that_there_are_more(sqlite):
    for message in ("this", "that"):
        failed(sqlite, message)
    result = outboxq(sqlite, "failed", "summary", "--limit", 1)
    assert len(result.stdout.splitlines()) == 2
    assert "there are more" in result.stderr
    assert outboxq(sqlite, "failed", "summary", "--topic", "none").stderr == ""


def because(database, task_id: object) -> str | None:
    return json.loads(outboxq(database, "task", "show", task_id, "--json").stdout)["due_because"]  # type: ignore[no-any-return]


def test_show_prints_why_a_task_is_due_later(database):
    store = database.store
    delayed = database.add(store, delay=HOUR).id
    assert because(database, delayed) == "it was enqueued with a delay of 1 h"
    store.set_priority(delayed, 5)
    assert because(database, delayed) == "it was enqueued with a delay of 1 h"
    store.run_now(delayed)
    assert because(database, delayed) is None
    (claim,) = database.claim(store=store)
    store.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="no", delay=timedelta(seconds=90))])
    assert because(database, delayed) == "an attempt failed, and attempt 2 follows 1 min 30 s later"
    store.run_now(delayed)
    (claim,) = database.claim(store=store)
    store.finish([Outcome(claim=claim, event_type=EventType.SNOOZED, delay=HOUR)])
    assert because(database, delayed) == "its handler snoozed it for 1 h"
    text = outboxq(database, "task", "show", delayed).stdout
    assert "\ndue because\tits handler snoozed it for 1 h\n" in text
    assert "\nnow\tit is due in " in text
    store.cancel(delayed)
    assert because(database, delayed) is None


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt, even if the tests run in the background, where it would be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Ctrl-C after each report of progress."""
    take_note = changes.Progress.__call__

    def interrupted(self: changes.Progress, number: int, total: int | None = None) -> None:
        take_note(self, number, total)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(changes.Progress, "__call__", interrupted)


def test_ctrl_c_during_a_prune_keeps_committed_changes(database, monkeypatch):
    store = database.store
    store.enqueue_many([NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(120)])
    for claim in database.claim(200, store=store):
        store.complete(claim)
    with monkeypatch.context() as patched:
        interrupt(patched)
        said = outboxq(database, "prune", "--older-than", "0s", "--yes", exit_code=130).stderr
    assert said.endswith("outboxq: stopped: 50 deleted; these changes are committed\n")
    assert len(store.tasks(limit=200)) == 70


def test_an_error_after_some_of_several_ids_reports_how_many_were_changed(database):
    key = {"idempotency_key": "k", "unique_until_finished": True}
    dead = []
    for fields in ({}, key, {}):
        dead.append(str(database.add(database.store, **fields).id))
        (claim,) = database.claim(store=database.store)
        data = {"error": "ValueError: no"}
        database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    database.add(database.store, **key)
    lines = outboxq(database, "failed", "redrive", *dead, "--yes", exit_code=1).stderr.splitlines()
    assert lines[0] == "outboxq: stopped: 1 of 3 redriven; these changes are committed"
    assert lines[1].startswith(f"outboxq: task {dead[1]} cannot run again")
    assert [str(one.id) for one in database.store.dead_letters.list()] == [dead[2], dead[1]]
    (line,) = outboxq(database, "failed", "redrive", *dead[1:], "--yes", exit_code=1).stderr.splitlines()
    assert line == lines[1]


def test_ctrl_c_during_a_cancel_or_verify_reports_how_much_was_done(database, monkeypatch):
    store = database.store
    store.enqueue_many([NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(510)])
    interrupt(monkeypatch)
    said = outboxq(database, "task", "cancel", "--all", "--yes", exit_code=130).stderr
    assert said.endswith("outboxq: stopped: 500 of 510 cancelled; these changes are committed\n")
    said = outboxq(database, "verify", exit_code=130).stderr
    assert said.startswith("outboxq: stopped: 1 of ")
    assert said.endswith(" checked\n")


def test_a_dry_run_shows_the_tasks_that_are_changed_first(database):
    """A dry run shows the oldest tasks, and at most as many as --limit allows."""
    ids = [failed(database, f"order {number} was declined", queue="mail") for number in range(7)]
    group = database.store.dead_letters.groups().groups[0].id
    for words, count in (
        (("--all",), 5),
        (("-q", "mail", "--limit", "3"), 3),
        (("--group", group, "--limit", "2"), 2),
        (("-q", "default"), 0),
    ):
        dry = outboxq(database, "failed", "discard", *words, "--dry-run", "--json")
        assert [UUID(one.split()[0]) for one in json.loads(dry.stdout)["first"]] == ids[:count]
    assert [one.id for one in database.store.dead_letters.oldest(limit=4)] == ids[:4]
    said = outboxq(database, "failed", "discard", "--all", "--limit", "2", "--dry-run").stdout
    assert said.startswith("all dead letters, limited to the oldest 2: 2 would be discarded\n")
    waiting = [str(database.add(database.store, queue="mail").id) for _ in range(3)]
    dry = outboxq(database, "task", "cancel", "-q", "mail", "--limit", "2", "--dry-run", "--json")
    assert [one.split()[0] for one in json.loads(dry.stdout)["first"]] == waiting[:2]


def test_an_invalid_group_id_is_a_usage_error(sqlite):
    said = outboxq(sqlite, "failed", "redrive", "--group", "zzz", "--yes", exit_code=2).stderr
    assert "write the 16 hex digits that `failed summary` prints" in said


@pytest.mark.parametrize("words", [("--url", "X", "task", "list"), ("task", "--url", "X", "list"), ("task", "--url=X")])
def test_an_option_before_a_command_is_refused_with_its_correct_place(words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "No such option '--url' before a command; a command's options come after its name: " in result.stderr
    command = "main task COMMAND --url" if words[0] == "task" else "main COMMAND --url"
    assert result.stderr.endswith(f": {command}\n")


def test_a_mistyped_option_of_the_program_itself_is_suggested():
    assert "Did you mean" in CliRunner().invoke(main, ["--versio"]).stderr
    assert "before a command" not in CliRunner().invoke(main, ["--versio"]).stderr
