"""Define the tables for the messages that an application exchanges with other programs."""

from __future__ import annotations

from sqlalchemy import Column, Identity, Index, Integer, SmallInteger, Text, Uuid

from ..column_types import BigId, BoundedInstant, Instant, Number
from ..typed_table import TypedColumns, typed_table
from .tasks import AGGRESSIVE_VACUUM


class InboxMessagesColumns(TypedColumns):
    """A row for each message that a consumer has accepted. The primary key prevents a message from being accepted
    twice.
    """

    consumer = Column(Text, primary_key=True)
    source = Column(Text, primary_key=True)  # the program that chose the id; empty: all ids come from one program
    message_id = Column(Text, primary_key=True)
    expires_at = Column(BoundedInstant, nullable=False)  # a prune deletes the row from this time on


inbox_messages = typed_table(
    "inbox_messages", InboxMessagesColumns, Index("ix_inbox_messages_expires_at", "expires_at")
)


class RelaysColumns(TypedColumns):
    """A row for each relay to a broker. Its topics are subscriptions of the task `relay.NAME`."""

    name = Column(Text, primary_key=True)
    shards = Column(Integer, nullable=False)
    on_refused = Column(Text, nullable=False)
    paused_at = Column(BoundedInstant)
    pause_reason = Column(Text)
    failing_since = Column(BoundedInstant)  # the first of the failures since events were last confirmed; NULL: none
    failures = Column(Integer, nullable=False)  # the number of pauses since then; later ones are longer
    next_try_at = Column(BoundedInstant)  # no event is published before this time
    last_error = Column(Text)  # the reason for the last failure, kept after events are confirmed again
    created_at = Column(BoundedInstant, nullable=False)


relays = typed_table("relays", RelaysColumns)


class RelayShardsColumns(TypedColumns):
    """A row for each shard of a relay, with the lease of the worker that sends the shard's messages."""

    relay = Column(Text, primary_key=True)
    shard = Column(Integer, primary_key=True)
    lease_token = Column(Number, nullable=False)  # rises with each lease
    worker_id = Column(Uuid)  # NULL: no worker sends its messages
    lease_expires_at = Column(BoundedInstant)  # no other worker may take the shard before this time
    # The latest time at which its sender wakes without a notification. In the past or NULL: the sender is awake, or
    # there is none.
    sleeps_until = Column(Instant)


relay_shards = typed_table("relay_shards", RelayShardsColumns, storage={"fillfactor": 50, **AGGRESSIVE_VACUUM})


class RelayMessagesColumns(TypedColumns):
    """A row for each event that a relay has to publish. The row is deleted when the broker has confirmed the event."""

    id = Column(BigId, Identity(), primary_key=True)
    relay = Column(Text, nullable=False)
    slot = Column(
        SmallInteger, nullable=False
    )  # the partition key's slot; shard S of N sends the slots with slot % N = S
    event_id = Column(Uuid, nullable=False)
    topic = Column(Text, nullable=False)
    partition_key = Column(Text)
    headers = Column(Text)
    payload = Column(Text, nullable=False)
    created_at = Column(BoundedInstant, nullable=False)


relay_messages = typed_table(
    "relay_messages",
    RelayMessagesColumns,
    Index("ix_relay_messages_relay", "relay", "id"),
    sqlite_autoincrement=True,
    storage=AGGRESSIVE_VACUUM,
)
