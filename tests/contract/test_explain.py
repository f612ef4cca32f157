"""Why a task does not run: each reason, and which reason takes precedence."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import click
import pytest
from sqlalchemy import event

from outboxq.cli import main
from outboxq.errors import InvalidArgument, TaskNotFound
from outboxq.model import TERMINAL, EventType, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.workers import WorkerOrder
from outboxq.store import HealthLimits, Reason
from tests.contract import helpers
from tests.dialects.test_statement_count import statements

HOUR = timedelta(hours=1)

WITHOUT_ENTRY = {
    *(Reason.COMPLETED, Reason.FAILED, Reason.CANCELLED, Reason.CANCEL_REQUESTED, Reason.LEASE_ENDED),
    *(Reason.WORKER_SILENT, Reason.RUNNING, Reason.INCONSISTENT),
}
_LETTER = [("failed", "redrive"), ("failed", "discard")]
CURES = {
    Reason.FAILED: _LETTER,
    Reason.KEY_HELD: _LETTER,
    Reason.RUNNING: [("task", "cancel")],
    Reason.CANCEL_REQUESTED: [("task", "cancel")],
    Reason.DELAYED: [("task", "run-now")],
    Reason.RETRY_LATER: [("task", "run-now")],
    Reason.QUEUE_PAUSED: [("queue", "resume")],
    Reason.KEY_RUNNING: [("task", "explain")],
    Reason.KEY_WAITING: [("task", "explain")],
    Reason.CONCURRENCY_LIMIT: [("queue", "limit"), ("task", "explain")],
    Reason.RATE_LIMIT: [("queue", "limit")],
    Reason.NO_WORKER: [("worker", "-q")],
    Reason.TOPIC_UNWANTED: [("worker", "-q")],
    Reason.TASK_UNKNOWN: [("worker", "-q")],
    Reason.WORKERS_QUIET: [("workers", "resume")],
    Reason.INCONSISTENT: [("verify", "--repair")],
}


def explained(database, task, reason, *words, waits_for=None, cured=None):
    """Check that the task's explanation has this reason and contains these words."""
    found = database.frozen.explain(task.id)
    assert (found.reason, found.waits_for) == (reason, waits_for), found.sentence
    for word in words:
        assert word in found.sentence
    assert found.sentence
    assert "None" not in found.sentence
    assert (found.due_at is None) is (reason in WITHOUT_ENTRY)
    for cure in found.cures:
        exists(cure.command)
    in_a_list(database, task, found)
    on_a_page(database, task, found)
    assert [cure.command[:2] for cure in found.cures] == (cured or CURES.get(reason, []))


def in_a_list(database, task, told):
    """Check that a list gives the same reason."""
    row = database.frozen.get(task.id)
    outlook = database.frozen.outlooks([row]).get(task.id)
    if row.status in TERMINAL or (told.reason is Reason.INCONSISTENT and row.status is TaskStatus.READY):
        assert outlook is None
    else:
        assert (outlook.reason, outlook.due_at) == (told.reason, told.due_at)


def on_a_page(database, task, found):
    """Check that the task's page gives the same explanation, and reads everything with few statements."""
    with statements(database) as seen:
        detail = database.frozen.task_detail(task.id)
    assert detail.explanation == found
    assert detail.due_at == found.due_at
    assert detail.task == database.frozen.get(task.id)
    assert detail.events == database.frozen.history(task.id)
    assert len([one for one in seen if not one.startswith("BEGIN")]) <= 5


def exists(words):
    """Check that the command exists and accepts these words."""
    command, given = main, list(words)
    if words[0] == "worker":
        given.append("APP")
    while isinstance(command, click.Group):
        command = command.commands[given.pop(0)]
    command.make_context(command.name, given, resilient_parsing=False)


def end(database, claim, event_type, **fields):
    database.frozen.finish([Outcome(claim=claim, event_type=event_type, **fields)])


def at_work(database, worker_id=None, **said):
    said = {"label": "host:7", "concurrency": 4, "task_names": ["tests.work"], **said}
    worker_id = worker_id or uuid4()
    database.frozen.workers.register(worker_id, **said)
    return worker_id


# Ended tasks.


def test_an_unknown_id_is_refused(database):
    with pytest.raises(TaskNotFound):
        database.frozen.explain(uuid4())
    with pytest.raises(InvalidArgument):
        database.frozen.explain("banana")


def test_a_task_that_has_ended_shows_how_and_when(database):
    done, dead, undone = (helpers.claimed(database) for _ in range(3))
    end(database, done, EventType.COMPLETED)
    end(database, dead, EventType.FAILED, error="ValueError: no such order")
    end(database, undone, EventType.CANCELLED, data={"reason": "the order is gone"})
    explained(database, done, Reason.COMPLETED, "completed at 2030-01-01 12:00:00 UTC")
    explained(database, dead, Reason.FAILED, "in attempt 1: ValueError: no such order", "redrive or discard")
    explained(database, undone, Reason.CANCELLED, "cancelled at 2030-01-01 12:00:00 UTC: the order is gone")
    database.frozen.discard(dead.id, reason="nobody asks")
    explained(database, dead, Reason.CANCELLED, "discarded as a dead letter", ": nobody asks")


def test_an_expiry_is_explained_before_and_after_it_is_recorded(database):
    at_work(database)
    handle = database.add(expires_in=HOUR)
    explained(database, handle, Reason.DUE)
    database.clock.advance(HOUR)
    explained(database, handle, Reason.EXPIRED, "the next claim will record the expiry")
    assert database.claim() == []
    explained(database, handle, Reason.CANCELLED, "expired: it had to start before 2030-01-01 13:00:00 UTC")


def test_an_expired_task_shows_why_its_expiry_is_not_recorded_yet(database):
    at_work(database)
    first = database.add(queue="mail", expires_in=HOUR)
    second = database.add(queue="sms", expires_in=HOUR)
    database.add(queue="sms", priority=1)
    later = database.add(queue="web", delay=3 * HOUR, expires_in=HOUR)
    database.frozen.queues.pause("mail")
    database.frozen.queues.limit("sms", concurrency=1)
    database.claim(queues=["sms"])
    database.clock.advance(2 * HOUR)
    assert database.claim(10) == []
    not_yet = "expired at 2030-01-01 13:00:00 UTC; the expiry is not recorded yet: "
    paused = f"{not_yet}its queue has been paused since"
    explained(database, first, Reason.EXPIRED, paused, cured=[("queue", "resume")])
    full = f"{not_yet}its queue may run at most 1 task at a time"
    explained(database, second, Reason.EXPIRED, full, cured=[("queue", "limit")])
    explained(database, later, Reason.EXPIRED, f"{not_yet}it is due in 1 h", cured=[("task", "run-now")])


# Running tasks.


def test_a_running_task_shows_its_worker_and_its_lease(database):
    at_work(database, database.worker)
    claim = helpers.claimed(database, lease=timedelta(seconds=200))
    database.clock.advance(80)
    explained(database, claim, Reason.RUNNING, "host:7", "since 2030-01-01 12:00:00 UTC", "expires in 2 min unless")
    database.clock.advance(40)
    database.frozen.workers.seen(database.worker)
    explained(database, claim, Reason.RUNNING)
    database.frozen.cancel(claim.id)
    explained(database, claim, Reason.CANCEL_REQUESTED, "asked to stop at 2030-01-01 12:02:00 UTC")


def test_a_silent_or_unregistered_worker_is_reported(database):
    claim = helpers.claimed(database, lease=timedelta(seconds=200))
    explained(database, claim, Reason.WORKER_SILENT, str(database.worker), "not registered")
    database.clock.advance(91)
    explained(database, claim, Reason.WORKER_SILENT, "not registered", cured=[("task", "recover")])
    at_work(database, database.worker)
    database.clock.advance(30)
    words = ("host:7", "not done so in the last 2 min 1 s", "in 1 min 19 s")
    explained(database, claim, Reason.WORKER_SILENT, *words, cured=[("workers", "show")])
    database.frozen.workers.seen(database.worker)  # the worker is alive, but a part of it has died
    explained(database, claim, Reason.WORKER_SILENT, *words, cured=[("workers", "show")])
    database.clock.advance(80)
    explained(
        database,
        claim,
        Reason.LEASE_ENDED,
        "expired 1.0 s ago",
        "there is no other live worker to recover the task",
        cured=[("worker", "-q")],
    )
    at_work(database)
    explained(database, claim, Reason.LEASE_ENDED, "a live worker will recover the task")


def test_a_lost_worker_with_a_long_lease_is_reported_with_recovery_as_the_cure(database):
    """With a lease of an hour, no heartbeat is due for 20 minutes, so only the missing reports show that the worker is dead."""
    at_work(database, database.worker)
    claim = helpers.claimed(database, lease=HOUR)
    database.clock.advance(89)
    explained(database, claim, Reason.RUNNING)
    database.clock.advance(timedelta(minutes=13) - timedelta(seconds=89))
    words = (
        "worker host:7 has not been seen for 13 min: it was killed",
        "expires in 47 min, and the task is then recovered",
    )
    explained(database, claim, Reason.WORKER_SILENT, *words, cured=[("task", "recover")])
    assert cured_by(database, claim) == ("task", "recover", str(claim.id))
    database.frozen.workers.seen(database.worker)
    explained(database, claim, Reason.RUNNING)


def cured_by(database, task):
    return database.frozen.explain(task.id).cures[0].command


def test_a_killed_worker_is_reported_before_the_default_lease_expires(database):
    """It is not reported only after 90 s of silence, when that lease has long expired."""
    at_work(database, database.worker)
    claim = helpers.claimed(database, lease=timedelta(seconds=60))
    database.clock.advance(37)
    words = ("not done so in the last 37 s", "in 23 s")
    explained(database, claim, Reason.WORKER_SILENT, *words, cured=[("workers", "show")])


# Waiting tasks.


def test_a_task_that_is_due_later_shows_when_and_why(database):
    at_work(database)
    delayed = database.add(delay=timedelta(minutes=90))
    explained(database, delayed, Reason.DELAYED, "due in 1 h 30 min, at 2030-01-01 13:30:00 UTC")
    claim = helpers.claimed(database)
    soon = timedelta(seconds=12)
    end(database, claim, EventType.RETRY_SCHEDULED, delay=soon, error="OSError: away")
    explained(database, claim, Reason.RETRY_LATER, "attempt 2 is due in 12 s", "(OSError: away)")
    database.clock.advance(soon)
    explained(database, claim, Reason.DUE, "the next claim will take it")


def test_a_paused_queue_is_reported_before_its_limits_and_workers(database):
    handle = database.add(queue="mail")
    database.frozen.queues.limit("mail", concurrency=1, create=True)
    database.frozen.queues.pause("mail", create=True)
    database.clock.advance(60)
    explained(database, handle, Reason.QUEUE_PAUSED, "paused since 2030-01-01 12:00:00 UTC", "for 1 min")
    database.frozen.queues.resume("mail")
    explained(database, handle, Reason.NO_WORKER)


def test_tasks_behind_the_head_of_a_key_wait_for_the_head(database):
    at_work(database)
    key = {"partition_key": "customer:1"}
    first = database.add(**key, delay=HOUR)
    second = database.add(**key)
    later = database.add(partition_key="customer:2")
    urgent = database.add(partition_key="customer:2", priority=5)
    words = ("'customer:1'", "due at 2030-01-01 13:00:00 UTC")
    explained(database, second, Reason.KEY_WAITING, *words, waits_for=first.id)
    explained(database, first, Reason.DELAYED)
    explained(database, later, Reason.KEY_WAITING, waits_for=urgent.id)
    explained(database, urgent, Reason.DUE)
    elsewhere = database.add(**key, queue="mail")
    explained(database, elsewhere, Reason.DUE)
    database.frozen.queues.order("default", fair=False, create=True)
    explained(database, second, Reason.KEY_WAITING, waits_for=first.id)


def test_a_key_is_taken_by_a_running_task_and_held_by_a_dead_letter(database):
    at_work(database)
    key = {"partition_key": "customer:1", "on_dead_letter": OnDeadLetter.HOLD}
    first = helpers.claimed(database, **key)
    second, third = database.add(**key), database.add(**key)
    explained(database, second, Reason.KEY_RUNNING, "is running", waits_for=first.id)
    explained(database, third, Reason.KEY_RUNNING, waits_for=first.id)
    end(database, first, EventType.FAILED, error="x")
    explained(database, second, Reason.KEY_HELD, "held by the dead letter", "redrive or discard", waits_for=first.id)
    database.frozen.discard(first.id)
    explained(database, second, Reason.DUE)


def test_a_queue_at_its_concurrency_limit_is_reported(database):
    at_work(database)
    database.frozen.queues.limit("default", concurrency=2, create=True)
    running, waiting = helpers.claimed(database), database.add()
    explained(database, waiting, Reason.DUE)
    assert len(database.claim()) == 1
    waiting = database.add()
    explained(database, waiting, Reason.CONCURRENCY_LIMIT, "may run at most 2 tasks at a time; running now: 2")
    end(database, running, EventType.COMPLETED)
    explained(database, waiting, Reason.DUE)


@pytest.mark.parametrize("how", ["slot", "key", "key slot"])
def test_the_cure_for_a_task_blocked_by_a_lost_worker_recovers_the_blocking_task(database, how):
    at_work(database, database.worker)
    at_work(database, label="host:8")  # serves the queue, and is waiting too
    reason, key = Reason.CONCURRENCY_LIMIT, {}
    if how == "slot":
        database.frozen.queues.limit("default", concurrency=1, create=True)
    elif how == "key":
        reason, key = Reason.KEY_RUNNING, {"partition_key": "customer:1"}
    else:
        database.frozen.queues.limit("default", concurrency_per_key=1, create=True)
        reason, key = Reason.KEY_LIMIT, {"concurrency_key": "customer:1"}
    other = HOUR * 2
    held = helpers.claimed(database, lease=other, **key)
    waiting = database.add(**key)
    last = {Reason.KEY_RUNNING: [("task", "explain")]}.get(reason, [("queue", "limit")])
    waits_for = held.id if reason is Reason.KEY_RUNNING else None
    healthy = [("task", "explain")] if reason is Reason.KEY_RUNNING else [*last, ("task", "explain")]
    words = (str(held.id), "worker host:7 has been running", " since 2030-01-01 12:00:00 UTC")
    explained(database, waiting, reason, *words, waits_for=waits_for, cured=healthy)
    database.clock.advance(timedelta(minutes=13))
    words = (str(held.id), "worker host:7, which has not been seen for 13 min, and the lease expires in 1 h 47 min")
    explained(database, waiting, reason, *words, waits_for=waits_for, cured=[("task", "recover"), *last])
    assert cured_by(database, waiting) == ("task", "recover", str(held.id))
    database.frozen.recover_lost(held.id)
    assert database.frozen.explain(waiting.id).reason is not reason


def test_a_rate_limit_is_reported_with_the_time_of_the_next_start(database):
    at_work(database)
    database.frozen.queues.limit("default", rate=(3, timedelta(minutes=1)), create=True)
    for _ in range(5):
        last = database.add()
    assert len(database.claim(10)) == 3
    words = ("may start at most 3 tasks in 1 min", "the next start is possible in 20 s")
    explained(database, last, Reason.RATE_LIMIT, *words)
    database.clock.advance(timedelta(seconds=20) - timedelta(milliseconds=1))
    explained(database, last, Reason.RATE_LIMIT)
    assert database.claim(10) == []
    database.clock.advance(timedelta(milliseconds=1))
    explained(database, last, Reason.DUE, "ahead of it in its queue: 1")
    assert len(database.claim(10)) == 1


def test_a_task_needs_a_live_worker_for_its_queue_topic_and_name(database):
    handled = database.add(queue="mail", topic="order.paid")
    alone = database.add(queue="mail")
    at_work(database, queues=["other"])
    explained(database, handled, Reason.NO_WORKER, "'mail'")
    at_work(database, queues=["mail"], topics=["order.cancelled", "paid"], task_names=[])
    explained(database, handled, Reason.TOPIC_UNWANTED, "no live worker on its queue handles the topic 'order.paid'")
    explained(database, alone, Reason.TOPIC_UNWANTED, "tasks without a topic")
    at_work(database, queues=["mail"], topics=["order.*"], task_names=["tests.other"])
    explained(database, handled, Reason.TASK_UNKNOWN, "'tests.work'", "import its module")
    knowing = at_work(database, queues=["mail"])
    explained(database, alone, Reason.DUE)
    database.frozen.workers.unregister(knowing)
    explained(database, handled, Reason.TASK_UNKNOWN)
    database.clock.advance(91)
    explained(database, handled, Reason.NO_WORKER)


def test_a_worker_ordered_to_go_quiet_or_to_stop_serves_no_queue(database):
    task, orders = database.add(queue="mail"), database.frozen.worker_orders
    quiet, other = at_work(database, queues=["mail"]), at_work(database, queues=["mail"])
    orders.give(quiet, WorkerOrder.QUIET)
    explained(database, task, Reason.DUE)
    assert [one.live_workers for one in database.frozen.stats(queues=["mail"])] == [1]
    orders.give(other, WorkerOrder.STOP)
    explained(database, task, Reason.WORKERS_QUIET, "were told to stop claiming tasks: ", " (quiet)", " (stop)")
    assert [one.live_workers for one in database.frozen.stats(queues=["mail"])] == [0]
    assert "no live worker serves the queue 'mail'" in str(database.frozen.health(HealthLimits(no_worker=True)))
    orders.give(quiet, None)
    explained(database, task, Reason.DUE)


def test_a_due_task_is_not_promised_a_claim_if_no_worker_was_seen_recently(database):
    """Workers count as live for 90 s after a report, but report every five seconds."""
    at_work(database, queues=["default"])
    task = database.add()
    database.clock.advance(45)
    explained(database, task, Reason.DUE, "the next claim will take it")
    database.clock.advance(1)
    at_work(database, queues=["other"])
    words = ("it is due and can start, but no worker on its queue has been seen for 46 s",)
    explained(database, task, Reason.DUE, *words, cured=[("worker", "-q")])


def test_a_due_task_shows_how_many_tasks_are_ahead_of_it(database):
    at_work(database)
    first, second = database.add(), database.add(available_at=helpers.stale_by(database, 5))
    third = database.add(partition_key="k", priority=1)
    database.add(priority=-1)
    database.add(priority=2, delay=HOUR)
    database.add(priority=2, queue="other")
    explained(database, third, Reason.DUE, "the next claim will take it")
    explained(database, second, Reason.DUE, "ahead of it in its queue: 1")
    explained(database, first, Reason.DUE, "ahead of it in its queue: 2")


def test_inconsistent_tables_are_reported(database):
    handle, claim = database.add(delay=HOUR), helpers.claimed(database)
    database.run("DELETE FROM task_outbox")
    database.run("DELETE FROM task_leases")
    explained(database, handle, Reason.INCONSISTENT, "verify and repair")
    explained(database, claim, Reason.INCONSISTENT, "verify and repair")
    database.corrupted = True


def test_a_page_of_tasks_needs_as_many_statements_as_two_tasks(database):
    at_work(database)
    database.frozen.queues.limit("mail", concurrency=1, create=True)
    key = {"partition_key": "k", "queue": "mail"}
    first = database.add(**key, delay=HOUR)
    many = [database.add(**key).id for _ in range(5)] + [database.add(queue="mail", delay=HOUR).id for _ in range(5)]

    def asked(ids):
        rows, statements = [database.frozen.get(one) for one in ids], []
        listener = lambda *given: statements.append(given[2])  # noqa: E731
        event.listen(database.engine, "before_cursor_execute", listener)
        try:
            return database.frozen.outlooks(rows), len(statements)
        finally:
            event.remove(database.engine, "before_cursor_execute", listener)

    _, few = asked([first.id, many[0]])
    found, all_of_them = asked([first.id, *many])
    assert few == all_of_them > 0
    assert [found[one].reason for one in (first.id, *many)] == [
        Reason.DELAYED,
        *[Reason.KEY_WAITING] * 5,
        *[Reason.DELAYED] * 5,
    ]
    assert database.frozen.outlooks([]) == {}


def test_explain_can_read_a_transaction_of_the_caller(database):
    at_work(database)
    handle = database.add()
    with helpers.transaction(database) as connection:
        database.frozen.cancel(handle.id, using=connection)
        assert database.frozen.explain(handle.id, using=connection).reason is Reason.CANCELLED
    explained(database, handle, Reason.DUE)
