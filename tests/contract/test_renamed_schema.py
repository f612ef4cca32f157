"""After a schema was renamed on PostgreSQL, `verify` reports the problem, and the documented statement repairs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy.exc import ProgrammingError

from outboxq import migrations
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.contract.helpers import batch_with
from tests.contract.test_migrations import postgresql_empty

__all__ = ["postgresql_empty"]

PAGE = Path(__file__).parents[2] / "docs" / "upgrading.md"
FUNCTIONS = ["outboxq_advance_batch", "outboxq_backlog", "outboxq_count_ends", "outboxq_enqueue", "outboxq_note_end"]
"""The first five of six functions. `verify` gives five examples."""
SOURCE = "SELECT prosrc FROM pg_proc WHERE proname = 'outboxq_notify'"


def misplaced(store: Store) -> dict[str, list[str]]:
    return {one.name: sorted(map(str, one.examples)) for one in store.verify()}


def new_task(**fields: object) -> NewTask:
    return NewTask(id=uuid7(), task_name="tests.work", args="{}", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("old", "new"), [("tasks_old", "tasks"), ("task", "jobs"), ("a", "ba")])
def test_a_renamed_schema_is_reported_and_repaired(postgresql_empty, old, new):
    def run(sql: str) -> None:
        with postgresql_empty.engine.begin() as connection:
            connection.exec_driver_sql(sql.replace("%", "%%"))

    def notify() -> str:
        with postgresql_empty.engine.connect() as connection:
            return str(connection.exec_driver_sql(SOURCE).scalar())

    migrations.upgrade(postgresql_empty.url, schema=old)
    store = Store(postgresql_empty.engine, schema=old)
    batch = batch_with(new_task())
    store.batches.create(batch)
    store.enqueue(new_task(pipeline_execution_id=batch.id))
    store.batches.close(batch.id)
    (claim,) = store.claim_ready_task(1, worker_id=uuid7())
    assert store.verify() == []

    run(f'ALTER SCHEMA "{old}" RENAME TO "{new}"')
    store = Store(postgresql_empty.engine, schema=new)
    with pytest.raises(ProgrammingError, match="does not exist"):
        store.complete(claim)
    assert misplaced(store) == {"function_of_other_schema": FUNCTIONS}
    assert [one.count for one in store.verify()] == [6], "the count also includes the trigger function of relays"
    assert store.verify(repair=True)[0].repaired == 0

    [statement] = re.findall(
        r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8").partition("## A renamed schema")[2], re.DOTALL
    )
    run(statement.replace("'tasks_old'", f"'{old}'").replace("'tasks'", f"'{new}'"))
    assert not re.search(rf"\b{old}\.|'{old}'", notify())
    assert store.verify() == []
    store.complete(claim)
    assert store.batches.get(batch.id).status == "Completed"
    assert store.get(batch.then[0].id).status == "Ready"
    with postgresql_empty.engine.begin() as connection:
        connection.exec_driver_sql(f"""SELECT "{new}".outboxq_enqueue('tests.work')""")
        connection.exec_driver_sql(f"""SELECT * FROM "{new}".outboxq_backlog('default')""")
    assert len(store.tasks()) == 3
