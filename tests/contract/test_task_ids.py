"""Task ids can be abbreviated in commands, and are shown so that they can be copied."""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
from datetime import datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from outboxq import Outbox
from outboxq.cli import main
from outboxq.cli.console import drawn
from outboxq.errors import AmbiguousTask, InvalidArgument, TaskNotFound
from outboxq.model import EventType, NewTask, Outcome
from tests.contract import helpers
from tests.terminal import shown

TASK = UUID("01a2f3b4-5c6d-7abc-8def-0123456789ab")
ALIKE = [UUID(f"01a2f3b4-5c6d-7abc-8def-0123456789a{last}") for last in "cdef01"]


def outboxq(database, *words: object, exit_code: int = 0) -> Result:
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, [str(word) for word in words], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def failed(database, **fields):
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields.get("queue", "default")])
    data = {"error": "ValueError: no", "exception": "builtins.ValueError"}
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    return handle.id


# -- As a UUID or as text ---------------------------------------------------------------------------------------------


BY_ID = {
    "get": lambda store, one: store.get(one).id,
    "history": lambda store, one: store.history(one)[0].task_execution_id,
    "recent_history": lambda store, one: store.recent_history(one, 1)[0].task_execution_id,
    "attempts": lambda store, one: store.attempts(one),
    "explain": lambda store, one: store.explain(one).reason,
    "task_detail": lambda store, one: store.task_detail(one).task.id,
    "progress": lambda store, one: store.progress([one]),
    "state_at": lambda store, one: store.log.state_at(one, store.now()).status,
    "steps": lambda store, one: store.steps.list(one),
    "tasks": lambda store, one: [len(store.tasks(before=one)), len(store.tasks(after=one)), store.tasks(worker=one)],
    "set_priority": lambda store, one: store.set_priority(one, 7),
    "run_now": lambda store, one: store.run_now(one),
    "reschedule": lambda store, one: store.reschedule(one, store.now()),
    "schedule_retry": lambda store, one: store.schedule_retry(one, store.now(), 1),
    "cancel": lambda store, one: store.cancel(one),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", BY_ID)
def test_an_id_may_be_given_as_a_string(database, name):
    same, other = (database.add(database.store, delay=timedelta(hours=1)).id for _ in range(2))
    call = BY_ID[name]
    known = {"tasks": [0, 1, []], "history": same, "recent_history": same, "get": same, "task_detail": same}
    found, again = call(database.store, same), call(database.store, str(other))
    assert found == known.get(name, found)
    assert again == {"tasks": [1, 0, []]}.get(name, other if name in known else found)
    with pytest.raises(InvalidArgument, match="^an id must be a UUID or its string form, not 'banana'"):
        call(database.store, "banana")


def test_ids_of_dead_letters_and_batches_may_be_given_as_strings(database):
    store = database.store
    store.redrive(str(failed(database)))
    store.discard(str(failed(database, queue="other")))
    outbox = Outbox(database.engine)
    with outbox.batch(using=outbox) as batch:
        outbox.task(name="a")(lambda: None).using(batch).enqueue()
    text = str(batch.id)
    assert store.batches.get(text).id == batch.id
    assert sum(store.batches.statuses(text).values()) == len(store.tasks(batch=text)) == 1
    assert [one.id for one in store.batches.list(before="ffffffff-ffff-ffff-ffff-ffffffffffff")] == [batch.id]
    assert store.batches.cancel(text) == 1


# -- Finding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["01a2f3", "01A2F3B4", "01a2f3b4-5", "01a2f3b4-5c6d-7abc-8def-0123456789a"])
def test_a_task_is_found_by_a_prefix_of_its_id(database, written):
    database.add(database.store, id=TASK)
    for other in ("01a2f2ff-ffff-7fff-bfff-ffffffffffff", "01a2f400-0000-7000-8000-000000000000"):
        database.add(database.store, id=UUID(other))
    assert database.store.find(written) == TASK


@pytest.mark.parametrize("edge", ["01a2f300-0000-7000-8000-000000000000", "01a2f3ff-ffff-7fff-bfff-ffffffffffff"])
def test_the_lowest_and_the_highest_id_with_a_prefix_are_found(database, edge):
    database.add(database.store, id=UUID(edge))
    assert database.store.find("01a2f3") == UUID(edge)


def test_a_whole_id_is_returned_without_a_search(database):
    whole = uuid4()
    for written in (str(whole), whole.hex.upper(), f"{{{whole}}}", whole.urn):
        assert database.store.find(written) == whole


@pytest.mark.parametrize("written", ["", "01a2f", "01-a2-f", "xyzxyz", "01a2f3%", f"{TASK}0"])
def test_an_invalid_prefix_is_refused(database, written):
    with pytest.raises(InvalidArgument, match="first 6 hex digits"):
        database.store.find(written)


def test_a_prefix_that_no_task_has_is_not_found(database):
    database.add(database.store, id=TASK)
    with pytest.raises(TaskNotFound, match="^no committed task has an id that begins with 01a2f4$"):
        database.store.find("01a2f4")


def test_an_ambiguous_prefix_is_refused_and_up_to_five_ids_are_named(database):
    for one in (TASK, *ALIKE[:1]):
        database.add(database.store, id=one)
    with pytest.raises(AmbiguousTask) as two:
        database.store.find("01a2f3b4")
    assert str(two.value) == (
        f"2 task ids begin with 01a2f3b4; enter more digits: {TASK} (tests.work, Ready), {ALIKE[0]} (tests.work, Ready)"
    )
    assert two.value.task_ids == (TASK, ALIKE[0])
    again = pickle.loads(pickle.dumps(two.value))
    assert (str(again), again.task_ids) == (str(two.value), two.value.task_ids)
    for one in ALIKE[1:]:
        database.add(database.store, id=one)
    with pytest.raises(AmbiguousTask, match="^more than 5 task ids") as many:
        database.store.find("01a2f3b4")
    assert list(many.value.task_ids) == sorted([TASK, *ALIKE])[:5]


def test_find_can_read_the_transaction_of_the_caller(database):
    with helpers.transaction(database) as connection:
        database.store.enqueue(NewTask(id=TASK, task_name="tests.work", args="{}"), using=connection)
        assert database.store.find("01a2f3", using=connection) == TASK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("task", "show"), f"id\t{TASK}\n"),
        (("task", "explain"), "no live worker"),
        (("task", "priority", 5), "priority 5"),
        (("task", "run-now"), "was already due"),
        (("task", "cancel"), "was cancelled"),
    ],
    ids=lambda one: " ".join(map(str, one)) if isinstance(one, tuple) else "",
)
def test_each_command_accepts_a_prefix_of_an_id(sqlite, words, said):
    sqlite.add(sqlite.store, id=TASK)
    group, name, *rest = words
    assert said in outboxq(sqlite, group, name, "01a2f3", *rest).stdout
    assert "begins with 01a2f4" in outboxq(sqlite, group, name, "01a2f4", *rest, exit_code=3).stderr
    sqlite.add(sqlite.store, id=ALIKE[0])
    assert "2 task ids begin with" in outboxq(sqlite, group, name, "01a2f3", *rest, exit_code=2).stderr
    assert "first 6 hex digits" in outboxq(sqlite, group, name, "01a2f", *rest, exit_code=2).stderr


@pytest.mark.parametrize("name", ["redrive", "discard"])
def test_a_command_with_several_ids_does_nothing_unless_all_are_found(sqlite, name):
    one, two = failed(sqlite, id=TASK), failed(sqlite, id=UUID("01a2f4b4-5c6d-7abc-8def-0123456789ab"))
    outboxq(sqlite, "failed", name, "01a2f3", "01a2f5", exit_code=3)
    assert sqlite.store.get(one).status == "Failed"
    outboxq(sqlite, "failed", name, "01a2f3", "01a2f4", "--yes")
    assert {str(sqlite.store.get(task).status) for task in (one, two)} <= {"Ready", "Cancelled"}


# -- Showing ----------------------------------------------------------------------------------------------------------


LISTS = """
import sys
from outboxq.cli import main

for words in (["task", "list"], ["failed", "list"], ["task", "show", sys.argv[1]]):
    main([*words, "--url", sys.argv[2]], standalone_mode=False)
"""


@pytest.mark.parametrize("columns", [80, 100])
def test_on_a_terminal_ids_are_whole_on_one_line_and_times_are_short(sqlite, columns):
    failed(sqlite, id=TASK, task_name="shop.tasks.send_receipt_to_customer", queue="mail")
    command = [sys.executable, "-c", LISTS, str(TASK), sqlite.url]
    code, printed = shown(command, env={**os.environ, "TERM": "dumb"}, columns=columns)
    assert code == 0, printed
    assert printed.count(str(TASK)) == 3
    assert "+00:00" not in printed
    assert not re.search(r"\d\d:\d\d:\d\d\.\d", printed)
    assert all(len(line) <= columns for line in printed.splitlines()), printed


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_an_id_is_never_cut_whatever_the_width(width):
    moment = datetime(2026, 11, 22, 9, 40, 39, 607778, tzinfo=timezone(timedelta(hours=2)))
    head = ("id", "task", "queue", "created", "error")
    row = (TASK, "shop.tasks.send_receipt_to_customer", "mail", moment, "ValueError: " + "no such order " * 5)
    screen = Console(width=width, file=io.StringIO(), markup=False)
    screen.print(drawn(head, [row], width=width, spare=("created", "queue")), crop=False)
    printed = screen.file.getvalue()
    assert str(TASK) in printed
    assert ("2026-11-22 07:40:39" in printed) is ("created UTC" in printed) is (width >= 120)
    assert ("mail" in printed) is (width >= 80)
    if width >= 80:
        assert all(len(line) <= width for line in printed.splitlines()), printed
        assert "…" not in printed


def test_in_a_pipe_times_keep_their_precision(sqlite):
    failed(sqlite)
    head, row = [line.split("\t") for line in outboxq(sqlite, "failed", "list").stdout.splitlines()]
    assert head[0] == "failed"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+00:00", row[0])


def test_task_show_prints_the_explanation_and_the_reasons_in_events(database):
    handle = database.add(database.store, delay=timedelta(hours=1))
    cells = dict(
        line.split("\t", 1) for line in outboxq(database, "task", "show", handle.id).stdout.splitlines() if line
    )
    assert next(iter(cells.items())) == ("id", str(handle.id))
    assert cells["now"].startswith("it is due in ")
    assert cells["due"] > cells["created"]
    database.store.run_now(handle.id)
    (claim,) = database.claim(store=database.store)
    retry = Outcome(
        claim=claim, event_type=EventType.RETRY_SCHEDULED, error="OSError: away", data={"error": "OSError: away"},
        delay=timedelta(seconds=9.6),
    )  # fmt: skip
    database.store.finish([retry])
    events = outboxq(database, "task", "show", handle.id).stdout.rpartition("\n\n")[2].splitlines()
    assert events[0].split("\t") == ["time", "event", "worker", "token", "details", "error"]
    created, _moved, claimed, retried = [line.split("\t")[4:] for line in events[1:]]
    assert created == ["due in 1 h", ""]
    assert claimed == ["attempt 1", ""]
    assert retried == ["attempt 2, due in 9.6 s", "OSError: away"]
    database.store.run_now(handle.id)
    (claim,) = database.claim(store=database.store)
    given_back = Outcome(claim=claim, event_type=EventType.RELEASED, data={"reason": "unknown task", "times": 3})
    database.store.finish([given_back])
    assert "reason: unknown task, 3 times in a row" in outboxq(database, "task", "show", handle.id).stdout
    database.store.cancel(handle.id, reason="paid meanwhile")
    assert "reason: paid meanwhile" in outboxq(database, "task", "show", handle.id).stdout
