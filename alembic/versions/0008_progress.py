"""Columns of `task_leases` for the progress that a running handler reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from outboxq.migrations import admit_from

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = {"progress": sa.Double(), "progress_note": sa.Text()}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("task_leases", sa.Column(name, kind))
    admit_from("0001")


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("task_leases", name)
    admit_from("0001")
