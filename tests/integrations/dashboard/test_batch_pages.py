"""What the pages of batches say, and the cancelling of one."""

from __future__ import annotations

import pytest

from outboxq.model import NewTask
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.uuid7 import uuid7
from tests.conftest import Database
from tests.integrations.dashboard.test_watch_pages import Reader, onlooker, reader

__all__ = ["onlooker", "reader"]


@pytest.fixture
def batch(database: Database) -> NewBatch:
    """A batch of three, of which one has failed."""
    then = NewTask(id=uuid7(), task_name="tests.then", args="{}")
    batch = NewBatch(id=new_batch_id(), name="<b>May</b>", then=(then,))
    database.store.batches.create(batch)
    for _ in range(3):
        database.add(database.store, pipeline_execution_id=batch.id)
    database.store.batches.close(batch.id)
    (claim,) = database.claim(store=database.store)
    database.store.fail(claim, "line 7 has no price")
    return batch


def test_a_batch_is_listed_and_shown(reader: Reader, batch: NewBatch) -> None:
    words = reader.words("/batches")
    assert "<b>May</b> batch Running 3 2 1 0" in words
    words = reader.words(f"/batches/{batch.id}")
    assert "Tasks 3, of which 2 have not ended" in words
    assert "Then tests.then not enqueued" in words
    assert "Failed line 7 has no price" in words
    assert reader.get(f"/api/batches/{batch.id}.json").get_json()["pending"] == 2


def test_a_batch_is_cancelled_with_a_reason(reader: Reader, database: Database, batch: NewBatch) -> None:
    reader.words(f"/batches/{batch.id}")
    notice = reader.press(f"/batches/{batch.id}/cancel", reason="the file was wrong")
    assert notice == "2 tasks of the batch were cancelled or asked to stop. Nothing follows it."
    assert "Cancelled" in reader.words(f"/batches/{batch.id}")
    assert "There are no batches that go on." in reader.words("/batches", state="open")
    ends = [database.store.history(one.id)[-1].event_data for one in database.store.batches.members(batch.id)]
    assert sum(str(data.get("reason", "")).startswith("the file was wrong") for data in ends) == 2


def test_who_may_not_act_is_given_the_command(onlooker: Reader, batch: NewBatch) -> None:
    assert f"outboxq batch cancel {batch.id}" in onlooker.words(f"/batches/{batch.id}")


def test_a_task_leads_to_its_batch(reader: Reader, database: Database, batch: NewBatch) -> None:
    task_id = next(database.store.batches.members(batch.id)).id
    assert f"Batch {batch.id}" in reader.words(f"/tasks/{task_id}")
    assert f'href="/batches/{batch.id}"' in reader.page.text


def test_an_unknown_batch_is_not_found(reader: Reader) -> None:
    assert "There is no batch" in reader.words(f"/batches/{new_batch_id()}", status=404)
