"""`explain` knows `then` tasks that are not enqueued yet, and the dead letters that block them."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.errors import TaskNotFound
from outboxq.model import TaskExecution, TaskStatus
from outboxq.model.batches import BatchKind, BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.store import Reason, Store
from tests.conftest import Database
from tests.contract.test_batches import following, made, new_task


def said(database: Database, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--url", database.url], catch_exceptions=False)


def sentence(database: Database, task_id: UUID) -> str:
    return database.store.explain(task_id).sentence


def members(database: Database, batch: UUID) -> list[UUID]:
    return [one.id for one in database.store.batches.members(batch)]


def chain_of(database: Database, *names: str) -> tuple[UUID, ...]:
    """Create a chain. Return the ids of the chain, its first task, and the tasks with these names that follow."""
    chain_id = new_batch_id()
    links = [following(chain_id, name, number) for number, name in enumerate(names, start=1)]
    database.frozen.batches.create(
        NewBatch(id=chain_id, kind=BatchKind.CHAIN, then=tuple(links), on_failed=OnFailed.WAIT)
    )
    first = database.add(pipeline_execution_id=chain_id).id
    database.frozen.batches.close(chain_id)
    return chain_id, first, *(link.id for link in links)


def test_a_then_task_waits_for_the_first_task_of_its_batch_that_has_not_ended(database: Database) -> None:
    batch = made(database, 3)
    [then_id] = batch.then_ids
    done, first, _ = members(database, batch.id)
    (claim,) = database.claim()
    database.frozen.complete(claim)
    assert claim.id == done
    why = database.store.explain(then_id)
    assert why.sentence == (
        f"it is not enqueued yet: it follows the batch {batch.id}, in which 2 tasks have not finished; the first of them is "
        f"{first} (tests.work), which is Ready"
    )
    assert (why.reason, why.waits_for) == (Reason.NOT_ENQUEUED, first)
    assert [one.command for one in why.cures] == [("task", "explain", str(first)), ("batch", "show", str(batch.id))]
    for claim in database.claim(2):
        database.frozen.complete(claim)
    assert database.store.explain(then_id).reason is not Reason.NOT_ENQUEUED


def test_a_task_of_a_chain_waits_for_the_tasks_before_it(database: Database) -> None:
    chain, first, second, third = chain_of(database, "tests.second", "tests.third")
    assert sentence(database, second).startswith(
        f"it is not enqueued yet: it follows the chain {chain}, in which 1 task has not finished; the first of them is {first}"
    )
    assert "has not finished and 1 more task comes before it; the first" in sentence(database, third)
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    why = database.store.explain(third)
    assert why.sentence.endswith(
        f"the chain is waiting for the dead letter {first} (tests.work); redrive or discard it; discarding it ends the chain"
    )
    assert [one.command[:2] for one in why.cures] == [("failed", "redrive"), ("failed", "discard"), ("batch", "show")]


def test_a_dead_letter_names_the_chain_or_batch_that_waits_for_it(database: Database) -> None:
    chain, first, _ = chain_of(database, "tests.second")
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    assert sentence(database, first).endswith(
        f" in attempt 1: boom; the chain {chain} is waiting for it; redrive or discard it; discarding it ends the chain"
    )
    detail = database.store.task_detail(first)
    assert f"the chain {chain} is waiting for it" in detail.explanation.sentence
    said_of = said(database, "task", "explain", str(first)).stdout
    assert f"failed redrive {first}" in said_of
    assert f"failed discard {first}" in said_of
    database.frozen.discard(first)
    assert "is waiting for it" not in sentence(database, first)
    batch = made(database, on_failed=OnFailed.WAIT)
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    assert (
        f"the batch {batch.id} is waiting for it; redrive or discard it; discarding it lets the batch continue without it"
        in (sentence(database, claim.id))
    )


@pytest.mark.parametrize("policy", [OnFailed.CONTINUE, OnFailed.CANCEL])
def test_a_dead_letter_that_blocks_no_batch_mentions_none(database: Database, policy: OnFailed) -> None:
    made(database, 2, on_failed=policy)
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    assert sentence(database, claim.id).endswith("boom; redrive or discard it")


def test_dead_letters_that_do_not_block_a_batch_are_not_named(database: Database) -> None:
    batch = made(database, 2)
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    [_, left] = members(database, batch.id)
    assert f"1 task has not finished; the first of them is {left}" in sentence(database, batch.then_ids[0])


def test_a_cancelled_chain_is_explained(database: Database) -> None:
    chain, first, link = chain_of(database, "tests.second")
    (running,) = database.claim()
    database.frozen.batches.cancel(chain)
    assert "it will never be enqueued" in sentence(database, link)
    assert "is being cancelled" in sentence(database, link)
    database.frozen.cancel(first, force=True)
    assert sentence(database, link).startswith(
        f"it will never be enqueued: it follows the chain {chain}, which ended as Cancelled at "
    )
    assert running.id == first


def test_the_then_task_of_an_unclosed_batch_is_never_enqueued(database: Database) -> None:
    batch_id = new_batch_id()
    batch = NewBatch(id=batch_id, then=(following(batch_id),))
    database.frozen.batches.create(batch)
    database.add(pipeline_execution_id=batch_id)
    why = database.store.explain(batch.then[0].id)
    assert why.sentence.startswith(f"it will never be enqueued: it follows the batch {batch_id}, which is not closed")
    assert why.cures[0].command == ("batch", "cancel", str(batch_id))
    database.frozen.batches.cancel(batch_id)


def test_unknown_ids_are_not_found(database: Database) -> None:
    batch = made(database, 1)
    behind = following(batch.id, number=2).id
    for unknown in (new_task().id, uuid4(), batch.id, behind, following(new_batch_id()).id):
        with pytest.raises(TaskNotFound):
            database.store.explain(unknown)


def test_a_task_that_is_enqueued_during_the_query_is_shown(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id, get = database.add().id, Store.get

    def late(store: Store, task_id: UUID) -> TaskExecution:
        monkeypatch.setattr(Store, "get", get)
        raise TaskNotFound(f"there is no task {task_id}")

    monkeypatch.setattr(Store, "get", late)
    shown = said(database, "task", "show", str(task_id))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert f"id\t{task_id}" in shown.stdout


def test_an_unknown_then_task_number_is_not_found(database: Database) -> None:
    batch_id = new_batch_id()
    link = new_task("tests.then", id=BatchLink(batch_id=batch_id, number=1).task_id)
    database.frozen.batches.create(NewBatch(id=batch_id, then=(link,)))
    assert str(batch_id) in sentence(database, link.id)
    with pytest.raises(TaskNotFound):
        sentence(database, BatchLink(batch_id=batch_id, number=2).task_id)
    database.corrupted = True  # the batch is never closed


def test_the_commands_print_explanations(database: Database) -> None:
    chain, first, link = chain_of(database, "tests.second")
    explained = said(database, "task", "explain", str(link))
    assert explained.exit_code == 0
    assert f"it follows the chain {chain}" in explained.stdout
    assert f"batch show {chain}" in explained.stdout
    record = json.loads(said(database, "task", "explain", str(link), "--json").stdout)
    assert (record["reason"], record["waits_for"]) == ("not_enqueued", str(first))
    shown = said(database, "task", "show", str(link))
    assert (shown.exit_code, shown.stdout) == (3, "")
    assert f"there is no task {link}; it is not enqueued yet: it follows the chain {chain}" in shown.stderr
    (claim,) = database.claim()
    database.frozen.fail(claim, "boom")
    shown = said(database, "batch", "show", str(chain))
    assert "waits for\t1 dead letter" in shown.stdout
    assert f"to redrive the first: main failed redrive {first}" in shown.stdout
    assert json.loads(said(database, "batch", "show", str(chain), "--json").stdout)["awaited"] == 1


def test_a_task_of_a_chain_that_was_pruned_is_not_found(database: Database) -> None:
    _, first, second, _ = chain_of(database, "tests.second", "tests.third")
    for task_id in (first, second):
        (claim,) = database.claim()
        assert claim.id == task_id
        database.frozen.complete(claim)
    database.clock.advance(timedelta(days=31))
    (claim,) = database.claim()
    database.frozen.complete(claim)
    assert database.frozen.prune(timedelta(days=30), statuses=[TaskStatus.COMPLETED]) == 2
    with pytest.raises(TaskNotFound, match=f"there is no task {second}"):
        database.store.explain(second)
