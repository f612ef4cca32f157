"""Fan-out as values: which task takes which events, an event to be emitted, and what became of it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from ..errors import InvalidArgument
from .options import TaskOptions
from .records import Handle

EVERYTHING = "*"
"""Ends a pattern: whatever comes there."""
MAX_TOPIC = 200
"""Characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription(TaskOptions):
    """A row of `task_subscriptions`: this task is enqueued for every emitted event of these topics.

    The options of the task's declaration stand here too, because the emitting process may never have imported it.
    """

    topic: str
    """Exact, or a pattern: `order.*`, or `*` for all."""
    task_name: str
    parameter: str
    """The name under which the task takes the payload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """One event to be fanned out by `Store.emit`; the payload is encoded already."""

    id: UUID
    """Made by `uuid7.family()`: the `pipeline_execution_id` of all its tasks, whose ids are numbered from it."""
    topic: str
    payload: str = field(default="null", repr=False)
    """JSON."""
    partition_key: str | None = None
    available_at: datetime | None = None
    """The earliest moment, aware; None: now plus `delay`, by the database's clock."""
    delay: timedelta = timedelta(0)
    expires_at: datetime | None = None
    """Its tasks are not started from then on, aware; None: `expires_in` from now by the database's clock, or never."""
    expires_in: timedelta | None = None
    idempotency_key: str | None = None
    """One task for each subscriber and key, for ever (as long as the task is kept)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Emitted:
    """What `emit` returns."""

    pipeline_execution_id: UUID
    """Of the event, and of every task that was enqueued for it."""
    handles: Mapping[str, Handle]
    """A task for each subscriber, by the task's name; empty: nobody subscribes, which is recorded as `event_unrouted`.

    `created` is False where the idempotency key had a task already; `id` is then that task's.
    """


def patterns_of(subscribe: object) -> tuple[str, ...]:
    """Return the topics and patterns that a task subscribes to, each once. Raises InvalidArgument for one that no event could have."""
    if subscribe is None:
        return ()
    given = subscribe if isinstance(subscribe, Sequence) and not isinstance(subscribe, str) else [subscribe]
    return tuple(dict.fromkeys(check_pattern(one) for one in given))


def check_pattern(pattern: object) -> str:
    """Return the topic or pattern. Raises InvalidArgument for what is neither."""
    if not isinstance(pattern, str):
        raise InvalidArgument(f"subscribe= takes topics as text, not {type(pattern).__name__}")
    if not 1 <= len(pattern) <= MAX_TOPIC or "\0" in pattern:
        raise InvalidArgument(
            f"a topic to subscribe to has 1 to {MAX_TOPIC} characters, without NUL; {pattern[:40]!r} has not"
        )
    if EVERYTHING in pattern[:-1]:
        raise InvalidArgument(
            f"cannot subscribe to {pattern!r}: a * stands for the rest of the topic, so it comes last"
        )
    return pattern


def check_topic(topic: str) -> None:
    """Raises InvalidArgument for what cannot be emitted. (Length and characters are checked with everything else.)"""
    if not isinstance(topic, str):
        raise InvalidArgument(f"a topic is text, such as 'order.paid', not {type(topic).__name__}")
    if EVERYTHING in topic:
        raise InvalidArgument(f"cannot emit {topic!r}: patterns are for subscribing; emit one exact topic")
