"""Publishing a batch through a transport: which events each call contains, and what a failure says about the other events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from outboxq import CloudEvent, Confirmed, Unsure
from outboxq.model.transports import Outcome
from outboxq.worker.relays.publishing import Care, Message, Report, publish
from tests.memory_broker import Broker, lost, refused

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def message(number: int, key: str | None) -> Message:
    event = CloudEvent(id=uuid4(), source="shop", type="t", time=NOW, data=str(number), partition_key=key)
    return Message(number, event)


def published(broker: Broker, *messages: Message, holds: bool = True, care: Care = Care.NONE) -> Report:
    return publish(broker, messages, holds=holds, deadline=time.monotonic() + 60, care=care)


def test_a_call_has_one_event_of_each_key_and_all_without_a_key() -> None:
    broker = Broker()
    keys = ["a", "a", None, "b", "a", None]
    report = published(broker, *(message(number, key) for number, key in enumerate(keys)))
    assert broker.calls == [["0", "2", "3", "5"], ["1"], ["4"]]
    assert sorted(report.confirmed) == [0, 1, 2, 3, 4, 5]


def test_an_unsure_event_stops_its_key_and_a_refused_event_does_if_it_holds_the_key() -> None:
    for holds in (True, False):
        broker = Broker()
        broker.answers["0"], broker.answers["1"] = [lost], [refused]
        report = published(broker, *(message(number, "ab"[number % 2]) for number in range(4)), holds=holds)
        # The answers confirm neither 0 nor 1, so the broker may be down.
        assert (report.confirmed, list(report.refused), list(report.unsure)) == ([], [1], [0])
        broker.answers["0"], broker.answers["1"] = [lost], [refused]
        report = published(
            broker, *(message(number, "ab"[number % 2]) for number in range(4)), message(4, "c"), holds=holds
        )
        assert (report.confirmed, list(report.refused), list(report.unsure)) == ([4] if holds else [4, 3], [1], [0])


def test_no_call_begins_after_half_of_the_time() -> None:
    broker, times = Broker(), iter([0.0, 0.0, 4.9, 5.1])
    messages = [message(number, "a") for number in range(3)]
    report = publish(broker, messages, holds=True, deadline=10.0, clock=lambda: next(times))
    assert report.confirmed == [0, 1]
    assert not report.unsure, "an event that was not published is not unsure"


@pytest.mark.parametrize("seconds", [0.03, 0.7, 3.0, 7.0])
def test_a_key_with_many_events_is_not_cut_off_by_the_deadline(seconds: float) -> None:
    """The broker answers each call in time, but all calls together take longer than the batch may."""
    now = 0.0

    class Slow(Broker):
        def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
            nonlocal now
            now += seconds
            stored = super().publish(events, deadline)
            return stored if now <= deadline else [Unsure("the broker did not answer in time") for _ in events]

    broker, left = Slow(), [message(number, "a") for number in range(500)]
    for _ in range(3):
        report = publish(broker, left, holds=True, deadline=now + 10, clock=lambda: now)
        assert report.confirmed
        assert report.failure is None
        left = [one for one in left if one.id not in report.confirmed]
    assert broker.payloads == [str(number) for number in range(500 - len(left))], "no event is published twice"


def test_a_wrong_number_of_outcomes_is_an_error() -> None:
    class Wrong(Broker):
        def publish(self, events, deadline):  # type: ignore[no-untyped-def]
            return [Confirmed()]

    report = published(Wrong(), message(1, None), message(2, None))
    assert report.raised
    assert "one Confirmed, Refused or Unsure for each of 2 events" in str(report.failure)


def test_a_search_finds_the_bad_event_and_a_probe_tries_two() -> None:
    broker = Broker(poison="7")
    messages = [message(number, None) for number in range(20)]
    probed = published(broker, *messages, care=Care.PROBE)
    assert len(broker.calls) == 2
    assert probed.confirmed[0] == 0
    report = published(broker, *messages, care=Care.SEARCH)
    assert list(report.refused) == [7]
    assert not report.unsure
    assert sorted(report.confirmed) == [number for number in range(20) if number != 7]


def test_a_probe_gets_past_events_that_stay_unsure() -> None:
    """At the front, two such events would hold up all others."""
    broker = Broker()
    for payload in ("0", "1"):
        broker.answers[payload] = [lost] * 1000
    messages = [message(number, None) for number in range(8)]
    assert any(published(broker, *messages, care=Care.PROBE).confirmed for _ in range(200))


def test_a_probe_leaves_time_for_the_second_event_if_the_first_is_not_answered() -> None:
    """An event for an unavailable queue must not hold up events for other queues."""
    now = 0.0

    class Silent(Broker):
        def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
            nonlocal now
            if events[0].data == "0":
                now = deadline
            return super().publish(events, deadline) if now < deadline else [Unsure("no answer") for _ in events]

    broker = Silent()
    messages = [message(number, None) for number in range(2)]
    report = publish(broker, messages, holds=True, deadline=10.0, care=Care.PROBE, clock=lambda: now)
    assert (report.confirmed, list(report.unsure)) == ([1], [0])

    now = 0.0
    assert publish(broker, messages[:1], holds=True, deadline=10.0, care=Care.PROBE, clock=lambda: now).unsure
    assert now == 10.0, "a single event may use all the time"


def test_a_search_refuses_no_event_because_of_a_short_interruption() -> None:
    broker, errors = Broker(poison="0"), 0

    def end() -> None:
        nonlocal errors
        errors += "0" in broker.calls[-1]
        broker.poison = "0" if errors <= 5 else None

    broker.before = end
    report = published(broker, *(message(number, None) for number in range(4)), care=Care.SEARCH)
    assert (report.refused, report.unsure, len(report.confirmed)) == ({}, {}, 4)


def test_no_event_is_refused_if_the_broker_fails_during_a_search() -> None:
    broker = Broker(is_away=True)
    report = published(broker, *(message(number, None) for number in range(300)), care=Care.SEARCH)
    assert (report.refused, report.confirmed) == ({}, [])
    assert len(report.unsure) == 300
    assert len(broker.calls) <= 20

    broker = Broker()

    def leave() -> None:
        broker.is_away = len(broker.calls) > 2

    broker.before, broker.poison = leave, "0"
    report = published(broker, *(message(number, None) for number in range(4)), care=Care.SEARCH)
    assert report.refused == {}, "no other event was confirmed afterwards"
