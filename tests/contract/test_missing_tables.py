"""If outboxq's tables are missing, every call says so in one sentence, and a caller's transaction remains usable."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from outboxq import Outbox, SchemaOutOfDate
from outboxq.database.engine import make_engine
from outboxq.model import Claim, EventType, NewTask, Outcome, TaskStatus
from outboxq.model.actions import Interface, NewAction, Operator
from outboxq.model.batches import BatchLink, NewBatch, new_batch_id
from outboxq.model.histograms import AttemptCounts
from outboxq.model.relays import NewRelay, ShardLease
from outboxq.model.schedules import NewSchedule
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family, uuid7
from outboxq.store import NewStep, QueueSample, Snapshot, Store, TailCursor, TaskMetric
from outboxq.store.messages.inbox import Arrival

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NONE = "has no outboxq tables"
CLAIM = Claim(
    id=uuid7(),
    pipeline_execution_id=uuid7(),
    task_name="tests.work",
    queue="default",
    priority=0,
    args="{}",
    headers=None,
    attempt=1,
    max_attempts=None,
    recovery_attempts=0,
    lease_token=2,
    worker_id=uuid4(),
    lease_seconds=60,
    lease_expires_at=NOW,
    timeout_seconds=None,
    created_at=NOW,
    first_started_at=NOW,
    started_at=NOW,
)
READS_NO_TABLE = {
    "bound_engine", "cannot_write_now", "check_database", "check_file", "check_schema", "compile_ends", "declared", "dialect",
    "emits_to_relays", "outage_timeout", "ensure_file", "ensure_primary", "ensure_schema", "is_locked_out", "join", "lock_holders",
    "may_pass", "now", "now_in", "on_retry", "queue_values", "run_one", "reserve_engine", "reserved", "run", "runs_alone", "scope", "transaction", "tries", "unit",
    "unusable", "upgrade_command", "values", "wake",
    "end_session", "held_snapshots", "sleeping_workers", "table_sizes", "tables_are_locked", "time_partitions", "why_locked",
    "actions.adding", "actions.adding_to", "batches.forbid_commit",
}  # fmt: skip
"""Methods and attributes that do not fail without tables, mostly internal ones.

`unit` is the user's own transaction, `time_partitions` has no partitions to create, and `table_sizes` has no tables to measure.
"""
TASK, WORKER, BATCH = uuid7(), uuid4(), NewBatch(id=new_batch_id())
SHARD = ShardLease(relay="orders", shard=0, token=1, worker_id=WORKER)
ACTION = NewAction(operator=Operator(interface=Interface.PROGRAM), action="work")
SNAPSHOT = Snapshot(head=1, open=frozenset())
NIGHTLY = NewSchedule(name="nightly", task_name="tests.work", rule="30 2 * * *")
WAITING: Any = SimpleNamespace(id=TASK, status=TaskStatus.READY, queue="mail")


def new(**fields: Any) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


METRIC = TaskMetric(id=uuid7(), queue="default", task_name="tests.work", counts=AttemptCounts())
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "actions.begin": ((ACTION,), {}),
    "actions.get": ((TASK,), {}),
    "actions.list": ((), {}),
    "actions.prune": ((NOW, lambda: False), {}),
    "actions.record": ((ACTION, lambda _: None), {}),
    "attempts": ((TASK,), {}),
    "inbox.accept": (("billing", "m"), {"source": "", "keep": timedelta(days=7)}),
    "inbox.prune": ((lambda: False,), {}),
    "inbox.receive": (
        ([Arrival(consumer="billing", source="", message_id="m", keep=timedelta(days=7), task=new())],),
        {},
    ),
    "standings": (([TASK],), {}),
    "batch_standings": (([BatchLink(batch_id=BATCH.id, number=1)],), {}),
    "first_of_batch": ((BATCH.id, TaskStatus.READY), {}),
    "begin": ((CLAIM,), {}),
    "cancel": ((TASK,), {}),
    "claim_ready_task": ((1,), {"worker_id": WORKER}),
    "complete": ((CLAIM,), {}),
    "dead_letters.discard_all": ((), {}),
    "dead_letters.count": ((), {}),
    "dead_letters.groups": ((), {}),
    "dead_letters.list": ((), {}),
    "dead_letters.oldest": ((), {}),
    "dead_letters.redrive_all": ((), {}),
    "discard": ((TASK,), {}),
    "due_again": ((NOW,), {}),
    "emit": ((NewEvent(id=family(), topic="order.paid"),), {}),
    "enqueue": ((new(),), {}),
    "enqueue_many": (([new(), new(idempotency_key="order-7")],), {}),
    "ensure_current": ((), {}),
    "expired_leases": ((), {}),
    "explain": ((TASK,), {}),
    "fail": ((CLAIM, "no"), {}),
    "find": (("01a2b3",), {}),
    "finish": (([Outcome(claim=CLAIM, event_type=EventType.COMPLETED)],), {}),
    "finish_unlocked": (([Outcome(claim=CLAIM, event_type=EventType.COMPLETED)],), {}),
    "get": ((TASK,), {}),
    "get_ready_for_retry": ((), {}),
    "heartbeat": (([CLAIM],), {}),
    "history": ((TASK,), {}),
    "interruptions": ((CLAIM,), {}),
    "log.state_at": ((TASK, NOW), {}),
    "log.tail": ((), {}),
    "log.tail_last": ((10,), {}),
    "log.tail_since": ((NOW,), {}),
    "log.tail_from_now": ((), {}),
    "look_ahead": ((), {}),
    "make_known_due": ((["tests.work"],), {}),
    "maintenance_jobs.done": (("sample",), {"again_in": timedelta(minutes=1)}),
    "maintenance_jobs.make": (("sample",), {}),
    "maintenance_jobs.take": (("sample",), {"for_at_most": timedelta(minutes=1)}),
    "metrics.record": (([METRIC],), {"worker_id": WORKER}),
    "metrics.series": ((), {"since": NOW, "until": NOW + timedelta(hours=1), "step": 60}),
    "metrics.by_task": (("mail",), {}),
    "metrics.of_worker": ((WORKER,), {}),
    "metrics.sum_up": ((), {}),
    "next_available_at": ((), {}),
    "outlasting_leases": ((), {}),
    "outlooks": (([WAITING],), {}),
    "progress": (([TASK],), {}),
    "prune": ((timedelta(0),), {}),
    "queues.forget": (("mail",), {}),
    "queues.held_keys": (("mail",), {}),
    "queues.is_known": (("mail",), {}),
    "queues.list": ((), {}),
    "queues.limit": (("mail",), {"concurrency": 1}),
    "queues.order": (("mail",), {"fair": True}),
    "queues.pause": (("mail",), {}),
    "queues.resume": (("mail",), {}),
    "queues.settings": ((), {}),
    "queues.unused": ((["mail"],), {}),
    "count_later": ((), {}),
    "later_parts": ((), {"snapshot": SNAPSHOT}),
    "run_all_now": ((), {}),
    "recover_lost": ((TASK,), {}),
    "recover_all_lost": ((WORKER,), {}),
    "lost_tasks": ((WORKER,), {}),
    "ensure_lost": ((WORKER,), {}),
    "batches.named": (([TASK],), {}),
    "schedules.runs": ((["nightly"],), {}),
    "schedules.edit": (("nightly",), {"rule": "@daily"}),
    "workers.silence": ((WORKER,), {}),
    "recent_history": ((TASK, 10), {}),
    "restarted_at": ((TASK,), {}),
    "recover": ((), {}),
    "redrive": ((TASK,), {}),
    "release": ((CLAIM,), {}),
    "reschedule": ((TASK, NOW), {}),
    "run_now": ((TASK,), {}),
    "samples.by_queue": ((), {"since": NOW, "until": NOW + timedelta(hours=1), "step": 60}),
    "samples.count": ((), {}),
    "samples.latest": ((), {}),
    "samples.look": ((), {}),
    "samples.record": (([QueueSample(queue="default")],), {}),
    "samples.series": ((), {"since": NOW, "until": NOW + timedelta(hours=1), "step": 60}),
    "samples.thin_out": ((), {}),
    "schedule_retry": ((TASK, NOW, 1), {}),
    "schedules.backfill": (("nightly", NOW - timedelta(days=1), NOW), {}),
    "schedules.declare": (([NIGHTLY],), {}),
    "schedules.get": (("nightly",), {}),
    "schedules.has_ticks_to_plant": ((), {}),
    "schedules.list": ((), {}),
    "schedules.pause": (("nightly",), {}),
    "schedules.plant": ((), {}),
    "schedules.put": ((NIGHTLY,), {}),
    "schedules.remove": (("nightly",), {}),
    "schedules.resume": (("nightly",), {}),
    "schedules.ticks": (("nightly",), {}),
    "schedules.trigger": (("nightly",), {}),
    "schedules.upcoming": (([SimpleNamespace(name="nightly", paused_at=None)],), {}),
    "set_priority": ((TASK, 7), {}),
    "stats": ((), {}),
    "subscriptions.list": ((), {}),
    "steps.after": ((TASK, "charge"), {}),
    "steps.complete": ((CLAIM, NewStep(name="charge", number=1)), {}),
    "steps.is_written": ((CLAIM, "charge"), {}),
    "steps.list": ((TASK,), {}),
    "steps.of_claim": ((CLAIM,), {}),
    "steps.rewind": ((TASK, "charge"), {}),
    "subscriptions.remove": (("books",), {}),
    "subscriptions.replace": (
        ([Subscription(topic="order.paid", task_name="books", parameter="order", queue="mail")],),
        {},
    ),
    "batches.cancel": ((BATCH.id,), {}),
    "batches.continue_cancelling": ((), {}),
    "batches.close": ((BATCH.id,), {}),
    "batches.create": ((BATCH,), {}),
    "batches.get": ((BATCH.id,), {}),
    "batches.list": ((), {}),
    "batches.members": ((BATCH.id,), {}),
    "batches.not_completed": ((BATCH.id,), {}),
    "batches.completed": (([TASK],), {}),
    "batches.prune": ((NOW, lambda: False), {}),
    "batches.statuses": ((BATCH.id,), {}),
    "cancel_all": ((), {}),
    "change_mark": ((), {}),
    "health": ((), {}),
    "deletes_old_tasks": ((), {}),
    "stuck": ((), {}),
    "overview": ((), {}),
    "count_tasks": ((), {}),
    "system": ((), {}),
    "state_counts": ((), {}),
    "parts": ((), {"snapshot": SNAPSHOT}),
    "dead_letters.blamed_versions": ((), {}),
    "dead_letters.parts": ((), {"snapshot": SNAPSHOT}),
    "task_detail": ((TASK,), {}),
    "relays.declare": (([NewRelay(name="orders", topics=["order.*"])],), {}),
    "relays.give_up": ((WORKER, [SHARD]), {}),
    "relays.list": ((), {}),
    "relays.look": ((SHARD, TailCursor()), {}),
    "relays.pause": (("orders",), {}),
    "relays.remove": (("orders",), {}),
    "relays.renew": ((WORKER, [SHARD]), {}),
    "relays.resume": (("orders",), {}),
    "relays.settle": ((SHARD,), {"confirmed": [1]}),
    "relays.show": (("orders",), {}),
    "relays.sleep": (("orders", WORKER, timedelta(seconds=1)), {}),
    "relays.take": (("orders", WORKER), {}),
    "relays.wake": (("orders", WORKER), {}),
    "slowest": ((), {}),
    "task_page": ((), {}),
    "tasks": ((), {}),
    "trends": ((), {"since": NOW, "until": NOW + timedelta(hours=1), "step": 60}),
    "unknown_runs": (([CLAIM],), {}),
    "verify": ((), {}),
    "worker_orders.answer": ((WORKER, "text"), {}),
    "worker_orders.ask_for_stacks": ((WORKER,), {}),
    "worker_orders.find": (("host:1",), {}),
    "worker_orders.give": ((WORKER, None), {}),
    "worker_orders.stacks": ((WORKER,), {}),
    "workers.forget": ((), {}),
    "workers.get": ((WORKER,), {}),
    "workers.describe": ((WORKER,), {"pid": 1}),
    "workers.list": ((), {}),
    "workers.presence": ((), {}),
    "workers.register": ((WORKER,), {"label": "me", "concurrency": 1, "task_names": []}),
    "workers.seen": ((WORKER,), {}),
    "workers.recovered": ((WORKER,), {}),
    "workers.unregister": ((WORKER,), {}),
}
"""Every method of the store that reads or writes outboxq's tables, with arguments for it."""


@pytest.fixture(scope="module")
def bare_postgresql(first_server) -> Iterator[str]:
    url = first_server.cluster.create_database()
    yield url
    first_server.cluster.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path) -> Iterator[Engine]:
    """A database without tables."""
    url = f"sqlite:///{tmp_path}/bare.db" if request.param == "sqlite" else request.getfixturevalue("bare_postgresql")
    engine = make_engine(url)
    engine.connect().close()  # creates the file
    yield engine
    engine.dispose()


def public(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]


def says_so(error: BaseException) -> None:
    assert isinstance(error, SchemaOutOfDate), error
    assert NONE in str(error)
    assert "task_outbox" not in "".join(traceback.format_exception(error)), "the traceback must not show the statement"


def test_every_method_of_the_store_is_tested():
    there = set(public(Store)) - READS_NO_TABLE
    nouns = {
        name: noun.func for name in there if isinstance(noun := inspect.getattr_static(Store, name), cached_property)
    }
    verbs = {f"{name}.{verb}" for name, noun in nouns.items() for verb in public(noun)}
    assert (there - nouns.keys() | verbs) - READS_NO_TABLE == CALLS.keys()


def test_every_call_in_a_separate_transaction_reports_missing_tables(engine):
    wrong = {}
    for name, (args, options) in CALLS.items():
        own = {"using": None} if name == "inbox.accept" else {}  # `using` is required
        try:
            attrgetter(name)(Store(engine))(*args, **options, **own)
        except Exception as error:  # noqa: BLE001 - shown below
            try:
                says_so(error)
            except AssertionError:
                wrong[name] = error
        else:
            wrong[name] = "nothing was raised"
    assert wrong == {}


def test_every_call_of_the_outbox_reports_missing_tables(engine):
    outbox = Outbox(engine)

    @outbox.task(name="shop.hello", subscribe="order.paid")
    def hello(n: object) -> None: ...

    for call in (
        lambda: hello.using(outbox).enqueue(7),
        lambda: hello.using(outbox, idempotency_key="7").enqueue(7),
        lambda: hello.using(outbox).enqueue_many([(7,), (8,)]),
        lambda: outbox.emit("order.paid", {}, using=outbox),
        lambda: outbox.result(TASK, timeout=0),
        lambda: outbox.result(TASK, timeout=60),
        outbox.sync_subscriptions,
        outbox.worker().run,
    ):
        with pytest.raises(SchemaOutOfDate) as raised:
            call()
        says_so(raised.value)


def test_an_enqueue_in_a_session_reports_missing_tables_and_keeps_it_usable(engine):
    outbox = Outbox(engine)

    @outbox.task(name="shop.hello")
    def hello(n: int) -> None: ...

    host = create_engine(engine.url)
    with Session(host) as session:
        session.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        session.execute(text("INSERT INTO orders (id) VALUES (1)"))
        for _ in range(2):
            with pytest.raises(SchemaOutOfDate) as raised:
                hello.using(session).enqueue(7)
            says_so(raised.value)
            assert raised.value.__notes__ == [
                "outboxq wrote nothing, and your transaction is still open: commit it or roll it back"
            ]
        assert session.execute(text("SELECT id FROM orders")).scalars().all() == [1]
        session.rollback()
    host.dispose()
