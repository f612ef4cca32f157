"""An emitted event creates a task for each subscriber, and nothing without the caller's commit."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from outboxq import InvalidArgument, InvalidTarget, Outbox, PayloadError, RetryPolicy, TaskContext, TaskStatus
from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import FAMILY, family, uuid7
from outboxq.store import Store
from outboxq.store.producing.fanout import MOST_SUBSCRIBERS
from tests.conftest import NOON, Database
from tests.contract import helpers


@dataclasses.dataclass
class Paid:
    order: int
    on: date
    sum: Decimal


def subscriber(name: str, *topics: str, **fields: object) -> list[Subscription]:
    values = {"task_name": name, "parameter": "payload", **fields}
    return [Subscription(topic=one, **values) for one in topics]  # type: ignore[arg-type]


def new(topic: str = "order.paid", **fields: object) -> NewEvent:
    return NewEvent(**{"id": family(), "topic": topic, **fields})  # type: ignore[arg-type]


def of(*pairs: list[Subscription]) -> list[Subscription]:
    return [one for pair in pairs for one in pair]


@pytest.fixture
def three(database: Database) -> Store:
    """Subscribe three tasks to order.paid."""
    database.frozen.subscriptions.replace(of(*(subscriber(name, "order.paid") for name in ("audit", "book", "mail"))))
    return database.frozen


@pytest.fixture
def outbox(database: Database) -> Outbox:
    """The outbox of a process that never imported a subscriber."""
    return Outbox(database.engine)


def unrouted(database: Database) -> list[tuple[Any, ...]]:
    rows = database.rows(
        "SELECT event_data, task_execution_id, lease_token, pipeline_execution_id FROM execution_events "
        "WHERE event_type = 'event_unrouted' ORDER BY sequence_num"
    )
    return [(json.loads(str(data)), *rest[:2], UUID(str(rest[2]))) for data, *rest in rows]


# --- One task for each subscriber


def test_each_subscriber_gets_a_separate_task(database: Database, three: Store) -> None:
    emitted = three.emit(new(payload='{"id":7}'))
    assert list(emitted.handles) == ["audit", "book", "mail"]
    assert database.counts() == (3, 3, 3)
    for name, handle in emitted.handles.items():
        task = three.get(handle.id)
        assert (task.task_name, task.status, task.args) == (name, TaskStatus.READY, '{"payload":{"id":7}}')
        assert (task.pipeline_execution_id, task.topic) == (emitted.pipeline_execution_id, "order.paid")
        assert helpers.types(database, handle.id) == ["task_created"]

    failing, *others = database.claim(3)
    three.fail(failing, "E")
    for claim in others:
        three.complete(claim)
    three.redrive(failing.id)
    (again,) = database.claim(3)
    three.complete(again)
    ends = {handle.id: helpers.types(database, handle.id) for handle in emitted.handles.values()}
    assert ends.pop(failing.id)[1:] == [
        "task_claimed",
        "task_failed",
        "task_requeued",
        "task_claimed",
        "task_completed",
    ]
    assert list(ends.values()) == [["task_created", "task_claimed", "task_completed"]] * 2


def test_a_retry_of_one_consumer_leaves_the_others_alone(database: Database, outbox: Outbox) -> None:
    seen: list[tuple[str, int]] = []

    @outbox.task(name="flaky", subscribe="order.*", retry=RetryPolicy(max_attempts=2, wait=0))
    def flaky(ctx: TaskContext, payload: dict[str, int]) -> None:
        seen.append(("flaky", payload["id"]))
        assert (ctx.topic, ctx.partition_key) == ("order.paid", "c1")
        if ctx.attempt == 1:
            raise OSError

    @outbox.task(name="steady", subscribe=["order.paid"])
    def steady(order: dict[str, int], note: str = "") -> None:
        seen.append(("steady", order["id"]))

    outbox.sync_subscriptions()
    emitted = outbox.emit("order.paid", {"id": 1}, using=outbox, partition_key="c1")
    outbox.worker(concurrency=1, notifications=False, poll=0.05).run(burst=True)
    # Both tasks have the same key. A retry keeps its position, so a later task waits for it.
    assert sorted(seen) == [("flaky", 1), ("flaky", 1), ("steady", 1)]
    tasks = {name: outbox.store.get(handle.id) for name, handle in emitted.handles.items()}
    assert {name: (task.status, task.attempt) for name, task in tasks.items()} == {
        "flaky": (TaskStatus.COMPLETED, 2),
        "steady": (TaskStatus.COMPLETED, 1),
    }


def test_task_ids_are_version_7_and_count_up_from_the_id_of_the_event(database: Database, three: Store) -> None:
    emitted = three.emit(new())
    ids = [handle.id for handle in emitted.handles.values()]
    assert [one.int - emitted.pipeline_execution_id.int for one in ids] == [1, 2, 3]
    assert {(one.version, one.variant) for one in (*ids, emitted.pipeline_execution_id)} == {
        (7, "specified in RFC 4122")
    }
    assert [UUID(str(row[0])) for row in database.rows("SELECT id FROM task_executions ORDER BY position")] == ids


def test_three_hundred_subscribers_get_consecutive_ids(database: Database) -> None:
    names = [f"task{number:03}" for number in range(300)]
    database.frozen.subscriptions.replace(of(*(subscriber(name, "order.paid") for name in names)))
    emitted = database.frozen.emit(new())
    assert list(emitted.handles) == names
    assert [handle.id.int & FAMILY for handle in emitted.handles.values()] == list(range(1, 301))


def subscribe_many(database: Database, count: int) -> None:
    """Subscribe more tasks than a test could declare, named task1 and so on."""
    numbers = (
        "WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < "
        f"{count}) SELECT 'order.paid', 'task' || n, 'payload', 'default', 0, 60, 'release' FROM numbers"
    )
    database.run(
        "INSERT INTO task_subscriptions (topic, task_name, parameter, queue, priority, lease_seconds, on_dead_letter) "
        + numbers
    )


@pytest.mark.full
@pytest.mark.in_turn
def test_more_subscribers_than_an_event_has_ids_for_are_refused_and_nothing_is_written(database: Database) -> None:
    subscribe_many(database, FAMILY + 1)
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        with pytest.raises(InvalidArgument, match=r"65536 tasks subscribe to 'order.paid'.*65535.*nothing was written"):
            database.frozen.emit(new(), using=connection)
        assert connection.execute(text("SELECT 1")).scalar() == 1
        connection.commit()
    assert helpers.everything(database) == before


def test_an_event_can_have_65535_subscribers() -> None:
    assert MOST_SUBSCRIBERS == FAMILY == 65535


@pytest.mark.parametrize("key", [None, "k"])
def test_the_last_id_can_be_used_and_one_more_subscriber_is_refused(
    database: Database, three: Store, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr("outboxq.store.producing.fanout.MOST_SUBSCRIBERS", 3)
    assert len(three.emit(new(idempotency_key=key)).handles) == 3
    assert database.counts() == (3, 3, 3)
    three.subscriptions.replace(subscriber("fourth", "order.paid"))
    before = helpers.everything(database)
    for using in (nullcontext(), helpers.transaction(database)):
        with using as connection, pytest.raises(InvalidArgument, match=r"4 tasks subscribe.* can have at most 3"):
            three.emit(new(idempotency_key=key and "another"), using=connection)
    assert helpers.everything(database) == before


def test_the_options_of_a_subscription_are_stored_with_the_task(database: Database) -> None:
    database.frozen.subscriptions.replace(
        subscriber(
            "book",
            "order.paid",
            queue="ledger",
            priority=-7,
            max_attempts=4,
            lease=timedelta(seconds=1.5),
            timeout=timedelta(seconds=9),
            on_dead_letter=OnDeadLetter.HOLD,
        )
    )
    keyed, free = (database.frozen.emit(new(partition_key=key)).handles["book"].id for key in ("c1", None))
    task = database.frozen.get(keyed)
    assert (task.queue, task.priority, task.max_attempts) == ("ledger", -7, 4)
    assert (task.lease_seconds, task.timeout_seconds) == (1.5, 9)
    assert (task.partition_key, task.on_dead_letter) == ("c1", "hold")
    assert (database.frozen.get(free).partition_key, database.frozen.get(free).on_dead_letter) == (None, "release")


@pytest.mark.parametrize("key", [{"concurrency_key": "ada"}, {"partition_key": "concurrency:ada"}])
def test_a_dead_letter_of_an_event_does_not_hold_a_concurrency_key(database: Database, key: dict[str, str]) -> None:
    database.frozen.subscriptions.replace(subscriber("book", "order.paid", on_dead_letter=OnDeadLetter.HOLD))
    ids = [database.frozen.emit(new(**key)).handles["book"].id]
    ids.append(database.frozen.emit(new(**key, idempotency_key="e1")).handles["book"].id)
    database.run("UPDATE idempotency_keys SET expires_at = created_at")  # the next event takes the key over
    ids.append(database.frozen.emit(new(**key, idempotency_key="e1")).handles["book"].id)
    assert [database.frozen.get(one).on_dead_letter for one in ids] == ["release"] * 3
    for one in ids:
        (claim,) = database.claim()
        assert claim.id == one
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="no")])


def test_the_tasks_of_an_event_have_its_due_time_and_expiry(database: Database, three: Store) -> None:
    hour = timedelta(hours=1)
    for fields, due, expires in (
        ({}, NOON, None),
        ({"delay": hour, "expires_in": 2 * hour}, NOON + hour, NOON + 2 * hour),
        ({"available_at": NOON + hour, "expires_at": NOON + 3 * hour}, NOON + hour, NOON + 3 * hour),
    ):
        emitted = three.emit(new(**fields))  # type: ignore[arg-type]
        for handle in emitted.handles.values():
            (born,) = three.history(handle.id)
            assert datetime.fromisoformat(born.event_data["available_at"]) == due
            assert three.get(handle.id).expires_at == expires


# --- Who gets what


def test_each_subscriber_receives_only_matching_events(database: Database) -> None:
    database.frozen.subscriptions.replace(
        of(
            subscriber("exact", "order.paid"),
            subscriber("prefix", "order.*"),
            subscriber("both", "order.paid", "order.*", "*"),
            subscriber("all", "*"),
            subscriber("literal", "order_p%"),
        )
    )
    expected = {
        "order.paid": {"exact", "prefix", "both", "all"},
        "order.": {"prefix", "both", "all"},
        "order.paid.late": {"prefix", "both", "all"},
        "order": {"both", "all"},
        "Order.paid": {"both", "all"},
        "order_p%": {"both", "all", "literal"},
        "order_paid": {"both", "all"},
        "zahlung.ärger": {"both", "all"},
    }
    for topic, names in expected.items():
        emitted = database.frozen.emit(new(topic))
        assert set(emitted.handles) == names, topic
    assert len(database.claim(100)) == sum(map(len, expected.values()))  # one task each, however many patterns match
    assert unrouted(database) == []


def test_an_event_without_subscribers_is_recorded(database: Database, three: Store) -> None:
    emitted = three.emit(new("order.“lost”", payload='[1.50,"x%s :y"]'))
    assert emitted.handles == {}
    assert unrouted(database) == [
        ({"topic": "order.“lost”", "payload": [1.5, "x%s :y"]}, None, None, emitted.pipeline_execution_id)
    ]
    assert database.counts() == (0, 1, 0)


def test_the_payload_is_stored_unchanged(database: Database, three: Store) -> None:
    payload = '{"sum":1.10,"big":123456789012345678901234567890,"e":1e400,"t":"ä\\u0001%s"}'
    for handle in three.emit(new(payload=payload)).handles.values():
        assert three.get(handle.id).args == f'{{"payload":{payload}}}'


def test_a_producer_needs_no_code_of_its_consumers(database: Database) -> None:
    consumer, producer = Outbox(database.engine), Outbox(database.engine)
    got: list[Paid] = []

    @consumer.task(name="ledger.book", subscribe="order.paid", queue="ledger")
    def book(paid: Paid) -> None:
        got.append(paid)

    assert producer.emit("order.paid", using=producer).handles == {}  # no task has subscribed yet
    consumer.sync_subscriptions()
    paid = Paid(7, date(2030, 1, 1), Decimal("1.10"))
    emitted = producer.emit("order.paid", paid, using=producer)
    assert list(emitted.handles) == ["ledger.book"]
    consumer.worker(notifications=False, poll=0.05).run(burst=True)
    assert got == [paid]


# --- The caller's transaction


@contextmanager
def through_sqlalchemy(database: Database) -> Iterator[tuple[Any, Callable[[], None], Callable[[], None]]]:
    with helpers.transaction(database) as it:
        yield it, it.commit, it.rollback


@contextmanager
def through_the_driver(database: Database) -> Iterator[tuple[Any, Callable[[], None], Callable[[], None]]]:
    url = make_url(database.url)
    raw: Any
    if database.name == "sqlite":
        raw = sqlite3.connect(str(url.database))
    else:
        raw = psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        yield raw, raw.commit, raw.rollback
    finally:
        raw.close()


@pytest.mark.parametrize("through", [through_sqlalchemy, through_the_driver])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_emit_is_part_of_the_transaction_of_the_caller(
    database: Database, three: Store, through: Any, key: str
) -> None:
    with through(database) as (using, commit, rollback):
        three.emit(new(idempotency_key=key), using=using)
        three.emit(new("order.lost"), using=using)
        rollback()
        assert database.counts() == (0, 0, 0)
        assert database.rows("SELECT * FROM idempotency_keys") == []
        emitted = three.emit(new(idempotency_key=key), using=using)
        three.emit(new("order.lost"), using=using)
        commit()
    assert [handle.created for handle in emitted.handles.values()] == [True] * 3
    assert database.counts() == (3, 4, 3)


def test_an_emit_in_a_transactional_task_is_committed_with_the_task(database: Database, outbox: Outbox) -> None:
    @outbox.task(name="source", transactional=True, retry=RetryPolicy.never())
    def source(ctx: TaskContext, fails: bool) -> None:
        outbox.emit("order.paid", {"fails": fails}, using=ctx)
        if fails:
            raise OSError

    outbox.task(name="sink", subscribe="order.*")(lambda payload: payload["fails"])
    outbox.sync_subscriptions()
    for fails in (True, False):
        source.using(outbox).enqueue(fails)
    outbox.worker(notifications=False, poll=0.05).run(burst=True)
    assert database.rows("SELECT args FROM task_executions WHERE task_name = 'sink'") == [
        ('{"payload":{"fails":false}}',)
    ]


def test_a_failed_emit_leaves_no_rows(database: Database, three: Store) -> None:
    helpers.refuse_event(database, "task_created")
    with pytest.raises(Exception, match="refuse"):
        three.emit(new(idempotency_key="k"))
    if database.name == "sqlite":  # PostgreSQL needs one statement. SQLite uses a savepoint in a caller's transaction.
        with helpers.transaction(database) as it:
            with pytest.raises(Exception, match="refuse"):
                three.emit(new(idempotency_key="k"), using=it)
            it.commit()
    assert database.counts() == (0, 0, 0)
    assert database.rows("SELECT * FROM idempotency_keys") == []


# --- The same event twice


def test_an_idempotency_key_creates_one_task_per_subscriber(database: Database, three: Store) -> None:
    first, again, other = (three.emit(new(idempotency_key=key)) for key in ("k", "k", "other"))
    assert [handle.created for handle in again.handles.values()] == [False] * 3
    assert {name: handle.id for name, handle in again.handles.items()} == {
        name: handle.id for name, handle in first.handles.items()
    }
    assert all(handle.created for handle in other.handles.values())
    assert database.counts() == (6, 6, 6)
    assert unrouted(database) == []  # there are subscribers, and they have already received the event


def test_a_repeated_emit_with_a_key_reaches_new_subscribers(database: Database, three: Store) -> None:
    first = three.emit(new(idempotency_key="k"))
    three.subscriptions.replace(subscriber("late", "order.*"))
    again = three.emit(new(idempotency_key="k"))
    assert {name: handle.created for name, handle in again.handles.items()} == {
        "audit": False,
        "book": False,
        "late": True,
        "mail": False,
    }
    assert again.handles["book"].id == first.handles["book"].id
    assert database.counts() == (4, 4, 4)


def test_an_enqueued_task_and_an_emitted_event_share_the_same_key(database: Database, three: Store) -> None:
    direct = three.enqueue(NewTask(id=uuid7(), task_name="book", args="{}", idempotency_key="k"))
    emitted = three.emit(new(idempotency_key="k"))
    assert (emitted.handles["book"].id, emitted.handles["book"].created) == (direct.id, False)
    assert database.counts()[0] == 3


def test_an_emit_with_a_key_that_is_free_again_creates_a_task(database: Database, three: Store) -> None:
    for name, fields in (
        ("audit", {"unique_for": timedelta(seconds=60)}),
        ("book", {"unique_until_finished": True}),
        ("mail", {}),
    ):
        three.enqueue(NewTask(id=uuid7(), task_name=name, args="{}", idempotency_key="k", **fields))  # type: ignore[arg-type]
    for claim in database.claim(3):
        three.complete(claim)
    database.clock.advance(60)
    event = new(idempotency_key="k", payload="[1]", partition_key="c1", delay=timedelta(seconds=5))
    emitted = three.emit(event)
    assert {name: handle.created for name, handle in emitted.handles.items()} == {
        "audit": True,
        "book": True,
        "mail": False,
    }
    plain = three.get(three.emit(dataclasses.replace(event, id=family(), idempotency_key=None)).handles["book"].id)
    task = three.get(emitted.handles["book"].id)
    differs = {"id", "pipeline_execution_id", "position"}
    assert {key: value for key, value in dataclasses.asdict(task).items() if key not in differs} == {
        key: value for key, value in dataclasses.asdict(plain).items() if key not in differs
    }
    assert task.pipeline_execution_id == event.id


@pytest.mark.parametrize("commits", [True, False])
def test_simultaneous_emits_with_one_key_create_tasks_once(database: Database, three: Store, commits: bool) -> None:
    with helpers.transaction(database) as it:
        first = three.emit(new(idempotency_key="k"), using=it)
        with helpers.stuck(database, lambda: three.emit(new(idempotency_key="k"))) as second:
            it.commit() if commits else it.rollback()
            again = second.result(60)
    assert [handle.created for handle in again.handles.values()] == [not commits] * 3
    if commits:
        assert again.handles["mail"].id == first.handles["mail"].id
    assert database.counts() == (3, 3, 3)


def test_a_taken_key_keeps_a_transaction_of_the_caller_usable(database: Database, three: Store) -> None:
    three.emit(new(idempotency_key="k"))
    with helpers.transaction(database) as it:
        again = three.emit(new(idempotency_key="k"), using=it)
        assert it.scalar(text("SELECT count(*) FROM task_executions")) == 3
        three.emit(new(), using=it)
        it.commit()
    assert not any(handle.created for handle in again.handles.values())
    assert database.counts()[0] == 6


@pytest.mark.parametrize("key", [None, "k"])
def test_a_lost_commit_response_does_not_emit_the_event_twice(
    database: Database, three: Store, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    lossy = helpers.lossy(
        database, monkeypatch, between=lambda: three.subscriptions.replace(subscriber("audit2", "order.*"))
    )
    before = three.enqueue(NewTask(id=uuid7(), task_name="mail", args="{}", idempotency_key="k"))
    emitted = lossy.emit(new(idempotency_key=key))
    created = {name: handle.created for name, handle in emitted.handles.items()}
    assert created == {"audit": True, "book": True, "mail": key is None}
    assert (emitted.handles["mail"].id == before.id) is (key is not None)
    assert database.counts()[0] == sum(created.values()) + 1


def test_a_lost_commit_response_records_an_event_without_subscribers_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert helpers.lossy(database, monkeypatch).emit(new()).handles == {}
    assert len(unrouted(database)) == 1


# --- Refused before anything is written

BAD: dict[str, dict[str, object]] = {
    "topic empty": {"topic": ""},
    "topic long": {"topic": "x" * 201},
    "topic NUL": {"topic": "a\0b"},
    "topic surrogate": {"topic": "\ud800"},
    "exact topic": {"topic": "order.*"},
    "topic must be a string": {"topic": 7},
    "partition_key": {"partition_key": ""},
    "idempotency_key": {"idempotency_key": "k" * 201},
    "delay": {"delay": timedelta(seconds=-1)},
    "due time": {"available_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    "expire": {"expires_in": timedelta(0)},
    "expiry": {"expires_at": datetime.max.replace(tzinfo=UTC)},
    "uuid7.family": {"id": UUID(int=family().int | 1)},
}


@pytest.mark.parametrize(("words", "fields"), [(words.split(" surr")[0], fields) for words, fields in BAD.items()])
def test_a_bad_event_is_refused_with_an_explanation(words: str, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=words.removesuffix(" empty").removesuffix(" long").removesuffix(" NUL")):
        Store(None).emit(new(**fields), using=object())  # type: ignore[arg-type]


def test_the_error_for_a_payload_that_is_not_json_names_the_event(outbox: Outbox, database: Database) -> None:
    for payload in (float("nan"), b"x", {"a": object()}, {1: 2}, "x" * 300_000):
        with pytest.raises(PayloadError, match=r"event 'order\.paid': .*payload"):
            outbox.emit("order.paid", payload, using=outbox)
    assert database.counts() == (0, 0, 0)


def test_an_emit_without_a_transaction_is_refused(outbox: Outbox) -> None:
    with pytest.raises(InvalidTarget, match=r"using=outbox for a separate transaction"):
        outbox.emit("order.paid", using=None)
    with pytest.raises(InvalidArgument, match="not both"):
        outbox.emit("order.paid", using=outbox, delay=1, run_after=NOON)


# --- The table of subscriptions


def test_new_subscriptions_of_a_task_replace_its_old_ones(database: Database) -> None:
    store = database.store
    store.subscriptions.replace(of(subscriber("book", "a", "b"), subscriber("mail", "a"), subscriber("other", "a")))
    changed = of(subscriber("book", "b", "c", queue="ledger", timeout=timedelta(seconds=2.5)))
    store.subscriptions.replace(changed, tasks=["mail"])  # mail is still declared, but subscribes to nothing now
    assert store.subscriptions.list() == sorted(
        of(changed, subscriber("other", "a")), key=lambda one: (one.topic, one.task_name)
    )
    store.subscriptions.remove("other")
    store.subscriptions.remove("other")
    assert store.subscriptions.list() == changed


def test_an_outbox_syncs_only_subscriptions_of_its_tasks(database: Database, outbox: Outbox) -> None:
    database.store.subscriptions.replace(of(subscriber("foreign", "a"), subscriber("silent", "a")))
    outbox.task(name="silent")(lambda payload: None)
    outbox.task(name="mail", subscribe=("b", "a", "b"), queue="m", priority=3, lease=5, on_dead_letter="hold")(
        lambda payload, note="": None
    )
    outbox.sync_subscriptions()
    options = {"queue": "m", "priority": 3, "lease": timedelta(seconds=5), "on_dead_letter": OnDeadLetter.HOLD}
    mine = subscriber("mail", "b", "a", **options)
    assert outbox.subscriptions == mine
    assert database.store.subscriptions.list() == [*subscriber("foreign", "a"), mine[1], mine[0]]


def test_unchanged_subscriptions_are_not_written(database: Database) -> None:
    mine = of(subscriber("book", "a", "b"))
    database.store.subscriptions.replace(mine)
    with helpers.transaction(database) as it:  # a write or a row lock would wait for this transaction
        it.execute(text("UPDATE task_subscriptions SET priority = priority"))
        database.store.subscriptions.replace(mine, tasks=["silent"])
        it.rollback()


def test_simultaneous_subscription_changes_do_not_fail(database: Database) -> None:
    old = of(*(subscriber(f"t{n}", "a", "b", "c") for n in range(8)))
    fresh = of(*(subscriber(f"t{n}", "d", "c", "b", priority=1) for n in reversed(range(8))))
    database.store.subscriptions.replace(old)
    calls = [lambda mine=mine: database.store.subscriptions.replace(mine) for mine in [fresh, fresh, old] * 2]
    assert helpers.at_once(*calls) == [None] * 6
    database.store.subscriptions.replace(fresh)
    assert set(database.store.subscriptions.list()) == set(fresh)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": ""},
        {"topic": "*.paid"},
        {"topic": "a\0"},
        {"parameter": 'a"b'},
        {"parameter": ""},
        {"queue": ""},
        {"priority": 101},
        {"task_name": ""},
        {"lease": timedelta(0)},
        {"max_attempts": 0},
        {"on_dead_letter": "hold"},
    ],
)
def test_a_subscription_that_would_break_an_emit_is_refused(fields: dict[str, Any]) -> None:
    (good,) = subscriber("book", "order.paid")
    with pytest.raises(InvalidArgument):
        Store(None).subscriptions.replace([dataclasses.replace(good, **fields)], using=object())


def test_the_planner_knows_the_number_of_subscribers_before_the_first_emit(postgresql):
    """Otherwise, the planner would expect one subscriber and compare each of a thousand with every other, six times as slow."""
    postgresql.store.subscriptions.replace(
        [Subscription(topic="order.paid", task_name=f"tests.{number}", parameter="payload") for number in range(200)]
    )
    known = postgresql.rows("SELECT reltuples FROM pg_class WHERE oid = 'task_subscriptions'::regclass")
    assert known == [(200,)]
