"""If claims fail, only tasks whose own rows are at fault become Failed, and healthy tasks still run."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from sqlalchemy import event

from outboxq import TaskStatus
from outboxq.store.claims import broken_entries
from tests.contract import helpers
from tests.contract.planting import plant

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
LAST_TOKEN = "lease_token = 9223372036854775807"


def refuse(database, table, sqlstate="23514", when=""):
    """Create a trigger that refuses new rows of this table, as an administrator might."""
    database.corrupted = True
    if database.name == "sqlite":
        database.run(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} {when} BEGIN SELECT RAISE(ABORT, 'not now'); END")
        return
    database.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}'; END $$"
    )
    database.run(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW {when} EXECUTE FUNCTION refuse()")


def spoil(database, task, change):
    plant(database, f"UPDATE task_executions SET {change} WHERE id = '{task.id.hex}'")


def entries(database):
    return database.rows("SELECT count(*) FROM task_outbox")[0][0]


def statuses(database, tasks):
    return [database.frozen.get(one.id).status for one in tasks]


def test_a_listener_that_raises_does_not_fail_a_task(database):
    """The error has the same type as the error for a value that Python cannot read."""
    tasks = [database.add(database.store) for _ in range(3)]

    def refuse_leases(_connection, _cursor, statement, *_):
        if "INSERT INTO task_leases" in statement:
            raise ValueError("the listener of a tracing library")

    event.listen(database.engine, "before_cursor_execute", refuse_leases)
    with pytest.raises(ValueError, match="tracing library"):
        database.claim(3, database.store)
    event.remove(database.engine, "before_cursor_execute", refuse_leases)
    assert statuses(database, tasks) == [TaskStatus.READY] * 3
    assert len(database.claim(3, database.store)) == 3


@on_postgresql
def test_a_locked_entry_does_not_cause_another_to_fail(database):
    tasks = [database.add(database.store) for _ in range(2)]
    refuse(database, "task_leases")
    with helpers.transaction(database) as other:
        other.exec_driver_sql(f"SELECT 1 FROM task_outbox WHERE task_execution_id = '{tasks[1].id}' FOR UPDATE")
        with pytest.raises(Exception, match="not now"):
            database.claim(2, database.store)
    assert statuses(database, tasks) == [TaskStatus.READY] * 2
    assert entries(database) == 2


def test_an_expired_entry_does_not_cause_another_to_fail(database):
    tasks = [database.add(database.frozen), database.add(database.frozen, expires_in=timedelta(seconds=1))]
    database.clock.advance(2)
    refuse(database, "task_leases")
    with suppress(Exception):
        database.claim(2, database.frozen)
    assert statuses(database, tasks[:1]) == [TaskStatus.READY]


@on_postgresql
def test_no_entry_is_deleted_if_the_disk_is_full(database):
    """A full disk also keeps the dead letter from being written."""
    broken, healthy = database.add(database.store), database.add(database.store)
    spoil(database, broken, LAST_TOKEN)
    refuse(database, "dead_letters", sqlstate="53100")
    with pytest.raises(Exception, match="not now"):
        database.claim(2, database.store)
    assert entries(database) == 2
    database.run("DROP TRIGGER refuse ON dead_letters")
    assert [claim.id for claim in database.claim(2, database.store)] == [healthy.id]
    assert statuses(database, [broken]) == [TaskStatus.FAILED]


def test_healthy_claims_are_returned_even_if_an_unusable_one_cannot_be_failed(database, caplog):
    broken, *healthy = [database.add(database.store) for _ in range(3)]
    spoil(database, broken, "lease_seconds = 1e10")
    refuse(database, "dead_letters", sqlstate="53100")
    assert {claim.id for claim in database.claim(3, database.store)} == {one.id for one in healthy}
    assert "tasks with unusable values could not be marked as failed" in caplog.text


def test_a_claim_in_a_transaction_of_the_caller_raises_if_an_unusable_task_cannot_be_failed(database):
    broken = database.add(database.store)
    spoil(database, broken, "lease_seconds = 1e10")
    refuse(database, "dead_letters", sqlstate="53100")
    with helpers.transaction(database) as connection, pytest.raises(Exception, match="not now"):
        database.claim(1, database.store, using=connection)


def test_a_search_ends_after_one_batch_of_equal_failures_and_is_not_repeated_immediately(database, monkeypatch):
    monkeypatch.setattr(broken_entries, "_AT_ONCE", 16)
    for _ in range(48):
        database.add(database.store)
    refuse(database, "task_leases")
    begun, transaction = [], database.store.transaction

    @contextmanager
    def counted(begin):
        begun.append(begin)
        with transaction(begin) as target:
            yield target

    monkeypatch.setattr(database.store, "transaction", counted)
    with pytest.raises(Exception, match="not now"):
        database.claim(1, database.store)
    assert len(begun) <= 31 + 4  # the halves of one batch, and a claim's own transactions
    begun.clear()
    with pytest.raises(Exception, match="not now"):
        database.claim(1, database.store)
    assert len(begun) <= 4
    assert entries(database) == 48


def test_a_row_that_a_trigger_refuses_is_failed_if_others_can_be_claimed(database):
    tasks = [database.add(database.store) for _ in range(9)]
    named = tasks[4].id.hex if database.name == "sqlite" else tasks[4].id
    refuse(database, "task_leases", when=f"WHEN (NEW.task_execution_id = '{named}')")
    assert len(database.claim(9, database.store)) == 8
    assert statuses(database, [tasks[4]]) == [TaskStatus.FAILED]
