"""Calls on PostgreSQL: a task wakes one worker, and the other workers check if that one does not take the task. The proof and the bounds
are in `outboxq/store/claims/sleeping_workers.py`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import combinations_with_replacement, count
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
from tests.waiting import PATIENCE, PROMPTLY, until

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MODULE = "outboxq.worker.distributor.postgresql"


@pytest.fixture
def sleeping(postgresql):
    return Store(postgresql.engine).sleeping_workers


@pytest.fixture
def connect(postgresql_url):
    url = make_url(postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(url, autocommit=True))


@pytest.fixture
def payloads(connect):
    """Return a function that returns the payloads of all notifications since its last call."""
    connection = connect()
    connection.execute("LISTEN task_ready")

    def heard():
        found = []
        connection.execute("NOTIFY task_ready, 'end'")
        for notice in connection.notifies(timeout=PATIENCE):
            if notice.payload == "end":
                return found
            if not notice.payload.startswith(PROOF):
                found.append(notice.payload)
        raise AssertionError("the last notification was not received")

    return heard


@pytest.fixture
def lie_down(sleeping, connect):
    """Return a function that adds sleeping workers that do nothing, and returns their sessions. With `killed`, their sessions have ended.
    Otherwise, the workers are frozen.
    """
    held, numbers = connect(), count(10**18)

    def several(many, queues=None, *, killed=False):
        sessions = {next(numbers) for _ in range(many)}
        for session in sessions:
            sleeping.announce(uuid4(), queues, MINUTE, session=session)
            if not killed:
                held.execute("SELECT pg_advisory_lock(%s)", [session])
        return sessions

    return several


@pytest.fixture
def start(postgresql):
    made = []

    def start_one(**options):
        distributor = create_work_distributor(postgresql.store, **{"poll": HOUR, **options})
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


def sessions_of(payload):
    """Return how many workers a notification calls, and the sessions that it names."""
    head, _, queue = payload.partition(" ")
    assert queue == "default"
    called, _, *sessions = map(int, head.split(","))
    assert len(set(sessions)) == len(sessions)
    return called, sessions


# What the trigger sends


def test_one_task_calls_one_sleeper_and_names_a_deputy(postgresql, lie_down, payloads):
    workers = lie_down(10)
    lie_down(10, ["other"])
    add(postgresql)
    [payload] = payloads()
    called, sessions = sessions_of(payload)
    assert (called, len(sessions)) == (1, 2)
    assert workers.issuperset(sessions)


def test_a_few_sleepers_are_all_named(postgresql, lie_down, payloads):
    workers = lie_down(2)
    postgresql.store.enqueue_many([new() for _ in range(5)])
    [payload] = payloads()
    assert set(sessions_of(payload)[1]) == workers


@pytest.mark.parametrize(("tasks", "called"), [(5, 5), (100, 16)])
def test_a_statement_calls_one_worker_for_each_task_up_to_16(postgresql, lie_down, payloads, tasks, called):
    lie_down(20)
    postgresql.store.enqueue_many([new() for _ in range(tasks)])
    [payload] = payloads()
    found, sessions = sessions_of(payload)
    assert (found, len(sessions)) == (called, called + 1)


def test_a_worker_whose_session_has_ended_is_not_called(postgresql, lie_down, payloads):
    """This also holds in a transaction that runs while another one has tested the same sessions."""
    lie_down(10, killed=True)
    add(postgresql)
    assert payloads() == ["* default"]
    alive = lie_down(1)
    with helpers.transaction(postgresql) as first, helpers.transaction(postgresql) as second:
        for connection in (first, second):
            postgresql.store.enqueue(new(), using=connection)
        second.commit()
        first.commit()
    assert [sessions_of(payload) for payload in payloads()] == [(1, list(alive))] * 2


def test_many_ended_sessions_do_not_cause_many_advisory_locks(postgresql, lie_down, payloads):
    lie_down(100, killed=True)
    with helpers.transaction(postgresql) as connection:
        postgresql.store.enqueue(new(), using=connection)
        locks = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert locks.scalar_one() <= 32
        connection.commit()
    assert payloads() == ["* default"]


STRANGE = [
    "5 default",
    "1,x default",
    "² default",
    "-x default",
    "-",
    "@nan default",
    "@inf default",
    "@1e308 default",
    "7",
    "",
]


@pytest.mark.parametrize("payload", STRANGE)
def test_a_malformed_notification_wakes_the_worker_and_stops_no_listener(postgresql, start, payload):
    """Any role may send a notification."""
    distributor = start()
    distributor.wait_for_work(timeout=0)  # starts to listen
    connections = distributor.health.connections
    distributor._on_notify(payload)
    assert distributor._wakeup.wait(0)
    assert distributor.health.connections == connections


def test_statements_of_a_transaction_call_the_same_worker_and_other_transactions_call_others(
    postgresql, lie_down, payloads
):
    lie_down(10)
    with helpers.transaction(postgresql) as connection:
        for _ in range(20):
            postgresql.store.enqueue(new(), using=connection)
        connection.commit()
    assert len(payloads()) == 1
    for _ in range(40):
        add(postgresql)
    assert len(Counter(sessions_of(payload)[1][0] for payload in payloads())) > 3


def test_a_rolled_back_transaction_calls_no_worker_and_changes_no_row(postgresql, lie_down, payloads):
    workers = lie_down(2)
    before = postgresql.rows("SELECT * FROM sleeping_workers ORDER BY worker_id")
    with helpers.transaction(postgresql) as connection:
        postgresql.store.enqueue(new(), using=connection)
        connection.rollback()
    assert payloads() == []
    assert postgresql.rows("SELECT * FROM sleeping_workers ORDER BY worker_id") == before
    add(postgresql)
    assert set(sessions_of(payloads()[0])[1]) == workers


def test_a_delayed_task_is_announced_with_its_due_time(postgresql, lie_down, payloads):
    lie_down(3)
    postgresql.store.enqueue_many([new(delay=timedelta(seconds=20)), new(delay=timedelta(seconds=30)), new()])
    at, called = sorted(payloads(), key=lambda payload: not payload.startswith("@"))
    [(due,)] = postgresql.rows(
        "SELECT min(extract(epoch FROM available_at)) FROM task_outbox WHERE available_at > now()"
    )
    assert abs(float(at.removeprefix("@").removesuffix(" default")) - float(due)) < 0.0001
    assert sessions_of(called)[0] == 1


def test_a_worker_with_a_topic_filter_is_woken_by_each_task_but_never_named(postgresql, lie_down, payloads, start):
    """The worker may refuse the task. A worker that would take it must not wait for that."""
    choosy = start(topics=["order.*"])
    sleeper = Sleeper(choosy)
    with sleeper.asleep() as woken:
        add(postgresql)
        assert payloads() == ["* default"]
        woken.result(30)
    postgresql.claim(store=postgresql.store)
    workers = lie_down(1)
    with sleeper.asleep() as woken:
        add(postgresql)
        assert set(sessions_of(payloads()[0])[1]) == workers
        woken.result(30)


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
    """Ten sleeping workers."""
    with ExitStack() as stack:
        found = [stack.enter_context(Claimer(postgresql.store, start(), tells=False)) for _ in range(10)]
        for one in found:
            until(lambda one=one: one.distributor._announced_until > time.monotonic())
        yield found


def test_a_task_makes_one_claim_while_ten_workers_sleep(postgresql, sleepers, monkeypatch):
    """On a slow machine, where the called worker needs 0.1 s, the deputies would also claim. So they wait for an hour here."""
    monkeypatch.setattr(f"{MODULE}._DEPUTY_AFTER", 3600.0)
    monkeypatch.setattr(f"{MODULE}._EVERYBODY_AFTER", 3600.0)
    until(lambda: quiet(sleepers))
    before = sum(one.claims for one in sleepers)
    looks, look = [], postgresql.store.sleeping_workers.look

    def looked(*given):
        seen = look(*given)
        looks.extend([seen] * (seen.settled and not seen.due))
        return seen

    monkeypatch.setattr(postgresql.store.sleeping_workers, "look", looked)
    for number in range(1, 21):
        add(postgresql)
        # Wait until the worker that took the task sleeps again. Otherwise, its check could find the next task before the called worker
        # does.
        until(lambda number=number: sum(len(one.claimed) for one in sleepers) == number and len(looks) >= number)
    assert sum(one.claims for one in sleepers) - before <= 22
    assert len([one for one in sleepers if one.claimed]) > 1, "the workers take turns"


def test_a_delayed_task_makes_few_claims_when_it_becomes_due(postgresql, sleepers, monkeypatch):
    """Each worker checks some milliseconds after the previous one. A slow machine takes longer to claim, so the interval is a minute here."""
    monkeypatch.setattr(f"{MODULE}._APART", 60.0)
    monkeypatch.setattr(f"{MODULE}._LATEST", 3600.0)
    for one in sleepers:  # each has counted only the workers that came before it
        one.distributor._announced_until = -math.inf
        one.distributor.wake()
        until(lambda one=one: one.distributor._announced_until > time.monotonic())
    until(lambda: quiet(sleepers))
    before = sum(one.claims for one in sleepers)
    began = time.monotonic()
    _, committed = add(postgresql, delay=timedelta(seconds=1))
    until(lambda: any(one.claimed for one in sleepers))
    claimed = time.monotonic()
    assert claimed - began > 1 - 0.1
    assert claimed - committed < 1 + PROMPTLY
    until(lambda: quiet(sleepers))
    assert sum(one.claims for one in sleepers) - before < 5


def quiet(sleepers):
    claims = [one.claims for one in sleepers]
    time.sleep(0.3)
    return claims == [one.claims for one in sleepers]


@pytest.mark.parametrize(("frozen", "patched"), [(1, "_EVERYBODY_AFTER"), (12, "_DEPUTY_AFTER")])
def test_frozen_workers_delay_a_task_by_at_most_two_seconds(postgresql, lie_down, start, monkeypatch, frozen, patched):
    """The delay is 0.1 s if the deputy is alive, and 1 to 2 s otherwise. The poll would come after an hour."""
    monkeypatch.setattr(f"{MODULE}.{patched}", 3600.0)
    with Claimer(postgresql.store, start(), tells=False) as alive:
        until(lambda: alive.distributor._announced_until > time.monotonic())
        lie_down(frozen)
        for _ in range(4):
            task, committed = add(postgresql)
            assert alive.lag(task, committed) < 2 + PROMPTLY


def test_a_worker_that_finds_no_due_task_answers_for_the_others(postgresql, sleepers, monkeypatch):
    """Without the answer, they would check after an hour."""
    monkeypatch.setattr(f"{MODULE}._EVERYBODY_AFTER", 3600.0)
    monkeypatch.setattr(f"{MODULE}._ANSWER_AFTER", -1.0)
    until(lambda: quiet(sleepers))
    add(postgresql)
    until(lambda: any(one.claimed for one in sleepers))
    until(lambda: all(one.distributor._calls.look_at == math.inf for one in sleepers))


# Answers, in every interleaving


class Observer:
    """A worker that receives calls, checks and answers one step at a time."""

    def __init__(self, postgresql, connection):
        self.distributor = create_work_distributor(postgresql.store, poll=MINUTE)
        self.distributor._announced_until = math.inf  # its row already exists
        self._connection = connection
        connection.execute("LISTEN task_ready")

    def hears(self):
        end = f"end {uuid4()}"
        self._connection.execute("SELECT pg_notify('task_ready', %s)", [end])
        for notice in self._connection.notifies(timeout=PATIENCE):
            if notice.payload == end:
                return
            if not notice.payload.startswith("end"):
                self.distributor._on_notify(notice.payload)


EVENTS = ("A is committed", "A is taken", "B is committed")


def interleavings():
    """Yield every way to insert "hears" into the events, and to distribute the steps before, during and after the worker's check."""
    for events in (EVENTS[:2], EVENTS):
        for place in range(len(events) + 1):
            steps = (*events[:place], "hears", *events[place:])
            for points in combinations_with_replacement(range(3), len(steps)):
                yield (
                    events,
                    [[step for step, at in zip(steps, points, strict=True) if at == point] for point in range(3)],
                )


def test_no_interleaving_of_an_answer_leaves_a_task_without_a_check(
    postgresql, sleeping, lie_down, connect, monkeypatch
):
    """Either the worker that checks sees B and claims it, or the worker that receives its answer still checks for B."""
    monkeypatch.setattr(f"{MODULE}._ANSWER_AFTER", -1.0)
    lie_down(2)
    looks, hears = connect(), connect()
    answered = 0
    for events, (before, between, after) in interleavings():
        one, other = Observer(postgresql, looks), Observer(postgresql, hears)
        one.hears()
        other.hears()
        acts = {
            "A is committed": lambda: add(postgresql),
            "B is committed": lambda: add(postgresql),
            "A is taken": lambda: postgresql.claim(store=postgresql.store),
            "hears": one.hears,
        }

        def run(steps, acts=acts):
            for step in steps:
                acts[step]()

        class Interrupted:
            answer = staticmethod(sleeping.answer)

            @staticmethod
            def look(*given, between=between, after=after, run=run):
                run(between)
                found = sleeping.look(*given)
                run(after)
                return found

        run(before)
        one.distributor._sleeping = Interrupted
        claims = one.distributor._prepare_sleep(time.monotonic(), awaited=True) == 0
        other.hears()
        forgets = other.distributor._calls.look_at == math.inf
        answered += forgets
        assert claims or not forgets or events == EVENTS[:2], (before, between, after)
        while postgresql.claim(store=postgresql.store):
            pass
    assert answered, "in some interleavings, an answer ends the others' wait"


@pytest.mark.parametrize("complete", [True, False])
def test_a_check_that_began_at_the_floors_does_not_answer_for_others(
    postgresql, sleeping, lie_down, connect, payloads, monkeypatch, complete
):
    monkeypatch.setattr(f"{MODULE}._ANSWER_AFTER", -1.0)
    lie_down(2)
    one = Observer(postgresql, connect())
    add(postgresql)
    postgresql.claim(store=postgresql.store)
    one.hears()
    payloads()

    class Looked:
        answer = staticmethod(sleeping.answer)

        @staticmethod
        def look(*given):
            return replace(sleeping.look(*given), complete=complete)

    one.distributor._sleeping = Looked
    one.distributor._prepare_sleep(time.monotonic(), awaited=True)
    assert len(payloads()) == complete


def test_an_answer_contains_the_time_when_a_rate_limit_allows_the_next_start(
    postgresql, lie_down, connect, monkeypatch
):
    """A worker whose calls are answered does not check on its own, so it would find the task only at its next poll."""
    monkeypatch.setattr(f"{MODULE}._ANSWER_AFTER", -1.0)
    postgresql.store.queues.limit("default", rate=(2, HOUR))
    lie_down(2)
    one, other = Observer(postgresql, connect()), Observer(postgresql, connect())
    postgresql.store.enqueue_many([new() for _ in range(3)])
    one.hears()
    other.hears()
    assert len(postgresql.claim(3, store=postgresql.store)) == 2
    one.distributor._prepare_sleep(time.monotonic(), awaited=True)
    other.hears()
    assert other.distributor._calls.look_at == math.inf
    assert 1700 < other.distributor._next_look() - time.monotonic() < 1900  # one start per half hour


def test_a_worker_does_not_answer_recent_calls(postgresql, sleeping, lie_down, connect, payloads):
    """While tasks arrive, the called workers check all the time, and must not answer each call."""
    lie_down(2)
    one = Observer(postgresql, connect())
    one.distributor._horizon = 0
    add(postgresql)
    postgresql.claim(store=postgresql.store)
    one.hears()
    payloads()
    one.distributor._calls._calls[0] = replace(one.distributor._calls._calls[0], heard_at=time.monotonic() + 3600)
    one.distributor._prepare_sleep(time.monotonic(), awaited=True)
    assert payloads() == []


def test_saturated_workers_pass_a_burst_of_tasks_on_to_all_sleepers(postgresql, start, monkeypatch):
    monkeypatch.setattr(f"{MODULE}._DEPUTY_AFTER", 3600.0)
    monkeypatch.setattr(f"{MODULE}._EVERYBODY_AFTER", 3600.0)
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
    """A worker that claims one task and then has no free handler."""

    def _work(self):
        if not self.claimed:
            super()._work()
        if self.claimed:
            self.distributor.at_work(full=True)
            time.sleep(0.01)


def test_a_called_worker_that_is_saturated_calls_others_only_if_tasks_are_due(postgresql, lie_down, payloads, start):
    distributor = start()
    sleeper = Sleeper(distributor)
    with sleeper.asleep() as woken:
        add(postgresql)
        woken.result(30)
    other = lie_down(1)
    assert len(payloads()) == 1
    distributor.at_work(saturated=True)
    [payload] = payloads()
    assert sessions_of(payload) == (2, list(other)), "the worker itself is no longer a sleeper"
    distributor.at_work(saturated=True)
    assert payloads() == [], "the worker passes each call on only once"
    distributor._named_for.add("default")
    postgresql.claim(store=postgresql.store)
    distributor.at_work(saturated=True)
    assert payloads() == [], "no task is due"
