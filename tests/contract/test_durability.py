"""Only outboxq's own transactions skip flushes that are not necessary. All others are as durable as their connection.

On SQLite, the same tests show that outboxq never changes the setting of a shared connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, event

from outboxq import Outbox, TaskContext, TaskStatus
from outboxq.model import Claim, EventType, NewTask, Outcome
from outboxq.model.subscriptions import NewEvent
from outboxq.model.uuid7 import family, uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.contract.helpers import claimed, lost_connection

READ = {"postgresql": "SELECT current_setting('synchronous_commit')", "sqlite": "PRAGMA synchronous"}
DEFAULT = {"postgresql": "on", "sqlite": "2"}
RELAXED = {"postgresql": "off", "sqlite": "2"}
RELAXED_BY_A_WORKER = {"postgresql": "off", "sqlite": "1"}
"""The setting on connections that only a worker uses."""


class Durability:
    """The setting under which each statement of this process ran, and the setting that connections have afterwards."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.seen: list[tuple[str, str]] = []
        self.connections = 0
        self.default, self.relaxed = DEFAULT[database.name], RELAXED[database.name]

    def of(self, call: Callable[[], object]) -> set[str]:
        """Return the settings under which the statements of this call ran."""
        self.seen.clear()
        call()
        return {level for _, level in self.seen}

    def left(self) -> str:
        """Return the current setting of the engine's only pooled connection, outside any transaction."""
        with self.database.engine.connect() as connection:
            return self.read(connection.connection.dbapi_connection)

    def read(self, connection: Any) -> str:
        (level,) = connection.execute(READ[self.database.name]).fetchone()
        return str(level)

    def connected(self, connection: Any, _record: object) -> None:
        self.connections += 1
        if self.database.name == "postgresql":  # off by default on the test server, for speed
            connection.execute("SET synchronous_commit = on")
            connection.commit()

    def executed(self, _connection: object, cursor: Any, statement: str, *_: object) -> None:
        self.seen.append((statement, self.read(cursor.connection)))  # after BEGIN and the settings that follow it


@pytest.fixture
def durability(database: Database) -> Iterator[Durability]:
    levels = Durability(database)
    event.listen(database.engine, "connect", levels.connected)
    event.listen(Engine, "after_cursor_execute", levels.executed)
    yield levels
    event.remove(Engine, "after_cursor_execute", levels.executed)


@pytest.fixture
def host(database: Database, durability: Durability) -> Iterator[Connection]:
    """An application's transaction, on a connection with the default setting."""
    engine = database.host_engine()
    event.listen(engine, "connect", durability.connected)
    with engine.connect() as connection, connection.begin():
        yield connection


def new(**fields: Any) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


def completed(claim: Claim) -> Outcome:
    return Outcome(claim=claim, event_type=EventType.COMPLETED)


def failed(database: Database) -> Claim:
    claim = claimed(database)
    database.frozen.fail(claim, "no")
    return claim


RELAXING: dict[str, Callable[[Database], Callable[..., object]]] = {
    "claim": lambda db: partial(_claims, db, db.add()),
    "claim of keys": lambda db: partial(_claims, db, db.add(partition_key="a"), db.add(partition_key="b")),
    "heartbeat": lambda db: partial(db.frozen.heartbeat, [claimed(db)]),
    "finish that may be lost": lambda db: partial(db.frozen.finish, [completed(claimed(db))], durable=False),
}
DURABLE: dict[str, Callable[[Database], Callable[..., object]]] = {
    "enqueue": lambda db: partial(db.frozen.enqueue, new()),
    "enqueue with a key": lambda db: partial(db.frozen.enqueue, new(idempotency_key="once")),
    "enqueue many": lambda db: partial(db.frozen.enqueue_many, [new(), new()]),
    "emit": lambda db: partial(db.frozen.emit, NewEvent(id=family(), topic="order.paid")),
    "finish": lambda db: partial(db.frozen.finish, [completed(claimed(db))]),
    "complete": lambda db: partial(db.frozen.complete, claimed(db)),
    "release": lambda db: partial(db.frozen.release, claimed(db)),
    "recover": lambda db: partial(_recover, db, claimed(db)),
    "retry by hand": lambda db: partial(db.frozen.schedule_retry, db.add().id, datetime.now(UTC), 2),
    "cancel": lambda db: partial(db.frozen.cancel, db.add().id),
    "cancel a running task": lambda db: partial(db.frozen.cancel, claimed(db).id),
    "redrive": lambda db: partial(db.frozen.redrive, failed(db).id),
    "discard": lambda db: partial(db.frozen.discard, failed(db).id),
    "redrive all": lambda db: partial(_redrive_all, db, failed(db)),
    "run now": lambda db: partial(db.frozen.run_now, db.add(delay=timedelta(hours=1)).id),
    "priority": lambda db: partial(db.frozen.set_priority, db.add().id, 9),
    "pause": lambda db: partial(db.frozen.queues.pause, "default"),
}
"""Functions that prepare and return the call to be observed."""


def _claims(db: Database, *handles: object, using: object = None) -> None:
    assert len(db.claim(2, using=using)) == len(handles)


def _recover(db: Database, claim: Claim, using: object = None) -> None:
    db.clock.advance(claim.lease_seconds + 1)
    assert [one.id for one in db.frozen.recover(using=using)] == [claim.id]


def _redrive_all(db: Database, _letter: Claim, using: object = None) -> None:
    assert db.frozen.dead_letters.redrive_all(using=using) == 1


@pytest.mark.parametrize("name", RELAXING)
def test_a_transaction_of_outboxq_is_relaxed_if_a_crash_may_undo_it(database, durability, name):
    call = RELAXING[name](database)
    # On SQLite, an idle worker reads before it begins to write. The setting is the same for both.
    assert durability.of(call) == {durability.relaxed}
    assert any("INSERT INTO" in statement or "UPDATE" in statement for statement, _ in durability.seen)
    assert (durability.left(), durability.connections) == (durability.default, 1), "the pooled connection is reset"


@pytest.mark.in_turn
@pytest.mark.parametrize("name", DURABLE)
def test_all_other_transactions_are_as_durable_as_their_connection(database, durability, name):
    durability.of(DURABLE[name](database))
    # A recovery also deletes the wake-up requests of killed workers, in a separate transaction.
    other = ("BEGIN", "DELETE FROM sleeping_workers")
    levels = {level for statement, level in durability.seen if not any(word in statement for word in other)}
    assert levels == {durability.default}
    assert (durability.left(), durability.connections) == (durability.default, 1)


@pytest.mark.parametrize("name", [*RELAXING, "enqueue", "emit", "finish", "cancel", "redrive", "recover"])
def test_a_transaction_of_the_caller_keeps_its_durability(database, durability, name, request):
    call = {**RELAXING, **DURABLE}[name](database)
    using = request.getfixturevalue("host")
    assert durability.of(lambda: call(using=using)) == {durability.default}
    assert durability.read(using.connection.dbapi_connection) == durability.default


def test_a_failed_relaxed_transaction_restores_the_setting_of_the_connection(database, durability, monkeypatch):
    claim = claimed(database)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(database.frozen, "wake", _fail)
        database.frozen.finish([completed(claim)], durable=False)
    assert (durability.left(), durability.connections) == (durability.default, 1)
    assert database.frozen.get(claim.id).status is TaskStatus.RUNNING
    assert durability.of(lambda: database.frozen.complete(claim)) == {durability.default}


def test_a_relaxed_end_whose_commit_response_is_lost_is_not_written_twice(database, monkeypatch):
    claim, real, lost = claimed(database), database.frozen.transaction, []

    def losing(begin: Any) -> Any:
        """Commit the first transaction, then lose the connection."""
        if lost:
            return real(begin)
        return _once_lost(database, real, begin, lost)

    monkeypatch.setattr(database.frozen, "transaction", losing)
    assert database.frozen.finish([completed(claim)], durable=False) == frozenset()
    assert [str(begin) for begin in lost] == ["single asynchronous"]
    events = [one.event_type for one in database.frozen.history(claim.id)]
    assert events == [EventType.CREATED, EventType.CLAIMED, EventType.COMPLETED]


class _once_lost:  # noqa: N801 - a context manager
    def __init__(self, database: Database, real: Any, begin: Any, lost: list[Any]) -> None:
        self._database, self._begin, self._lost, self._inner = database, begin, lost, real(begin)

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._inner.__exit__(*raised)
        self._lost.append(self._begin)
        raise lost_connection(self._database)


def _fail(*_: object) -> None:
    raise RuntimeError("between the change and the commit")


@pytest.mark.parametrize("relaxed", [False, True])
def test_ends_written_by_a_worker_are_as_durable_as_configured(database, durability, monkeypatch, relaxed):
    """The ends of transactional tasks are always durable, because the handler's rows are committed with them."""
    outbox, inside, told = Outbox(database.engine), [], []
    real = Store.finish

    def finish(self: Store, outcomes: Any, **options: Any) -> object:
        told.append((outcomes[0].claim.task_name, "using" in options, options.get("durable", True)))
        return real(self, outcomes, **options)

    monkeypatch.setattr(Store, "finish", finish)

    @outbox.task(name="plain")
    def plain() -> None: ...

    @outbox.task(name="whole", transactional=True)
    def whole(ctx: TaskContext) -> None:
        plain.using(ctx).enqueue()
        inside.append(durability.read(ctx.connection.connection.dbapi_connection))

    assert durability.of(lambda: whole.using(outbox).enqueue()) == {durability.default}
    durability.seen.clear()
    worker = outbox.worker(relaxed_durability=relaxed, concurrency=1, poll=0.05)
    assert worker.run(burst=True) == 0
    assert inside == [durability.default]
    assert told == [("whole", True, True), ("plain", False, not relaxed)]
    ends = [
        level
        for statement, level in durability.seen
        if "DELETE FROM task_leases" in statement and "expired" not in statement
    ]
    assert ends == [durability.default, RELAXED_BY_A_WORKER[database.name] if relaxed else durability.default]
    assert {one.status for one in outbox.store.tasks()} == {TaskStatus.COMPLETED}


def test_a_unit_of_work_is_durable_from_its_first_statement_to_its_end(database, durability):
    claim = claimed(database)

    def unit() -> None:
        with database.frozen.unit() as one:
            database.frozen.enqueue(new(), using=one.connection)
            assert database.frozen.finish([completed(claim)], durable=False, using=one.connection) == frozenset()

    assert durability.of(unit) == {durability.default}, "an end cannot relax the durability of its unit of work"


def test_a_connection_with_a_lower_setting_keeps_it(database, durability):
    """A lower setting that an owner chose for a server, role or connection is kept."""
    less = {"sqlite": "PRAGMA synchronous = 1", "postgresql": "SET synchronous_commit = local"}
    with database.engine.connect() as connection:
        connection.exec_driver_sql(less[database.name])
    chosen = durability.left()
    assert chosen not in {durability.default, durability.relaxed}
    assert durability.of(lambda: database.frozen.enqueue(new())) == {chosen}
    assert len(database.claim(1, worker_id=uuid4())) == 1
    assert durability.left() == chosen
