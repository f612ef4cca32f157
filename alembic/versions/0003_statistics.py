"""The tables of statistics: what workers counted, and samples of what waits."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.migrations import admit_from

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BUCKETS = 23


class Bounded(sa.types.UserDefinedType[Any]):
    """A domain of revision 0001."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


instant = Bounded("outboxq_instant").with_variant(sa.Text(), "sqlite")

COUNTS = (
    "completed",
    "retried",
    "failed",
    "cancelled",
    "snoozed",
    "released",
    "lost",
    "timed_out",
    "timed_out_last",
)


def _instants(*columns: str) -> dict[str, str]:
    return {
        column: f"{column} GLOB '????-??-??T??:??:??.??????+00:00' AND {column} >= '1970' AND {column} < '9001'"
        for column in columns
    }


SQLITE_CHECKS = {
    "task_metrics": {
        "id": "length(id) = 32 AND lower(id) = id AND id < 'g'",
        "queue": "typeof(queue) <> 'blob'",
        "task_name": "typeof(task_name) <> 'blob'",
        **_instants("at"),
    },
    "queue_samples": {"queue": "typeof(queue) <> 'blob'", **_instants("at", "oldest_ready_at")},
    "maintenance_jobs": _instants("due_at", "done_at"),
}
"""What PostgreSQL's types say."""


def upgrade() -> None:
    op.create_table(
        "task_metrics",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", instant, nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Uuid()),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in COUNTS),
        sa.Column("wait_seconds", sa.Double(), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=False),
        *(
            sa.Column(f"{name}_{bucket}", sa.Integer(), nullable=False)
            for name in ("wait", "run")
            for bucket in range(BUCKETS)
        ),
        sa.PrimaryKeyConstraint("id", name="pk_task_metrics"),
        *_checks("task_metrics"),
    )
    op.create_index("ix_task_metrics_at", "task_metrics", ["at"])
    op.create_table(
        "queue_samples",
        sa.Column("at", instant, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("ready", sa.BigInteger(), nullable=False),
        sa.Column("delayed", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("oldest_ready_at", instant),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("at", "queue", name="pk_queue_samples"),
        *_checks("queue_samples"),
    )
    op.create_table(
        "maintenance_jobs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("due_at", instant, nullable=False),
        sa.Column("done_at", instant),
        sa.PrimaryKeyConstraint("name", name="pk_maintenance_jobs"),
        *_checks("maintenance_jobs"),
    )
    admit_from("0001")


def downgrade() -> None:
    for table in ("maintenance_jobs", "queue_samples", "task_metrics"):
        op.drop_table(table)
    admit_from("0001")


def _checks(table: str) -> list[sa.CheckConstraint]:
    conditions = SQLITE_CHECKS.get(table, {}) if context.get_context().dialect.name == "sqlite" else {}
    return [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]
