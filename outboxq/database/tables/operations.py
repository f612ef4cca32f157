"""Define the tables for operators: workers' counts, samples of the waiting tasks, and the changes that people made."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Text, Uuid

from ...model.histograms import BUCKETS
from ..column_types import BoundedInstant
from ..typed_table import TypedColumns, typed_table


class TaskMetricsColumns(TypedColumns):
    """A row for each queue and task, with one worker process's counts for a time span.

    Old rows are summed into rows for longer spans, up to an hour. In addition to these columns, the table has one
    column for each bucket of the two histograms: `wait_0` and so on for the time from the due time to the start, and
    `run_0` and so on for the handler's run time.
    """

    id = Column(Uuid, primary_key=True)  # created by the worker, so that a row that is sent again is not written twice
    at = Column(BoundedInstant, nullable=False)  # the start of the span
    seconds = Column(Integer, nullable=False)  # the length of the span: 10, 60, 300, 900 or 3,600
    queue = Column(Text, nullable=False)
    task_name = Column(Text, nullable=False)
    worker_id = Column(Uuid)  # NULL: summed over all workers
    completed = Column(Integer, nullable=False)
    retried = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)
    cancelled = Column(Integer, nullable=False)
    snoozed = Column(Integer, nullable=False)
    released = Column(Integer, nullable=False)
    lost = Column(Integer, nullable=False)
    timed_out = Column(Integer, nullable=False)
    timed_out_last = Column(Integer, nullable=False)  # attempts in `timed_out` that no other attempt followed
    wait_seconds = Column(Double, nullable=False)  # the sum over the attempts in the histogram
    run_seconds = Column(Double, nullable=False)


task_metrics = typed_table(
    "task_metrics",
    TaskMetricsColumns,
    *(Column(f"{name}_{bucket}", Integer, nullable=False) for name in ("wait", "run") for bucket in range(BUCKETS)),
    Index("ix_task_metrics_at", "at"),
)


class QueueSamplesColumns(TypedColumns):
    """A row for each queue in each sample, with the number of tasks in each state."""

    at = Column(BoundedInstant, primary_key=True)
    queue = Column(Text, primary_key=True)
    due = Column(BigInteger, nullable=False)
    delayed = Column(BigInteger, nullable=False)
    running = Column(BigInteger, nullable=False)
    failed = Column(BigInteger, nullable=False)
    oldest_due_at = Column(BoundedInstant)  # the due time of the task that has been due longest
    exact = Column(Boolean, nullable=False)  # False: `due` and `delayed` are lower bounds


queue_samples = typed_table("queue_samples", QueueSamplesColumns)


class MaintenanceJobsColumns(TypedColumns):
    """A row for each job that one worker at a time does on behalf of all workers, with the job's lock and due time."""

    name = Column(Text, primary_key=True)
    due_at = Column(BoundedInstant, nullable=False)
    done_at = Column(BoundedInstant)


maintenance_jobs = typed_table("maintenance_jobs", MaintenanceJobsColumns)


class OperatorActionsColumns(TypedColumns):
    """A row for each change that a person made, written in the same transaction as the change."""

    id = Column(Uuid, primary_key=True)  # created by the front end, so that a repeated transaction adds only one row
    at = Column(BoundedInstant, nullable=False)
    operator = Column(Text)  # the person; NULL: unknown
    interface = Column(Text, nullable=False)  # 'command line', 'dashboard', 'admin' or 'program'
    action = Column(Text, nullable=False)  # the noun and the verb: queue pause
    target = Column(Text)  # an id or a name; NULL: everything that matches the filters in `details`
    details = Column(Text, nullable=False)  # a JSON object: the values or filters that the person gave
    reason = Column(Text)
    changed = Column(BigInteger, nullable=False)  # a bulk change adds to it in each of its transactions


operator_actions = typed_table(
    "operator_actions", OperatorActionsColumns, Index("ix_operator_actions_target", "target", "id")
)
