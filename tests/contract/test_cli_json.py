"""`--json` of every command: one document on stdout, with stable keys.

To update the golden file: OUTBOXQ_WRITE_GOLDEN=1 python -m pytest -n 0 tests/contract/test_cli_json.py
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import click
import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.model import EventType, Outcome
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule
from outboxq.store import NewStep, Store, WorkerStacks
from outboxq.store.claims.worker_orders import WorkerOrders

GOLDEN = Path(__file__).parents[1] / "golden" / "cli_json.json"
NONE = "01900000-0000-7000-8000-000000000000"

WITHOUT = {
    "completion": "prints a script of a shell",
    "demo": "is for people alone",
    "grants": "prints SQL",
    "relay run": "logs",
    "upgrade": "prints SQL, or nothing on stdout",
    "web": "serves pages, and JSON at /api",
    "worker": "has --log-format json",
}
"""Commands without `--json`, with the reasons."""

APPLICATION = """
from outboxq import Outbox

outbox = Outbox({url!r})


@outbox.task(name="tests.greet", subscribe="greeted")
def greet(name: str) -> str:
    return name
"""

FREE = {"event_data", "args", "result", "payload", "handles"}
"""Fields whose keys outboxq does not define."""


def leaves(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from leaves(one, *words, name)
    elif not command.hidden:
        yield " ".join(words), command


COMMANDS = dict(leaves(main))

SAMPLES: dict[str, Sequence[str]] = {
    "status": ("--window", "10m"),
    "task list": (),
    "task show": ("{failed}", "--show-args", "--traceback", "--handler-log"),
    "task explain": ("{failed}",),
    "task history": ("{failed}", "--show-args", "--traceback"),
    "task state-at": ("{failed}", "2999-01-01T00:00Z"),
    "task reschedule": ("{delayed}", "--in", "2h"),
    "task steps": ("{other}", "--show-results"),
    "task rerun": ("{other}", "--from", "charge", "--yes"),
    "log": ("--last", "2"),
    "enqueue": ("tests.greet", "json_app", "--args", '{{"name": "x"}}', "--dry-run"),
    "emit": ("greeted", "--payload", '{{"name": "x"}}', "--app", "json_app", "--dry-run"),
    "subscription list": (),
    "subscription remove": ("tests.greet", "--dry-run"),
    "task cancel": ("{ready}", "--reason", "not wanted"),
    "task discard": ("{fourth}",),
    "task redrive": ("{third}",),
    "task run-now": ("{delayed}",),
    "task priority": ("{delayed}", "7"),
    "task recover": ("{lost}",),
    "failed list": (),
    "failed redrive": ("{failed}",),
    "failed discard": ("--queue", "default", "--yes"),
    "failed summary": (),
    "workers list": (),
    "workers show": ("{worker}",),
    "workers quiet": ("{worker}",),
    "workers resume": ("{worker}",),
    "workers stacks": ("{worker}",),
    "workers recover": ("{silent}", "--yes"),
    "workers stop": ("{worker}",),
    "db current": (),
    "db history": (),
    "db sql": (),
    "db sizes": (),
    "db end-session": ("4711@2026-11-23T02:30:00Z",),
    "queue list": (),
    "queue show": ("mail",),
    "queue pause": ("mail",),
    "check": ("--pauses",),
    "queue resume": ("mail",),
    "queue limit": ("mail", "--concurrency", "3", "--rate", "9/1m"),
    "queue order": ("mail", "oldest"),
    "queue forget": ("reports",),
    "batch list": (),
    "batch show": ("{batch}",),
    "batch cancel": ("{batch}", "--yes"),
    "relay list": (),
    "relay show": ("orders",),
    "relay pause": ("orders",),
    "relay resume": ("orders",),
    "relay remove": ("orders", "--yes"),
    "schedule list": (),
    "actions": (),
    "schedule show": ("nightly", "--show-args"),
    "schedule next": ("every 15m", "-n", "2"),
    "schedule add": ("added", "tests.work", "every 15m"),
    "schedule add-retention": ("90d",),
    "schedule remove": ("removable",),
    "schedule edit": ("nightly", "--queue", "reports"),
    "schedule pause": ("nightly",),
    "schedule resume": ("nightly",),
    "schedule trigger": ("nightly",),
    "schedule backfill": ("nightly", "--from", "2026-01-01", "--to", "2026-01-03", "--dry-run"),
    "schedule plant": (),
    "partition": ("--dry-run",),
    "prune": ("--older-than", "1d", "--dry-run"),
    "verify": (),
}
"""Arguments that make each command print something. `{name}` is the id of a task from `tasks_of`."""


def outboxq(database, *words: str, exit_code: int = 0) -> Result:
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, [*words, "--json"], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def failed(database, **fields: Any) -> str:
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store)
    data = {"error": "ValueError: no", "exception": "builtins.ValueError", "traceback": "Traceback:\nValueError: no"}
    line = {"at": "2026-11-23T03:00:00+00:00", "level": "INFO", "logger": "shop", "text": "begins"}
    data |= {"log": [line], "log_omitted": 3, "progress": {"fraction": 0.4, "note": "12 of 30"}}
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    return str(handle.id)


LONG_AGO = "2020-01-01T00:00:00.000000+00:00"


def lost_task(database) -> str:
    """Create a running task whose worker has not been seen for years."""
    task_id = database.add(database.store, queue="lost").id
    assert len(database.claim(store=database.store)) == 1
    database.run(f"UPDATE task_executions SET started_at = '{LONG_AGO}' WHERE status = 'Running'")
    database.run(f"UPDATE task_leases SET lease_expires_at = '{LONG_AGO}'")
    return str(task_id)


def tasks_of(database) -> dict[str, str]:
    """Create tasks, settings and schedules, so that each list has an entry. Return the ids of the tasks."""
    lost = lost_task(database)
    found = {"failed": failed(database, queue="mail", partition_key="k"), "other": failed(database, queue="mail")}
    found["lost"] = lost
    database.add(database.store, queue="mail")
    (claim,) = database.claim(store=database.store)
    database.store.steps.complete(claim, NewStep(name="charge", number=1, result="1"))
    database.store.fail(claim, "no")
    found["third"], found["other"] = found["other"], str(claim.id)
    found["fourth"] = failed(database, queue="letters")
    found["ready"] = str(database.add(database.store, queue="mail").id)
    found["delayed"] = str(database.add(database.store, queue="mail", delay=timedelta(hours=1)).id)
    database.store.queues.limit("mail", concurrency=9, create=True)
    database.store.queues.pause("reports", create=True)
    for name in ("nightly", "removable"):
        new = NewSchedule(name=name, task_name="tests.work", rule="30 2 * * *", args="{}")
        database.store.schedules.put(new)
    database.store.schedules.trigger("nightly")
    database.store.relays.declare([NewRelay(name="orders", topics=["order.*"])])
    batch = NewBatch(id=new_batch_id(), name="may")
    database.store.batches.create(batch)
    found["batch"] = str(batch.id)
    found["worker"] = str(uuid4())
    database.store.workers.register(UUID(found["worker"]), label="host:7", concurrency=8, task_names=["tests.work"])
    found["silent"] = str(uuid4())
    database.store.workers.register(UUID(found["silent"]), label="gone:7", concurrency=8, task_names=["tests.work"])
    database.run(f"UPDATE workers SET last_seen_at = '{LONG_AGO}' WHERE label = 'gone:7'")
    return found


def keys(value: object, path: str = "") -> set[str]:
    """Return the paths of all keys, such as `attempts[].number`."""
    match value:
        case dict():
            below = {one: keys(more, f"{path}.{one}" if path else one) for one, more in value.items()}
            return {f"{path}.{one}" if path else one for one in below}.union(
                *(more for one, more in below.items() if one not in FREE)
            )
        case list():
            return set().union(*(keys(one, f"{path}[]") for one in value))
    return set()


def test_every_command_that_prints_has_json():
    assert {name for name, one in COMMANDS.items() if any(p.name == "json" for p in one.params)} == set(SAMPLES)
    assert set(COMMANDS) - set(SAMPLES) == set(WITHOUT)


@pytest.fixture
def application(database, tmp_path, monkeypatch):
    """Create a module `json_app` with a task that subscribes to a topic."""
    (tmp_path / "json_app.py").write_text(APPLICATION.format(url=database.url))
    monkeypatch.syspath_prepend(tmp_path)
    outbox = importlib.import_module("json_app").outbox
    outbox.sync_subscriptions()
    yield
    outbox.store.bound_engine.dispose()
    del sys.modules["json_app"]


@pytest.mark.usefixtures("application")
def test_the_keys_are_stable(database, monkeypatch):
    tasks = tasks_of(database)
    answer = WorkerStacks(text="no task is running", at=database.clock())
    monkeypatch.setattr(WorkerOrders, "stacks", lambda *_: answer)  # no worker is running to answer
    monkeypatch.setattr(Store, "end_session", lambda *_, **__: None)  # there is no such session
    database.store.workers.register(
        uuid4(), label="web-1:7", concurrency=1, task_names=["tests.work"], queues=["reports"], topics=["order.*"]
    )
    printed = {}
    for name, words in SAMPLES.items():
        needs_postgresql = name == "partition" and database.name == "sqlite"
        result = outboxq(
            database,
            *name.split(),
            *(word.format(**tasks) for word in words),
            exit_code=2 if needs_postgresql else int(name == "check"),  # it finds the paused queue
        )
        if needs_postgresql:
            assert result.stdout == ""
            continue
        lines = result.stdout.splitlines()
        assert len(lines) == 1, f"{name} prints one line in a pipe"
        document = json.loads(result.stdout)
        printed[name] = sorted(keys(document))
    if os.environ.get("OUTBOXQ_WRITE_GOLDEN") and database.name == "postgresql":
        GOLDEN.write_text(json.dumps(printed, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    if database.name == "sqlite":  # it has neither partitions nor sizes of single tables
        for name in ("partition", "db sizes"):
            printed.pop(name, None)
            del golden[name]
    assert printed == golden


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith(" list")])
def test_a_list_without_entries_is_an_empty_array(sqlite, name):
    assert json.loads(outboxq(sqlite, *name.split()).stdout) == []


def test_an_error_leaves_stdout_empty_and_sets_the_exit_code(sqlite):
    for words, code in ((("task", "show", NONE), 3), (("schedule", "show", "none"), 3), (("task", "show", "x"), 2)):
        result = outboxq(sqlite, *words, exit_code=code)
        assert (result.stdout, bool(result.stderr)) == ("", True)


def test_arguments_and_tracebacks_are_printed_only_on_request(database):
    task_id = failed(database, args='{"card": "4111-canary"}')
    printed = outboxq(database, "task", "show", task_id).stdout
    assert "canary" not in printed
    assert "Traceback" not in printed
    assert "canary" not in outboxq(database, "task", "list").stdout
    whole = json.loads(outboxq(database, "task", "show", task_id, "--show-args", "--traceback").stdout)
    assert json.loads(whole["args"]) == {"card": "4111-canary"}
    assert whole["attempts"][0]["traceback"].startswith("Traceback")


def test_hostile_names_are_valid_json_and_cannot_control_the_terminal(database):
    hostile = "\x1b[31mred\ttab\nline\u202eleft\x9b2J\x7f<b>\"'"
    failed(database, queue=hostile, task_name=hostile, partition_key=hostile)
    for command in (("task", "list"), ("failed", "list"), ("status",)):
        text = outboxq(database, *command).stdout
        assert text.isascii()
        assert not set("\x1b\x7f") & set(text)
        found = json.loads(text)
        assert any(hostile in one.values() for one in (found["queues"] if command == ("status",) else found))


def test_a_violation_is_printed_as_an_object_with_exit_code_1(sqlite):
    task_id = sqlite.add(sqlite.store).id
    sqlite.run("DELETE FROM task_outbox")
    (broken,) = json.loads(outboxq(sqlite, "verify", exit_code=1).stdout)
    assert broken["examples"] == [str(task_id)]
    (repaired,) = json.loads(outboxq(sqlite, "verify", "--repair", exit_code=1).stdout)
    assert repaired["repaired"] == 1
    assert json.loads(outboxq(sqlite, "verify").stdout) == []
