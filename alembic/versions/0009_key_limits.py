"""The tables of the limits per key: what a queue allows each of its keys, and what a key has used of its rate."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.migrations import admit_from

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STORAGE = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_cost_delay": 0,
}


class Bounded(sa.types.UserDefinedType[Any]):
    """A domain of revision 0001."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


instant = Bounded("outboxq_instant").with_variant(sa.Text(), "sqlite")
seconds = Bounded("outboxq_seconds").with_variant(sa.Double(), "sqlite")

CHECKS = {"key_limits": {"limits": "concurrency_limit >= 1 AND key_concurrency >= 1 AND key_rate_limit >= 1"}}
SQLITE_CHECKS = {
    "key_limits": {
        "queue": "typeof(queue) <> 'blob'",
        "key_rate_seconds": "key_rate_seconds > 0 AND key_rate_seconds <= 3200000000",
    },
    "key_rates": {
        "queue": "typeof(queue) <> 'blob'",
        "partition_key": "typeof(partition_key) <> 'blob'",
        "full_at": "full_at GLOB '????-??-??T??:??:??.??????+00:00' AND full_at >= '1970' AND full_at < '9001'",
    },
}
"""What PostgreSQL's types say."""


def upgrade() -> None:
    op.create_table(
        "key_limits",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("concurrency_limit", sa.Integer()),
        sa.Column("key_concurrency", sa.Integer()),
        sa.Column("key_rate_limit", sa.Integer()),
        sa.Column("key_rate_seconds", seconds),
        sa.PrimaryKeyConstraint("queue", name="pk_key_limits"),
        *_checks("key_limits"),
    )
    op.create_table(
        "key_rates",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("full_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("queue", "partition_key", name="pk_key_rates"),
        *_checks("key_rates"),
    )
    op.create_index("ix_key_rates_full_at", "key_rates", ["queue", "full_at"])
    if context.get_context().dialect.name == "postgresql":
        options = ", ".join(f"{name} = {value}" for name, value in STORAGE.items())
        op.execute(f"ALTER TABLE key_rates SET ({options})")
    admit_from("0001")


def downgrade() -> None:
    # A queue with limits per key would stay closed: its concurrency limit is 0, and the true one is here.
    op.execute(
        "UPDATE queue_settings SET concurrency_limit = (SELECT mine.concurrency_limit FROM key_limits AS mine "
        "WHERE mine.queue = queue_settings.queue) WHERE concurrency_limit = 0 AND queue IN (SELECT queue FROM key_limits)"
    )
    op.drop_table("key_rates")
    op.drop_table("key_limits")
    admit_from("0001")


def _checks(table: str) -> list[sa.CheckConstraint]:
    conditions = dict(CHECKS.get(table, {}))
    if context.get_context().dialect.name == "sqlite":
        conditions |= SQLITE_CHECKS.get(table, {})
    return [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]
