"""The tables and columns that the schema has and the role may read. Each is asked for until it is there, so an upgrade needs no
restart.
"""

from __future__ import annotations

from ..database.privileges import Role
from ..database.statements import batches, key_limits, metrics, progress, schedules, steps, workers
from ..database.statements.grammar import Builder
from ..database.target import Target
from .transactions import Transactions

SCHEDULES, STATISTICS, PROCESSES, STEPS = "0002", "0003", "0005", "0006"
BATCHES, PROGRESS, KEY_LIMITS, ISOLATION = "0007", "0008", "0009", "0010"
"""The revisions that brought the tables of schedules, those of statistics, the columns for a worker's process, the table of steps,
that of batches, the columns for the progress of a task, the tables of limits per key, and the column for a worker's isolation.
"""
_PROBES: dict[str, Builder] = {
    SCHEDULES: schedules.has_table,
    STATISTICS: metrics.is_there,
    PROCESSES: workers.has_description,
    STEPS: steps.has_table,
    BATCHES: batches.is_there,
    PROGRESS: progress.has_columns,
    KEY_LIMITS: key_limits.is_there,
    ISOLATION: workers.has_isolation,
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
