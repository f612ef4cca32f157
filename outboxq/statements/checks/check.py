"""What a check is, and the words that checks and repairs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select

from ...model import STATUS_AFTER
from ...tables import execution_events, task_executions, task_leases, task_outbox
from ..grammar import Grammar, word


@dataclass(frozen=True, kw_only=True)
class Check:
    """One invariant, said as what is wrong where it does not hold."""

    meaning: str
    broken: Callable[[Grammar], Select[Any]]
    """The ids of the tasks that break it; the column `id`."""


EXECUTION = task_executions.c
EVENT = execution_events.c
ENTRY_OF_TASK = select(task_outbox.c.id).where(task_outbox.c.task_execution_id == EXECUTION.id)
LEASE_OF_TASK = select(task_leases.c.task_execution_id).where(
    task_leases.c.task_execution_id == EXECUTION.id,
    task_leases.c.lease_token == EXECUTION.lease_token,
    task_leases.c.worker_id == EXECUTION.worker_id,
)
TRANSITION = EVENT.event_type.in_([word(kind) for kind in STATUS_AFTER])
"""The event moved its task."""
