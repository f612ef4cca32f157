"""Headers reach the handler, however the task is enqueued and whatever happens to it in the meantime."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from outboxq import InvalidArgument, InvalidCall, Outbox, Retry, RetryPolicy, Snooze, TaskContext
from outboxq.testing import Harness
from tests.contract.helpers import everything
from tests.contract.test_cli import cells, outboxq

GIVEN = {"request-id": "r1", "Ü": "'\"\n☃"}
ONCE = RetryPolicy.never()


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def seen(outbox):
    """The headers of each attempt, in order. The tasks `t` and `u` both subscribe to orders."""
    seen = []

    @outbox.task(name="t", subscribe="order.*")
    def t(ctx: TaskContext, order: int | None = None) -> None:
        seen.append(dict(ctx.headers))

    @outbox.task(name="u", subscribe="order.paid")
    def u(ctx: TaskContext, order: int | None = None) -> None:
        seen.append(dict(ctx.headers))

    outbox.sync_subscriptions()
    return seen


def drain(outbox):
    assert outbox.worker(notifications=False, concurrency=1).run(burst=True) == 0


def test_each_enqueued_task_has_the_headers(outbox, seen):
    task = outbox.tasks.get("t")
    task.using(outbox, headers=GIVEN).enqueue()
    task.using(outbox, headers=GIVEN).enqueue_many([(1,), (2,)])
    task.using(outbox).enqueue()
    task.using(outbox, headers={}).enqueue()
    drain(outbox)
    assert seen == [GIVEN, GIVEN, GIVEN, {}, {}]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("headers", [None, GIVEN])
def test_each_task_of_an_emit_has_the_headers(outbox, seen, key, headers):
    emitted = outbox.emit("order.paid", 7, using=outbox, headers=headers, idempotency_key=key)
    assert len(emitted.handles) == 2
    drain(outbox)
    assert seen == [headers or {}] * 2


def test_an_emit_that_takes_over_a_key_keeps_its_headers(outbox, seen):
    outbox.tasks.get("t").using(outbox, idempotency_key="k", unique_until_finished=True).enqueue()
    drain(outbox)
    emitted = outbox.emit("order.paid", 7, using=outbox, headers=GIVEN, idempotency_key="k")
    assert [handle.created for handle in emitted.handles.values()] == [True, True]
    drain(outbox)
    assert seen == [{}, GIVEN, GIVEN]


@pytest.mark.parametrize("headers", [GIVEN, None])
def test_a_replaced_task_has_the_headers_of_the_later_call(outbox, seen, headers):
    task = outbox.tasks.get("t")
    task.using(outbox, idempotency_key="k", headers={"old": "1"}).enqueue()
    again = task.using(outbox, idempotency_key="k", headers=headers, on_conflict="replace").enqueue()
    assert again.replaced
    drain(outbox)
    assert seen == [headers or {}]


def test_headers_are_kept_through_retries_snoozes_and_a_redrive(outbox):
    seen = []

    @outbox.task(name="moody", retry=RetryPolicy(max_attempts=2, wait=0))
    def moody(ctx: TaskContext) -> None:
        seen.append(dict(ctx.headers))
        raise {1: ValueError("no"), 2: Snooze(1), 3: Retry(0)}.get(len(seen), ValueError("no"))

    with Harness(outbox) as harness:
        handle = moody.using(outbox, headers=GIVEN).enqueue()
        harness.drain(until=timedelta(seconds=60), raises=False)
        assert outbox.store.get(handle.id).status == "Failed"
        outbox.store.redrive(handle.id)
        harness.drain(limit=1, raises=False)
    assert len(seen) == 4
    assert all(one == GIVEN for one in seen)


def test_headers_are_kept_after_a_recovery(database):
    database.add(headers=json.dumps(GIVEN), lease=timedelta(seconds=5))
    [first] = database.claim()
    database.clock.advance(6)
    assert database.frozen.recover()
    [second] = database.claim()
    assert second.lease_token > first.lease_token
    assert json.loads(second.headers or "") == GIVEN


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "headers", [{"outboxq-id": "1"}, {"a": 1}, "a=b", {"a": "x" * 9000}], ids=["reserved", "number", "text", "long"]
)
def test_bad_headers_are_refused_before_anything_is_written(outbox, database, seen, headers):
    before = everything(database)
    with pytest.raises(InvalidArgument, match="headers? .*of task 't'"):
        outbox.tasks.get("t").using(outbox, headers=headers)
    with pytest.raises(InvalidArgument, match="headers? .*of event 'order.paid'"):
        outbox.emit("order.paid", 7, using=outbox, headers=headers)
    assert everything(database) == before


def test_headers_are_refused_in_a_declaration(outbox):
    with pytest.raises(InvalidCall, match="@outbox.task\\(\\) has no option 'headers'"):
        outbox.task(name="t", headers=GIVEN)


def test_invalid_stored_headers_do_not_fail_a_task(outbox, seen, database, caplog):
    database.add(database.store, task_name="t", headers='{"trace": 1}')
    drain(outbox)
    assert seen == [{}]
    assert [one.getMessage() for one in caplog.records if "headers" in one.getMessage()] != []


def test_task_show_prints_the_headers(outbox, seen, database):
    handle = outbox.tasks.get("t").using(outbox, headers={"request-id": "r1"}).enqueue()
    shown = outboxq("task", "show", str(handle.id), url=database.url)
    assert ["headers", '{"request-id":"r1"}'] in cells(shown)
