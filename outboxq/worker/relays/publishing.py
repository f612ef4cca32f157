"""Publish a batch of events through a transport, so that the events for each partition key arrive in order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...model.cloud_events import CloudEvent
from ...model.transports import Confirmed, Refused, Transport, Unsure

_TRIES = 3
"""If this many consecutive calls with a single event raise errors, that event may be refused."""
_MOST_ERRORS = 16
"""The maximum number of consecutive calls that may raise an error in a search: enough to find one event among 500."""


class Care(Enum):
    """The care with which a batch is published. A failed batch is not repeated until two single events have been tried."""

    NONE = "none"
    """A call contains as many events as the order allows."""
    PROBE = "probe"
    """The first event and another event, each in a separate call with half of the time until the deadline. The other
    event is chosen at random, because the events at the front may be the cause of the error.
    """
    SEARCH = "search"
    """A call contains as many events as with `NONE`, but a call that raises an error is repeated in halves, to find the
    event that causes the error.
    """


@dataclass(frozen=True, slots=True)
class Message:
    """An event with the id of its row."""

    id: int
    event: CloudEvent


@dataclass(eq=False)
class Report:
    """The outcomes of the events in a batch. An event without an outcome has not been published."""

    confirmed: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    unsure: dict[int, str] = field(default_factory=dict)
    raised: bool = False
    """True if the transport raised an error."""

    @property
    def failure(self) -> str | None:
        """The reason why the relay must pause; None if the relay may continue."""
        return next(reversed(self.unsure.values()), None)


def publish(
    transport: Transport,
    messages: Sequence[Message],
    *,
    holds: bool,
    deadline: float,
    care: Care = Care.NONE,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Publish the messages, and return their outcomes. No call begins once half of the time until the deadline has
    passed. The deadline could cut off a call that began later, even though the broker was answering as fast as before.
    The events of that call would then be published twice.

    A call to the transport contains at most one event for each partition key, and the key's next event follows only
    after the answer to the previous one has arrived. Otherwise, a broker could have a later event for a key but lack an
    earlier one. An event that is `Unsure` may have to be repeated. If `holds` is True, the broker must not receive the
    later events for a key while an earlier one is refused. So after an event without a confirmation, the later events
    for its key are not published: always after Unsure, but after Refused only if `holds` is True. Events without a key
    have no order, and all of them are in the first call.
    """
    report, left = Report(), list(messages)
    began = clock()
    latest = began + (deadline - began) / 2
    if care is Care.PROBE:
        first, *others = _first_of_each_key(left)[0]
        _call(transport, [first], latest if others else deadline, report)
        for one in random.sample(others, min(1, len(others))):
            _call(transport, [one], deadline, report)
        return report
    while left and clock() < latest:
        wave, left = _first_of_each_key(left)
        before = len(report.confirmed)
        if care is Care.SEARCH:
            _search(transport, wave, deadline, report)
        else:
            _call(transport, wave, deadline, report)
        if report.unsure and len(report.confirmed) == before:
            break  # the broker is probably unavailable
        stopped = {
            one.event.partition_key for one in wave if one.id in report.unsure or (holds and one.id in report.refused)
        }
        left = [one for one in left if one.event.partition_key not in stopped]
    return report


def _first_of_each_key(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Return two lists: one with the first message for each partition key and all messages without a key, and one with
    the remaining messages.
    """
    seen: set[str] = set()
    first, others = [], []
    for one in messages:
        key = one.event.partition_key
        if key is None or key not in seen:
            first.append(one)
        else:
            others.append(one)
        if key is not None:
            seen.add(key)
    return first, others


def _call(transport: Transport, messages: Sequence[Message], deadline: float, report: Report) -> bool:
    """Publish these messages in one call, and add their outcomes to the report. Returns False if the call raised an
    error.
    """
    try:
        outcomes = transport.publish([one.event for one in messages], deadline)
        if len(outcomes) != len(messages) or not all(isinstance(one, Confirmed | Refused | Unsure) for one in outcomes):
            raise TypeError(
                f"publish() must return one Confirmed, Refused or Unsure for each of {len(messages)} events"
            )
    except Exception as error:  # noqa: BLE001 - a transport may raise anything, and the relay has to continue
        report.raised = True
        report.unsure |= dict.fromkeys((one.id for one in messages), f"{type(error).__name__}: {error}")
        return False
    for one, outcome in zip(messages, outcomes, strict=True):
        match outcome:
            case Unsure(reason):
                report.unsure[one.id] = reason
                continue
            case Refused(reason):
                report.refused[one.id] = reason
            case Confirmed():
                report.confirmed.append(one.id)
        report.unsure.pop(one.id, None)  # an earlier call with this event may have raised an error
    return True


def _search(transport: Transport, messages: Sequence[Message], deadline: float, report: Report) -> None:
    """Publish these messages in smaller and smaller calls, as long as the calls raise errors.

    An event is refused if several consecutive calls with only this event raise errors, another event is then confirmed,
    and one more call with only this event raises an error. In that case, the broker was available, so the event is the
    cause. Otherwise, the event remains `Unsure`.
    """
    suspects: dict[int, int] = {}
    errors = 0
    parts = [list(messages)]
    while parts and errors < _MOST_ERRORS and time.monotonic() < deadline:
        part = parts.pop()
        for _ in range(_TRIES if len(part) == 1 else 1):
            if _call(transport, part, deadline, report):
                errors = 0
                break
            errors += 1
        else:
            if len(part) == 1:
                suspects[part[0].id] = len(report.confirmed)
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    by_id = {one.id: one for one in messages}
    for suspect, confirmed_before in suspects.items():
        if len(report.confirmed) == confirmed_before:
            continue
        if not _call(transport, [by_id[suspect]], deadline, report):
            report.refused[suspect] = f"publish() raised {report.unsure.pop(suspect)}"
