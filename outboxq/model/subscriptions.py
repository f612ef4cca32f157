"""Values of the fan-out: subscriptions, events to be emitted, and the answer of an emit. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from ..errors import InvalidArgument
from .options import TaskOptions, bad_name, is_name
from .records import Handle

EVERYTHING = "*"
"""End of a pattern: it stands for any further characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription(TaskOptions):
    """A row of `task_subscriptions`: this task is enqueued for every emitted event of these topics.

    The options of the task's declaration are stored here too, because the emitting process may never have imported it.
    """

    topic: str
    """An exact topic, or a pattern: `order.*`, or `*` for all."""
    task_name: str
    parameter: str
    """Name of the parameter that takes the payload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """An event for `Store.emit` to fan out; its payload is already encoded."""

    id: UUID
    """An id of `uuid7.family()`: the `pipeline_execution_id` of all its tasks, whose ids are counted up from it."""
    topic: str
    payload: str = field(default="null", repr=False)
    """The payload as JSON."""
    partition_key: str | None = None
    concurrency_key: str | None = None
    available_at: datetime | None = None
    """When its tasks are due, aware; None: now plus `delay`, by the database's clock."""
    delay: timedelta = timedelta(0)
    expires_at: datetime | None = None
    """When its tasks expire and are no longer started, aware; None: `expires_in` from now, or never."""
    expires_in: timedelta | None = None
    idempotency_key: str | None = None
    """A key for which each subscriber has one task, as long as that task is kept."""
    headers: str | None = field(default=None, repr=False)
    """The headers for all its tasks, as one JSON object of strings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emitted:
    """The answer of `emit`: the event's id, and a handle for each subscriber."""

    pipeline_execution_id: UUID
    """The id of the event, shared by every task that was enqueued for it."""
    handles: Mapping[str, Handle]
    """The handle of each subscriber's task, by the task's name; empty without a subscriber, recorded as `event_unrouted`.

    `created` is False where the idempotency key already had a task; `id` is then that task's.
    """


def patterns_of(subscribe: object) -> tuple[str, ...]:
    """Return the topics and patterns that a task subscribes to, each once. Raises InvalidArgument for one that no event
    could match.
    """
    if subscribe is None:
        return ()
    given = subscribe if isinstance(subscribe, Sequence) and not isinstance(subscribe, str) else [subscribe]
    return tuple(dict.fromkeys(check_pattern(one) for one in given))


def check_pattern(pattern: object) -> str:
    """Return the topic or pattern. Raises InvalidArgument for anything else."""
    if not isinstance(pattern, str):
        raise InvalidArgument(f"subscribe= takes topics as text, not {type(pattern).__name__}")
    if not is_name(pattern):
        raise bad_name("topic", f"the subscription to {pattern[:40]!r}")
    if EVERYTHING in pattern[:-1]:
        raise InvalidArgument(
            f"cannot subscribe to {pattern!r}: a * stands for the rest of the topic, so it comes last"
        )
    return pattern


def check_topic(topic: str) -> None:
    """Raise InvalidArgument for a topic that cannot be emitted. Its length and characters are checked with the other values."""
    if not isinstance(topic, str):
        raise InvalidArgument(f"a topic is text, such as 'order.paid', not {type(topic).__name__}")
    if EVERYTHING in topic:
        raise InvalidArgument(f"cannot emit {topic!r}: patterns are for subscribing; emit one exact topic")
