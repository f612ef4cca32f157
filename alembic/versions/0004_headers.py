"""The SQL function's argument `headers`."""

from __future__ import annotations

from outboxq.migrations import admit_from

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    admit_from("0001")


def downgrade() -> None:
    admit_from("0001")
