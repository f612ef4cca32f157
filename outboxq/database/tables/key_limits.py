"""Define the table of what keys have used of their rates. What a queue allows each of its keys is in `queue_settings`."""

from __future__ import annotations

from sqlalchemy import Column, Index, Text

from .. import bounds
from ..column_types import BoundedInstant
from ..typed_table import TypedColumns, typed_table
from .metadata import metadata


class KeyRatesColumns(TypedColumns):
    """A row for each key that has lately used some of its rate. It is deleted when the key may start as many as at first."""

    queue = Column(Text, primary_key=True)
    partition_key = Column(Text, primary_key=True)
    full_at = Column(BoundedInstant, nullable=False)  # the time at which the bucket of starts is full again


key_rates = typed_table(
    "key_rates",
    metadata,
    KeyRatesColumns,
    Index("ix_key_rates_full_at", "queue", "full_at"),
    *bounds.of("key_rates"),
    storage={
        "autovacuum_vacuum_scale_factor": 0,
        "autovacuum_vacuum_threshold": 5000,
        "autovacuum_vacuum_cost_delay": 0,
    },
)
