"""Commands for operators: `workers list`, `queue list` and `show`, `check`, `db` and `completion`."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.cli.workers import workers
from outboxq.database.revisions import REVISION
from outboxq.model import EventType, OnDeadLetter, Outcome
from outboxq.model.running import Progress
from outboxq.model.subscriptions import Subscription
from outboxq.model.workers import WorkerOrder
from tests import forked
from tests.terminal import shown

HOUR = timedelta(hours=1)


def outboxq(database, *arguments: object, exit_code: int = 0) -> Result:
    words = [str(one) for one in arguments]
    result = CliRunner().invoke(main, words, env={"OUTBOXQ_DATABASE_URL": database.url}, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def rows(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()[1:]]


def failed(database, **fields):
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields.get("queue", "default")])
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no")])
    return handle.id


def retried(database, **fields):
    database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields["queue"]])
    outcome = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="ValueError: no", delay=HOUR)
    database.store.finish([outcome])


def registered(database, *, queues=None, **described):
    worker_id = uuid4()
    names = ["tests.work"]
    database.store.workers.register(worker_id, label="host:1", queues=queues, concurrency=8, task_names=names)
    if described:
        database.store.workers.describe(worker_id, **described)
    return worker_id


# --- workers list

HOST = {"host": "web-1", "pid": 7, "release": "0.1.0", "busy": 3}


def test_live_workers_are_listed_with_their_differences(database):
    words = ("workers", "list")
    assert "no worker is live" in outboxq(database, *words).stderr
    registered(database, queues=["mail", "a", "b", "c"], **HOST, version="1.0")
    registered(database, **{**HOST, "host": "web-2"}, version="1.1")
    registered(database)
    first, second, third = rows(outboxq(database, *words))
    assert first[:6] == ["web-1", "7", "1.0", "0.1.0", "3/8", "a, b, c and 1 more"]
    assert (first[7], second[7]) == ("other version", "")
    assert (third[0], third[4:6]) == ("host:1", ["?/8", "all"])
    assert len(rows(outboxq(database, *words, "-q", "other"))) == 2
    found = json.loads(outboxq(database, *words, "--json").stdout)
    assert [one["differs"] for one in found] == [["other version"], [], []]
    assert [one["isolation"] for one in found] == [None, None, None]
    assert found[0]["queues"] == ["a", "b", "c", "mail"]


def test_the_child_processes_of_a_worker_are_listed(database):
    registered(database, **HOST, version="1.0", isolation="process")
    registered(database, **HOST, version="1.1", isolation="thread")
    first, second = rows(outboxq(database, "workers", "list"))
    assert (first[7], second[7]) == ("8 child processes, other version", "")
    found = json.loads(outboxq(database, "workers", "list", "--json").stdout)
    assert [one["isolation"] for one in found] == ["process", "thread"]


def test_an_application_in_a_module_called_list_is_still_an_application(tmp_path, monkeypatch):
    (tmp_path / "list.py").write_text("from outboxq import Outbox\noutbox = Outbox()\n")
    monkeypatch.syspath_prepend(tmp_path)
    ended = CliRunner().invoke(main, ["worker", "list:outbox", "--burst"], env={"OUTBOXQ_DATABASE_URL": ""})
    assert "list:outbox has no database" in ended.output
    sys.modules.pop("list", None)


@pytest.mark.parametrize("name", workers.commands)
def test_a_workers_subcommand_typed_after_worker_is_corrected(name):
    ended = CliRunner().invoke(main, ["worker", name], env={"OUTBOXQ_APP": ""})
    assert (ended.exit_code, ended.stderr) == (
        2,
        f"outboxq: {name!r} is not an application; run: outboxq workers {name}\n",
    )


def test_a_worker_without_an_application_names_the_command_that_lists_workers():
    ended = CliRunner().invoke(main, ["worker"], env={"OUTBOXQ_APP": ""})
    assert (ended.exit_code, "outboxq workers list" in ended.stderr) == (2, True)


# --- queue


def test_all_queues_are_listed_with_their_counts(database):
    store = database.store
    failed(database, queue="dead")
    retried(database, queue="mail")
    database.add(store, queue="mail")
    database.add(store, queue="mail", delay=HOUR)
    store.queues.pause("empty", create=True)
    registered(database, queues=["idle"])
    found = {one[0]: one[6:12] for one in rows(outboxq(database, "queue", "list"))}
    assert found == {
        "dead": ["0", "0", "0", "0", "1", "0"],
        "empty": ["0"] * 6,
        "idle": ["0", "0", "0", "0", "0", "1"],
        "mail": ["1", "1", "1", "0", "0", "0"],
    }


def test_one_queue_is_shown_with_the_keys_that_dead_letters_hold(database):
    store = database.store
    letter = failed(database, queue="mail", partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    database.add(store, queue="mail", partition_key="k")
    due = store.now() + HOUR
    database.add(store, queue="mail", available_at=due)
    registered(database, queues=["mail"], **HOST, version="1.0")
    text = outboxq(database, "queue", "show", "mail").stdout
    for part in (f"k\t{letter}\t", "web-1\t7\t1.0\t3\t8", "failed\t1\n", f"next due\t{due}\n"):
        assert part in text
    assert f"failed redrive {letter}" in text
    found = json.loads(outboxq(database, "queue", "show", "mail", "--json").stdout)
    (key,) = found["held_keys"]
    assert (key["partition_key"], key["waiting"]) == ("k", {"number": 1, "at_least": False})
    assert found["next_due_at"] == due.isoformat()
    assert "there is no queue 'none'" in outboxq(database, "queue", "show", "none", exit_code=3).stderr


def test_a_queue_without_tasks_is_shown_with_the_workers_that_serve_all_queues(database):
    database.add(database.store, queue="mail")
    (claim,) = database.claim(store=database.store, queues=["mail"])
    database.store.complete(claim)
    registered(database)
    found = json.loads(outboxq(database, "queue", "show", "mail", "--json").stdout)
    assert (found["live_workers"], len(found["workers"])) == (1, 1)


def test_a_queue_is_shown_with_its_quiet_workers_but_they_are_not_counted(database):
    database.add(database.store, queue="mail")
    registered(database)
    quiet = registered(database, **{**HOST, "host": "web-2"})
    database.store.worker_orders.give(quiet, WorkerOrder.QUIET)
    text = outboxq(database, "queue", "show", "mail").stdout
    assert "workers\t1\n" in text
    assert "\tquiet, not obeyed yet\n" in text
    (listed,) = json.loads(outboxq(database, "queue", "list", "--json").stdout)
    assert listed["live_workers"] == 1


# --- check


def test_check_without_problems_prints_one_line_and_exits_with_0(database):
    assert outboxq(database, "check").stdout == "all is well\n"
    assert json.loads(outboxq(database, "check", "--json").stdout) == []


def test_check_prints_a_line_with_a_cure_for_each_problem_and_exits_with_1(database):
    database.add(database.store, queue="mail")
    failed(database, queue="dead")
    lines = outboxq(database, "check", exit_code=1).stdout.splitlines()
    assert re.match(r"  1 × tests.work: ValueError: no; [0-9.]+ s ago \(to see them: ", lines.pop())
    assert [line.partition(":")[0] for line in lines] == ["no_worker", "failed"]
    assert "worker APP -q mail" in lines[0]
    found = json.loads(outboxq(database, "check", "--json", exit_code=1).stdout)
    assert {"rule", "subjects", "sentence", "cures", "tasks", "age", "parts"} == found[0].keys()
    assert found[0]["cures"][0]["command"].endswith("worker APP -q mail")
    outboxq(database, "check", "--no-workers", "-q", "mail")
    outboxq(database, "check", "--no-workers", exit_code=1)
    for enough in (("--max-failed", "1"), ("--max-failed", "none"), ("--failed-within", "0s")):
        outboxq(database, "check", "--no-workers", *enough)


def test_the_limits_for_age_and_pauses_can_be_set_by_options(database):
    store = database.store
    database.add(store, queue="mail", available_at=store.now() - HOUR)
    registered(database)
    assert outboxq(database, "check", exit_code=1).stdout.startswith("oldest: ")
    for enough in (("--max-age", "2h"), ("--max-age", "none")):
        outboxq(database, "check", *enough)
    store.queues.pause("quiet", create=True)
    outboxq(database, "check", "--max-age", "2h")
    assert outboxq(database, "check", "--max-age", "2h", "--pauses", exit_code=1).stdout.startswith("queue_paused: ")
    for wrong in (("--max-age", "soon"), ("--max-failed", "-1"), ("--max-failed", "many"), ("--max-lateness", "x")):
        outboxq(database, "check", *wrong, exit_code=2)


def test_a_database_that_cannot_be_read_has_a_different_exit_code_than_a_problem(tmp_path):
    for url, code in ((f"sqlite:///{tmp_path}/none.db", 4), ("postgresql+psycopg://x@127.0.0.1:1/x", 69)):
        result = CliRunner().invoke(main, ["check", "--url", url, "--json"])
        assert (result.exit_code, result.stdout) == (code, "")


# --- db


def test_db_commands_print_the_revision_and_its_script(database):
    assert outboxq(database, "db", "current", "--check").stdout == f"{REVISION}, the revision of this release\n"
    assert [one[:2] for one in rows(outboxq(database, "db", "history"))] == [["0001", "current"]]
    assert "task_outbox" in outboxq(database, "db", "sql", "--from", "base", "--to", "0001").stdout
    assert f"already have revision {REVISION}" in outboxq(database, "db", "sql").stderr
    for wrong in (("--from", "9999"), ("--to", "x")):
        outboxq(database, "db", "sql", *wrong, exit_code=2)


def test_db_current_reports_missing_tables(tmp_path):
    (tmp_path / "empty.db").touch()
    words = ["--url", f"sqlite:///{tmp_path}/empty.db"]
    assert CliRunner().invoke(main, ["db", "current", *words]).stdout.startswith("the database has no outboxq tables; ")
    assert "task_outbox" in CliRunner().invoke(main, ["db", "sql", *words]).stdout


def test_the_sizes_of_tables_are_printed(database):
    result = outboxq(database, "db", "sizes")
    assert f"schema {REVISION}, " in result.stderr
    names = [one[0] for one in rows(result)]
    assert ("task_executions" in names) is (database.name == "postgresql")
    found = json.loads(outboxq(database, "db", "sizes", "--json").stdout)
    assert found["revision"] == REVISION
    assert found["size"] > 0


# --- completion


@pytest.mark.slow
def test_bash_completes_a_command_on_a_terminal(tmp_path):
    program = tmp_path / "outboxq"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m outboxq "$@"\n')
    program.chmod(0o755)
    start = tmp_path / "start"
    start.write_text('PS1="ready> "\neval "$(outboxq completion bash)"\necho "loaded"\n')
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "INPUTRC": "/dev/null"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    answers = [("loaded", "outboxq fa\t"), ("iled ", "li\t"), ("st ", "--help\n"), ("ready> ", "exit\n")]
    code, text = shown(["bash", "--noprofile", "--rcfile", str(start), "-i"], env=environment, answers=answers)
    assert code == 0
    assert "Usage: outboxq failed list" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_completion_script(shell):
    text = CliRunner().invoke(main, ["completion", shell]).stdout
    assert f"_OUTBOXQ_COMPLETE={shell}_complete" in text
    if shell == "bash":
        forked.run(["bash", "-n"], input=text, text=True, check=True)


# --- all of them

LOOKS = (
    ("workers", "list"),
    ("queue", "list"),
    ("check",),
    ("log",),
    ("subscription", "list"),
    ("db", "current"),
    ("db", "history"),
    ("db", "sizes"),
)


def test_text_from_the_tables_cannot_control_the_terminal(database):
    hostile = "\x1b[31mred\ttab\nline\u202eleft\x9b2J"
    task_id = failed(
        database, queue=hostile, task_name=hostile, partition_key=hostile, on_dead_letter=OnDeadLetter.HOLD
    )
    database.add(database.store, queue=hostile, task_name=hostile, partition_key=hostile)
    database.store.subscriptions.replace([Subscription(topic=hostile, task_name=hostile, parameter="x")])
    worker_id = registered(database, queues=[hostile])
    database.store.workers.describe(worker_id, **{**HOST, "host": hostile}, version=hostile)
    words = (*LOOKS, ("task", "history", task_id), ("queue", "show", hostile), ("emit", "x", "--dry-run"))
    for one in words:
        text = outboxq(database, *one, exit_code=int(one == ("check",))).output
        assert not set("\x1b\x9b\u202e") & set(text), one
        assert "\ttab" not in text


def test_a_mistyped_queue_is_refused_with_a_suggestion(sqlite):
    """Otherwise, a mistyped queue would never have a problem."""
    database = sqlite
    database.add(database.store, queue="mail")
    hint = "there is no queue 'mial': it is not used by any task, setting, declaration or live worker; did you mean 'mail'?"
    for words in (("check", "-q", "mial"), ("check", "-q", "mail", "-q", "mial", "--json"), ("queue", "show", "mial")):
        result = outboxq(database, *words, exit_code=3)
        assert (result.stdout, result.stderr) == ("", f"outboxq: {hint}\n")
    outboxq(database, "check", "-q", "mail", "--no-workers")


def test_a_declared_queue_is_known_before_its_first_task(sqlite):
    for words in (("check", "-q", "default"), ("queue", "show", "default")):
        outboxq(sqlite, *words)


# --- progress and the handler log


def test_a_running_task_is_shown_with_its_progress(database):
    database.add(database.store)
    (claim,) = database.claim(store=database.store)
    progress = {claim.id: Progress(fraction=0.4, note="12 of\x1b[31m 30")}
    database.store.heartbeat([claim], progress=progress)
    database.store.workers.register(claim.worker_id, label="ant:7", concurrency=1, task_names=["tests.work"])
    assert ["progress", "40 %: 12 of\\x1b[31m 30"] in rows(outboxq(database, "task", "show", claim.id))
    found = json.loads(outboxq(database, "task", "show", claim.id, "--json").stdout)
    assert found["explanation"]["progress"] == {"fraction": 0.4, "note": "12 of\x1b[31m 30"}
    said = outboxq(database, "task", "explain", claim.id).stdout
    assert "its handler reported 40 %: 12 of\\x1b[31m 30; its lease expires" in said
    record = json.loads(outboxq(database, "task", "explain", claim.id, "--json").stdout)
    assert record["progress"]["fraction"] == 0.4


def logged(database, lines, **data):
    handle = database.add(database.store)
    for number in (1, 2):
        (claim,) = database.claim(store=database.store)
        told = [
            {"at": "2026-11-23T03:00:00.123+00:00", "level": "INFO", "logger": "shop", "text": f"{number}-{one}\x1b"}
            for one in range(lines)
        ]
        end = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="no", data={"log": told, **data})
        database.store.finish([end])
    return handle.id


def test_the_newest_lines_of_the_last_attempt_are_shown_and_all_on_request(database):
    task_id = logged(database, 12, log_omitted=5, progress={"fraction": 0.4, "note": "12 of 30"})
    text = outboxq(database, "task", "show", task_id).stdout
    assert "last lines of attempt 2, lease token 2; 7 earlier lines omitted (see --handler-log)\n" in text
    assert [line for line in text.splitlines() if " INFO shop " in line] == [
        f"03:00:00 INFO shop 2-{one}\\x1b" for one in range(2, 12)
    ]
    assert "reached 40 %: 12 of 30" in text
    text = outboxq(database, "task", "show", task_id, "--handler-log").stdout
    assert "last lines of attempt 1, lease token 1; 5 earlier lines omitted\n" in text
    assert len([line for line in text.splitlines() if " INFO shop " in line]) == 24


def test_json_has_the_handler_log_only_on_request_and_never_in_the_history(database):
    task_id = logged(database, 2)
    found = json.loads(outboxq(database, "task", "show", task_id, "--json").stdout)
    assert {"log", "log_omitted"} & found["attempts"][0].keys() == set()
    found = json.loads(outboxq(database, "task", "show", task_id, "--json", "--handler-log").stdout)
    assert [line["text"] for line in found["attempts"][1]["log"]] == ["2-0\x1b", "2-1\x1b"]
    events = found["history"]
    events += json.loads(outboxq(database, "task", "history", task_id, "--json", "--traceback").stdout)
    events += json.loads(outboxq(database, "log", "--json", "--traceback").stdout)
    assert len(events) > 12
    assert not any("log" in event["event_data"] for event in events)
