"""The reasons why an event is not published, and their precedence."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.orm import Session

from outboxq import Emitted, Outbox, TaskNotFound, Webhook
from outboxq.cli import main
from outboxq.database.engine import make_engine
from outboxq.errors import NotPermitted
from outboxq.model.actions import Interface, Operator
from outboxq.model.relays import NewRelay
from outboxq.model.subscriptions import Subscription
from outboxq.model.uuid7 import family, uuid7
from outboxq.operating.verbs import PAUSE_RELAY
from outboxq.store import Explanation, Reason
from tests.conftest import Database
from tests.contract import helpers
from tests.memory_broker import Broker, Steps, refused
from tests.waiting import until

MINUTE = timedelta(minutes=1)


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host, source="shop")


@pytest.fixture
def broker(outbox: Outbox) -> Broker:
    broker = Broker()
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    return broker


def emit(outbox: Outbox, database: Database, payload: object = 1, key: str | None = None) -> UUID:
    with Session(database.host) as session, session.begin():
        return outbox.emit("order.paid", payload, using=session, partition_key=key).pipeline_execution_id


def explained(database: Database, event_id: UUID, reason: Reason, *words: str) -> Explanation:
    """Return the explanation of the event, after checking its reason and that it contains these words."""
    found = database.frozen.explain(event_id)
    assert found.reason is reason, found.sentence
    for word in words:
        assert word in found.sentence
    assert "None" not in found.sentence
    for cure in found.cures:
        known = CliRunner().invoke(main, [*cure.command[:2], "--help"])
        assert known.exit_code == 0
    return found


def test_a_paused_relay_is_reported_with_the_operator_and_the_reason(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    del broker
    event = emit(outbox, database)
    database.frozen.relays.pause("orders", reason="broker upgrade")
    database.clock.advance(5 * MINUTE)
    found = explained(database, event, Reason.RELAY_PAUSED, "'orders'", "for 5 min: broker upgrade; resume it")
    assert [cure.command for cure in found.cures] == [("relay", "resume", "orders")]
    database.frozen.relays.resume("orders")
    ada = Operator(name="ada", interface=Interface.COMMAND_LINE)
    PAUSE_RELAY.do(database.frozen, "orders", operator=ada, reason="upgrade")
    explained(database, event, Reason.RELAY_PAUSED, "for 0.0 s: upgrade (by ada on the command line); resume it")
    database.frozen.relays.resume("orders")
    database.frozen.relays.pause("orders")
    explained(database, event, Reason.RELAY_PAUSED, "for 0.0 s; resume it")


def test_a_relay_without_a_sender_is_reported_with_its_shard(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    del broker
    event = emit(outbox, database)
    words = "no worker publishes shard 0 of the relay 'orders'"
    found = explained(database, event, Reason.RELAY_UNSENT, words)
    assert [cure.command for cure in found.cures] == [("relay", "run", "--name", "orders")]
    Steps(database, outbox)._take()
    explained(database, event, Reason.RELAY_DUE, "the relay 'orders' is about to publish it")
    database.clock.advance(MINUTE)
    explained(database, event, Reason.RELAY_UNSENT, words)


def test_a_relay_whose_broker_is_down_is_reported_with_error_and_next_attempt(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    event = emit(outbox, database)
    broker.is_away = True
    Steps(database, outbox).step()
    words = ("'orders' has not confirmed any event since ", "ConnectionError: no broker; the next attempt is due in ")
    found = explained(database, event, Reason.RELAY_FAILING, *words)
    assert [cure.command for cure in found.cures] == [("relay", "resume", "orders")]
    database.clock.advance(timedelta(seconds=2))
    explained(database, event, Reason.RELAY_FAILING, "the next attempt is due now")


def test_a_held_key_and_a_refusal_name_the_event_and_its_dead_letter(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    first, second, other = (emit(outbox, database, number, key) for number, key in ((1, "ada"), (2, "ada"), (3, "bob")))
    broker.answers["1"] = [refused]
    steps = Steps(database, outbox)
    steps.step()
    [letter] = database.store.dead_letters.list()
    words = (f"'ada' is held by the dead letter {letter.id}", f"refused the event {first} with this key", "too large")
    held = explained(database, second, Reason.RELAY_KEY_HELD, *words)
    own = explained(database, first, Reason.RELAY_REFUSED, "too large", str(letter.id))
    commands = [("failed", "redrive", str(letter.id)), ("failed", "discard", str(letter.id))]
    assert [cure.command for cure in held.cures] == [cure.command for cure in own.cures] == commands
    assert held.waits_for == own.waits_for == letter.id
    explained(database, other, Reason.RELAY_PUBLISHED, "a published event leaves no row")

    database.store.redrive(letter.id)
    again = (
        f"the event {first} has the same partition key 'ada' and comes first",
        f"task {letter.id} will publish it again",
    )
    assert explained(database, second, Reason.RELAY_KEY_HELD, *again).cures[0].command[:2] == ("task", "explain")
    explained(database, first, Reason.RELAY_DUE, f"the task {letter.id} of the relay 'orders' has not sent it yet")
    outbox.worker(concurrency=1, notifications=False, relay=False).run(burst=True)
    explained(database, first, Reason.RELAY_PUBLISHED, f"the relay 'orders' has sent it in the task {letter.id}")
    explained(database, second, Reason.RELAY_DUE)


def test_a_discarded_event_is_never_published(database: Database, outbox: Outbox, broker: Broker) -> None:
    event = emit(outbox, database)
    broker.answers["1"] = [refused]
    Steps(database, outbox).step()
    [letter] = database.store.dead_letters.list()
    database.store.discard(letter.id)
    explained(database, event, Reason.RELAY_DISCARDED, f"will never send it: its task {letter.id} was cancelled")


def test_events_ahead_in_the_shard_are_counted(database: Database, outbox: Outbox, broker: Broker) -> None:
    del broker
    Steps(database, outbox)._take()
    *_, last = [emit(outbox, database, number) for number in range(4)]
    explained(database, last, Reason.RELAY_DUE, "events ahead of it in its shard: 3")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_open_transaction_is_reported_with_its_process_id_and_age(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    steps = Steps(database, outbox)
    with helpers.transaction(database) as other:
        outbox.emit("order.late", 0, using=other)
        event = emit(outbox, database)
        steps.step()
        assert broker.payloads == []
        until(lambda: database.frozen.explain(event).reason is Reason.RELAY_BEHIND)
        found = database.frozen.explain(event)
        pid = other.execute(text("SELECT pg_backend_pid()")).scalar_one()
        assert f"with the process id {pid} in the database " in found.sentence
        assert " has been open for 1." in found.sentence
        assert found.sentence.endswith("so the relay 'orders' is waiting; end that transaction")
        other.rollback()
    explained(database, event, Reason.RELAY_DUE)


def test_an_event_of_several_relays_has_the_most_urgent_reason(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    outbox.relay("order.*", to=Broker(), name="all")
    url, secret = "https://example.com", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    outbox.relay("order.*", to=Webhook(url=url, secret=secret), name="customer")
    outbox.sync_subscriptions()
    event = emit(outbox, database)
    broker.is_away = True
    Steps(database, outbox).step()
    database.frozen.relays.pause("all")
    found = explained(database, event, Reason.RELAY_PAUSED, "'all' has been paused", "no broker", "'customer' has not")
    assert [cure.command[:3] for cure in found.cures][:2] == [("relay", "resume", "all"), ("relay", "resume", "orders")]
    database.frozen.relays.resume("all")
    Steps(database, outbox, "all").step()
    explained(database, event, Reason.RELAY_FAILING, "no broker")


def test_events_without_a_relay_are_distinguished_from_published_ones(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    @outbox.task(subscribe="bill.*", name="tests.mail")
    def mail(payload: int) -> None: ...

    outbox.sync_subscriptions()
    nobody: Emitted = outbox.emit("other", 1, using=outbox)
    billed: Emitted = outbox.emit("bill.sent", 1, using=outbox)
    explained(
        database,
        nobody.pipeline_execution_id,
        Reason.RELAY_MISSING,
        "no task or relay was subscribed to its topic",
    )
    words = ("no relay to a broker subscribes to its topic 'bill.sent'", "tasks enqueued for it: 1")
    explained(database, billed.pipeline_execution_id, Reason.RELAY_MISSING, *words)
    event = emit(outbox, database)
    Steps(database, outbox).step()
    assert broker.payloads == ["1"]
    explained(database, event, Reason.RELAY_PUBLISHED)
    for unknown in (uuid7(), UUID(int=7)):
        with pytest.raises(TaskNotFound):
            database.store.explain(unknown)
    database.store.relays.remove("orders")
    with pytest.raises(TaskNotFound):
        database.store.explain(family())


def test_an_event_that_a_relay_never_received_is_not_called_published(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    """A published event leaves no row, so nothing distinguishes it from one that the relay never received."""
    outbox.emit("order.paid", 1, using=outbox, idempotency_key="order-7")

    @outbox.task(subscribe=["bill.*", "order.*"], name="tests.mail")
    def mail(payload: int) -> None: ...

    outbox.sync_subscriptions()
    repeated: Emitted = outbox.emit("order.paid", 1, using=outbox, idempotency_key="order-7")
    billed: Emitted = outbox.emit("bill.sent", 1, using=outbox)
    assert (repeated.relays, billed.relays) == ((), ())
    bills = Subscription(topic="bill.*", task_name="relay.orders", parameter=None, queue="relay.orders")
    database.store.subscriptions.replace([*outbox.subscriptions, bills])
    Steps(database, outbox).step()
    assert broker.payloads == ["1"]
    for event, why in ((repeated, "the same idempotency key"), (billed, "it subscribed to the topic later")):
        said = explained(database, event.pipeline_execution_id, Reason.RELAY_PUBLISHED, why)
        assert "either the relay 'orders' has published it, or the relay never received it" in said.sentence


def test_explain_reports_that_the_relay_of_a_message_does_not_exist(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    del broker
    event = emit(outbox, database)
    with database.engine.begin() as connection:
        connection.execute(text("DELETE FROM relays"))
    database.corrupted = True
    explained(database, event, Reason.RELAY_MISSING, "the relay 'orders' does not exist")
    database.store.relays.declare([NewRelay(name="orders", topics=["order.*"])])
    explained(database, event, Reason.RELAY_UNSENT)


def test_the_commands_explain_an_event_and_do_not_mistake_it_for_a_task(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    del broker
    event = emit(outbox, database)
    said = CliRunner().invoke(main, ["task", "explain", str(event), "--url", database.url])
    assert said.exit_code == 0
    assert "no worker publishes shard 0 of the relay 'orders'" in said.output
    assert "relay run --name orders" in said.output
    shown = CliRunner().invoke(main, ["task", "show", str(event), "--url", database.url])
    assert shown.exit_code == 3
    assert f"there is no task {event}, but an event may have this id: no worker publishes" in shown.output


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_error_for_a_role_that_cannot_read_messages_names_the_table(
    database: Database, outbox: Outbox, broker: Broker
) -> None:
    del broker
    event = emit(outbox, database)
    role = f"role_{uuid7().hex}"
    with database.engine.begin() as connection:
        schema = connection.execute(text("SELECT current_schema()")).scalar_one()
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {role}"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"))
        connection.execute(text(f"REVOKE SELECT ON relay_messages FROM {role}"))
    url = database.engine.url.set(username=role).render_as_string(hide_password=False)
    try:
        with pytest.raises(NotPermitted, match="relay_messages"):
            Outbox(database.own(make_engine(url))).store.explain(event)
        said = CliRunner().invoke(main, ["task", "explain", str(event), "--url", url])
        assert said.exit_code == 77
        assert "relay_messages" in said.output
    finally:
        with database.engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
