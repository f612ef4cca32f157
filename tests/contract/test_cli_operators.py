"""The operators' commands: `task`, `failed` and `queue`."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result
from sqlalchemy.engine import make_url

from outboxq.cli import main
from outboxq.errors import InvalidArgument
from outboxq.model import EventType, OnDeadLetter, Outcome, TaskStatus
from outboxq.store.tasks import task_pages
from tests.contract import helpers

HOUR = timedelta(hours=1)


def outboxq(database, *arguments: object, exit_code: int = 0) -> Result:
    words = [str(one) for one in arguments]
    result = CliRunner().invoke(main, words, env={"OUTBOXQ_DATABASE_URL": database.url}, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def cells(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


def ids(result: Result, column: int) -> list[str]:
    return [row[column] for row in cells(result)[1:]]


def failed(database, exception="builtins.ValueError", **fields):
    """Create a dead letter that failed now, by the database's clock."""
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields.get("queue", "default")])
    assert claim.id == handle.id
    data = {"error": "ValueError: no", "exception": exception, "traceback": 'Traceback:\n  File "x.py"\nValueError: no'}
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    return str(handle.id)


def one_of_each(database):
    """Create a task in each status, oldest first. Return their ids by status. All but the last are in the queue `mail`."""
    store, found = database.store, {}
    found["Completed"] = database.add(store, queue="mail", task_name="tests.send").id
    store.complete(database.claim(store=store)[0])
    found["Cancelled"] = database.add(store, queue="mail").id
    store.cancel(found["Cancelled"])
    found["Failed"] = failed(database, queue="mail")
    found["Running"] = database.add(store, queue="mail").id
    database.claim(store=store)
    found["Ready"] = database.add(store, queue="mail", delay=HOUR, partition_key="k").id
    found["other"] = database.add(store, queue="other", delay=HOUR, task_name="tests.send").id
    return {status: str(task_id) for status, task_id in found.items()}


# --- task


def test_tasks_are_listed_by_status_queue_and_name_newest_first(database):
    found = one_of_each(database)
    everything = list(found.values())[::-1]

    def listed(**wanted):
        return [str(task.id) for task in database.store.tasks(**wanted)]

    assert listed() == everything
    assert listed(limit=2) == everything[:2]
    assert listed(queue="mail") == everything[1:]
    assert listed(task="tests.send") == [found["other"], found["Completed"]]
    assert listed(status=TaskStatus.READY) == [found["other"], found["Ready"]]
    for status in TaskStatus:
        assert listed(status=status, queue="mail") == [found[status]], status
        assert listed(status=status, queue="none") == []
        wanted = [found["other"]] if status is TaskStatus.READY else [found["Completed"]] * (status == "Completed")
        assert listed(status=status, task="tests.send") == wanted
    options = ("--status", "ready", "-q", "other", "--task", "tests.send", "--limit", 3)
    assert ids(outboxq(database, "task", "list", *options), 0) == [found["other"]]
    (head, row) = cells(outboxq(database, "task", "list", "--status", "Failed"))
    assert head == ["id", "task", "queue", "state", "reason", "attempt", "created", "due", "last error"]
    assert (row[1:6], row[7:]) == (["tests.work", "mail", "failed", "", "1"], ["", "ValueError: no"])
    (_, late) = cells(outboxq(database, "task", "list", "--status", "ready", "-q", "mail"))
    assert (late[3:5], late[7] > late[6]) == (["delayed", "delayed"], True)
    (_, running) = cells(outboxq(database, "task", "list", "--status", "running"))
    assert (running[3:5], running[7]) == (["running", "its worker is silent"], "")
    outboxq(database, "task", "list", "--status", "Late", exit_code=2)


def test_a_list_reads_a_bounded_part_of_long_tables(database, monkeypatch):
    monkeypatch.setattr(task_pages, "SCAN", 2)
    store = database.store
    old = database.add(store, queue="mail")
    newer = [database.add(store, queue="sync").id for _ in range(3)]
    assert store.tasks(queue="mail", limit=1) == store.tasks(status=TaskStatus.COMPLETED) == []
    assert [task.id for task in store.tasks(status=TaskStatus.READY, limit=1)] == newer[2:]
    assert [task.id for task in store.tasks(status=TaskStatus.READY, queue="mail", limit=1)] == [old.id]
    assert len(store.tasks(status=TaskStatus.READY, limit=4)) == 4
    for wrong in ({"status": "ready"}, {"limit": 0}, {"queue": 7}, {"task": "\0"}):
        with pytest.raises(InvalidArgument):
            store.tasks(**wrong)


def test_show_prints_the_error_of_each_attempt(database):
    task_id = failed(database, partition_key="k")
    printed = outboxq(database, "task", "show", task_id)
    (attempt,) = [row for row in cells(printed) if row[0] == "1"]
    assert attempt[3:] == ["task_failed", "ValueError: no", "builtins.ValueError"]
    assert ["key", "k"] in cells(printed)
    assert "Traceback" not in printed.stdout
    assert ['  File "x.py"'] in cells(outboxq(database, "task", "show", "--traceback", task_id))


def test_run_now_of_a_due_task_prints_what_the_task_waits_for(database):
    first, second = (database.add(database.store, partition_key="ada", queue="mail").id for _ in range(2))
    database.claim(store=database.store)
    said = outboxq(database, "task", "run-now", second).stdout
    assert said.startswith(f"task {second} was already due: ")
    assert f"{first}" in said
    assert database.store.explain(second).sentence in said


def test_run_now_of_an_unblocked_due_task_prints_only_that_it_was_due(database):
    task = database.add(database.store)
    names, where = ["tests.work"], {"queues": None, "topics": None}
    database.store.workers.register(database.worker, label="web-1", concurrency=1, task_names=names, **where)
    assert outboxq(database, "task", "run-now", task.id).stdout == f"task {task.id} was already due\n"


def test_a_waiting_task_can_be_run_now_and_its_priority_changed(database):
    handle = database.add(database.store, delay=HOUR)
    assert outboxq(database, "task", "priority", handle.id, 9).stdout == f"task {handle.id} has priority 9 now\n"
    assert outboxq(database, "task", "priority", handle.id, 9).stdout == f"task {handle.id} already had priority 9\n"
    assert (
        outboxq(database, "task", "priority", handle.id, "--", -9).stdout == f"task {handle.id} has priority -9 now\n"
    )
    assert database.claim(store=database.store) == []
    assert outboxq(database, "task", "run-now", handle.id).stdout == f"task {handle.id} is due now\n"
    again = outboxq(database, "task", "run-now", handle.id).stdout
    assert again.startswith(f"task {handle.id} was already due: no live worker ")
    (claim,) = database.claim(store=database.store)
    assert (claim.id, claim.priority) == (handle.id, -9)
    for command in (("run-now", handle.id), ("priority", handle.id, 1)):
        assert "is Running and cannot be rescheduled" in outboxq(database, "task", *command, exit_code=1).stderr


@pytest.mark.parametrize("command", [("run-now",), ("explain",), ("priority", 1)])
def test_a_nonexistent_task_is_reported_in_one_sentence(database, command):
    name, *rest = command
    nobody = uuid4()
    told = outboxq(database, "task", name, nobody, *rest, exit_code=3)
    assert told.stderr.startswith("outboxq: ")
    assert str(nobody) in told.stderr
    outboxq(database, "task", name, "not-an-id", *rest, exit_code=2)


def test_a_priority_out_of_range_is_a_usage_error(sqlite):
    outboxq(sqlite, "task", "priority", sqlite.add().id, 101, exit_code=2)


def test_a_task_is_explained_in_one_sentence(database):
    task_id = failed(database)
    (sentence, *cures) = outboxq(database, "task", "explain", task_id).stdout.splitlines()
    assert cures == [
        f"  to redrive it: main failed redrive {task_id}",
        f"  to discard it: main failed discard {task_id}",
    ]
    assert "ValueError: no" in sentence


def test_a_cure_uses_the_database_url_that_was_typed(database):
    task_id = failed(database)
    told = CliRunner().invoke(main, ["task", "explain", task_id, "--url", database.url], catch_exceptions=False)
    (redrive,) = [line for line in told.stdout.splitlines() if "to redrive it: main " in line]
    words = shlex.split(redrive.partition(": main ")[2])
    assert words[-2:] == ["--url", database.url]
    assert CliRunner().invoke(main, words, catch_exceptions=False).stdout == "1 redriven\n"


def test_a_cure_shows_no_password(postgresql):
    task_id = failed(postgresql)
    # The server accepts any password.
    url = make_url(postgresql.url).set(password="hush").render_as_string(hide_password=False)
    told = CliRunner().invoke(main, ["task", "explain", task_id, "--url", url], catch_exceptions=False)
    assert "hush" not in told.output
    assert f"failed redrive {task_id} --url … (the same address)\n" in told.stdout


def test_a_cure_to_start_a_worker_omits_an_application_from_the_environment(database, tmp_path, monkeypatch):
    task_id = database.add(database.store, queue="reports").id
    (tmp_path / "cured.py").write_text(f"from outboxq import Outbox\noutbox = Outbox({database.url!r})\n")
    monkeypatch.syspath_prepend(tmp_path)

    def start(*words, **environment):
        told = CliRunner().invoke(
            main, ["task", "explain", str(task_id), *words], env=environment, catch_exceptions=False
        )
        return told.stdout.splitlines()[-1].partition("to start a worker: ")[2]

    assert start(OUTBOXQ_APP="cured:outbox") == "main worker -q reports"
    assert start("cured:outbox", OUTBOXQ_APP="cured") == "main worker cured:outbox -q reports"
    assert start("--url", database.url, OUTBOXQ_APP="cured") == "main worker APP -q reports"
    assert start(OUTBOXQ_DATABASE_URL=database.url) == "main worker APP -q reports"
    del sys.modules["cured"]


def test_text_from_the_database_cannot_control_the_terminal(database):
    hostile = "\x1b[31mred\ttab\nline\u202eleft\x9b2J"
    task_id = failed(database, exception=hostile, queue=hostile, task_name=hostile, partition_key=hostile)
    database.store.queues.pause(hostile, create=True)
    words = [("task", "list"), ("task", "show", "--traceback", task_id), ("task", "explain", task_id)]
    for command in (*words, ("failed", "list"), ("queue", "list")):
        printed = outboxq(database, *command).stdout
        assert not set("\x1b\u202e\x9b") & set(printed), command
        assert "red\\ttab\\nline" in printed or "explain" in command


# --- failed


def test_dead_letters_are_listed_newest_first_with_filters(database):
    first = failed(database, queue="mail", partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    second = failed(database, exception="app.Gone", topic="order.paid")
    an_hour_ago = _ago(database, HOUR)
    for statement in (
        f"UPDATE dead_letters SET failed_at = '{an_hour_ago}' WHERE queue = 'mail'",
        f"UPDATE task_executions SET completed_at = '{an_hour_ago}' WHERE queue = 'mail'",
        (
            f"UPDATE execution_events SET created_at = '{an_hour_ago}' WHERE event_type = 'task_failed' "
            "AND task_execution_id = (SELECT id FROM task_executions WHERE queue = 'mail')"
        ),
    ):
        database.run(statement)

    def listed(*options):
        return ids(outboxq(database, "failed", "list", *options), 1)

    assert listed() == [second, first]
    assert listed("--limit", 1) == [second]
    assert listed("-q", "mail") == listed("--key", "k") == listed("--exception", "ValueError") == [first]
    assert listed("--topic", "order.paid") == listed("--exception", "app.Gone") == [second]
    assert listed("--task", "tests.work") == [second, first]
    assert listed("--since", "30m") == [second]
    assert listed("--until", "30m") == [first]
    assert listed("--since", "30m", "-q", "mail") == []
    head, *rows = cells(outboxq(database, "failed", "list"))
    assert head == ["failed", "id", "task", "queue", "key", "attempt", "error", "holds its key"]
    assert [row[2:] for row in rows] == [
        ["tests.work", "default", "", "1", "ValueError: no", ""],
        ["tests.work", "mail", "k", "1", "ValueError: no", "yes"],
    ]


def _ago(database, span):
    return (database.store.now() - span).astimezone(UTC).isoformat(timespec="microseconds")


@pytest.mark.parametrize(
    ("command", "said", "status"), [("redrive", "redriven", "Ready"), ("discard", "discarded", "Cancelled")]
)
def test_dead_letters_are_changed_by_id_by_filter_or_all_together(database, command, said, status):
    letters = [failed(database, queue=queue) for queue in ("a", "a", "b", "b", "b", "b")]
    status_of = lambda: [database.store.get(UUID(one)).status.value for one in letters]  # noqa: E731
    assert outboxq(database, "failed", command, letters[0], letters[2], "--yes").stdout == f"2 {said}\n"
    assert status_of() == [status, "Failed", status, "Failed", "Failed", "Failed"]
    assert outboxq(database, "failed", command, "-q", "b", "--limit", 1, "--yes").stdout == f"1 {said}\n"
    assert outboxq(database, "failed", command, "-q", "b", "--yes").stdout == f"2 {said}\n"
    assert status_of() == [status, "Failed", status, status, status, status]
    assert outboxq(database, "failed", command, "--all", "--yes").stdout == f"1 {said}\n"
    assert outboxq(database, "failed", command, "--all", "--yes").stdout == "0 dead letters matched\n"
    assert status_of() == [status] * 6
    assert "cannot be" in outboxq(database, "failed", command, letters[0], exit_code=1).stderr
    outboxq(database, "failed", command, uuid4(), exit_code=3)


def test_the_reason_of_a_discard_names_the_operator(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    letters = [failed(database), failed(database)]
    outboxq(database, "failed", "discard", letters[0], "--reason", "obsolete")
    outboxq(database, "failed", "discard", "--all", "--reason", "obsolete", "--yes")
    for one in letters:
        assert database.store.history(UUID(one))[-1].event_data["reason"] == "obsolete (by ann on the command line)"


@pytest.mark.parametrize("command", ["redrive", "discard"])
@pytest.mark.parametrize(
    "options", [(), ("--limit", 1), ("--all", "-q", "mail"), (uuid4(), "-q", "mail"), (uuid4(), "--all")]
)
def test_a_command_without_a_valid_choice_changes_nothing(sqlite, command, options):
    failed(sqlite)
    before = helpers.everything(sqlite)
    assert "Usage" in outboxq(sqlite, "failed", command, *options, "--yes", exit_code=2).stderr
    assert helpers.everything(sqlite) == before


# --- queue


def test_the_pause_limits_and_order_of_a_queue_can_be_set_and_reset(database):
    head = ["queue", "paused since", "paused because", "concurrency", "rate", "order"]
    whole = [*head, "due", "delayed", "retrying", "running", "failed", "workers", "per key"]
    none = ["0"] * 6
    assert cells(outboxq(database, "queue", "list")) == [whole]
    (_, paused) = cells(outboxq(database, "queue", "pause", "mail", "--create", "--reason", "moving"))
    assert datetime.fromisoformat(paused[1]) == database.store.queues.settings()[0].paused_at
    assert paused[2] == database.store.queues.settings()[0].pause_reason
    assert paused[2].startswith("moving (by ")
    assert f"paused because\t{paused[2]}" in outboxq(database, "queue", "show", "mail").stdout
    outboxq(database, "queue", "limit", "mail", "--concurrency", 3)
    outboxq(database, "queue", "limit", "mail", "--rate", "100/1m")
    outboxq(database, "queue", "order", "mail", "oldest")
    assert cells(outboxq(database, "queue", "list")) == [
        whole,
        ["mail", paused[1], paused[2], "3", "100 in 1 min", "oldest", *none, ""],
    ]
    outboxq(database, "queue", "resume", "mail")
    outboxq(database, "queue", "order", "mail", "turns")
    outboxq(database, "queue", "limit", "mail", "--rate", "none", "--concurrency", "4")
    assert cells(outboxq(database, "queue", "list"))[1:] == [["mail", "", "", "4", "", "turns", *none, ""]]
    outboxq(database, "queue", "limit", "mail", "--concurrency", "none")
    assert cells(outboxq(database, "queue", "list")) == [whole]


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "mail"),
        ("limit", "mail", "--concurrency", "0"),
        ("limit", "mail", "--concurrency", "many"),
        ("limit", "mail", "--rate", "5"),
        ("limit", "mail", "--rate", "0/1m"),
        ("limit", "mail", "--rate", "5/0s"),
        ("limit", "mail", "--rate", "5/soon"),
        ("order", "mail", "maybe"),
        ("pause",),
    ],
    ids=" ".join,
)
def test_an_invalid_queue_setting_is_a_usage_error(sqlite, words):
    outboxq(sqlite, "queue", *words, exit_code=2)
    assert sqlite.store.queues.settings() == []


def test_an_empty_queue_name_is_refused(sqlite):
    assert "must not be empty" in outboxq(sqlite, "queue", "pause", "", exit_code=1).stderr


def test_tasks_are_searched_by_exception_key_and_argument(database, monkeypatch):
    wanted = failed(database, queue="mail", args='{"order_id":17,"to":"ann"}')
    keyed = database.add(database.store, queue="mail", task_name="tests.send", idempotency_key="a b").id
    for words, found in (
        (("--exception", "ValueError"), wanted),
        (("--task", "tests.send", "--idempotency-key", "a b"), keyed),
        (("-q", "mail", "--argument", "order_id=17"), wanted),
        (("-q", "mail", "--argument", "to=ann", "--status", "failed"), wanted),
    ):
        assert ids(outboxq(database, "task", "list", *words), 0) == [str(found)]
    assert "an argument such as order_id=17" in outboxq(database, "task", "list", "--argument", "x", exit_code=2).stderr
    monkeypatch.setattr(task_pages, "SCAN_ARGUMENTS", 1)
    database.add(database.store, queue="mail")
    said = outboxq(database, "task", "list", "-q", "mail", "--argument", 'to="ann"', "--limit", 1).stderr
    command = said.partition("older tasks: ")[2]
    assert "only 1 task was read" in said
    following = outboxq(database, *shlex.split(command)[1:])
    assert ids(following, 0) == [str(wanted)] or "older tasks" in following.stderr


def test_the_slowest_tasks_are_listed_first(database):
    first, second = (database.add(database.store).id for _ in range(2))
    for _ in range(2):  # the second task waited longer for its claim
        database.claim(store=database.store)
    database.add(database.store)
    listed = outboxq(database, "task", "list", "--sort", "duration")
    assert cells(listed)[0] == ["id", "task", "queue", "state", "ran", "created", "last error"]
    assert ids(listed, 0) == [str(first), str(second)]
    record = json.loads(outboxq(database, "task", "list", "--sort", "wait", "--limit", 1, "--json").stdout)[0]
    assert record["waited"] >= 0
    assert (
        "leave out --before and --after"
        in outboxq(database, "task", "list", "--sort", "wait", "--before", first, exit_code=2).stderr
    )
    assert (
        "a waiting task has not started"
        in outboxq(database, "task", "list", "--sort", "wait", "--status", "due", exit_code=1).stderr
    )
