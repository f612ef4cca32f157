"""The overview: the numbers of all queues, and the problems that need attention."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, OnDeadLetter, Outcome
from outboxq.model.schedules import NewSchedule
from outboxq.store import Count, HealthLimits, QueueSample, QueueSettings, Rule, Store
from outboxq.store.numbers import live
from outboxq.store.numbers import overview as statements
from tests.contract import helpers

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def register(database, *queues, tasks=("tests.work",), store=None, **options):
    worker_id = uuid4()
    options = {"queues": list(queues) or None, "label": "ant:1", "concurrency": 4, "task_names": tasks, **options}
    (store or database.frozen).workers.register(worker_id, **options)
    return worker_id


def failed(database, **fields):
    claim = helpers.claimed(database, **fields)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="no")])
    return claim.id


def broken(database, limits=None):
    return [(one.rule, *one.subjects) for one in database.frozen.health(limits)]


@pytest.fixture
def several(database):
    """A paused queue with waiting tasks, queues with other tasks, one with only settings, and one with only a worker."""
    failed(database, queue="bad")
    helpers.claimed(database, queue="run")
    for _ in range(3):
        database.add(queue="mail")
    database.add(queue="mail", partition_key="k")
    database.add(queue="mail", delay=HOUR)
    database.frozen.queues.pause("mail", create=True)
    database.frozen.queues.limit("slow", concurrency=2, rate=(5, 60), create=True)
    register(database, "idle", "mail")
    return database


def test_the_overview_has_the_same_numbers_as_stats(several):
    found = several.frozen.overview()
    assert (found.at, found.live_workers) == (several.clock.now, 1)
    assert (found.due, found.delayed, found.failed) == (Count(number=4), Count(number=1), Count(number=1))
    assert (found.running, found.oldest_due_at) == (1, several.clock.now)
    assert [one.queue for one in found.queues] == ["bad", "idle", "mail", "run", "slow"]
    same = ("due", "delayed", "running", "failed", "oldest_due_at", "paused", "concurrency", "rate", "live_workers")
    exact = {one.queue: one for one in several.frozen.stats(queues=[one.queue for one in found.queues])}
    for one in found.queues:
        assert [getattr(one, name) for name in same] == [getattr(exact[one.queue], name) for name in same], one.queue
    assert found.settings == several.frozen.queues.settings()
    assert found.workers == several.frozen.workers.list()


def test_retries_count_as_delayed_unless_they_are_requested(database):
    claim = helpers.claimed(database, queue="mail")
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="no", delay=HOUR)])
    database.add(queue="mail", delay=HOUR)
    found = database.frozen.overview()
    assert (found.delayed, found.retrying) == (Count(number=2), Count(number=0))
    found = database.frozen.overview(retries=True)
    assert (found.delayed, found.retrying) == (Count(number=1), Count(number=1))
    assert [(one.delayed, one.retrying) for one in found.queues] == [(1, 1)]


def test_all_queues_are_listed_with_or_without_settings(several):
    settings = {one.queue: one for one in several.frozen.queues.settings()}
    names = ["bad", "idle", "mail", "run", "slow"]
    assert several.frozen.queues.list() == [settings.get(name) or QueueSettings(queue=name) for name in names]
    several.frozen.samples.record([QueueSample(queue="past", due=1)])
    assert several.frozen.queues.list()[3].queue == "past"


def test_numbers_are_counted_up_to_a_bound_and_then_sampled(database, monkeypatch):
    monkeypatch.setattr(live, "BOUND", 3)
    for _ in range(5):
        database.add(queue="mail")
        failed(database, queue="bad", priority=1)
    database.add(queue="few")
    database.frozen.samples.record(database.frozen.samples.count())
    database.clock.advance(10)
    found = database.frozen.overview()
    few, mail = (next(one for one in found.queues if one.queue == name) for name in ("few", "mail"))
    assert (mail.due, mail.due_at_least, mail.sample.due) == (3, True, 5)
    assert mail.sample_age == timedelta(seconds=10)
    assert (few.due, few.due_at_least) == (1, False)
    assert (found.due, found.failed.at_least) == (Count(number=4, at_least=True), True)


def statements_of(database, call):
    """The number of statements that a call sends, not counting those that begin and end its transaction."""
    sent = []

    def see(_connection, _cursor, statement, *_):
        if not statement.startswith(("BEGIN", "SET", "ROLLBACK", "COMMIT")):
            sent.append(statement)

    event.listen(database.engine, "before_cursor_execute", see)
    try:
        call()
    finally:
        event.remove(database.engine, "before_cursor_execute", see)
    return len(sent)


def test_few_statements_are_sent(several):
    few = 5 if several.name == "sqlite" else 7  # one of them groups the recent dead letters
    for call, most in ((several.frozen.overview, few), (several.frozen.health, few), (several.frozen.change_mark, 1)):
        call()
        assert statements_of(several, call) == most


# Problems


def test_nothing_needs_attention_while_all_is_well(database):
    register(database)
    database.frozen.complete(helpers.claimed(database))
    database.add()
    assert broken(database) == []
    assert database.frozen.overview().problems == []


def test_due_tasks_without_a_worker_and_old_ones_need_attention(database):
    database.add(queue="mail")
    assert broken(database) == [(Rule.NO_WORKER, "mail")]
    (problem,) = database.frozen.health()
    assert "no live worker serves the queue 'mail', which has 1 task due" in problem.sentence
    assert problem.cures[0].command == ("worker", "-q", "mail")
    register(database, "mail")
    assert broken(database) == []
    database.clock.advance(timedelta(minutes=5))
    worker = register(database, "mail")
    assert broken(database) == []
    database.clock.advance(1)
    assert broken(database) == [(Rule.OLDEST, "mail")]
    assert broken(database, HealthLimits(oldest=None)) == []
    database.frozen.queues.pause("mail", create=True)
    database.clock.advance(60)
    (problem,) = database.frozen.health()
    assert "due for 6 min 1 s; the queue has been paused for 1 min" in problem.sentence
    assert problem.cures[0].command == ("queue", "resume", "mail")
    assert broken(database, HealthLimits(queue_paused=True)) == [(Rule.OLDEST, "mail")]  # it mentions the pause
    assert broken(database, HealthLimits(queue_paused=True, oldest=None)) == [(Rule.QUEUE_PAUSED, "mail")]
    database.frozen.workers.unregister(worker)


def test_failures_need_attention_for_an_hour_and_above_the_limit(database):
    failed(database, queue="a")
    failed(database, queue="b")
    failed(database, queue="b")
    assert broken(database) == [(Rule.FAILED, "b", "a")]
    assert database.frozen.health()[0].sentence == "3 tasks failed permanently in the last hour: 2 in 'b', 1 in 'a'"
    (problem,) = database.frozen.health(queues=["b"])
    assert problem.sentence == "2 tasks in the queue 'b' failed permanently in the last hour"
    assert broken(database, HealthLimits(failed=3)) == []
    assert len(broken(database, HealthLimits(failed=2))) == 1
    assert broken(database, HealthLimits(failed=None)) == []
    database.clock.advance(HOUR + timedelta(seconds=1))
    assert broken(database) == []
    assert len(broken(database, HealthLimits(failed_within=DAY))) == 1


def test_a_held_key_needs_attention_once_a_task_waits_for_it(database):
    register(database)
    letter = failed(database, queue="mail", partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    limits = HealthLimits(failed=None)
    assert broken(database, limits) == []
    assert [one.waiting for one in database.frozen.queues.held_keys("mail")] == [Count(number=0)]
    database.add(queue="mail", partition_key="other")
    assert broken(database, limits) == []
    for _ in range(2):
        database.add(queue="mail", partition_key="k")
    (problem,) = database.frozen.health(limits)
    assert (problem.rule, *problem.subjects) == (Rule.KEY_HELD, "mail")
    assert str(letter) in problem.sentence
    assert [one.command[:2] for one in problem.cures] == [("failed", "redrive"), ("failed", "discard")]
    (key,) = database.frozen.queues.held_keys("mail")
    assert (key.partition_key, key.dead_letter, key.failed_at) == ("k", letter, database.clock.now)
    assert key.waiting == Count(number=2)
    assert database.frozen.queues.held_keys("other") == []
    second = failed(database, queue="mail", partition_key="l", on_dead_letter=OnDeadLetter.HOLD, priority=9)
    database.add(queue="mail", partition_key="l")
    (problem,) = database.frozen.health(limits)
    assert "2 dead letters" in problem.sentence
    assert [one.dead_letter for one in database.frozen.queues.held_keys("mail", limit=2)] == [letter, second]
    assert len(database.frozen.queues.held_keys("mail", limit=1)) == 1


def test_a_schedule_whose_ticks_are_not_planted_needs_attention(database):
    schedule = NewSchedule(name="nightly", task_name="tests.work", args="{}", rule="every 60", tz="UTC")
    database.frozen.schedules.put(schedule)
    assert broken(database) == [(Rule.NO_WORKER, "default")]
    register(database)
    assert broken(database) == []
    database.frozen.schedules.pause("nightly")
    database.clock.advance(DAY)
    register(database)
    limits = HealthLimits(oldest=None)
    assert broken(database, limits) == []
    database.frozen.schedules.resume("nightly")
    database.clock.advance(timedelta(minutes=10))
    register(database)
    assert broken(database, limits) == [(Rule.SCHEDULE_OVERDUE, "nightly")]
    assert broken(database, HealthLimits(oldest=None, schedule_overdue=HOUR)) == []
    assert broken(database, HealthLimits(oldest=None, schedule_overdue=None)) == []


def test_tasks_that_no_worker_knows_need_attention(database):
    database.add(queue="mail", task_name="mail.new")
    register(database, "mail", unknown_tasks=[("mail", "mail.new")])
    assert broken(database) == [(Rule.UNKNOWN_TASK, "mail")]
    assert "'mail.new'" in database.frozen.health()[0].sentence
    register(database, "mail", tasks=["mail.new"])
    assert broken(database) == []


def test_invalid_health_limits_are_refused():
    for wrong in (
        {"failed": -1},
        {"failed": 1.5},
        {"oldest": 60},
        {"failed_within": -HOUR},
        {"schedule_overdue": "1h"},
    ):
        with pytest.raises(InvalidArgument):
            HealthLimits(**wrong)


# The change mark


def test_the_change_mark_changes_after_each_change_and_only_then(database):
    store = database.frozen
    store.change_mark()
    claims = []
    changes = [
        database.add,
        lambda: claims.extend(database.claim()),
        lambda: store.complete(claims[0]),
        lambda: store.queues.pause("mail", create=True),
        lambda: store.queues.resume("mail"),
        lambda: register(database),
        lambda: store.schedules.put(
            NewSchedule(name="n", task_name="tests.work", args="{}", rule="0 0 1 1 *", tz="UTC")
        ),
        lambda: store.schedules.remove("n"),
        lambda: store.samples.record([QueueSample(queue="mail", due=1)]),
        lambda: database.clock.advance(timedelta(minutes=3)),  # the worker is no longer live
    ]
    for number, change in enumerate(changes):
        before = store.change_mark()
        assert store.change_mark() == before
        change()
        assert store.change_mark() != before, number
        database.clock.advance(1)


def test_an_event_committed_after_a_later_event_changes_the_mark(postgresql):
    database = postgresql
    with helpers.transaction(database) as slow:
        database.add(Store(database.engine))
        slow.exec_driver_sql(
            "INSERT INTO execution_events (pipeline_execution_id, event_type, created_at) "
            f"VALUES ('{UUID(int=7)}', 'event_unrouted', now())"
        )
        database.add(Store(database.engine))
        before = database.store.change_mark()
        slow.commit()
    assert database.store.change_mark() != before
    database.corrupted = True


# Bounds


def test_the_number_of_held_keys_is_bounded():
    assert statements.HELD <= 1_000
