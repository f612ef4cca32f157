"""The pages about relays to brokers, and the actions on them."""

from __future__ import annotations

import re

import pytest

from outboxq import Outbox
from outboxq.web import application
from tests.conftest import Database
from tests.integrations.dashboard.pages import Local
from tests.memory_broker import Broker, Steps, refused


@pytest.fixture
def outbox(database: Database) -> Outbox:
    outbox = Outbox(database.host, source="shop")
    outbox.relay("order.*", to=Broker(), name="orders")
    outbox.sync_subscriptions()
    outbox.emit("order.paid", 1, using=outbox)
    return outbox


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_relay_is_paused_and_resumed_on_its_page(database: Database, outbox: Outbox) -> None:
    client = Local(application(outbox, allow_actions=True))
    assert "orders unsent order. * 1" in text_of(client.get("/relays").text)
    page = client.get("/relay?name=orders").text
    assert "No worker publishes the events of at least one shard" in text_of(page)
    token = re.search(r'name="csrf"[^>]*value="([^"]+)"|value="([^"]+)"[^>]*name="csrf"', page)
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))
    assert token or fields
    answer = client.post("/relay/pause?name=orders", data={**fields, "reason": "upgrade"})
    assert answer.status_code == 303
    [relay] = database.store.relays.list()
    assert relay.paused_at is not None
    assert "Paused since" in text_of(client.get("/relay?name=orders").text)
    client.post("/relay/resume?name=orders", data=fields)
    [relay] = database.store.relays.list()
    assert relay.paused_at is None


def test_keys_that_refused_events_hold_are_shown_on_the_page(database: Database, outbox: Outbox) -> None:
    for number in (2, 3):
        outbox.emit("order.paid", number, using=outbox, partition_key="ada")
    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    broker.answers["2"] = [refused]
    steps.step()
    hidden = Local(application(outbox, redact=lambda text: text.replace("too large", "…"))).get("/relay?name=orders")
    assert "EventRefused: … 1" in text_of(hidden.text)
    page = text_of(Local(application(outbox)).get("/relay?name=orders").text)
    assert "Held keys redrive or discard the dead letters Key Dead letter Error Waiting ada " in page
    assert "EventRefused: too large 1" in page


def test_a_redriven_event_is_counted_and_an_idle_relay_has_no_warning(database: Database, outbox: Outbox) -> None:
    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    broker.answers["1"] = [refused]
    steps.step()
    database.store.redrive(database.store.dead_letters.list()[0].id)
    database.run("UPDATE relay_shards SET worker_id = NULL")
    client = Local(application(outbox))
    page = text_of(client.get("/relay?name=orders").text)
    assert "Redriven events 1 not published yet" in page
    assert "No worker publishes" not in page
    assert "orders idle order. *" in text_of(client.get("/relays").text)


def test_the_page_for_an_event_id_says_why_it_is_not_published(database: Database, outbox: Outbox) -> None:
    event = outbox.emit("order.paid", 2, using=outbox).pipeline_execution_id
    page = Local(application(outbox)).get(f"/tasks/{event}")
    assert page.status_code == 404
    assert "o worker publishes shard 0 of the relay" in text_of(page.text)
    assert "relay run --name orders" in text_of(page.text)
    del database


def test_a_failing_relay_shows_its_error(database: Database, outbox: Outbox) -> None:
    steps = Steps(database, outbox)
    broker = steps.relay.transport
    assert isinstance(broker, Broker)
    broker.is_away = True
    steps.step()
    page = text_of(Local(application(outbox)).get("/relay?name=orders").text)
    assert "The broker has not confirmed any event since" in page
    assert "ConnectionError: no broker" in page
    assert Local(application(outbox)).get("/relay?name=other").status_code == 404
