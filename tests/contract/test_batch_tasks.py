"""Batches and chains, declared by an application and run by a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from outboxq import (
    BatchClosed,
    InvalidArgument,
    InvalidCall,
    InvalidTarget,
    Outbox,
    PayloadError,
    RetryPolicy,
    TaskContext,
    TaskNotFound,
    TaskStatus,
)
from outboxq.model.uuid7 import uuid7
from outboxq.task.batches import OpenBatch, RunningBatch
from tests.conftest import Database
from tests.contract.test_batches import forget
from tests.waiting import until

ONCE = RetryPolicy.never()


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host)


@pytest.fixture
def run(outbox: Outbox) -> Callable[[], None]:
    """Return a function that runs all due tasks and the tasks that follow them."""
    return lambda: outbox.worker(notifications=False, concurrency=2).run(burst=True)


def test_a_then_task_reads_results_decoded_using_their_annotation(outbox: Outbox, run: Callable[[], None]) -> None:
    seen: dict[str, Any] = {}

    @outbox.task(name="wait", retry=ONCE)
    def wait(seconds: int) -> timedelta:
        if seconds == 3:
            raise ValueError("three")
        return timedelta(seconds=seconds)

    @outbox.task(name="report")
    def report(ctx: TaskContext, number: int) -> None:
        batch = ctx.batch
        seen.update(number=number, sum=sum((one.value for one in batch.results()), timedelta(0)), name=batch.name)
        seen.update(size=batch.size, completed=batch.completed, failed=batch.failed, cancelled=batch.cancelled)
        seen["failures"] = [(one.task_name, one.status, one.error) for one in batch.failures()]
        seen["priority"] = ctx.claim.priority

    with Session(outbox.store.bound_engine) as session, session.begin():
        follow = report.using(priority=5).call(number=42)
        with outbox.batch(using=session, then=follow, name="import") as batch:
            handles = wait.using(batch).enqueue_many([(n,) for n in range(1, 6)])
            wait.using(batch, delay=0).enqueue(10)
    assert {outbox.store.get(handle.id).pipeline_execution_id for handle in handles} == {batch.id}
    run()
    assert seen == {
        "number": 42,
        "sum": timedelta(seconds=1 + 2 + 4 + 5 + 10),
        "name": "import",
        "size": 6,
        "completed": 5,
        "failed": 1,
        "cancelled": 0,
        "failures": [("wait", TaskStatus.FAILED, "ValueError: three")],
        "priority": 5,
    }
    assert batch.then_id is not None
    assert outbox.store.get(batch.then_id).status is TaskStatus.COMPLETED


def test_a_chain_passes_each_result_to_the_next_task(outbox: Outbox, run: Callable[[], None]) -> None:
    seen = []

    @outbox.task(name="fetch")
    def fetch(number: int) -> timedelta:
        return timedelta(seconds=number)

    @outbox.task(name="double")
    def double(ctx: TaskContext) -> timedelta:
        seen.append(ctx.previous)
        return 2 * ctx.previous  # type: ignore[no-any-return]

    @outbox.task(name="keep", transactional=True)
    def keep(ctx: TaskContext, place: str) -> None:
        seen.append((ctx.previous, place))

    chain = outbox.chain(fetch.call(4), double.call(), double.call(), keep.call(place="shelf"), name="books")
    with Session(outbox.store.bound_engine) as session, session.begin():
        handle = chain.using(session).enqueue()
    again = chain.using(outbox).enqueue()
    assert handle.id != again.id
    assert not set(handle.task_ids) & set(again.task_ids)
    run()
    four, eight, sixteen = (timedelta(seconds=n) for n in (4, 8, 16))
    assert sorted(map(str, seen)) == sorted(map(str, [four, eight, (sixteen, "shelf")] * 2))
    assert [outbox.store.get(one).task_name for one in handle.task_ids] == ["fetch", "double", "double", "keep"]


def test_previous_is_the_result_of_the_first_task_and_not_of_one_that_it_added(
    outbox: Outbox, run: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's clock is behind the producer's, so the added task has the lower id."""
    seen, errors = [], []

    @outbox.task(name="added")
    def added(ctx: TaskContext) -> str:
        with pytest.raises(InvalidCall) as refused:
            _ = ctx.previous
        errors.append(str(refused.value))
        return "added"

    @outbox.task(name="first")
    def first(ctx: TaskContext) -> str:
        monkeypatch.setattr("outboxq.task.task.uuid7", lambda: UUID(int=uuid7().int - (3_000 << 80)))
        added.using(ctx.batch).enqueue()
        return "first"

    @outbox.task(name="second")
    def second(ctx: TaskContext) -> None:
        seen.append(ctx.previous)

    outbox.chain(first.call(), second.call()).using(outbox).enqueue()
    run()
    assert seen == ["first"]
    assert [error.partition(") ")[2] for error in errors] == [
        "has no previous task: another task added this task to its own chain; pass the values that this task needs as arguments"
    ]


def test_previous_is_refused_if_the_previous_task_was_deleted(
    outbox: Outbox, run: Callable[[], None], database: Database
) -> None:
    refused = []

    @outbox.task(name="first")
    def first() -> int:
        return 1

    @outbox.task(name="second")
    def second(ctx: TaskContext) -> None:
        forget(database, chain.task_ids[0])
        with pytest.raises(TaskNotFound, match="was deleted, so its result is no longer known"):
            _ = ctx.previous
        refused.append(True)

    chain = outbox.chain(first.call(), second.call()).using(outbox).enqueue()
    run()
    assert refused == [True]


def test_previous_is_refused_if_there_is_no_previous_task(outbox: Outbox, run: Callable[[], None]) -> None:
    errors = []

    @outbox.task(name="look", retry=ONCE)
    def look(ctx: TaskContext) -> None:
        try:
            _ = ctx.previous
        except InvalidCall as error:
            errors.append(str(error))

    look.using(outbox).enqueue()
    outbox.chain(look.call()).using(outbox).enqueue()
    with outbox.batch(using=outbox) as batch:
        look.using(batch).enqueue()
    run()
    assert sorted(error.partition(") ")[2] for error in errors) == [
        "has no previous task: it is in a batch, not a chain",
        "has no previous task: it is the first task in its chain",
        "is not in a batch or a chain",
    ]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_task_adds_tasks_to_its_batch(outbox: Outbox, run: Callable[[], None], transactional: bool) -> None:
    sizes = []

    @outbox.task(name="leaf")
    def leaf() -> None: ...

    @outbox.task(name="tree", transactional=transactional)
    def tree(ctx: TaskContext) -> None:
        assert ctx.batch_id is not None
        for _ in range(3):
            leaf.using(ctx.batch).enqueue()

    @outbox.task(name="count")
    def count(ctx: TaskContext) -> None:
        sizes.append((ctx.batch.size, ctx.batch.completed))

    with outbox.batch(using=outbox, then=count.call()) as batch:
        tree.using(batch).enqueue_many([(), ()])
    run()
    assert sizes == [(8, 8)]


def test_the_policy_cancel_cancels_other_tasks_after_a_failure(outbox: Outbox) -> None:
    began, seen = [], []

    @outbox.task(name="leaf", retry=ONCE)
    def leaf(number: int) -> None:
        began.append(number)
        if number == 0:
            raise ValueError("zero")

    @outbox.task(name="report")
    def report(ctx: TaskContext) -> None:
        seen.append((ctx.batch.failed, ctx.batch.cancelled))

    with outbox.batch(using=outbox, then=report.call(), on_failed="cancel") as batch:
        leaf.using(batch).enqueue(0)
        leaf.using(batch, delay=timedelta(hours=1)).enqueue_many([(n,) for n in range(1, 5)])
    worker = outbox.worker(notifications=False)
    worker.start()
    try:
        until(lambda: seen)
    finally:
        worker.stop()
    assert seen == [(1, 4)]
    assert began == [0]


def test_a_batch_is_pruned_together_with_its_tasks(outbox: Outbox, run: Callable[[], None]) -> None:
    @outbox.task(name="leaf", retry=ONCE)
    def leaf() -> None:
        raise ValueError("dead letters stay")

    ids = []
    for on_failed in ("continue", "wait"):
        with outbox.batch(using=outbox, on_failed=on_failed) as batch:
            leaf.using(batch).enqueue()
        ids.append(batch.id)
    with outbox.batch(using=outbox) as batch:
        pass
    run()
    assert outbox.store.prune(timedelta(0)) == 0
    assert [one.id for one in outbox.store.batches.list()] == ids[::-1], "the empty batch is gone"
    assert outbox.store.dead_letters.discard_all() == 2
    assert outbox.store.prune(timedelta(0)) == 2
    assert outbox.store.batches.list() == []


def test_a_then_task_that_is_redriven_after_a_prune_reads_all_results(outbox: Outbox, run: Callable[[], None]) -> None:
    sums: list[int] = []
    broken = [True]

    @outbox.task(name="leaf")
    def leaf(number: int) -> int:
        return number

    @outbox.task(name="report", retry=ONCE)
    def report(ctx: TaskContext) -> None:
        if broken:
            raise ValueError("no paper")
        sums.append(sum(one.value for one in ctx.batch.results()))

    with outbox.batch(using=outbox, then=report.call()) as batch:
        leaf.using(batch).enqueue_many([(n,) for n in range(10)])
    run()
    broken.clear()
    assert outbox.store.prune(timedelta(0)) == 0
    assert batch.then_id is not None
    outbox.store.redrive(batch.then_id)
    run()
    assert sums == [45]
    assert outbox.store.prune(timedelta(0)) == 11


def test_reading_results_fails_if_completed_tasks_were_deleted(
    outbox: Outbox, run: Callable[[], None], database: Database
) -> None:
    taken: list[int] = []

    @outbox.task(name="leaf")
    def leaf(number: int) -> int:
        return number

    @outbox.task(name="report", retry=ONCE)
    def report(ctx: TaskContext) -> None:
        for one in ctx.batch.results():
            taken.append(one.value)

    with outbox.batch(using=outbox, then=report.call()) as batch:
        leaf.using(batch).enqueue_many([(n,) for n in range(5)])
    outbox.worker(notifications=False, max_tasks=5).run(burst=True)
    for one in list(outbox.store.batches.members(batch.id))[1:3]:
        forget(database, one.id)
    run()
    assert taken == []
    (letter,) = outbox.store.dead_letters.list()
    assert str(letter.last_error).startswith(
        f"TaskNotFound: 2 of the 5 tasks of batch {batch.id} that completed were deleted, so their results are no longer known"
    )


def test_a_failed_block_with_a_separate_transaction_leaves_nothing(outbox: Outbox, database: Database) -> None:
    @outbox.task(name="leaf")
    def leaf() -> None: ...

    with pytest.raises(ZeroDivisionError), outbox.batch(using=outbox) as batch:
        leaf.using(batch).enqueue()
        _ = 1 // 0
    assert database.counts() == (0, 0, 0)
    assert outbox.store.batches.list() == []


def test_a_batch_that_is_closed_or_of_another_outbox_is_refused(outbox: Outbox, database: Database) -> None:
    @outbox.task(name="leaf")
    def leaf() -> None: ...

    with outbox.batch(using=outbox, then=leaf.call()) as batch:
        pass
    assert isinstance(batch, OpenBatch)
    with pytest.raises(InvalidTarget, match="its `with` block has ended"):
        leaf.using(batch)
    other = Outbox(database.host)
    with other.batch(using=other) as strange, pytest.raises(InvalidTarget, match="different outboxes"):
        leaf.using(strange)


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda outbox, _: outbox.chain(), InvalidArgument, "at least one call"),
        (lambda outbox, leaf: outbox.chain(leaf.call(1), on_failed="continue"), InvalidArgument, "'wait' or 'cancel'"),
        (lambda outbox, leaf: outbox.chain(leaf), InvalidCall, "not Task; write task.call"),
        (lambda _, leaf: leaf.call(), InvalidCall, "missing a required argument"),
        (lambda _, leaf: leaf.call("one"), PayloadError, "argument number"),
        (lambda _, leaf: leaf.using(outbox).call(1), InvalidCall, "without a transaction"),
        (lambda _, leaf: leaf.using(idempotency_key="k").call(1), InvalidCall, "neither an idempotency_key"),
        (lambda outbox, _: outbox.batch(using=outbox, on_failed="stop").__enter__(), InvalidArgument, "'continue'"),
        (lambda outbox, leaf: outbox.batch(then=leaf.call(1)).__enter__(), InvalidTarget, "using=session"),
    ],
    ids=["none", "policy", "task", "arguments", "type", "transaction", "key", "on_failed", "no-target"],
)
def test_mistakes_are_refused_immediately(
    outbox: Outbox, database: Database, made: Callable[..., object], error: type[Exception], words: str
) -> None:
    @outbox.task(name="leaf")
    def leaf(number: int) -> None: ...

    with pytest.raises(error, match=words):
        made(outbox, leaf)
    assert database.counts() == (0, 0, 0)


def test_a_completed_batch_accepts_no_task_from_a_late_handler(outbox: Outbox, run: Callable[[], None]) -> None:
    errors = []

    @outbox.task(name="late", retry=ONCE)
    def late(ctx: TaskContext) -> None:
        outbox.store.cancel(ctx.task_id, force=True)
        try:
            late.using(ctx.batch).enqueue()
        except BatchClosed as error:
            errors.append(str(error))

    with outbox.batch(using=outbox) as batch:
        late.using(batch).enqueue()
    run()
    assert errors == [
        f"batch {batch.id} does not accept more tasks: it has completed, is being cancelled, or is not in this database"
    ]


def test_a_handler_that_waits_for_its_batch_does_not_block_handlers_of_other_batches() -> None:
    slow, fast = uuid7(), uuid7()
    asked, go_on = threading.Event(), threading.Event()

    def get(batch_id: UUID, using: object) -> UUID:
        if batch_id == slow:
            asked.set()
            assert go_on.wait(10)
        return batch_id

    outbox = SimpleNamespace(store=SimpleNamespace(batches=SimpleNamespace(get=get)))

    def read(batch_id: UUID) -> object:
        context: Any = SimpleNamespace(pipeline_execution_id=batch_id, inside=None)
        return RunningBatch(outbox, context).record

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read, slow)
        assert asked.wait(10)
        try:
            assert threads.submit(read, fast).result(timeout=5) == fast
        finally:
            go_on.set()
        assert first.result(timeout=10) == slow
