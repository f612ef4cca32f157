"""Settings are refused for a queue that nothing uses, such as a mistyped name."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner

from outboxq import Outbox, QueueNotFound
from outboxq.cli import main
from outboxq.errors import InvalidTransition
from outboxq.model.schedules import NewSchedule
from outboxq.model.subscriptions import Subscription
from tests.contract import helpers

MINUTE = timedelta(minutes=1)
CHANGES = {
    "pause": lambda queues, name, **how: queues.pause(name, **how),
    "limit": lambda queues, name, **how: queues.limit(name, concurrency=2, rate_per_key=(1, MINUTE), **how),
    "order": lambda queues, name, **how: queues.order(name, fair=False, **how),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_setting_for_an_unknown_queue_is_refused_without_create(database, change):
    database.add(queue="mail")
    queues = database.frozen.queues
    with pytest.raises(
        QueueNotFound, match=r"there is no queue 'mial': .*; did you mean 'mail'\? To set it up .* pass create=True$"
    ):
        change(queues, "mial")
    with (
        helpers.transaction(database) as connection,
        pytest.raises(QueueNotFound, match="no queue 'sms'.*; to set it up .* create=True"),
    ):
        change(queues, "sms", using=connection)
    assert queues.settings() == []
    assert change(queues, "sms", create=True) == queues.settings()[0]
    assert change(queues, "sms").queue == "sms"


def test_resuming_an_unknown_queue_is_refused_without_mentioning_create(database):
    database.frozen.queues.pause("typo", create=True)
    with pytest.raises(QueueNotFound, match=r"there is no queue 'typo2': .*; did you mean 'typo'\?$"):
        database.frozen.queues.resume("typo2")
    assert [one.queue for one in database.frozen.queues.settings()] == ["typo"]
    database.frozen.queues.resume("typo")
    assert database.frozen.queues.settings() == []


KNOWN = {
    "a waiting task": lambda db: db.add(queue="mail"),
    "a running task": lambda db: helpers.claimed(db, queue="mail"),
    "a dead letter": lambda db: helpers.dead(db, queue="mail"),
    "a task that has completed": lambda db: db.frozen.complete(helpers.claimed(db, queue="mail")),
    "a subscription": lambda db: db.frozen.subscriptions.replace(
        [Subscription(topic="order.paid", task_name="tests.work", parameter="order", queue="mail")],
        tasks=["tests.work"],
    ),
    "a schedule": lambda db: db.frozen.schedules.put(
        NewSchedule(name="nightly", task_name="tests.work", rule="30 2 * * *", args="{}", queue="mail")
    ),
    "a live worker": lambda db: db.frozen.workers.register(
        db.worker, label="web-1:7", queues=["mail"], concurrency=1, task_names=[]
    ),
    "a sample": lambda db: db.run(
        "INSERT INTO queue_samples (at, queue, due, delayed, running, failed, exact) "
        "VALUES ('2026-01-01T00:00:00.000000+00:00', 'mail', 1, 0, 0, 0, true)"
    ),
}


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_a_queue_in_use_is_known(database, known):
    assert not database.frozen.queues.is_known("mail")
    known(database)
    assert database.frozen.queues.is_known("mail")
    assert database.frozen.queues.pause("mail").paused_at is not None


def test_the_default_queue_and_queues_of_declared_tasks_are_known(database):
    outbox = Outbox(database.engine)
    assert outbox.store.queues.is_known("default")
    with pytest.raises(QueueNotFound):
        outbox.store.queues.pause("mail")
    outbox.task(name="tests.send", queue="mail")(lambda: None)
    assert outbox.store.queues.pause("mail").queue == "mail"


def test_the_settings_of_a_queue_without_tasks_can_be_forgotten(database):
    queues = database.frozen.queues
    limits = {"concurrency": 2, "concurrency_per_key": 3}
    queues.limit("typo", **limits, create=True)
    queues.pause("typo")
    gone = queues.forget("typo")
    assert (gone.queue, gone.paused_at, gone.concurrency, gone.concurrency_per_key) == (
        "typo",
        database.clock.now,
        2,
        3,
    )
    assert queues.settings() == []
    assert not queues.is_known("typo")
    assert database.rows("SELECT * FROM queue_settings") == []
    with pytest.raises(QueueNotFound, match="the queue 'typo' has no settings"):
        queues.forget("typo")


@pytest.mark.parametrize("state", ["a waiting task", "a running task", "a dead letter"])
def test_the_settings_of_a_queue_with_tasks_are_not_forgotten(database, state):
    KNOWN[state](database)
    paused = database.frozen.queues.pause("mail")
    with pytest.raises(InvalidTransition, match="the queue 'mail' has tasks, so its settings cannot be removed"):
        database.frozen.queues.forget("mail")
    assert database.frozen.queues.settings() == [paused]


# -- Commands


def outboxq(database, *words: str, code: int = 0):
    result = CliRunner().invoke(main, words, env={"OUTBOXQ_DATABASE_URL": database.url}, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize(
    "words",
    [("pause", "mial"), ("resume", "mial"), ("limit", "mial", "--concurrency", "2"), ("order", "mial", "oldest")],
    ids=" ".join,
)
def test_a_command_on_a_mistyped_queue_fails_and_suggests_the_nearest_name(database, words):
    database.add(queue="mail")
    error = outboxq(database, "queue", *words, code=3).stderr
    assert "there is no queue 'mial'" in error
    assert "did you mean 'mail'?" in error
    assert ("To set it up before its first task, pass --create" in error) == (words[0] != "resume")
    assert "create=True" not in error
    assert database.store.queues.settings() == []


def test_create_sets_up_a_queue_before_its_first_task_and_forget_removes_it(database):
    assert outboxq(database, "queue", "pause", "sms", "--create").stderr == ""
    outboxq(database, "queue", "limit", "sms", "--concurrency", "2")
    assert "sms" in outboxq(database, "queue", "list").stdout
    assert outboxq(database, "queue", "forget", "sms").stdout.splitlines()[1].startswith("sms\t")
    assert "has no settings" in outboxq(database, "queue", "forget", "sms", code=3).stderr
    database.add(database.store, queue="sms")
    outboxq(database, "queue", "pause", "sms")
    assert "has tasks" in outboxq(database, "queue", "forget", "sms", code=1).stderr
