"""Define the tables of the limits per key: what a queue allows each of its keys, and what a key has used of its rate."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, Text

from .. import bounds
from ..column_types import BoundedInstant, Seconds
from ..typed_table import TypedColumns, typed_table
from .metadata import metadata


class KeyLimitsColumns(TypedColumns):
    """A row for each queue that limits its keys.

    Such a queue has `concurrency_limit` 0 in `queue_settings`, and the limit of the whole queue here. So a release that does not
    know this table claims nothing of the queue, and every claim goes by way of the lock that the limits are counted under.
    """

    queue = Column(Text, primary_key=True)
    concurrency_limit = Column(Integer)  # of the whole queue
    key_concurrency = Column(Integer)  # of each concurrency key; NULL: 1
    key_rate_limit = Column(Integer)  # of each key of either kind
    key_rate_seconds = Column(Seconds)


key_limits = typed_table("key_limits", metadata, KeyLimitsColumns, *bounds.of("key_limits"))


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
