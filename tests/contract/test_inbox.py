"""The inbox: each consumer accepts a message once, together with its work, and remembers it for the given time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from outboxq import InvalidArgument, InvalidTarget, Outbox, RetryPolicy, TaskContext
from outboxq.store.messages import inbox as inbox_room
from outboxq.store.messages.inbox import KEPT
from tests.conftest import Database
from tests.contract.helpers import stuck, transaction

MICROSECOND = timedelta(microseconds=1)


def accepted(database: Database, message_id: str = "m1", consumer: str = "billing", **options: Any) -> bool:
    """Accept a message in a transaction that commits, by the test's clock."""
    with database.host.begin() as connection:
        return database.frozen.inbox.accept(consumer, message_id, using=connection, **options)


def messages(database: Database) -> list[tuple[object, ...]]:
    return database.rows("SELECT consumer, source, message_id FROM inbox_messages ORDER BY 1, 2, 3")


def test_a_message_is_accepted_once_by_each_consumer_of_each_source(database: Database) -> None:
    assert accepted(database)
    assert not accepted(database)
    assert accepted(database, consumer="mail")
    assert accepted(database, source="shop")
    assert not accepted(database, source="shop")
    assert accepted(database, "m2")
    assert messages(database) == [
        ("billing", "", "m1"),
        ("billing", "", "m2"),
        ("billing", "shop", "m1"),
        ("mail", "", "m1"),
    ]


def test_a_rollback_undoes_the_acceptance(database: Database) -> None:
    outbox = Outbox(database.host)
    with database.host.connect() as connection, connection.begin() as whole:
        assert outbox.inbox.accept("billing", "m1", using=connection)
        with connection.begin_nested() as part:
            assert outbox.inbox.accept("billing", "m2", using=connection)
            part.rollback()
        assert not outbox.inbox.accept("billing", "m1", using=connection)
        assert outbox.inbox.accept("billing", "m2", using=connection)
        whole.rollback()
    assert messages(database) == []
    assert accepted(database)


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_arrival_waits_for_the_first(database: Database, commits: bool) -> None:
    """It is refused if the first one commits, and accepted if the first one rolls back."""

    def second() -> bool:
        return database.store.inbox.accept("billing", "m1", using=None)

    with transaction(database) as first:
        assert database.store.inbox.accept("billing", "m1", using=first)
        with stuck(database, second) as answer:
            assert not answer.done()
            if commits:
                first.commit()
            else:
                first.rollback()
            assert answer.result() is not commits
    assert messages(database) == [("billing", "", "m1")]


def test_a_handler_takes_effect_once_however_often_its_message_arrives(database: Database) -> None:
    """The handler's transaction is found without `using`, and a later failure undoes the acceptance."""
    outbox = Outbox(database.host)
    database.run("CREATE TABLE effects (note TEXT)")
    failures = iter([True])

    @outbox.task(name="tests.book", transactional=True, retry=RetryPolicy(max_attempts=3, wait=0))
    def book(ctx: TaskContext, message_id: str) -> bool:
        if not outbox.inbox.accept("billing", message_id):
            return False
        ctx.connection.execute(text("INSERT INTO effects VALUES (:note)"), {"note": message_id})
        if next(failures, False):
            raise ConnectionError("after the acceptance")
        return True

    for message_id in ("m1", "m1", "m2"):
        book.using(outbox).enqueue(message_id)
    outbox.worker(concurrency=1, notifications=False).run(burst=True)
    assert sorted(database.rows("SELECT note FROM effects")) == [("m1",), ("m2",)]
    assert database.rows("SELECT count(*) FROM task_executions WHERE status = 'Completed'") == [(3,)]


def test_a_message_is_forgotten_by_the_prune_after_its_time(database: Database) -> None:
    accepted(database, "week")
    accepted(database, "hour", keep=3600)
    prune = lambda: database.frozen.prune(timedelta(days=365))  # noqa: E731 - the age of tasks does not matter
    database.clock.advance(timedelta(hours=1) - MICROSECOND)
    prune()
    assert not accepted(database, "hour")
    database.clock.advance(MICROSECOND)
    assert not accepted(database, "hour"), "it is remembered until the next prune"
    prune()
    assert messages(database) == [("billing", "", "week")]
    database.clock.advance(KEPT - timedelta(hours=1) - MICROSECOND)
    prune()
    assert not accepted(database, "week")
    database.clock.advance(MICROSECOND)
    prune()
    assert messages(database) == []
    assert accepted(database, "week")


def test_a_prune_forgets_any_number_of_messages(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_room, "_PRUNED_AT_ONCE", 2)
    for number in range(5):
        accepted(database, f"m{number}", keep=1)
    accepted(database, "young")
    database.clock.advance(timedelta(seconds=1))
    assert database.frozen.inbox.prune(stop=lambda: True) == 0
    assert database.frozen.inbox.prune() == 5
    assert messages(database) == [("billing", "", "young")]


def test_a_dry_run_forgets_nothing(database: Database) -> None:
    accepted(database, keep=1)
    database.clock.advance(timedelta(seconds=1))
    assert database.frozen.prune(timedelta(0), dry_run=True) == 0
    assert len(messages(database)) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"consumer": ""}, "consumer of message 'm1'"),
        ({"message_id": ""}, "message_id of message ''"),
        ({"message_id": "m" * 201}, "message_id of message 'mmm"),
        ({"message_id": 7}, "message_id of message '7'"),
        ({"source": "a\0b"}, "source of message 'm1'"),
        ({"source": None}, "source of message 'm1'"),
        ({"keep": 0}, "keep of message 'm1'"),
        ({"keep": timedelta(days=40_000)}, "keep of message 'm1'"),
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_is_written(
    database: Database, options: dict[str, Any], complaint: str
) -> None:
    given = {"consumer": "billing", "message_id": "m1", **options}
    with database.host.begin() as connection, pytest.raises(InvalidArgument, match=complaint):
        Outbox(database.host).inbox.accept(**given, using=connection)
    assert messages(database) == []


def test_a_message_is_not_accepted_outside_the_transaction_of_its_work(database: Database) -> None:
    outbox = Outbox(database.host)
    with pytest.raises(InvalidTarget, match="the message is lost if that work fails; write using=session"):
        outbox.inbox.accept("billing", "m1", using=outbox)
    with pytest.raises(InvalidTarget, match="the current transaction is not known"):
        outbox.inbox.accept("billing", "m1")
    with pytest.raises(InvalidTarget, match="using=None does not name a transaction"):
        outbox.inbox.accept("billing", "m1", using=None)
    assert messages(database) == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_above_read_committed_a_message_accepted_meanwhile_is_a_serialization_failure(database: Database) -> None:
    outbox = Outbox(database.host)
    with database.host.connect().execution_options(isolation_level="REPEATABLE READ") as late, late.begin():
        late.execute(text("SELECT 1"))
        assert accepted(database)
        with pytest.raises(OperationalError, match="could not serialize access"):
            outbox.inbox.accept("billing", "m1", using=late)
