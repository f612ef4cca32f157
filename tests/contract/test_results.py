"""Waiting for a task's result: the value, other ends of the task, and waits that end first."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from textwrap import dedent
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxq import (
    Cancel,
    ConfigurationError,
    Handle,
    InvalidArgument,
    InvalidCall,
    Outbox,
    OutboxqError,
    PayloadError,
    RetryPolicy,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskNotFound,
    WaitRefused,
    configure_sqlite,
)
from outboxq.database.engine import make_engine
from outboxq.model import Claim
from outboxq.model.uuid7 import uuid7
from outboxq.store import ResultReader, Standing, Store
from outboxq.task import waiting
from outboxq.task.waiting import Backoff, Poller, ResultWaiter, Wait
from tests import forked
from tests.contract.helpers import wait_until_found
from tests.proxy import Proxy
from tests.waiting import PATIENCE, until


@dataclass
class Report:
    number: int
    due: timedelta


class Tasks:
    """An application and its worker."""

    def __init__(self, database):
        self.database = database
        self.outbox = Outbox(database.own(make_engine(database.url)))
        self.worker = None

        @self.outbox.task(name="double")
        def double(n: int) -> int:
            return 2 * n

        @self.outbox.task(name="report")
        def report(number: int) -> Report:
            return Report(number, timedelta(seconds=number))

        @self.outbox.task(name="fail", retry=RetryPolicy(max_attempts=2, wait=0))
        def fail() -> None:
            raise ValueError("no such order")

        self.double, self.report, self.fail = double, report, fail

    def work(self, **options):
        self.worker = self.outbox.worker(**{"poll": 0.05, "drain_timeout": 10, **options})
        self.worker.start()

    @property
    def waiter(self) -> ResultWaiter:
        return self.outbox._waiters.of(self.outbox.store)

    def end(self, handle, *, error=None):
        """End a task as a worker would."""
        store = self.outbox.store
        [claim] = store.claim_ready_task(1, worker_id=self.database.worker)
        assert claim.id == handle.id
        store.complete(claim, "42") if error is None else store.fail(claim, error)


@pytest.fixture(autouse=True)
def _threads_end_soon(monkeypatch):
    """End the thread that waits for results 50 ms after the last wait. Otherwise, the next test would count it."""
    monkeypatch.setattr(waiting.ResultWaiter.__init__, "__kwdefaults__", {"idle": 0.05})


@pytest.fixture
def tasks(database):
    tasks = Tasks(database)
    yield tasks
    if tasks.worker is not None:
        tasks.worker.stop()
    until(lambda: not tasks.waiter.is_active)


@contextmanager
def in_threads(number=1):
    """A thread pool whose threads have ended after the block."""
    with ThreadPoolExecutor(number) as pool:
        yield pool


def waits_for(waiter, number=1):
    until(lambda: len(waiter._waits) == number and not waiter._new)


# The value


def test_a_result_is_decoded_using_its_annotation(tasks):
    tasks.work()
    assert tasks.double.using(tasks.outbox).enqueue(21).result(timeout=PATIENCE) == 42
    handle = tasks.report.using(tasks.outbox).enqueue(7)
    assert handle.result() == Report(7, timedelta(seconds=7))
    assert tasks.outbox.result(handle.id, timeout=timedelta(0)) == Report(7, timedelta(seconds=7))
    assert tasks.outbox.result(str(handle.id), timeout=PATIENCE) == Report(7, timedelta(seconds=7))


@pytest.mark.in_turn
def test_a_process_that_does_not_know_the_task_gets_plain_json(tasks):
    tasks.work()
    handle = tasks.report.using(tasks.outbox).enqueue(7)
    assert handle.result(PATIENCE)
    assert Outbox(tasks.outbox.store.bound_engine).result(handle.id, timeout=0) == {"number": 7, "due": "PT7S"}


@pytest.mark.in_turn
def test_the_error_for_a_result_that_does_not_match_the_annotation_names_the_task(tasks):
    handle = tasks.report.using(tasks.outbox).enqueue(7)
    tasks.end(handle)
    with pytest.raises(PayloadError, match="report: the result: number is stored where Report is expected"):
        handle.result(timeout=PATIENCE)


@pytest.mark.in_turn
def test_handles_from_enqueue_many_emit_and_trigger_know_their_outbox(tasks):
    outbox = tasks.outbox

    @outbox.task(name="hear", subscribe="order.paid")
    def hear(order_id: int) -> int:
        return order_id

    outbox.schedules.put("often", tasks.double, every=3600, args=(5,), using=outbox)
    tasks.work()
    handles = tasks.double.using(outbox).enqueue_many([(1,), (2,)])
    assert [handle.result(PATIENCE) for handle in handles] == [2, 4]
    assert outbox.emit("order.paid", 7, using=outbox).handles["hear"].result(PATIENCE) == 7
    assert outbox.schedules.trigger("often", using=outbox).result(PATIENCE) == 10


def test_the_handle_of_a_repeated_key_waits_for_the_first_task(tasks):
    bound = tasks.double.using(tasks.outbox, idempotency_key="k")
    bound.enqueue(1)
    again = bound.enqueue(1)
    skipped = tasks.double.using(tasks.outbox, idempotency_key="k", on_conflict="skip").enqueue(1)
    tasks.work()
    assert (again.created, again.result(PATIENCE)) == (False, 2)
    with pytest.raises(InvalidCall, match="this handle has no task"):
        skipped.result()


# Other ends


def test_the_result_of_a_dead_letter_raises_the_details_of_its_failure(tasks):
    tasks.work()
    with pytest.raises(TaskFailed, match=r"task .* \(fail\) failed in attempt 2: ValueError: no such order") as raised:
        tasks.fail.using(tasks.outbox).enqueue().result(timeout=PATIENCE)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.error, error.exception, error.attempt) == ("ValueError: no such order", "builtins.ValueError", 2)
    assert isinstance(error, OutboxqError)
    assert error.task_id == raised.value.task_id


def test_a_dead_letter_redriven_before_the_wait_has_the_new_result(tasks):
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    tasks.end(handle, error="E")
    tasks.outbox.store.redrive(handle.id)
    tasks.end(handle)
    assert handle.result(timeout=0) == 42


def test_the_failure_is_found_even_if_the_task_is_redriven_during_the_read(tasks, monkeypatch):
    """The redrive comes between the query for the task and the query for its events."""
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    tasks.end(handle, error="E")
    standing = tasks.outbox.store.standings([handle.id])[handle.id]
    tasks.outbox.store.redrive(handle.id)
    tasks.outbox.store.cancel(handle.id, reason="later")
    events = tasks.outbox.store.recent_history(handle.id, 8)
    assert [event.event_type for event in events][-2:] == ["task_requeued", "task_cancelled"]
    assert standing.end.event_type == "task_failed"
    with pytest.raises(TaskCancelled, match="was cancelled: later"):
        handle.result(timeout=0)


@pytest.mark.parametrize(
    ("how", "reason", "words"),
    [
        ("cancel", "sold out", "was cancelled: sold out"),
        ("raise", "gone", "was cancelled: gone"),
        ("silent", "", "was cancelled"),
        ("expire", "expired", "expired before it was started"),
        ("discard", "discarded", "failed and was discarded"),
    ],
)
def test_the_result_of_a_cancelled_task_raises_its_reason(tasks, how, reason, words):
    outbox, store = tasks.outbox, tasks.outbox.store

    @outbox.task(name="give_up")
    def give_up() -> None:
        raise Cancel("gone" if how == "raise" else "")

    expires = timedelta(microseconds=1) if how == "expire" else None
    handle = give_up.using(outbox, expires=expires).enqueue()
    if how == "cancel":
        store.cancel(handle.id, reason="sold out")
    elif how == "discard":
        tasks.end(handle, error="E")
        store.discard(handle.id)
    else:
        tasks.work()
    with pytest.raises(TaskCancelled, match=f"{words}$") as raised:
        handle.result(timeout=PATIENCE)
    assert (raised.value.reason, raised.value.task_id) == (reason, handle.id)


# A wait that ends before the task


def test_a_timeout_error_explains_why_the_task_has_not_ended(tasks, monkeypatch):
    monkeypatch.setattr(waiting, "EXPLAINED_WITHIN", PATIENCE)  # even on a slow machine
    wait_until_found(monkeypatch)
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"has not ended within 0.15 s: no live worker serves its queue"):
        handle.result(timeout=0.15)
    assert time.monotonic() - began >= 0.15
    with pytest.raises(TimeoutError, match=r"\(double\) has not ended: it is Ready$"):
        handle.result(timeout=0)


@pytest.mark.in_turn
def test_a_timeout_does_not_wait_for_a_slow_explanation(tasks, monkeypatch):
    """The timeout is exact, although its explanation may take as long as the database does."""
    wait_until_found(monkeypatch)
    handle, goes_on = tasks.double.using(tasks.outbox).enqueue(1), threading.Event()
    monkeypatch.setattr(type(tasks.outbox.store), "explain", lambda *_: goes_on.wait(PATIENCE))
    with pytest.raises(TimeoutError, match="it was Ready; see outboxq task explain"):
        handle.result(timeout=0.05)
    assert not goes_on.is_set()
    goes_on.set()


def test_an_explanation_is_omitted_only_if_its_thread_cannot_start(tasks, monkeypatch):
    wait_until_found(monkeypatch)
    handle, start = tasks.double.using(tasks.outbox).enqueue(1), threading.Thread.start

    def cannot_explain(thread):
        if thread.name == "outboxq-explain":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_explain)
        for _ in range(waiting.EXPLAINED_AT_ONCE + 1):
            with pytest.raises(TimeoutError, match="it was Ready; see outboxq task explain"):
                handle.result(timeout=0.05)
    monkeypatch.setattr(waiting, "EXPLAINED_WITHIN", PATIENCE)
    with pytest.raises(TimeoutError, match="no live worker"):
        handle.result(timeout=0.05)


@pytest.mark.in_turn
@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), "soon", True])
def test_an_invalid_timeout_is_refused(tasks, wrong):
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    with pytest.raises(InvalidArgument, match="timeout"):
        handle.result(timeout=wrong)


@pytest.mark.in_turn
@pytest.mark.parametrize("wrong", ["12", 7, None])
def test_an_invalid_id_is_refused(tasks, wrong):
    with pytest.raises(InvalidArgument, match="an id must be a UUID or its string form, not"):
        tasks.outbox.result(wrong)


@pytest.mark.parametrize("timeout", [0, PATIENCE, None])
def test_an_unknown_task_is_not_found(tasks, timeout):
    with pytest.raises(TaskNotFound, match="there is no task"):
        tasks.outbox.result(uuid7(), timeout=timeout)


def test_a_task_that_is_pruned_during_the_wait_is_not_found(tasks, monkeypatch):
    """The polls never see its end, and notice its deletion only at the next recheck."""
    monkeypatch.setattr(waiting, "RECHECK", 0.05)
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    with in_threads() as pool:
        waited = pool.submit(handle.result, PATIENCE)
        waits_for(tasks.waiter)
        until(lambda: all(wait.standing for wait in list(tasks.waiter._waits)))
        with tasks.outbox.store.bound_engine.begin() as connection:
            for table, key in (("task_outbox", "task_execution_id"), ("execution_events", "task_execution_id")):
                connection.exec_driver_sql(f"DELETE FROM {table} WHERE {key} IS NOT NULL")
            connection.exec_driver_sql("DELETE FROM task_executions")
        with pytest.raises(TaskNotFound, match="was pruned while its result was being awaited"):
            waited.result(PATIENCE)


@pytest.mark.in_turn
def test_a_timeout_during_an_outage_names_the_outage(tasks, monkeypatch):
    wait_until_found(monkeypatch)
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    away = OperationalError("SELECT", {}, Exception("the server is away"))

    def standings(*_args, **_options):
        raise away

    monkeypatch.setattr(type(tasks.outbox.store), "may_pass", lambda _, error: error is away)
    with monkeypatch.context() as outage:
        outage.setattr(ResultReader, "standings", standings)
        with pytest.raises(TimeoutError, match="the database is not responding: .*the server is away") as raised:
            handle.result(timeout=0.1)
        assert raised.value.__cause__ is away
        with in_threads() as pool:
            waited = pool.submit(handle.result, PATIENCE)
            until(lambda: any(wait.trouble for wait in list(tasks.waiter._waits)))
            tasks.end(handle)
            outage.undo()
            assert waited.result(PATIENCE) == 42


@pytest.mark.in_turn
def test_a_permanent_error_ends_all_current_waits_but_not_later_ones(tasks, monkeypatch):
    handle = tasks.double.using(tasks.outbox).enqueue(1)

    def standings(*_args, **_options):
        raise ConfigurationError("not here")

    with monkeypatch.context() as broken, in_threads(2) as pool:
        broken.setattr(ResultReader, "standings", standings)
        for waited in [pool.submit(handle.result, PATIENCE) for _ in range(2)]:
            with pytest.raises(ConfigurationError, match="not here"):
                waited.result(PATIENCE)
    tasks.end(handle)
    assert handle.result(timeout=PATIENCE) == 42


# Uncommitted tasks


@contextmanager
def target_of(database, kind):
    """A target for a transaction, with commit() and rollback()."""
    if kind == "driver" and database.name == "sqlite":
        with closing(sqlite3.connect(database.url.removeprefix("sqlite:///"))) as connection:
            yield connection
    elif kind == "driver":
        url = make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg.connect(url)) as connection:
            yield connection
    elif kind == "connection":
        with database.host_engine().connect() as connection:
            yield connection
    elif kind == "session":
        with Session(database.host_engine()) as session:
            yield session
    else:
        session = scoped_session(sessionmaker(database.host_engine()))
        yield session
        session.remove()


@pytest.mark.parametrize("kind", ["session", "scoped_session", "connection", "driver"])
def test_waiting_for_a_task_not_yet_committed_by_this_thread_is_refused(tasks, kind):
    with target_of(tasks.database, kind) as target:
        handle = tasks.double.using(target).enqueue(1)
        with pytest.raises(WaitRefused, match="is not committed: the transaction that enqueued it is still open"):
            handle.result(timeout=PATIENCE)
        with pytest.raises(TimeoutError, match="is not committed"):
            handle.result(timeout=0)
        target.commit()
        tasks.end(handle)
        assert handle.result(timeout=PATIENCE) == 42
        gone = tasks.double.using(target).enqueue(1)
        target.rollback()
        with pytest.raises(TaskNotFound, match="was rolled back"):
            gone.result(timeout=PATIENCE)
        with pytest.raises(TaskNotFound):
            gone.result(timeout=0)


def test_a_task_that_another_thread_commits_can_be_waited_for(tasks):
    with Session(tasks.database.host_engine()) as session, in_threads(2) as pool:
        handle = tasks.double.using(session).enqueue(1)
        waited = pool.submit(handle.result, PATIENCE)
        waits_for(tasks.waiter)
        session.commit()
        tasks.end(handle)
        assert waited.result(PATIENCE) == 42
        gone = tasks.double.using(session).enqueue(1)
        waited = pool.submit(gone.result, PATIENCE)
        waits_for(tasks.waiter)
        session.rollback()
        with pytest.raises(TaskNotFound, match="was rolled back"):
            waited.result(PATIENCE)


def test_a_batch_that_is_committed_just_after_a_poll_is_not_reported_as_pruned(tasks, monkeypatch):
    batch, looks = tasks.outbox.batch(using=tasks.outbox, then=tasks.double.call(2)), []
    look = Store.batch_standings

    def commit_after(store, links, *, everything=True):
        looks.append(look(store, links, everything=everything))
        if len(looks) == 1:
            batch.__exit__(None, None, None)
        return looks[-1]

    batch.__enter__()
    tasks.double.using(batch).enqueue(1)
    monkeypatch.setattr(Store, "batch_standings", commit_after)
    with pytest.raises(TimeoutError, match="is not committed"):
        batch.result(timeout=0)
    with pytest.raises(TimeoutError, match="the first is task"):
        batch.result(timeout=0)
    assert looks[0] == {}


@pytest.mark.in_turn
def test_the_error_of_a_handle_without_outbox_names_the_correct_call(tasks):
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    again = pickle.loads(pickle.dumps(handle))
    assert again == handle
    assert hash(again) == hash(handle)
    for one in (again, copy.copy(handle), Handle(id=handle.id), tasks.database.add(tasks.outbox.store)):
        with pytest.raises(InvalidCall, match=r"write outbox.result\(handle.id\)"):
            one.result()


# Inside a handler


@pytest.mark.in_turn
def test_a_handler_may_check_for_a_result_but_not_wait(tasks):
    outbox = tasks.outbox

    @outbox.task(name="outer", retry=RetryPolicy(max_attempts=1))
    def outer(ctx: TaskContext, other: UUID, how: str) -> int:
        if how == "wait":
            return outbox.result(other, timeout=5)
        try:
            return outbox.result(other, timeout=0)
        except TimeoutError:
            ctx.snooze(1)

    other = tasks.double.using(outbox, queue="other").enqueue(4)
    refused = outer.using(outbox).enqueue(other.id, "wait")
    asking = outer.using(outbox).enqueue(other.id, "ask")
    tasks.work(queues=["default"])
    with pytest.raises(TaskFailed, match="WaitRefused: outer cannot wait for the result of task .* timeout=0"):
        refused.result(PATIENCE)
    until(lambda: "task_snoozed" in [one.event_type for one in outbox.store.history(asking.id)])
    tasks.end(other)
    assert asking.result(PATIENCE) == 42


# One thread for all


@pytest.mark.in_turn
def test_fifty_callers_share_one_thread_that_ends_with_the_waits(tasks):
    earlier = set(threading.enumerate())  # a thread of another test may still be idle

    def asking():
        return [one for one in threading.enumerate() if one.name == "outboxq-results" and one not in earlier]

    handles = [tasks.double.using(tasks.outbox).enqueue(n) for n in range(5)]
    with in_threads(50) as pool:
        waited = [pool.submit(handles[n % 5].result, PATIENCE) for n in range(50)]
        waits_for(tasks.waiter, 50)
        assert len(asking()) == 1
        tasks.work()
        assert [one.result(PATIENCE) for one in waited] == [2 * (n % 5) for n in range(50)]
    until(lambda: not asking())


def test_a_caller_that_holds_every_connection_of_the_application_gets_its_result(tasks):
    outbox = Outbox(tasks.database.own(create_engine(tasks.database.url, pool_size=1, max_overflow=0)))
    if tasks.database.name == "sqlite":
        configure_sqlite(outbox.store.bound_engine)
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    tasks.end(handle)
    with outbox.store.bound_engine.connect():
        assert outbox.result(handle.id, timeout=PATIENCE) == 42
    until(lambda: not outbox._waiters.of(outbox.store).is_active)


@pytest.mark.in_turn
def test_without_a_caller_there_is_no_thread_and_no_statement(tasks):
    tasks.double.using(tasks.outbox).enqueue(1)
    assert not tasks.waiter.is_active
    assert tasks.waiter.polls == 0


def test_an_idle_wait_on_sqlite_does_not_poll_until_the_file_changes(sqlite, monkeypatch):
    monkeypatch.setattr(waiting, "RECHECK", 0.0)
    tasks = Tasks(sqlite)
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    versions = []
    read = ResultReader.has_changed
    monkeypatch.setattr(ResultReader, "has_changed", lambda reader: versions.append(0) or read(reader))
    with in_threads() as pool:
        waited = pool.submit(handle.result, PATIENCE)
        until(lambda: len(versions) > 3)
        before = tasks.waiter.polls
        until(lambda: len(versions) > 10)
        assert tasks.waiter.polls == before <= 3
        tasks.end(handle)
        assert waited.result(PATIENCE) == 42


SCRIPT = """
    import os, sys, threading
    from outboxq import Outbox

    outbox = Outbox(sys.argv[1])

    @outbox.task(name="double")
    def double(n: int) -> int: ...

    assert double.using(outbox).enqueue(1).result(60) == 2
    assert "outboxq-results" in [one.name for one in threading.enumerate()]
    child = os.fork()
    if not child:
        ok = False
        try:
            ok = "outboxq-results" not in [one.name for one in threading.enumerate()]
            ok = ok and double.using(outbox).enqueue(2).result(60) == 4
        finally:
            os._exit(0 if ok else 1)
    assert double.using(outbox).enqueue(3).result(60) == 6
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("done")
"""


@pytest.mark.in_turn
def test_another_process_and_its_child_can_wait(tasks):
    tasks.work()
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", dedent(SCRIPT)]
    done = forked.run([*command, tasks.database.url], check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_polling_continues_when_the_server_is_available_again(postgresql, monkeypatch):
    wait_until_found(monkeypatch)
    tasks = Tasks(postgresql)
    handle = tasks.double.using(tasks.outbox).enqueue(1)
    with Proxy(postgresql.url) as proxy:
        far = Outbox(postgresql.own(make_engine(proxy.url)))
        with in_threads() as pool:
            waited = pool.submit(far.result, handle.id, PATIENCE)
            waiter = far._waiters.of(far.store)
            until(lambda: any(wait.standing for wait in list(waiter._waits)))
            proxy.refuse()
            proxy.drop()
            until(lambda: any(wait.trouble for wait in list(waiter._waits)))
            with pytest.raises(TimeoutError, match="the database is not responding"):
                far.result(handle.id, timeout=0.1)
            tasks.end(handle)
            proxy.accept()
            assert waited.result(PATIENCE) == 42


def test_the_task_of_a_caller_that_arrives_during_a_poll_is_not_reported_missing(sqlite):
    """If the file is unchanged, a task that the last poll did not find is missing. No poll has asked for this task yet."""
    tasks = Tasks(sqlite)
    handle, waiter = tasks.double.using(tasks.outbox).enqueue(1), tasks.waiter
    with closing(ResultReader(tasks.outbox.store)) as reader:
        poller = Poller(reader, has_changed=reader.has_changed, may_pass=tasks.outbox.store.may_pass)
        for _ in range(2):
            wait = Wait(task_id=handle.id)
            with waiter._lock:
                waiter._waits[wait] = None
                waiter._new.append(wait)
            poller.again(waiter._known())
            assert wait.error is None
            poller.at(waiter._take_new(), everything=True)
            assert wait.standing.status == "Ready"


def test_an_end_between_the_first_poll_of_a_caller_and_the_general_poll_is_noticed(sqlite, monkeypatch):
    """That end is the last commit, so the changed file causes only the poll for the other callers."""
    monkeypatch.setattr(waiting, "RECHECK", 0.0)
    monkeypatch.setattr(waiting, "FIRST_PAUSE", 0.0)
    tasks, ended = Tasks(sqlite), list[Claim]()
    first, second = (tasks.double.using(tasks.outbox).enqueue(n) for n in (1, 2))
    look = ResultReader.standings

    def end_after(reader, task_ids, *, everything):
        found = look(reader, task_ids, everything=everything)
        if second.id in task_ids and not ended:
            ended.extend(tasks.outbox.store.claim_ready_task(2, worker_id=sqlite.worker))
            tasks.outbox.store.complete(ended[1], "42")
        return found

    monkeypatch.setattr(ResultReader, "standings", end_after)
    with in_threads(2) as pool:
        pool.submit(first.result, 3)
        waits_for(tasks.waiter)
        assert pool.submit(second.result, 2).result() == 42
        tasks.outbox.store.complete(ended[0], "41")


class FakeReader:
    """A reader for which the test decides whether the file has changed and whether the task exists."""

    def __init__(self, task_id):
        self.has_changed_now = self.is_there = True
        self.fails, self.asked = False, []
        self.standing = Standing(id=task_id, task_name="t", status="Ready", attempt=1, result=None, error=None)

    def has_changed(self):
        return self.has_changed_now

    def standings(self, task_ids, *, everything):
        self.asked.append(everything)
        if self.fails:
            raise TimeoutError
        return {self.standing.id: self.standing} if everything and self.is_there else {}


def test_a_deletion_is_noticed_even_if_the_file_does_not_change_again():
    """The change is polled immediately, before deleted tasks are checked for again."""
    now, reader, wait = [0.0], FakeReader(uuid7()), Wait(task_id=uuid7())
    reader.standing = replace(reader.standing, id=wait.task_id)
    poller = Poller(reader, has_changed=reader.has_changed, may_pass=lambda _: False, clock=lambda: now[0])
    poller.at([wait], everything=True)
    for moment, has_changed, is_there, asked in (
        (waiting.RECHECK, True, True, [True]),
        (waiting.RECHECK + 0.1, True, False, [False]),
        (waiting.RECHECK + 0.2, False, False, []),
        (2 * waiting.RECHECK, False, False, [True]),
    ):
        now[0], reader.has_changed_now, reader.is_there, reader.asked = moment, has_changed, is_there, []
        assert wait.error is None
        poller.again([wait])
        assert reader.asked == asked
    assert "was pruned" in str(wait.error)


def test_a_deletion_is_noticed_even_if_the_poll_for_it_failed():
    """The file does not change again, so only the failure causes another poll."""
    now, reader, wait = [0.0], FakeReader(uuid7()), Wait(task_id=uuid7())
    reader.standing = replace(reader.standing, id=wait.task_id)
    poller = Poller(reader, has_changed=reader.has_changed, may_pass=lambda _: True, clock=lambda: now[0])
    poller.at([wait], everything=True)
    reader.is_there = False
    for reader.fails, reader.has_changed_now in ((True, True), (False, False)):
        assert wait.error is None
        now[0] += waiting.RECHECK
        poller.again([wait])
    assert "was pruned" in str(wait.error)


def test_checks_for_deleted_tasks_are_made_in_parts(monkeypatch):
    monkeypatch.setattr(waiting, "CHECKED_AT_ONCE", 2)
    now, reader = [0.0], FakeReader(uuid7())
    waits = [Wait(task_id=uuid7(), standing=reader.standing) for _ in range(5)]
    poller = Poller(reader, has_changed=reader.has_changed, may_pass=lambda _: False, clock=lambda: now[0])
    left = []
    for _ in range(4):
        now[0] += waiting.RECHECK
        poller.again([wait for wait in waits if wait.error is None])
        reader.has_changed_now = False
        left.append(sum(wait.error is None for wait in waits))
    assert left == [3, 1, 0, 0]


def test_the_database_is_not_polled_if_the_file_does_not_change():
    now, reader, wait = [0.0], FakeReader(uuid7()), Wait(task_id=uuid7())
    reader.standing = replace(reader.standing, id=wait.task_id)
    poller = Poller(reader, has_changed=reader.has_changed, may_pass=lambda _: False, clock=lambda: now[0])
    poller.at([wait], everything=True)
    reader.has_changed_now, reader.asked = False, []
    for now[0] in range(100):
        poller.again([wait])
    assert reader.asked == []


# The pauses


def test_pauses_are_a_fiftieth_of_the_time_waited_up_to_a_quarter_of_a_second():
    now = [0.0]
    backoff, pauses = Backoff(clock=lambda: now[0]), []
    while sum(pauses) < 20:
        pauses.append(backoff.pause)
        now[0] += backoff.pause
        backoff.spend(0.0)
        backoff.slow_down()
    assert pauses[0] == 0.005
    assert max(pauses) == pauses[-1] == 0.25
    waited = 0.0
    for pause in pauses:
        assert pause <= 0.005 + waited / 50 + 1e-9
        waited += pause
    backoff.quicken()
    assert backoff.pause == 0.005


def test_expensive_polls_are_limited_to_a_share_of_a_core():
    now = [0.0]
    backoff, spent = Backoff(clock=lambda: now[0]), 0.0
    for _ in range(2000):
        backoff.quicken()
        backoff.spend(0.004)
        spent += 0.004
        now[0] += backoff.pause
    assert spent / now[0] == pytest.approx(waiting.SHARE, rel=0.05)


def test_a_few_consecutive_polls_need_no_rest():
    backoff = Backoff(clock=lambda: 0.0)
    for _ in range(10):
        backoff.spend(waiting.BURST / 10)
    assert backoff.rest == pytest.approx(0.0)
    backoff.spend(0.01)
    assert backoff.rest == pytest.approx(0.01 / waiting.SHARE)


# Event loops, and threads of a worker process


@pytest.mark.in_turn
def test_waiting_in_a_running_event_loop_is_refused(database):
    outbox = Outbox(database.own(make_engine(database.url)))

    @outbox.task(name="leaf")
    def leaf() -> int:
        return 7

    with outbox.batch(using=outbox) as batch:
        leaf.using(batch).enqueue()
    waited = [leaf.using(outbox).enqueue(), batch, outbox.chain(leaf.call()).using(outbox).enqueue()]

    async def endpoint() -> list[object]:
        for one in waited:
            with pytest.raises(
                WaitRefused, match=r"an event loop .* await anyio\.to_thread\.run_sync\(handle\.result\)"
            ):
                one.result(timeout=PATIENCE)
            with pytest.raises(TimeoutError):
                one.result(timeout=0)
        with pytest.raises(WaitRefused, match="an event loop"):
            outbox.result(waited[0].id)
        outbox.worker(notifications=False).run(burst=True)
        return [await asyncio.to_thread(one.result, PATIENCE) for one in waited]

    found = asyncio.run(endpoint())
    assert (found[0], found[2]) == (7, 7)
    assert waited[0].result(timeout=PATIENCE) == 7, "waiting is allowed after the loop has ended"


@pytest.mark.in_turn
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_waiting_in_a_thread_started_by_a_handler_in_a_worker_process_is_refused(database, tmp_path, isolation):
    (tmp_path / "threads_shop.py").write_text(
        dedent(
            """
            from concurrent.futures import ThreadPoolExecutor

            from outboxq import Outbox, RetryPolicy

            outbox = Outbox()


            @outbox.task(name="inner")
            def inner() -> int:
                return 1


            @outbox.task(name="outer", retry=RetryPolicy.never())
            def outer() -> int:
                with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
                    return pool.submit(lambda: inner.using(outbox).enqueue().result()).result()
            """
        )
    )
    database.add(database.store, task_name="outer", args="{}")
    words = ["worker", "threads_shop:outbox", "--burst", "--concurrency", "1", "--isolation", isolation]
    forked.run(
        [sys.executable, "-m", "outboxq", *words, "--database-url", database.url],
        cwd=tmp_path,
        check=True,
        timeout=PATIENCE,
        capture_output=True,
    )
    (letter,) = database.store.dead_letters.list()
    assert "the thread 'mine_0' of a worker process cannot wait for the result" in letter.last_error
