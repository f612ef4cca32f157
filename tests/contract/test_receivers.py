"""Receivers create exactly one task for each message, even if the broker or the database fails."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from outboxq import ConfigurationError, InvalidArgument, InvalidCall, Outbox, TaskContext, TaskStatus
from outboxq.cli import main
from outboxq.errors import SourceUnavailable
from outboxq.model import NewTask
from outboxq.model.transports import Message
from outboxq.model.uuid7 import uuid7
from outboxq.model.workers import ReceiverState, as_stored, read_states, sources_of
from outboxq.store.messages.inbox import KEPT, Arrival, InboxMessages
from outboxq.task.receivers import UNREADABLE, Reader
from outboxq.web import application
from outboxq.worker.prometheus import DatabaseCollector
from outboxq.worker.receiver import Receiver
from tests.conftest import Database
from tests.integrations.dashboard.pages import Local
from tests.waiting import until


@dataclass
class Queue:
    """A broker with one queue in memory. It redelivers unacknowledged messages to the next connection."""

    waiting: list[Message] = field(default_factory=list)
    acknowledged: list[Message] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """The methods that fail next, each of them once."""
    connections: int = 0
    is_away: Callable[[], bool] = lambda: False
    on_acknowledge: Any = None

    def __str__(self) -> str:
        return "the queue 'shop'"

    def put(self, data: object, **fields: Any) -> None:
        event = {"specversion": "1.0", "id": "e1", "source": "erp", "type": "billing.paid", "data": data, **fields}
        self.waiting.append(Message(body=json.dumps(event).encode()))

    def connect(self) -> Connection:
        self.fail("connect")
        if self.is_away():
            raise OSError("the broker is away")
        self.connections += 1
        return Connection(self, list(self.waiting))

    def fail(self, what: str) -> None:
        if self.faults[:1] == [what]:
            self.faults.pop(0)
            raise OSError(f"{what} failed")


@dataclass
class Connection:
    queue: Queue
    left: list[Message]

    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        self.queue.fail("receive")
        taken, self.left = self.left[:limit], self.left[limit:]
        if not taken:
            time.sleep(0.01)  # a broker would wait for the deadline
        return taken

    def acknowledge(self, messages: Sequence[Message]) -> None:
        if self.queue.on_acknowledge is not None:
            self.queue.on_acknowledge()
        self.queue.fail("acknowledge")
        for one in messages:
            self.queue.waiting.remove(one)
            self.queue.acknowledged.append(one)

    def close(self) -> None: ...


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def run(outbox: Outbox) -> None:
    outbox.worker(concurrency=1, notifications=False).run(burst=True)


def receiver(outbox: Outbox, queue: Queue) -> Receiver:
    ((source, receivers),) = outbox.tasks.receivers
    return Receiver(source, Reader(source, receivers), outbox.store, threading.Event())


def test_a_burst_that_cannot_start_leaves_no_live_worker_and_may_be_repeated(outbox: Outbox, queue: Queue) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    queue.put(1)
    queue.faults.append("connect")
    worker = outbox.worker(concurrency=1, notifications=False)
    with pytest.raises(SourceUnavailable, match="connect failed"):
        worker.run(burst=True)
    assert outbox.store.workers.list() == []
    listed: list[int] = []
    queue.on_acknowledge = lambda: listed.append(len(outbox.store.workers.list()))
    assert worker.run(burst=True) == 0
    assert listed == [1]
    assert [task.status for task in outbox.store.tasks()] == [TaskStatus.COMPLETED]
    assert outbox.store.workers.list() == []


def test_a_message_becomes_a_task_with_its_payload_and_its_attributes(outbox: Outbox, queue: Queue) -> None:
    seen: list[Any] = []

    @outbox.receive("billing.*", source=queue, name="book", queue="books", priority=5)
    def book(ctx: TaskContext, payload: dict[str, Any]) -> None:
        seen.append((payload, ctx.topic, ctx.partition_key, dict(ctx.headers)))

    queue.put({"total": 1.10}, partitionkey="ada", traceparent="00-1", time="2026-11-27T02:00:00Z", tenant="eu")
    run(outbox)

    (task,) = outbox.store.tasks(task="book")
    assert (task.status, task.queue, task.priority) == (TaskStatus.COMPLETED, "books", 5)
    headers = {"ce_id": "e1", "ce_source": "erp", "ce_type": "billing.paid", "ce_specversion": "1.0"}
    headers |= {"traceparent": "00-1", "ce_time": "2026-11-27T02:00:00Z", "ce_tenant": "eu"}
    assert seen == [({"total": 1.10}, "billing.paid", "ada", headers)]
    assert len(queue.acknowledged) == 1


def test_the_payload_is_stored_as_it_arrived(outbox: Outbox, database: Database, queue: Queue) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    text = (
        '{"specversion": "1.0", "data" : { "a": 1.10,"b":12345678901234567890.0 } ,"id":"e", "source":"s", "type":"t"}'
    )
    queue.waiting.append(Message(body=text.encode()))
    receiver(outbox, queue).run_once()
    assert database.rows("SELECT args FROM task_executions") == [
        ('{"payload":{ "a": 1.10,"b":12345678901234567890.0 }}',)
    ]


def test_a_message_that_arrives_again_is_dropped_and_acknowledged(outbox: Outbox, queue: Queue) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    for _ in range(3):
        queue.put(1)
    queue.put(1, id="e2")
    queue.put(1, source="crm")
    run(outbox)
    queue.put(1)
    run(outbox)

    assert len(outbox.store.tasks(task="book")) == 3
    assert (len(queue.acknowledged), queue.waiting) == (6, [])


def test_messages_with_one_key_become_tasks_in_the_same_order(outbox: Outbox, queue: Queue) -> None:
    seen: list[int] = []

    @outbox.receive("*", source=queue, name="book")
    def book(payload: int) -> None:
        seen.append(payload)

    for number in range(20):
        queue.put(number, id=f"e{(number * 7) % 20}", partitionkey="ada")
    run(outbox)
    assert seen == list(range(20))


def test_a_message_twice_in_one_batch_keeps_its_first_position(
    outbox: Outbox, database: Database, queue: Queue
) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    for number in (1, 2, 1, 3, 2):
        queue.put(number, id=f"e{number}", partitionkey="ada")
    receiver(outbox, queue).run_once()
    found = database.rows("SELECT args FROM task_executions ORDER BY position")
    assert [json.loads(args)["payload"] for (args,) in found] == [1, 2, 3]


def test_a_batch_of_messages_is_accepted_in_few_statements(outbox: Outbox, database: Database, queue: Queue) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    seen: list[str] = []
    event.listen(outbox.store.bound_engine, "before_cursor_execute", lambda _c, _k, sql, *_: seen.append(sql))
    queue.put(0, id="first")
    receiver(outbox, queue).run_once()  # reads the schema
    most = 3 if database.name == "postgresql" else 7
    for arrival in range(2):
        for number in range(200):
            queue.put(number, id=f"e{number}")
        receives = receiver(outbox, queue)
        seen.clear()
        receives.run_once()
        assert 1 <= len(seen) <= most, (arrival, seen)
        assert len(outbox.store.tasks(task="book", limit=500)) == 201


@pytest.mark.parametrize("inside", [False, True])
def test_a_batch_of_new_and_known_messages_keeps_its_order(outbox: Outbox, database: Database, inside: bool) -> None:
    def arrivals(*numbers: int) -> list[Arrival]:
        tasks = [NewTask(id=uuid7(), task_name="book", args=f'{{"payload":{number}}}') for number in numbers]
        names = [{"consumer": "book", "source": "erp", "message_id": f"{number}"} for number in numbers]
        return [Arrival(**one, keep=KEPT, task=task) for one, task in zip(names, tasks, strict=True)]

    def receive(*numbers: int) -> int:
        if not inside:
            return outbox.store.inbox.receive(arrivals(*numbers))
        with database.host_engine().begin() as connection:
            return outbox.store.inbox.receive(arrivals(*numbers), using=connection)

    assert [receive(5, 2), receive(9, 2, 7, 2, 1, 5), receive(9, 5), receive()] == [2, 3, 0, 0]
    found = database.rows("SELECT args FROM task_executions ORDER BY position")
    assert [json.loads(args)["payload"] for (args,) in found] == [5, 2, 9, 7, 1]
    assert len(database.rows("SELECT * FROM inbox_messages")) == 5


def test_messages_are_accepted_in_the_order_of_their_ids(outbox: Outbox, database: Database, queue: Queue) -> None:
    """Otherwise, two receivers with the same messages in different orders would deadlock."""

    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    for number in (3, 1, 2):
        queue.put(number, id=f"e{number}")
    receiver(outbox, queue).run_once()
    place = "ctid" if database.name == "postgresql" else "rowid"
    found = database.rows(f"SELECT message_id FROM inbox_messages ORDER BY {place}")
    assert found == [("e1",), ("e2",), ("e3",)]


def test_each_receiver_of_a_source_gets_a_separate_task(outbox: Outbox, queue: Queue) -> None:
    for name, topics in {"book": "billing.*", "mail": ["billing.paid", "order.*"], "ship": "order.*"}.items():

        @outbox.receive(topics, source=queue, name=name)
        def take(payload: object) -> None: ...

    queue.put(1)
    queue.put(2)  # the same message again
    run(outbox)

    assert sorted(task.task_name for task in outbox.store.tasks()) == ["book", "mail"]
    assert queue.connections == 1


UNREADABLES = {
    "no JSON": (Message(body=b"{]", id="m"), "not JSON"),
    "no text": (Message(body=b"\xff\x00", id="m", type="t"), "UTF-8"),
    "not strict": (Message(body=b"NaN", id="m", type="t"), "strict"),
    "too deep": (Message(body=b"[" * 60_000 + b"]" * 60_000, id="m", type="t"), "neste|recursion"),
    "no id": (Message(body=b"1", type="billing.paid"), "no id"),
    "no type": (Message(body=b"1", id="m"), "no type"),
    "a long id": (Message(body=b"1", id="m" * 201, type="billing.paid"), "the event's id"),
    "a long key": (Message(body=b"1", id="m", type="billing.paid", headers={"ce_partitionkey": "k" * 201}), "key"),
    "too large": (Message(body=json.dumps("x" * 300_000).encode(), id="m", type="billing.paid"), "262144"),
    "another topic": (Message(body=b"1", id="m", type="order.paid"), "no receiver .* 'order.paid'"),
}


@pytest.mark.parametrize("case", UNREADABLES)
def test_a_message_that_cannot_be_read_becomes_a_dead_letter(outbox: Outbox, queue: Queue, case: str) -> None:
    @outbox.receive("billing.*", source=queue, name="book", queue="books")
    def book(payload: object) -> None: ...

    message, reason = UNREADABLES[case]
    queue.waiting = [replace(message), replace(message), Message(body=b"7", id="good", type="billing.paid")]
    run(outbox)

    (letter,) = outbox.store.dead_letters.list()
    assert (letter.task_name, letter.queue) == (UNREADABLE, "books")
    assert re.search(reason, letter.last_error or ""), letter.last_error
    stored = json.loads(outbox.store.get(letter.id).args)["message"]["body"]
    assert stored == message.body.decode(errors="backslashreplace").replace("\0", "\\x00")
    assert len(queue.acknowledged) == 3
    assert [task.status for task in outbox.store.tasks(task="book")] == [TaskStatus.COMPLETED]


def test_unreadable_messages_with_different_ids_are_all_kept(outbox: Outbox, queue: Queue) -> None:
    """Their attributes are in headers, the broker has no ids for them, and their payloads are equal."""

    @outbox.receive("billing.*", source=queue, name="book")
    def book(payload: object) -> None: ...

    def message(number: int, source: str) -> Message:
        return Message(body=b"{}", headers={"ce_id": f"e{number}", "ce_source": source, "ce_type": "order.paid"})

    queue.waiting = [message(number, source) for number in range(2) for source in ("erp", "shop")]
    first = queue.waiting[0]
    queue.waiting.append(replace(first, headers={**first.headers, "x-delivery-count": "1"}))
    run(outbox)
    assert len(outbox.store.dead_letters.list()) == 4
    assert len(queue.acknowledged) == 5


def test_a_redriven_message_is_read_again(outbox: Outbox, database: Database, queue: Queue) -> None:
    @outbox.receive("billing.*", source=queue, name="book")
    def book(payload: object) -> None: ...

    queue.put(1, type="order.paid")
    run(outbox)
    (letter,) = outbox.store.dead_letters.list()

    later = Outbox(database.host)

    @later.receive("order.*", source=queue, name="ship")
    def ship(payload: object) -> None: ...

    later.store.redrive(letter.id)
    run(later)
    assert [task.status for task in later.store.tasks(task="ship")] == [TaskStatus.COMPLETED]
    assert later.store.dead_letters.list() == []


@pytest.mark.parametrize("fault", ["connect", "receive", "acknowledge"])
def test_a_receiver_reconnects_after_a_failure_of_the_broker(outbox: Outbox, queue: Queue, fault: str) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    queue.put(1)
    queue.faults = [fault]
    one = receiver(outbox, queue)
    with pytest.raises(SourceUnavailable, match=f"cannot receive from the queue 'shop': OSError: {fault} failed"):
        one.run_once()
    assert queue.waiting
    assert 0 < one.pause() <= 1

    one.run_once()
    assert one.pause() == 0
    assert queue.waiting == []
    assert len(outbox.store.tasks(task="book")) == 1


def test_the_waits_after_failures_grow_up_to_five_seconds(outbox: Outbox, queue: Queue) -> None:
    outbox.receive("*", source=queue, name="book")(lambda payload: None)
    one = receiver(outbox, queue)
    queue.faults = ["connect"] * 9
    waits = []
    for _ in range(9):
        with pytest.raises(SourceUnavailable):
            one.run_once()
        waits.append(max(one.pause() for _ in range(50)))
    assert [wait <= limit for wait, limit in zip(waits, [1, 2, 4, *[5] * 6], strict=True)] == [True] * 9
    assert waits[-1] > 2.5
    assert waits[0] > 0.5


def test_a_receiver_resumes_without_a_pause_even_if_no_message_is_waiting(outbox: Outbox, queue: Queue) -> None:
    outbox.receive("*", source=queue, name="book")(lambda payload: None)
    one = receiver(outbox, queue)
    queue.faults = ["connect"] * 5
    for _ in range(5):
        with pytest.raises(SourceUnavailable):
            one.run_once()
    one.run_once()
    assert one.pause() == 0


def test_a_failing_receiver_reports_the_time_and_the_error(outbox: Outbox, queue: Queue) -> None:
    outbox.receive("*", source=queue, name="book")(lambda payload: None)
    changes: list[ReceiverState] = []
    ((source, receivers),) = outbox.tasks.receivers
    one = Receiver(
        source, Reader(source, receivers), outbox.store, threading.Event(), lambda: changes.append(one.state)
    )
    assert (one.state.source, one.state.tasks, one.state.failing_since) == ("the queue 'shop'", ("book",), None)
    queue.faults = ["connect", "receive"]
    began = datetime.now(UTC)
    for _ in range(2):
        with pytest.raises(SourceUnavailable):
            one.run_once()
    since = one.state.failing_since
    assert since is not None
    assert began <= since <= datetime.now(UTC)
    assert one.state.last_error == "cannot receive from the queue 'shop': OSError: receive failed"
    one.run_once()
    assert (one.state.failing_since, one.state.last_error) == (None, None)
    assert [state.failing_since for state in changes] == [since, None], "each change is reported once"


def test_a_failing_receiver_is_shown_immediately_and_only_until_it_works_again(
    outbox: Outbox, database: Database, queue: Queue
) -> None:
    outbox.receive("*", source=queue, name="book")(lambda payload: None)
    gate = threading.Event()
    queue.is_away = gate.is_set
    gate.set()
    worker = outbox.worker(concurrency=1, notifications=False, label="web-1")

    def failing() -> list[ReceiverState]:
        [found] = database.store.workers.list()
        return [one for one in found.receivers if one.failing_since is not None]

    worker.start()
    try:
        [state] = until(failing)
        assert state.last_error == "cannot receive from the queue 'shop': OSError: the broker is away"
        shown = cli(database, "workers", "show", str(worker.id))
        assert "failing" in shown
        assert "the broker is away" in shown
        assert "1 receiver is failing" in cli(database, "workers", "list")
        assert "the broker is away" in cli(database, "status")
        found = json.loads(cli(database, "status", "--json"))
        assert [(one["source"], one["failing"], one["workers"]) for one in found["receivers"]] == [
            ("the queue 'shop'", 1, 1)
        ]
        assert cli(database, "check", "--no-workers", "--max-history", "none") == "all is well\n", (
            "the receiver has not been failing for 5 minutes"
        )
        said = cli(database, "check", "--max-receiver", "0s", code=1)
        assert "receiver_failing: the receiver of the queue 'shop' has been failing for " in said
        assert "the broker is away" in said
        assert cli(database, "check", "--max-receiver", "none") == "all is well\n"
        metrics = {
            sample.name: (sample.labels, sample.value)
            for family in DatabaseCollector(database.store).collect()
            for sample in family.samples
            if "receiver" in sample.name
        }
        assert metrics == {"outboxq_receiver_failing": ({"source": "the queue 'shop'"}, 1.0)}
        page = Local(application(outbox)).get(f"/workers/{worker.id}").text
        assert "the broker is away" in page
        gate.clear()
        until(lambda: not failing())
    finally:
        worker.stop()


def cli(database: Database, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*words, "--url", database.url])
    assert result.exit_code == code, result.output
    return result.output


def test_the_receivers_of_several_workers_are_summarized_by_source() -> None:
    since = datetime(2030, 1, 1, tzinfo=UTC)
    later = since + timedelta(hours=1)
    states = [
        ReceiverState(source="b", tasks=("two",)),
        ReceiverState(source="a", tasks=("one",), failing_since=later, last_error="later"),
        ReceiverState(source="a", tasks=("one", "two"), failing_since=since, last_error="first"),
        ReceiverState(source="a", tasks=("one",)),
    ]
    a, b = sources_of(read_states(as_stored(states)))
    assert (a.source, a.tasks, a.workers, a.failing, a.failing_since) == ("a", ("one", "two"), 3, 2, since)
    assert (a.last_error, a.state, b.state, b.failing_since, b.last_error) == ("first", "failing", "active", None, None)
    assert as_stored([]) is None
    assert read_states(None) == ()


def test_nothing_is_acknowledged_if_the_database_fails(
    outbox: Outbox, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    queue.put(1)
    one = receiver(outbox, queue)
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> int:
            raise OperationalError("INSERT", {}, Exception("gone"))

        patch.setattr(InboxMessages, "receive", fail)
        with pytest.raises(OperationalError):
            one.run_once()
    assert queue.acknowledged == []
    one.run_once()
    assert queue.connections == 2
    assert len(queue.acknowledged) == len(outbox.store.tasks(task="book")) == 1


def test_a_message_and_its_task_are_stored_in_one_transaction(
    outbox: Outbox, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    queue.put(1)
    one = receiver(outbox, queue)
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("the process would die here")

        patch.setattr("outboxq.store.messages.inbox.enqueue_many", fail)
        with pytest.raises(RuntimeError):
            one.run_once()
    assert database.rows("SELECT * FROM inbox_messages") == []
    one.run_once()
    assert len(database.rows("SELECT * FROM inbox_messages")) == len(outbox.store.tasks(task="book")) == 1


def test_a_worker_receives_until_it_stops(outbox: Outbox, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None:
        done.set()

    queue.put(1)
    queue.faults = ["connect"]
    worker = outbox.worker(concurrency=1, notifications=False)
    with caplog.at_level(logging.ERROR):
        worker.start()
        assert done.wait(60)
        assert worker.is_healthy
        worker.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cannot receive from the queue 'shop'" in caplog.text
    assert "Traceback" not in caplog.text
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("outboxq-receiver")])


def test_nothing_is_stored_once_the_worker_is_stopping(outbox: Outbox, queue: Queue) -> None:
    @outbox.receive("*", source=queue, name="book")
    def book(payload: object) -> None: ...

    queue.put(1)
    stopping = threading.Event()
    stopping.set()
    ((source, receivers),) = outbox.tasks.receivers
    Receiver(source, Reader(source, receivers), outbox.store, stopping).run_once()
    assert outbox.store.tasks() == []
    assert queue.acknowledged == []


def test_an_invalid_receiver_is_refused_at_its_declaration(outbox: Outbox, queue: Queue) -> None:
    def none() -> None: ...

    def two(first: int, second: int) -> None: ...

    with pytest.raises(ConfigurationError, match="let the function take one argument"):
        outbox.receive("*", source=queue, name="none")(none)
    with pytest.raises(ConfigurationError, match="give the other parameters defaults: second"):
        outbox.receive("*", source=queue, name="two")(two)
    with pytest.raises(ConfigurationError, match="connect"):
        outbox.receive("*", source="amqp://")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs a topic"):
        outbox.receive([], source=queue, name="topicless")(lambda payload: None)
    with pytest.raises(InvalidCall, match="subscribe"):
        outbox.receive("*", source=queue, subscribe="order.*")
    with pytest.raises(InvalidArgument, match="keep"):
        outbox.receive("*", source=queue, keep=0)
    with pytest.raises(InvalidArgument, match="must come last"):
        outbox.receive("*.paid", source=queue, name="pattern")(lambda payload: None)
