"""Enqueueing: the rows that are written, the due time, and the promises of idempotency keys."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from outboxq.database import tables
from outboxq.errors import InvalidArgument
from outboxq.model import EventType, NewTask, TaskStatus
from outboxq.model.history import replay
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import NOON, Database

MICROSECOND = timedelta(microseconds=1)


def task(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


def keyed(*keys: str | None, **fields: object) -> list[NewTask]:
    return [task(idempotency_key=key, **fields) for key in keys]


# --- Written rows


def test_a_task_is_stored_as_given(database: Database) -> None:
    parent, headers = uuid4(), '{"traceparent": "00-1-2-01"}'
    new = task(
        pipeline_execution_id=parent,
        queue="mäil 📮",
        priority=-100,
        args='{"order_id": 7}',
        headers=headers,
        max_attempts=3,
        lease=timedelta(seconds=1.5),
        timeout=timedelta(milliseconds=250),
    )
    handle = database.frozen.enqueue(new)
    row = database.frozen.get(handle.id)
    assert (handle.id, handle.created) == (new.id, True)
    assert (row.pipeline_execution_id, row.task_name, row.queue) == (parent, "tests.work", "mäil 📮")
    assert (row.priority, row.args, row.headers) == (-100, '{"order_id": 7}', headers)
    assert (row.max_attempts, row.lease_seconds, row.timeout_seconds) == (3, 1.5, 0.25)
    assert (row.status, row.attempt, row.lease_token, row.worker_id) == (TaskStatus.READY, 1, 0, None)
    assert (row.created_at, row.updated_at, row.started_at) == (NOON, NOON, None)


def test_the_id_of_a_single_task_is_its_pipeline_id(database: Database) -> None:
    handle = database.add()
    assert database.frozen.get(handle.id).pipeline_execution_id == handle.id


def test_task_created_is_recorded_with_the_due_time_and_without_a_claim(database: Database) -> None:
    due = NOON + timedelta(hours=1, microseconds=1)
    handle = database.add(available_at=due)
    (born,) = database.frozen.history(handle.id)
    assert (born.event_type, born.worker_id, born.lease_token) == (EventType.CREATED, None, None)
    assert datetime.fromisoformat(born.event_data["available_at"]) == due
    assert replay([born]).available_at == due


EXTRAS = [
    {},
    {"delay": timedelta(days=1, microseconds=1)},
    {"available_at": NOON + timedelta(hours=1, microseconds=1)},
    {"priority": -7, "headers": '{"a": "b"}', "max_attempts": 3, "timeout": timedelta(seconds=1.5), "queue": "mail"},
]


@pytest.mark.parametrize("fields", EXTRAS, ids=["nothing", "delay", "due", "options"])
def test_a_task_enqueued_alone_writes_the_same_rows_as_in_a_batch(database: Database, fields: dict[str, Any]) -> None:
    """There is a special statement for a plain task."""
    alone, among, other, alike = (task(**fields) for _ in range(4))
    database.frozen.enqueue(alone)
    database.frozen.enqueue_many([among, replace(other, headers='{"other": "headers"}')])
    database.frozen.enqueue_many([alike, replace(alike, id=uuid7())])
    own = {"id", "sequence_num", "position", "task_execution_id", "pipeline_execution_id", "xact_id"}
    for table, key in (
        ("task_executions", "id"),
        ("task_outbox", "task_execution_id"),
        ("execution_events", "task_execution_id"),
    ):
        names = [column.name for column in tables.metadata.tables[table].c if column.name not in own]
        one, two, three = (
            database.rows(f"SELECT {', '.join(names)} FROM {table} WHERE {key} = '{new.id.hex}'")
            for new in (alone, among, alike)
        )
        assert one, table
        assert one == two == three, table
    assert database.frozen.verify() == []


@pytest.mark.parametrize(
    "fields",
    [{"priority": True}, {"args": "\0"}, {"id": uuid4()}, {"unique_for": timedelta(days=1)}, {"queue": ""}],
    ids=["priority", "args", "id", "unique_for", "queue"],
)
def test_each_task_of_a_batch_is_checked(database: Database, fields: dict[str, Any]) -> None:
    """A field that equals the previous task's field is checked too: True equals 1."""
    good = task(
        priority=1, idempotency_key="k", **({"unique_for": fields["unique_for"]} if "unique_for" in fields else {})
    )
    bad = replace(good, id=uuid7(), idempotency_key=None)
    with pytest.raises(InvalidArgument, match="tests.work"):
        database.store.enqueue_many([good, replace(bad, **fields)])
    with pytest.raises(InvalidArgument, match="tests.work"):
        database.store.enqueue_many(
            [replace(good, idempotency_key=None, unique_for=None), good, replace(bad, **fields)]
        )
    assert database.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    "fields",
    [{"args": "\0"}, {"args": 7}, {"id": uuid4()}, {"id": "7"}, {"headers": "\0"}, {"priority": True}],
    ids=["nul", "number", "uuid4", "text", "headers", "priority"],
)
def test_each_task_of_a_batch_of_similar_tasks_is_checked(database: Database, fields: dict[str, Any]) -> None:
    good = task(priority=1)
    bad = replace(good, **{"id": uuid7(), **fields})
    with pytest.raises(InvalidArgument, match="tests.work"):
        database.store.enqueue_many([good, replace(good, id=uuid7()), bad, replace(good, id=uuid7())])
    assert database.counts() == (0, 0, 0)


def test_arguments_that_are_valid_only_when_joined_are_refused(database: Database) -> None:
    """The arguments of similar tasks are checked as one text."""
    good = task()
    halves = [replace(good, id=uuid7(), args=half) for half in ('"\ud83d', '\ude00"')]
    with pytest.raises(InvalidArgument, match="args of task 'tests.work'"):
        database.store.enqueue_many(halves)


@pytest.mark.parametrize(
    "fields",
    [{"priority": True}, {"args": "\0"}, {"headers": "\0"}, {"id": uuid4()}],
    ids=["priority", "args", "headers", "id"],
)
def test_each_task_enqueued_alone_is_checked(database: Database, fields: dict[str, Any]) -> None:
    """A field that equals the field of the last task with this name is checked too: True equals 1."""
    good = task(priority=1)
    database.store.enqueue(good)
    with pytest.raises(InvalidArgument, match="tests.work"):
        database.store.enqueue(replace(good, **{"id": uuid7(), **fields}))
    assert database.counts() == (1, 1, 1)


@pytest.mark.parametrize(
    "fields",
    [{"priority": True}, {"args": "\0"}, {"headers": "\0"}, {"id": uuid4()}],
    ids=["priority", "args", "headers", "id"],
)
@pytest.mark.parametrize("before", [0, 2], ids=["alone", "in a batch"])
def test_changed_fields_of_tasks_made_from_shared_fields_are_checked(
    database: Database, fields: dict[str, Any], before: int
) -> None:
    """A task that was made from other fields, or changed later, is checked completely."""
    shared = {"task_name": "tests.made", "priority": 1}  # no other test has a task with this name
    good = NewTask.of(shared, uuid7(), "{}")
    database.store.enqueue(good)
    alike = [NewTask.of(shared, uuid7(), "{}") for _ in range(before)]
    changed = replace(good, **{"id": uuid7(), **fields})
    made = NewTask.of({**shared, **fields}, fields.get("id", uuid7()), fields.get("args", "{}"))
    for bad in (changed, made):
        with pytest.raises(InvalidArgument, match="tests.made"):
            database.store.enqueue_many([*alike, bad])
    assert database.counts() == (1, 1, 1)


def test_cached_option_columns_are_used_only_for_tasks_with_the_same_options(database: Database) -> None:
    """Option columns are cached for tasks with the same options."""
    others = [task(priority=2, delay=timedelta(hours=1)), task(available_at=NOON, queue="mail")]
    first = task(priority=1)
    again = [replace(first, id=uuid7(), args='{"n": 1}', headers='{"a": "b"}'), replace(first, id=uuid7())]
    for one in (first, *others, *again):
        database.frozen.enqueue(one)
    rows = [database.frozen.get(one.id) for one in (first, *others, *again)]
    assert [(row.priority, row.queue, row.args, row.headers) for row in rows] == [
        (1, "default", "{}", None),
        (2, "default", "{}", None),
        (0, "mail", "{}", None),
        (1, "default", '{"n": 1}', '{"a": "b"}'),
        (1, "default", "{}", None),
    ]
    due = [born.event_data["available_at"] for one in others for born in database.frozen.history(one.id)]
    assert [datetime.fromisoformat(moment) for moment in due] == [NOON + timedelta(hours=1), NOON]


def test_an_empty_batch_writes_nothing(database: Database) -> None:
    assert database.store.enqueue_many([]) == []
    assert Store(None).enqueue_many([], using=object()) == []
    assert database.counts() == (0, 0, 0)


def test_names_and_keys_may_be_as_long_as_the_limit_in_any_script(database: Database) -> None:
    long = "\U0001f4ee" * 200
    new = task(task_name=long, queue=long, idempotency_key=long)
    database.store.enqueue(new)
    assert database.store.enqueue(replace(new, id=uuid7())).id == new.id
    assert [claim.queue for claim in database.claim(1, database.store, queues=[long])] == [long]


@pytest.mark.parametrize(
    "name", ['"; drop table task_outbox; --', "%(name)s %s %%", ":name", "$1", "UPPER", " ", "a\nb"]
)
def test_names_that_contain_sql_are_treated_as_data(database: Database, name: str) -> None:
    new = task(task_name=name, queue=name, idempotency_key=name, args='{"x": "%s :x"}')
    database.store.enqueue(new)
    assert database.store.enqueue(replace(new, id=uuid7())).id == new.id
    (claim,) = database.claim(2, database.store, queues=[name])
    assert (claim.task_name, claim.queue, claim.args) == (name, name, '{"x": "%s :x"}')


# --- All or nothing

FAIL = {
    "sqlite": "CREATE TRIGGER boom BEFORE INSERT ON {0} WHEN (SELECT count(*) FROM {0}) >= {1} "
    "BEGIN SELECT RAISE(ABORT, 'boom'); END",
    "postgresql": "ALTER TABLE {0} ADD CONSTRAINT boom CHECK (false) NOT VALID",
}
TABLES = ["idempotency_keys", "task_outbox", "task_executions", "execution_events"]
HEAL = {"sqlite": "DROP TRIGGER boom", "postgresql": "ALTER TABLE {0} DROP CONSTRAINT boom"}


@contextmanager
def failing(database: Database, table: str, after: int = 0) -> Iterator[None]:
    """Make inserts into the table fail, on SQLite only once it has `after` rows."""
    database.run(FAIL[database.name].format(table, after))
    yield
    database.run(HEAL[database.name].format(table))


def all_rows(database: Database) -> int:
    return sum(database.counts()) + len(database.rows("SELECT * FROM idempotency_keys"))


@pytest.mark.parametrize("table", TABLES)
def test_a_failed_insert_leaves_no_rows_in_any_table(database: Database, table: str) -> None:
    with failing(database, table):
        for new in (keyed("a"), keyed("a", None, "b")):
            with pytest.raises(DBAPIError, match="boom"):
                database.store.enqueue_many(new)
            assert all_rows(database) == 0
        if table != "idempotency_keys":
            with pytest.raises(DBAPIError, match="boom"):
                database.store.enqueue_many(keyed(None, None))
            assert all_rows(database) == 0
    database.store.enqueue_many(keyed("a", None))
    assert database.counts() == (2, 2, 2)


@pytest.mark.parametrize("table", TABLES)
def test_a_failed_enqueue_leaves_no_rows_in_a_transaction_that_then_commits(database: Database, table: str) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    # On PostgreSQL, a caller who continues after an error needs a savepoint. On SQLite, none is needed.
    plain = database.own(create_engine(database.url))
    for engine in [database.host_engine(), *([plain] if database.name == "sqlite" else [])]:
        before = len(database.rows("SELECT * FROM orders"))
        with failing(database, table, after=1), engine.connect() as it:
            it.execute(text(f"INSERT INTO orders (id) VALUES ({before + 1})"))
            with pytest.raises(DBAPIError, match="boom"):
                if database.name == "sqlite":
                    database.store.enqueue_many(keyed("a", "b"), using=it)
                else:
                    with it.begin_nested():
                        database.store.enqueue_many(keyed("a", "b"), using=it)
            it.execute(text(f"INSERT INTO orders (id) VALUES ({before + 2})"))
            it.commit()
        assert all_rows(database) == 0
        assert len(database.rows("SELECT * FROM orders")) == before + 2


def test_a_failed_enqueue_leaves_no_rows_if_sqlite_rolls_back_the_transaction(sqlite: Database) -> None:
    sqlite.run("CREATE TRIGGER boom BEFORE INSERT ON execution_events BEGIN SELECT RAISE(ROLLBACK, 'boom'); END")
    with sqlite.host_engine().connect() as it, pytest.raises(DBAPIError, match="boom"):
        sqlite.store.enqueue(task(), using=it)
    assert all_rows(sqlite) == 0


def test_a_batch_in_which_one_row_fails_leaves_no_row(database: Database) -> None:
    first = database.add()
    with pytest.raises(DBAPIError):
        database.store.enqueue_many([task(), task(id=first.id), task()])
    assert database.counts() == (1, 1, 1)


# --- Refused before any query

BAD: dict[str, dict[str, object]] = {
    "task_name empty": {"task_name": ""},
    "task_name too long": {"task_name": "x" * 201},
    "task_name NUL": {"task_name": "a\0b"},
    "task_name surrogate": {"task_name": "\ud800"},
    "task_name no text": {"task_name": 7},
    "queue empty": {"queue": ""},
    "queue too long": {"queue": "x" * 201},
    "queue NUL": {"queue": "\0"},
    "queue surrogate": {"queue": "a\udfff"},
    "idempotency_key empty": {"idempotency_key": ""},
    "idempotency_key too long": {"idempotency_key": "x" * 201},
    "idempotency_key NUL": {"idempotency_key": "a\0"},
    "idempotency_key surrogate": {"idempotency_key": "\udc00"},
    "idempotency_key no text": {"idempotency_key": b"k"},
    "priority 101": {"priority": 101},
    "priority -101": {"priority": -101},
    "priority True": {"priority": True},
    "priority 1.5": {"priority": 1.5},
    "priority text": {"priority": "5"},
    "max_attempts 0": {"max_attempts": 0},
    "max_attempts 2**31": {"max_attempts": 2**31},
    "lease zero": {"lease": timedelta(0)},
    "lease negative": {"lease": -MICROSECOND},
    "timeout zero": {"timeout": timedelta(0)},
    "timeout negative": {"timeout": timedelta(seconds=-1)},
    "max_attempts True": {"max_attempts": True},
    "max_attempts 1.5": {"max_attempts": 1.5},
    "lease endless": {"lease": timedelta.max},  # the end of the lease would overflow in every claim
    "timeout endless": {"timeout": timedelta.max},
    "args NUL": {"args": '"\0"'},
    "headers surrogate": {"headers": '"\ud800"'},
    "delay negative": {"delay": -MICROSECOND},
    "delay endless": {"delay": timedelta.max},
    "due time naive": {"available_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    "due time in no other time zone": {"available_at": datetime.max.replace(tzinfo=UTC)},  # out of range east of UTC
    "due time in no year": {"available_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
    "due time before all years": {"available_at": datetime.min.replace(tzinfo=UTC)},
    "due time no datetime": {"available_at": "2030-01-01T00:00:00+00:00"},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=list(BAD))
def test_a_bad_value_is_refused_with_an_error_that_names_its_field(fields: dict[str, object], request: Any) -> None:
    what = request.node.callspec.id.split()[0]
    with pytest.raises(InvalidArgument, match="time" if what == "due" else what):
        Store(None).enqueue_many([task(), task(**fields)], using=object())


def test_a_bad_value_writes_no_row_and_keeps_a_transaction_of_the_caller_usable(database: Database) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with database.host_engine().begin() as it:
        for number, fields in enumerate(BAD.values()):
            with pytest.raises(InvalidArgument):
                database.store.enqueue_many([task(), task(**fields)], using=it)
            it.execute(text(f"INSERT INTO orders (id) VALUES ({number})"))
    assert (database.counts(), len(database.rows("SELECT * FROM orders"))) == ((0, 0, 0), len(BAD))


# --- When it is due


@pytest.mark.parametrize(
    "delay",
    [
        MICROSECOND,
        timedelta(milliseconds=333, microseconds=333),
        timedelta(days=1) - MICROSECOND,
        timedelta(days=36500),
    ],
    ids=str,
)
@pytest.mark.parametrize("now", [NOON, NOON.replace(microsecond=999_999)], ids=["whole", "fraction"])
def test_a_delay_is_exact_to_the_microsecond(database: Database, delay: timedelta, now: datetime) -> None:
    database.clock.now = now
    handle = database.add(delay=delay)
    assert database.frozen.next_available_at() == now + delay
    assert replay(database.frozen.history(handle.id)).available_at == now + delay
    database.clock.now = now + delay - MICROSECOND
    assert database.claim() == []
    database.clock.advance(MICROSECOND)
    assert [claim.id for claim in database.claim()] == [handle.id]


@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))], ids=str
)
def test_a_due_time_is_exact_to_the_microsecond_in_every_time_zone(database: Database, zone: timezone) -> None:
    due = NOON + timedelta(hours=1, microseconds=123_457)
    handle = database.add(available_at=due.astimezone(zone))
    database.clock.now = due - MICROSECOND
    assert database.claim() == []
    assert database.frozen.next_available_at() == due
    database.clock.now = due
    assert [claim.id for claim in database.claim()] == [handle.id]


def test_a_task_with_a_due_time_in_the_past_is_due_now(database: Database) -> None:
    handle = database.add(available_at=NOON - timedelta(days=10_000))
    assert [claim.id for claim in database.claim()] == [handle.id]


def test_an_absolute_due_time_overrides_a_delay(database: Database) -> None:
    database.add(available_at=NOON, delay=timedelta(hours=1))
    assert len(database.claim()) == 1


def test_a_task_without_a_delay_is_due_immediately_by_the_database_clock(database: Database) -> None:
    handle = database.add(database.store)
    assert [claim.id for claim in database.claim(1, database.store)] == [handle.id]


def test_a_delay_counts_from_the_enqueue_and_not_from_the_start_of_the_transaction(postgresql: Database) -> None:
    with postgresql.host_engine().begin() as it:
        begun = it.scalar(text("SELECT now()"))
        it.execute(text("SELECT pg_sleep(0.05)"))
        handle = postgresql.store.enqueue(task(delay=timedelta(seconds=60)), using=it)
    due = replay(postgresql.store.history(handle.id)).available_at
    assert due - begun >= timedelta(seconds=60.05)


# --- Order


def in_order_of_position(database: Database) -> list[UUID]:
    rows = database.rows("SELECT id FROM task_executions ORDER BY position")
    assert database.rows("SELECT count(DISTINCT position) FROM task_executions") == [(len(rows),)]
    return [UUID(str(row[0])) for row in rows]


def test_a_batch_keeps_its_order_in_positions_and_claims(database: Database) -> None:
    new = [task() for _ in range(60)]
    random.Random(7).shuffle(new)  # not in the order of the ids
    handles = database.frozen.enqueue_many(new[:50])
    handles += [database.frozen.enqueue(one) for one in new[50:]]
    given = [one.id for one in new]
    assert [handle.id for handle in handles] == given
    assert in_order_of_position(database) == given
    positions = [database.frozen.get(one).position for one in given]
    assert all(a < b for a, b in pairwise(positions))
    assert [claim.id for claim in database.claim(25)] == given[:25]
    assert [claim.id for claim in database.claim(100)] == given[25:]


def test_positions_increase_after_a_batch_with_taken_keys(database: Database) -> None:
    first = database.frozen.enqueue_many(keyed(*"abcdef"))
    second = database.frozen.enqueue_many(keyed(*"abcdef", None, "g"))
    third = [database.frozen.enqueue(task()) for _ in range(3)]
    created = [handle.id for handle in [*first, *second, *third] if handle.created]
    assert len(created) == 11
    assert in_order_of_position(database) == created
    assert [claim.id for claim in database.claim(20)] == created


def test_positions_increase_after_tasks_were_claimed(database: Database) -> None:
    first = [database.add().id for _ in range(3)]
    assert [claim.id for claim in database.claim(3)] == first
    last = database.add().id
    assert in_order_of_position(database) == [*first, last]


@pytest.mark.in_turn
def test_five_thousand_tasks_can_be_enqueued_in_one_batch(database: Database) -> None:
    new = [task(idempotency_key=str(number) if number % 2 else None) for number in range(5000)]
    handles = database.frozen.enqueue_many(new)
    assert [handle.id for handle in handles] == [one.id for one in new]
    assert database.counts() == (5000, 5000, 5000)
    assert in_order_of_position(database) == [one.id for one in new]
    again = database.frozen.enqueue_many([replace(one, id=uuid7()) for one in new])
    assert [handle.id for handle in again][1::2] == [one.id for one in new][1::2]
    assert database.counts() == (7500, 7500, 7500)


def test_a_batch_needs_as_many_statements_as_one_task(database: Database) -> None:
    engine = database.host_engine()
    with engine.begin() as it:
        database.store.enqueue(task(), using=it)  # looks up the schema once
        seen: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda _c, _k, sql, *_: seen.append(sql))
        database.store.enqueue(task(), using=it)
        one = list(seen)
        seen.clear()
        database.store.enqueue_many([task() for _ in range(500)], using=it)
        assert len(seen) == len(one)
    if database.name == "postgresql":
        assert len(one) == 1


# --- Idempotency keys


def test_a_second_task_with_the_key_is_not_written_in_the_same_transaction(database: Database) -> None:
    with database.host_engine().begin() as it:
        first = database.store.enqueue(keyed("k")[0], using=it)
        second = database.store.enqueue(keyed("k")[0], using=it)
        assert (first.created, second.created, second.id) == (True, False, first.id)
        assert it.scalar(text("SELECT 1")) == 1
    assert database.counts() == (1, 1, 1)
    assert len(database.claim(5, database.store)) == 1


def test_a_second_task_with_the_key_is_not_written_later(database: Database) -> None:
    first = database.add(idempotency_key="k")
    again = database.add(idempotency_key="k", args='{"other": 1}', queue="other")
    (claim,) = database.claim(5)
    while_running = database.add(idempotency_key="k")
    database.frozen.complete(claim)
    when_done = database.add(idempotency_key="k")
    assert [(it.created, it.id) for it in (again, while_running, when_done)] == [(False, first.id)] * 3
    assert database.counts() == (1, 3, 0)


def test_a_key_belongs_to_one_task_name_and_is_compared_letter_by_letter(database: Database) -> None:
    names = [("a", "k"), ("b", "k"), ("a", "K"), ("a", "k ")]
    handles = database.store.enqueue_many([task(task_name=name, idempotency_key=key) for name, key in names])
    assert [handle.created for handle in handles] == [True] * 4


def test_within_a_batch_the_first_task_with_the_key_is_written(database: Database) -> None:
    new = keyed(*(str(number % 40) for number in range(400)))
    random.Random(3).shuffle(new)
    handles = database.frozen.enqueue_many(new)
    first = {one.idempotency_key: one.id for one in reversed(new)}
    assert [handle.id for handle in handles] == [first[one.idempotency_key] for one in new]
    assert sum(handle.created for handle in handles) == 40
    assert database.counts() == (40, 40, 40)


def test_a_batch_may_mix_new_keys_taken_keys_and_tasks_without_keys(database: Database) -> None:
    held = database.add(idempotency_key="taken")
    new = keyed("new", None, "taken", "new", None)
    handles = database.frozen.enqueue_many(new)
    assert [handle.created for handle in handles] == [True, True, False, False, True]
    assert [handle.id for handle in handles] == [new[0].id, new[1].id, held.id, new[0].id, new[4].id]
    assert database.counts() == (4, 4, 4)


def test_a_rollback_frees_a_key(database: Database) -> None:
    with database.host_engine().connect() as it:
        lost = database.store.enqueue(keyed("k")[0], using=it)
        it.rollback()
        with suppress(ZeroDivisionError), it.begin_nested():
            database.store.enqueue(keyed("k")[0], using=it)
            raise ZeroDivisionError
        kept = database.store.enqueue(keyed("k")[0], using=it)
        it.commit()
    again = database.add(idempotency_key="k")
    assert (kept.created, again.created, again.id) == (True, False, kept.id)
    assert lost.id != kept.id


class Session:
    """A transaction in a separate thread, which shows when it waits."""

    def __init__(self, database: Database, threads: ThreadPoolExecutor) -> None:
        self.database, self.threads = database, threads
        self.engine = database.host_engine()
        self.begins = threading.Event()
        event.listen(self.engine, "before_cursor_execute", self._note)
        self.connection: Connection = None  # type: ignore[assignment]
        self.pid: int | None = None

    def _note(self, _connection: object, _cursor: object, sql: str, *_: object) -> None:
        if sql == "BEGIN IMMEDIATE":
            self.begins.set()

    def enqueue(self, new: list[NewTask]) -> list[tuple[bool, UUID]]:
        self._open()
        handles = self.database.store.enqueue_many(new, using=self.connection)
        assert self.connection.scalar(text("SELECT 1")) == 1  # not aborted
        return [(handle.created, handle.id) for handle in handles]

    def starts(self, new: list[NewTask]) -> Future[list[tuple[bool, UUID]]]:
        """Enqueue in another thread. Returns once it waits for another transaction."""
        if self.database.name == "postgresql":
            self._open()
        self.begins.clear()
        result = self.threads.submit(self.enqueue, new)
        if self.database.name == "sqlite":
            assert self.begins.wait(60)  # it has requested the write lock, which another transaction holds
        else:
            waits = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {self.pid}"
            while self.database.rows(waits) != [("Lock",)]:
                assert not result.done()
        return result

    def _open(self) -> None:
        if self.connection is None:
            self.connection = self.engine.connect()
            if self.database.name == "postgresql":
                self.pid = self.connection.scalar(text("SELECT pg_backend_pid()"))

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


@contextmanager
def sessions(database: Database, count: int) -> Iterator[list[Session]]:
    with ThreadPoolExecutor(count) as threads:
        them = [Session(database, threads) for _ in range(count)]
        try:
            yield them
        finally:
            for one in them:
                if one.connection is not None:
                    one.connection.close()


@pytest.fixture(autouse=True)
def _threads_may_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a connection to be opened in one thread and closed in another, as these tests require."""
    import sqlite3

    connect: Callable[..., Any] = sqlite3.dbapi2.connect  # type: ignore[attr-defined]
    monkeypatch.setattr(sqlite3.dbapi2, "connect", lambda *a, **k: connect(*a, **{**k, "check_same_thread": False}))  # type: ignore[attr-defined]


def test_an_enqueue_with_a_held_key_waits_and_returns_the_task_of_the_holder(database: Database) -> None:
    with sessions(database, 2) as (first, second):
        ((created, holder),) = first.enqueue(keyed("k"))
        waiting = second.starts(keyed("k"))
        assert created
        assert not waiting.done()
        first.commit()
        assert waiting.result(60) == [(False, holder)]
        second.enqueue(keyed("other"))
        second.commit()
    assert database.counts() == (2, 2, 2)


def test_an_enqueue_that_waits_for_a_key_gets_it_if_the_holder_rolls_back(database: Database) -> None:
    with sessions(database, 2) as (first, second):
        first.enqueue(keyed("k"))
        new = keyed("k")
        waiting = second.starts(new)
        first.rollback()
        assert waiting.result(60) == [(True, new[0].id)]
        second.commit()
    assert database.counts() == (1, 1, 1)


def test_batches_with_the_same_keys_in_opposite_orders_do_not_deadlock(database: Database) -> None:
    with sessions(database, 3) as (holder, first, second):
        holder.enqueue(keyed("m"))
        new = keyed("a", "m", "z")
        one = first.starts(new)  # has "a" and waits for "m"
        other = second.starts(keyed("z", "m", "a"))  # if it took "z" first, each would soon wait for the other
        holder.rollback()
        if database.name == "sqlite":  # either of them may get the write lock
            while not one.done() and not other.done():
                pass
            quick, slow = (one, other) if one.done() else (other, one)
            assert [created for created, _ in quick.result()] == [True] * 3
            (first if one is quick else second).commit()
            assert [created for created, _ in slow.result(60)] == [False] * 3
            (second if one is quick else first).commit()
        else:
            assert one.result(60) == [(True, it.id) for it in new]
            first.commit()
            assert other.result(60) == [(False, it.id) for it in reversed(new)]
            second.commit()
    assert database.counts() == (3, 3, 3)


def test_fifty_threads_with_one_key_leave_exactly_one_task_if_any_commits(database: Database) -> None:
    engine = database.own(create_engine(database.url, pool_size=10, max_overflow=0))
    if database.name == "sqlite":
        from outboxq.database.engine import configure_sqlite

        configure_sqlite(engine)
    chance = random.Random(1)
    keeps = [chance.random() < 0.4 for _ in range(50)]
    assert 0 < sum(keeps) < 50

    def attempt(keep: bool) -> tuple[bool, bool, UUID]:
        with engine.connect() as it:
            handle = database.store.enqueue(keyed("k")[0], using=it)
            it.commit() if keep else it.rollback()
            return keep, handle.created, handle.id

    with ThreadPoolExecutor(50) as threads:
        outcomes = list(threads.map(attempt, keeps))
    winners = [task_id for keep, created, task_id in outcomes if keep and created]
    assert len(winners) == 1
    assert {task_id for keep, created, task_id in outcomes if keep or not created} == {*winners}
    assert database.counts() == (1, 1, 1)
    assert database.rows("SELECT count(*) FROM idempotency_keys") == [(1,)]


def test_a_key_freed_during_the_query_for_its_task_is_taken(postgresql: Database) -> None:
    """The holder may be pruned between the insert that finds the key taken and the query for the holder."""
    postgresql.add(idempotency_key="k")
    engine = postgresql.own(create_engine(postgresql.url))
    pruned = []

    def prune(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        if "JOIN" in sql and "idempotency_keys" in sql and "INSERT" not in sql and not pruned:
            pruned.append(True)
            postgresql.run("DELETE FROM idempotency_keys")

    event.listen(engine, "before_cursor_execute", prune)
    new = keyed("k")
    handle = Store(engine).enqueue(new[0])
    assert pruned
    assert (handle.created, handle.id) == (True, new[0].id)


# --- NOTIFY


@contextmanager
def listener(database: Database) -> Iterator[Callable[[], str]]:
    """Register as a sleeping worker. Yields a function that returns the queue of the next notification."""
    url = make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as it:
        it.execute("LISTEN task_ready")
        it.execute("INSERT INTO sleeping_workers VALUES (gen_random_uuid(), '', 'infinity')")
        heard = it.notifies(timeout=30)
        yield lambda: next(heard).payload.partition(" ")[2]
        heard.close()


def test_a_notification_is_sent_with_the_commit_and_not_before(postgresql: Database) -> None:
    with listener(postgresql) as heard, postgresql.host_engine().connect() as it:
        postgresql.store.enqueue(task(queue="kept"), using=it)
        postgresql.run("NOTIFY task_ready, '* marker 1'")
        assert heard() == "marker 1"
        it.commit()
        assert heard() == "kept"
        postgresql.store.enqueue(task(queue="lost"), using=it)
        it.rollback()
        with suppress(ZeroDivisionError), it.begin_nested():
            postgresql.store.enqueue(task(queue="lost too"), using=it)
            raise ZeroDivisionError
        it.commit()
        postgresql.run("NOTIFY task_ready, '* marker 2'")
        assert heard() == "marker 2"


def test_a_batch_sends_one_notification_per_queue(postgresql: Database) -> None:
    with listener(postgresql) as heard:
        postgresql.store.enqueue_many([task(queue=queue) for queue in "abab" * 250])
        postgresql.store.enqueue_many([task(queue="a", idempotency_key="k"), task(queue="c")])
        postgresql.store.enqueue(task(queue="a", idempotency_key="k"))
        postgresql.run("NOTIFY task_ready, '* marker'")
        assert sorted([heard(), heard()]) == ["a", "b"]
        assert sorted([heard(), heard()]) == ["a", "c"]
        assert heard() == "marker"  # a task that was not created causes no notification
