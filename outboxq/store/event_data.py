"""The data of an event of the history, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any

from ..payload.parameters import sanitize


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
    return value if isinstance(value, bool | int | NoneType) else sanitize(str(value))
