"""Lists of tasks, for people."""

from __future__ import annotations

from ..database.dialects import Begin
from ..database.statements import listing
from ..errors import InvalidArgument
from ..model import TaskExecution, TaskStatus
from .arguments import positive, storable
from .reading import execution_of
from .transactions import Transactions

_SCAN = 10_000


def tasks(
    store: Transactions,
    *,
    status: TaskStatus | None = None,
    queue: str | None = None,
    task: str | None = None,
    limit: int = 100,
    using: object = None,
) -> list[TaskExecution]:
    """Up to `limit` tasks of this status, queue and task name, newest first; None: any.

    For people: it looks at a bounded number of rows, whatever the size of the tables. Running and Failed tasks are found
    all; of the finished ones, and without a status, the newest 10 000 tasks are looked at; of the Ready ones, the newest
    10 000 entries, or so many of the queue. Raises InvalidArgument.
    """
    if status is not None and not isinstance(status, TaskStatus):
        raise InvalidArgument(f"status takes a TaskStatus, not {status!r}")
    values = {
        "status": status,
        "queue": storable(queue, "queue"),
        "task_name": storable(task, "task"),
        "limit": positive(limit),
        "scan": max(limit, _SCAN),
    }
    of_status = {
        TaskStatus.READY: listing.ready if queue is None else listing.ready_of_queue,
        TaskStatus.RUNNING: listing.running,
        TaskStatus.FAILED: listing.failed,
    }
    listed = of_status.get(status or TaskStatus.COMPLETED, listing.finished)
    rows = store.run(lambda target: target.run(listed, values), using=using, begin=Begin.READ)
    return [execution_of(row) for row in rows]
