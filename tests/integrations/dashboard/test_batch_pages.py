"""The pages of batches, and how a batch is cancelled."""

from __future__ import annotations

from uuid import UUID

import pytest

from outboxq.model import NewTask, TaskStatus
from outboxq.model.batches import BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.web.pages import batches as pages
from tests.conftest import Database
from tests.integrations.dashboard.test_watch_pages import Reader, onlooker, reader

__all__ = ["onlooker", "reader"]

uuid7_of_nothing = uuid7()


@pytest.fixture
def batch(database: Database) -> NewBatch:
    """A batch of three tasks, one of which has failed."""
    batch_id = new_batch_id()
    then = NewTask(id=BatchLink(batch_id=batch_id, number=1).task_id, task_name="tests.then", args="{}")
    batch = NewBatch(id=batch_id, name="<b>May</b>", then=(then,))
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
    assert "Tasks 3 Not ended 2 Completed 0 Failed 1" in words
    assert "Then tests.then not enqueued" in words
    assert "Failed line 7 has no price" in words
    assert reader.get(f"/api/batches/{batch.id}.json").get_json()["pending"] == 2


def test_failed_tasks_are_shown_first(
    reader: Reader, database: Database, batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, late = (one.id for one in database.store.batches.members(batch.id) if one.status is TaskStatus.READY)
    claims = {claim.id: claim for claim in database.claim(2, store=database.store)}
    database.store.fail(claims[late], "line 9 has no price")
    monkeypatch.setattr(pages, "_MOST", 2)
    words = reader.words(f"/batches/{batch.id}")
    assert "line 7 has no price" in words
    assert "line 9 has no price" in words
    assert str(ready) not in words
    assert "Only the first 2 are shown" in words


def test_a_batch_is_cancelled_with_a_reason(reader: Reader, database: Database, batch: NewBatch) -> None:
    reader.words(f"/batches/{batch.id}")
    notice = reader.press(f"/batches/{batch.id}/cancel", reason="the file was wrong")
    assert (
        notice == f"The batch {batch.id} is cancelled: 2 tasks were cancelled or asked to stop, and no task follows it."
    )
    assert "Cancelled" in reader.words(f"/batches/{batch.id}")
    assert "There are no unfinished batches." in reader.words("/batches", state="open")
    ends = [database.store.history(one.id)[-1].event_data for one in database.store.batches.members(batch.id)]
    assert sum(str(data.get("reason", "")).startswith("the file was wrong") for data in ends) == 2


def test_a_batch_that_has_ended_is_not_cancelled(reader: Reader, database: Database, batch: NewBatch) -> None:
    reader.words(f"/batches/{batch.id}")  # loads the form before the batch ends
    for claim in database.claim(2, store=database.store):
        database.store.complete(claim)
    notice = reader.press(f"/batches/{batch.id}/cancel")
    assert notice.startswith(f"The batch {batch.id} completed at ")
    assert "UTC, so nothing was cancelled; to cancel the task that follows, use its own id: " in notice


def test_a_count_of_one_uses_the_singular(reader: Reader, database: Database, batch: NewBatch) -> None:
    (claim,) = database.claim(store=database.store)
    database.store.complete(claim)
    assert "Tasks 3 Not ended 1" in reader.words(f"/batches/{batch.id}")
    notice = reader.press(f"/batches/{batch.id}/cancel")
    assert (
        notice == f"The batch {batch.id} is cancelled: 1 task was cancelled or asked to stop, and no task follows it."
    )


def test_a_read_only_viewer_sees_the_command(onlooker: Reader, batch: NewBatch) -> None:
    assert f"outboxq batch cancel {batch.id}" in onlooker.words(f"/batches/{batch.id}")


def test_a_task_page_links_to_its_batch(reader: Reader, database: Database, batch: NewBatch) -> None:
    task_id = next(database.store.batches.members(batch.id)).id
    assert f"Batch {batch.id}" in reader.words(f"/tasks/{task_id}")
    assert f'href="/batches/{batch.id}"' in reader.page.text


def test_the_list_of_tasks_is_filtered_by_a_batch(reader: Reader, database: Database, batch: NewBatch) -> None:
    database.add(database.store)
    reader.words(f"/batches/{batch.id}")
    assert f'href="/tasks?batch={batch.id}"' in reader.page.text
    reader.words("/tasks", batch=str(batch.id))
    assert reader.page.text.count("<b>") == 0
    assert "Cancel all that match" not in reader.page.text  # the link's filter would differ from this one
    found = reader.get(f"/api/tasks.json?batch={batch.id}").get_json()
    assert {one["pipeline_execution_id"] for one in found["tasks"]} == {str(batch.id)}
    assert len(found["tasks"]) == 3
    assert "Batch must be a complete id, not &#39;81&#39;." in reader.get("/tasks?batch=81").text


def test_a_then_task_has_a_page_before_it_is_enqueued(reader: Reader, database: Database, batch: NewBatch) -> None:
    then_id = batch.then[0].id
    words = reader.words(f"/tasks/{then_id}", status=404)
    assert f"It is not enqueued yet: it follows the batch {batch.id}, in which 2 tasks have not finished" in words
    assert f'href="/batches/{batch.id}"' in reader.page.text
    first = database.store.explain(then_id).waits_for
    assert f'href="/tasks/{first}"' in reader.page.text
    assert reader.get(f"/api/tasks/{then_id}.json").get_json()["explanation"]["reason"] == "not_enqueued"
    assert f"There is no task {uuid7_of_nothing}; its transaction may not have been committed yet." in reader.words(
        f"/tasks/{uuid7_of_nothing}", status=404
    )


def test_a_batch_says_that_it_waits_for_dead_letters(reader: Reader, database: Database) -> None:
    batch = NewBatch(id=new_batch_id(), on_failed=OnFailed.WAIT)
    database.store.batches.create(batch)
    database.add(database.store, pipeline_execution_id=batch.id)
    database.store.batches.close(batch.id)
    assert "It waits for" not in reader.words(f"/batches/{batch.id}")
    (claim,) = database.claim(store=database.store)
    database.store.fail(claim, "line 7 has no price")
    words = reader.words(f"/batches/{batch.id}")
    assert (
        "It is waiting for 1 dead letter: redrive or discard it. Discarding a dead letter lets the batch continue without it."
        in words
    )
    assert f"the batch {batch.id} is waiting for it" in reader.words(f"/tasks/{claim.id}")


def waiting_batch(database: Database, dead_letters: int) -> tuple[NewBatch, list[UUID]]:
    """A batch that waits for its dead letters."""
    batch = NewBatch(id=new_batch_id(), name="nightly", on_failed=OnFailed.WAIT)
    database.store.batches.create(batch)
    for _ in range(dead_letters):
        database.add(database.store, pipeline_execution_id=batch.id)
    database.store.batches.close(batch.id)
    claims = database.claim(dead_letters, store=database.store)
    for claim in claims:
        database.store.fail(claim, "line 7 has no price")
    return batch, [claim.id for claim in claims]


def test_a_batch_that_waits_for_dead_letters_is_marked(reader: Reader, database: Database) -> None:
    waiting, _ = waiting_batch(database, 1)
    words = reader.words("/batches")
    assert "nightly batch Waits 1 1 1 0" in words
    assert f"nightly Waits {waiting.id}" in reader.words(f"/batches/{waiting.id}")


def test_the_dead_letters_of_a_batch_are_redriven_and_discarded_on_its_page(
    reader: Reader, onlooker: Reader, database: Database
) -> None:
    batch, (first, second) = waiting_batch(database, 2)
    path = f"/batches/{batch.id}"
    onlooker.words(path)
    assert onlooker.forms() == {}
    reader.words(path)
    assert f"Task {first} was redriven" in reader.press(f"/tasks/{first}/redrive")
    assert reader.page.request.path == path
    words = reader.words(path)
    assert "It is waiting for 1 dead letter" in words
    assert f"/tasks/{first}/redrive" not in reader.forms()
    notice = reader.press(f"/tasks/{second}/discard", reason="paid by hand")
    assert "was discarded" in notice
    assert database.store.history(second)[-1].event_data["reason"].startswith("paid by hand")
    assert "nightly batch Running" in reader.words("/batches")


def test_an_unknown_batch_is_not_found(reader: Reader) -> None:
    assert "There is no batch" in reader.words(f"/batches/{new_batch_id()}", status=404)


def test_the_page_of_a_then_task_offers_a_redrive_of_the_dead_letter(
    reader: Reader, onlooker: Reader, database: Database
) -> None:
    batch_id = new_batch_id()
    then = NewTask(id=BatchLink(batch_id=batch_id, number=1).task_id, task_name="tests.then", args="{}")
    database.store.batches.create(NewBatch(id=batch_id, on_failed=OnFailed.WAIT, then=(then,)))
    database.add(database.store, pipeline_execution_id=batch_id)
    database.store.batches.close(batch_id)
    (claim,) = database.claim(store=database.store)
    database.store.fail(claim, "line 7 has no price")
    words = onlooker.words(f"/tasks/{then.id}", status=404)
    assert f"To redrive the dead letter, type outboxq failed redrive {claim.id}" in words
    assert "Then tests.then not enqueued" in reader.words(f"/batches/{batch_id}")
    assert f'href="/tasks/{then.id}"' in reader.page.text
    assert str(then.id) in reader.words(f"/tasks/{then.id}", status=404)
    assert f'action="/tasks/{claim.id}/redrive"' in reader.page.text
    reader.press(f"/tasks/{claim.id}/redrive", back=str(then.id))
    assert database.store.get(claim.id).status == "Ready"


def test_a_batch_id_used_as_a_task_id_links_to_the_batch(reader: Reader, batch: NewBatch) -> None:
    assert "this is the id of a batch or a chain" in reader.words(f"/tasks/{batch.id}", status=404)
    assert f'href="/batches/{batch.id}">See the batch' in reader.page.text
