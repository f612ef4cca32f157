"""The table of durable steps."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outboxq.migrations import admit_from

revision = "0006"
down_revision = "0005"
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
number = Bounded("outboxq_number").with_variant(sa.BigInteger(), "sqlite")

CHECKS = {"names": "name <> ''", "number": "number BETWEEN 1 AND 1000"}
"""On both databases."""
SQLITE_CHECKS = {
    "task_execution_id": "length(task_execution_id) = 32 AND lower(task_execution_id) = task_execution_id "
    "AND task_execution_id < 'g'",
    "name": "typeof(name) <> 'blob'",
    "result": "typeof(result) <> 'blob'",
    **{
        column: f"{column} GLOB '????-??-??T??:??:??.??????+00:00' AND {column} >= '1970' AND {column} < '9001'"
        for column in ("due_at", "created_at")
    },
    "lease_token": "lease_token >= 0 AND lease_token <= 1000000000000000000",
}
"""What PostgreSQL's types say."""


def upgrade() -> None:
    op.create_table(
        "task_steps",
        sa.Column("task_execution_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lease_token", number, nullable=False),
        sa.Column("result", sa.Text()),
        sa.Column("due_at", instant),
        sa.Column("created_at", instant, nullable=False),
        sa.PrimaryKeyConstraint("task_execution_id", "name", name="pk_task_steps"),
        *_checks(),
    )
    admit_from("0001")


def downgrade() -> None:
    op.drop_table("task_steps")
    admit_from("0001")


def _checks() -> list[sa.CheckConstraint]:
    conditions = dict(CHECKS)
    if context.get_context().dialect.name == "sqlite":
        conditions |= SQLITE_CHECKS
    return [sa.CheckConstraint(text, name=op.f(f"ck_task_steps_{name}")) for name, text in conditions.items()]
