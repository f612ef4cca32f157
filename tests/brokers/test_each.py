"""Behavior that only one of the brokers has."""

from __future__ import annotations

import json
import time

import pytest
from nats.js.api import DiscardPolicy

from outboxq.brokers import RedisStreams, Sns
from outboxq.model.transports import Confirmed, Refused, Unsure
from tests.waiting import PATIENCE, PROMPTLY

pytestmark = pytest.mark.apart


def publish(transport, events):
    found = list(transport.publish(events, time.monotonic() + PATIENCE))
    transport.close()
    return found


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
def test_an_event_that_a_full_queue_of_rabbitmq_rejects_is_unsure(bench):
    bench.declare("full", {"x-max-length": 2, "x-overflow": "reject-publish"})
    found = publish(bench.transport(), [bench.event(str(number), type="full") for number in range(5)])
    assert [type(one) for one in found].count(Confirmed) == 2
    assert [one for one in found if one != Confirmed()] == [Unsure("the broker could not store the event (nack)")] * 3


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
def test_events_for_a_missing_rabbitmq_exchange_are_unsure(bench):
    found = publish(bench.transport(exchange="missing"), bench.events(3))
    assert [type(one) for one in found] == [Unsure] * 3
    assert "missing" in found[0].reason


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_only_the_event_with_a_header_that_rabbitmq_reads_as_routing_keys_is_refused(bench, name):
    events = [bench.event("1"), bench.event("2", headers={name: "ada"}), bench.event("3")]
    found = publish(bench.transport(), events)
    assert [type(one) for one in found] == [Confirmed, Refused, Confirmed]
    assert name in found[1].reason


@pytest.mark.parametrize("bench", ["redis"], indirect=True)
def test_redis_stores_none_of_a_batch_if_its_memory_is_full(bench):
    events = bench.events(50)
    bench.command("CONFIG", "SET", "maxmemory", "1")
    try:
        found = publish(bench.transport(), events)
    finally:
        bench.command("CONFIG", "SET", "maxmemory", "0")
    assert [type(one) for one in found] == [Unsure] * 50
    assert "maxmemory" in found[0].reason
    assert bench.arrived() == []


@pytest.mark.parametrize("bench", ["redis"], indirect=True)
def test_redis_trims_a_stream_only_if_max_length_is_set(bench):
    assert publish(bench.transport(), bench.events(300)) == [Confirmed()] * 300
    assert len(bench.arrived()) == 300
    assert publish(bench.transport(max_length=1), bench.events(300)) == [Confirmed()] * 300
    assert len(bench.arrived()) < 300


@pytest.mark.parametrize("bench", ["nats"], indirect=True)
def test_only_the_event_that_is_larger_than_its_nats_stream_allows_is_refused(bench):
    bench.limit(max_msg_size=2000)
    found = publish(bench.transport(), [bench.event("1"), bench.event(json.dumps("x" * 2000)), bench.event("3")])
    assert [type(one) for one in found] == [Confirmed, Refused, Confirmed]
    assert "exceeds maximum" in found[1].reason


@pytest.mark.parametrize("bench", ["nats"], indirect=True)
@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Expected-Stream": "other"},
        {"Nats-Expected-Last-Sequence": "7"},
        {"Nats-Expected-Last-Msg-Id": "x"},
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "x"},
    ],
    ids=lambda headers: " ".join(*headers.items()),
)
def test_only_the_event_with_a_header_that_nats_rejects_is_refused(bench, headers):
    events = [bench.event("1"), bench.event("2", headers=headers), bench.event("3")]
    found = publish(bench.transport(), events)
    assert [type(one) for one in found] == [Confirmed, Refused, Confirmed]


@pytest.mark.parametrize("bench", ["nats"], indirect=True)
def test_an_event_that_a_full_nats_stream_rejects_is_unsure_immediately(bench):
    bench.limit(max_msgs=2, discard=DiscardPolicy.NEW)
    began = time.monotonic()
    found = publish(bench.transport(), bench.events(4))
    assert [type(one) for one in found] == [Confirmed, Confirmed, Unsure, Unsure]
    assert "maximum messages" in found[2].reason
    assert time.monotonic() - began < PROMPTLY


@pytest.mark.parametrize("bench", ["nats"], indirect=True)
def test_nats_stores_a_repeated_event_once(bench):
    events = bench.events(3)
    assert publish(bench.transport(), [*events, *events]) == [Confirmed()] * 6
    assert len(bench.arrived()) == 3


@pytest.mark.parametrize("bench", ["sqs"], indirect=True)
def test_a_fifo_queue_stores_a_repeated_event_once(bench):
    events = bench.events(3)
    assert publish(bench.transport(), events) == [Confirmed()] * 3
    assert publish(bench.transport(), events) == [Confirmed()] * 3
    assert len(bench.arrived()) == 3


@pytest.mark.parametrize("bench", ["sqs"], indirect=True)
def test_an_event_reaches_a_queue_through_a_topic_of_sns(bench):
    topic, options = bench.topic()
    event = bench.event("7", headers={"tenant": "eu"})
    assert publish(Sns(topic_arn=topic, options=options), [event]) == [Confirmed()]
    (one,) = bench.arrived()
    assert json.loads(one.body)["Message"] == event.as_json()


@pytest.mark.parametrize("bench", ["redis"], indirect=True)
def test_redis_needs_only_the_permission_to_add(bench):
    bench.command("ACL", "SETUSER", "adder", "on", ">adder-pw", "~*", "+xadd", "+multi", "+exec")
    transport = RedisStreams(url=f"redis://adder:adder-pw@127.0.0.1:{bench.cable.port}/0")
    assert publish(transport, bench.events(2)) == [Confirmed()] * 2


@pytest.mark.parametrize("bench", ["redis"], indirect=True)
def test_events_are_unsure_if_the_redis_user_lacks_the_permission_to_add(bench):
    bench.command("ACL", "SETUSER", "reader", "on", ">reader-pw", "~*", "+xread")
    transport = RedisStreams(url=f"redis://reader:reader-pw@127.0.0.1:{bench.cable.port}/0")
    found = publish(transport, bench.events(2))
    assert [type(one) for one in found] == [Unsure] * 2
    assert "reader-pw" not in str(found)
