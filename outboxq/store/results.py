"""Results of tasks, for callers that wait for them: one look asks for any number of tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.privileges import Feature
from ..database.statements import results, tasks
from ..database.statements.results import TASKS
from ..database.target import Target
from ..model import TERMINAL, ExecutionEvent, TaskStatus, status_after
from .tasks import event_of
from .transactions import Transactions

_NEWEST = 8
"""The number of events among which the end of a task is: after it, people may have redriven the task."""
_READS = frozenset({Feature.RESULTS})


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The status of a task, and how it ended if it has."""

    id: UUID
    task_name: str
    status: TaskStatus
    attempt: int
    result: str | None = field(repr=False)
    """The result as JSON; None: there is none."""
    error: str | None = field(repr=False)
    """The last error in one line."""
    end: ExecutionEvent | None = field(default=None, repr=False)
    """The event with which it ended otherwise than Completed; None: it has not, or the event is gone."""

    @property
    def has_ended(self) -> bool:
        """Return whether the task has ended. A dead letter has."""
        return self.status in TERMINAL


def standings(store: Transactions, task_ids: Collection[UUID], *, everything: bool = True) -> Mapping[UUID, Standing]:
    """Return the standing of each of these tasks that has ended. With `everything`, of those too that have not ended.

    A task that is missing there does not exist, or is not committed. The transaction is not run again after an error: the caller
    decides about another look. Raises NotPermitted if the database role may not read results.
    """
    try:
        with store.transaction(Begin.READ) as target:
            values = target.dialect.pack("tasks", TASKS, [(task_id,) for task_id in task_ids])
            rows = target.run(results.ended, {**values, "everything": everything})
            return {row["id"]: standing_of(target, row) for row in rows}
    except Exception as error:
        store.rights.explain(error, Begin.READ, _READS)
        raise


def standing_of(target: Target, row: Row) -> Standing:
    """Return the standing of the task of a row of `results.ended`."""
    status, end = TaskStatus(row["status"]), None
    if status in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
        newest = target.run(tasks.recent_history, {"task_id": row["id"], "limit": _NEWEST})
        ends = (one for one in map(event_of, newest) if status_after(one.event_type) is status)
        end = next(ends, None)
    return Standing(
        id=row["id"],
        task_name=row["task_name"],
        status=status,
        attempt=row["attempt"],
        result=row["result"],
        error=row["last_error"],
        end=end,
    )
