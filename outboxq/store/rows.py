"""Rows that statements are given: new tasks, and the data of events."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

from ..model import NewTask
from ..model.records import stored_key
from ..payload.parameters import sanitize


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
        stored_key(task.partition_key, task.concurrency_key),
        task.on_dead_letter.value,
        task.topic,
        task.expires_at,
        None if task.expires_in is None else task.expires_in.total_seconds(),
    )


def keyed_row(task: NewTask) -> tuple[object, ...]:
    """The columns of `statements.idempotency.KEYED`."""
    unique_for = None if task.unique_for is None else task.unique_for.total_seconds()
    return *row(task), task.idempotency_key, unique_for, task.unique_until_finished


def event_data(data: Mapping[str, Any]) -> str | None:
    """Return JSON for an event. What says why a task failed must itself always be storable, or the task could not end."""
    return json.dumps(_storable(data)) if data else None


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Mapping):
        return {sanitize(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    is_number = isinstance(value, float) and math.isfinite(value)  # JSON has neither infinity nor NaN
    return value if is_number or isinstance(value, bool | int | NoneType) else sanitize(str(value))
