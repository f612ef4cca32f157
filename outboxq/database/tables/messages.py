"""Define the tables for the messages that an application exchanges with other programs."""

from __future__ import annotations

from sqlalchemy import Column, Index, Text

from .. import bounds
from ..column_types import BoundedInstant
from ..typed_table import TypedColumns, typed_table
from .tasks import metadata


class InboxMessagesColumns(TypedColumns):
    """A row for each message that a consumer has accepted. The primary key prevents a second acceptance."""

    consumer = Column(Text, primary_key=True)
    source = Column(Text, primary_key=True)  # the program that chose the id; empty: the ids of one program are received
    message_id = Column(Text, primary_key=True)
    expires_at = Column(BoundedInstant, nullable=False)  # a prune deletes the row from this time on


inbox_messages = typed_table(
    "inbox_messages",
    metadata,
    InboxMessagesColumns,
    Index("ix_inbox_messages_expires_at", "expires_at"),
    *bounds.of("inbox_messages"),
)
