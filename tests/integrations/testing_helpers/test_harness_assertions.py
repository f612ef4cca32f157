"""The harness's assertions about enqueued tasks, and the messages of failed ones."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from unittest.mock import ANY

import pytest

from outboxq import ConfigurationError, InvalidCall, Outbox, UnknownTask
from outboxq.model.subscriptions import Subscription
from outboxq.testing import Harness


@pytest.fixture
def harness(shop, connection, session):
    """A harness with three enqueued tasks."""
    with Harness(shop.outbox, using=connection) as harness:
        shop.receipt.using(session).enqueue(7)
        shop.receipt.using(session, queue="slow", priority=5, partition_key="c:1", delay=60).enqueue(8, copy_to="boss")
        shop.ship.using(session).enqueue(9)
        yield harness


def refused(call, *args, **described):
    with pytest.raises(AssertionError) as raised:
        call(*args, **described)
    return str(raised.value)


def test_tasks_match_a_partial_description(shop, harness):
    receipt = shop.receipt
    for described in (
        {},
        {"order_id": 8},
        {"kwargs": {"copy_to": "boss"}},
        {"copy_to": ANY, "order_id": ANY},
        {"queue": "slow", "priority": 5, "partition_key": "c:1", "status": "Ready"},
        {"delay": 60},
        {"delay": timedelta(minutes=1), "at": harness.clock() + timedelta(minutes=1)},
    ):
        assert 8 in [one.args["order_id"] for one in harness.assert_enqueued(receipt, **described)]
    assert [one.args["order_id"] for one in harness.assert_enqueued("shop.receipt", times=2)] == [7, 8]
    assert [one.args for one in harness.enqueued(receipt, 7)] == [{"order_id": 7}]
    assert [one.task_name for one in harness.enqueued()] == ["shop.receipt", "shop.receipt", "shop.ship"]
    assert harness.assert_enqueued(receipt, 7, copy_to="nobody"), "a default is not stored, but matches"
    assert harness.assert_enqueued(receipt, 99, times=0) == []
    harness.refute_enqueued(receipt, 9)
    harness.refute_enqueued(shop.book)


def test_tasks_that_ran_count_as_enqueued(shop, harness):
    harness.drain(queues=["mail"])
    assert [one.status for one in harness.enqueued(shop.receipt)] == ["Completed", "Ready"]
    harness.assert_enqueued(shop.receipt, 7, status="Completed")


@pytest.mark.parametrize("more", [0, 1, 3])
def test_any_number_of_enqueued_tasks_is_counted_in_full(shop, connection, session, monkeypatch, more):
    monkeypatch.setattr("outboxq.testing.harness._KEPT", 4)
    with Harness(shop.outbox, using=connection):
        shop.receipt.using(session).enqueue_many([(-number,) for number in range(1, 7)])
    with Harness(shop.outbox, using=connection) as harness:
        harness.refute_enqueued()
        shop.receipt.using(session).enqueue_many([(number,) for number in range(8 + more)])
        harness.assert_enqueued(shop.receipt, times=8 + more)
        harness.assert_enqueued(shop.receipt, 0)
        harness.refute_enqueued(shop.receipt, -6)


def test_only_tasks_enqueued_within_the_harness_count(shop, harness, session, connection):
    with Harness(shop.outbox, using=connection) as inner:
        inner.refute_enqueued()
        shop.receipt.using(session).enqueue(7)
        inner.assert_enqueued(shop.receipt, 7, times=1)
    harness.assert_enqueued(shop.receipt, 7, times=2)


def test_values_are_compared_as_the_handler_receives_them(harness, session):
    @harness.app.task(name="typed")
    def typed(day: date, moment: datetime, pair: tuple[int, int], loose=None) -> None: ...

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    typed.using(session).enqueue(moment.date(), moment, (1, 2), loose=[1])
    harness.assert_enqueued(typed, moment.date(), moment, (1, 2), (1,))
    harness.refute_enqueued(typed, date(2031, 1, 1))


def test_a_failed_assertion_lists_enqueued_tasks_with_the_closest_first(shop, harness):
    told = refused(harness.assert_enqueued, shop.receipt, 8, queue="mail", delay=5)
    assert told == (
        "shop.receipt(order_id=8) with queue='mail', delay=5 s was not enqueued. What was, the closest first:\n"
        "  shop.receipt(order_id=7)  queue='mail', Ready  <- order_id is 7, not 8; delay is 0 s, not 5 s\n"
        "  shop.receipt(order_id=8, copy_to='boss')  queue='slow', delay=60 s, partition_key='c:1', priority=5, Ready"
        "  <- queue is 'slow', not 'mail'; delay is 60 s, not 5 s\n"
        "  shop.ship(order_id=9)  queue='default', Ready  <- another task"
    )


def test_an_unknown_name_is_reported_with_a_similar_one(shop, harness):
    told = refused(harness.assert_enqueued, "shop.recipt")
    assert told.startswith(
        "shop.recipt was not enqueued (this process does not declare such a task; did you mean 'shop.receipt'?). What was"
    )
    assert "declare" not in refused(harness.assert_enqueued, "shop.receipt", kwargs={"order_id": 70})
    with pytest.raises(InvalidCall, match=re.escape("kwargs={…}; did you mean 'shop.receipt'?")):
        harness.assert_enqueued("shop.recipt", 7)


def test_refuting_an_unknown_name_is_an_error(shop, harness, session):
    """With a misspelled name, `refute_enqueued` would always pass."""
    told = (
        "this process does not declare a task 'shop.recipt', and none was enqueued; did you mean 'shop.receipt'? "
        "If another program declares it, write: assert not harness.enqueued('shop.recipt')"
    )
    for described in ({}, {"kwargs": {"order_id": 7}}, {"queue": "mail"}):
        with pytest.raises(UnknownTask, match=f"^{re.escape(told)}$"):
            harness.refute_enqueued("shop.recipt", **described)
    assert not harness.enqueued("shop.recipt")
    harness.refute_enqueued("shop.receipt", 9)


def test_the_task_of_another_program_can_be_refuted_if_the_outbox_knows_it(shop, harness, session):
    elsewhere = Subscription(topic="order.*", task_name="crm.sync", parameter="payload", queue="crm")
    harness.store.subscriptions.replace([elsewhere])
    harness.refute_enqueued("crm.sync")
    harness.emit("order.paid", {})
    assert "crm.sync was enqueued" in refused(harness.refute_enqueued, "crm.sync")
    harness.refute_enqueued("crm.sync", queue="mail")


def test_a_wrong_number_lists_enqueued_tasks(shop, harness):
    told = refused(harness.assert_enqueued, shop.receipt, times=1)
    assert told.startswith(
        "shop.receipt was enqueued twice, not once. What was, the closest first:\n  shop.receipt(order_id=7)"
    )
    told = refused(harness.assert_enqueued, shop.receipt, 7, times=3)
    assert told.startswith("shop.receipt(order_id=7) was enqueued once, not 3 times.")


def test_a_failed_refutation_shows_the_task(shop, harness):
    told = refused(harness.refute_enqueued, shop.receipt, 7)
    assert told == (
        "shop.receipt(order_id=7) was enqueued, but should not have been. What was:\n"
        "  shop.receipt(order_id=7)  queue='mail', Ready"
    )
    assert refused(harness.refute_enqueued).startswith("a task was enqueued, but should not have been.")
    assert refused(harness.refute_enqueued, status="Ready").startswith("a task with status=Ready was enqueued")


def test_the_absence_of_tasks_is_reported(shop, connection):
    with Harness(shop.outbox, using=connection) as empty:
        assert refused(empty.assert_enqueued, shop.receipt) == (
            "shop.receipt was not enqueued. This test's transaction sees no enqueued tasks."
        )


def test_a_long_list_is_cut(shop, harness, session):
    shop.ship.using(session).enqueue_many([(number,) for number in range(20)])
    told = refused(harness.assert_enqueued, shop.receipt, 70)
    assert told.endswith("\n  … and 13 more")
    assert len(told.splitlines()) == 12


def test_an_invalid_description_is_an_error_instead_of_a_pass(shop, harness):
    with pytest.raises(
        InvalidCall, match=re.escape("unexpected keyword argument 'quue'; its parameters are: order_id")
    ):
        harness.refute_enqueued(shop.receipt, quue="mail")
    with pytest.raises(InvalidCall, match="too many positional arguments"):
        harness.refute_enqueued(shop.book, 1, 2)
    for described in ((("elsewhere", 7), {}), (("elsewhere",), {"order_id": 7}), ((), {"order_id": 7})):
        with pytest.raises(InvalidCall, match=re.escape("describe them with kwargs={…}")):
            harness.refute_enqueued(*described[0], **described[1])
    with pytest.raises(ValueError, match="'Redy' is not a valid TaskStatus"):
        harness.refute_enqueued(shop.receipt, status="Redy")


def test_a_task_of_another_outbox_is_refused(shop, harness):
    """Otherwise, `refute_enqueued` would pass, and `assert_enqueued` would say that the task was not enqueued."""
    foreign = Outbox().task(name="other.bill")(lambda: None)
    for call in (harness.assert_enqueued, harness.refute_enqueued, harness.enqueued, harness.run):
        with pytest.raises(ConfigurationError, match=r"the task other\.bill belongs to another Outbox"):
            call(foreign)
