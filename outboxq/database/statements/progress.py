"""Read the progress that running tasks have reported. Heartbeats write it: `ends.heartbeat`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Uuid, select

from ..grammar import Columns, Grammar
from ..tables import task_leases

ASKED: Columns = {"id": Uuid()}
"""The columns of the batch :asked."""


def of_tasks(g: Grammar) -> Select[Any]:
    """Select the progress of those tasks of :asked that run and have reported one."""
    lease = task_leases.c
    return select(lease.task_execution_id.label("id"), lease.progress, lease.progress_note).where(
        g.among(lease.task_execution_id, g.rows("asked", ASKED).c.id), lease.progress.is_not(None)
    )
