"""The guarantees of every transport, on a real broker: see `outboxq.model.transports`."""

from __future__ import annotations

import json
import logging
import threading
import time
from uuid import UUID

import pytest

from outboxq.model.transports import Confirmed, Refused, Unsure
from tests.brokers.servers import SECRET
from tests.waiting import PATIENCE, PROMPTLY

pytestmark = pytest.mark.apart

SOON = 1.0
"""The number of seconds until a deadline that passes because the broker does not answer."""


@pytest.fixture
def transport(bench):
    made = bench.transport()
    yield made
    made.close()


def patient() -> float:
    return time.monotonic() + PATIENCE


def publish(transport, events, deadline=None):
    return list(transport.publish(events, patient() if deadline is None else deadline))


def publish_until_settled(transport, events):
    """Publish events, and publish unsure ones again, as a relay does. Return the outcomes in the order of the events."""
    outcomes = publish(transport, events)
    while unsure := [number for number, one in enumerate(outcomes) if isinstance(one, Unsure)]:
        for number, outcome in zip(unsure, publish(transport, [events[number] for number in unsure]), strict=True):
            outcomes[number] = outcome
    return outcomes


def test_events_arrive_in_order_with_their_ids(bench, transport):
    events = bench.events(bench.count)

    assert publish(transport, events) == [Confirmed()] * bench.count

    arrived = bench.arrived()
    assert [json.loads(one.body)["id"] for one in arrived] == [str(event.id) for event in events]
    assert {one.id for one in arrived} <= {None, *(str(event.id) for event in events)}
    assert arrived[0].body == events[0].as_json()


def test_headers_and_the_payload_arrive_unchanged(bench):
    transport = bench.transport(body="payload")
    event = bench.event('{"total": 1.10, "to": "Zoë 🛒"}', headers={"Request-Id": "r1", "cookie": "private"})

    assert publish(transport, [event]) == [Confirmed()]
    transport.close()

    (one,) = bench.arrived()
    assert one.body == event.data
    assert one.headers["Request-Id"] == "r1"
    assert "cookie" not in one.headers
    assert UUID(one.headers[f"{bench.prefix}id"]) == event.id
    assert one.headers[f"{bench.prefix}type"] == bench.place
    assert one.headers[f"{bench.prefix}source"] == "shop"


def test_headers_arrive_alongside_a_cloud_event(bench, transport):
    assert publish(transport, [bench.event(headers={"traceparent": "00-1"})]) == [Confirmed()]
    (one,) = bench.arrived()
    assert one.headers["traceparent"] == json.loads(one.body)["traceparent"] == "00-1"


def test_only_the_event_that_cannot_be_routed_is_refused(bench, transport):
    first, last = bench.event("1"), bench.event("2")

    outcomes = publish(transport, [first, bench.unsendable(), last])

    assert [type(one) for one in outcomes] == [Confirmed, Refused, Confirmed]
    assert outcomes[1].reason
    assert [json.loads(one.body)["data"] for one in bench.arrived()] == [1, 2]


def test_only_the_event_that_is_too_large_is_refused(bench, transport):
    first, large, last = bench.event("1"), bench.too_large(), bench.event("2")

    outcomes = publish_until_settled(transport, [first, large, last])

    assert [type(one) for one in outcomes] == [Confirmed, Refused, Confirmed]
    assert {json.loads(one.body)["data"] for one in bench.arrived()} == {1, 2}


def test_a_large_payload_arrives(bench, transport):
    event = bench.event(json.dumps("x" * 200_000))
    assert publish(transport, [event, bench.event()]) == [Confirmed()] * 2
    assert json.loads(bench.arrived()[0].body)["data"] == "x" * 200_000


@pytest.mark.parametrize("to", ["raises", "empty"])
def test_an_event_without_a_destination_is_refused(bench, to):
    def destination(event):
        known = {} if to == "raises" else {bench.place: ""}
        return known[event.type] if event.data == "2" else bench.address(event.type)

    transport = bench.transport(**{bench.destination: destination})
    outcomes = publish(transport, [bench.event("1"), bench.event("2")])
    transport.close()
    assert [type(one) for one in outcomes] == [Confirmed, Refused]


def test_events_are_unsure_if_the_answer_is_lost(bench, transport):
    assert publish(transport, [bench.event()]) == [Confirmed()]
    bench.cable.lose_answers()
    began = time.monotonic()

    outcomes = publish(transport, bench.events(3), began + SOON)

    assert [type(one) for one in outcomes] == [Unsure] * 3
    assert time.monotonic() - began < SOON + PROMPTLY
    bench.cable.mend()
    again = bench.events(2)
    assert publish_until_settled(transport, again) == [Confirmed()] * 2


def test_events_are_unsure_if_the_broker_is_frozen(bench, transport):
    bench.cable.pause()
    began = time.monotonic()

    outcomes = publish(transport, bench.events(2), began + SOON)

    assert [type(one) for one in outcomes] == [Unsure] * 2
    assert time.monotonic() - began < SOON + PROMPTLY
    bench.cable.mend()
    assert publish_until_settled(transport, bench.events(2)) == [Confirmed()] * 2


def test_events_are_unsure_while_the_broker_cannot_be_reached(bench, transport):
    bench.cable.refuse()
    (outcome,) = publish(transport, [bench.event()], time.monotonic() + SOON)
    assert isinstance(outcome, Unsure)
    assert outcome.reason
    bench.cable.mend()
    assert publish_until_settled(transport, [bench.event()]) == [Confirmed()]


def test_a_connection_lost_between_batches_is_opened_again(bench, transport):
    assert publish(transport, [bench.event()]) == [Confirmed()]
    bench.cable.drop()
    event = bench.event()
    dropped = time.monotonic()
    assert publish_until_settled(transport, [event]) == [Confirmed()]
    assert time.monotonic() - dropped < PATIENCE / 2, "the transport waited for answers that could not arrive"
    assert json.loads(bench.arrived()[-1].body)["id"] == str(event.id)


def test_events_are_unsure_if_the_deadline_has_passed(bench, transport):
    outcomes = publish(transport, bench.events(2), time.monotonic() - 1)
    assert [type(one) for one in outcomes] == [Unsure] * 2


def test_publishing_no_events_has_no_outcomes(transport):
    assert publish(transport, []) == []


def test_a_transport_can_be_closed_at_any_time_and_used_again(bench, caplog):
    before = set(threading.enumerate())
    transport = bench.transport()
    transport.close()
    assert publish(transport, [bench.event()]) == [Confirmed()]
    transport.close()
    transport.close()
    assert publish(transport, [bench.event()]) == [Confirmed()]
    transport.close()
    assert len(bench.arrived()) == 2
    assert {thread for thread in threading.enumerate() if thread.name.startswith("outboxq")} <= before
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_batch_does_not_wait_for_each_answer(bench, transport):
    """Each answer is delayed, so that waiting for one answer after another would take 100 s."""
    assert publish(transport, [bench.event()]) == [Confirmed()]
    bench.cable.delay_answers(100 / bench.count)
    events = [bench.event(str(number)) for number in range(bench.count)]
    assert publish(transport, events, time.monotonic() + 50) == [Confirmed()] * bench.count


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
def test_only_the_event_with_a_routing_key_that_is_too_long_is_refused(bench):
    transport = bench.transport(routing_key=lambda event: "k" * 300 if event.data == "bad" else bench.place)
    events = [bench.event(one) for one in ("a", "bad", "b")]
    first, second, third = publish(transport, events)
    assert (first, third) == (Confirmed(), Confirmed())
    assert isinstance(second, Refused)
    assert "cannot be sent" in second.reason
    transport.close()


def test_secrets_are_not_in_outcomes_or_logs(bench, caplog):
    caplog.set_level(logging.DEBUG)
    wrong = "wr0ng-s3cret"
    transport = bench.transport(secret=wrong)
    bench.cable.refuse()
    outcomes = publish(transport, [bench.event()], time.monotonic() + SOON)
    bench.cable.accept()
    outcomes += publish(transport, [bench.event()], time.monotonic() + SOON)
    transport.close()
    if bench.wrong_secret_is_refused:
        assert [type(one) for one in outcomes] == [Unsure] * 2
    for secret in (wrong, SECRET):
        assert secret not in f"{transport!r} {transport} {outcomes} {caplog.text}"
