"""Rows that statements are given: new tasks, and the data of events."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from operator import attrgetter
from types import NoneType
from typing import Any, get_type_hints

from ..database.statements.enqueue import NEW_TASK
from ..model import NewTask
from ..model.records import stored_key
from ..payload.parameters import sanitize

_OTHER_NAMES = {"expires_seconds": "expires_in"}
_FIELDS = [_OTHER_NAMES.get(column, column.removesuffix("_seconds")) for column in NEW_TASK]
"""The field of a NewTask for each column that an enqueue is given."""
_HINTS = get_type_hints(NewTask)
_SPANS = [at for at, name in enumerate(_FIELDS) if "timedelta" in str(_HINTS[name])]
_PIPELINE, _KEY = _FIELDS.index("pipeline_execution_id"), _FIELDS.index("partition_key")
_cells = attrgetter(*(f"{name}._value_" if str(_HINTS[name]).startswith("<enum") else name for name in _FIELDS))


def row(task: NewTask) -> tuple[object, ...]:
    """Return the columns of `statements.enqueue.NEW_TASK`."""
    cells = list(_cells(task))
    for at in _SPANS:
        if (span := cells[at]) is not None:
            cells[at] = span.total_seconds()
    if cells[_PIPELINE] is None:
        cells[_PIPELINE] = task.id
    if task.concurrency_key is not None:
        cells[_KEY] = stored_key(None, task.concurrency_key)
    return tuple(cells)


def keyed_row(task: NewTask) -> tuple[object, ...]:
    """Return the columns of `statements.idempotency.KEYED`."""
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
