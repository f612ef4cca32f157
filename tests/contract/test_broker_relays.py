"""Relays to message brokers: which events arrive, in which order and how often, and how a failure affects other events.

The first tests are named after complaints about other relays that must not apply to this one.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outboxq import ConfigurationError, InvalidArgument, Outbox, RelayNotFound, TaskStatus, Webhook
from outboxq.model.relays import NewRelay, OnRefused, ShardLease, slot_of
from outboxq.model.subscriptions import NewEvent
from outboxq.model.uuid7 import family
from outboxq.store.messages.relays import AT_ONCE, LEASE
from outboxq.store.tasks.event_log import TailCursor
from outboxq.worker.distributor.sqlite import FileWatch
from outboxq.worker.relays import Senders
from outboxq.worker.relays import sender as sender_module
from tests.conftest import Database
from tests.contract import helpers
from tests.contract.helpers import transaction
from tests.memory_broker import Broker, Cloneable, Steps, lost, refused
from tests.waiting import until

OVER = LEASE + timedelta(seconds=1)


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host, source="shop")


@pytest.fixture
def broker() -> Broker:
    return Broker()


@contextmanager
def emitting(outbox: Outbox, database: Database) -> Iterator[Session]:
    outbox.sync_subscriptions()
    with Session(database.host) as session, session.begin():
        yield session


def emit(outbox: Outbox, database: Database, *events: tuple[object, str | None], topic: str = "order.paid") -> None:
    with emitting(outbox, database) as session:
        for payload, key in events:
            outbox.emit(topic, payload, using=session, partition_key=key)


def waiting(database: Database) -> list[str]:
    return [str(payload) for (payload,) in database.rows("SELECT payload FROM relay_messages ORDER BY id")]


def sender(database: Database, outbox: Outbox, name: str = "orders") -> Steps:
    """Return a sender that has taken its first shard."""
    steps = Steps(database, outbox, name)
    steps.step()
    return steps


# The nine complaints


def test_order_is_kept_after_a_failure(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"), (2, "ada"), (3, "bob"), (4, "ada"))
    broker.answers["1"] = [lost, lost, lost]
    steps = sender(database, outbox)
    assert broker.payloads == ["3"], "bob does not wait for ada"
    for _ in range(4):
        database.clock.advance(timedelta(seconds=61))
        steps.step()
    assert broker.first_of("ada") == ["1", "2", "4"]
    assert waiting(database) == []


def test_one_unsendable_message_stops_only_its_key(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"), (2, "ada"), (3, "bob"), (4, None))
    broker.answers["1"] = [refused]
    steps = sender(database, outbox)
    steps.step(3)
    assert sorted(broker.payloads) == ["3", "4"]
    assert waiting(database) == ["2"]
    [letter] = database.store.dead_letters.list()
    assert (letter.queue, letter.partition_key, letter.exception) == (
        "relay.orders",
        "ada",
        "outboxq.errors.EventRefused",
    )


def test_an_event_that_makes_every_call_raise_stops_no_other_event(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    """The broker confirms every other event, so the event itself is the cause and becomes a dead letter."""
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, *((number, f"key {number}") for number in range(40)))
    broker.poison = "17"
    steps = sender(database, outbox)
    for _ in range(6):
        database.clock.advance(timedelta(seconds=61))
        steps.step()
    assert sorted(map(int, broker.payloads)) == [number for number in range(40) if number != 17]
    [letter] = database.store.dead_letters.list()
    assert "ValueError: cannot be encoded" in str(database.store.get(letter.id).last_error)
    assert waiting(database) == []


def test_delivery_is_not_serial(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(
        outbox,
        database,
        *((number, f"key {number % 100}") for number in range(300)),
        *((number, None) for number in range(300, 400)),
    )
    sender(database, outbox)
    assert [len(call) for call in broker.calls] == [200, 100, 100]
    assert waiting(database) == []


def test_duplicates_are_caused_only_by_faults_and_keep_their_id(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"), (2, "bob"))
    broker.answers["1"] = [broker.stored_but_unsure]
    steps = sender(database, outbox)
    database.clock.advance(timedelta(seconds=61))
    steps.step(3)
    first, other, again = broker.stored
    assert (first.data, other.data, again.data) == ("1", "2", "1")
    assert (first.id, first.time) == (again.id, again.time)


def test_a_dead_broker_is_not_called_in_a_tight_loop(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, *((number, f"key {number}") for number in range(10)))
    broker.is_away = True
    steps = sender(database, outbox)
    steps.step(20)
    assert len(broker.calls) == 1, "one call, then a pause"
    for _ in range(600):
        database.clock.advance(timedelta(seconds=1))
        steps.step()
    assert 2 * 10 <= len(broker.calls) <= 2 * 30, "in the end, a try each minute, with two single events"
    assert max(map(len, broker.calls[1:])) == 1
    [relay] = database.frozen.relays.list()
    assert relay.failing_since is not None
    assert relay.last_error == "ConnectionError: no broker"
    broker.is_away = False
    database.clock.advance(timedelta(seconds=61))
    steps.step(3)
    assert waiting(database) == []
    [relay] = database.frozen.relays.list()
    assert (relay.failing_since, relay.next_try_at) == (None, None)


def test_headers_are_not_dropped(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    given = {"sum": 12345678901234567890123, "rate": 1e3, "text": 'é}:"{', "none": None}
    with emitting(outbox, database) as session:
        paid = outbox.emit(
            "order.paid", given, using=session, partition_key="ada", headers={"traceparent": "00-1", "tenant": "eu"}
        )
    stored = waiting(database)
    sender(database, outbox)
    [event] = broker.stored
    assert (event.id, event.source, event.type) == (paid.pipeline_execution_id, "shop", "order.paid")
    assert (event.partition_key, dict(event.headers)) == ("ada", {"traceparent": "00-1", "tenant": "eu"})
    assert [event.data] == stored, "the payload is published as it was stored"
    assert json.loads(event.data) == given


def test_a_late_commit_is_neither_lost_nor_overtaken(database: Database, outbox: Outbox, broker: Broker) -> None:
    """SQLite has only one writer, so nothing can commit late."""
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    steps = sender(database, outbox)
    with transaction(database) as early:
        outbox.emit("order.paid", 1, using=early, partition_key="ada")
        if database.name == "postgresql":
            emit(outbox, database, (2, "ada"), (3, "bob"))
            steps.step(3)
            assert broker.payloads == [], "the first event may still be committed"
        early.commit()
    steps.step(3)
    assert broker.payloads == (["1", "3", "2"] if database.name == "postgresql" else ["1"])


def test_a_crash_between_publish_and_settle_loses_no_event(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"), (2, "ada"))

    def die() -> None:
        raise KeyboardInterrupt

    first = Steps(database, outbox)
    broker.before = die
    with pytest.raises(KeyboardInterrupt):
        first.step()
    broker.before = lambda: None
    second = Steps(database, outbox)
    second.step()
    assert broker.payloads == [], "the first sender's lease is valid"
    database.clock.advance(OVER)
    second.step()
    assert broker.payloads == ["1", "2"]


# Emitting


def test_an_event_is_published_only_if_its_transaction_commits(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay(["order.*", "order.p*"], to=broker, name="orders")
    with emitting(outbox, database) as session:
        outbox.emit("order.paid", 1, using=session)
        outbox.emit("invoice.sent", 2, using=session)
    with emitting(outbox, database) as session:
        outbox.emit("order.lost", 3, using=session)
        session.rollback()
    assert waiting(database) == ["1"]
    sender(database, outbox)
    assert broker.payloads == ["1"]
    assert database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'event_unrouted'") == [(1,)]


def test_tasks_and_several_relays_get_the_same_event(database: Database, outbox: Outbox) -> None:
    brokers = {"orders": Broker(), "all": Broker(), "bills": Broker()}
    for name, topics in {"orders": "order.*", "all": "*", "bills": "bill.*"}.items():
        outbox.relay(topics, to=brokers[name], name=name)

    @outbox.task(subscribe="order.*", name="tests.mail")
    def mail(payload: int) -> None: ...

    for _ in range(2):  # the first emit of a process discovers the relays
        with emitting(outbox, database) as session:
            emitted = outbox.emit("order.paid", 1, using=session)
        assert set(emitted.handles) == {"tests.mail"}
        assert emitted.relays == ("all", "orders")
    for name in brokers:
        sender(database, outbox, name)
    assert {name: broker.payloads for name, broker in brokers.items()} == {
        "orders": ["1", "1"],
        "all": ["1", "1"],
        "bills": [],
    }
    [emitted_id] = {one.id for one in brokers["orders"].stored} & {emitted.pipeline_execution_id}
    assert database.store.get(emitted.handles["tests.mail"].id).pipeline_execution_id == emitted_id


def test_a_second_emit_with_the_same_idempotency_key_sends_nothing(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    went_to = []
    for number, key in enumerate(("order 7", "order 7", "order 8", "order 8", None)):
        with emitting(outbox, database) as session:
            went_to.append(outbox.emit("order.paid", number, using=session, idempotency_key=key).relays)
    assert waiting(database) == ["0", "2", "4"]
    assert went_to == [("orders",), (), ("orders",), (), ("orders",)]
    assert database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'event_unrouted'") == [(0,)]


def test_an_event_with_a_key_is_sent_only_to_relays_that_have_not_had_the_key(
    database: Database, outbox: Outbox
) -> None:
    outbox.relay("order.*", to=Broker(), name="orders")
    keyed = {"idempotency_key": "order 7"}
    with emitting(outbox, database) as session:
        assert outbox.emit("order.paid", 1, using=session, **keyed).relays == ("orders",)
    outbox.relay("*", to=Broker(), name="all")
    outbox.relay(
        "*", to=Webhook(url="https://example.com", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), name="customer"
    )
    with emitting(outbox, database) as session:
        emitted = outbox.emit("order.paid", 2, using=session, **keyed)
    assert (emitted.relays, list(emitted.handles)) == (("all",), ["relay.customer"])
    assert database.rows("SELECT relay, payload FROM relay_messages ORDER BY id") == [("orders", "1"), ("all", "2")]


def test_an_emit_whose_commit_response_was_lost_names_its_relays(
    database: Database, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.relay(["order.*", "*"], to=Broker(), name="orders")
    outbox.relay("bill.*", to=Broker(), name="bills")
    outbox.sync_subscriptions()
    event = NewEvent(id=family(), topic="order.paid", payload="1")
    assert helpers.lossy(database, monkeypatch).emit(event).relays == ("orders",)
    assert waiting(database) == ["1"]


def test_a_program_without_relays_writes_no_message_and_runs_no_extra_statement(
    database: Database, outbox: Outbox
) -> None:
    with emitting(outbox, database) as session:
        outbox.emit("order.paid", 1, using=session)
    assert outbox.store.emits_to_relays is False
    assert waiting(database) == []


# Refused events


@pytest.mark.parametrize("discards", [False, True])
def test_a_held_key_continues_when_its_dead_letter_is_redriven_or_discarded(
    database: Database, outbox: Outbox, broker: Broker, discards: bool
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    with emitting(outbox, database) as session:
        outbox.emit("order.paid", {"n": 1}, using=session, partition_key="ada", headers={"tenant": "eu"})
        outbox.emit("order.paid", 2, using=session, partition_key="ada")
    [(emitted_at,)] = database.rows("SELECT created_at FROM relay_messages ORDER BY id LIMIT 1")
    broker.answers['{"n":1}'] = [refused]
    steps = sender(database, outbox)
    [letter] = database.store.dead_letters.list()
    steps.step(2)
    assert waiting(database) == ["2"]
    if discards:
        database.store.discard(letter.id)
        steps.step()
        assert broker.payloads == ["2"]
        return
    database.store.redrive(letter.id)
    steps.step(2)
    assert broker.payloads == [], "the redriven event comes first"
    outbox.worker(concurrency=1, notifications=False, relay=False).run(burst=True)
    assert database.store.get(letter.id).status is TaskStatus.COMPLETED
    steps.step(2)
    assert broker.payloads == ['{"n":1}', "2"]
    event = broker.stored[0]
    assert (dict(event.headers), event.partition_key, event.type) == ({"tenant": "eu"}, "ada", "order.paid")
    stored_at = emitted_at if database.name == "postgresql" else type(event.time).fromisoformat(str(emitted_at))
    assert event.time == stored_at, "the time of the emit does not change"


def test_on_refused_skip_lets_the_key_continue(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders", on_refused="skip")
    emit(outbox, database, (1, "ada"), (2, "ada"), (3, "ada"))
    broker.answers["1"], broker.answers["2"] = [refused], [refused]
    sender(database, outbox)
    assert broker.payloads == ["3"]
    assert len(database.store.dead_letters.list()) == 2
    assert waiting(database) == []


def test_a_redriven_event_that_is_refused_again_becomes_a_dead_letter_immediately(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"))
    broker.answers["1"] = [refused, refused]
    sender(database, outbox)
    [letter] = database.store.dead_letters.list()
    database.store.redrive(letter.id)
    outbox.worker(concurrency=1, notifications=False, relay=False).run(burst=True)
    task = database.store.get(letter.id)
    assert (task.status, task.attempt, task.last_error) == (TaskStatus.FAILED, 1, "EventRefused: too large")


# Leases


def test_a_shard_has_one_sender_and_another_takes_over_after_a_kill(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    first, second = Steps(database, outbox), Steps(database, outbox)
    first.step()
    second.step()
    assert (first.shards, second.shards) == ([0], [])
    database.clock.advance(OVER)  # the first sender has been killed
    second.step()
    assert second.shards == [0]
    emit(outbox, database, (1, None))
    second.step()
    first.step()
    assert (first.shards, broker.payloads) == ([], ["1"])


def test_a_second_sender_takes_over_while_the_first_one_publishes(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    """The first sender can publish an event again, but not settle it."""
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"), (2, "ada"))
    first, second = Steps(database, outbox), Steps(database, outbox)

    def freeze() -> None:
        broker.before = lambda: None
        database.clock.advance(OVER)
        second.step()
        emit(outbox, database, (3, "ada"))

    broker.before = freeze
    first.step()
    assert (first.shards, second.shards) == ([], [0])
    assert waiting(database) == ["3"], "only the later event is left; the second sender has settled the others"
    second.step()
    assert broker.first_of("ada") == ["1", "2", "3"]


def test_a_settlement_after_the_lease_is_lost_writes_nothing(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, (1, "ada"), (2, "bob"))
    relays = database.frozen.relays
    worker, other = Steps(database, outbox).worker_id, Steps(database, outbox).worker_id
    lease = relays.take("orders", worker)
    assert lease is not None
    look = relays.look(lease, TailCursor())
    first, second = (row["id"] for row in look.messages)
    for stale in (
        ShardLease(relay="orders", shard=0, token=lease.token + 1, worker_id=worker),
        ShardLease(relay="orders", shard=0, token=lease.token, worker_id=other),
    ):
        assert not relays.settle(stale, confirmed=[first], refused={second: "too large"})
    assert waiting(database) == ["1", "2"]
    assert database.store.dead_letters.list() == []
    assert relays.settle(
        lease, confirmed=[first], refused={second: "too large"}, options=outbox.tasks.relays["orders"].options
    )
    assert waiting(database) == []
    assert len(database.store.dead_letters.list()) == 1


def test_a_transport_that_never_returns_loses_its_lease(database: Database, outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders", timeout=5)
    emit(outbox, database, (1, "ada"))
    steps = Steps(database, outbox)
    seen: list[int] = []

    def hang() -> None:
        for seconds in (4, 5, 2):
            database.clock.advance(timedelta(seconds=seconds))
            seen.append(len(steps.live_leases()))

    broker.before = hang
    steps.step()
    assert seen == [1, 1, 0]


def test_a_transport_that_never_returns_loses_the_leases_of_each_relay_that_waits_for_it(
    outbox: Outbox, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has its own connection, so it can publish their events."""
    hangs, goes_on, failures = threading.Event(), threading.Event(), list[BaseException]()
    broker.before = lambda: (hangs.set(), goes_on.wait(60))
    outbox.relay("order.*", to=broker, name="orders", timeout=0.1)
    outbox.relay("order.*", to=broker, name="copies", timeout=0.1)
    outbox.relay("order.*", to=Broker(), name="others")
    outbox.sync_subscriptions()
    monkeypatch.setattr(sender_module, "_OVERTIME", 0.1)
    senders = Senders(outbox.store, list(outbox.tasks.relays.values()), on_thread_failure=failures.append)
    renewed = list[set[str]]()
    monkeypatch.setattr(
        type(senders._store.relays), "renew", lambda _, __, leases: renewed.append({one.relay for one in leases})
    )
    outbox.emit("order.paid", 1, using=outbox)
    senders.start()
    try:
        assert hangs.wait(60)
        until(lambda: all(one._shards for one in senders.senders))
        until(lambda: any(one.overdue() for one in senders.senders))
        senders.run_once()
        assert renewed[-1] == {"others"}
    finally:
        goes_on.set()
        senders.stop(timedelta(seconds=60))
    assert failures == []


def test_events_with_the_same_key_share_a_shard_and_others_are_spread(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders", shards=4)
    emit(
        outbox,
        database,
        *((number, f"key {number % 20}") for number in range(60)),
        *((number, None) for number in range(60, 120)),
    )
    senders = [Steps(database, outbox) for _ in range(4)]
    for number, one in enumerate(senders):
        one.step()
        assert one.shards == [number]
    assert waiting(database) == []
    assert len(broker.payloads) == len(set(broker.payloads)) == 120
    for number in range(20):
        assert broker.first_of(f"key {number}") == [str(number), str(number + 20), str(number + 40)]
    assert slot_of("ada", database.worker) == 104, "if a release changed the slot, a key would be in two shards"


def test_a_shard_with_an_event_that_stays_unsure_does_not_block_other_shards(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    """The failure pauses the relay. All shards try again after the pause."""
    outbox.relay("order.*", to=broker, name="orders", shards=2)
    emit(outbox, database, *((number, f"key {number}") for number in range(20)))
    steps = Steps(database, outbox).take_all()
    assert steps.shards == [0, 1]
    for number in range(20):
        if slot_of(f"key {number}", database.worker) % 2 == 0:
            broker.answers[str(number)] = [lost] * 100
    for _ in range(8):
        steps.step()
        database.clock.advance(timedelta(minutes=2))
    assert sorted(map(int, broker.payloads)) == [
        number for number in range(20) if slot_of(f"key {number}", database.worker) % 2
    ]


def test_the_shards_of_a_sender_publish_at_the_same_time(database: Database, outbox: Outbox) -> None:
    broker = Cloneable(before=threading.Barrier(4, timeout=30).wait)
    outbox.relay("order.*", to=broker, name="orders", shards=4)
    emit(outbox, database, *((number, f"key {number}") for number in range(40)))
    Steps(database, outbox).take_all().step()
    assert sorted(map(int, broker.payloads)) == list(range(40))
    assert waiting(database) == []


def test_shards_that_share_a_transport_use_it_one_after_the_other(
    database: Database, outbox: Outbox, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, the shards behind the failed one do not try the broker again."""
    outbox.relay("order.*", to=broker, name="orders", shards=4)
    emit(outbox, database, *((number, f"key {number}") for number in range(40)))
    steps = Steps(database, outbox).take_all()
    broker.is_away = True
    monkeypatch.delattr("outboxq.worker.relays.sender._at_once")  # would give each shard a thread
    steps.step()
    assert len(broker.calls) == 1
    broker.is_away = False
    database.clock.advance(timedelta(seconds=2))
    steps.step(2)
    assert waiting(database) == []


def test_a_database_error_in_one_shard_is_raised_by_the_sender(
    database: Database, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Cloneable()
    outbox.relay("order.*", to=broker, name="orders", shards=2)
    emit(outbox, database, *((number, f"key {number}") for number in range(20)))
    steps = Steps(database, outbox).take_all()
    look = database.frozen.relays.look

    def fail(lease: ShardLease, cursor: TailCursor) -> object:
        if lease.shard == 1:
            raise ConnectionError("the database is away")
        return look(lease, cursor)

    monkeypatch.setattr(database.frozen.relays, "look", fail)
    with pytest.raises(ConnectionError):
        steps.step()
    assert [slot_of(f"key {payload}", database.worker) % 2 for payload in broker.payloads] == [0] * len(broker.payloads)
    assert broker.payloads != []


def test_a_shard_closes_its_connection_when_it_is_lost_and_when_the_sender_ends(
    database: Database, outbox: Outbox
) -> None:
    broker = Cloneable()
    outbox.relay("order.*", to=broker, name="orders", shards=2)
    outbox.sync_subscriptions()
    steps = Steps(database, outbox).take_all()
    database.clock.advance(OVER)
    successor = Steps(database, outbox).take_all()
    steps.step()
    assert steps.shards == []
    assert [one.closed for one in broker.clones] == [1, 1, 0, 0]
    successor._end()
    assert [one.closed for one in broker.clones] == [1, 1, 1, 1]


def test_a_sender_that_takes_its_own_shard_again_keeps_one_connection_for_it(
    database: Database, outbox: Outbox
) -> None:
    """After an outage of the database, the sender may run before the heartbeat has extended the leases."""
    broker = Cloneable()
    outbox.relay("order.*", to=broker, name="orders", shards=2)
    outbox.sync_subscriptions()
    steps, other = Steps(database, outbox), Steps(database, outbox)
    steps.step()
    other.step()
    database.clock.advance(OVER)
    steps.run_once()
    assert (steps.shards, other.shards) == ([0], [1])
    assert [one.closed for one in broker.clones].count(0) == 2, "one connection for each shard"
    emit(outbox, database, *((number, None) for number in range(9)))
    steps.take_all().run_once()
    assert len(broker.stored) == 9


@pytest.mark.parametrize("shards", [1, 2])
def test_a_burst_does_not_end_while_its_leases_have_lapsed(database: Database, outbox: Outbox, shards: int) -> None:
    """A search under a lapsed lease finds nothing, even if events are left. The heartbeat may be late after an outage of
    the database, or after the machine was asleep.
    """
    broker = Broker()
    outbox.relay("order.*", to=broker, name="orders", shards=shards)
    outbox.sync_subscriptions()
    steps = Steps(database, outbox, burst=True).take_all()
    database.clock.advance(OVER)
    emit(outbox, database, *((number, None) for number in range(9)))
    for _ in range(9):
        if steps.run_once() is None:
            break
    else:
        raise AssertionError("the burst does not end")
    assert (len(broker.stored), waiting(database)) == (9, [])


def test_a_burst_that_is_about_to_end_extends_its_leases_again_after_an_error(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    steps = Steps(database, outbox, burst=True).take_all()
    while not steps._is_ending:
        assert steps.run_once() is not None
    steps._forget()  # the next search has failed
    database.clock.advance(OVER)
    emit(outbox, database, (1, None))
    while steps.run_once() is not None:
        pass
    assert broker.payloads == ["1"]


def test_a_full_batch_is_followed_by_the_next_one_until_the_broker_fails(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    emit(outbox, database, *((number, None) for number in range(2 * AT_ONCE)))
    steps = sender(database, outbox)
    assert [len(one) for one in broker.calls] == [AT_ONCE, AT_ONCE]
    emit(outbox, database, *((number, None) for number in range(2 * AT_ONCE)))
    broker.is_away = True
    steps.step()
    assert [len(one) for one in broker.calls[2:]] == [AT_ONCE]


def test_two_relays_with_one_transport_use_it_in_turn(outbox: Outbox, broker: Broker) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    outbox.relay("invoice.*", to=broker, name="invoices")
    outbox.relay("invoice.*", to=Broker(), name="others")
    orders, invoices, others = outbox.tasks.relays.values()
    assert orders.lock is invoices.lock
    assert orders.lock is not others.lock


def test_the_stored_option_decides_whether_a_refused_event_holds_its_key(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    """Another release declared this choice, which is read together with the messages."""
    outbox.relay("order.*", to=broker, name="orders", on_refused="skip")
    emit(outbox, database, (1, "ada"), (2, "ada"))
    database.store.relays.declare([NewRelay(name="orders", topics=["order.*"], on_refused=OnRefused.HOLD)])
    broker.answers["1"] = [refused]
    sender(database, outbox).step(3)
    assert broker.payloads == []
    assert waiting(database) == ["2"]


def test_a_change_in_the_number_of_shards_waits_for_the_old_leases(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    first, second = Steps(database, outbox), Steps(database, outbox)
    first.step()
    emit(outbox, database, *((number, f"key {number % 3}") for number in range(9)))
    database.frozen.relays.declare([NewRelay(name="orders", topics=["order.*"], shards=3)])
    first.step()
    second.step()
    assert (first.shards, second.shards, broker.payloads) == ([], [], [])
    database.clock.advance(OVER)  # the second sender declares one shard too, and learns that there are three
    for _ in range(3):
        second.step()
        database.clock.advance(timedelta(seconds=3))
    assert second.shards == [0, 1, 2]
    assert waiting(database) == []
    assert broker.first_of("key 1") == ["1", "4", "7"]


# Operating


def test_a_paused_relay_publishes_nothing_until_it_is_resumed(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    database.store.relays.pause("orders", reason="broker upgrade")
    outbox.sync_subscriptions()
    emit(outbox, database, (1, None))
    steps = sender(database, outbox)
    [relay] = database.store.relays.list()
    assert (relay.pause_reason, relay.messages, relay.is_sent) == ("broker upgrade", 1, True)
    assert (list(relay.topics), relay.oldest_at is not None, broker.calls) == (["order.*"], True, [])
    database.store.relays.resume("orders")
    steps.step()
    assert broker.payloads == ["1"]
    with pytest.raises(RelayNotFound, match="there is no relay 'order'; the relays to brokers are: orders"):
        database.store.relays.pause("order")


def test_removing_a_relay_deletes_its_messages_and_its_sender_drops_its_shards(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    steps = sender(database, outbox)
    with Session(database.host) as session, session.begin():
        outbox.emit("order.paid", 1, using=session)
        outbox.emit("order.paid", 2, using=session)
    assert database.store.relays.remove("orders") == 2
    with Session(database.host) as session, session.begin():
        assert outbox.emit("order.paid", 3, using=session).handles == {}
    steps.step()
    assert (steps.shards, waiting(database), database.store.relays.list()) == ([], [], [])


def test_a_relay_declared_again_after_its_removal_receives_an_event_with_a_key_that_it_had_before(
    database: Database, outbox: Outbox
) -> None:
    for name in ("orders", "others"):
        outbox.relay("order.*", to=Broker(), name=name)
    with Session(database.host) as session, session.begin():
        outbox.inbox.accept("relay.orders", "order 7", source="shop", using=session)
    for expected in (("orders", "others"), (), ("orders",)):
        with emitting(outbox, database) as session:
            assert outbox.emit("order.paid", 1, using=session, idempotency_key="order 7").relays == expected
        if not expected:
            database.store.relays.remove("orders")
    with Session(database.host) as session, session.begin():
        is_new = outbox.inbox.accept("relay.orders", "order 7", source="shop", using=session)
    assert not is_new, "a message that a consumer accepted has a source and is kept"


# Running


def test_a_worker_publishes_immediately_and_gives_up_its_shards_when_it_stops(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=broker, name="orders")
    arrived = threading.Event()
    broker.before = arrived.set
    worker = outbox.worker(concurrency=1, poll=60)
    worker.start()
    try:
        until(lambda: all(one.is_sent for one in database.store.relays.list()))
        for number in range(5):
            arrived.clear()
            emit(outbox, database, (number, "ada"))
            assert arrived.wait(60)
    finally:
        worker.stop()
    until(lambda: broker.payloads == ["0", "1", "2", "3", "4"])
    [relay] = database.store.relays.list()
    assert (relay.is_sent, broker.closed) == (False, 1)


def test_a_sender_does_not_sleep_while_an_earlier_transaction_may_still_emit(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger of that transaction ran before the sender announced its sleep, so it does not notify."""
    outbox, broker = Outbox(postgresql.host, source="shop"), Broker()
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    steps = Steps(postgresql, outbox)
    monkeypatch.setattr(type(steps._waiting), "listening", 1)
    with transaction(postgresql) as early:
        outbox.emit("order.paid", 1, using=early)
        assert steps.run_once() == 0.0, "it announces its sleep"
        pauses = [steps.run_once() for _ in range(20)]
        assert max(filter(None, pauses)) <= 0.05, "it keeps looking"
        early.commit()
    assert steps.run_once() == 0.0
    assert broker.payloads == ["1"]
    assert steps.run_once() == 5.0


def test_a_sleeping_sender_is_notified(database: Database, outbox: Outbox, broker: Broker) -> None:
    """It announces its sleep, and looks again only when an event is committed (PostgreSQL) or the file changes (SQLite)."""
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    failures: list[BaseException] = []
    senders = Senders(outbox.store, list(outbox.tasks.relays.values()), on_thread_failure=failures.append)
    senders.start()
    try:
        if database.name == "postgresql":
            until(lambda: database.rows("SELECT count(*) FROM relay_shards WHERE sleeps_until > now()") == [(1,)])
        emit(outbox, database, (1, "ada"))
        until(lambda: broker.payloads == ["1"])
    finally:
        assert senders.stop(timedelta(seconds=60))
    assert failures == []


def test_a_sender_survives_a_temporary_error_while_watching_the_file(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, broker = Outbox(sqlite.host, source="shop"), Broker()
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    failures: list[BaseException] = []
    errors = [sqlite3.OperationalError("disk I/O error")]
    has_changed = FileWatch._has_changed
    monkeypatch.setattr(sender_module, "_FIRST_BACK_OFF", 0.01)

    def watch(self: FileWatch) -> bool:
        if errors:
            raise errors.pop()
        return has_changed(self)

    monkeypatch.setattr(FileWatch, "_has_changed", watch)
    senders = Senders(outbox.store, list(outbox.tasks.relays.values()), on_thread_failure=failures.append)
    senders.start()
    try:
        until(lambda: not errors)
        emit(outbox, sqlite, (1, "ada"))
        until(lambda: broker.payloads == ["1"] or failures)
    finally:
        assert senders.stop(timedelta(seconds=60))
    assert (broker.payloads, failures) == (["1"], [])


def test_a_stop_signal_ends_the_runner_wherever_its_main_thread_waits(sqlite: Database) -> None:
    """A signal handler interrupts that thread, so it must not wait for a lock that the thread holds."""
    script = """
        import signal, sys
        from outboxq import Outbox
        from outboxq.database.engine import make_engine
        from outboxq.worker.relays import RelayRunner

        class Broker:
            def publish(self, events, deadline): return []
            def close(self): pass

        outbox = Outbox(make_engine(sys.argv[1]), source="shop")
        outbox.relay("order.*", to=Broker(), name="orders")

        def signalled_at(line):
            left = line

            def in_wait(frame, event, _):
                nonlocal left
                left -= event == "line"
                if not left:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGTERM)
                return in_wait if left else None

            def called(frame, event, _):
                callers = {frame.f_back.f_code, frame.f_back.f_back and frame.f_back.f_back.f_code}
                is_inside = frame.f_code.co_name == "wait" and RelayRunner.run.__code__ in callers
                return in_wait if is_inside else None

            return called

        for line in range(1, 16):
            runner = RelayRunner(outbox.store, outbox.tasks, notifications=False)
            sys.settrace(signalled_at(line))
            assert runner.run() == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), sqlite.url], check=True, timeout=60)


# Declaring


def test_an_invalid_relay_is_refused_before_anything_is_written(database: Database, broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="must name this application"):
        Outbox(database.host).relay("*", to=broker, name="orders")
    outbox = Outbox(database.host, source="shop")
    refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"shards": 0}, InvalidArgument, "shards of relay 'orders' must be a whole number from 1 to 64"),
        ({"on_refused": "drop"}, InvalidArgument, "on_refused"),
        ({"timeout": 0}, InvalidArgument, "timeout of relay 'orders' must be greater than zero"),
        ({"queue": "mail"}, ConfigurationError, "are only for objects with send"),
        ({"to": object()}, ConfigurationError, "takes a Webhook, a Transport"),
        (
            {"to": Webhook(url="https://example.com", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "shards": 2},
            ConfigurationError,
            "are only for brokers",
        ),
    ]
    for options, error, message in refusals:
        with pytest.raises(error, match=message):
            outbox.relay("order.*", **{"to": broker, "name": "orders", **options})
    with pytest.raises(InvalidArgument, match="has no topics"):
        outbox.relay([], to=broker, name="orders")
    assert outbox.tasks.relays == {}
    outbox.relay("order.*", to=broker, name="orders")
    with pytest.raises(ConfigurationError, match="two tasks are called"):
        outbox.relay("bill.*", to=broker, name="orders")
    database.store.relays.declare([])
    assert database.rows(text("SELECT count(*) FROM relays").text) == [(0,)]
