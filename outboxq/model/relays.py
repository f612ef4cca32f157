"""Records for relays to message brokers. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from ..errors import InvalidArgument
from .options import OnDeadLetter, bad_name, is_name
from .subscriptions import check_pattern

RELAY_PREFIX: Final = "relay."
"""The prefix of each relay's task name and queue name."""
MOST_SHARDS: Final = 64
REMEMBERED: Final = timedelta(days=7)
"""The minimum period for which the idempotency key of a relay's event is kept, so that the relay does not receive
another event with this key. The first prune after this period deletes the key.
"""
_SLOTS: Final = 256


class OnRefused(StrEnum):
    """The effect that a refused event has on its partition key."""

    HOLD = "hold"
    """The key's later events wait until the dead letter is redriven or discarded."""
    SKIP = "skip"
    """The key's later events are published."""

    @property
    def of_dead_letters(self) -> OnDeadLetter:
        """The equivalent `OnDeadLetter` value, for the task that becomes a dead letter when an event is refused."""
        return OnDeadLetter.HOLD if self is OnRefused.HOLD else OnDeadLetter.RELEASE


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRelay:
    """A relay as the code declares it."""

    name: str
    topics: Sequence[str]
    """Exact topics, or patterns such as ``order.*``."""
    shards: int = 1
    """The number of shards. They can be published at the same time, each by one worker."""
    on_refused: OnRefused = OnRefused.HOLD


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardLease:
    """A worker's exclusive right to send the messages of one shard."""

    relay: str
    shard: int
    token: int
    worker_id: UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayShard:
    """One shard of a relay, for display."""

    shard: int
    worker_id: UUID | None
    """The worker that publishes the shard's messages; None if no worker does."""
    worker: str | None
    """The label of the worker that publishes the shard's messages, if the label is known."""
    lease_expires_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Relay:
    """A relay as it is stored, with its backlog."""

    name: str
    topics: Sequence[str]
    shards: Sequence[RelayShard]
    on_refused: OnRefused
    paused_at: datetime | None
    pause_reason: str | None
    failing_since: datetime | None
    """The time of the first failure since the broker last confirmed an event; None if the relay is not failing."""
    next_try_at: datetime | None
    """The time before which nothing is published; None if there is no such time."""
    created_at: datetime
    last_error: str | None
    """The reason for the last failure, which is kept even after the broker works again."""
    messages: int = 0
    """The number of events that the broker has not confirmed, up to `COUNTED`."""
    oldest_at: datetime | None = None
    """The time of the oldest event that the broker has not confirmed; None if there is no such event."""
    dead_letters: int = 0
    """The number of events that the broker refused and that are still dead letters, up to `COUNTED`."""
    redriven: int = 0
    """The number of refused events that were redriven but that no worker has published yet, up to `COUNTED`."""

    @property
    def is_sent(self) -> bool:
        """True if each shard has a worker."""
        return all(one.worker_id is not None for one in self.shards)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardBacklog:
    """The events in one shard that the broker has not confirmed."""

    shard: int
    messages: int
    """The number of unconfirmed events in the shard, among the relay's first `COUNTED` events."""
    oldest_at: datetime
    """The time of the oldest unconfirmed event in the shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldRelayKey:
    """A relay's partition key that is held by an event that the broker refused."""

    partition_key: str
    event_id: UUID
    """The event that was refused."""
    topic: str | None
    """The topic of the refused event."""
    dead_letter: UUID
    """The task that publishes the event when it is redriven."""
    failed_at: datetime | None
    error: str | None
    """The reason for the refusal."""
    waiting: int
    """The number of the key's events that are waiting, among the relay's first `COUNTED` events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayDetail:
    """A relay with its backlog per shard, and the keys held by refused events."""

    at: datetime
    """The time at which the relay was read, by the database's clock."""
    relay: Relay
    backlogs: Sequence[ShardBacklog]
    """The shards that have events, sorted by number."""
    held_keys: Sequence[HeldRelayKey]
    """The keys, longest held first."""


COUNTED: Final = 100_000
"""The number up to which a relay's events are counted."""


def is_counted(number: int) -> bool:
    """Return whether a count of a relay's events is exact. Otherwise, there may be more events."""
    return number < COUNTED


def count_of(number: int) -> str:
    """Return a count of a relay's events in words, with a + if there may be more events."""
    return str(number) if is_counted(number) else f"{number}+"


def task_of(relay: str) -> str:
    """Return the name of the relay's task, which is also the name of its queue."""
    return f"{RELAY_PREFIX}{relay}"


def slot_of(key: str | None, event_id: UUID) -> int:
    """Return an event's slot, which determines its shard. The slot is derived from the partition key or, if there is no
    partition key, from the id.

    All events with the same key are therefore in one shard, and events without a key are spread over all shards.
    """
    return zlib.crc32(event_id.bytes if key is None else key.encode()) % _SLOTS


def check_relay(relay: NewRelay) -> None:
    """Raise InvalidArgument for a relay that cannot be stored."""
    called = f"relay {str(relay.name)[:40]!r}"
    if not is_name(relay.name):
        raise bad_name("name", called)
    if not relay.topics:
        raise InvalidArgument(f"{called} has no topics, so it would never send an event")
    for topic in relay.topics:
        check_pattern(topic)
    if type(relay.shards) is not int or not 1 <= relay.shards <= MOST_SHARDS:
        raise InvalidArgument(
            f"shards of {called} must be a whole number from 1 to {MOST_SHARDS}, not {relay.shards!r}"
        )


class RelayState(StrEnum):
    """The state of a relay, for display."""

    FAILING = "failing"
    """The broker has not confirmed any event since the last failure."""
    UNSENT = "unsent"
    """Events are waiting, and at least one shard has no worker."""
    PAUSED = "paused"
    ACTIVE = "active"
    """Each shard has a worker."""
    IDLE = "idle"
    """No event is waiting, and at least one shard has no worker."""


def state_of(relay: Relay) -> RelayState:
    """Return the state of a relay."""
    if relay.paused_at is not None:
        return RelayState.PAUSED
    if relay.failing_since is not None:
        return RelayState.FAILING
    if relay.is_sent:
        return RelayState.ACTIVE
    return RelayState.UNSENT if relay.messages else RelayState.IDLE
