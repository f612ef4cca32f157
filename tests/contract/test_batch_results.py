"""Waiting for a batch's `then` task, for the last task of a chain, and for a batch without a `then` task."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from textwrap import dedent
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from outboxq import (
    BatchCounts,
    BatchNotFound,
    Cancel,
    InvalidArgument,
    InvalidCall,
    InvalidTarget,
    Outbox,
    RetryPolicy,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskNotFound,
    WaitRefused,
)
from outboxq.database.engine import make_engine
from outboxq.model import Claim, TaskStatus
from outboxq.model.batches import LONGEST_CHAIN, BatchLink, is_batch, link_of, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.store import ResultReader, Store
from outboxq.store.tasks import results as batch_standings
from outboxq.task import results, waiting
from outboxq.task.waiting import Poller, Wait
from tests import forked
from tests.conftest import Database
from tests.contract.helpers import wait_until_found
from tests.contract.test_unclosed_batches import unclosed
from tests.waiting import PATIENCE, until


class App:
    """An application whose tasks the test ends one by one or runs in a worker."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.outbox = outbox = Outbox(database.own(make_engine(database.url)))
        self.broken = True

        @outbox.task(name="fetch", retry=RetryPolicy.never())
        def fetch(number: int) -> timedelta:
            if number == 0:
                raise Cancel("sold out")
            if number < 0 and self.broken:
                raise ValueError("no such book")
            return timedelta(seconds=number)

        @outbox.task(name="double", retry=RetryPolicy.never())
        def double(ctx: TaskContext, adds: int = 0) -> timedelta:
            if adds:
                fetch.using(ctx.batch).enqueue(adds)
            return 2 * ctx.previous  # type: ignore[no-any-return]

        @outbox.task(name="report")
        def report(ctx: TaskContext) -> timedelta:
            return sum((one.value for one in ctx.batch.results()), timedelta(0))

        self.fetch, self.double, self.report = fetch, double, report

    def run(self, most: int | None = None) -> None:
        """Run at most `most` due tasks."""
        limits = {} if most is None else {"max_tasks": most}
        self.outbox.worker(notifications=False, concurrency=1, prefetch=0, **limits).run(burst=True)

    def chain(self, *calls: Any, using: object = None, **options: Any) -> Any:
        return self.outbox.chain(*calls, **options).using(self.outbox if using is None else using).enqueue()

    @property
    def waiter(self) -> waiting.ResultWaiter:
        return self.outbox._waiters.of(self.outbox.store)


@pytest.fixture
def app(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """Yield an application. The thread that waits for its results ends 50 ms after the last wait."""
    monkeypatch.setattr(waiting.ResultWaiter.__init__, "__kwdefaults__", {"idle": 0.05})
    app = App(database)
    yield app
    until(lambda: not app.waiter.is_active)


def waits_for(waiter: waiting.ResultWaiter, number: int = 1) -> None:
    """Wait until the thread has found the batches for which this number of callers wait."""
    until(lambda: len(waiter._waits) == number and all(wait.batch for wait in list(waiter._waits)))


# Ids


def test_the_id_of_a_then_task_identifies_its_batch() -> None:
    batch_id = new_batch_id()
    ids = [BatchLink(batch_id=batch_id, number=number).task_id for number in (1, 2, LONGEST_CHAIN - 1)]
    assert [link_of(one) for one in ids] == [
        BatchLink(batch_id=batch_id, number=number) for number in (1, 2, LONGEST_CHAIN - 1)
    ]
    assert ids == sorted(ids)
    assert not any(is_batch(one) for one in ids)
    assert all(one.int < 1 << 127 for one in ids), "they are ids of tasks, not of batches"
    assert link_of(batch_id) == BatchLink(batch_id=batch_id, number=0)
    assert is_batch(batch_id)
    assert link_of(uuid7()) is None
    assert link_of(BatchLink(batch_id=batch_id, number=0).task_id) is None, "place 0 is the batch itself, not a task"
    assert len({new_batch_id() for _ in range(1000)}) == 1000


# Results


def test_results_of_chains_and_batches_are_decoded_using_the_annotation_of_the_last_task(app: App) -> None:
    chain = app.chain(app.fetch.call(4), app.double.call(), app.double.call())
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue_many([(1,), (2,)])
    with ThreadPoolExecutor(4) as pool:
        waited = [
            pool.submit(chain.result, PATIENCE),
            pool.submit(app.outbox.result, chain.task_ids[1], PATIENCE),
            pool.submit(batch.result, timedelta(seconds=PATIENCE)),
            pool.submit(app.outbox.result, str(batch.then_id), PATIENCE),
        ]
        waits_for(app.waiter, 4)
        app.run()
        assert [one.result(PATIENCE).total_seconds() for one in waited] == [16, 8, 3, 3]
    assert chain.result(timeout=0) == timedelta(seconds=16)
    assert batch.result(timeout=0) == timedelta(seconds=3)


@pytest.mark.in_turn
def test_a_chain_of_one_call_has_the_result_of_that_call(app: App) -> None:
    chain = app.chain(app.fetch.call(4))
    app.run()
    assert chain.result(timeout=PATIENCE) == chain.result(timeout=0) == timedelta(seconds=4)


def test_the_result_of_a_batch_without_a_then_task_is_its_counts(app: App) -> None:
    with app.outbox.batch(using=app.outbox) as batch:
        app.fetch.using(batch).enqueue_many([(1,), (0,), (-1,)])
    with pytest.raises(TimeoutError, match=f"batch {batch.id} has not ended: 3 of 3 tasks"):
        batch.result(timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(batch.result, PATIENCE)
        waits_for(app.waiter)
        app.run()
        assert waited.result(PATIENCE) == BatchCounts(size=3, completed=1, failed=1, cancelled=1)
    assert batch.result(timeout=0).failed == 1


SCRIPT = """
    import pickle, sys
    from outboxq import Outbox

    chain, then_id = pickle.loads(bytes.fromhex(sys.argv[2]))
    outbox = Outbox(sys.argv[1])
    print("waits", flush=True)
    print(outbox.result(chain.task_ids[-1], 60), outbox.result(then_id, 60))
"""


@pytest.mark.in_turn
def test_another_process_can_wait_using_a_pickled_id(app: App) -> None:
    chain = app.chain(app.fetch.call(4), app.double.call())
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue(3)
    for one in (again := pickle.loads(pickle.dumps(chain)), copy.copy(chain)):
        assert one == chain
        with pytest.raises(InvalidCall, match=r"write outbox.result\(handle.task_ids\[-1\]\)"):
            one.result()
    given = pickle.dumps((again, batch.then_id)).hex()
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", dedent(SCRIPT)]
    with forked.Popen([*command, app.database.url, given], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        app.run()
        assert process.stdout.read() == "PT8S PT3S\n"


# Other ends


@pytest.mark.parametrize("timeout", [0, PATIENCE])
@pytest.mark.parametrize("on_failed", ["wait", "cancel"])
def test_a_failed_task_ends_the_wait_for_its_chain_immediately(app: App, on_failed: str, timeout: float) -> None:
    chain = app.chain(app.fetch.call(-1), app.double.call(), app.double.call(), on_failed=on_failed)
    app.run()
    with pytest.raises(TaskFailed, match=r"task .* \(fetch\) failed in attempt 1: ValueError: no such book") as raised:
        chain.result(timeout)
    assert str(raised.value).startswith(f"chain {chain.id} ")
    error = raised.value
    assert (error.task_id, error.error, error.exception, error.attempt) == (
        chain.task_ids[0],
        "ValueError: no such book",
        "builtins.ValueError",
        1,
    )
    assert ("outboxq failed redrive" in str(error)) == (on_failed == "wait")
    with pytest.raises(TaskFailed):
        app.outbox.result(chain.task_ids[1], timeout)


def test_a_dead_letter_ends_a_current_wait_but_not_a_wait_after_its_redrive(app: App) -> None:
    chain = app.chain(app.fetch.call(-1), app.double.call())
    with app.outbox.batch(using=app.outbox, then=app.report.call(), on_failed="wait") as batch:
        app.fetch.using(batch).enqueue_many([(-1,), (5,)])
    with app.outbox.batch(using=app.outbox, on_failed="wait") as alone:
        app.fetch.using(alone).enqueue(-1)
    waits = [chain, batch, alone]
    with ThreadPoolExecutor(3) as pool:
        waited = [pool.submit(one.result, PATIENCE) for one in waits]
        waits_for(app.waiter, 3)
        app.run()
        for one, before in zip(waits, waited, strict=True):
            with pytest.raises(TaskFailed, match=f"{one.id} is waiting for a dead letter: task .* no such book; run"):
                before.result(PATIENCE)
        app.broken = False
        assert app.outbox.store.dead_letters.redrive_all() == 3
        waited = [pool.submit(one.result, PATIENCE) for one in waits]
        waits_for(app.waiter, 3)
        app.run()
        assert [one.result(PATIENCE) for one in waited] == [
            timedelta(seconds=-2),
            timedelta(seconds=4),
            BatchCounts(size=1, completed=1, failed=0, cancelled=0),
        ]


def test_a_seen_failure_is_kept_even_if_its_task_is_redriven_before_the_caller_wakes(app: App) -> None:
    chain = app.chain(app.fetch.call(-1), app.double.call())
    waits = [Wait(task_id=one) for one in chain.task_ids]
    poller = Poller(app.outbox.store, may_pass=lambda _: False)
    app.run()
    poller.at(waits, everything=True)
    app.outbox.store.redrive(chain.task_ids[0])
    poller.at(waits, everything=True)
    first, last = waits
    assert first.standing is not None
    assert first.standing.status == "Failed"
    assert last.is_blocked


def test_a_batch_with_a_dead_letter_has_a_result_if_its_policy_is_not_to_wait(app: App) -> None:
    for policy in ("continue", "cancel"):
        with app.outbox.batch(using=app.outbox, then=app.report.call(), on_failed=policy) as batch:
            app.fetch.using(batch).enqueue(-1)
        app.run()
        assert batch.result(timeout=0) == timedelta(0)


def test_a_cancelled_task_ends_the_wait_for_its_chain(app: App) -> None:
    chain = app.chain(app.fetch.call(0), app.double.call())
    app.run()
    for timeout in (0, PATIENCE):
        with pytest.raises(TaskCancelled, match=r"has stopped: task .* \(fetch\) was cancelled: sold out$") as raised:
            chain.result(timeout)
        assert (raised.value.task_id, raised.value.reason) == (chain.task_ids[0], "sold out")


def test_the_error_names_a_failed_task_that_was_added_to_the_chain(app: App) -> None:
    chain = app.chain(app.fetch.call(1), app.double.call(adds=-3), app.double.call())
    app.run()
    with pytest.raises(TaskFailed, match=r"\(fetch\) failed") as raised:
        chain.result(timeout=0)
    assert raised.value.task_id not in chain.task_ids


def test_cancelling_a_batch_ends_the_wait_for_its_result(app: App) -> None:
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue_many([(1,), (2,)])
    with app.outbox.batch(using=app.outbox) as alone:
        app.fetch.using(alone).enqueue(1)
    with ThreadPoolExecutor(2) as pool:
        waited = [pool.submit(one.result, PATIENCE) for one in (batch, alone)]
        waits_for(app.waiter, 2)
        for one in (batch, alone):
            app.outbox.store.batches.cancel(one.id, reason="the file was wrong")
        with pytest.raises(
            TaskCancelled, match="was cancelled, so the task that follows it, .*, will not be enqueued: the file was"
        ) as raised:
            waited[0].result(PATIENCE)
        assert (raised.value.task_id, raised.value.reason) == (batch.then_id, "the file was wrong")
        assert waited[1].result(PATIENCE) == BatchCounts(size=1, completed=0, failed=0, cancelled=1)
    running = app.chain(app.fetch.call(1), app.double.call())
    [claim] = app.outbox.store.claim_ready_task(1, worker_id=app.database.worker)
    app.outbox.store.batches.cancel(running.id)
    with pytest.raises(TimeoutError, match=r"\(fetch\), which is Running"):
        running.result(timeout=0)
    app.outbox.store.complete(claim, "1")
    with pytest.raises(TaskCancelled, match="was cancelled, so the task that follows it, .*, will not be enqueued$"):
        running.result(timeout=PATIENCE)


def test_the_reason_of_a_task_cancelled_before_its_batch_is_not_reported_for_the_batch(app: App) -> None:
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        first, _ = app.fetch.using(batch).enqueue_many([(1,), (2,)])
    app.outbox.store.cancel(first.id, reason="a duplicate")
    app.outbox.store.batches.cancel(batch.id, reason="the file was wrong")
    with pytest.raises(
        TaskCancelled, match=f"was cancelled, so the task that follows it, {batch.then_id}, will not be enqueued$"
    ) as raised:
        batch.result(timeout=0)
    assert raised.value.reason == ""


def claimed(app: App, number: int) -> list[Claim]:
    return list(app.outbox.store.claim_ready_task(number, worker_id=app.database.worker))


@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_cancelling_a_batch_that_waits_for_a_dead_letter_ends_the_wait_for_its_result(app: App, timeout: float) -> None:
    """The cancel discards the dead letter, which would otherwise keep the batch open."""
    store = app.outbox.store
    with app.outbox.batch(using=app.outbox, then=app.report.call(), on_failed="wait") as batch:
        app.fetch.using(batch).enqueue_many([(-1,), (2,)])
    with app.outbox.batch(using=app.outbox, on_failed="wait") as alone:
        app.fetch.using(alone).enqueue_many([(-1,), (2,)])
    dead, running, dead_alone, running_alone = claimed(app, 4)
    for one in (dead, dead_alone):
        store.fail(one, "no such book")
    for one in (batch, alone):
        store.batches.cancel(one.id)
    for one in (running, running_alone):
        store.complete(one, "1")
    with pytest.raises(
        TaskCancelled,
        match=f"batch {batch.id} was cancelled, so the task that follows it, {batch.then_id}, will not be enqu",
    ):
        batch.result(timeout)
    assert alone.result(timeout) == BatchCounts(size=2, completed=1, failed=0, cancelled=1)


@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_a_chain_ended_by_a_dead_letter_stays_stopped_after_the_redrive(app: App, timeout: float) -> None:
    chain = app.chain(app.fetch.call(-1), app.double.call(), on_failed="cancel")
    app.run()
    app.broken = False
    app.outbox.store.redrive(chain.task_ids[0])
    app.run()
    with pytest.raises(
        TaskCancelled,
        match=f"^chain {chain.id} has stopped, so the task that follows it, {chain.task_ids[1]}, will not be enqueued$",
    ):
        chain.result(timeout)


def test_the_tasks_of_a_batch_being_cancelled_are_not_read_until_one_is_cancelled(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue(1)
    [running] = claimed(app, 1)
    app.outbox.store.batches.cancel(batch.id)
    read, first = list[UUID](), batch_standings.first_task
    monkeypatch.setattr(
        batch_standings, "first_task", lambda target, *asked: read.append(asked[0]) or first(target, *asked)
    )
    [standing] = app.outbox.store.batch_standings([BatchLink(batch_id=batch.id, number=1)]).values()
    assert (standing.blocker, standing.is_decided, read) == (None, False, [])
    app.outbox.store.cancel(running.id, force=True)
    with pytest.raises(TaskCancelled, match=f"batch {batch.id} was cancelled"):
        batch.result(timeout=0)
    assert read == [batch.id]


def test_a_dead_letter_that_completes_while_it_is_read_is_not_reported_as_a_blocker(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, store = app.chain(app.fetch.call(-1), app.double.call()), app.database.own_store()
    app.run()
    app.broken, first = False, batch_standings.first_task

    def redriven(target: Any, *asked: Any) -> Any:
        found = first(target, *asked)
        store.redrive(found.id)
        app.run(most=1)
        return found

    monkeypatch.setattr(batch_standings, "first_task", redriven)
    [standing] = store.batch_standings([BatchLink(batch_id=chain.id, number=1)]).values()
    if app.database.name == "postgresql":
        assert (standing.blocker, standing.is_decided) == (None, False)
    else:  # all reads of the transaction see the same moment
        assert standing.blocker is not None
        assert standing.blocker.status is TaskStatus.FAILED
    app.run()
    assert chain.result(timeout=0) == timedelta(seconds=-2)


def test_the_error_names_a_failed_or_cancelled_last_task(app: App) -> None:
    failed = app.chain(app.fetch.call(1), app.fetch.call(-1))
    cancelled = app.chain(app.fetch.call(1), app.fetch.call(0))
    app.run()
    with pytest.raises(TaskFailed, match=f"^task {failed.task_ids[1]} ") as raised:
        failed.result(timeout=PATIENCE)
    assert raised.value.task_id == failed.task_ids[1]
    with pytest.raises(TaskCancelled, match=f"^task {cancelled.task_ids[1]} "):
        cancelled.result(timeout=0)


# Timeouts and missing tasks


def test_a_timeout_error_names_the_task_that_the_chain_or_batch_is_waiting_for(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "EXPLAINED_WITHIN", PATIENCE)
    wait_until_found(monkeypatch)
    chain = app.chain(app.fetch.call(4), app.double.call(), app.double.call())
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch, delay=3600).enqueue_many([(1,), (2,)])
    app.run(most=1)
    last, named = (
        chain.task_ids[-1],
        rf"chain {chain.id} is waiting for task {chain.task_ids[1]} \(double\), which is Ready",
    )
    with pytest.raises(TimeoutError, match=f"^task {last} has not ended: {named}$"):
        chain.result(timeout=0)
    with pytest.raises(TimeoutError, match=f"^task {last} has not ended within 0.1 s: {named}: no live worker"):
        chain.result(timeout=0.1)
    first = rf"2 of 2 tasks of batch {batch.id} have not ended; the first is task .* \(fetch\), which is Ready"
    with pytest.raises(TimeoutError, match=f"{first}$"):
        batch.result(timeout=0)
    with pytest.raises(TimeoutError, match=f"{first}: "):
        batch.result(timeout=0.1)


def test_the_timeout_error_of_a_large_batch_names_no_task_because_all_would_be_read(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NAMED_UP_TO", 2)
    monkeypatch.setattr(waiting, "EXPLAINED_WITHIN", PATIENCE)
    wait_until_found(monkeypatch)
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue_many([(1,), (2,), (3,)])
    app.run(most=1)
    for timeout in (0, 0.1):
        with pytest.raises(TimeoutError, match=f": 2 of 3 tasks of batch {batch.id} have not ended$"):
            batch.result(timeout)
    app.run(most=1)
    with pytest.raises(TimeoutError, match=f": 1 of 3 tasks of batch {batch.id} has not ended$"):
        batch.result(timeout=0)
    chain = app.chain(app.fetch.call(1), app.double.call())
    with app.outbox.store.bound_engine.begin() as connection:
        connection.exec_driver_sql("UPDATE task_batches SET size = 3 WHERE kind = 'chain'")
    app.database.corrupted = True
    with pytest.raises(TimeoutError, match=f": 3 of 3 tasks of chain {chain.id} have not ended$"):
        chain.result(timeout=0)


@pytest.mark.in_turn
def test_a_timeout_does_not_wait_for_a_slow_explanation(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = app.chain(app.fetch.call(4), app.double.call())
    monkeypatch.setattr(waiting.ResultWaiter, "explained", lambda *_: None)
    wait_until_found(monkeypatch)
    with pytest.raises(
        TimeoutError, match=f": chain {chain.id} is still in progress; see outboxq batch show {chain.id}$"
    ):
        chain.result(timeout=0.1)


@pytest.mark.in_turn
@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_waiting_for_an_unclosed_batch_is_refused(app: App, timeout: float) -> None:
    batch = unclosed(app.outbox, app.database, then=app.report.call())
    with pytest.raises(WaitRefused, match=f"batch {batch.id} is not closed, because its `with` block raised an error"):
        batch.result(timeout)
    app.outbox.store.batches.cancel(batch.id)
    with pytest.raises(TaskCancelled):
        batch.result(timeout)


@pytest.mark.in_turn
@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_the_then_task_of_an_unknown_batch_is_not_found(app: App, timeout: float) -> None:
    with pytest.raises(TaskNotFound, match="there is no task"):
        app.outbox.result(BatchLink(batch_id=new_batch_id(), number=1).task_id, timeout)


@pytest.mark.parametrize("timeout", [0, PATIENCE])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_then_task_number_that_a_batch_does_not_have_is_not_found(app: App, number: int, timeout: float) -> None:
    chain = app.chain(app.fetch.call(4), app.double.call())
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue(1)
    app.run()
    for one in (chain, batch):
        with pytest.raises(TaskNotFound, match="there is no task"):
            app.outbox.result(BatchLink(batch_id=one.id, number=number).task_id, timeout)


@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_pruned_tasks_and_batches_are_not_found(app: App, timeout: float) -> None:
    """outboxq knows that its own transaction was committed. For a caller's, the error also names a rollback as a possible cause."""
    own = [app.chain(app.fetch.call(4), app.double.call()), app.fetch.using(app.outbox).enqueue(1)]
    with app.outbox.batch(using=app.outbox) as batch:
        app.fetch.using(batch).enqueue(1)
    with Session(app.database.host_engine()) as session, session.begin():
        callers = [app.chain(app.fetch.call(4), using=session), app.fetch.using(session).enqueue(1)]
        with app.outbox.batch(using=session) as other:
            app.fetch.using(other).enqueue(1)
    app.run()
    assert callers[1].result(timeout=PATIENCE) == timedelta(seconds=1)
    app.outbox.store.prune(timedelta(0))
    for one in (*own, batch):
        with pytest.raises(
            (TaskNotFound, BatchNotFound), match=" no longer exists: it was committed but has since been pruned$"
        ):
            one.result(timeout)
    for one in (*callers, other):
        with pytest.raises(
            (TaskNotFound, BatchNotFound),
            match=": it has been pruned, or the transaction that enqueued it was rolled back$",
        ):
            one.result(timeout)
    with pytest.raises(TaskNotFound, match=f"^there is no task {callers[1].id}$"):
        app.outbox.result(callers[1].id, timeout)


def test_a_batch_that_is_pruned_during_the_wait_is_not_found(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RECHECK", 0.0)
    chain = app.chain(app.fetch.call(4), app.double.call())
    with app.outbox.batch(using=app.outbox) as batch:
        app.fetch.using(batch).enqueue(1)
    with ThreadPoolExecutor(2) as pool:
        waited = [pool.submit(one.result, PATIENCE) for one in (chain, batch)]
        waits_for(app.waiter, 2)
        with app.outbox.store.bound_engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM task_batches WHERE closed")
        app.database.corrupted = True
        with pytest.raises(
            TaskNotFound, match=f"^task {chain.task_ids[1]} was pruned while its result was being awaited$"
        ):
            waited[0].result(PATIENCE)
        with pytest.raises(BatchNotFound, match=f"^batch {batch.id} was pruned while its result was being awaited$"):
            waited[1].result(PATIENCE)


def test_a_last_task_that_was_pruned_before_its_batch_is_not_found(app: App) -> None:
    chain = app.chain(app.fetch.call(4), app.double.call())
    app.run(most=1)
    with app.outbox.store.bound_engine.begin() as connection:
        for table, key in (("task_outbox", "task_execution_id"), ("execution_events", "task_execution_id")):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {key} IS NOT NULL")
        connection.exec_driver_sql("DELETE FROM task_executions")
    app.database.corrupted = True
    for timeout in (0, PATIENCE):
        with pytest.raises(TaskNotFound, match="was pruned"):
            chain.result(timeout)


# Refused waits


def test_waiting_in_the_transaction_that_enqueues_the_tasks_is_refused(app: App) -> None:
    with Session(app.database.host_engine()) as session:
        chain = app.chain(app.fetch.call(1), app.double.call(), using=session)
        with app.outbox.batch(using=session, then=app.report.call()) as batch:
            app.fetch.using(batch).enqueue(1)
            with pytest.raises(WaitRefused, match="is not complete"):
                batch.result(timeout=PATIENCE)
            for at_once in (0, timedelta(0)):
                with pytest.raises(TimeoutError, match="is not committed"):
                    batch.result(timeout=at_once)
        with app.outbox.batch(using=session) as alone:
            app.fetch.using(alone).enqueue(1)
        for one in (chain, batch, alone):
            with pytest.raises(WaitRefused, match="is not committed: the transaction that enqueued it is still open"):
                one.result(timeout=PATIENCE)
            with pytest.raises(TimeoutError, match="is not committed"):
                one.result(timeout=0)
        session.rollback()
        for one, error in ((chain, TaskNotFound), (batch, TaskNotFound), (alone, BatchNotFound)):
            with pytest.raises(error, match="was rolled back"):
                one.result(timeout=PATIENCE)
            with pytest.raises(error):
                one.result(timeout=0)


def test_a_chain_that_another_thread_commits_can_be_waited_for(app: App) -> None:
    with Session(app.database.host_engine()) as session, ThreadPoolExecutor(1) as pool:
        chain = app.chain(app.fetch.call(1), app.double.call(), using=session)
        waited = pool.submit(chain.result, PATIENCE)
        until(lambda: len(app.waiter._waits) == 1 and not app.waiter._new)
        session.commit()
        app.run()
        assert waited.result(PATIENCE) == timedelta(seconds=2)


@pytest.mark.in_turn
def test_a_handler_may_check_for_a_result_but_not_wait(app: App) -> None:
    @app.outbox.task(name="ask", retry=RetryPolicy.never())
    def ask(then_id: UUID, how: float) -> str:
        try:
            return str(app.outbox.result(then_id, timeout=how))
        except (WaitRefused, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"

    chain = app.chain(app.fetch.call(1), app.double.using(delay=3600).call())
    asked = [ask.using(app.outbox, delay=0).enqueue(chain.task_ids[-1], how) for how in (0.0, 5.0)]
    app.run()
    at_once, waited = (one.result(timeout=0) for one in asked)
    assert "TimeoutError: " in at_once
    assert "is Ready" in at_once
    assert waited.startswith(f"WaitRefused: ask cannot wait for the result of task {chain.task_ids[-1]}")


# Costs


@pytest.mark.in_turn
def test_all_waits_for_batches_share_one_statement_per_poll(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, bool]] = []

    def counted(name: str) -> Any:
        read = getattr(Store, name)

        def ask(store: Store, ids: Any, *, everything: bool) -> Any:
            asked.append((name, len(ids), everything))
            return read(store, ids, everything=everything)

        return ask

    chains = [app.chain(app.fetch.call(1), app.double.call(), app.double.call()) for _ in range(20)]
    for name in ("standings", "batch_standings"):
        monkeypatch.setattr(Store, name, counted(name))
    waits = [Wait(task_id=chain.task_ids[-1]) for chain in chains] + [Wait(task_id=chains[0].task_ids[-1])]
    poller = Poller(app.outbox.store, may_pass=lambda _: False, clock=lambda: 0.0)
    poller.at(waits, everything=True)
    assert asked == [("standings", 20, True), ("batch_standings", 20, True)]
    del asked[:]
    assert not poller.again(waits)
    assert asked == [("batch_standings", 20, False)]
    app.run()
    del asked[:]
    assert poller.again(waits)
    assert asked == [("batch_standings", 20, False), ("standings", 20, True)]
    assert all(wait.done.is_set() and wait.standing is not None for wait in waits)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_idle_wait_for_a_chain_on_sqlite_reads_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RECHECK", 0.0)
    versions = list[int]()
    chain = app.chain(app.fetch.call(1), app.double.call())
    read = ResultReader.has_changed
    monkeypatch.setattr(ResultReader, "has_changed", lambda reader: versions.append(0) or read(reader))
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(chain.result, PATIENCE)
        until(lambda: len(versions) > 3)
        before = app.waiter.polls
        until(lambda: len(versions) > 10)
        assert app.waiter.polls == before <= 4
        app.run()
        assert waited.result(PATIENCE) == timedelta(seconds=2)


# Error messages


@pytest.mark.in_turn
def test_the_id_of_a_batch_is_refused_as_a_task_id(app: App) -> None:
    with app.outbox.batch(using=app.outbox) as batch:
        pass
    for timeout in (0, PATIENCE):
        with pytest.raises(
            InvalidArgument, match=f"{batch.id} is the id of a batch or a chain, not of a task; write"
        ) as raised:
            app.outbox.result(batch.id, timeout)
        assert "outbox.result(task_ids[-1])" in str(raised.value)


@pytest.mark.in_turn
@pytest.mark.parametrize("ask", ["get", "history", "cancel", "task_detail"])
def test_the_error_for_a_task_that_is_not_enqueued_yet_names_its_batch(app: App, ask: str) -> None:
    chain, store = app.chain(app.fetch.call(1), app.double.call()), app.outbox.store
    asked = store.attempts if ask == "history" else getattr(store, ask)
    with pytest.raises(
        TaskNotFound, match=f"there is no task .*; it may not have been enqueued yet: outboxq batch show {chain.id}$"
    ):
        asked(chain.task_ids[1])
    with pytest.raises(TaskNotFound, match=f"; this is the id of a batch or a chain: outboxq batch show {chain.id}$"):
        asked(chain.id)
    with pytest.raises(
        TaskNotFound, match="^there is no task [-0-9a-f]{36}; its transaction may not have been committed yet$"
    ):
        asked(uuid7())


@pytest.mark.in_turn
def test_a_batch_must_be_entered_before_it_is_used(app: App) -> None:
    block = app.outbox.batch(using=app.outbox, then=app.report.call())
    with pytest.raises(InvalidTarget, match="is created by a `with` block; write `with outbox.batch") as raised:
        app.fetch.using(block)
    assert "task.using(batch)" in str(raised.value)
    for name in ("then_id", "id"):
        with pytest.raises(AttributeError, match=f"the batch has no '{name}' yet: it is created by a `with` block"):
            getattr(block, name)
    with pytest.raises(AttributeError, match="the batch has no 'then_id' yet: it is created by a `with` block"):
        block.result(timeout=0)
    with block as batch:
        app.fetch.using(batch).enqueue(1)
    with pytest.raises(InvalidTarget, match=f"batch {batch.id} is closed: its `with` block has ended"):
        app.fetch.using(batch)
    with (
        pytest.raises(InvalidTarget, match=f"batch {batch.id} has already been created; write `with outbox.batch"),
        block,
    ):
        pass


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("add", r"; write task\.using\(batch\)\.enqueue\(…\) in the `with` block"),
        ("append", r"; write task\.using\(batch\)\.enqueue\(…\) in the `with` block"),
        ("get", r"; write batch\.result\(timeout=…\) after the `with` block"),
        ("ready", r"; write outbox\.store\.batches\.get\(batch\.id\), .*"),
        ("status", r"; write outbox\.store\.batches\.get\(batch\.id\), .*"),
        ("nonsense", ""),
    ],
)
def test_the_error_for_a_missing_method_of_a_batch_names_the_correct_one(app: App, name: str, cure: str) -> None:
    block = app.outbox.batch(using=app.outbox)
    with block as batch, pytest.raises(AttributeError, match=rf"^a batch has no '{name}'{cure}$"):
        getattr(batch, name)
    with pytest.raises(AttributeError, match=rf"^a batch has no '{name}'{cure}$"):
        getattr(block, name)


@pytest.mark.in_turn
def test_an_empty_batch_that_its_block_never_used_causes_a_warning(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.call(1)
    [warning] = caplog.messages
    assert warning == (
        f"<OpenBatch {batch.id}> is empty, so its then= task runs immediately; add tasks with task.using(batch).enqueue(…)"
    )
    caplog.clear()
    with app.outbox.batch(using=app.outbox, then=app.report.call()) as batch:
        app.fetch.using(batch).enqueue_many([])
    with app.outbox.batch(using=app.outbox):
        pass
    assert caplog.messages == []


@pytest.mark.in_turn
def test_a_chain_must_be_enqueued_before_its_result_is_read(app: App) -> None:
    chain = app.outbox.chain(app.fetch.call(1), app.double.call())
    for name in ("result", "id", "task_ids"):
        with pytest.raises(
            AttributeError, match=rf"^the chain has no '{name}' yet: .*chain\(…\).using\(session\).enqueue\(\)"
        ):
            getattr(chain, name)
    assert copy.copy(chain) == chain


@pytest.mark.in_turn
def test_a_batch_does_not_accept_events_chains_or_batches(app: App) -> None:
    outbox, errors = app.outbox, list[str]()
    chain = outbox.chain(app.fetch.call(1))
    with outbox.batch(using=outbox) as batch:
        with pytest.raises(
            InvalidTarget, match=r"emit\('order.paid'\): .* accepts only tasks, through task.using\(batch\)"
        ) as raised:
            outbox.emit("order.paid", 1, using=batch)
        assert "using=session" in str(raised.value)
        for made in (chain.using(batch).enqueue, outbox.batch(using=batch).__enter__):
            with pytest.raises(InvalidTarget, match=r"cannot be part of <OpenBatch .*create it separately") as raised:
                made()
            errors.append(str(raised.value))
    assert [error.partition(" cannot")[0] for error in errors] == ["a chain", "a batch"]

    @outbox.task(name="nest", retry=RetryPolicy.never())
    def nest(ctx: TaskContext) -> None:
        with pytest.raises(InvalidTarget, match="a chain cannot be part of <RunningBatch"):
            chain.using(ctx.batch).enqueue()

    with outbox.batch(using=outbox) as batch:
        nest.using(batch).enqueue()
    app.run()
    assert batch.result(timeout=0).completed == 1


@pytest.mark.in_turn
def test_chains_and_then_accept_only_task_calls(app: App) -> None:
    outbox = app.outbox
    with outbox.batch(using=outbox) as batch:
        wrong: list[Any] = [batch, outbox.batch(using=outbox), outbox.chain(app.fetch.call(1))]
    for one in wrong:
        with pytest.raises(InvalidCall, match=rf"chain\(\) takes task calls, not {type(one).__name__}; let a task in"):
            outbox.chain(app.fetch.call(1), one)
        with pytest.raises(
            InvalidCall, match="then= takes task calls, .*; let the task that follows create the next batch or"
        ):
            outbox.batch(using=outbox, then=one)
    with pytest.raises(InvalidArgument, match=f"a chain can have at most {LONGEST_CHAIN} calls, but this one has"):
        outbox.chain(*[app.fetch.call(1)] * (LONGEST_CHAIN + 1))


@pytest.mark.in_turn
def test_each_enqueue_of_a_chain_creates_a_separate_chain(app: App) -> None:
    chain = app.outbox.chain(app.fetch.call(1), app.double.call()).using(app.outbox)
    one, other = chain.enqueue(), chain.enqueue()
    app.run()
    assert not {one.id, *one.task_ids} & {other.id, *other.task_ids}
    assert one.result(timeout=0) == other.result(timeout=0) == timedelta(seconds=2)
