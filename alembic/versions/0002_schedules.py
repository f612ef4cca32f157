"""The tables of schedules and their ticks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.migrations import admit_from

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


class Bounded(sa.types.UserDefinedType[Any]):
    """A domain of revision 0001."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


instant = Bounded("outboxq_instant").with_variant(sa.Text(), "sqlite")
seconds = Bounded("outboxq_seconds").with_variant(sa.Double(), "sqlite")
attempts = Bounded("outboxq_attempts").with_variant(sa.Integer(), "sqlite")

CHECKS = {
    "task_schedules": {
        "names": "name <> '' AND task_name <> '' AND queue <> '' AND rule <> '' AND tz <> ''",
        "priority": "priority BETWEEN -100 AND 100",
        "on_dead_letter": "on_dead_letter = 'release' OR on_dead_letter = 'hold'",
        "overlap": "overlap = 'allow' OR overlap = 'queue' OR overlap = 'skip'",
        "catch_up": "catch_up_limit >= 1 AND (catch_up = 'none' OR catch_up = 'latest' OR catch_up = 'all')",
    },
}
"""On both databases."""
SQLITE_CHECKS = {
    "task_schedules": {
        **{column: f"typeof({column}) <> 'blob'" for column in ("name", "task_name", "args", "queue", "rule", "tz")},
        **{
            column: f"{column} GLOB '????-??-??T??:??:??.??????+00:00' AND {column} >= '1970' AND {column} < '9001'"
            for column in ("starts_at", "ends_at", "planted_until", "paused_at", "created_at", "updated_at")
        },
        **{
            column: f"{column} > 0 AND {column} <= 3200000000"
            for column in ("lease_seconds", "timeout_seconds", "grace_seconds", "jitter_seconds")
        },
        "max_attempts": "max_attempts >= 1 AND max_attempts <= 2147483646",
    },
    "schedule_ticks": {
        "task_execution_id": "length(task_execution_id) = 32 AND lower(task_execution_id) = task_execution_id "
        "AND task_execution_id < 'g'",
        "tick": "tick GLOB '????-??-??T??:??:??.??????+00:00' AND tick >= '1970' AND tick < '9001'",
    },
}
"""What PostgreSQL's types say."""


def upgrade() -> None:
    op.create_table(
        "task_schedules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_attempts", attempts),
        sa.Column("lease_seconds", seconds, nullable=False),
        sa.Column("timeout_seconds", seconds),
        sa.Column("on_dead_letter", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("tz", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("catch_up_limit", sa.Integer(), nullable=False),
        sa.Column("grace_seconds", seconds),
        sa.Column("jitter_seconds", seconds),
        sa.Column("starts_at", instant, nullable=False),
        sa.Column("ends_at", instant),
        sa.Column("declared_by", sa.Text()),
        sa.Column("declaration", sa.Text()),
        sa.Column("planted_until", instant, nullable=False),
        sa.Column("paused_at", instant),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("updated_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_task_schedules"),
        *_checks("task_schedules"),
    )
    op.create_table(
        "schedule_ticks",
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("tick", instant, nullable=False),
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("schedule", "tick", name="pk_schedule_ticks"),
        *_checks("schedule_ticks"),
    )
    op.create_index("ix_schedule_ticks_task_execution_id", "schedule_ticks", ["task_execution_id"])
    admit_from("0001")


def downgrade() -> None:
    op.drop_table("schedule_ticks")
    op.drop_table("task_schedules")
    admit_from("0001")


def _checks(table: str) -> list[sa.CheckConstraint]:
    conditions = dict(CHECKS.get(table, {}))
    if context.get_context().dialect.name == "sqlite":
        conditions |= SQLITE_CHECKS.get(table, {})
    return [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]
