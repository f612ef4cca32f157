"""Each act of a role. It must succeed with all of the role's privileges, and each missing privilege must make an act fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from outboxq import Outbox
from outboxq.database.dialects import Begin, channel
from outboxq.database.engine import make_engine
from outboxq.database.privileges import Feature, Role
from outboxq.errors import DuplicateTask, TaskFailed
from outboxq.model import Claim, EventType, NewTask, OnConflict, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.actions import Interface, NewAction, Operator
from outboxq.model.batches import BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.histograms import AttemptCounts
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule, Overlap
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family, uuid7
from outboxq.model.workers import WorkerOrder
from outboxq.retry import RetryPolicy
from outboxq.store import NewStep, RelayFailure, Store, TailCursor, TaskMetric
from outboxq.store.claims.broken_entries import cancel_expired
from outboxq.store.claims.ends import has_ended
from outboxq.store.claims.sleeping_workers import forget_ended
from outboxq.store.messages.inbox import Arrival
from outboxq.store.producing import batches_sql
from outboxq.store.producing.fanout import _is_written
from outboxq.store.tasks.idempotency import enqueued
from tests.contract.helpers import batch_with
from tests.reuse import EMPTY
from tests.waiting import until

HOUR = timedelta(hours=1)
SOON = timedelta(microseconds=1)


@dataclass
class Stage:
    """A database, with the stores of its owner and of the acting role."""

    owner: Store
    url: str
    """The URL with which the role connects."""
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = make_engine(self.url)
        self.store = Store(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    def clear(self) -> None:
        """Delete all rows of the last act."""
        with self.owner.bound_engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(EMPTY)

    @contextmanager
    def session(self) -> Iterator[Session]:
        engine = create_engine(self.url)
        try:
            with Session(engine) as session, session.begin():
                yield session
        finally:
            engine.dispose()

    @contextmanager
    def psycopg(self) -> Iterator[psycopg.Connection[Any]]:
        url = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url) as connection:
            yield connection

    def claimed(self, **fields: Any) -> Claim:
        """Claim a new task with the owner's privileges."""
        self.owner.enqueue(new(**fields))
        [claim] = self.owner.claim_ready_task(1, worker_id=uuid4(), says_begin=True)
        return claim

    def failed(self, **fields: Any) -> Claim:
        claim = self.claimed(**fields)
        self.owner.fail(claim, "E")
        return claim


def new(**fields: Any) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": '{"secret": 1}', **fields})


def event(**fields: Any) -> NewEvent:
    return NewEvent(**{"id": family(), "topic": "order.paid", **fields})


def subscription(name: str = "tests.work") -> Subscription:
    return Subscription(topic="order.*", task_name=name, parameter="payload")


def metric() -> TaskMetric:
    return TaskMetric(id=uuid7(), queue="default", task_name="tests.work", counts=AttemptCounts(completed=1))


Act = Callable[[Stage], object]


# A producer


def enqueues(stage: Stage) -> None:
    stage.store.enqueue(new())
    stage.store.enqueue_many([new(partition_key="k"), new(queue="mail", delay=HOUR, expires_in=2 * HOUR)])


def enqueues_in_a_session(stage: Stage) -> None:
    with stage.session() as session:
        stage.store.enqueue(new(partition_key="k"), using=session)


def enqueues_by_psycopg(stage: Stage) -> None:
    with stage.psycopg() as connection:
        stage.store.enqueue(new(), using=connection)


def enqueues_while_a_worker_sleeps(stage: Stage) -> None:
    Store(stage.owner.bound_engine).sleeping_workers.announce(uuid4(), None, HOUR)
    stage.store.enqueue(new())


def enqueues_though_an_answer_was_lost(stage: Stage) -> None:
    task = new()
    stage.store.enqueue(task)
    with stage.store.transaction(Begin.WRITE) as target:
        [handle] = enqueued(stage.store, target, [task]) or []
        assert handle.created


def enqueues_from_sql(stage: Stage) -> None:
    with stage.psycopg() as connection:
        connection.execute("SELECT outboxq_enqueue('tests.work', partition_key => 'k')")


def emits(stage: Stage) -> None:
    stage.store.emit(event())
    stage.owner.subscriptions.replace([subscription()])
    said = event(partition_key="k")
    stage.store.emit(said)
    with stage.session() as session:
        stage.store.emit(event(), using=session)
    with stage.store.transaction(Begin.WRITE) as target:
        assert _is_written(stage.store, target, said)
    stage.owner.subscriptions.replace([of_a_relay()], tasks=[subscription().task_name])
    said = event()
    for _ in range(2):
        stage.store.emit(said)
    with stage.store.transaction(Begin.WRITE) as target:
        assert _is_written(stage.store, target, said)


def of_a_relay() -> Subscription:
    return replace(subscription(), task_name="relay.orders", queue="relay.orders", parameter=None)


def enqueues_with_a_key(stage: Stage) -> None:
    for on_conflict in (OnConflict.RETURN, OnConflict.SKIP):
        for span in (None, HOUR, SOON):
            for _ in range(2):
                stage.store.enqueue(
                    new(idempotency_key=f"{on_conflict} {span}", on_conflict=on_conflict, unique_for=span)
                )
    with stage.session() as session:
        stage.store.enqueue_many([new(idempotency_key="a"), new(idempotency_key="b"), new()], using=session)


def enqueues_with_a_key_that_is_taken(stage: Stage) -> None:
    stage.store.enqueue(new(idempotency_key="k"))
    try:
        stage.store.enqueue(new(idempotency_key="k", on_conflict=OnConflict.RAISE))
    except DuplicateTask:
        return
    raise AssertionError("the key is taken, but the call did not fail")


def takes_the_key_of_what_has_ended(stage: Stage) -> None:
    keyed = {"idempotency_key": "k", "unique_until_finished": True}
    stage.owner.complete(stage.claimed(**keyed))
    assert stage.store.enqueue(new(**keyed)).created


def takes_the_key_of_a_dead_letter(stage: Stage) -> None:
    keyed = {"idempotency_key": "k", "unique_until_finished": True}
    stage.failed(**keyed)
    assert stage.store.enqueue(new(**keyed)).created


def takes_a_key_though_an_answer_was_lost(stage: Stage) -> None:
    task, other = new(idempotency_key="k"), new(idempotency_key="k")
    stage.store.enqueue(task)
    with stage.store.transaction(Begin.WRITE) as target:
        assert enqueued(stage.store, target, [task])
        enqueued(stage.store, target, [other])


def enqueues_with_a_key_from_sql(stage: Stage) -> None:
    keyed = {"idempotency_key": "k", "unique_until_finished": True}
    stage.failed(**keyed)
    with stage.psycopg() as connection:
        for _ in range(2):
            connection.execute(
                "SELECT outboxq_enqueue('tests.work', idempotency_key => 'k', unique_until_finished => true)"
            )


def accepts(stage: Stage) -> None:
    with stage.session() as session:
        assert stage.store.inbox.accept("billing", "m", using=session)
        assert not stage.store.inbox.accept("billing", "m", using=session)


def receives(stage: Stage) -> None:
    arrival = Arrival(consumer="billing", source="erp", message_id="m", keep=HOUR, task=new())
    assert stage.store.inbox.receive([arrival]) == 1
    assert stage.store.inbox.receive([arrival]) == 0


def emits_with_a_key(stage: Stage) -> None:
    stage.owner.subscriptions.replace([subscription(), of_a_relay()])
    said = event(idempotency_key="k")
    stage.store.emit(said)
    stage.store.emit(event(idempotency_key="k"))
    with stage.store.transaction(Begin.WRITE) as target:
        assert _is_written(stage.store, target, said)


def replaces(stage: Stage) -> None:
    for key, fields in (("a", {}), ("b", {"partition_key": "p"}), ("c", {"expires_in": HOUR, "headers": "{}"})):
        stage.store.enqueue(new(idempotency_key=key, **fields))
        handle = stage.store.enqueue(
            new(idempotency_key=key, on_conflict=OnConflict.REPLACE, args='{"n": 2}', delay=HOUR, **fields)
        )
        assert handle.replaced
    stage.claimed(idempotency_key="d", task_name="other", queue="d", on_conflict=OnConflict.REPLACE)
    stage.store.enqueue(new(idempotency_key="d", task_name="other", on_conflict=OnConflict.REPLACE))


def replaces_in_a_session(stage: Stage) -> None:
    stage.store.enqueue(new(idempotency_key="a", partition_key="p"))
    with stage.session() as session:
        stage.store.enqueue(new(idempotency_key="a", on_conflict=OnConflict.REPLACE, partition_key="q"), using=session)


def replaces_though_an_answer_was_lost(stage: Stage) -> None:
    stage.store.enqueue(new(idempotency_key="a"))
    task = new(idempotency_key="a", on_conflict=OnConflict.REPLACE)
    stage.store.enqueue(task)
    with stage.store.transaction(Begin.WRITE) as target:
        [handle] = enqueued(stage.store, target, [task]) or []
        assert handle.replaced


def makes_a_batch(stage: Stage) -> None:
    batch = batch_with(new())
    stage.store.batches.create(batch)
    stage.store.enqueue(new(pipeline_execution_id=batch.id))
    stage.store.batches.close(batch.id)
    stage.store.enqueue(new(pipeline_execution_id=batch.id))
    with stage.store.transaction(Begin.READ) as target:
        target.run(batches_sql.known, {"batch_id": batch.id})


def waits_for_results(stage: Stage) -> None:
    """Wait for a completed task and for a failed task, whose error is in its events."""
    done, failed = stage.claimed(), stage.claimed()
    stage.owner.complete(done, "1")
    stage.owner.fail(failed, "E")
    outbox = Outbox(stage.engine)
    for timeout in (0, 60):
        assert outbox.result(done.id, timeout=timeout) == 1
        with pytest.raises(TaskFailed, match="failed in attempt 1: E"):
            outbox.result(failed.id, timeout=timeout)


def waits_for_batches(stage: Stage) -> None:
    """Wait for a batch whose task completed and for a chain that a dead letter stopped."""
    outbox = Outbox(stage.engine)

    @outbox.task(name="tests.work")
    def work() -> int: ...

    with outbox.batch(using=outbox) as alone:
        work.using(alone).enqueue()
    [claim] = stage.owner.claim_ready_task(1, worker_id=uuid4())
    stage.owner.complete(claim, "1")
    chain = outbox.chain(work.call(), work.call()).using(outbox).enqueue()
    with pytest.raises(TimeoutError, match=r"\(tests.work\), which is Ready"):
        chain.result(timeout=0)
    [claim] = stage.owner.claim_ready_task(1, worker_id=uuid4())
    stage.owner.fail(claim, "E")
    for timeout in (0, 60):
        assert alone.result(timeout).completed == 1
        with pytest.raises(TaskFailed, match="failed in attempt 1: E"):
            chain.result(timeout)


# A worker


def works(stage: Stage) -> None:
    """Run a worker whose tasks end in every way."""
    outbox = Outbox(stage.engine)
    tried = []

    @outbox.task(name="ok", subscribe="order.*")
    def ok(payload: object = None) -> int:
        return 1

    @outbox.task(name="bad", retry=RetryPolicy.never())
    def bad() -> None:
        raise ValueError("no")

    @outbox.task(name="again", retry=RetryPolicy(max_attempts=2, wait=lambda _: 0))
    def again() -> None:
        tried.append(1)
        if len(tried) < 2:
            raise ValueError("once more")

    @outbox.task(name="unit", transactional=True)
    def unit() -> None: ...

    for name in ("ok", "bad", "again", "unit"):
        stage.owner.enqueue(new(task_name=name, args="{}", partition_key=None if name == "ok" else name))
    stage.owner.enqueue(new(task_name="stranger"))
    worker = outbox.worker(concurrency=2)
    worker.start(burst=True)
    until(lambda: not worker._parts.claim_loop.is_alive())
    assert worker.stop()
    assert worker.is_healthy
    assert {task.status.value for task in stage.owner.tasks()} >= {"Completed", "Failed"}


def listens(stage: Stage) -> None:
    store, me = Store(stage.engine), uuid4()
    sleeping = store.sleeping_workers
    for queues in (None, ["mail"]):
        sleeping.announce(me, queues, HOUR, session=1)
        sleeping.announce(me, queues, HOUR, session=1)
        sleeping.look(sleeping.horizon(), queues)
    sleeping.answer({"mail": 1}, 1.5)
    sleeping.pass_on(me, ["mail"])
    sleeping.withdraw(me)
    sleeping.forget(me)
    stage.store.sleeping_workers.forget_ended()
    with store.transaction(Begin.SINGLE_ASYNCHRONOUS) as target:
        target.run(forget_ended, store.values(target))


def hears(stage: Stage) -> None:
    with stage.store.transaction(Begin.WRITE) as target:
        assert target.run(channel.find)
        target.run(channel.prove, {"word": "proof 0"})


def claims(stage: Stage) -> None:
    for fields in ({}, {"partition_key": "k"}, {"partition_key": "k"}, {"expires_in": SOON}, {"queue": "b"}):
        stage.owner.enqueue(new(**fields))
    me = uuid4()
    assert stage.store.claim_ready_task(10, worker_id=me, says_begin=True)
    stage.store.claim_ready_task(10, worker_id=me, queues=["b"], topics=["order.*"])


def claims_from_limited_queues(stage: Stage) -> None:
    stage.owner.queues.limit("default", concurrency=5, rate=(10, HOUR), create=True)
    stage.owner.queues.order("fair", fair=True, create=True)
    for fields in ({}, {"partition_key": "k"}, {"queue": "fair", "partition_key": "k"}):
        stage.owner.enqueue(new(**fields))
    for claim in stage.store.claim_ready_task(10, worker_id=uuid4()):
        stage.store.complete(claim)


def pauses_the_queue_of_an_endpoint_that_is_gone(stage: Stage) -> None:
    for _ in ("new", "paused before"):
        assert stage.store.queues.pause("relay.crm", create=True).paused_at is not None


def claims_from_queues_that_limit_their_keys(stage: Stage) -> None:
    stage.owner.queues.limit(
        "default", concurrency_per_key=2, rate_per_key=(2, timedelta(microseconds=10)), create=True
    )
    for fields in ({}, {"partition_key": "k"}, {"concurrency_key": "k"}, {"concurrency_key": "k"}):
        stage.owner.enqueue(new(**fields))
    assert stage.store.look_ahead().due, "what may start is seen"
    claims = stage.store.claim_ready_task(10, worker_id=uuid4())
    assert len(claims) == 4, "what may start is seen"
    for claim in claims:
        stage.store.complete(claim)
    stage.owner.enqueue(new(concurrency_key="other"))
    assert len(stage.store.claim_ready_task(10, worker_id=uuid4())) == 1


def ends(stage: Stage) -> None:
    for fields in ({}, {"partition_key": "k"}, {"partition_key": "h", "on_dead_letter": OnDeadLetter.HOLD}):
        claim = stage.claimed(**fields)
        assert stage.store.begin(claim)
        assert stage.store.heartbeat([claim])
        stage.store.complete(claim, "1")
        stage.store.fail(stage.claimed(**fields), "E")
        stage.owner.dead_letters.redrive_all()
        stage.owner.claim_ready_task(9, worker_id=uuid4())
    for kind in (EventType.RETRY_SCHEDULED, EventType.SNOOZED, EventType.RELEASED):
        stage.store.finish([Outcome(claim=stage.claimed(partition_key=str(kind)), event_type=kind, delay=HOUR)])
    stage.store.finish([Outcome(claim=stage.claimed(), event_type=EventType.CANCELLED)])
    stage.store.finish_unlocked([Outcome(claim=stage.claimed(), event_type=EventType.COMPLETED)])
    with stage.store.transaction(Begin.WRITE) as target:
        has_ended(target, claim, EventType.COMPLETED)


def recovers(stage: Stage) -> None:
    for _ in range(2):
        stage.claimed(lease=SOON, partition_key=uuid4().hex)
    stage.store.expired_leases()
    stage.store.outlasting_leases()
    assert stage.store.recover()
    stage.owner.claim_ready_task(2, worker_id=uuid4())
    stage.store.recover(limit=5)
    stage.store.due_again(stage.owner.now())
    stage.claimed(lease=SOON, task_name="gone")
    stage.store.recover(max_recoveries=0)


def meets_expired_tasks_of_a_locked_batch(stage: Stage) -> None:
    batch, worker = NewBatch(id=new_batch_id()), uuid4()
    stage.owner.batches.create(batch)
    for _ in range(2):
        stage.owner.enqueue(new(pipeline_execution_id=batch.id, expires_in=SOON))
    with stage.owner.bound_engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(f"SELECT 1 FROM task_batches WHERE id = '{batch.id}' FOR UPDATE")
        assert stage.store.claim_ready_task(2, worker_id=worker) == []
    stage.owner.enqueue(new(pipeline_execution_id=batch.id, expires_in=SOON))
    assert cancel_expired(stage.store, worker) == 1


def tells_of_itself(stage: Stage) -> None:
    me = uuid4()
    for _ in range(2):
        stage.store.workers.register(me, label="w", concurrency=1, task_names=["a"], unknown_tasks=[("default", "b")])
    stage.store.workers.seen(me, unknown_tasks=[("default", "tests.work")])
    stage.store.worker_orders.answer(me, "stacks")
    stage.store.workers.unregister(me)


def meets_strangers(stage: Stage) -> None:
    claim = stage.claimed(task_name="stranger")
    stage.store.unknown_runs([claim])
    stage.owner.workers.register(
        uuid4(), label="w", concurrency=1, task_names=[], unknown_tasks=[("default", "stranger")]
    )
    stage.store.release(claim, delay=HOUR, reason="unknown")
    stage.store.make_known_due(["stranger"])


def subscribes(stage: Stage) -> None:
    stage.store.subscriptions.replace([subscription()])
    stage.store.subscriptions.replace([], tasks=["tests.work"])


def plants(stage: Stage) -> None:
    """Plant the schedules of this worker's code and those of other programs."""
    nightly = NewSchedule(name="nightly", task_name="tests.work", rule="every 1", overlap=Overlap.QUEUE)
    stage.store.schedules.declare([nightly])
    stage.store.schedules.declare([replace(nightly, priority=1)])
    stage.owner.schedules.put(replace(nightly, name="of_others", rule="every 7"))
    assert stage.store.schedules.plant(horizon=HOUR) > 3000


def keeps_schedules(stage: Stage) -> None:
    schedules = stage.store.schedules
    schedules.put(NewSchedule(name="nightly", task_name="tests.work", rule="every 1"))
    schedules.pause("nightly")
    schedules.resume("nightly")
    schedules.trigger("nightly")
    assert len(schedules.ticks("nightly")) > 10
    schedules.remove("nightly")


def starts(stage: Stage) -> None:
    stage.store.ensure_current()
    stage.store.ensure_primary()
    stage.store.time_partitions.make()


def writes_statistics(stage: Stage) -> None:
    stage.failed()
    stage.store.metrics.record([metric()], worker_id=uuid4())
    later = Store(stage.engine, clock=lambda: stage.owner.now() + HOUR)
    later.metrics.sum_up()
    stage.store.samples.record(stage.store.samples.look())
    stage.store.samples.record(stage.store.samples.count())
    stage.store.samples.thin_out()
    stage.store.maintenance_jobs.take("sample", for_at_most=HOUR)
    stage.store.maintenance_jobs.done("sample", again_in=HOUR)


def sends(stage: Stage) -> None:
    """Change a relay's shards, confirm one event, refuse another, and report a failure of the broker."""
    relays, worker = stage.store.relays, uuid4()
    for shards in (2, 1):
        relays.declare([NewRelay(name="orders", topics=["*"], shards=shards)])
    stage.store.subscriptions.replace([of_a_relay()])
    for number in range(2):
        stage.owner.emit(event(partition_key=str(number)))
    lease = relays.take("orders", worker)
    assert lease is not None
    assert relays.renew(worker, [lease])
    relays.sleep("orders", worker, HOUR)
    relays.wake("orders", worker)
    first, second = (row["id"] for row in relays.look(lease, TailCursor()).messages)
    failure = RelayFailure(reason="away", pause=SOON, is_partial=True)
    assert relays.settle(lease, confirmed=[first], refused={second: "too large"}, failure=failure)
    assert relays.settle(lease, works_again=True)
    relays.give_up(worker, [lease])


# A viewer


def runs_steps(stage: Stage) -> None:
    claim = stage.claimed()
    assert stage.store.steps.complete(claim, NewStep(name="one", number=1))
    assert [step.name for step in stage.store.steps.of_claim(claim)] == ["one"]


def looks_at_steps(stage: Stage) -> None:
    claim = stage.claimed()
    stage.owner.steps.complete(claim, NewStep(name="one", number=1))
    assert stage.store.steps.list(claim.id), "a step is seen"


def explains_what_follows(stage: Stage) -> None:
    batch_id = new_batch_id()
    then = new(id=BatchLink(batch_id=batch_id, number=1).task_id)
    stage.owner.batches.create(NewBatch(id=batch_id, then=(then,), on_failed=OnFailed.WAIT))
    stage.owner.enqueue(new(queue="b", pipeline_execution_id=batch_id))
    stage.owner.batches.close(batch_id)
    (claim,) = stage.owner.claim_ready_task(1, worker_id=uuid4(), queues=["b"])
    stage.owner.fail(claim, "no")
    assert f"the batch {batch_id} is waiting for it" in stage.store.explain(claim.id).sentence, "the batch is seen"
    assert stage.store.explain(then.id).waits_for == claim.id


def looks(stage: Stage) -> None:
    claim = stage.failed(idempotency_key="k", partition_key="p")
    store = stage.store
    store.ensure_current()
    store.get(claim.id)
    store.history(claim.id)
    store.attempts(claim.id)
    store.explain(claim.id)
    store.task_detail(claim.id)
    store.tasks()
    stage.owner.relays.declare([NewRelay(name="orders", topics=["*"])])
    assert store.relays.list()
    store.dead_letters.list()
    store.actions.list()
    stage.owner.queues.limit("default", concurrency_per_key=2, rate_per_key=(2, HOUR), create=True)
    assert store.queues.settings()[0].concurrency_per_key == 2, "what limits each key is seen"
    assert store.explain(stage.owner.enqueue(new(concurrency_key="k")).id)
    store.next_available_at()
    store.subscriptions.list()
    store.stats()
    stage.owner.metrics.record([metric()], worker_id=uuid4())
    assert store.stats()[0].by_workers, "what workers have counted is seen"
    store.samples.latest()
    store.workers.list()
    store.log.tail()
    store.log.tail_from_now()
    store.get_ready_for_retry()
    store.next_available_at()
    store.schedules.list()
    now = store.now()
    assert store.overview().at >= now
    assert store.change_mark() == store.change_mark()
    assert store.system().revision
    assert store.task_page(status=TaskStatus.FAILED, worker=uuid4()).tasks == []
    assert store.slowest(status=TaskStatus.FAILED, queue="default").tasks
    store.count_tasks(queue="default")
    store.dead_letters.groups()
    assert store.dead_letters.count().number == 1
    store.queues.list()
    store.queues.held_keys("default")
    assert sum(point.completed for point in store.metrics.series(since=now - 2 * HOUR, step=HOUR)) > 0
    store.samples.series(since=now - HOUR, step=HOUR)
    store.trends(since=now - HOUR, until=now, step=HOUR)
    store.schedules.ticks("nightly")


def looks_at_batches(stage: Stage) -> None:
    assert stage.store.batches.list() == []


def verifies(stage: Stage) -> None:
    assert stage.store.verify() == []
    with stage.owner.bound_engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SELECT setval('task_position', 10)")
    stage.owner.enqueue(new())
    with stage.owner.bound_engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SELECT setval('task_position', 1)")
    try:
        assert stage.store.verify(), "a counter that was set back is seen"
    finally:
        with stage.owner.bound_engine.connect() as connection, connection.begin():
            connection.exec_driver_sql("SELECT setval('task_position', 1000000)")


# An operator


def looks_after_tasks(stage: Stage) -> None:
    store, owner = stage.store, stage.owner
    ids = [owner.enqueue(new(partition_key=key, delay=HOUR)).id for key in (None, None, None, "a", "b")]
    store.cancel(ids[0], reason="r")
    store.run_now(ids[1])
    store.set_priority(ids[2], 5)
    store.schedule_retry(ids[3], owner.now() + HOUR, 2)
    store.cancel(ids[4])
    store.cancel(stage.claimed(queue="c").id, force=True)
    for _ in range(2):
        store.redrive(stage.failed(queue="q", idempotency_key=uuid4().hex, unique_until_finished=True).id)
    claim = stage.claimed(queue="s")
    owner.steps.complete(claim, NewStep(name="one", number=1))
    owner.fail(claim, "E")
    assert store.steps.rewind(claim.id, "one") == 1
    store.discard(stage.failed(queue="d").id)
    stage.failed(queue="e", partition_key="e")
    store.dead_letters.redrive_all()
    stage.failed(queue="f", partition_key="f")
    store.dead_letters.discard_all()


def orders_a_worker(stage: Stage) -> None:
    worker = uuid4()
    stage.owner.workers.register(worker, label="w", concurrency=1, task_names=[])
    assert stage.store.worker_orders.give(worker, WorkerOrder.QUIET)
    stage.store.worker_orders.ask_for_stacks(worker)
    assert stage.store.worker_orders.stacks(worker) is None
    assert stage.store.worker_orders.find("w") == worker


def looks_after_queues(stage: Stage) -> None:
    stage.store.queues.pause("default", create=True)
    stage.store.queues.resume("default")
    stage.store.queues.limit("default", concurrency=3, create=True)
    for rate in ((2, HOUR), (3, HOUR), None):
        stage.store.queues.limit("default", rate_per_key=rate, create=True)
    stage.store.queues.order("default", fair=True, create=True)
    stage.store.subscriptions.replace([subscription()])
    stage.store.subscriptions.replace([], tasks=["tests.work"])


def records_what_people_change(stage: Stage) -> None:
    actions = stage.store.actions
    action = NewAction(operator=Operator(interface=Interface.COMMAND_LINE), action="task cancel")
    for _ in range(2):
        stage.owner.enqueue(new())
        stage.store.cancel_all(on_change=actions.adding(action))
    stage.owner.enqueue(new())
    stage.store.cancel_all(on_change=actions.adding_to(action.id))
    actions.record(NewAction(operator=action.operator, action="work"), lambda _: None)
    assert [one.changed for one in actions.list()] == [1, 3]


def prunes(stage: Stage) -> None:
    claim = stage.claimed(idempotency_key="k")
    stage.owner.steps.complete(claim, NewStep(name="one", number=1))
    stage.owner.complete(claim)
    stage.failed(idempotency_key="f", partition_key="p")
    with stage.session() as session:
        stage.owner.inbox.accept("billing", "m", keep=timedelta(microseconds=1), using=session)
    stage.store.prune(older_than=timedelta(0))


def repairs(stage: Stage) -> None:
    stage.store.verify(repair=True)


def ends_a_batch(stage: Stage) -> None:
    """The failure of one task cancels the other one, and the `then` task is enqueued."""
    batch = batch_with(new(task_name="then"), on_failed=OnFailed.CANCEL)
    stage.owner.batches.create(batch)
    for _ in range(2):
        stage.owner.enqueue(new(pipeline_execution_id=batch.id))
    stage.owner.batches.close(batch.id)
    (claim,) = stage.store.claim_ready_task(1, worker_id=uuid4())
    stage.store.fail(claim, "no")
    assert stage.store.batches.get(batch.id).failed == 1
    assert stage.store.batches.continue_cancelling() == 1
    assert {one.status.value for one in stage.store.batches.members(batch.id)} == {"Failed", "Cancelled", "Ready"}


def looks_after_batches(stage: Stage) -> None:
    for kind in ("cancelled", "pruned"):
        batch = NewBatch(id=new_batch_id())
        stage.owner.batches.create(batch)
        if kind == "cancelled":
            stage.owner.enqueue(new(pipeline_execution_id=batch.id))
        stage.owner.batches.close(batch.id)
        if kind == "cancelled":
            assert stage.store.batches.cancel(batch.id) == 1
    assert len(stage.store.batches.list()) == 2
    stage.store.prune(timedelta(0), statuses=[TaskStatus.COMPLETED])
    assert len(stage.store.batches.list()) == 1


ACTS: dict[tuple[Role, frozenset[Feature]], tuple[Act, ...]] = {
    (Role.PRODUCER, frozenset()): (
        enqueues,
        enqueues_in_a_session,
        enqueues_by_psycopg,
        enqueues_while_a_worker_sleeps,
        enqueues_though_an_answer_was_lost,
        enqueues_from_sql,
    ),
    (Role.PRODUCER, frozenset({Feature.EMIT})): (emits,),
    (Role.PRODUCER, frozenset({Feature.BATCHES})): (makes_a_batch,),
    (Role.PRODUCER, frozenset({Feature.INBOX})): (accepts, receives),
    (Role.PRODUCER, frozenset({Feature.IDEMPOTENCY})): (
        enqueues_with_a_key,
        enqueues_with_a_key_that_is_taken,
        takes_the_key_of_what_has_ended,
        takes_the_key_of_a_dead_letter,
        takes_a_key_though_an_answer_was_lost,
        enqueues_with_a_key_from_sql,
    ),
    (Role.PRODUCER, frozenset({Feature.EMIT, Feature.IDEMPOTENCY})): (emits_with_a_key,),
    (Role.PRODUCER, frozenset({Feature.IDEMPOTENCY, Feature.REPLACE})): (
        replaces,
        replaces_in_a_session,
        replaces_though_an_answer_was_lost,
    ),
    (Role.PRODUCER, frozenset({Feature.RESULTS})): (waits_for_results,),
    (Role.PRODUCER, frozenset({Feature.RESULTS, Feature.BATCHES})): (waits_for_batches,),
    (Role.WORKER, frozenset()): (
        starts,
        hears,
        listens,
        claims,
        claims_from_limited_queues,
        claims_from_queues_that_limit_their_keys,
        pauses_the_queue_of_an_endpoint_that_is_gone,
        sends,
        ends,
        recovers,
        meets_expired_tasks_of_a_locked_batch,
        tells_of_itself,
        meets_strangers,
        subscribes,
        plants,
        runs_steps,
        works,
        writes_statistics,
        ends_a_batch,
    ),
    (Role.VIEWER, frozenset()): (looks, looks_at_steps, looks_at_batches, explains_what_follows, verifies),
    (Role.OPERATOR, frozenset()): (
        looks,
        explains_what_follows,
        verifies,
        looks_after_tasks,
        looks_after_queues,
        orders_a_worker,
        records_what_people_change,
        prunes,
        repairs,
        keeps_schedules,
        looks_after_batches,
    ),
}
"""The acts of each role, with the features that they need."""
