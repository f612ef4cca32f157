"""Unknown tasks are released for longer each time, reported once, and due again once a worker knows them."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from click.testing import CliRunner

from outboxq import EventType, Outbox, TaskStatus
from outboxq.cli import main
from outboxq.model import Outcome
from outboxq.store import Reason
from outboxq.store.claims.unknown_runs import _make_due
from tests.waiting import PROMPTLY, until

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
NAME = "from.the.future"


@pytest.fixture
def work(database):
    """Start a worker of an application that knows only these tasks. It is stopped after the test."""
    started = []

    def start(*names, **options):
        outbox = Outbox(database.engine)
        for name in names:
            outbox.task(name=name)(lambda: None)
        worker = outbox.worker(**{"poll": 0.05, "drain_timeout": 10, **options})
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


def releases(database, handle):
    history = database.store.history(handle.id)
    return [event for event in history if event.event_type is EventType.RELEASED]


def stranger(database, store=None, **fields):
    return database.add(store or database.store, task_name=NAME, **fields)


def unknown_tasks(store, **options):
    """The object that a worker uses for unknown tasks, with the clock of this store."""
    from outboxq.worker.upkeep.unknown_tasks import UnknownTasks

    spans = {"first_delay": 15 * SECOND, "longest_delay": 900 * SECOND, "limit": timedelta(days=1), **options}
    return UnknownTasks(store, **spans)


def turned_away(database, unknown, **options):
    """Claim all due tasks and release them as a worker that does not know them. Return the outcomes."""
    outcomes = unknown.outcomes(database.claim(100, **options))
    assert database.frozen.finish(outcomes) == frozenset()
    return outcomes


def delays(found):
    return [datetime.fromisoformat(one.event_data["available_at"]) - one.created_at for one in found]


def test_each_consecutive_release_by_any_worker_doubles_the_delay(database, work):
    handle = stranger(database)
    first = work(unknown_task_delay=0.05)
    until(lambda: len(releases(database, handle)) >= 2)
    first.stop()
    work(unknown_task_delay=0.05)
    found = until(lambda: len(found := releases(database, handle)) >= 4 and found)[:4]
    for delay, expected in zip(delays(found), (0.05, 0.1, 0.2, 0.4), strict=True):
        assert 0.74 * expected < delay.total_seconds() < 1.26 * expected
    assert database.store.get(handle.id).attempt == 1


def test_no_release_waits_longer_than_the_longest_delay(database, work):
    handle = stranger(database)
    work(unknown_task_delay=0.05, unknown_task_longest_delay=0.06)
    found = until(lambda: len(found := releases(database, handle)) >= 4 and found)
    assert max(delays(found)).total_seconds() < 0.08


def test_two_thousand_unknown_tasks_cost_less_than_five_events_a_second(database):
    """This is the rate once each release has its maximum length, projected from two tasks in eight hours."""
    unknown = unknown_tasks(database.frozen)
    handles = [stranger(database, database.frozen) for _ in range(2)]
    began = database.clock.now
    while database.clock.now < began + 8 * HOUR:
        turned_away(database, unknown)
        database.clock.now = database.frozen.next_available_at() or began + 8 * HOUR
    events = [event for handle in handles for event in database.frozen.history(handle.id)]
    settled = [event for event in events if began + HOUR < event.created_at <= began + 8 * HOUR]
    assert len(settled) / len(handles) * 2000 / (7 * HOUR).total_seconds() < 5


def test_an_unknown_name_is_logged_once_for_all_its_tasks(database, work, caplog):
    handles = [stranger(database) for _ in range(20)]
    with caplog.at_level(logging.WARNING, "outboxq.worker"):
        work(unknown_task_delay=0.05)
        until(lambda: all(len(releases(database, handle)) >= 2 for handle in handles))
    (line,) = [record.getMessage() for record in caplog.records if NAME in record.getMessage()]
    assert "import its module where the worker starts" in line


def test_any_other_change_restarts_the_count_of_releases(database):
    unknown = unknown_tasks(database.frozen)
    handle = stranger(database, database.frozen)

    def times():
        (outcome,) = turned_away(database, unknown)
        database.clock.advance(2 * HOUR)
        return outcome.data["times"], outcome.data["since"]

    began = database.clock.now
    assert [times() for _ in range(3)] == [(n, began.isoformat(timespec="microseconds")) for n in (1, 2, 3)]
    database.frozen.set_priority(handle.id, 5)
    assert times()[0] == 1
    assert times()[0] == 2
    database.frozen.finish(
        [Outcome(claim=claim, event_type=EventType.SNOOZED) for claim in database.claim()]
    )  # as a worker that knows it
    assert times()[0] == 1
    database.clock.advance(HOUR)
    (claim,) = database.claim(lease=SECOND)
    database.clock.advance(2)
    assert [one.id for one in database.frozen.recover(1)] == [claim.id]
    assert times()[0] == 1


def test_a_task_that_a_live_worker_knows_is_released_for_the_first_delay_only(database):
    unknown = unknown_tasks(database.frozen)
    stranger(database, database.frozen, topic="order.paid")
    for _ in range(3):
        turned_away(database, unknown)
        database.clock.advance(HOUR)
    said = {"concurrency": 1, "task_names": [NAME]}
    database.frozen.workers.register(uuid4(), label="elsewhere:1", queues=["other"], **said)
    database.frozen.workers.register(uuid4(), label="unwilling:1", topics=["order.cancelled"], **said)
    assert [outcome.data["times"] for outcome in turned_away(database, unknown)] == [4]
    database.clock.advance(HOUR)
    database.frozen.workers.register(uuid4(), label="host:1", **said)
    (outcome,) = turned_away(database, unknown)
    assert outcome.data["times"] == 1
    assert outcome.delay < 20 * SECOND
    assert outcome.claim.started_at > database.clock.now - HOUR
    since = datetime.fromisoformat(outcome.data["since"])
    assert database.clock.now - since == 4 * HOUR


def test_a_task_whose_lookup_fails_is_released_for_the_first_delay(database, monkeypatch):
    unknown = unknown_tasks(database.frozen)
    stranger(database, database.frozen)
    turned_away(database, unknown)
    database.clock.advance(HOUR)

    def away(claims):
        raise ConnectionError("away")

    monkeypatch.setattr(database.frozen, "unknown_runs", away)
    (outcome,) = turned_away(database, unknown)
    assert (outcome.event_type, outcome.data["times"]) == (EventType.RELEASED, 1)


def explained(database, handle, reason, *words):
    found = database.frozen.explain(handle.id)
    assert found.reason is reason, found.sentence
    for word in words:
        assert word in found.sentence
    return found.sentence


def test_explain_reports_that_no_live_worker_knows_the_task_and_the_next_try(database):
    handle = stranger(database, database.frozen)
    said = {"label": "host:7", "concurrency": 4}
    database.frozen.workers.register(uuid4(), task_names=["tests.work"], **said)

    def give_back(delay, **data):
        outcomes = [
            Outcome(claim=one, event_type=EventType.RELEASED, delay=delay, data={"reason": "unknown task", **data})
            for one in database.claim()
        ]
        assert database.frozen.finish(outcomes) == frozenset()

    give_back(90 * SECOND)
    words = ("no live worker", f"knows the task {NAME!r}", "import its module", "in 1 min 30 s")
    explained(database, handle, Reason.TASK_UNKNOWN, *words, "at 2030-01-01 12:01:30 UTC")
    database.frozen.queues.pause("default", create=True)
    explained(database, handle, Reason.TASK_UNKNOWN)
    database.frozen.queues.resume("default")
    database.clock.advance(90)
    explained(database, handle, Reason.TASK_UNKNOWN, "import its module")
    give_back(10 * SECOND, times=2, since="2030-01-01T12:00:00.000000+00:00")
    database.frozen.workers.register(uuid4(), task_names=["tests.work"], **said)  # the other was last seen 90 s ago
    explained(database, handle, Reason.TASK_UNKNOWN, "2 times", "since 2030-01-01 12:00:00 UTC", "in 10 s")
    database.frozen.workers.register(uuid4(), task_names=[NAME], **said)
    explained(database, handle, Reason.DELAYED, "due in 10 s")
    database.frozen.schedule_retry(handle.id, database.clock.now + HOUR, 2)
    explained(database, handle, Reason.RETRY_LATER)


def status(database, *arguments):
    result = CliRunner().invoke(main, ["status", "--url", database.url, *arguments], catch_exceptions=False)
    head, *rows = [line.split("\t") for line in result.stdout.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_status_names_tasks_that_no_live_worker_knows(database, work):
    stranger(database, queue="mail")
    database.add(database.store, task_name="later", queue="mail", delay=HOUR)
    worker = work("tests.work", unknown_task_delay=3600)
    until(lambda: status(database)[0]["notes"] == f"unknown task {NAME}", seconds=PROMPTLY)

    def by_task():
        return {line["task"]: line["notes"] for line in status(database, "--by", "task")}

    # The unknown task is reported before it is released, so it may still be running.
    until(lambda: by_task() == {NAME: f"unknown task {NAME}", "later": ""}, seconds=PROMPTLY)
    (mail,) = database.store.stats()
    assert [(one.task_name, one.met_by) for one in mail.unknown] == [(NAME, (worker.label,))]
    work(NAME, queues=["elsewhere"])
    assert status(database)[0]["notes"] == f"unknown task {NAME}"
    database.store.workers.register(uuid4(), label="host:2", concurrency=1, task_names=[NAME], queues=["mail"])
    assert status(database)[0]["notes"] == ""


def test_an_unknown_name_without_waiting_tasks_is_not_reported(database):
    handle = stranger(database, database.frozen)
    said = {"label": "host:1", "concurrency": 1, "task_names": [], "unknown_tasks": [("default", NAME)]}
    database.frozen.workers.register(uuid4(), **said)
    assert [one.task_name for one in database.frozen.stats()[0].unknown] == [NAME]
    database.frozen.cancel(handle.id)
    assert not any(queue.unknown for queue in database.frozen.stats())


def test_a_starting_worker_that_knows_the_tasks_runs_them_immediately(database, work):
    handles = [stranger(database) for _ in range(3)]
    ignorant = work(unknown_task_delay=3600)
    until(lambda: all(releases(database, handle) for handle in handles))
    until(lambda: any(worker.unknown_tasks for worker in database.store.workers.list()), seconds=PROMPTLY)
    ignorant.stop()
    work(NAME)
    for handle in handles:
        until(lambda: database.store.get(handle.id).status is TaskStatus.COMPLETED, seconds=PROMPTLY)  # noqa: B023
        history = database.store.history(handle.id)
        (moved,) = [event for event in history if event.event_type is EventType.RESCHEDULED]
        assert moved.event_data["reason"] == "a worker that knows the task has started"


def test_only_unknown_tasks_that_the_new_worker_accepts_are_made_due(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.claims.unknown_runs._PAGE", 3)
    unknown = unknown_tasks(database.frozen)
    add = database.add
    waiting = [stranger(database, database.frozen, queue=queue) for queue in ("mail", "mail", "mail", "other")]
    keyed = stranger(database, database.frozen, queue="mail", partition_key="k")
    event = stranger(database, database.frozen, queue="mail", topic="order.paid")
    other = add(task_name="other.name", queue="mail")
    by_hand, snoozed = (stranger(database, database.frozen, queue="mail") for _ in range(2))
    turned_away(database, unknown)
    database.frozen.schedule_retry(by_hand.id, database.clock.now + 10 * HOUR, 2)
    database.clock.advance(HOUR)
    for claim in database.claim(100):
        ends = EventType.SNOOZED if claim.id == snoozed.id else EventType.RELEASED
        reason = {} if ends is EventType.SNOOZED else {"reason": "unknown task"}
        database.frozen.finish([Outcome(claim=claim, event_type=ends, delay=HOUR, data=reason)])
    later = stranger(database, database.frozen, queue="mail", delay=HOUR)
    pages = []

    def start(*names, **options):
        pages.clear()
        after = 0
        while after is not None:
            after = database.frozen.make_known_due(names, after=after, **options)
            pages.append(after)
        return {claim.id for claim in database.claim(100)}

    assert start(NAME) == set()
    assert pages == [None], "no worker has met the name, so the outbox is not read"
    met = [("mail", NAME), ("other", NAME), ("mail", "other.name")]
    database.frozen.workers.register(uuid4(), label="x", concurrency=1, task_names=[], unknown_tasks=met)
    database.clock.advance(HOUR - SECOND)  # the worker that met them is gone, but its report remains
    assert start("tests.work") == set()
    assert pages == [None]
    assert start(NAME, queues=["other"]) == {waiting[3].id}
    assert start(NAME, topics=["order.*"]) == {event.id}
    assert start(NAME) == {*(handle.id for handle in waiting[:3]), keyed.id}
    assert len(pages) > 1
    assert database.frozen.get(other.id).status is TaskStatus.READY
    for handle in (by_hand, snoozed, later):
        assert database.frozen.get(handle.id).lease_token < 3
        assert database.frozen.history(handle.id)[-1].event_type is not EventType.RESCHEDULED


def test_an_outbox_entry_that_was_replaced_since_the_lookup_is_not_changed(database):
    handle = stranger(database, database.frozen)
    turned_away(database, unknown_tasks(database.frozen))
    ((entry,),) = database.rows("SELECT id FROM task_outbox")
    database.frozen.set_priority(handle.id, 5)
    database.frozen.run(lambda target: _make_due(database.frozen, target, [entry]))
    events = [event.event_type for event in database.frozen.history(handle.id)]
    assert events.count(EventType.RESCHEDULED) == 1
    assert database.claim() == []
