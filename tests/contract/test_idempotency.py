"""Idempotency keys: which task gets the key, until when, and what happens to later tasks."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from outboxq import Outbox
from outboxq.database.engine import configure_sqlite
from outboxq.errors import DuplicateTask, InvalidArgument
from outboxq.model import EventType, Handle, NewTask, OnConflict, OnDeadLetter, TaskStatus
from outboxq.model.history import replay
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import NOON, Database
from tests.contract.helpers import claimed, everything, lossy, stuck, transaction, types
from tests.waiting import until

MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
NIL = UUID(int=0)
RETURN, SKIP, REPLACE, RAISE = OnConflict.RETURN, OnConflict.SKIP, OnConflict.REPLACE, OnConflict.RAISE


def task(key: str | None = "k", mode: OnConflict = RETURN, **fields: Any) -> NewTask:
    mode = mode if key else RETURN
    values = {"id": uuid7(), "task_name": "tests.work", "args": "{}", "idempotency_key": key, "on_conflict": mode}
    return NewTask(**{**values, **fields})


def batch(keys: Sequence[str | None], mode: OnConflict = RETURN, **fields: Any) -> list[NewTask]:
    return [task(key, mode, **fields) for key in keys]


def tasks_of(database: Database, key: str) -> list[str]:
    """Return the args of every task that was ever enqueued with the key. The args contain the key."""
    return [row[0] for row in database.rows(f'SELECT args FROM task_executions WHERE args = \'{{"key": "{key}"}}\'')]


@contextmanager
def caller(database: Database, work: Callable[[Connection], Any]) -> Iterator[Future[Any]]:
    """Run `work` in an application's transaction in a thread. Continue once it too waits for a lock.

    SQLite has one lock, and only the request for it can be observed.
    """
    engine, asked = database.host_engine(), threading.Event()

    def see(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement == "BEGIN IMMEDIATE":
            asked.set()

    def run() -> Any:
        with engine.connect() as it, it.begin():
            return work(it)

    def waiting() -> int:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return asked.is_set() if database.name == "sqlite" else database.rows(waits)[0][0]  # type: ignore[return-value]

    event.listen(engine, "before_cursor_execute", see)
    before = waiting()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        until(lambda: waiting() > before or future.done())
        yield future


@contextmanager
def cursors(engine: Engine) -> Iterator[list[str]]:
    """Record the statements that the engine executes."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


# --- Each answer to a taken key


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize("others", [(), ("a", None, "z")], ids=["single", "batch"])
def test_a_taken_key_is_handled_as_on_conflict_says(
    database: Database, others: tuple[str | None, ...], joined: bool
) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    for number, mode in enumerate(OnConflict):
        name = f"tests.{mode}"
        held = database.add(task_name=name, idempotency_key="taken", args='{"say": "old"}')
        before = everything(database)
        new = batch([*others[:1], "taken", *others[1:]], mode, task_name=name, args='{"say": "new"}')
        with transaction(database) if joined else nullcontext() as using:
            if mode is RAISE:
                with pytest.raises(DuplicateTask, match="'taken'") as raised:
                    database.frozen.enqueue_many(new, using=using)
                assert raised.value.task_id == held.id
                assert str(held.id) in str(raised.value)
            else:
                handles = database.frozen.enqueue_many(new, using=using)
            if using is not None:
                using.execute(text(f"INSERT INTO orders (id) VALUES ({number})"))  # not aborted
                using.commit()
        if mode is RAISE:
            assert everything(database) == before
            continue
        answer = {
            RETURN: Handle(id=held.id, created=False),
            SKIP: Handle(id=NIL, created=False),
            REPLACE: Handle(id=held.id, created=False, replaced=True),
        }[mode]
        assert handles == [answer if one.idempotency_key == "taken" else Handle(id=one.id) for one in new]
        assert database.counts()[0] == len(before["task_executions"]) + len(others)
        assert database.frozen.get(held.id).args == ('{"say": "new"}' if mode is REPLACE else '{"say": "old"}')
    assert len(database.rows("SELECT * FROM orders")) == (4 if joined else 0)


def test_a_second_enqueue_with_the_same_key_creates_nothing_and_does_not_abort_the_transaction(
    database: Database,
) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with transaction(database) as it:
        first = database.store.enqueue(task(), using=it)
        second = database.store.enqueue(task(), using=it)
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
        it.commit()
    assert (second.created, second.id) == (False, first.id)
    assert (database.counts(), database.rows("SELECT id FROM orders")) == ((1, 1, 1), [(1,)])


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_the_second_of_two_concurrent_transactions_with_the_same_key_waits_and_is_not_aborted(
    database: Database, commits: bool
) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    for number, mode in enumerate(OnConflict):
        new = task(f"{mode}", mode)

        def second(it: Connection, new: NewTask = new, number: int = number) -> Handle | DuplicateTask:
            answer: Handle | DuplicateTask
            try:
                answer = database.store.enqueue(new, using=it)
            except DuplicateTask as error:
                answer = error
            it.execute(text(f"INSERT INTO orders (id) VALUES ({number})"))
            return answer

        with transaction(database) as it:
            holder = database.store.enqueue(task(f"{mode}"), using=it).id
            with caller(database, second) as waiting:
                assert not waiting.done()
                it.commit() if commits else it.rollback()
                answer = waiting.result(60)
        if not commits:
            assert answer == Handle(id=new.id)
        elif mode is RAISE:
            assert isinstance(answer, DuplicateTask)
            assert answer.task_id == holder
        else:
            assert answer == Handle(id=NIL if mode is SKIP else holder, created=False, replaced=mode is REPLACE)
    assert database.counts() == (4, 5 if commits else 4, 4)
    assert len(database.rows("SELECT id FROM orders")) == 4


class ExhaustedPool(QueuePool):
    """A pool whose connections are used by other threads, except for the first."""

    _was_asked = False

    def connect(self) -> PoolProxiedConnection:
        if self._was_asked:
            raise PoolTimeout("exhausted")
        self._was_asked = True
        return super().connect()


@pytest.mark.parametrize("pool", [QueuePool, ExhaustedPool])
def test_an_enqueue_that_waits_too_long_for_its_key_names_possible_holders(
    postgresql: Database, pool: type[QueuePool]
) -> None:
    engine = create_engine(postgresql.url, poolclass=pool)
    outbox = Outbox(engine, outage_timeout=0)
    pay = outbox.task(name="shop.pay")(lambda: None)
    with transaction(postgresql) as first:
        pay.using(first, idempotency_key="receipt:9").enqueue()
        process = first.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with pytest.raises(OperationalError) as raised:
            pay.using(outbox, idempotency_key="receipt:9").enqueue()
    engine.dispose()
    assert f"a row is locked, perhaps by one of these: process {process} (" in raised.value.__notes__[-1]


def test_a_refusal_keeps_a_transaction_of_the_driver_usable(database: Database) -> None:
    held = database.add(idempotency_key="taken")
    url = make_url(database.url)
    it: Any = (
        sqlite3.connect(str(url.database))
        if database.name == "sqlite"
        else psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    )
    with closing(it):
        kept = database.store.enqueue(task("kept"), using=it)
        with pytest.raises(DuplicateTask):
            database.store.enqueue_many(batch(["a", "taken", "z"], RAISE), using=it)
        again = database.store.enqueue_many(batch(["a", "kept", "taken"]), using=it)
        it.commit()
    assert [(handle.created, handle.id) for handle in again[1:]] == [(False, kept.id), (False, held.id)]
    assert again[0].created
    assert database.counts() == (3, 3, 3)


def test_a_key_given_twice_in_one_call_is_handled_as_in_two_calls(database: Database) -> None:
    for mode in (RETURN, SKIP, REPLACE):
        new = [task(f"{mode}", mode, args=f'{{"say": {n}}}') for n in range(3)]
        first, *others = database.frozen.enqueue_many(new)
        assert first == Handle(id=new[0].id)
        expected = Handle(id=NIL if mode is SKIP else first.id, created=False, replaced=mode is REPLACE)
        assert others == [expected] * 2
        assert database.frozen.get(first.id).args == f'{{"say": {2 if mode is REPLACE else 0}}}'
    before = everything(database)
    with pytest.raises(DuplicateTask, match="twice in one call"):
        database.frozen.enqueue_many(batch(["k", "k"], RAISE))
    assert everything(database) == before


def test_a_key_belongs_to_one_task_name(database: Database) -> None:
    handles = database.frozen.enqueue_many([task("k", RAISE, task_name=name) for name in ("a", "b", "c")])
    assert [handle.created for handle in handles] == [True] * 3


def test_invalid_options_are_refused_before_anything_is_written(database: Database) -> None:
    bad: list[dict[str, Any]] = [
        {"unique_for": timedelta(0)},
        {"unique_for": -MICROSECOND},
        {"unique_for": timedelta.max},
        {"unique_for": 60},
        {"unique_until_finished": 1},
        {"unique_until_finished": None},
        {"on_conflict": "skip"},
        {"idempotency_key": None, "unique_for": HOUR},
        {"idempotency_key": None, "unique_until_finished": True},
        *({"idempotency_key": None, "on_conflict": mode} for mode in OnConflict if mode is not RETURN),
    ]
    for fields in bad:
        (name, *_) = [field for field in fields if field != "idempotency_key"]
        with pytest.raises(InvalidArgument, match=name):
            database.frozen.enqueue_many([task("free"), task(**{"key": "k", **fields})])
    assert database.counts() == (0, 0, 0)
    assert database.rows("SELECT * FROM idempotency_keys") == []


# --- Costs (on PostgreSQL, where a statement is a round trip)


def cost(database: Database, new: list[NewTask]) -> int:
    engine = database.host_engine()
    with engine.connect() as it, it.begin(), cursors(engine) as seen:
        database.frozen.now(using=it)
        seen.clear()
        database.frozen.enqueue_many(new, using=it)
        return len(seen)


def test_free_keys_cost_one_statement(postgresql: Database) -> None:
    for mode in OnConflict:
        unique = {"unique_for": HOUR, "unique_until_finished": True}
        cost(postgresql, [task(f"first {mode}", mode)])  # the role's privileges are looked up once
        assert cost(postgresql, [task(f"single {mode}", mode, **unique)]) == 1
        many = cost(postgresql, batch([f"{n} {mode}" for n in range(50)], mode, **unique))
        assert many == (3 if mode is RAISE else 1)  # plus a savepoint, because one of them may raise


def test_a_taken_key_costs_one_more_statement(postgresql: Database) -> None:
    postgresql.add(idempotency_key="k")
    for mode in (SKIP, RETURN):
        assert cost(postgresql, batch(["k"] * 5, mode)) == 2


# --- When a key is free again


@pytest.mark.parametrize("unique", [{"unique_for": HOUR}, {"unique_until_finished": True}])
@pytest.mark.parametrize("mode", OnConflict)
def test_the_options_of_the_task_that_took_the_key_decide_when_it_is_free(
    database: Database, unique: dict[str, Any], mode: OnConflict
) -> None:
    first = database.add(idempotency_key="k", **unique)
    database.frozen.cancel(first.id)
    database.clock.advance(HOUR)
    assert database.add(idempotency_key="k", on_conflict=mode).created


def test_unique_for_is_exact_to_the_microsecond(database: Database) -> None:
    for number, unique_for in enumerate((MICROSECOND, timedelta(seconds=1.000001), timedelta(days=36500))):
        key, now = f"{number}", database.clock.now
        first = database.add(idempotency_key=key, unique_for=unique_for)
        database.clock.now = now + unique_for - MICROSECOND
        early = database.add(idempotency_key=key, unique_for=HOUR)
        assert (early.created, early.id) == (False, first.id)
        database.clock.now = now + unique_for
        second = database.add(idempotency_key=key, unique_for=HOUR)
        assert second.created
        assert {first.id, second.id} == {claim.id for claim in database.claim(5)}
        # From then on, the second task has the key for its own time.
        database.clock.advance(HOUR - MICROSECOND)
        assert database.add(idempotency_key=key).id == second.id
        database.clock.advance(MICROSECOND)
        assert database.add(idempotency_key=key, available_at=NOON.replace(year=8000)).created


def ended(database: Database, status: TaskStatus, **fields: Any) -> UUID:
    handle = database.add(**fields)
    if status is TaskStatus.CANCELLED:
        database.frozen.cancel(handle.id)
    else:
        (claim,) = database.claim()
        database.frozen.complete(claim) if status is TaskStatus.COMPLETED else database.frozen.fail(claim, "E")
    assert database.frozen.get(handle.id).status is status
    return handle.id


ENDED = [TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED]


def test_a_key_with_unique_until_finished_is_free_once_its_task_has_ended(database: Database) -> None:
    for status, mode in product(ENDED, OnConflict):
        key: dict[str, Any] = {"task_name": f"tests.{status}.{mode}", "unique_until_finished": True}
        first = ended(database, status, idempotency_key="k", **key)
        new = task("k", mode, **key, delay=HOUR)
        assert database.frozen.enqueue(new) == Handle(id=new.id)
        assert database.frozen.get(first).status is status
        assert database.add(idempotency_key="k", **key).id == new.id


def test_a_key_with_unique_until_finished_is_taken_until_its_task_has_ended(database: Database) -> None:
    again: dict[str, Any] = {"idempotency_key": "k", "unique_until_finished": True}
    first = database.add(**again)
    assert database.add(**again).id == first.id
    database.claim()
    assert database.add(**again).id == first.id
    database.frozen.schedule_retry(first.id, NOON + HOUR, 2)
    assert database.add(**again).id == first.id


def test_a_key_without_unique_until_finished_outlives_its_task(database: Database) -> None:
    for status in ENDED:
        for_ever = ended(database, status, idempotency_key=f"{status} for ever")
        for_hour = ended(database, status, idempotency_key=f"{status} for an hour", unique_for=HOUR)
        # Only the options of the first request count.
        asked = {"unique_until_finished": True, "unique_for": MICROSECOND}
        database.clock.advance(HOUR - MICROSECOND)
        assert database.add(idempotency_key=f"{status} for ever", **asked).id == for_ever
        assert database.add(idempotency_key=f"{status} for an hour", **asked).id == for_hour


def test_a_key_with_both_options_is_free_when_either_condition_is_met(database: Database) -> None:
    both: dict[str, Any] = {"idempotency_key": "k", "unique_for": HOUR, "unique_until_finished": True}
    first = database.add(**both)
    assert database.add(**both).id == first.id
    database.clock.advance(HOUR)  # its task is still waiting
    second = database.add(**both)
    database.frozen.cancel(second.id)  # the key's time is not over
    third = database.add(**both)
    assert (second.created, third.created) == (True, True)
    assert database.add(**both).id == third.id


def test_a_key_of_a_pruned_task_is_free(database: Database) -> None:
    ended(database, TaskStatus.COMPLETED, idempotency_key="k", unique_for=100 * HOUR)
    database.clock.advance(2 * HOUR)
    assert database.frozen.prune(HOUR) == 1
    assert database.add(idempotency_key="k").created


def test_a_key_whose_task_was_deleted_is_free(database: Database) -> None:
    """Whole partitions of old tasks may be dropped, and the tasks' keys a little later."""
    first = database.add(idempotency_key="k")
    for table, column in (("task_executions", "id"), ("task_outbox", "task_execution_id")):
        database.run(
            f"DELETE FROM {table} WHERE {column} = '{first.id if database.name == 'postgresql' else first.id.hex}'"
        )
    database.run("DELETE FROM execution_events")
    second = database.add(idempotency_key="k")
    assert second.created
    assert database.counts() == (1, 1, 1)


def test_a_batch_takes_free_and_new_keys_and_leaves_taken_ones(database: Database) -> None:
    expired = database.add(idempotency_key="expired", unique_for=HOUR)
    kept = database.add(idempotency_key="kept")
    finished = ended(database, TaskStatus.CANCELLED, idempotency_key="finished", unique_until_finished=True)
    database.clock.advance(HOUR)
    new = batch(["kept", "expired", "new", None, "finished", "expired"])
    handles = database.frozen.enqueue_many(new)
    assert [handle.created for handle in handles] == [False, True, True, True, True, False]
    assert [handle.id for handle in handles] == [kept.id, *(one.id for one in new[1:5]), new[1].id]
    assert {expired.id, finished}.isdisjoint(handle.id for handle in handles)
    assert len(database.rows("SELECT * FROM idempotency_keys")) == 4


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_one_of_two_enqueues_gets_a_key_that_is_free_again(database: Database, commits: bool) -> None:
    database.add(idempotency_key="k", unique_for=HOUR)
    database.clock.advance(HOUR)
    new = task()
    with transaction(database) as it:
        first = database.frozen.enqueue(task(), using=it)
        assert first.created
        with stuck(database, lambda: database.frozen.enqueue(new)) as waiting:
            assert not waiting.done()
            it.commit() if commits else it.rollback()
            answer = waiting.result(60)
    assert answer == (Handle(id=first.id, created=False) if commits else Handle(id=new.id))
    assert database.counts() == (2, 2, 2)


def test_an_enqueue_that_loses_a_free_key_reads_the_key_again(postgresql: Database) -> None:
    """Two transactions see that the key is free, and the other one takes it first."""
    postgresql.add(idempotency_key="k", unique_for=HOUR)
    postgresql.clock.advance(HOUR)
    engine = postgresql.own(create_engine(postgresql.url))
    others: list[Handle] = []

    def take(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if "locked" in sql and not others:
            others.append(postgresql.add(idempotency_key="k"))

    event.listen(engine, "before_cursor_execute", take)
    handle = Store(engine, clock=postgresql.clock).enqueue(task())
    assert others[0].created
    assert handle == Handle(id=others[0].id, created=False)
    assert postgresql.counts() == (2, 2, 2)


# --- Replacing


def test_a_replaced_task_keeps_only_its_id_its_pipeline_id_and_its_position(database: Database) -> None:
    parent = uuid7()
    before = database.add(pipeline_execution_id=parent, idempotency_key="k", args='{"say": "old"}')
    (claim,) = database.claim()
    database.frozen.schedule_retry(claim.id, NOON + HOUR, 7)
    old = database.frozen.get(before.id)
    assert (old.attempt, old.retry_at) == (7, NOON + HOUR)
    database.clock.advance(60)
    new = task(
        "k",
        REPLACE,
        args='{"say": "new"}',
        headers='{"trace": 1}',
        queue="mail",
        priority=7,
        available_at=NOON + 2 * HOUR,
        max_attempts=9,
        lease=timedelta(seconds=12.5),
        timeout=timedelta(seconds=3),
        expires_at=NOON + 24 * HOUR,
        partition_key="b",
        on_dead_letter=OnDeadLetter.HOLD,
        topic="order.paid",
    )
    assert database.frozen.enqueue(new) == Handle(id=before.id, created=False, replaced=True)
    row = database.frozen.get(before.id)
    assert (row.args, row.headers, row.queue, row.priority) == ('{"say": "new"}', '{"trace": 1}', "mail", 7)
    assert (row.max_attempts, row.lease_seconds, row.timeout_seconds) == (9, 12.5, 3.0)
    assert (row.partition_key, row.on_dead_letter, row.topic) == ("b", "hold", "order.paid")
    assert (row.expires_at, row.retry_at) == (NOON + 24 * HOUR, None)
    assert (row.status, row.attempt, row.recovery_attempts) == (TaskStatus.READY, 1, 0)
    assert (row.id, row.pipeline_execution_id, row.position) == (before.id, parent, old.position)
    assert (row.created_at, row.updated_at) == (NOON, NOON + timedelta(seconds=60))
    entries = database.rows(
        "SELECT queue, priority, partition_key, position, topic FROM task_outbox WHERE queue = 'mail'"
    )
    assert entries == [("mail", 7, "b", row.position, "order.paid")]
    assert database.counts()[2] == 1
    history = database.frozen.history(before.id)
    last, state = history[-1], replay(history)
    assert last.event_type is EventType.REPLACED
    assert (last.worker_id, last.lease_token, UUID(last.event_data["request"])) == (None, None, new.id)
    assert datetime.fromisoformat(last.event_data["available_at"]) == NOON + 2 * HOUR
    assert (state.status, state.attempt, state.recovery_attempts) == (TaskStatus.READY, 1, 0)
    assert state.available_at == NOON + 2 * HOUR
    assert state.lease_token == row.lease_token == 1


def test_a_replaced_task_runs_with_its_new_arguments_at_the_new_due_time(database: Database) -> None:
    handle = database.add(idempotency_key="k", args='{"say": "old"}', delay=HOUR)
    database.frozen.enqueue(task("k", REPLACE, args='{"say": "new"}', delay=timedelta(minutes=1), expires_in=HOUR))
    assert database.claim() == []
    assert database.frozen.next_available_at() == NOON + timedelta(minutes=1)
    assert database.frozen.get(handle.id).expires_at == NOON + HOUR
    database.clock.advance(60)
    (claim,) = database.claim(5)
    assert (claim.id, claim.args, claim.attempt) == (handle.id, '{"say": "new"}', 1)
    database.frozen.complete(claim)


def test_replacing_a_task_resets_its_recoveries(database: Database) -> None:
    claim = claimed(database, idempotency_key="k")
    database.clock.advance(claim.lease_seconds + 1)
    database.frozen.recover()
    assert database.frozen.get(claim.id).recovery_attempts == 1
    assert database.frozen.enqueue(task("k", REPLACE)).replaced
    assert database.frozen.get(claim.id).recovery_attempts == 0
    assert replay(database.frozen.history(claim.id)).recovery_attempts == 0


def test_a_task_that_is_not_ready_is_not_replaced(database: Database) -> None:
    for status in (TaskStatus.RUNNING, *ENDED):
        if status is TaskStatus.RUNNING:
            held = claimed(database, idempotency_key=status.value).id
        else:
            held = ended(database, status, idempotency_key=status.value)
        before = everything(database)
        new = task(status.value, REPLACE, args='{"say": "new"}')
        assert database.frozen.enqueue(new) == Handle(id=held, created=False)
        assert everything(database) == before


def test_replacing_a_task_does_not_restart_the_time_of_its_key(database: Database) -> None:
    first = database.add(idempotency_key="k", unique_for=HOUR)
    database.clock.advance(HOUR - MICROSECOND)
    assert database.frozen.enqueue(task("k", REPLACE, unique_for=HOUR)).id == first.id
    database.clock.advance(MICROSECOND)
    assert database.frozen.enqueue(task("k", REPLACE, unique_for=HOUR)).created


def test_the_queue_is_woken_when_a_task_leaves_its_key(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next task with that key may be due, and no insert announced it."""
    woken: list[str] = []
    monkeypatch.setattr(Store, "wake", lambda _self, _target, queues: woken.extend(queues))
    for key, told in ((None, []), ("a", ["left"])):
        database.add(idempotency_key=f"{key}", partition_key=key, queue="left", delay=HOUR)
        database.frozen.enqueue(task(f"{key}", REPLACE, queue="entered"))
        assert woken == told


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_replacement_during_a_claim_replaces_the_task_only_if_the_claim_rolls_back(
    database: Database, commits: bool
) -> None:
    handle = database.add(idempotency_key="k", args='{"say": "old"}')
    with transaction(database) as it:
        (claim,) = database.frozen.claim_ready_task(1, worker_id=database.worker, using=it)
        call = lambda: database.frozen.enqueue(task("k", REPLACE, args='{"say": "new"}'))  # noqa: E731
        with stuck(database, call) as waiting:
            assert not waiting.done()
            it.commit() if commits else it.rollback()
            assert waiting.result(60) == Handle(id=handle.id, created=False, replaced=not commits)
    if commits:
        assert (claim.args, database.frozen.get(handle.id).args) == ('{"say": "old"}', '{"say": "old"}')
        database.frozen.complete(claim)
        assert types(database, handle.id) == ["task_created", "task_claimed", "task_completed"]
    else:
        assert [claim.args for claim in database.claim(5)] == ['{"say": "new"}']
        assert types(database, handle.id) == ["task_created", "task_replaced", "task_claimed"]


def test_a_task_released_while_its_replacement_waits_is_replaced(postgresql: Database) -> None:
    """The task then has a new entry, which the waiting statement does not see."""
    handle = postgresql.add(idempotency_key="k", args='{"say": "old"}')
    with transaction(postgresql) as it:
        (claim,) = postgresql.frozen.claim_ready_task(1, worker_id=postgresql.worker, using=it)
        call = lambda: postgresql.frozen.enqueue(task("k", REPLACE, args='{"say": "new"}'))  # noqa: E731
        with stuck(postgresql, call) as waiting:
            postgresql.frozen.release(claim, using=it)
            it.commit()
            assert waiting.result(60) == Handle(id=handle.id, created=False, replaced=True)
    assert postgresql.frozen.get(handle.id).args == '{"say": "new"}'


def test_the_later_of_two_replacements_wins(database: Database) -> None:
    handle = database.add(idempotency_key="k")
    answer = Handle(id=handle.id, created=False, replaced=True)
    with transaction(database) as it:
        assert database.frozen.enqueue(task("k", REPLACE, args='{"say": "first"}'), using=it) == answer
        with stuck(database, lambda: database.frozen.enqueue(task("k", REPLACE, args='{"say": "second"}'))) as waiting:
            assert not waiting.done()
            it.commit()
            assert waiting.result(60) == answer
    assert database.frozen.get(handle.id).args == '{"say": "second"}'
    assert types(database, handle.id) == ["task_created", "task_replaced", "task_replaced"]


# --- Many at once


def pool(database: Database) -> Any:
    engine = database.own(create_engine(database.url, pool_size=10, max_overflow=0))
    return configure_sqlite(engine) if database.name == "sqlite" else engine


def test_fifty_callers_with_few_keys_leave_exactly_one_task_for_each_committed_key(
    database: Database,
) -> None:
    engine, chance = pool(database), random.Random(3)
    plan = [(chance.choice("abcd"), chance.choice(list(OnConflict)), chance.random() < 0.4) for _ in range(50)]

    def call(asked: tuple[str, OnConflict, bool]) -> tuple[str, bool, bool]:
        key, mode, keeps = asked
        created = False
        with engine.connect() as it:
            try:
                new = batch([None, key], mode, args=f'{{"key": "{key}"}}')
                created = database.store.enqueue_many(new[1:], using=it)[0].created
            except DuplicateTask:
                pass
            assert it.scalar(text("SELECT 1")) == 1
            it.commit() if keeps else it.rollback()
        return key, keeps, created

    with ThreadPoolExecutor(50) as threads:
        outcomes = list(threads.map(call, plan))
    committed = {key for key, keeps, _ in outcomes if keeps}
    assert committed
    for key in "abcd":
        assert len(tasks_of(database, key)) == (key in committed)
        assert len([1 for which, keeps, created in outcomes if which == key and keeps and created]) == (
            key in committed
        )
    assert len(database.rows("SELECT * FROM idempotency_keys")) == len(committed)


@pytest.mark.parametrize("state", ["new", "free again", "replaced"])
def test_batches_with_the_same_keys_in_opposite_orders_do_not_deadlock(database: Database, state: str) -> None:
    mode = REPLACE if state == "replaced" else RETURN
    keys = ["a", "m", "z"]
    if state != "new":
        # Their tasks' ids are not in the order of the keys.
        database.frozen.enqueue_many(batch(["z", "a", "m"], unique_for=None if mode is REPLACE else HOUR))
        database.clock.advance(HOUR)

    def enqueue(keys: list[str]) -> Callable[[Connection], list[Handle]]:
        return lambda using: database.frozen.enqueue_many(batch(keys, mode), using=using)

    with transaction(database) as it:
        database.frozen.enqueue(task("m", mode), using=it)
        # The first has "a" and waits for "m". If the other took "z" first, each would soon wait for the other.
        with caller(database, enqueue(keys)) as one, caller(database, enqueue(keys[::-1])) as other:
            assert not one.done()
            assert not other.done()
            it.rollback()
            handles = [*one.result(60), *other.result(60)[::-1]]
    created = [handle.id for handle in handles if handle.created]
    assert len(created) == (0 if mode is REPLACE else 3)
    assert [handle.id for handle in handles[:3]] == [handle.id for handle in handles[3:]]
    assert database.counts()[0] == (6 if state == "free again" else 3)


def test_replacements_are_locked_in_the_order_of_the_keys_and_not_of_the_tasks(database: Database) -> None:
    for key in "za":  # by the tasks' ids and by the place of its row, "z" would be first
        database.frozen.enqueue(task(key))
    with transaction(database) as it:
        database.frozen.enqueue(task("a", REPLACE), using=it)
        replace = lambda using: database.frozen.enqueue_many(batch("za", REPLACE, args='{"say": "last"}'), using=using)  # noqa: E731
        with caller(database, replace) as waiting:
            assert not waiting.done()
            assert database.frozen.enqueue(task("z", REPLACE), using=it).replaced
            it.commit()
            assert [handle.replaced for handle in waiting.result(60)] == [True, True]
    assert [claim.args for claim in database.claim(5)] == ['{"say": "last"}'] * 2


def test_many_batches_over_the_same_keys_all_succeed(database: Database) -> None:
    chance = random.Random(5)
    keys = [f"key {n}" for n in range(12)]
    database.frozen.enqueue_many(batch(chance.sample(keys, 12), unique_for=MICROSECOND))
    engine, plan = pool(database), []
    for _ in range(40):
        mode = chance.choice([RETURN, SKIP, REPLACE])
        options = {"unique_for": chance.choice([None, MICROSECOND]), "unique_until_finished": chance.random() < 0.5}
        plan.append(batch(chance.sample(keys, 8), mode, **options))

    def call(new: list[NewTask]) -> list[Handle]:
        with engine.connect() as it, it.begin():
            return database.store.enqueue_many(new, using=it)

    with ThreadPoolExecutor(8) as threads:
        assert all(len(handles) == 8 for handles in threads.map(call, plan))
    assert len(database.rows("SELECT * FROM idempotency_keys")) == 12


# --- The answer to COMMIT is lost


def test_a_task_whose_commit_response_was_lost_does_not_refuse_itself(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = batch(["a", None, "z"], RAISE)
    handles = lossy(database, monkeypatch).enqueue_many(new)
    assert handles == [Handle(id=one.id) for one in new]
    assert database.counts() == (3, 3, 3)


def test_a_task_that_has_since_lost_its_key_is_reported_as_created(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passes() -> None:
        database.clock.advance(HOUR)
        assert database.add(idempotency_key="k").created

    new = task("k", unique_for=HOUR)
    assert lossy(database, monkeypatch, passes).enqueue(new) == Handle(id=new.id)
    assert database.counts() == (2, 2, 2)


def test_an_expired_key_is_taken_over_only_once_after_a_lost_response(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.add(idempotency_key="k", unique_for=HOUR)
    database.clock.advance(HOUR)
    new = task("k", unique_for=HOUR)
    lost = lossy(database, monkeypatch, lambda: database.clock.advance(HOUR))
    assert lost.enqueue(new) == Handle(id=new.id)
    assert database.counts() == (2, 2, 2)


def test_a_task_is_replaced_only_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    held = database.add(idempotency_key="k")
    claims: list[Any] = []
    lost = lossy(database, monkeypatch, lambda: claims.extend(database.claim()))
    handles = lost.enqueue_many(batch(["k", "k"], REPLACE, args='{"say": "new"}'))
    assert handles == [Handle(id=held.id, created=False, replaced=True)] * 2
    assert [claim.args for claim in claims] == ['{"say": "new"}']
    assert types(database, held.id) == ["task_created", "task_replaced", "task_claimed"]


def test_a_batch_gets_the_same_handles_after_a_lost_response(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = database.frozen.enqueue_many(batch(["a", "b", "c"]))
    new = [task("a"), task("b", SKIP), task("c", REPLACE), task("d"), task(None), task("d", REPLACE)]
    handles = lossy(database, monkeypatch).enqueue_many(new)
    assert handles == [
        Handle(id=held[0].id, created=False),
        Handle(id=NIL, created=False),
        Handle(id=held[2].id, created=False, replaced=True),
        Handle(id=new[3].id),
        Handle(id=new[4].id),
        Handle(id=new[3].id, created=False, replaced=True),
    ]
    assert database.counts() == (5, 7, 5)
