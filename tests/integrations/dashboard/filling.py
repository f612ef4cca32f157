"""The tables of a small shop: tasks in every state, problems of every kind, and a day of statistics.

`fill` writes them through the store, with a clock that moves from yesterday to now. To see them in a browser, run
`python -m tests.integrations.dashboard.serving`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from sqlalchemy import Engine

from outboxq import Outbox
from outboxq.database.tables import task_schedules
from outboxq.model import Claim, EventType, NewTask, OnDeadLetter, Outcome
from outboxq.model.actions import Interface, Operator
from outboxq.model.batches import BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.relays import NewRelay
from outboxq.model.running import LogLine, Progress
from outboxq.model.schedules import CatchUp, NewSchedule, Overlap
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family
from outboxq.operating.verbs import PAUSE_QUEUE
from outboxq.store import NewStep, Store
from tests.integrations.dashboard.filled_statistics import fill_statistics
from tests.integrations.dashboard.shop import BOOK, CHARGE, EXPORT, KNOWN, LETTER, PARCEL, RECEIPT, id_at

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)

BIG = 9007199254740993
"""2**53 + 1, a number that JavaScript would change."""


@dataclass
class Clock:
    """A clock that stands still until it is set."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Filling:
    """The written rows: the tasks by their stories, and the workers."""

    outbox: Outbox
    now: datetime
    tasks: dict[str, UUID] = field(default_factory=dict)
    """The id of one task for each story, such as `retried` or `behind_held_key`."""
    workers: dict[str, UUID] = field(default_factory=dict)
    """The workers' ids. `old` and `new` are live and have different versions; `silent` was last seen a minute ago."""
    batches: dict[str, UUID] = field(default_factory=dict)
    """The id of one batch for each `OnFailed` policy."""
    running: list[Claim] = field(default_factory=list)
    """The claims of the two live workers."""

    def beat(self) -> None:
        """Record the live workers as seen, and extend their leases."""
        store = self.outbox.store
        for name in ("old", "new"):
            store.workers.seen(self.workers[name], unknown_tasks=[("default", "shop.no_longer")])
            mine = [claim for claim in self.running if claim.worker_id == self.workers[name]]
            store.heartbeat(mine, progress={claim.id: EXPORTED for claim in mine if claim.task_name == EXPORT})


EXPORTED = Progress(fraction=0.41, note="12 300 of 30 000 orders")


def lines_of(at: datetime, *texts: str) -> list[dict[str, str]]:
    """A handler log as an event stores it, with one line per second. A text may begin with its level."""
    found = []
    for second, text in enumerate(texts):
        level, _, words = text.partition(": ") if text.startswith(("WARNING: ", "ERROR: ")) else ("INFO", "", text)
        line = LogLine(at=at + second * SECOND, level=level, logger="shop.mail", text=words)
        found.append(line.as_data())
    return found


def traceback_of(exception: str, message: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/srv/shop/outboxq/worker/executor.py", line 96, in call\n'
        "    result = task.function(*arguments.args, **arguments.kwargs)\n"
        '  File "/srv/shop/shop/tasks.py", line 41, in send_receipt\n'
        "    smtp.send_message(message, from_addr=settings.FROM_ADDRESS, to_addrs=[order.customer.email])\n"
        f"{exception}: {message}\n"
    )


class Writer:
    """Writes the rows of each story at the times that the story needs."""

    def __init__(self, engine: Engine, now: datetime) -> None:
        self.now = now
        self.clock = Clock(now)
        self.store = Store(engine, clock=self.clock)
        self.filling = Filling(outbox=Outbox(engine), now=now)

    def at(self, before: timedelta) -> None:
        """Set the clock to this long before now."""
        self.clock.now = self.now - before

    def name(self, story: str, task_id: UUID) -> UUID:
        self.filling.tasks[story] = task_id
        return task_id

    def worker(self, name: str, *, host: str, pid: int, version: str, **said: Any) -> None:
        """Register a worker and describe its process."""
        found = self.filling.workers[name] = uuid4()
        self.store.workers.register(found, label=f"{host}:{pid}", **{"concurrency": 8, "task_names": KNOWN, **said})
        self.store.workers.describe(found, host=host, pid=pid, version=version, release="0.1.0", busy=2)

    def enqueue(self, task_name: str, number: int = 1, *, args: Any = None, **fields: Any) -> list[UUID]:
        """Enqueue this many tasks at the clock's time. `args` may be a function of the task's number."""
        tasks = []
        for one in range(number):
            given = args(one) if callable(args) else args or {"order_id": 7000 + one}
            tasks.append(NewTask(id=id_at(self.clock.now), task_name=task_name, args=json.dumps(given), **fields))
        return [handle.id for handle in self.store.enqueue_many(tasks)]

    def claim(self, worker: str, queue: str, number: int = 1) -> list[Claim]:
        claims = self.store.claim_ready_task(number, worker_id=self.filling.workers[worker], queues=[queue])
        assert len(claims) == number, (queue, number, len(claims))
        return claims

    def end(self, claims: Sequence[Claim], kind: EventType = EventType.COMPLETED, **fields: Any) -> None:
        assert not self.store.finish([Outcome(claim=claim, event_type=kind, **fields) for claim in claims])

    def fail(
        self, claim: Claim, exception: str, message: str, kind: EventType = EventType.FAILED, **fields: Any
    ) -> None:
        error = f"{exception.rpartition('.')[2]}: {message}"
        data: dict[str, Any] = {"error": error, "exception": exception, "traceback": traceback_of(exception, message)}
        data["log"] = lines_of(self.clock.now, f"begins with {claim.task_name}", "WARNING: the answer is slow", error)
        data |= {"log_omitted": 1234, "progress": Progress(fraction=0.5, note="1 of 2").as_data()}
        self.end([claim], kind, error=error, data=data, **fields)


def fill(engine: Engine, *, now: datetime | None = None) -> Filling:
    """Fill the empty tables behind an engine. This takes about a second on one core."""
    writer = Writer(engine, now or datetime.now(UTC))
    _workers(writer)
    _schedules(writer)
    _relays(writer)
    _completed(writer)
    _ended_otherwise(writer)
    _dead_letters(writer)
    _running(writer)
    _keys(writer)
    _limits(writer)
    _waiting(writer)
    _batches(writer)
    fill_statistics(engine, writer.now)
    writer.at(timedelta(0))
    return writer.filling


def _batches(writer: Writer) -> None:
    """Create a batch whose task is delayed, and a batch without tasks, which has completed."""
    writer.at(5 * MINUTE)
    for name, on_failed, tasks in (("imports of May", OnFailed.WAIT, 1), ("imports of April", OnFailed.CONTINUE, 0)):
        batch_id = new_batch_id()
        booked = NewTask(id=BatchLink(batch_id=batch_id, number=1).task_id, task_name=BOOK, args="{}")
        batch = NewBatch(id=batch_id, name=name, on_failed=on_failed, then=(booked,) if tasks else ())
        writer.store.batches.create(batch)
        writer.filling.batches[on_failed.value] = batch.id
        writer.enqueue(LETTER, tasks, queue="default", delay=2 * HOUR, pipeline_execution_id=batch.id)
        writer.store.batches.close(batch.id)


def _workers(writer: Writer) -> None:
    queues = ["default", "exports", "webhooks", "ledger", "newsletter"]
    writer.at(26 * HOUR)
    writer.worker("silent", host="web-3", pid=981, version="2.3.0", queues=queues)
    writer.worker("old", host="web-1", pid=4242, version="2.3.0", queues=[*queues, "reports", "sweeps"])
    writer.at(2 * HOUR)
    writer.worker("new", host="web-2", pid=77, version="2.4.0", queues=queues)
    writer.at(75 * SECOND)
    writer.store.workers.seen(writer.filling.workers["silent"])
    writer.at(timedelta(0))
    topical = {"queues": ["events"], "topics": ["invoice.*"], "concurrency": 2}
    writer.worker("topical", host="web-2", pid=78, version="2.4.0", **topical)
    for name in ("old", "new"):
        writer.store.workers.seen(writer.filling.workers[name], unknown_tasks=[("default", "shop.no_longer")])


def _relays(writer: Writer) -> None:
    """Create a relay with a sender and a short backlog, and a paused relay."""
    writer.at(25 * HOUR)
    relays, store = writer.store.relays, writer.store
    for name, topics, shards in (("bills", ["bill.*"], 2), ("search", ["stock.*", "price.*"], 1)):
        relays.declare([NewRelay(name=name, topics=topics, shards=shards)])
        task = f"relay.{name}"
        store.subscriptions.replace(
            [Subscription(topic=one, task_name=task, queue=task, parameter=None) for one in topics]
        )
    relays.pause("search", reason="the index is rebuilt until noon")
    writer.at(60 * SECOND)
    for number in range(3):
        store.emit(NewEvent(id=family(), topic="bill.sent", payload=f'{{"bill":{number}}}', partition_key=f"{number}"))
    writer.at(0 * SECOND)
    for _ in range(2):
        relays.take("bills", writer.filling.workers["new"])


def _schedules(writer: Writer) -> None:
    writer.at(25 * HOUR)
    schedules = writer.store.schedules
    schedules.put(
        NewSchedule(
            name="shop.close_day", task_name="shop.close_day", rule="30 2 * * 1-5", tz="Europe/Berlin", queue="reports"
        )
    )
    sweep = NewSchedule(
        name="shop.sweep",
        task_name="shop.sweep",
        rule="every 3600",
        queue="sweeps",
        overlap=Overlap.SKIP,
        catch_up=CatchUp.NONE,
        jitter=30 * SECOND,
        args='{"older_than_days": 30}',
    )
    schedules.put(sweep)
    schedules.put(NewSchedule(name="stock: recount", task_name="shop.recount", rule="*/15 * * * *", queue="reports"))
    schedules.pause("stock: recount", reason="the warehouse moves; Ann resumes it on Monday")
    for hours in range(24, -1, -1):
        writer.at(hours * HOUR)
        with patch("outboxq.store.producing.planting.uuid7", lambda: id_at(writer.clock.now)):
            schedules.plant()
        while claims := writer.store.claim_ready_task(10, worker_id=writer.filling.workers["old"], queues=["sweeps"]):
            if hours == 7:
                writer.fail(claims[0], "builtins.TimeoutError", "the sweep took longer than 60 s")
            else:
                writer.end(claims, result='"12 rows"')
    overdue = NewSchedule(name="shop.rates", task_name="shop.fetch_rates", rule="every 600", queue="reports")
    writer.at(3 * HOUR)
    schedules.put(overdue)
    behind = task_schedules.update().where(task_schedules.c.name == "shop.rates")
    with writer.store.bound_engine.begin() as connection:  # no worker has planted for twenty minutes
        connection.execute(behind.values(planted_until=writer.now - 20 * MINUTE))


def _completed(writer: Writer) -> None:
    for minutes in range(240, 0, -12):
        writer.at(minutes * MINUTE)
        ids = writer.enqueue(RECEIPT, 2) + writer.enqueue(PARCEL, 2, args={"order_id": BIG, "gift": True})
        writer.at(minutes * MINUTE - SECOND)
        claims = writer.claim("new", "default", len(ids))
        writer.at(minutes * MINUTE - 3 * SECOND)
        writer.end(claims, result=json.dumps({"message_id": f"<{minutes}@mail.example>", "bytes": BIG}))
    writer.name("completed", ids[0])
    writer.at(50 * MINUTE)
    secrets = {"order_id": 4711, "password": "hunter2", "card": {"api_key": "sk-live-1", "last_four": "4242"}}
    (retried,) = writer.enqueue(
        RECEIPT, args=secrets, headers='{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
    )
    writer.name("retried", retried)
    for attempt, minutes in enumerate((49, 40, 20)):
        writer.at(minutes * MINUTE)
        (claim,) = writer.claim("old", "default")
        writer.at(minutes * MINUTE - 2 * SECOND)
        if attempt == 1:
            made = '{"pdf": "s3://letters/4711.pdf", "token": "sk-live-2"}'
            writer.store.steps.complete(claim, NewStep(name="render: letter", number=1, result=made, milliseconds=412))
            writer.store.steps.complete(claim, NewStep(name="wait for the post", number=2, delay=MINUTE))
        if attempt < 2:
            message = f"[Errno 111] Connection refused (mail.example, attempt {attempt + 1})"
            retry = {"kind": EventType.RETRY_SCHEDULED, "delay": 3 * MINUTE}
            writer.fail(claim, "builtins.ConnectionRefusedError", message, **retry)
        else:
            writer.end([claim], result='{"message_id": "<4711@mail.example>"}')
    writer.at(30 * MINUTE)
    writer.store.subscriptions.replace(
        [
            Subscription(topic="order.*", task_name=name, parameter="payload", queue="default")
            for name in (RECEIPT, PARCEL, BOOK)
        ]
    )
    event = NewEvent(id=UUID(int=id_at(writer.clock.now).int & ~0xFFFF), topic="order.paid", payload='{"id": 7}')
    emitted = writer.store.emit(event)
    writer.name("emitted", next(iter(emitted.handles.values())).id)
    writer.end(writer.claim("new", "default", 3))


def _ended_otherwise(writer: Writer) -> None:
    writer.at(90 * MINUTE)
    (cancelled,) = writer.enqueue(EXPORT, args={"format": "csv"})
    writer.store.cancel(cancelled, reason="ordered twice")
    writer.name("cancelled", cancelled)
    (expired,) = writer.enqueue(LETTER, expires_in=MINUTE)
    writer.name("expired", expired)
    (undone,) = writer.enqueue(CHARGE)
    writer.at(89 * MINUTE)
    assert [claim.id for claim in writer.claim("old", "default")] == [undone]
    writer.at(30 * MINUTE)
    (recovered,) = writer.store.recover()
    (claim,) = writer.claim("new", "default")
    assert claim.id == recovered.id
    writer.end([claim])
    writer.name("recovered", recovered.id)


def _dead_letters(writer: Writer) -> None:
    for number in range(24):
        writer.at((200 - 8 * number) * MINUTE)
        (task_id,) = writer.enqueue(CHARGE, args={"order_id": 8000 + number, "amount": "19.90"})
        (claim,) = writer.claim("old", "default")
        writer.fail(claim, "shop.errors.CardDeclined", f"card of customer {1000 + number} was declined: code 51")
    writer.name("dead_letter", task_id)
    for number in range(5):
        writer.at((55 - number) * MINUTE)
        writer.enqueue(RECEIPT, args={"order_id": 9000 + number})
        (claim,) = writer.claim("new", "default")
        address = f"customer{number}@example.com"
        writer.fail(claim, "smtplib.SMTPRecipientsRefused", f"{{'{address}': (550, b'5.1.1 User unknown')}}")
    writer.at(5 * HOUR)
    (abandoned,) = writer.enqueue(EXPORT, queue="exports", args={"format": "xlsx", "year": 2026})
    for _ in range(4):
        writer.claim("silent", "exports")
        writer.clock.now += 2 * MINUTE
        (taken_back,) = writer.store.recover()
    assert taken_back.id == abandoned
    writer.name("abandoned", abandoned)
    writer.at(3 * 24 * HOUR)
    (discarded,) = writer.enqueue(CHARGE)
    (claim,) = writer.claim("old", "default")
    writer.fail(claim, "builtins.KeyError", "'iban'")
    writer.at(2 * 24 * HOUR)
    writer.store.discard(discarded, reason="paid by hand")
    writer.name("discarded", discarded)


def _running(writer: Writer) -> None:
    running = writer.filling.running
    writer.at(4 * MINUTE)
    (task_id,) = writer.enqueue(EXPORT, queue="default", timeout=10 * MINUTE, args={"format": "pdf"})
    running += writer.claim("new", "default")
    writer.name("running", task_id)
    (task_id,) = writer.enqueue(EXPORT, queue="default", args={"format": "docx"})
    running += writer.claim("old", "default")
    writer.name("cancel_requested", task_id)
    writer.at(70 * SECOND)
    (task_id,) = writer.enqueue(PARCEL, lease=100 * SECOND)
    writer.claim("silent", "default")
    writer.name("worker_silent", task_id)
    writer.at(2 * MINUTE)
    (task_id,) = writer.enqueue(PARCEL)
    writer.claim("silent", "default")
    writer.name("lease_ended", task_id)


def _keys(writer: Writer) -> None:
    hold = {"queue": "ledger", "on_dead_letter": OnDeadLetter.HOLD}
    for key, number, minutes in (("account:7", 4, 45), ("account:12", 1, 15)):
        writer.at(minutes * MINUTE)
        writer.enqueue(BOOK, partition_key=key, **hold)
        (claim,) = writer.claim("new", "ledger")
        writer.fail(claim, "builtins.ValueError", f"the books of {key} do not balance: 12.50 ≠ 12.05")
        ids = writer.enqueue(BOOK, number, partition_key=key, **hold)
        if key == "account:7":
            writer.name("holds_key", claim.id)
            writer.name("behind_held_key", ids[0])
    writer.at(2 * MINUTE)
    writer.enqueue(BOOK, partition_key="account:9", **hold)
    writer.filling.running += writer.claim("new", "ledger")
    ids = writer.enqueue(BOOK, 2, partition_key="account:9", **hold)
    writer.name("behind_running_key", ids[0])


def _limits(writer: Writer) -> None:
    writer.at(20 * MINUTE)
    writer.enqueue(EXPORT, 7, queue="exports", args={"format": "csv"})
    writer.at(3 * MINUTE)
    writer.filling.running += writer.claim("new", "exports", 2)
    writer.store.queues.limit("exports", concurrency=2, create=True)
    waiting = [task for task in writer.store.tasks(queue="exports", limit=20) if task.status == "Ready"]
    writer.name("limited", waiting[0].id)
    writer.at(MINUTE)
    writer.store.queues.limit("webhooks", rate=(2, HOUR), create=True)
    (webhook, *_) = reversed(writer.enqueue("shop.call_webhook", 6, queue="webhooks"))
    writer.end(writer.claim("new", "webhooks", 2))
    writer.name("rate_limited", webhook)
    writer.at(100 * MINUTE)
    (paused, *_) = writer.enqueue(LETTER, 12, queue="newsletter", args={"edition": 42})
    ann = Operator(interface=Interface.DASHBOARD, name="ann")
    PAUSE_QUEUE.do(writer.store, "newsletter", operator=ann, reason="the provider limits us", create=True)
    writer.name("paused", paused)


def _waiting(writer: Writer) -> None:
    writer.at(8 * MINUTE)
    for number, delay in enumerate((6 * MINUTE, 20 * MINUTE)):
        (task_id,) = writer.enqueue(RECEIPT, args={"order_id": 9100 + number}, max_attempts=5)
        (claim,) = writer.claim("new", "default")
        retry = {"kind": EventType.RETRY_SCHEDULED, "delay": delay + 8 * MINUTE}
        writer.fail(claim, "builtins.ConnectionRefusedError", "[Errno 111] Connection refused (mail.example)", **retry)
    writer.name("retry_later", task_id)
    writer.at(5 * MINUTE)
    (delayed, *_) = writer.enqueue(LETTER, 2, queue="default", delay=2 * HOUR)
    writer.name("delayed", delayed)
    writer.at(3 * HOUR)
    # No live worker serves the queue "video".
    (no_worker, *_) = writer.enqueue("shop.encode_video", 3, queue="video")
    writer.name("no_worker", no_worker)
    writer.at(10 * MINUTE)
    (unwanted,) = writer.enqueue(BOOK, queue="events", topic="order.paid", args={"payload": {"id": 7}})
    writer.name("topic", unwanted)
    (unknown,) = writer.enqueue("shop.no_longer", queue="default")
    writer.name("unknown", unknown)
    writer.at(SECOND)
    (due, *_) = writer.enqueue(RECEIPT, 5, priority=10)
    writer.name("due", due)
    # A request to cancel a running task. Its worker sees the request at its next heartbeat.
    writer.at(10 * SECOND)
    writer.store.cancel(writer.filling.tasks["cancel_requested"], reason="Ann asked for it")
    writer.at(timedelta(0))
    for name in ("old", "new"):
        mine = [claim for claim in writer.filling.running if claim.worker_id == writer.filling.workers[name]]
        writer.store.heartbeat(mine, progress={claim.id: EXPORTED for claim in mine if claim.task_name == EXPORT})
