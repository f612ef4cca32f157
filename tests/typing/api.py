"""Code that uses outboxq's types. mypy and pyright check it (tests/unit/test_house.py), but it never runs.

Each `type: ignore` marks an error that both type checkers must report. A type checker that reports none complains about an unused
comment.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import tenacity
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from outboxq import (
    BatchCounts,
    BoundTask,
    Chain,
    ChainHandle,
    CloudEvent,
    ContextTask,
    Emitted,
    Handle,
    Hook,
    OpenBatch,
    Outbox,
    Outcome,
    Overlap,
    RetryPolicy,
    Schedule,
    Sending,
    Subscription,
    Task,
    TaskCall,
    TaskContext,
    TaskExecution,
    TaskStatus,
    Webhook,
    WebhookSource,
    Worker,
    WorkerInfo,
    orm,
    verify_webhook,
)

outbox = Outbox()
session = Session()


@outbox.task
def count_lines(ctx: TaskContext, file: str) -> int:
    return ctx.batch.size


def batches() -> None:
    assert_type(count_lines.call("may.csv"), TaskCall[int])
    count_lines.call(7)  # type: ignore[arg-type]
    with outbox.batch(using=session, then=count_lines.using(priority=5).call("may.csv")) as batch:
        assert_type(count_lines.using(batch).enqueue("june.csv"), Handle[int])
    assert_type(batch, OpenBatch[int])
    assert_type(batch.result(timeout=5), int)
    with outbox.batch(using=session, on_failed="wait", name="may") as alone:
        assert_type(alone.result(timeout=timedelta(seconds=5)).failed, int)
    assert_type(alone.result(), BatchCounts)
    handle = outbox.chain(count_lines.call("may.csv")).using(session).enqueue()
    assert_type(handle.id, UUID)
    assert_type(handle, ChainHandle[int])
    longer = outbox.chain(
        count_lines.call("may.csv"), bare.call(1), bare_with_context.call(1), bare.call(2), on_failed="cancel"
    )
    assert_type(longer.using(session).enqueue().result(timeout=5), str)
    calls = [bare.call(number) for number in range(3)]
    assert_type(outbox.chain(*calls).enqueue().result(), str)
    outbox.chain(*calls, name=7)  # type: ignore[call-overload]
    outbox.chain(bare)  # type: ignore[call-overload]
    batch.result("soon")  # type: ignore[arg-type]


@outbox.task
def bare(order_id: int, note: str = "") -> str:
    return f"{order_id} {note}"


@outbox.task(name="typing.declared", queue="mail", retry=RetryPolicy(max_attempts=5), lease=60)
def declared(order_id: int, *, amounts: list[int] | None = None) -> None:
    del order_id, amounts


@outbox.task
def bare_with_context(ctx: TaskContext, order_id: int) -> int:
    return order_id + ctx.attempt


@outbox.task(retry=tenacity.Retrying(stop=tenacity.stop_after_attempt(3)))
def declared_with_context(ctx: TaskContext, order_id: int) -> UUID:
    del order_id
    return ctx.task_id


@outbox.task(priority=5)
def without_arguments() -> None: ...


@outbox.task(queue="ledger", transactional=True, timeout=timedelta(minutes=5), timeout_action="kill")
def transactional(ctx: TaskContext, order_id: int) -> str:
    assert_type(ctx.connection, Connection)
    assert_type(ctx.session, Session)
    assert_type(ctx.is_transactional, bool)
    assert_type(bare.enqueue(order_id), Handle[str])
    assert_type(bare.using(ctx).enqueue(order_id), Handle[str])
    bare.using(ctx).enqueue("one")  # type: ignore[arg-type]
    return str(ctx.connection.execute(select(1)).scalar_one())


@outbox.task(timeout=2.5)
def bounded(ctx: TaskContext) -> None:
    assert_type(ctx.timed_out, bool)
    assert_type(ctx.should_stop, bool)
    assert_type(ctx.lost, bool)
    assert_type(ctx.cancel_requested, bool)
    ctx.checkpoint()
    if ctx.attempt == ctx.max_attempts:
        ctx.snooze(30)


def charge(order_id: int, *, cents: int = 0) -> str:
    return f"{order_id} {cents}"


def charge_in_context(ctx: TaskContext, order_id: int) -> str:
    return f"{order_id} {ctx.attempt}"


def a_step_takes_the_arguments_of_its_function(ctx: TaskContext) -> None:
    assert_type(ctx.step("a", charge, 1, cents=995), str)
    assert_type(ctx.step("b", charge_in_context, 1), str)
    assert_type(ctx.step("c", bare, 1, note="now"), str)
    assert_type(ctx.step("d", lambda: 17), int)
    assert_type(ctx.step("e", charge, 1, cents=995, transactional=True), str)
    ctx.step("f", charge)  # type: ignore[call-overload]
    ctx.step("g", charge, "wrong")  # type: ignore[call-overload]
    ctx.step("h", charge, 1, cents="wrong")  # type: ignore[misc, arg-type]
    ctx.step("i", charge_in_context, "wrong")  # type: ignore[call-overload]


def the_types_of_a_batch_and_a_chain_have_names() -> None:
    chain: Chain[int] = outbox.chain(count_lines.call("may.csv"))
    bound: BoundTask[[UUID], int] = bare.using(session)  # type: ignore[assignment]
    takes_context: ContextTask[[int], int] = bare_with_context
    del chain, bound, takes_context


def a_task_is_called_like_its_function() -> None:
    assert_type(bare(1), str)
    assert_type(bare(1, note="now"), str)
    bare("one")  # type: ignore[arg-type]
    bare()  # type: ignore[call-arg]


def an_enqueue_takes_the_arguments_of_the_function() -> None:
    assert_type(bare.using(session).enqueue(1), Handle[str])
    bare.using(session).enqueue(1, "now")
    bare.using(session).enqueue(order_id=1, note="now")
    bare.using(session).enqueue("one")  # type: ignore[arg-type]
    bare.using(session).enqueue(1, note=2)  # type: ignore[arg-type]
    bare.using(session).enqueue()  # type: ignore[call-arg]
    bare.using(session).enqueue(1, other=2)  # type: ignore[call-arg]
    bare.enqueue("one")  # type: ignore[arg-type]

    declared.using(outbox).enqueue(1, amounts=[2, 3])
    declared.using(outbox).enqueue(1, amounts="2, 3")  # type: ignore[arg-type]
    declared.using(outbox).enqueue(1, [2, 3])  # type: ignore[call-arg]

    without_arguments.using(session).enqueue()
    without_arguments.using(session).enqueue(1)  # type: ignore[call-arg]


def a_task_with_a_context_is_called_with_one(ctx: TaskContext) -> None:
    assert_type(bare_with_context(ctx, 1), int)
    bare_with_context(1)  # type: ignore[call-arg,arg-type]


def a_worker_takes_its_options_by_name() -> None:
    assert_type(outbox.worker(concurrency=4, queues=["mail"]), Worker)
    outbox.worker(concurency=4)  # type: ignore[call-arg]


def the_context_is_no_argument_of_an_enqueue() -> None:
    takes_an_int: list[Task[[int], int]] = [bare_with_context]
    takes_both: list[Task[[TaskContext, int], int]] = [bare_with_context]  # type: ignore[list-item]
    del takes_an_int, takes_both
    bare_with_context.using(session).enqueue(1)
    declared_with_context.using(session).enqueue(order_id=1)
    declared_with_context.using(session).enqueue("one")  # type: ignore[arg-type]
    declared_with_context.using(session).enqueue()  # type: ignore[call-arg]


def the_options_are_known_by_name_and_type() -> None:
    bare.using(session, delay=60, priority=5, queue="mail", max_attempts=3, idempotency_key="order 1").enqueue(1)
    bare.using(session, partition_key="c1", expires=3600, unique_for=60, unique_until_finished=True).enqueue(1)
    bare.using(session, expires=datetime.now(UTC), on_conflict="replace").enqueue(1)
    bare.using(session, expires="tomorrow")  # type: ignore[arg-type]
    bare.using(session, unique_until_finished="yes")  # type: ignore[arg-type]
    bare.using(session, delay=timedelta(minutes=1)).enqueue(1)
    bare.using(session, run_after=datetime.now(UTC)).enqueue(1)
    bare.using(session, delay="60")  # type: ignore[arg-type]
    bare.using(session, wait=60)  # type: ignore[call-arg]
    bare.using(delay=60).enqueue(1)
    bare.using(delay=60).enqueue("one")  # type: ignore[arg-type]
    outbox.task(que="mail")  # type: ignore[call-overload]
    outbox.task(lease="60")  # type: ignore[call-overload]
    outbox.task(timeout="60")  # type: ignore[call-overload]
    outbox.task(transactional="yes")  # type: ignore[call-overload]
    outbox.task(subscribe=7)  # type: ignore[call-overload]
    outbox.task(on_dead_letter=True)  # type: ignore[call-overload]
    outbox.task(check_types=False)
    outbox.task(check_types="no")  # type: ignore[call-overload]
    transactional.using(session).enqueue(1)
    transactional.using(session).enqueue("one")  # type: ignore[arg-type]


@outbox.task(subscribe=["order.paid", "refund.*"], on_dead_letter="hold")
def subscribed(ctx: TaskContext, payload: dict[str, int], note: str = "") -> None:
    assert_type(ctx.topic, str | None)
    assert_type(ctx.partition_key, str | None)
    assert_type(outbox.emit("order.shipped", payload, using=ctx), Emitted)
    del note


def an_event_names_its_transaction() -> None:
    emitted = outbox.emit("order.paid", {"id": 1}, using=session, partition_key="c1", idempotency_key="k", expires=60)
    assert_type(emitted.pipeline_execution_id, UUID)
    assert_type(emitted.handles["typing.book"], Handle)
    emitted.handles = {}  # type: ignore[misc]
    assert_type(outbox.emit("order.paid"), Emitted)
    outbox.emit("order.paid", using=session, delay="60")  # type: ignore[arg-type]
    subscribed.using(session).enqueue({"id": 1})
    subscribed.using(session).enqueue({"id": "1"})  # type: ignore[dict-item]
    assert_type(outbox.subscriptions, list[Subscription])
    outbox.sync_subscriptions()


@outbox.periodic(
    "30 2 * * *", tz="Europe/Berlin", overlap="skip", catch_up="all", grace=3600, jitter=timedelta(minutes=1)
)
@outbox.periodic(every=timedelta(minutes=15), name="quarters", args={"order_id": 1})
@outbox.task
def periodic(ctx: TaskContext, order_id: int = 0) -> str:
    assert_type(ctx.tick, datetime | None)
    assert_type(ctx.schedule, str | None)
    return str(order_id)


def a_periodic_task_stays_a_task() -> None:
    periodic.using(session).enqueue(1)
    periodic.using(session).enqueue("one")  # type: ignore[arg-type]
    outbox.periodic(every="60")  # type: ignore[arg-type]
    outbox.periodic("@daily", tz=7)  # type: ignore[arg-type]
    outbox.periodic("@daily", timezone="UTC")  # type: ignore[call-arg]
    outbox.periodic("@daily", grace="1h")  # type: ignore[arg-type]


def schedules_are_put_and_changed() -> None:
    put = outbox.schedules.put("mine", periodic, "@daily", args=(1,), overlap=Overlap.SKIP, using=session)
    assert_type(put, Schedule)
    assert_type(put.grace, timedelta | None)
    assert_type(outbox.schedules.list(), list[Schedule])
    assert_type(outbox.schedules.trigger("mine", by="ada", using=session), Handle)
    assert_type(outbox.schedules.backfill("mine", datetime.now(UTC), datetime.now(UTC), dry_run=True), list[datetime])
    assert_type(outbox.schedules.next("@daily", count=3), list[datetime])
    outbox.schedules.put("mine", periodic, every="60")  # type: ignore[arg-type]
    outbox.schedules.pause("mine", because="holiday")  # type: ignore[call-arg]
    Outbox(version="1.2", retention=timedelta(days=30))
    Outbox(retention="30 days")  # type: ignore[arg-type]


class Watching(Hook):
    @contextmanager
    def sending(self, sent: Sending) -> Generator[dict[str, str], None, None]:
        assert_type(sent.headers, Mapping[str, str])
        yield {"queue": sent.queue or ""}
        assert_type(sent.handles, list[Handle])

    @contextmanager
    def handling(self, context: TaskContext) -> Generator[None, None, None]:
        assert_type(context.headers, Mapping[str, str])
        yield

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        assert_type(context.error, BaseException | None)
        outcome.data = {}  # type: ignore[misc]

    def worker_started(self, worker: WorkerInfo) -> None:
        assert_type(worker.concurrency, int)


def hooks_and_headers_have_types() -> None:
    Outbox(hooks=[Watching()])
    Outbox(hooks=[Watching])  # type: ignore[list-item]
    bare.using(session, headers={"request-id": "r1"}).enqueue(1)
    bare.using(session, headers={"request-id": 1})  # type: ignore[dict-item]
    outbox.emit("order.paid", headers={"request-id": "r1"})
    outbox.emit("order.paid", headers="request-id")  # type: ignore[arg-type]


def what_comes_back_has_fields() -> None:
    handle = bare.using(session).enqueue(1)
    assert_type(handle.id, UUID)
    assert_type(handle.created, bool)
    handle.created = False  # type: ignore[misc]
    assert_type(handle.result(timeout=5), str)
    assert_type(without_arguments.using(session).enqueue().result(timeout=timedelta(seconds=5)), None)
    handle.result("soon")  # type: ignore[arg-type]
    anything: Handle = handle
    assert_type(anything.result(), Any)
    assert_type(bare.using(session).enqueue_many([(1,), {"order_id": 2}]), list[Handle[str]])
    assert_type(bare.enqueue_many([(1,), {"order_id": 2}]), list[Handle[str]])
    assert_type(bare.using(session).enqueue_many([(1,), (2,)], idempotency_keys=["a", None]), list[Handle[str]])
    bare.using(session).enqueue_many([(1,)], idempotency_keys=[1])  # type: ignore[list-item]

    execution = outbox.store.get(handle.id)
    assert_type(execution, TaskExecution)
    assert_type(execution.status, TaskStatus)
    assert_type(execution.retry_at, datetime | None)


def messages_come_in_and_go_out() -> None:
    class Printer:
        def send(self, event: CloudEvent) -> None:
            print(event.type, event.data)

    hook = Webhook(url="https://crm.example", secret=["a", "b"], timeout=timedelta(seconds=5))
    assert_type(outbox.relay("order.*", to=hook, name="crm"), Task[..., Any])
    outbox.relay(["order.*", "invoice.sent"], to=Printer(), name="printer", on_dead_letter="hold")
    outbox.relay("order.*", to=print, name="crm")  # type: ignore[arg-type]
    webhook = verify_webhook({"webhook-id": "m"}, b"{}", "secret", tolerance=60)
    assert_type(webhook.id, str)
    assert_type(outbox.inbox.accept("billing", webhook.id, source="shop", keep=3600, using=session), bool)
    outbox.inbox.accept("billing", 7)  # type: ignore[arg-type]
    erp = WebhookSource(name="erp", secret=["secret"], tolerance=60, topic="erp.changed", max_bytes=1000)
    assert_type(outbox.receive_webhook({"webhook-id": "m"}, b"{}", source=erp, using=session), int)
    outbox.receive_webhook({}, "{}")  # type: ignore[arg-type]
    assert_type(outbox.receive("billing.*", source=erp, queue="billing")(print), Task[..., Any])
    outbox.receive("billing.*", source="erp")  # type: ignore[arg-type]


def rows_are_read_through_the_orm() -> None:
    query = select(orm.TaskExecution).where(orm.TaskExecution.status == TaskStatus.FAILED)
    task = session.scalars(query.join(orm.TaskExecution.events)).one()
    assert_type(task, orm.TaskExecution)
    assert_type(task.id, UUID)
    assert_type(task.status, TaskStatus)
    assert_type(task.retry_at, datetime | None)
    assert_type(task.events, list[orm.ExecutionEvent])
    assert_type(task.outbox_entry, orm.OutboxEntry | None)
    assert_type(task.pipeline[0], orm.TaskExecution)
    assert_type(task.events[0].task_execution, orm.TaskExecution | None)
    assert_type(session.scalars(select(orm.OutboxEntry.available_at)).one(), datetime)
    assert_type(orm.orm_for("jobs").TaskExecution, type[orm.TaskExecution])
    task.priority = "high"  # type: ignore[assignment]
    print(task.state)  # type: ignore[attr-defined]
    query.where(orm.TaskExecution.argument("order_id") == "7")
    orm.TaskExecution.argument(7)  # type: ignore[arg-type]


def a_worker_is_made_by_the_outbox() -> None:
    worker = outbox.worker(queues=["mail"], concurrency=8, drain_timeout=25)
    assert_type(worker, Worker)
    assert_type(worker.run(), int)
    assert_type(worker.stop(5), bool)
    assert_type(worker.run(burst=True), int)
    assert_type(worker.handled, int)
    assert_type(worker.running, int)
    assert_type(worker.is_healthy, bool)
    assert_type(worker.health.listening, bool)
    outbox.worker(max_tasks=100, prefetch=0, heartbeat=timedelta(seconds=5), poll=0.5, listen_url=None)
    outbox.worker(prefetch="many")  # type: ignore[arg-type]
    worker.start(burst=True)
    worker.run(True)  # type: ignore[call-arg]
