"""PostgreSQL: a task wakes one worker, and others look if that one does not take it. The bounds are in
`outboxq/store/claims/sleeping_workers.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from outboxq.database.dialects.channel import PROOF
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.distributor import create_work_distributor
from tests.contract import helpers
from tests.sleeper import Claimer, Sleeper
from tests.waiting import PROMPTLY, until

MINUTE = timedelta(minutes=1)


@pytest.fixture
def sleeping(postgresql):
    return Store(postgresql.engine).sleeping_workers


@pytest.fixture
def payloads(postgresql_url):
    """Calling it returns the payloads of everything committed since the last call."""
    url = make_url(postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN task_ready")

        def heard():
            found = []
            connection.execute("NOTIFY task_ready, 'end'")
            for notice in connection.notifies(timeout=10):
                if notice.payload == "end":
                    return found
                if not notice.payload.startswith(PROOF):
                    found.append(notice.payload)
            raise AssertionError("the end was not heard")

        yield heard


@pytest.fixture
def start(postgresql):
    made = []

    def start_one(**options):
        distributor = create_work_distributor(postgresql.store, **{"poll": MINUTE, **options})
        made.append(distributor)
        distributor.start()
        until(lambda: distributor.health.listening)
        return distributor

    yield start_one
    for distributor in made:
        distributor.close()


def new(**fields):
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


def add(postgresql, **fields):
    handle = postgresql.store.enqueue(new(**fields))
    return handle.id, time.monotonic()


def lie_down(sleeping, count, queues=None):
    """Let so many workers sleep that never react, as if they were frozen. Returns their names."""
    workers = [uuid4() for _ in range(count)]
    for worker in workers:
        sleeping.announce(worker, queues, MINUTE)
    return {str(worker)[-12:] for worker in workers}


def names(payload):
    head, _, queue = payload.partition(" ")
    assert queue == "default"
    called, *named = head.split(",")
    assert len(set(named)) == len(named)
    return int(called), named


# What the trigger says


def test_one_task_calls_one_sleeper_and_names_three_deputies(postgresql, sleeping, payloads):
    workers = lie_down(sleeping, 10)
    lie_down(sleeping, 10, ["other"])
    add(postgresql)
    [payload] = payloads()
    called, named = names(payload)
    assert (called, len(named)) == (1, 4)
    assert workers.issuperset(named)


def test_fewer_sleepers_are_all_named(postgresql, sleeping, payloads):
    workers = lie_down(sleeping, 2)
    add(postgresql)
    [payload] = payloads()
    assert set(names(payload)[1]) == workers


@pytest.mark.parametrize(("tasks", "called"), [(5, 5), (100, 16)])
def test_a_statement_calls_as_many_as_it_has_tasks(postgresql, sleeping, payloads, tasks, called):
    lie_down(sleeping, 30)
    postgresql.store.enqueue_many([new() for _ in range(tasks)])
    [payload] = payloads()
    found, named = names(payload)
    assert (found, len(named)) == (called, called + 3)


def test_the_statements_of_a_transaction_say_the_same_and_other_transactions_call_others(
    postgresql, sleeping, payloads
):
    lie_down(sleeping, 10)
    with helpers.transaction(postgresql) as connection:
        for _ in range(20):
            postgresql.store.enqueue(new(), using=connection)
        connection.commit()
    assert len(payloads()) == 1
    for _ in range(40):
        add(postgresql)
    assert len(Counter(names(payload)[1][0] for payload in payloads())) > 3


def test_a_transaction_that_is_rolled_back_calls_nobody_and_changes_no_row(postgresql, sleeping, payloads):
    workers = lie_down(sleeping, 3)
    before = postgresql.rows("SELECT * FROM sleeping_workers ORDER BY worker_id")
    with helpers.transaction(postgresql) as connection:
        postgresql.store.enqueue(new(), using=connection)
        connection.rollback()
    assert payloads() == []
    assert postgresql.rows("SELECT * FROM sleeping_workers ORDER BY worker_id") == before
    add(postgresql)
    assert set(names(payloads()[0])[1]) == workers


def test_a_delayed_task_says_when_it_is_due(postgresql, sleeping, payloads):
    lie_down(sleeping, 3)
    postgresql.store.enqueue_many([new(delay=timedelta(seconds=20)), new(delay=timedelta(seconds=30)), new()])
    at, called = sorted(payloads(), key=lambda payload: not payload.startswith("@"))
    [(due,)] = postgresql.rows(
        "SELECT min(extract(epoch FROM available_at)) FROM task_outbox WHERE available_at > now()"
    )
    assert abs(float(at.removeprefix("@").removesuffix(" default")) - float(due)) < 0.0001
    assert names(called)[0] == 1


def test_a_worker_of_some_topics_hears_of_each_task_and_is_never_named(postgresql, sleeping, payloads):
    """It may refuse the task, and the one that would take it must not wait for it."""
    for _ in range(5):
        sleeping.announce(uuid4(), None, MINUTE, topics=["order.*"])
    add(postgresql)
    assert payloads() == ["* default"]
    workers = lie_down(sleeping, 1)
    add(postgresql)
    assert set(names(payloads()[0])[1]) == workers


def test_two_open_transactions_do_not_wait_for_each_other(postgresql, start):
    with (
        Claimer(postgresql.store, start()) as one,
        Claimer(postgresql.store, start()) as other,
        helpers.transaction(postgresql) as first,
        helpers.transaction(postgresql) as second,
    ):
        tasks = [postgresql.store.enqueue(new(), using=connection).id for connection in (first, second)]
        second.commit()
        first.commit()
        committed = time.monotonic()
        until(lambda: len(one.claimed | other.claimed) == len(tasks))
        assert time.monotonic() - committed < PROMPTLY


# What the workers do


@pytest.fixture
def sleepers(postgresql, start):
    """Ten workers that sleep."""
    with ExitStack() as stack:
        found = [stack.enter_context(Claimer(postgresql.store, start(), tells=False)) for _ in range(10)]
        for one in found:
            until(lambda one=one: one.distributor._announced_until > time.monotonic())
        yield found


def test_a_task_makes_at_most_two_claims_while_ten_workers_sleep(postgresql, sleepers, monkeypatch):
    """On a machine so slow that the called worker needs 0.1 s, deputies would claim too: here they wait longer."""
    monkeypatch.setattr("outboxq.worker.distributor.postgresql._DEPUTIES", (20.0, 20.0, 20.0))
    until(lambda: quiet(sleepers))
    before = sum(one.claims for one in sleepers)
    for count in range(1, 21):
        add(postgresql)
        until(lambda count=count: sum(len(one.claimed) for one in sleepers) == count)
    until(lambda: quiet(sleepers))
    assert sum(one.claims for one in sleepers) - before <= 2 * 20
    assert len([one for one in sleepers if one.claimed]) > 1, "they take turns"


def test_a_delayed_task_makes_few_claims_when_it_becomes_due(postgresql, sleepers):
    until(lambda: quiet(sleepers))
    before = sum(one.claims for one in sleepers)
    _, committed = add(postgresql, delay=timedelta(seconds=1))
    until(lambda: any(one.claimed for one in sleepers))
    assert 1 - 0.1 < time.monotonic() - committed < 1 + PROMPTLY
    until(lambda: quiet(sleepers))
    assert sum(one.claims for one in sleepers) - before < 5


def quiet(sleepers):
    claims = [one.claims for one in sleepers]
    time.sleep(0.3)
    return claims == [one.claims for one in sleepers]


@pytest.mark.parametrize("frozen", [1, 2, 3])
def test_who_is_frozen_while_it_is_called_delays_the_task_by_the_deputys_time(postgresql, sleeping, start, frozen):
    """0.1 s, 1 s and 5 s. The poll comes after a minute."""
    with Claimer(postgresql.store, start(), tells=False) as alive:
        until(lambda: alive.distributor._announced_until > time.monotonic())
        lie_down(sleeping, frozen)
        for _ in range(4):
            task, committed = add(postgresql)
            assert alive.lag(task, committed) < (0.1, 1, 5)[frozen - 1] + PROMPTLY


def test_a_burst_of_tasks_reaches_every_sleeper_by_the_calls_of_those_that_are_full(postgresql, start):
    with ExitStack() as stack:
        workers = [stack.enter_context(Busy(postgresql.store, start(), limit=1)) for _ in range(6)]
        for one in workers:
            until(lambda one=one: one.distributor._announced_until > time.monotonic())
        with helpers.transaction(postgresql) as connection:
            for _ in range(6):
                postgresql.store.enqueue(new(), using=connection)
            connection.commit()
        until(lambda: all(one.claimed for one in workers), seconds=PROMPTLY)


class Busy(Claimer):
    """Claims one task, and then has no free handler."""

    def _work(self):
        if not self.claimed:
            super()._work()
        if self.claimed:
            self.distributor.at_work(full=True)
            time.sleep(0.01)


def test_a_called_worker_that_is_saturated_calls_others_only_for_tasks_that_are_due(
    postgresql, sleeping, payloads, start
):
    distributor = start()
    sleeper = Sleeper(distributor)
    with sleeper.asleep() as woken:
        add(postgresql)
        woken.result(30)
    other = lie_down(sleeping, 1)
    assert len(payloads()) == 1
    distributor.at_work(saturated=True)
    [payload] = payloads()
    assert names(payload) == (2, list(other)), "it is no sleeper itself any more"
    distributor.at_work(saturated=True)
    assert payloads() == [], "it passes a call on once"
    distributor._calls.add("default")
    postgresql.claim(store=postgresql.store)
    distributor.at_work(saturated=True)
    assert payloads() == [], "nothing is due"
