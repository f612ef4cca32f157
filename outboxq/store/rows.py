"""A new task as the row that its statement is given."""

from __future__ import annotations

from ..model import NewTask


def row(task: NewTask) -> tuple[object, ...]:
    """The columns of `statements.enqueue.NEW_TASK`."""
    return (
        task.id,
        task.pipeline_execution_id or task.id,
        task.task_name,
        task.queue,
        task.priority,
        task.args,
        task.headers,
        task.max_attempts,
        task.lease.total_seconds(),
        None if task.timeout is None else task.timeout.total_seconds(),
        task.available_at,
        task.delay.total_seconds(),
        task.partition_key,
        task.on_dead_letter.value,
        task.topic,
        task.expires_at,
        None if task.expires_in is None else task.expires_in.total_seconds(),
    )


def keyed_row(task: NewTask) -> tuple[object, ...]:
    """The columns of `statements.idempotency.KEYED`."""
    unique_for = None if task.unique_for is None else task.unique_for.total_seconds()
    return *row(task), task.idempotency_key, unique_for, task.unique_until_finished
