"""Transaction ids and `sequence_num`: a transaction has its id before it draws a number, and readers of the log rely on that.

The test replaces the column's default with one that refuses transactions without an id.
"""

from __future__ import annotations

import pytest

from outboxq.model import NewTask
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family, uuid7
from outboxq.store import Store
from tests.conftest import Database

DRAW = """
CREATE FUNCTION draw() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        RAISE 'no transaction id yet';
    END IF;
    RETURN nextval('drawn');
END $$
"""


@pytest.fixture
def store(postgresql: Database) -> Store:
    postgresql.frozen.subscriptions.replace([Subscription(topic="order.*", task_name="book", parameter="payload")])
    postgresql.run("ALTER TABLE execution_events ALTER sequence_num DROP IDENTITY")
    postgresql.run("CREATE SEQUENCE drawn")
    postgresql.run(DRAW)
    postgresql.run("ALTER TABLE execution_events ALTER sequence_num SET DEFAULT draw()")
    return postgresql.frozen


def event(topic: str, key: str | None = None) -> NewEvent:
    return NewEvent(id=family(), topic=topic, idempotency_key=key)


def task(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "book", "args": "{}", **fields})  # type: ignore[arg-type]


def test_creating_tasks_and_events_assigns_the_transaction_id_first(postgresql: Database, store: Store) -> None:
    for key in (None, "k"):
        assert store.emit(event("order.paid", key)).handles
        assert store.emit(event("refund", key)).handles == {}
        store.enqueue(task(idempotency_key=key and "another"))
    assert postgresql.rows("SELECT count(*), count(xact_id), count(DISTINCT xact_id) FROM execution_events") == [
        (6,) * 3
    ]


def test_a_transition_assigns_the_id_first(postgresql: Database, store: Store) -> None:
    ids = [store.enqueue(task()).id for _ in range(4)]
    done, failing, given_back = postgresql.claim(3)
    store.complete(done)
    store.fail(failing, "E")
    store.release(given_back)
    store.redrive(failing.id)
    store.cancel(ids[3])
    (late, *_) = postgresql.claim(1)
    store.cancel(late.id)  # requests the cancellation
    postgresql.clock.advance(3600)
    assert len(store.recover()) == 1
    assert postgresql.rows("SELECT count(*) FROM execution_events") == [(15,)]
