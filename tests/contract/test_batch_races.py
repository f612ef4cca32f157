"""Tasks of batches end at the same moment in separate sessions."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from outboxq.errors import TaskNotFound
from outboxq.model import Claim, Outcome
from outboxq.model.batches import NewBatch, OnFailed, new_batch_id
from outboxq.model.records import EventType
from tests.conftest import Database
from tests.contract.helpers import at_once, stuck, transaction
from tests.contract.test_batches import follows, made, new_task, state

_ROUNDS = 8


def completed(claim: Claim) -> Outcome:
    return Outcome(claim=claim, event_type=EventType.COMPLETED)


def test_simultaneous_ends_enqueue_the_then_task_once(database: Database) -> None:
    stores = [database.own_store() for _ in range(4)]
    for _ in range(_ROUNDS):
        then = new_task("tests.later")
        batch = made(database, 4, then=(then,))
        claims = database.claim(4)

        def end(which: int, claims: list[Claim] = claims) -> object:
            return stores[which].finish([completed(claims[which])])

        assert at_once(*(partial(end, which) for which in range(4))) == [frozenset()] * 4
        assert state(database, batch) == (4, 4, 0, 0, True)
        (claim,) = database.claim()
        assert (claim.id,) == batch.then_ids
        database.frozen.complete(claim)


def test_a_batch_completes_only_when_all_ends_are_committed(database: Database) -> None:
    """Only committed ends count. A rollback leaves the batch open, however the other tasks ended."""
    batch = made(database, 2)
    first, second = database.claim(2)
    with transaction(database) as connection:
        database.frozen.complete(first, using=connection)
        if database.name == "postgresql":  # SQLite has one writer
            database.frozen.complete(second)
            assert state(database, batch) == (2, 1, 0, 0, False)
            assert not follows(database, batch)
        connection.rollback()
    if database.name == "sqlite":
        database.frozen.complete(second)
    assert state(database, batch) == (2, 1, 0, 0, False)
    database.frozen.complete(first)
    assert state(database, batch) == (2, 2, 0, 0, True)
    assert follows(database, batch)


def test_ends_of_two_batches_in_opposite_orders_do_not_deadlock(database: Database) -> None:
    """Each transaction ends a task of each batch, in its own order. A deadlock would raise an error here."""
    hosts = [database.host_engine() for _ in range(2)]
    for _ in range(_ROUNDS):
        batches = [made(database, 2, then=()) for _ in range(2)]
        claims = database.claim(4)
        one, other = ([claim for claim in claims if claim.pipeline_execution_id == batch.id] for batch in batches)

        def end(host: Engine, *claims: Claim) -> None:
            with host.connect() as connection, connection.begin():
                for claim in claims:
                    database.frozen.complete(claim, using=connection)

        calls: list[Callable[[], None]] = [
            partial(end, hosts[0], one[0], other[0]),
            partial(end, hosts[1], other[1], one[1]),
        ]
        assert at_once(*calls) == [None, None]
        assert [state(database, batch) for batch in batches] == [(2, 2, 0, 0, True)] * 2


def test_a_redrive_during_the_last_end_leaves_a_consistent_batch(database: Database) -> None:
    """Whichever commits first, the batch either waits for the redriven task or has completed and stays completed."""
    own = database.own_store()
    for _ in range(_ROUNDS):
        then = new_task("tests.later")
        batch = made(database, 2, then=(then,))
        first, second = database.claim(2)
        database.frozen.fail(first, "it broke")
        assert at_once(partial(database.frozen.redrive, first.id), partial(own.finish, [completed(second)]))[0] is None
        while claims := database.claim():
            database.frozen.complete(claims[0])
        size, done, failed, _, is_over = state(database, batch)
        assert (size, done + failed, is_over) == (2, 2, True)
        assert len(database.rows(f"SELECT id FROM task_executions WHERE task_name = '{then.task_name}'")) == 1
        database.run("DELETE FROM task_executions WHERE status = 'Completed'")
        database.run("DELETE FROM execution_events")


def test_a_task_can_be_added_while_the_last_one_ends(database: Database) -> None:
    """The batch either accepts the task and waits for it, or has completed and refuses it."""
    own = database.own_store()
    for _ in range(_ROUNDS):
        batch = made(database, 1, then=())
        (claim,) = database.claim()
        added, ended = at_once(
            partial(database.add, pipeline_execution_id=batch.id), partial(own.finish, [completed(claim)])
        )
        assert ended == frozenset()
        if isinstance(added, Exception):
            assert "batch" in str(added)
            assert state(database, batch) == (1, 1, 0, 0, True)
        else:
            assert state(database, batch) == (2, 1, 0, 0, False)
            (claim,) = database.claim()
            database.frozen.complete(claim)
            assert state(database, batch) == (2, 2, 0, 0, True)


def test_many_batches_end_in_many_sessions(database: Database) -> None:
    """Each statement ends tasks of several batches, in an order that differs from session to session."""
    stores = [database.own_store() for _ in range(4)]
    batches = [made(database, 12, then=(), on_failed=OnFailed.WAIT) for _ in range(5)]
    claims = database.claim(60)
    random.Random(19).shuffle(claims)

    def end(which: int) -> None:
        mine = claims[which::4]
        for start in range(0, len(mine), 5):
            assert not stores[which].finish([completed(claim) for claim in mine[start : start + 5]])

    assert at_once(*(partial(end, which) for which in range(4))) == [None] * 4
    assert [state(database, batch) for batch in batches] == [(12, 12, 0, 0, True)] * 5


def index_entries_read(connection):
    """Return this session's count. It may include earlier transactions that have not been reported yet."""
    return connection.exec_driver_sql(
        "SELECT pg_stat_get_xact_tuples_returned('ix_task_batch_changes_xact_id'::regclass)"
    ).scalar_one()


def test_the_counting_trigger_reads_each_change_of_a_transaction_once(postgresql: Database) -> None:
    """The counting trigger runs once for each change. Its first run deletes all changes, and later runs must not read them again."""
    number = 100
    with transaction(postgresql) as connection:
        before = index_entries_read(connection)
        batch = NewBatch(id=new_batch_id())
        postgresql.store.batches.create(batch, using=connection)
        for _ in range(number):
            postgresql.store.enqueue(new_task(pipeline_execution_id=batch.id), using=connection)
        postgresql.store.batches.close(batch.id, using=connection)
        connection.exec_driver_sql("SET CONSTRAINTS task_batch_changes_count IMMEDIATE")
        assert index_entries_read(connection) - before <= 2 * number
        assert postgresql.store.batches.get(batch.id, using=connection).size == number
        connection.rollback()


def test_a_repair_counts_tasks_that_end_while_the_repair_waits(postgresql: Database) -> None:
    """The repair waits for the batch's row, and then counts the end that was committed in the meantime."""
    batch = made(postgresql, 3, then=())
    first, second, third = postgresql.claim(3)
    postgresql.frozen.complete(first)
    postgresql.run("UPDATE task_batches SET completed = 0")
    with transaction(postgresql) as connection:
        postgresql.frozen.complete(second, using=connection)
        connection.exec_driver_sql("SET CONSTRAINTS task_batch_changes_count IMMEDIATE")
        with stuck(postgresql, partial(postgresql.own_store().verify, repair=True)) as repair:
            assert not repair.done()
            connection.commit()
        assert [one.repaired for one in repair.result()] == [1]
    assert state(postgresql, batch) == (3, 2, 0, 0, False)
    postgresql.frozen.complete(third)
    assert state(postgresql, batch) == (3, 3, 0, 0, True)


def test_a_task_added_to_a_batch_that_then_completes_is_refused_by_its_commit(postgresql: Database) -> None:
    """The batch is still open when the task joins it, and has completed when the producer commits."""
    batch = made(postgresql, 1)
    (claim,) = postgresql.claim()
    with transaction(postgresql) as connection:
        late = postgresql.frozen.enqueue(new_task(pipeline_execution_id=batch.id), using=connection)
        postgresql.frozen.complete(claim)
        with pytest.raises(OperationalError, match=f"batch {batch.id} has completed and takes no more tasks"):
            connection.commit()
    with pytest.raises(TaskNotFound):
        postgresql.store.get(late.id)
    assert state(postgresql, batch) == (1, 1, 0, 0, True)
    assert follows(postgresql, batch)


@pytest.mark.parametrize("force", [False, True])
def test_a_cancel_in_the_callers_transaction_and_the_end_of_a_task_cause_no_deadlock(
    postgresql: Database, force: bool
) -> None:
    """The end waits for the batch's row at its commit, so the cancel must not wait for a task while it has that row."""
    batch = made(postgresql, 2)
    (claim,) = postgresql.claim()

    def cancel() -> int:
        with postgresql.host_engine().connect() as connection, connection.begin():
            return postgresql.frozen.batches.cancel(batch.id, force=force, using=connection)

    with transaction(postgresql) as connection:
        postgresql.frozen.complete(claim, using=connection)
        with stuck(postgresql, cancel) as cancelled:
            connection.commit()
            assert cancelled.result() == 1
    assert state(postgresql, batch) == (2, 1, 0, 1, True)
    assert not follows(postgresql, batch)
