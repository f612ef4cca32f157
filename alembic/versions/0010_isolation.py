"""A column of `workers` for people: where the worker runs its handlers, in threads or in child processes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from outboxq.migrations import admit_from

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("isolation", sa.Text()))
    admit_from("0001")


def downgrade() -> None:
    op.drop_column("workers", "isolation")
    admit_from("0001")
