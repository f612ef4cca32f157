"""Records for the fan-out: subscriptions, events to be emitted, and the results of an emit. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from ..errors import InvalidArgument
from .options import TaskOptions, bad_name, is_name
from .records import Handle

EVERYTHING = "*"
"""The last character of a pattern. It matches the rest of the topic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription(TaskOptions):
    """A row of `task_subscriptions`: this task is enqueued for every emitted event whose topic matches.

    The row also contains the task's declared options, because the emitting process may never have imported the task.
    """

    topic: str
    """An exact topic, a pattern such as `order.*`, or `*` for all topics."""
    task_name: str
    parameter: str | None
    """The name of the parameter that receives the payload; None for a relay to a broker, for which a message is written
    instead of a task.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """An event for `Store.emit` to fan out. Its payload is already encoded."""

    id: UUID
    """An id from `uuid7.family()`. It is the `pipeline_execution_id` of all of the event's tasks, whose ids count up
    from it.
    """
    topic: str
    payload: str = field(default="null", repr=False)
    """The payload as JSON."""
    partition_key: str | None = None
    concurrency_key: str | None = None
    available_at: datetime | None = None
    """The time at which the event's tasks are due, as an aware datetime. None means now plus `delay`, by the database's
    clock.
    """
    delay: timedelta = timedelta(0)
    expires_at: datetime | None = None
    """The time after which the event's tasks are no longer started, as an aware datetime. If it is None, the tasks
    expire after `expires_in`, counted from now. If both are None, the tasks never expire.
    """
    expires_in: timedelta | None = None
    idempotency_key: str | None = None
    """A key for which each subscriber has at most one task, for as long as that task is kept."""
    headers: str | None = field(default=None, repr=False)
    """The headers for all of the event's tasks, as one JSON object of strings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emitted:
    """The return value of `emit`: the event's id, a handle for each subscriber, and the relays that publish the event."""

    pipeline_execution_id: UUID
    """The id of the event, shared by every task that was enqueued for it."""
    handles: Mapping[str, Handle]
    """The handle of each subscriber's task, by the task's name; empty if no task subscribes. If there is no relay to a
    broker either, `event_unrouted` is recorded.

    A handle's `created` is False if the idempotency key already belonged to a task. The handle's `id` is then the id of
    that task.
    """
    relays: tuple[str, ...] = ()
    """The names of the relays to brokers that publish the event, sorted. A relay that has already received an event
    with this idempotency key is not included. A relay to a webhook is a task, so its handle is in `handles`.
    """


def patterns_of(subscribe: object) -> tuple[str, ...]:
    """Return the topics and patterns to which a task subscribes, without duplicates. Raises InvalidArgument for a
    pattern that cannot match any event.
    """
    if subscribe is None:
        return ()
    given = subscribe if isinstance(subscribe, Sequence) and not isinstance(subscribe, str) else [subscribe]
    return tuple(dict.fromkeys(check_pattern(one) for one in given))


def check_pattern(pattern: object) -> str:
    """Return the topic or pattern. Raises InvalidArgument for anything else."""
    if not isinstance(pattern, str):
        raise InvalidArgument(f"subscribe= takes topics as strings, not {type(pattern).__name__}")
    if not is_name(pattern):
        raise bad_name("topic", f"the subscription to {pattern[:40]!r}")
    if EVERYTHING in pattern[:-1]:
        raise InvalidArgument(
            f"cannot subscribe to {pattern!r}: a * matches the rest of the topic, so it must come last"
        )
    return pattern


def check_topic(topic: str) -> None:
    """Raise InvalidArgument for a topic that cannot be emitted. Its length and characters are checked later, with the
    other values.
    """
    if not isinstance(topic, str):
        raise InvalidArgument(f"a topic must be a string, such as 'order.paid', not {type(topic).__name__}")
    if EVERYTHING in topic:
        raise InvalidArgument(f"cannot emit {topic!r}: patterns can only be used to subscribe; emit an exact topic")
