"""Relays to brokers on the command line and in `check`."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from click.testing import CliRunner

from outboxq import Outbox
from outboxq.cli import main
from outboxq.model import relays
from outboxq.model.relays import NewRelay, slot_of
from outboxq.store import HealthLimits, Problem, Rule
from outboxq.store.messages import relays as stored_relays
from tests.conftest import Database
from tests.memory_broker import Broker, Steps, refused


@pytest.fixture
def outbox(database: Database) -> Outbox:
    outbox = Outbox(database.host, source="shop")
    outbox.relay(["order.*", "bill.*"], to=Broker(), name="orders")
    outbox.sync_subscriptions()
    for number in range(2):
        outbox.emit("order.paid", number, using=outbox, partition_key="ada")
    return outbox


def outboxq(database: Database, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*words, "--url", database.url])
    assert result.exit_code == code, result.output
    return result.output


def late(database: Database, **limits: object) -> list[Problem]:
    database.clock.advance(timedelta(days=36_500) if database.clock().year < 2100 else 0)
    found = database.frozen.health(HealthLimits(oldest=None, no_worker=False, **limits))  # type: ignore[arg-type]
    return [one for one in found if one.rule is Rule.RELAY_LATE]


def test_a_list_shows_the_backlog_and_the_senders(database: Database, outbox: Outbox) -> None:
    [found] = json.loads(outboxq(database, "relay", "list", "--json"))
    assert (found["name"], found["messages"], found["topics"]) == ("orders", 2, ["bill.*", "order.*"])
    assert found["shards"] == [{"shard": 0, "worker_id": None, "worker": None, "lease_expires_at": None}]
    worker = outbox.worker(label="web-1", notifications=False, relay=False)
    database.store.workers.register(worker.id, label="web-1", concurrency=1, task_names=[], queues=None, topics=None)
    assert database.store.relays.take("orders", worker.id)
    lines = outboxq(database, "relay", "list").splitlines()
    assert [cell.strip() for cell in lines[1].split("\t")][:3] == ["orders", "active", "2"]
    assert "web-1" in lines[1]


def test_a_relay_is_paused_and_resumed_with_a_reason_and_a_record(database: Database, outbox: Outbox) -> None:
    del outbox
    said = outboxq(database, "relay", "pause", "orders", "--reason", "broker upgrade")
    assert said == "the relay 'orders' is paused: its events are written, but not published\n"
    [relay] = database.store.relays.list()
    assert relay.paused_at is not None
    assert "broker upgrade" in str(relay.pause_reason)
    assert outboxq(database, "relay", "resume", "orders") == "the relay 'orders' has been resumed\n"
    assert [(one.action, one.target) for one in database.store.actions.list()] == [
        ("relay resume", "orders"),
        ("relay pause", "orders"),
    ]
    assert "there is no relay 'order'" in outboxq(database, "relay", "pause", "order", code=3)


def test_a_relay_is_shown_with_its_shards_and_the_events_that_hold_keys(database: Database, outbox: Outbox) -> None:
    database.frozen.relays.declare([NewRelay(name="orders", topics=["order.*"], shards=2)])
    later = outbox.emit("order.paid", 2, using=outbox, partition_key="bob").pipeline_execution_id
    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    broker.answers["0"] = [refused]
    broker.is_away = True
    database.store.relays.pause("orders", reason="upgrade (by ada)")
    shown = json.loads(outboxq(database, "relay", "show", "orders", "--json"))
    backlog = {one["shard"]: one["messages"] for one in shown["backlogs"]}
    assert (shown["state"], shown["pause_reason"], sum(backlog.values())) == ("paused", "upgrade (by ada)", 3)
    assert backlog[slot_of("ada", later) % 2] >= 2
    said = outboxq(database, "relay", "show", "orders")
    assert "paused since" in said
    assert "upgrade (by ada)" in said
    assert "held key" not in said

    database.store.relays.resume("orders")
    broker.is_away = False
    for _ in range(3):
        database.clock.advance(timedelta(seconds=3))
        steps.step()
    [key] = database.store.relays.show("orders").held_keys
    [letter] = database.store.dead_letters.list()
    assert (key.partition_key, key.dead_letter, key.waiting, key.topic) == ("ada", letter.id, 1, "order.paid")
    assert key.error == "EventRefused: too large"
    row = next(line for line in outboxq(database, "relay", "show", "orders").splitlines() if line.startswith("ada"))
    assert row.split("\t") == ["ada", "1", str(key.event_id), str(letter.id), "EventRefused: too large"]
    assert "there is no relay 'order'" in outboxq(database, "relay", "show", "order", code=3)


def test_an_idle_relay_is_not_called_unsent(database: Database, outbox: Outbox) -> None:
    assert outboxq(database, "relay", "list").splitlines()[1].split("\t")[1] == "unsent"
    Steps(database, outbox).step(3)
    assert database.store.relays.list()[0].messages == 0
    database.clock.advance(timedelta(hours=1))
    database.run("UPDATE relay_shards SET worker_id = NULL")
    assert outboxq(database, "relay", "list").splitlines()[1].split("\t")[1] == "idle"
    assert json.loads(outboxq(database, "relay", "show", "orders", "--json"))["state"] == "idle"


def test_a_redriven_event_is_counted_until_a_worker_has_published_it(database: Database, outbox: Outbox) -> None:
    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    broker.answers["0"] = [refused]
    steps.step()
    [letter] = database.store.dead_letters.list()
    database.store.redrive(letter.id)
    head, row = (line.split("\t") for line in outboxq(database, "relay", "list").splitlines())
    columns = dict(zip(head, row, strict=True))
    assert (columns["refused"], columns["redriven"]) == ("0", "1")
    shown = outboxq(database, "relay", "show", "orders")
    assert re.search(
        r"^redriven\t1 event, which a worker will publish: \w+ task list -q relay.orders --url ", shown, re.MULTILINE
    )
    [claim] = database.claim(queues=["relay.orders"])
    assert database.store.relays.list()[0].redriven == 1
    database.store.complete(claim)
    assert database.store.relays.list()[0].redriven == 0
    assert "redriven" not in outboxq(database, "relay", "show", "orders")


def test_a_count_that_stops_at_its_bound_is_marked(
    database: Database, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "COUNTED", 2)
    monkeypatch.setattr(stored_relays, "COUNTED", 2)
    for payload, key in ((2, "bob"), (3, "cid"), (4, "ada"), (5, "ada")):
        outbox.emit("order.paid", payload, using=outbox, partition_key=key)
    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    for payload in ("0", "2", "3"):
        broker.answers[payload] = [refused]
    steps.step()
    head, row = (line.split("\t") for line in outboxq(database, "relay", "list").splitlines())
    columns = dict(zip(head, row, strict=True))
    assert (columns["waiting"], columns["refused"], columns["redriven"]) == ("2+", "2+", "0")
    shown = outboxq(database, "relay", "show", "orders")
    assert "refused\t2+ dead letters\n" in shown
    [problem] = late(database)
    assert problem.sentence.startswith("at least 2 events of the relay 'orders' are waiting")


def test_a_relay_is_removed_with_its_messages_and_a_record(database: Database, outbox: Outbox) -> None:
    del outbox
    assert "2" in outboxq(database, "relay", "remove", "orders", "--dry-run")
    assert len(database.store.relays.list()) == 1
    said = outboxq(database, "relay", "remove", "orders", "--yes", "--reason", "gone")
    assert said == "the relay 'orders' was removed with 2 unpublished events\n"
    assert database.store.relays.list() == []
    [action] = database.store.actions.list()
    assert (action.action, action.changed, action.reason) == ("relay remove", 1, "gone")
    gone = outboxq(database, "relay", "remove", "orders", "--yes", code=3)
    assert "there is no relay 'orders', so nothing was removed; the relays to brokers are: none" in gone


def test_an_emit_prints_the_relays_that_receive_the_event(database: Database, outbox: Outbox) -> None:
    tried = json.loads(outboxq(database, "emit", "order.paid", "--dry-run", "--json"))
    assert (tried["handles"], tried["relays"]) == ({}, ["orders"])
    done = json.loads(outboxq(database, "emit", "order.paid", "--json", "--idempotency-key", "a"))
    assert (done["handles"], done["relays"]) == ({}, ["orders"])
    lines = outboxq(database, "emit", "order.paid").splitlines()
    assert lines[1].split("\t")[0::2] == ["relay.orders", "written for the relay"]
    assert "every relay that subscribes to it has already received" in outboxq(
        database, "emit", "order.paid", "--idempotency-key", "a"
    )
    assert "event_unrouted was recorded" in outboxq(database, "emit", "other")
    assert len(database.rows("SELECT id FROM relay_messages")) == 4
    del outbox


def test_check_names_the_cause_of_a_late_relay(database: Database, outbox: Outbox) -> None:
    assert database.store.health(HealthLimits()) == [], "the events are new"
    [problem] = late(database)
    assert problem.subjects == ("orders",)
    assert problem.sentence.startswith("2 events of the relay 'orders' are waiting to be published, the oldest for ")
    assert problem.sentence.endswith("not every shard has a worker")
    assert problem.cures[0].command == ("relay", "run")
    assert late(database, relay_late=None) == []

    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    broker.is_away = True
    steps.step()
    [problem] = late(database)
    assert problem.sentence.endswith("the broker has not confirmed any event for 0.0 s: ConnectionError: no broker")

    database.frozen.relays.pause("orders", reason="upgrade")
    [problem] = late(database)
    assert problem.sentence.endswith("the relay has been paused for 0.0 s: upgrade")
    assert problem.cures[0].command == ("relay", "resume", "orders")

    database.frozen.relays.resume("orders")
    broker.is_away = False
    broker.answers["0"] = [refused]
    steps.step(2)
    [problem] = late(database)
    assert problem.tasks == 1
    assert "their keys are held by events that the broker refused" in problem.sentence
    assert problem.cures[0].command == ("failed", "list", "-q", "relay.orders")
