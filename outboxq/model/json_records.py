"""Records as JSON, for programs: `--json` of the commands, and the dashboard's `/api`.

The keys of an object are the field names of the record. They are stable: keys are added, never renamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID


def as_json(value: object) -> Any:
    """Return the value as JSON has it.

    A record becomes an object with its fields as keys, without those that take no part in comparisons; a time becomes ISO 8601 in
    UTC, a span its seconds, an enum its value, an id text.
    """
    match value:
        case Enum():
            return as_json(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None  # JSON has neither infinity nor NaN
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case _:
            return _whole_as_json(value)


def _whole_as_json(value: object) -> Any:
    match value:
        case Mapping():
            return {str(as_json(name)): as_json(one) for name, one in value.items()}
        case AbstractSet():
            return sorted((as_json(one) for one in value), key=str)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {one.name: as_json(getattr(value, one.name)) for one in fields(value) if one.compare}
        case Iterable():
            return [as_json(one) for one in value]
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")
