"""Columns of `workers` for people: the host, the process, the versions, and how many threads are busy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from outboxq.migrations import admit_from

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS = {
    "host": sa.Text(),
    "pid": sa.Integer(),
    "version": sa.Text(),
    "release": sa.Text(),
    "busy": sa.Integer(),
}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("workers", sa.Column(name, kind))
    admit_from("0001")


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("workers", name)
    admit_from("0001")
