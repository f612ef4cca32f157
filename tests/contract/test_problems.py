"""The rules of `health`: one problem per cause, the most severe first, each with its cures."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome
from outboxq.model.actions import Interface, Operator
from outboxq.model.batches import BatchKind, OnFailed
from outboxq.model.schedules import NewSchedule
from outboxq.model.uuid7 import uuid7
from outboxq.operating.verbs import RECOVER
from outboxq.operating.worker_verbs import RECOVER_WORKER
from outboxq.store import HealthLimits, Rule
from outboxq.store.numbers import health
from outboxq.store.numbers.metrics import AttemptCounts, TaskMetric
from outboxq.store.numbers.problem import Problem, ranked
from tests.contract import helpers

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def register(database, *queues, worker_id=None, label="ant:1"):
    worker_id = worker_id or uuid4()
    options = {"label": label, "concurrency": 4, "task_names": ["tests.work"]}
    database.frozen.workers.register(worker_id, queues=list(queues) or None, **options)
    return worker_id


def failed(database, error="ValueError: no", **fields):
    claim = helpers.claimed(database, **fields)
    data = {"exception": "builtins.ValueError", "error": error}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data)])
    return claim.id


def found(database, limits=None, **options):
    return [(one.rule, *one.subjects) for one in database.frozen.health(limits, **options)]


def commands(problem):
    return [one.command for one in problem.cures]


# One problem per cause, the most severe first


def test_queues_with_one_cause_share_a_problem_and_the_heaviest_queue_is_first(database):
    for queue, number in (("a", 1), ("b", 3), ("c", 2), ("d", 1), ("e", 1)):
        for _ in range(number):
            database.add(queue=queue)
    (problem,) = database.frozen.health()
    assert (
        problem.sentence
        == "no live worker serves 5 queues, which have 8 tasks due: 'b' (3), 'c' (2), 'a' (1) and 2 more"
    )
    assert (problem.subjects, problem.tasks) == (("b", "c", "a", "d", "e"), 8)
    assert commands(problem) == [("worker",)]  # a -q for each queue would be too long
    (problem,) = database.frozen.health(queues=["a", "c"])
    assert problem.subjects == ("c", "a")
    assert commands(problem) == [("worker", "-q", "c", "-q", "a")]


def test_delayed_tasks_without_a_worker_are_a_problem(database):
    database.add(queue="mail", delay=HOUR)
    (problem,) = database.frozen.health()
    assert (problem.rule, problem.subjects, problem.tasks) == (Rule.NO_WORKER, ("mail",), 0)
    assert problem.sentence == "no live worker serves the queue 'mail', which has 1 delayed task"
    assert commands(problem) == [("worker", "-q", "mail")]
    database.add(queue="sync")
    (problem,) = database.frozen.health()
    assert problem.sentence == "no live worker serves 2 queues, which have 1 task due: 'sync' (1), 'mail' (delayed)"
    assert found(database, HealthLimits(no_worker=False)) == []
    database.frozen.queues.pause("mail")
    assert found(database, HealthLimits(queue_paused=True)) == [(Rule.NO_WORKER, "sync", "mail")]
    register(database)
    assert found(database) == []


def test_a_task_released_as_unknown_is_a_problem_if_no_worker_is_live(database):
    claim = helpers.claimed(database, queue="mail", task_name="nobody.knows")
    back = Outcome(claim=claim, event_type=EventType.RELEASED, data={"reason": "unknown task"}, delay=MINUTE)
    database.frozen.finish([back])
    assert found(database) == [(Rule.NO_WORKER, "mail")]


def test_the_problem_with_the_most_tasks_and_time_is_listed_first(database):
    register(database, "busy", "failing")
    for _ in range(3):
        failed(database, queue="failing")
    database.add(queue="unmanned")
    assert found(database) == [(Rule.FAILED, "failing"), (Rule.NO_WORKER, "unmanned")]
    for _ in range(5):
        database.add(queue="busy")
    database.clock.advance(10 * MINUTE)
    register(database, "busy", "failing")
    assert found(database) == [(Rule.OLDEST, "busy"), (Rule.FAILED, "failing"), (Rule.NO_WORKER, "unmanned")]


def test_a_cause_is_listed_before_its_symptoms(database):
    failed(database, queue="mail", partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    for _ in range(3):
        database.add(queue="mail", partition_key="k")
    failed(database, queue="other", partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    database.clock.advance(10 * MINUTE)
    register(database)
    assert found(database) == [(Rule.FAILED, "mail", "other"), (Rule.KEY_HELD, "mail"), (Rule.OLDEST, "mail")]


def held(database, queue, number):
    for place in range(number):
        fields = {"queue": queue, "partition_key": f"k{place}"}
        failed(database, **fields, on_dead_letter=OnDeadLetter.HOLD)
        database.add(**fields)


def test_the_number_of_held_keys_is_a_lower_bound_if_not_all_are_read(database):
    held(database, "mail", health.HELD - 1)
    limits = HealthLimits(no_worker=False, failed=None)
    (problem,) = database.frozen.health(limits)
    assert problem.sentence.startswith("tasks in the queue 'mail' are waiting for 99 dead letters")
    held(database, "other", 2)
    (problem,) = database.frozen.health(limits)
    assert " are waiting for at least 100 dead letters" in problem.sentence
    for queue, number in (("mail", 99), ("other", 2)):
        (problem,) = database.frozen.health(limits, queues=[queue])
        assert problem.sentence.startswith(f"tasks in the queue '{queue}' are waiting for {number} dead letters")


def test_the_number_of_recent_failures_is_a_lower_bound_if_not_all_are_read(database, monkeypatch):
    monkeypatch.setattr("outboxq.store.numbers.problem.BOUND", 2)
    for _ in range(2):
        failed(database, queue="mail")
    (problem,) = database.frozen.health()
    assert problem.sentence == "2 tasks in the queue 'mail' failed permanently in the last hour"
    for _ in range(4):
        failed(database, queue="mail")
    (problem,) = database.frozen.health()
    assert problem.sentence == "at least 3 tasks in the queue 'mail' failed permanently in the last hour"
    # A limit above the bound is also compared with the number of failures.
    assert found(database, HealthLimits(failed=5)) == [(Rule.FAILED, "mail")]
    for limit in (6, 10**30):
        assert found(database, HealthLimits(failed=limit)) == []


def problem(rule, *subjects, tasks=0):
    return Problem(rule=rule, subjects=subjects, sentence="", tasks=tasks)


@pytest.mark.parametrize(
    ("symptom", "cause"),
    [
        (problem(Rule.OLDEST, "mail", tasks=9), problem(Rule.WORKER_FAILING, "ant:1")),
        (problem(Rule.OLDEST, "mail", tasks=9), problem(Rule.RETRY_STORM, "mail", "other")),
        (problem(Rule.BATCH_WAITS, "1", tasks=9), problem(Rule.FAILED, "mail")),
        (problem(Rule.NO_WORKER, "mail", tasks=9), problem(Rule.WORKER_LOST, "ant:1")),
        (problem(Rule.SCHEDULE_OVERDUE, "nightly", tasks=9), problem(Rule.NO_WORKER, "mail")),
    ],
    ids=lambda one: str(one.rule),
)
def test_a_heavy_symptom_is_listed_after_its_cause(symptom, cause):
    last = problem(Rule.NO_RETENTION, "prune")
    assert ranked([last, symptom, cause]) == [cause, symptom, last]


def test_a_problem_of_another_queue_is_not_a_cause():
    late, storm = problem(Rule.OLDEST, "mail", tasks=9), problem(Rule.RETRY_STORM, "other")
    assert ranked([storm, late]) == [late, storm]


def test_an_old_task_without_a_worker_is_one_problem(database):
    database.add(queue="mail")
    database.clock.advance(HOUR)
    assert found(database) == [(Rule.NO_WORKER, "mail")]
    assert found(database, HealthLimits(no_worker=False)) == [(Rule.OLDEST, "mail")]
    (problem,) = database.frozen.health(HealthLimits(no_worker=False))
    assert commands(problem) == [("task", "list", "--status", "due", "-q", "mail")]


def test_old_tasks_of_several_queues_are_grouped_by_their_cause(database):
    for queue in ("a", "b", "p", "q"):
        database.add(queue=queue)
    for queue in ("p", "q"):
        database.frozen.queues.pause(queue, create=True)
    database.clock.advance(10 * MINUTE)
    register(database)
    running, paused = database.frozen.health(HealthLimits(queue_paused=True))
    assert running.sentence == (
        "tasks in 2 queues have been due for up to 10 min: 'a' (1 task, 10 min), 'b' (1 task, 10 min)"
    )
    assert paused.sentence.startswith("tasks in 2 paused queues have been due for up to 10 min")
    assert commands(paused) == [("queue", "resume", "p"), ("queue", "resume", "q")]


def late(database, **fields):
    """A task that has been due for ten minutes, in a queue that a live worker serves."""
    database.add(**fields)
    database.clock.advance(10 * MINUTE)
    register(database)


def test_a_late_task_is_reported_with_the_limit_that_is_reached(database):
    database.frozen.queues.limit("webhooks", rate=(5, HOUR), create=True)
    for _ in range(5):
        helpers.claimed(database, queue="webhooks")
    late(database, queue="webhooks")
    (problem,) = database.frozen.health(HealthLimits(worker_lost=False))
    assert problem.sentence == (
        "a task in the queue 'webhooks' has been due for 10 min: its queue may start at most 5 tasks in 1 h; the next "
        "start is possible in 2 min"
    )
    assert commands(problem) == [
        ("task", "list", "--status", "due", "-q", "webhooks"),
        ("queue", "limit", "webhooks", "--rate", "none"),
    ]
    database.frozen.queues.limit("webhooks", rate=None, concurrency=5)
    (problem,) = database.frozen.health()
    assert problem.sentence.endswith("due for 10 min: its queue may run at most 5 tasks at a time; running now: 5")
    database.frozen.queues.limit("webhooks", concurrency=6)
    (problem,) = database.frozen.health()
    assert problem.sentence == "a task in the queue 'webhooks' has been due for 10 min"
    assert problem.parts == ()


def test_a_late_task_is_reported_with_the_limit_per_key(database):
    database.frozen.queues.limit("mail", concurrency_per_key=2, create=True)
    for _ in range(2):
        helpers.claimed(database, queue="mail", concurrency_key="ann")
    late(database, queue="mail", concurrency_key="ann", priority=7)
    (problem,) = database.frozen.health()
    assert problem.sentence.endswith(
        "for 10 min: at most 2 tasks with the concurrency key 'ann' may run at a time; running now: 2"
    )
    assert commands(problem)[1] == ("queue", "limit", "mail", "--concurrency-per-key", "3")


def test_raising_a_limit_is_not_suggested_while_a_worker_is_lost(database):
    """The lost worker's task counts toward the limit, because it may still be running."""
    database.frozen.queues.limit("mail", concurrency=1, create=True)
    register(database, worker_id=database.worker)
    helpers.claimed(database, queue="mail", lease=2 * HOUR)
    database.add(queue="mail")
    database.clock.advance(10 * MINUTE)
    register(database, label="bee:2")
    (oldest,) = [one for one in database.frozen.health() if one.rule is Rule.OLDEST]
    assert oldest.sentence.endswith("its queue may run at most 1 task at a time; running now: 1")
    assert commands(oldest) == [("task", "list", "--status", "due", "-q", "mail")]
    for limits in (HealthLimits(), HealthLimits(worker_lost=False)):  # neither reports the lost worker
        (alone,) = database.frozen.health(limits, queues=["mail"])
        assert commands(alone) == commands(oldest)


def test_raising_a_limit_is_suggested_if_the_lost_workers_hold_no_tasks(database):
    database.frozen.queues.limit("mail", concurrency=1, create=True)
    register(database, label="idle:1")
    database.clock.advance(2 * MINUTE)
    helpers.claimed(database, queue="mail", lease=2 * HOUR)
    database.add(queue="mail")
    database.clock.advance(10 * MINUTE)
    register(database, worker_id=database.worker)
    (problem,) = database.frozen.health()
    assert commands(problem)[1] == ("queue", "limit", "mail", "--concurrency", "none")


def test_the_cause_reported_is_that_of_the_oldest_late_task(database):
    running = helpers.claimed(database, queue="mail", partition_key="k")
    database.add(queue="mail", partition_key="k")
    database.clock.advance(1)
    late(database, queue="mail", priority=7)
    (problem,) = database.frozen.health()
    assert (
        f"has been due for 10 min 1 s: task {running.id} has the same partition key 'k' and is running"
        in problem.sentence
    )
    assert commands(problem) == [("task", "list", "--status", "due", "-q", "mail")]


def test_several_late_queues_have_one_line_each_with_a_cause_and_cures(database):
    database.frozen.queues.limit("a", concurrency=1, create=True)
    helpers.claimed(database, queue="a")
    for queue in ("a", "a", "b", "c", "d"):
        database.add(queue=queue)
    database.clock.advance(10 * MINUTE)
    register(database)
    (problem,) = database.frozen.health()
    assert commands(problem) == []
    assert [one.sentence for one in problem.parts] == [
        "a task in the queue 'a' has been due for 10 min: its queue may run at most 1 task at a time; running now: 1",
        "a task in the queue 'b' has been due for 10 min",
        "a task in the queue 'c' has been due for 10 min",
    ]
    assert [commands(one)[0][-1] for one in problem.parts] == ["a", "b", "c"]
    assert commands(problem.parts[0])[1] == ("queue", "limit", "a", "--concurrency", "none")


def test_several_schedules_and_unknown_tasks_and_pauses_are_one_problem_each(database):
    for name in ("daily", "hourly"):
        schedule = NewSchedule(name=name, task_name="tests.work", args="{}", rule="every 60", tz="UTC")
        database.frozen.schedules.put(schedule)
    database.clock.advance(10 * MINUTE)
    for queue, name in (("a", "a.new"), ("b", "b.new")):
        database.add(queue=queue, task_name=name)
        database.frozen.queues.pause(f"paused-{queue}", create=True)
    options = {"label": "ant:1", "concurrency": 1, "task_names": ["tests.work"]}
    database.frozen.workers.register(uuid4(), unknown_tasks=[("a", "a.new"), ("b", "b.new")], **options)
    overdue, unknown, paused = database.frozen.health(HealthLimits(queue_paused=True, oldest=None))
    assert "on the queues 'a', 'b' knows 'a.new', 'b.new'; import their modules" in unknown.sentence
    assert overdue.sentence.startswith("no tick of 2 schedules ('daily', 'hourly') has been planted in the last 8 min")
    assert paused.sentence == "2 queues are paused: 'paused-a' (for 0.0 s), 'paused-b' (for 0.0 s)"


def test_a_paused_queue_without_a_worker_has_both_causes_in_one_problem(database):
    database.add(queue="mail")
    database.frozen.queues.pause("mail", reason="provider down")
    database.clock.advance(10 * MINUTE)
    expected = (
        "no live worker serves the queue 'mail', which has 1 task due; the queue has also been paused for 10 min: "
        "provider down"
    )
    for limits in (HealthLimits(), HealthLimits(queue_paused=True), HealthLimits(queue_paused=True, oldest=None)):
        (problem,) = database.frozen.health(limits)
        assert (problem.rule, problem.sentence) == (
            Rule.NO_WORKER,
            expected,
        )
        assert commands(problem) == [("worker", "-q", "mail"), ("queue", "resume", "mail")]
    database.add(queue="bulk")
    (problem,) = database.frozen.health(HealthLimits(queue_paused=True))
    assert problem.sentence.endswith("; 1 of them is also paused: 'mail' (for 10 min: provider down)")
    assert problem.cures[-1].purpose == "resume 'mail'"


# Failures and their largest groups


def test_the_largest_groups_of_failures_are_listed_below_their_problem(database):
    for number in range(3):
        failed(database, error=f"ValueError: order {number} has no address", queue="billing")
        database.clock.advance(MINUTE)
    failed(database, error="ValueError: no mailbox", queue="mail")
    database.clock.advance(MINUTE)
    (problem,) = database.frozen.health()
    assert problem.sentence == "4 tasks failed permanently in the last hour: 3 in 'billing', 1 in 'mail'"
    assert commands(problem) == [("failed", "summary")]
    assert [one.sentence for one in problem.parts] == [
        "3 × tests.work: ValueError: order … has no address; the first of them 4 min ago, the last 2 min ago",
        "1 × tests.work: ValueError: no mailbox; 1 min ago",
    ]
    group = database.frozen.dead_letters.groups().groups[0]
    assert problem.parts[0].cures[0].command == ("failed", "list", "--group", group.id)
    (problem,) = database.frozen.health(queues=["mail"])
    assert [one.sentence for one in problem.parts] == ["1 × tests.work: ValueError: no mailbox; 1 min ago"]
    for number in range(2):
        failed(database, error=f"ValueError: order {number} has no address", queue="shop")
    (problem,) = database.frozen.health(queues=["mail", "shop", "unused"])
    assert [one.sentence for one in problem.parts] == [
        # without the group's three dead letters in 'billing'
        "2 × tests.work: ValueError: order … has no address; the first of them 0.0 s ago, the last 0.0 s ago",
        "1 × tests.work: ValueError: no mailbox; 1 min ago",
    ]
    database.clock.advance(2 * HOUR)
    failed(database, error="ValueError: late", queue="mail")
    (problem,) = database.frozen.health()
    assert [one.sentence for one in problem.parts] == ["1 × tests.work: ValueError: late; 0.0 s ago"]


def test_held_keys_of_several_queues_are_one_problem_that_names_the_oldest(database):
    first = failed(database, queue="b", partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    database.clock.advance(MINUTE)
    failed(database, queue="a", partition_key="l", on_dead_letter=OnDeadLetter.HOLD)
    database.add(queue="a", partition_key="l", delay=HOUR)
    database.add(queue="b", partition_key="k", delay=HOUR)
    (problem,) = database.frozen.health(HealthLimits(failed=None, no_worker=False))
    assert (problem.subjects, problem.tasks, problem.age) == (("b", "a"), 2, MINUTE)
    assert (
        f"the queues 'b', 'a' are waiting for 2 dead letters that hold their keys, such as {first}" in problem.sentence
    )


# Many retries


def counted(database, *, task_name="send", **numbers):
    metric = TaskMetric(id=uuid7(), queue="mail", task_name=task_name, counts=AttemptCounts(**numbers))
    database.frozen.metrics.record([metric], worker_id=uuid4())


def retried(database, number, exception):
    for _ in range(number):
        claim = helpers.claimed(database, queue="mail", task_name="send")
        again = Outcome(
            claim=claim, event_type=EventType.RETRY_SCHEDULED, error="no", data={"exception": exception}, delay=HOUR
        )
        database.frozen.finish([again])


WITHOUT_WORKERS = HealthLimits(no_worker=False)


def test_a_retry_storm_is_reported_with_its_exceptions(database):
    counted(database, completed=300, retried=49)
    assert found(database, WITHOUT_WORKERS) == []
    counted(database, retried=51)
    retried(database, 3, "smtplib.SMTPServerDisconnected")
    retried(database, 1, "builtins.OSError")
    database.clock.advance(MINUTE)
    (problem,) = database.frozen.health(WITHOUT_WORKERS)
    assert (problem.rule, problem.subjects, problem.tasks) == (Rule.RETRY_STORM, ("mail",), 100)
    assert problem.sentence == (
        "100 attempts failed in the last 10 min and will be retried: 100 × send (smtplib.SMTPServerDisconnected)"
    )
    assert commands(problem) == [("task", "list", "--status", "retrying", "-q", "mail"), ("queue", "pause", "mail")]
    assert found(database, WITHOUT_WORKERS, queues=["other"]) == []
    assert found(database, HealthLimits(no_worker=False, retried=25)) == []  # 25 %, which does not exceed the limit
    assert found(database, HealthLimits(no_worker=False, retried=None)) == []
    database.frozen.queues.pause("mail")
    (problem, _) = database.frozen.health(HealthLimits(no_worker=False, queue_paused=True))
    assert commands(problem) == [("task", "list", "--status", "retrying", "-q", "mail")]
    database.clock.advance(10 * MINUTE)
    assert found(database, WITHOUT_WORKERS) == []


def test_a_storm_is_over_when_nothing_fails_and_nothing_waits_for_a_retry(database):
    counted(database, retried=60)
    helpers.claimed(database, queue="mail", task_name="send")
    database.clock.advance(MINUTE)
    assert found(database, WITHOUT_WORKERS) == [(Rule.RETRY_STORM, "mail")]
    database.clock.advance(2 * MINUTE)
    assert found(database, WITHOUT_WORKERS) == []
    database.add(queue="mail", delay=HOUR)
    assert found(database, WITHOUT_WORKERS) == [(Rule.RETRY_STORM, "mail")]


@pytest.mark.parametrize("retries", [False, True])
def test_a_storm_is_not_over_while_tasks_wait_for_their_retries(database, retries):
    counted(database, retried=60)
    retried(database, 1, "builtins.OSError")
    database.clock.advance(5 * MINUTE)
    overview = database.frozen.overview(WITHOUT_WORKERS, retries=retries)
    assert (overview.retrying.number, overview.delayed.number) == ((1, 0) if retries else (0, 1))
    assert [one.rule for one in overview.problems] == [Rule.RETRY_STORM]


def test_a_retry_storm_without_retry_events_is_also_reported(database):
    counted(database, timed_out=70, timed_out_last=10)
    (problem,) = database.frozen.health()
    assert problem.sentence.endswith("will be retried: 60 × send")


# Batches and chains


@pytest.mark.parametrize("kind", [BatchKind.BATCH, BatchKind.CHAIN])
def test_a_batch_that_waits_only_for_dead_letters_is_a_problem(database, kind):
    batch = helpers.batch_with(
        NewTask(id=uuid7(), task_name="tests.then", args="{}"), on_failed=OnFailed.WAIT, kind=kind, name="nightly"
    )
    database.frozen.batches.create(batch)
    for _ in range(2):
        database.add(pipeline_execution_id=batch.id)
    database.frozen.batches.close(batch.id)
    (first, second), limits = database.claim(2), HealthLimits(failed=None)
    database.frozen.finish([Outcome(claim=first, event_type=EventType.FAILED, error="no")])
    assert found(database, limits) == []  # the other task has not ended
    database.frozen.complete(second)
    database.clock.advance(HOUR)
    (problem,) = database.frozen.health(limits)
    assert (problem.rule, problem.subjects, problem.tasks) == (Rule.BATCH_WAITS, (str(batch.id),), 1)
    told = f"the {kind} 'nightly' ({batch.id}) has been blocked only by dead letters for 1 h: 1 dead letter in all"
    assert problem.sentence.startswith(told)
    assert problem.sentence.endswith("ends the chain" if kind is BatchKind.CHAIN else "continue without it")
    assert commands(problem) == [("batch", "show", str(batch.id))]
    assert found(database, HealthLimits(failed=None, batch_waits=False)) == []
    assert found(database, limits, queues=["default"]) == []
    database.frozen.batches.cancel(batch.id)
    assert found(database, limits) == []


# Workers


def test_a_worker_that_fell_silent_is_a_problem_until_its_tasks_are_recovered(database):
    register(database, worker_id=database.worker, label="web-1:7")
    register(database, label="idle:1")
    first, second, third = (helpers.claimed(database, lease=lease) for lease in (2 * MINUTE, HOUR, HOUR))
    database.clock.advance(MINUTE)
    assert found(database) == []
    database.clock.advance(MINUTE)
    (problem,) = database.frozen.health()
    assert (problem.rule, problem.subjects, problem.tasks) == (Rule.WORKER_LOST, ("web-1:7",), 3)
    assert (
        problem.sentence
        == "the worker web-1:7 fell silent 2 min ago with 3 running tasks; they have not been recovered yet"
    )
    assert commands(problem) == [("workers", "show", str(database.worker))]
    database.clock.advance(1)
    assert [one.id for one in database.frozen.recover()] == [first.id]
    limits = HealthLimits(no_worker=False)
    (problem,) = database.frozen.health(limits)
    assert problem.sentence.endswith("with 2 running tasks; they have not been recovered yet")
    assert found(database, HealthLimits(no_worker=False, worker_lost=False)) == []
    ann = Operator(interface=Interface.COMMAND_LINE, name="ann")
    RECOVER.do(database.frozen, second.id, operator=ann, reason="the machine is gone")
    (problem,) = database.frozen.health(limits)
    assert problem.sentence.endswith("with 1 running task; it has not been recovered yet")
    RECOVER_WORKER.do(database.frozen, database.worker, operator=ann)
    assert found(database, limits) == []
    reasons = [None, "the machine is gone (by ann on the command line)", "by ann on the command line"]
    taken = database.frozen.workers.recovered(database.worker).tasks
    assert [(one.reason, one.task_id) for one in taken[:2]] == [(reasons[0], first.id), (reasons[1], second.id)]
    assert (taken[2].reason, taken[2].task_id) == (reasons[2], third.id)


def test_a_lost_worker_is_no_longer_a_problem_once_other_workers_recovered_its_tasks(database):
    register(database, worker_id=database.worker, label="web-1:7")
    taken = helpers.claimed(database, lease=2 * MINUTE)
    database.clock.advance(2 * MINUTE + timedelta(seconds=1))
    limits = HealthLimits(no_worker=False)
    assert found(database, limits) == [(Rule.WORKER_LOST, "web-1:7")]
    assert [one.id for one in database.frozen.recover()] == [taken.id]
    assert found(database, limits) == []


def test_a_lost_worker_is_no_longer_a_problem_after_an_hour(database):
    register(database, worker_id=database.worker, label="web-1:7")
    helpers.claimed(database, lease=2 * HOUR)
    limits = HealthLimits(oldest=None)
    database.clock.advance(HOUR)
    assert found(database, limits) == [(Rule.WORKER_LOST, "web-1:7")]
    database.clock.advance(1)
    assert found(database, limits) == []


def test_several_lost_workers_are_one_problem(database):
    for number in range(5):
        register(database, worker_id=(worker := uuid4()), label=f"web-{number}:7")
        for _ in range(1 + number % 2):
            database.add()
            database.frozen.claim_ready_task(1, worker_id=worker)
        database.clock.advance(1)
    database.clock.advance(2 * MINUTE)
    (problem,) = database.frozen.health()
    assert problem.sentence == (
        "at least 3 workers fell silent with at least 5 running tasks: web-1:7 (2), web-3:7 (2), web-4:7 (1); "
        "they have not been recovered yet"
    )
    assert health.LOST == 3


def test_a_lost_worker_with_tasks_is_not_hidden_by_later_ones_without(database):
    register(database, worker_id=database.worker, label="busy:7")
    helpers.claimed(database, lease=HOUR)
    database.clock.advance(1)
    for number in range(health.LOST):
        register(database, label=f"idle-{number}:7")
    database.clock.advance(2 * MINUTE)
    (problem,) = database.frozen.health()
    assert problem.sentence == (
        "the worker busy:7 fell silent 2 min 1 s ago with 1 running task; it has not been recovered yet"
    )


# Retention


def test_a_history_that_nothing_deletes_is_a_problem_after_a_week(database):
    register(database)
    database.frozen.complete(helpers.claimed(database))
    database.clock.advance(7 * DAY)
    assert found(database) == []
    database.clock.advance(1)
    (problem,) = database.frozen.health()
    assert problem.rule is Rule.NO_RETENTION
    assert problem.sentence == "nothing deletes old tasks: the history reaches back 7 d 1 s and keeps growing"
    assert commands(problem) == [("schedule", "add-retention", "90d")]
    assert found(database, HealthLimits(history=None)) == []
    assert found(database, HealthLimits(history=8 * DAY)) == []
    database.frozen.prune(90 * DAY, dry_run=True)
    assert found(database) == [(Rule.NO_RETENTION, "outboxq.prune")]
    database.frozen.prune(90 * DAY)  # as in a cron job
    assert found(database) == []
    database.clock.advance(31 * DAY)
    assert found(database) == []
    database.clock.advance(health._PRUNED_WITHIN - 31 * DAY)
    assert found(database) == [(Rule.NO_RETENTION, "outboxq.prune")]


def test_a_retention_schedule_that_is_not_paused_deletes_the_history(database):
    database.frozen.complete(helpers.claimed(database))
    schedule = NewSchedule(name="mine", task_name="outboxq.prune", args="{}", rule="every 3600", tz="UTC")
    database.frozen.schedules.put(schedule)
    database.clock.advance(8 * DAY)
    limits = HealthLimits(schedule_overdue=None)
    assert found(database, limits) == []
    database.frozen.schedules.pause("mine")
    assert found(database, limits) == [(Rule.NO_RETENTION, "outboxq.prune")]


def test_a_rollback_by_the_caller_undoes_the_record_of_a_prune(database):
    database.frozen.complete(helpers.claimed(database))
    database.clock.advance(8 * DAY)
    with helpers.transaction(database) as connection:
        database.frozen.prune(DAY, using=connection)
        connection.rollback()
    assert found(database) == [(Rule.NO_RETENTION, "outboxq.prune")]
