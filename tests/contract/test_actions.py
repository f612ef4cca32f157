"""Each change by a person is recorded in the same transaction: operator, interface, action, reason and number of changes."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text

from outboxq import Outbox
from outboxq.errors import InvalidArgument, InvalidTransition, QueueNotFound, TaskNotFound
from outboxq.model import EventType, TaskStatus
from outboxq.model.actions import Interface, NewAction, Operator
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule
from outboxq.model.workers import WorkerOrder
from outboxq.operating.verb import Noun, State, Verb
from outboxq.operating.verbs import RECORDED, VERBS, noun_of, verbs_of
from outboxq.store import HealthLimits, Rule
from outboxq.store.actions import KEPT
from tests.contract import helpers
from tests.contract.test_cli_operators import failed as failed_now
from tests.contract.test_cli_operators import outboxq

ANN = Operator(interface=Interface.DASHBOARD, name="ann")
VALUES = {
    "priority": {"priority": 5},
    "reschedule": {"delay": timedelta(hours=1)},
    "limit": {"concurrency": 3, "rate": ..., "rate_per_key": ..., "concurrency_per_key": None},
    "order": {"fair": False},
    "edit": {"rule": "every 7200", "args": '{"days":7}'},
}
"""The values of the verbs that require values."""


def failed(database, **fields):
    handle = database.add(**fields)
    database.frozen.fail(database.claim()[0], "E")
    return handle


def target_for(database, verb: Verb):
    """Return a target to which the verb can be applied."""
    store = database.frozen
    match verb.noun:
        case Noun.TASK:
            return task_for(database, verb)
        case Noun.QUEUE:
            store.queues.pause("mail", create=True)
            if verb.name == "pause":
                store.queues.resume("mail")
                database.add(queue="mail")
            return "mail"
        case Noun.SCHEDULE:
            new = NewSchedule(name="nightly", task_name="tests.work", rule="every 3600", tz="UTC", args="{}")
            store.schedules.put(new)
            if verb.name == "resume":
                store.schedules.pause(new.name)
            return new.name
        case Noun.BATCH:
            return filled_batch(database, 1)
        case Noun.RELAY:
            return relay_for(store, verb)
        case Noun.WORKER:
            return worker_for(database, verb)
        case Noun.SESSION:
            return session_for(database)
    raise AssertionError(verb)


_OPEN = []  # a connection without a reference would be rolled back


def session_for(database) -> str:
    """Open a session that holds a snapshot until the test ends it."""
    session = create_engine(database.url, isolation_level="REPEATABLE READ").connect()
    session.execute(text("SELECT 1 FROM task_executions"))
    _OPEN.append(session)
    return next(one.session for one in database.store.held_snapshots() if one.session)


def relay_for(store, verb: Verb) -> str:
    store.relays.declare([NewRelay(name="orders", topics=("order.*",))])
    if verb.name == "resume":
        store.relays.pause("orders")
    return "orders"


def worker_for(database, verb: Verb):
    store = database.frozen
    worker = uuid4()
    store.workers.register(worker, label="host:1", concurrency=1, task_names=[])
    if verb.name == "resume":
        store.worker_orders.give(worker, WorkerOrder.QUIET)
    if verb.name == "recover":
        database.add(lease=timedelta(hours=1))
        database.claim(worker_id=worker)
        database.clock.advance(timedelta(minutes=10))
    return worker


def task_for(database, verb: Verb):
    if verb.offered(State(status=TaskStatus.FAILED)) and verb.name != "reschedule":
        return failed(database).id
    if verb.name == "cancel-now":
        task_id = database.add().id
        database.claim()
        return task_id
    if verb.name == "recover":
        return lost(database)
    return database.add(delay=timedelta(hours=2)).id


def lost(database):
    """Return the id of a running task whose worker has been silent for ten minutes."""
    task_id = database.add(lease=timedelta(hours=1)).id
    database.claim()
    database.clock.advance(timedelta(minutes=10))
    return task_id


@pytest.mark.parametrize("verb", VERBS, ids=lambda one: f"{one.noun}-{one.name}")
def test_each_verb_is_recorded_with_operator_target_and_reason(database, verb):
    if verb.noun is Noun.SESSION and database.name == "sqlite":
        with pytest.raises(InvalidArgument, match="only PostgreSQL sessions"):
            verb.do(database.frozen, "7@2030-01-01T12:00:00Z", operator=ANN)
        assert database.frozen.actions.list() == []
        return
    target, store = target_for(database, verb), database.frozen
    values = VALUES.get(verb.name, {})
    verb.do(store, target, operator=ANN, reason="provider down", **values)
    [found] = store.actions.list()
    assert (found.operator, found.interface, found.reason) == ("ann", "dashboard", "provider down")
    assert (found.action, found.target, found.changed) == (verb.recorded_as, str(target), 1)
    assert (found.action in RECORDED, noun_of(found.action)) == (True, verb.noun)
    assert found.at == database.clock()
    assert found.details == {
        "priority": {"priority": 5},
        "reschedule": {"delay": 3600.0},
        "limit": {"concurrency": 3, "concurrency_per_key": None},
        "order": {"fair": False},
        "edit": {"rule": "every 7200", "args": "changed"},
        "cancel-now": {"force": True},
    }.get(verb.name, {})


BEN = Operator(interface=Interface.ADMIN, name="ben")
ALREADY = {
    "queue-pause": "the queue 'mail' was already paused: provider down (by ann in the dashboard)",
    "queue-resume": "the queue 'mail' was not paused",
    "queue-limit": "the queue 'mail' already had these limits",
    "queue-order": "the queue 'mail' already had this order",
    "schedule-pause": "the schedule 'nightly' was already paused: provider down (by ann in the dashboard)",
    "schedule-resume": "the schedule 'nightly' was not paused",
    "schedule-edit": "the schedule 'nightly' already had these values",
    "relay-pause": "the relay 'orders' was already paused",
    "relay-resume": "the relay 'orders' was not paused",
    "worker-quiet": "the worker {} was already told to be quiet",
    "worker-resume": "the worker {} was not told to be quiet or to stop",
    "worker-stop": "the worker {} was already told to stop",
    "worker-recover": "the worker {} holds no running tasks",
    "task-cancel": "task {} was already asked to stop, and will run until the handler ends",
    "task-priority": "task {} already had priority 5",
    "task-run-now": "task {} was already due",
}
"""The message of each verb that a colleague has already carried out."""


@pytest.mark.parametrize("name", ALREADY)
def test_a_verb_that_changes_nothing_reports_this_and_leaves_no_record(database, name):
    verb = next(one for one in VERBS if f"{one.noun}-{one.name}" == name)
    target, store, values = target_for(database, verb), database.frozen, VALUES.get(verb.name, {})
    if name == "task-cancel":
        target = database.add().id
        database.claim()
    if name == "queue-resume":  # otherwise, the queue would be unknown afterwards
        database.add(queue=target)
    first = verb.do(store, target, operator=ANN, reason="provider down", **values)
    second = verb.do(store, target, operator=BEN, reason="me too", **values)
    assert (first.changes, second.changes) == (1, 0)
    assert second.sentence.startswith(ALREADY[name].format(target))
    assert [one.operator for one in store.actions.list()] == ["ann"]


def test_only_one_of_two_simultaneous_pauses_is_recorded(database, monkeypatch):
    """The second person reads the settings before the first commits, but still gets the correct answer."""
    store, pause = database.store, next(one for one in VERBS if (one.noun, one.name) == (Noun.QUEUE, "pause"))
    real = store.queues._is_known

    def first_one_else(target, queue):
        monkeypatch.undo()
        known = real(target, queue)
        if database.engine.dialect.name == "postgresql":  # SQLite allows only one writer
            pause.do(database.store, queue, operator=ANN)
        return known

    if database.engine.dialect.name == "sqlite":
        pause.do(store, "default", operator=ANN)
    monkeypatch.setattr(store.queues, "_is_known", first_one_else)
    assert pause.do(store, "default", operator=BEN).changes == 0
    assert [one.operator for one in store.actions.list()] == ["ann"]


def test_a_refused_change_leaves_no_record(database):
    task, store = database.add(), database.frozen
    for verb in verbs_of(Noun.TASK):
        if verb.name in {"redrive", "discard"}:
            with pytest.raises(InvalidTransition):
                verb.do(store, task.id, operator=ANN)
        with pytest.raises(TaskNotFound):
            verb.do(store, uuid4(), operator=ANN, **VALUES.get(verb.name, {}))
    [pause, *_] = verbs_of(Noun.QUEUE)
    with pytest.raises(QueueNotFound):
        pause.do(store, "nosuchqueue", operator=ANN)
    assert store.actions.list() == []


def test_a_rollback_by_the_caller_undoes_the_change_and_its_record(database):
    store, [pause, *_] = database.store, verbs_of(Noun.QUEUE)
    with helpers.transaction(database) as connection:
        pause.do(store, "default", operator=ANN, using=connection)
        assert [one.action for one in store.actions.list(using=connection)] == ["queue pause"]
        connection.rollback()
    assert store.actions.list() == []
    assert store.queues.settings() == []


def test_a_transaction_of_the_caller_stays_usable_after_a_refused_change(database):
    task, store = database.add(database.store), database.store
    redrive = next(one for one in verbs_of(Noun.TASK) if one.name == "redrive")
    with helpers.transaction(database) as connection:
        with pytest.raises(InvalidTransition):
            redrive.do(store, task.id, operator=ANN, using=connection)
        store.cancel(task.id, using=connection)
        connection.commit()
    assert store.get(task.id).status is TaskStatus.CANCELLED
    assert store.actions.list() == []


def test_a_change_whose_commit_response_was_lost_is_made_and_recorded_once(database, monkeypatch):
    handle = failed(database)
    redrive = next(one for one in verbs_of(Noun.TASK) if one.name == "redrive")
    outcome = redrive.do(helpers.lossy(database, monkeypatch), handle.id, operator=ANN)
    assert outcome.predicate == "was redriven from the first attempt, due now"
    assert [event.event_type for event in database.frozen.history(handle.id)].count(EventType.REQUEUED) == 1
    assert [one.changed for one in database.frozen.actions.list()] == [1]


def test_a_bulk_change_is_counted_in_each_of_its_transactions(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.tasks.cancelling.BATCH", 2)
    store = database.frozen
    for _ in range(5):
        database.add(queue="mail")
    action, seen = NewAction(operator=ANN, action="task cancel", details={"queue": "mail"}), []

    def on_progress(number: int) -> None:
        seen.append((number, store.actions.list()[0].changed))

    store.cancel_all(queue="mail", on_progress=on_progress, on_change=store.actions.adding(action))
    assert seen == [(2, 2), (4, 4), (5, 5)]
    [found] = store.actions.list()
    assert (found.id, found.target, found.details, found.changed) == (action.id, None, {"queue": "mail"}, 5)


def test_a_bulk_change_that_another_process_makes_adds_to_its_record(database):
    store = database.frozen
    handles = [failed(database) for _ in range(3)]
    action = NewAction(operator=ANN, action="failed discard")
    store.run(partial(begin, store, action))
    assert store.actions.list()[0].changed == 0
    store.dead_letters.discard_all(on_change=store.actions.adding_to(action.id))
    assert store.actions.list()[0].changed == len(handles)


def begin(store, action, target):
    store.actions.begin(action, using=target)


def test_a_batch_is_cancelled_with_a_record_of_its_tasks(database):
    store, batch_id = database.frozen, filled_batch(database, 3)
    [cancel] = verbs_of(Noun.BATCH)
    cancel.do(store, batch_id, operator=ANN, reason="wrong file")
    [found] = store.actions.list()
    assert (found.action, found.target, found.changed) == ("batch cancel", str(batch_id), 3)


def filled_batch(database, size):
    batch = NewBatch(id=new_batch_id())
    database.frozen.batches.create(batch)
    for _ in range(size):
        database.add(pipeline_execution_id=batch.id)
    database.frozen.batches.close(batch.id)
    return batch.id


def test_records_are_listed_newest_first_by_person_action_and_target(database):
    store = database.frozen
    ben = Operator(interface=Interface.COMMAND_LINE)
    pause, resume = verbs_of(Noun.QUEUE)[:2]
    for queue, verb, operator in (("a", pause, ANN), ("b", pause, ben), ("a", resume, ben)):
        verb.do(store, queue, operator=operator, **({"create": True} if verb is pause else {}))
        database.clock.advance(timedelta(hours=1))
    listed = store.actions.list()
    assert [(one.target, one.action) for one in listed] == [
        ("a", "queue resume"),
        ("b", "queue pause"),
        ("a", "queue pause"),
    ]
    assert listed[0].operator is None
    assert store.actions.list(target="a") == [listed[0], listed[2]]
    assert store.actions.list(operator="ann") == [listed[2]]
    assert store.actions.list(action="queue pause", target="b") == [listed[1]]
    assert store.actions.list(limit=1) == listed[:1]
    assert store.actions.list(before=listed[0].id, limit=1) == [listed[1]]
    assert store.actions.list(since=listed[1].at) == listed[:2]


def test_invalid_characters_are_replaced_and_long_reasons_shortened(database):
    store, [pause, *_] = database.frozen, verbs_of(Noun.QUEUE)
    pause.do(
        store, "default", operator=Operator(interface=Interface.ADMIN, name="a\0b"), reason="no\ud800!" + "x" * 9_000
    )
    [found] = store.actions.list()
    assert found.operator == "a\ufffdb"
    assert found.reason is not None
    assert found.reason.startswith("no\ufffd!x")
    assert len(found.reason) < 1_200


def test_prune_keeps_records_for_90_days(database):
    store, [pause, *_] = database.frozen, verbs_of(Noun.QUEUE)
    pause.do(store, "default", operator=ANN)
    database.clock.advance(KEPT)
    store.prune(timedelta(0))
    assert len(store.actions.list()) == 1
    database.clock.advance(timedelta(seconds=1))
    store.prune(timedelta(days=365))
    assert len(store.actions.list()) == 1
    store.prune(timedelta(0))
    assert store.actions.list() == []


def test_the_operator_and_the_reason_of_a_pause_are_reported(database):
    store, [pause, resume, *_] = database.frozen, verbs_of(Noun.QUEUE)
    task = database.add()
    pause.do(store, "default", operator=ANN, reason="provider down")
    pause.do(store, "default", operator=Operator(interface=Interface.ADMIN), reason="again")
    [settings] = store.queues.settings()
    assert settings.pause_reason == "provider down (by ann in the dashboard)"
    database.clock.advance(timedelta(minutes=43))
    assert ", for 43 min: provider down (by ann in the dashboard); resume it" in store.explain(task.id).sentence
    [problem] = [one for one in store.health(HealthLimits(no_worker=False)) if one.rule is Rule.OLDEST]
    assert problem.sentence.endswith("the queue has been paused for 43 min: provider down (by ann in the dashboard)")
    store.queues.limit("default", concurrency=3)
    resume.do(store, "default", operator=ANN)
    [settings] = store.queues.settings()
    assert (settings.paused_at, settings.pause_reason) == (None, None)


# The command line


@pytest.mark.in_turn
def test_a_command_is_recorded_with_the_name_of_the_operator_or_the_login(database, monkeypatch):
    outbox = Outbox(create_engine(database.url))
    database.add(database.store)
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    outboxq(database, "queue", "pause", "default", "--reason", "provider down")
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    outboxq(database, "queue", "resume", "default")
    rows = [line.split("\t") for line in outboxq(database, "actions").stdout.splitlines()]
    assert rows[0] == ["at", "who", "with", "action", "on", "changes", "reason", "details"]
    assert [row[1:] for row in rows[1:]] == [
        [
            *("ann", "command line", "queue resume", "default", "1", ""),
            "pause_reason=provider down (by root on the command line)",
        ],
        ["root", "command line", "queue pause", "default", "1", "provider down", ""],
    ]
    found = json.loads(outboxq(database, "actions", "--operator", "ann", "--since", "1h", "--json").stdout)
    assert [(one["action"], one["target"]) for one in found] == [("queue resume", "default")]
    outbox.store.bound_engine.dispose()


@pytest.mark.in_turn
def test_an_operator_whose_login_has_no_name_is_unknown(database, monkeypatch):
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.delenv("OUTBOXQ_OPERATOR", raising=False)
    monkeypatch.setattr("getpass.getuser", nobody)
    task = database.add(database.store)
    outboxq(database, "task", "cancel", task.id)
    [found] = database.store.actions.list()
    assert (found.operator, found.target) == (None, str(task.id))
    assert database.store.history(task.id)[-1].event_data["reason"] == "on the command line"


@pytest.mark.in_turn
def test_bulk_commands_are_recorded_with_their_filters(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    for _ in range(3):
        database.add(database.store, queue="mail")
    outboxq(database, "task", "cancel", "-q", "mail", "--limit", 2, "--yes", "--reason", "spam")
    [found] = database.store.actions.list()
    assert (found.action, found.target, found.changed) == ("task cancel", None, 2)
    assert found.details == {"queue": "mail", "limit": 2}
    cancelled = database.store.tasks(status=TaskStatus.CANCELLED)
    assert {database.store.history(one.id)[-1].event_data["reason"] for one in cancelled} == {
        "spam (by ann on the command line)"
    }


@pytest.mark.in_turn
def test_several_ids_are_recorded_one_by_one(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    tasks = [failed(database) for _ in range(2)]
    outboxq(database, "failed", "redrive", *(one.id for one in tasks), "--yes")
    assert {(one.action, one.target) for one in database.store.actions.list()} == {
        ("failed redrive", str(one.id)) for one in tasks
    }


@pytest.mark.in_turn
def test_a_stored_schedule_and_a_backfill_are_recorded(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    outboxq(database, "schedule", "add", "nightly", "tests.work", "every 1h", "--reason", "a new report")
    past = ("--from", "2026-11-01T00:00Z", "--to", "2026-11-01T03:00Z")
    outboxq(database, "schedule", "backfill", "nightly", *past, "--yes", "--reason", "an outage")
    outboxq(database, "schedule", "add-retention", "90d", "--reason", "the law")
    retention, backfill, add = database.store.actions.list()
    assert [one.reason for one in (add, backfill, retention)] == ["a new report", "an outage", "the law"]
    assert (backfill.action, backfill.target, backfill.changed) == ("schedule backfill", "nightly", 3)
    assert (add.action, add.target, add.details["rule"]) == ("schedule add", "nightly", "every 3600")
    assert retention.details["age_seconds"] == 90 * 86_400


def test_a_prune_is_recorded_with_its_task_count(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    tasks = [failed_now(database) for _ in range(3)]
    outboxq(database, "prune", "--older-than", "0s", "--yes")
    assert database.store.actions.list() == []
    outboxq(database, "prune", "--older-than", "0s", "--failed", "--yes", "--reason", "fixed by hand")
    [found] = database.store.actions.list()
    assert (found.action, found.target, found.changed, found.reason) == ("prune", None, len(tasks), "fixed by hand")
    assert found.details.keys() == {"before", "failed"}
    assert noun_of(found.action) is None


@pytest.mark.in_turn
def test_a_command_without_effect_reports_this_on_stderr(database):
    database.add(database.store)
    assert json.loads(outboxq(database, "queue", "pause", "default", "--json").stdout)["changed"] is True
    again = outboxq(database, "queue", "pause", "default", "--json")
    assert json.loads(again.stdout)["changed"] is False
    assert again.stderr.startswith("nothing was changed: the queue 'default' was already paused: ")
    outboxq(database, "schedule", "add", "nightly", "tests.work", "every 1h")
    again = outboxq(database, "schedule", "resume", "nightly", "--json")
    assert json.loads(again.stdout)["changed"] is False
    assert again.stderr == "nothing was changed: the schedule 'nightly' was not paused\n"


@pytest.mark.in_turn
def test_a_schedule_that_is_added_again_unchanged_is_not_recorded(database):
    """A deployment script that stores its schedules each time must not fill the list of changes."""
    for words in (("add", "nightly", "tests.work", "every 1h"), ("add-retention", "90d")):
        assert json.loads(outboxq(database, "schedule", *words, "--json").stdout)["changed"] is True
        again = outboxq(database, "schedule", *words, "--json")
        stored = json.loads(again.stdout)
        assert stored["changed"] is False
        assert again.stderr == f"nothing was changed: the schedule {stored['name']!r} already had these values\n"
    outboxq(database, "schedule", "add-retention", "30d")
    recorded = [(one.action, one.target) for one in database.store.actions.list()]
    retention = ("schedule add-retention", "outboxq.retention")
    assert recorded == [retention, retention, ("schedule add", "nightly")]


@pytest.mark.in_turn
def test_listing_actions_by_a_mistyped_name_is_refused(database):
    assert "is not one of" in outboxq(database, "actions", "--action", "queue paus", exit_code=2).stderr
    assert outboxq(database, "actions", "--action", "schedule add-retention").stdout.count("\n") == 1
