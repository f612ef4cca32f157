"""The guarantees of every source, on a real broker: see `outboxq.model.transports`."""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import closing
from subprocess import PIPE, STDOUT

import pytest

from outboxq import TaskStatus
from outboxq.errors import SourceUnavailable
from outboxq.task.receivers import Reader
from outboxq.worker.receiver import Receiver
from tests import forked
from tests.brokers.conftest import AVAILABLE
from tests.brokers.receiving import service
from tests.forked import ROOT
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.apart


@pytest.fixture
def connections(bench):
    """Open connections. Those that a test leaves open are closed."""
    made = []

    def connect():
        made.append(bench.source().connect())
        return made[-1]

    yield connect
    for one in made:
        one.close()


def receive(connection, count):
    """Return the next `count` messages."""
    found = []
    until(lambda: found.extend(connection.receive(count - len(found), time.monotonic() + 1)) or len(found) >= count)
    return found


def publish(bench, events):
    transport = bench.transport()
    until(
        lambda: {type(one).__name__ for one in transport.publish(events, time.monotonic() + PATIENCE)} == {"Confirmed"}
    )
    transport.close()


def numbers(messages):
    return [json.loads(one.body)["data"] for one in messages]


def test_events_published_by_a_transport_arrive_in_order(bench, connections):
    events = [bench.event(str(number), partition_key="ada", headers={"tenant": "eu"}) for number in range(10)]
    publish(bench, events)
    connection = connections()
    found = receive(connection, 10)
    assert [one.body.decode() for one in found] == [event.as_json() for event in events]
    assert all(one.headers["tenant"] == "eu" for one in found)
    connection.acknowledge(found)


def test_attributes_arrive_if_only_the_payload_is_sent(bench, connections):
    transport = bench.transport(body="payload")
    event = bench.event('{"total": 1.10}', partition_key="ada")
    transport.publish([event], time.monotonic() + PATIENCE)
    transport.close()
    (one,) = receive(connections(), 1)
    assert one.body == b'{"total": 1.10}'
    found = {name: one.headers[f"ce_{name}"] for name in ("id", "source", "type", "partitionkey")}
    assert found == {"id": str(event.id), "source": "shop", "type": bench.place, "partitionkey": "ada"}


def test_a_message_that_is_not_a_cloud_event_has_an_id_and_a_type(bench, connections):
    bench.send("[1]", message_id="m1")
    (one,) = receive(connections(), 1)
    assert one.body == b"[1]"
    assert one.id
    assert one.type


@pytest.mark.parametrize("bench", ["nats"], indirect=True)
def test_a_header_named_status_does_not_stop_a_nats_receiver(bench, connections):
    """nats-py mistakes a message with this header for a server error, and would never return it."""
    publish(bench, [bench.event(headers={"Status": value}) for value in ("503", "paid")])
    found = receive(connections(), 2)
    assert [one.headers["Status"] for one in found] == ["503", "paid"]


def test_acknowledged_messages_are_not_delivered_again(bench, connections):
    publish(bench, [bench.event(str(number)) for number in range(4)])
    bench.deliver_again_soon()
    first = connections()
    found = receive(first, 4)
    first.acknowledge(found[:2])
    left = {0, 1, 2, 3} - set(numbers(found[:2]))
    first.close()

    second = connections()
    found = []
    until(lambda: found.extend(numbers(second.receive(10, time.monotonic() + 1))) or left <= set(found))
    assert set(found) == left


def test_a_message_that_was_lost_with_its_connection_arrives_before_later_ones(bench):
    bench.deliver_again_soon()
    bench.keep_order()
    source = bench.source()
    publish(bench, [bench.event("0", partition_key="ada")])
    with closing(source.connect()) as connection:
        assert numbers(receive(connection, 1)) == [0]
    publish(bench, [bench.event(str(number), partition_key="ada") for number in range(1, 5)])
    found = []
    with closing(source.connect()) as connection:
        while len(found) < 5:
            messages = receive(connection, 1)
            connection.acknowledge(messages)
            found += numbers(messages)
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("bench", ["nats"], indirect=True)
def test_messages_arrive_immediately_if_the_consumer_permits_fewer_than_are_requested(bench, connections, most):
    bench.configure(max_ack_pending=most)
    publish(bench, [bench.event(str(number)) for number in range(4)])
    connection, start, found = connections(), time.monotonic(), []
    for _ in range(4 // most):
        messages = connection.receive(10, time.monotonic() + PATIENCE)
        connection.acknowledge(messages)
        found += numbers(messages)
    assert found == [0, 1, 2, 3]
    assert time.monotonic() < start + PATIENCE / 2


def test_messages_whose_acknowledgement_fails_are_delivered_again_but_enqueued_once(bench, tmp_path):
    """This test does in one process what the last one does with killed workers: Tansu does not expire a dead member of a group."""
    bench.deliver_again_soon()
    source = Failing(bench.source())
    outbox, _ = service(tmp_path, source)
    outbox.upgrade()
    publish(bench, [bench.event(str(number), partition_key="ada") for number in range(10)])
    ((_, receivers),) = outbox.tasks.receivers
    receiver = Receiver(source, Reader(source, receivers), outbox.store, threading.Event())

    def received():
        try:
            receiver.run_once()
        except SourceUnavailable:
            return False
        return len(source.acknowledged) == 10

    until(received, every=0)
    receiver.close()
    assert source.faults == 0
    assert len(outbox.store.tasks(task="book", limit=100)) == 10
    outbox.store.engine.dispose()


class Failing:
    """A source whose first acknowledgements fail."""

    def __init__(self, source):
        self.source, self.faults, self.acknowledged = source, 2, set()

    def connect(self):
        connection = self.source.connect()
        acknowledge = connection.acknowledge

        def fail_or_acknowledge(messages):
            if self.faults:
                self.faults -= 1
                raise ConnectionError("lost")
            acknowledge(messages)
            self.acknowledged |= set(numbers(messages))

        connection.acknowledge = fail_or_acknowledge
        return connection


def test_receiving_without_messages_returns_at_the_deadline(bench, connections):
    connection = connections()
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:  # the first call may return early while the group forms
        assert list(connection.receive(10, deadline)) == []


@pytest.mark.parametrize("bench", [name for name in AVAILABLE if name != "kafka"], indirect=True)
def test_a_worker_that_is_killed_between_its_commit_and_the_acknowledgement_enqueues_each_message_once(bench, tmp_path):
    outbox, _ = service(tmp_path, bench.source())
    outbox.upgrade()
    publish(bench, [bench.event(str(number), partition_key="ada") for number in range(30)])
    bench.deliver_again_soon()
    bench.pickle_source(tmp_path / "source")
    (tmp_path / "deaths").write_text("xx")
    command = [*forked.PYTHON, "-m", "tests.brokers.receiving", str(tmp_path)]

    for _ in range(2):
        killed = forked.run(command, cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True, timeout=PATIENCE * 3)
        assert killed.returncode == -signal.SIGKILL, killed.stdout
    publish(bench, [bench.event("30")])
    living = forked.Popen(command, cwd=ROOT)
    try:
        until(
            lambda: len(outbox.store.tasks(task="book", status=TaskStatus.COMPLETED, limit=100)) == 31,
            seconds=2 * PATIENCE,
        )
    finally:
        living.terminate()
        assert living.wait(PATIENCE) == 0
    assert len(outbox.store.tasks(limit=100)) == 31
    assert outbox.store.verify() == []
    outbox.store.engine.dispose()
