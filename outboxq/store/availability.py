"""The tables and columns that the schema has and the role may read. Each is asked for until it is there, so an upgrade needs no
restart.
"""

from __future__ import annotations

from ..database.privileges import Role
from ..database.statements import key_limits, metrics, progress, schedules, steps, workers
from ..database.statements.grammar import Builder
from ..database.target import Target
from .transactions import Transactions

SCHEDULES, STATISTICS, PROCESSES, STEPS, PROGRESS, KEY_LIMITS = "0002", "0003", "0005", "0006", "0008", "0009"
"""The revisions that brought the tables of schedules, those of statistics, the columns for a worker's process, the table of steps,
the columns for the progress of a task, and the tables of limits per key.
"""
_PROBES: dict[str, Builder] = {
    SCHEDULES: schedules.has_table,
    STATISTICS: metrics.is_there,
    PROCESSES: workers.has_description,
    STEPS: steps.has_table,
    PROGRESS: progress.has_columns,
    KEY_LIMITS: key_limits.is_there,
}


def can_read(store: Transactions, target: Target, revision: str, role: Role = Role.VIEWER) -> bool:
    """Return whether the schema has what this revision brought, and the rights on it are there that such a role needs."""
    known = (revision, role)
    if known not in store.rights.usable:
        if not target.run(_PROBES[revision]):
            store.ensure_schema(target)
            return False
        if store.rights.lacking_for(revision, role, target) is not None:
            return False
        store.rights.usable.add(known)
    return True


def variant(store: Transactions, target: Target) -> str:
    """Return the name of the statement that reads what is there of schedules and statistics."""
    schedules_too, statistics_too = (can_read(store, target, one) for one in (SCHEDULES, STATISTICS))
    if schedules_too:
        return "all" if statistics_too else "without_samples"
    return "without_schedules" if statistics_too else "least"
