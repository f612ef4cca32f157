"""`outboxq enqueue`, `emit` and `subscription` check their input before they write anything."""

from __future__ import annotations

import json
import sys
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.model import TaskStatus
from outboxq.model.subscriptions import Subscription

APPLICATION = """
from datetime import date
from outboxq import Outbox, TaskContext
outbox = Outbox({url!r})

@outbox.task(queue="mail", name="shop.send", subscribe="order.*")
def send(ctx: TaskContext, order: int, day: date | None = None): ...

@outbox.task(name="shop.count", subscribe=["order.paid", "*"])
def count(order: object): ...

@outbox.task(name="shop.rest")
def rest(): ...

plain = len
"""


@pytest.fixture
def shop(database, tmp_path, monkeypatch):
    (tmp_path / "cli_shop.py").write_text(APPLICATION.format(url=database.url))
    monkeypatch.syspath_prepend(tmp_path)
    yield database
    sys.modules.pop("cli_shop", None)


def outboxq(database, *arguments: object, exit_code: int = 0, stdin: str | None = None) -> Result:
    words = [str(one) for one in arguments]
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, words, env=environment, input=stdin, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def test_a_task_is_enqueued_with_its_arguments_and_options(shop):
    options = ("--key", "k", "--priority", 5, "--delay", "1h", "--header", "request=a=b", "--max-attempts", 3)
    words = ("enqueue", "cli_shop:send", "--args", '{"order": 7, "day": "2026-11-23"}', *options)
    task = shop.store.get(UUID(outboxq(shop, *words).stdout.strip()))
    assert (task.task_name, task.queue, task.status) == ("shop.send", "mail", TaskStatus.READY)
    assert json.loads(task.args) == {"order": 7, "day": "2026-11-23"}
    assert (task.partition_key, task.priority, task.max_attempts) == ("k", 5, 3)
    assert json.loads(task.headers) == {"request": "a=b"}
    assert shop.store.explain(task.id).due_at > shop.store.now()


@pytest.mark.parametrize(
    "words", [("cli_shop:send",), ("shop.send", "cli_shop:outbox"), ("shop.send", "-A", "cli_shop")]
)
def test_a_task_is_named_by_its_function_or_by_its_name_in_an_application(shop, words):
    found = json.loads(outboxq(shop, "enqueue", *words, "--args", "-", "--json", stdin='{"order": 1}').stdout)
    assert found["task_name"] == "shop.send"
    assert shop.store.get(UUID(found["id"])).args == '{"order":1}'


WRONG = {
    "a missing argument": (
        ("cli_shop:send",),
        1,
        """: order, day; write the arguments as one JSON object: --args '{"order": …}'\n""",
    ),
    "an unknown argument": (("cli_shop:send", "--args", '{"x": 2}'), 1, """--args '{"order": …}'\n"""),
    "an argument too many": (
        ("cli_shop:rest", "--args", '{"x": 2}'),
        1,
        """: none; write the arguments as one JSON object: --args '{}'\n""",
    ),
    "an argument without its option": (
        ("cli_shop:send", "order=secret"),
        2,
        """write arguments as JSON: --args '{"order": 7}'""",
    ),
    "JSON without its option": (("cli_shop:send", '{"order": "secret"}'), 2, "write arguments as JSON: --args"),
    "a wrong type": (
        ("cli_shop:send", "--args", '{"order": "7"}'),
        1,
        "argument order: str does not fit int: pass a value of",
    ),
    "a wrong date": (
        ("cli_shop:send", "--args", '{"order": 7, "day": "soon"}'),
        1,
        "argument day: this string does not fit date: pass a value of",
    ),
    "no JSON": (("cli_shop:send", "--args", "{order: secret}"), 2, "as JSON"),
    "no object": (("cli_shop:send", "--args", "[7]"), 2, "an object"),
    "an unknown task": (("shop.snd", "-A", "cli_shop"), 3, "declares it; did you mean 'shop.send'?"),
    "no application": (("shop.send",), 2, "no application is given"),
    "no task": (("cli_shop:plain", "-A", "cli_shop"), 2, "is not a task"),
    "no attribute": (("cli_shop:nothing", "-A", "cli_shop"), 2, "is not a task"),
    "two times": (("cli_shop:send", "--args", '{"order": 7}', "--delay", "1h", "--at", "2100-01-01T00:00Z"), 1, ""),
    "a long key": (("cli_shop:send", "--args", '{"order": 7}', "--key", "k" * 3000), 1, "partition_key"),
    "a header": (("cli_shop:send", "--args", '{"order": 7}', "--header", "request"), 2, "name=text"),
    "a naive time": (("cli_shop:send", "--args", '{"order": 7}', "--at", "2100-01-01"), 2, "offset"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("dry_run", [False, True], ids=["for-real", "dry-run"])
def test_a_task_that_could_not_run_is_refused_before_anything_is_written(shop, case, dry_run):
    words, code, part = WRONG[case]
    refused = outboxq(shop, "enqueue", *words, *["--dry-run"] * dry_run, exit_code=code)
    assert part in refused.stderr
    assert "secret" not in refused.output
    assert refused.stdout == ""
    assert shop.store.tasks() == []


def test_a_dry_run_describes_the_task_and_writes_nothing(shop):
    words = ("enqueue", "cli_shop:send", "--args", '{"order": 7}', "--dry-run")
    assert (
        "shop.send would be enqueued in the queue 'mail', due now, with {\"order\":7}" in outboxq(shop, *words).stdout
    )
    assert "due at 2100-01-01 00:00:00 UTC" in outboxq(shop, *words, "--at", "2100-01-01T00:00Z").stdout
    found = json.loads(outboxq(shop, *words, "--json", "-q", "other").stdout)
    assert (found["queue"], found["dry_run"], found["id"]) == ("other", True, None)
    assert shop.store.tasks() == []


def test_for_a_taken_idempotency_key_the_existing_task_is_printed(shop):
    words = ("enqueue", "cli_shop:send", "--args", '{"order": 7}', "--idempotency-key", "a")
    first, second = outboxq(shop, *words), outboxq(shop, *words)
    assert first.stdout == second.stdout
    assert (first.stderr, "this task already has the idempotency key" in second.stderr) == ("", True)
    outboxq(shop, *words, "--on-conflict", "raise", exit_code=1)
    assert len(shop.store.tasks()) == 1


def test_a_dry_run_foresees_the_effect_of_a_taken_idempotency_key(shop):
    words = ("enqueue", "cli_shop:send", "--args", '{"order": 7}', "--idempotency-key", "a")
    assert "would be enqueued" in outboxq(shop, *words, "--dry-run").stdout
    owner = outboxq(shop, *words).stdout.strip()
    tried = outboxq(shop, *words, "--dry-run")
    assert tried.stdout == f"nothing would be enqueued: task {owner} already has the idempotency key\n"
    assert json.loads(outboxq(shop, *words, "--dry-run", "--json").stdout)["id"] == owner
    replaced = outboxq(shop, *words, "--dry-run", "--on-conflict", "replace", "-q", "other").stdout
    assert replaced.startswith(f"task {owner}, which has the idempotency key, would be replaced by shop.send in the")
    skipped = outboxq(shop, *words, "--dry-run", "--on-conflict", "skip").stdout
    assert skipped == "nothing would be enqueued: another task already has the idempotency key\n"
    refused = outboxq(shop, *words, "--dry-run", "--on-conflict", "raise", exit_code=1)
    assert (refused.stdout, f"already belongs to task {owner}" in refused.stderr) == ("", True)
    shop.store.cancel(UUID(owner))
    assert "already has" in outboxq(shop, *words, "--dry-run", "--on-conflict", "replace").stdout
    assert [one.queue for one in shop.store.tasks()] == ["mail"]


def test_no_id_is_printed_if_a_task_is_skipped(shop):
    """The handle has the nil UUID, which a script would take for the id of a task."""
    words = ("enqueue", "cli_shop:send", "--args", '{"order": 7}', "--idempotency-key", "a", "--on-conflict", "skip")
    outboxq(shop, *words)
    skipped = outboxq(shop, *words)
    assert skipped.stdout == ""
    assert skipped.stderr == "another task already has the idempotency key; nothing was enqueued\n"
    found = json.loads(outboxq(shop, *words, "--json").stdout)
    assert (found["id"], found["created"]) == (None, False)


def test_an_event_is_emitted_to_the_tasks_that_a_dry_run_names(shop):
    outboxq(shop, "emit", "order.paid")
    assert "event_unrouted was recorded" in outboxq(shop, "emit", "order.paid").stderr
    tried = outboxq(shop, "emit", "order.paid", "--dry-run")
    assert "event_unrouted would be recorded" in tried.stderr
    outboxq(shop, "upgrade", "cli_shop:outbox")
    tried = outboxq(shop, "emit", "order.paid", "--payload", "7", "--dry-run")
    assert [line.split("\t")[0] for line in tried.stdout.splitlines()] == ["task", "shop.count", "shop.send"]
    assert shop.store.tasks() == []
    done = outboxq(shop, "emit", "order.paid", "--payload", "7", "--key", "k")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["task", "shop.count", "shop.send"]
    assert sorted((one.args, one.partition_key) for one in shop.store.tasks()) == [('{"order":7}', "k")] * 2
    few = json.loads(outboxq(shop, "emit", "stock.empty", "--dry-run", "--json").stdout)
    assert few == {"pipeline_execution_id": None, "handles": {"shop.count": None}, "relays": [], "dry_run": True}
    for wrong in (("order.*",), ("order.paid", "--payload", "{"), ("order.paid", "--key", "k" * 3000)):
        for more in ((), ("--dry-run",)):
            assert CliRunner().invoke(main, ["emit", *wrong, *more, "--url", shop.url]).exit_code in {1, 2}
    assert len(shop.store.tasks()) == 2


# --- subscriptions


def subscribed(database, *names: str) -> None:
    known = [Subscription(topic=topic, task_name=name, parameter="order") for name in names for topic in ("a.*", "b")]
    database.store.subscriptions.replace(known)


def test_subscriptions_are_listed_by_topic_and_task(database):
    subscribed(database, "one", "two")

    def listed(*words):
        return [
            tuple(line.split("\t")[:2])
            for line in outboxq(database, "subscription", "list", *words).stdout.splitlines()
        ]

    assert listed()[1:] == [("a.*", "one"), ("a.*", "two"), ("b", "one"), ("b", "two")]
    assert listed("--topic", "a.x", "--task", "two")[1:] == [("a.*", "two")]
    (first, *_) = json.loads(outboxq(database, "subscription", "list", "--json").stdout)
    assert (first["topic"], first["lease"]) == ("a.*", 60.0)


def test_subscriptions_are_removed_only_after_confirmation(database):
    subscribed(database, "one", "two", "three")
    left = lambda: {one.task_name for one in database.store.subscriptions.list()}  # noqa: E731
    refused = outboxq(database, "subscription", "remove", "one", "two", exit_code=2)
    assert "--yes" in refused.stderr
    tried = outboxq(database, "subscription", "remove", "one", "two", "--dry-run")
    assert "4 would be removed" in tried.stdout
    assert (
        "nothing was removed" in outboxq(database, "subscription", "remove", "one", "no", "--yes", exit_code=3).stderr
    )
    assert left() == {"one", "two", "three"}
    assert database.store.actions.list() == []
    assert outboxq(database, "subscription", "remove", "one", "two", "--yes").stdout == "4 removed\n"
    assert left() == {"three"}
    outboxq(database, "subscription", "remove", "three", "--yes", "--reason", "code is gone")
    last, first = database.store.actions.list()
    assert (first.action, first.target, first.details) == ("subscription remove", None, {"tasks": ["one", "two"]})
    assert (first.changed, first.reason) == (4, None)
    assert (last.target, last.reason, last.details) == ("three", "code is gone", {})
