"""`task cancel` by filter, and the pages of `task list`."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.errors import InvalidArgument
from outboxq.model import TaskStatus, Waiting
from outboxq.store.tasks import task_pages
from tests.contract.helpers import everything

HOUR = timedelta(hours=1)


def outboxq(database, *words: object, exit_code: int = 0) -> Result:
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, [str(one) for one in words], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def statuses(database) -> list[str]:
    return [str(one.status) for one in database.store.tasks()][::-1]


def some(database) -> list[str]:
    """Create one running task and four waiting ones. Return their ids, oldest first."""
    store = database.store
    found = [database.add(store, queue="mail").id]
    database.claim(store=store)
    found.append(database.add(store, queue="mail", partition_key="k", delay=HOUR).id)
    found.append(database.add(store, queue="mail", task_name="tests.send").id)
    found.append(database.add(store, queue="sync", topic="order.paid").id)
    found.append(database.add(store, queue="sync").id)
    return [str(one) for one in found]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--queue", "mail"), (1, 2)),
        (("--key", "k"), (1,)),
        (("--task", "tests.send"), (2,)),
        (("--topic", "order.paid"), (3,)),
        (("--since", "1h"), (1, 2, 3, 4)),
        (("--until", "1h"), ()),
        (("--until", "2999-01-01T00:00Z"), (1, 2, 3, 4)),
        (("--status", "ready"), (1, 2, 3, 4)),
        (("--status", "running"), ()),
        (("--status", "ready", "--limit", "2"), (1, 2)),
        (("--all",), (1, 2, 3, 4)),
    ],
    ids=lambda one: " ".join(one) if one and isinstance(one[0], str) else None,
)
def test_tasks_are_cancelled_by_filter(database, options, expected):
    some(database)
    asks = (expected[:1] == (1,) and not {"--key", "ready"} & {*options}) or "running" in options
    dry = outboxq(database, "task", "cancel", *options, "--dry-run").stdout
    assert f" {len(expected) + asks} would be cancelled" in dry
    assert statuses(database) == ["Running", "Ready", "Ready", "Ready", "Ready"]
    printed = outboxq(database, "task", "cancel", *options, "--yes", "--reason", "obsolete").stdout
    number = len(expected) + asks
    assert printed == (f"{number} cancelled or asked to stop\n" if number else "0 waiting and running tasks matched\n")
    assert [number for number, one in enumerate(statuses(database)) if one == "Cancelled"] == list(expected)
    running = database.store.tasks(status=TaskStatus.RUNNING)[0]
    assert (running.cancel_requested_at is not None) is asks


def test_a_running_task_is_cancelled_immediately_by_force(database):
    some(database)
    outboxq(database, "task", "cancel", "--all", "--force", "--yes")
    assert statuses(database) == ["Cancelled"] * 5


def test_json_contains_the_numbers_of_matched_and_changed_tasks(database):
    some(database)
    dry = json.loads(outboxq(database, "task", "cancel", "-q", "sync", "--dry-run", "--json").stdout)
    assert (dry["action"], dry["changed"], dry["matched"], dry["dry_run"], len(dry["first"])) == (
        "cancelled", 0, 2, True, 2,
    )  # fmt: skip
    done = json.loads(outboxq(database, "task", "cancel", "-q", "sync", "--yes", "--json").stdout)
    assert (done["changed"], done["matched"], done["at_least"], done["dry_run"]) == (2, 2, False, False)


def test_without_a_terminal_or_yes_nothing_is_cancelled(database):
    some(database)
    before = everything(database)
    error = outboxq(database, "task", "cancel", "--queue", "mail", exit_code=2).stderr
    assert "waiting and running tasks in the queue 'mail'" in error
    assert "--yes" in error
    assert "--dry-run" in error
    assert everything(database) == before


def test_a_single_id_needs_no_confirmation_and_its_dry_run_changes_nothing(database):
    tasks = some(database)
    assert "would be cancelled" in outboxq(database, "task", "cancel", tasks[1], "--dry-run").stdout
    assert "would be asked to stop" in outboxq(database, "task", "cancel", tasks[0], "--dry-run").stdout
    assert statuses(database)[:2] == ["Running", "Ready"]
    assert outboxq(database, "task", "cancel", tasks[1]).stdout == f"task {tasks[1]} was cancelled\n"
    assert "cannot be cancelled" in outboxq(database, "task", "cancel", tasks[1], "--dry-run", exit_code=1).stderr


@pytest.mark.parametrize(
    "words",
    [(), ("--limit", "1"), ("--all", "-q", "mail"), ("{id}", "-q", "mail"), ("{id}", "--all"), ("--since", "soon"),
     ("--since", "2026-01-01"), ("--status", "failed"), ("shop:outbox", "--all")],
    ids=" ".join,
)  # fmt: skip
def test_an_invalid_choice_of_tasks_is_a_usage_error(sqlite, words):
    task_id = some(sqlite)[4]
    outboxq(sqlite, "task", "cancel", "--yes", *(one.format(id=task_id) for one in words), exit_code=2)
    assert "Cancelled" not in statuses(sqlite)


# -- pages


def listed(result: Result) -> list[str]:
    return [line.partition("\t")[0] for line in result.stdout.splitlines()[1:]]


def following(result: Result) -> list[str]:
    """Return the words of the printed command, without the program's name and the database's address."""
    command = shlex.split(result.stderr.strip().rpartition("older tasks: ")[2])
    return command[command.index("task") :]


def test_the_printed_command_lists_the_next_page(database):
    tasks = [str(database.add(database.store, queue="a b'c").id) for _ in range(5)][::-1]
    first = outboxq(database, "task", "list", "--limit", 2, "--queue", "a b'c", "--since", "1h")
    assert listed(first) == tasks[:2]
    second = outboxq(database, *following(first))
    assert listed(second) == tasks[2:4]
    third = outboxq(database, *following(second))
    assert listed(third) == tasks[4:]
    assert third.stderr == ""
    back = outboxq(database, "task", "list", "--limit", 2, "--after", tasks[4])
    assert listed(back) == tasks[2:4]
    assert listed(outboxq(database, *following(back))) == tasks[:2]


def test_a_list_that_was_cut_off_prints_how_to_continue(database, monkeypatch):
    monkeypatch.setattr(task_pages, "SCAN", 2)
    wanted = str(database.add(database.store, queue="mail").id)
    for _ in range(3):
        database.add(database.store, queue="sync")
    result = outboxq(database, "task", "list", "--queue", "mail", "--limit", 1, "--json")
    assert json.loads(result.stdout) == []
    assert "only 2 tasks were read" in result.stderr
    assert listed(outboxq(database, *following(result))) == [wanted]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--key", "k"), [1]),
        (("--topic", "order.paid"), [3]),
        (("--until", "1h"), []),
        (("--since", "1h"), [4, 3, 2, 1, 0]),
    ],
    ids=lambda one: " ".join(one) if one and isinstance(one[0], str) else None,
)
def test_tasks_are_listed_by_more_filters(database, options, expected):
    tasks = some(database)
    assert listed(outboxq(database, "task", "list", *options)) == [tasks[one] for one in expected]


def test_tasks_of_a_worker_are_listed(database):
    tasks = some(database)
    worker: Any = database.store.tasks(status=TaskStatus.RUNNING)[0].worker_id
    assert listed(outboxq(database, "task", "list", "--worker", worker)) == tasks[:1]


# -- run-now


def reasons(database, *ids) -> list[str]:
    """Return why the tasks wait. There is no worker, so a due task waits for one."""
    found = [str(database.store.explain(one).reason) for one in ids]
    return ["due" if one == "no_worker" else one for one in found]


def waiting(database) -> list[str]:
    """Create a due task, two delayed ones and one that waits for its retry. Return their ids, oldest first."""
    store = database.store
    found = [database.add(store, queue="mail").id]
    found.append(database.add(store, queue="mail", delay=HOUR).id)
    found.append(database.add(store, queue="sync", delay=HOUR, task_name="tests.send").id)
    found.append(database.add(store, queue="mail").id)
    store.schedule_retry(found[-1], store.now() + HOUR, 2)
    return [str(one) for one in found]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--queue", "mail"), (1, 3)),
        (("--task", "tests.send"), (2,)),
        (("--status", "delayed"), (1, 2)),
        (("--status", "retrying"), (3,)),
        (("--queue", "mail", "--limit", "1"), (1,)),
        (("--until", "1h"), ()),
        (("--all",), (1, 2, 3)),
    ],
    ids=lambda one: " ".join(one) if one and isinstance(one[0], str) else None,
)
def test_run_now_makes_exactly_the_matching_tasks_due(database, options, expected):
    ids = waiting(database)
    before = reasons(database, *ids)
    dry = json.loads(outboxq(database, "task", "run-now", *options, "--dry-run", "--json").stdout)
    assert (dry["changed"], dry["matched"]) == (0, len(expected))
    assert [line.split()[0] for line in dry["first"]] == [ids[one] for one in expected]
    assert reasons(database, *ids) == before == ["due", "delayed", "delayed", "retry_later"]
    said = outboxq(database, "task", "run-now", *options, "--yes", "--reason", "the provider is back").stdout
    assert said == (f"{len(expected)} made due\n" if expected else "0 delayed and retrying tasks matched\n")
    assert reasons(database, *ids) == ["due" if one in expected else before[one] for one in range(4)]
    for one in expected:
        assert database.store.history(ids[one])[-1].event_data["reason"].startswith("the provider is back (by ")
    recorded = [(one.action, one.changed) for one in database.store.actions.list()]
    assert recorded == ([("task run-now", len(expected))] if expected else [])


@pytest.mark.in_turn
def test_a_dry_run_of_run_now_refuses_the_same_tasks_as_run_now(database):
    task_id = database.add(database.store).id
    (claim,) = database.claim(store=database.store)
    for status in ("Running", "Completed"):
        refused = [
            outboxq(database, "task", "run-now", task_id, *options, exit_code=1).stderr
            for options in ((), ("--dry-run",))
        ]
        assert refused == [f"outboxq: task {task_id} is {status} and cannot be rescheduled\n"] * 2
        if status == "Running":
            database.store.complete(claim)


@pytest.mark.in_turn
def test_run_now_asks_for_confirmation_for_a_filter_but_not_for_a_single_task(database):
    ids = waiting(database)
    assert "nothing was changed" in outboxq(database, "task", "run-now", "--queue", "mail", exit_code=2).stderr
    assert "give ids, or filters, or --all" in outboxq(database, "task", "run-now", exit_code=2).stderr
    assert outboxq(database, "task", "run-now", ids[1]).stdout == f"task {ids[1]} is due now\n"
    assert reasons(database, *ids) == ["due", "due", "delayed", "retry_later"]


def test_run_now_works_in_batches_and_can_stop_between_them(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.tasks.cancelling.BATCH", 2)
    monkeypatch.setattr("outboxq.store.tasks.cancelling.SCAN", 3)
    store = database.store
    ids = [database.add(store, delay=timedelta(0) if n % 3 else HOUR).id for n in range(12)]
    later = ids[::3]
    count = store.count_later()
    assert (count.number, count.at_least) == (4, False)
    new = database.add(store, delay=HOUR).id
    steps = []
    stopped = store.run_all_now(snapshot=count.snapshot, on_progress=steps.append, stop=lambda: len(steps) == 1)
    assert stopped == steps[0] < 4
    assert stopped + store.run_all_now(snapshot=count.snapshot) == 4
    assert reasons(database, *later, new) == ["due"] * 4 + ["delayed"]
    assert store.count_later(snapshot=count.snapshot).number == 0
    with pytest.raises(InvalidArgument, match="only delayed and retrying tasks"):
        store.run_all_now(waiting=Waiting.DUE)
