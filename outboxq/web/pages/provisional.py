"""The database until the store has its own method for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The database."""

    revision: str
    oldest_code: str
    server: str
    size: int | None
    tables: Sequence[Any]
    oldest_snapshot: timedelta | None = None
    partitions: Sequence[Any] = ()


def system(store: Any) -> Any:
    """Return what the store tells, or little until it does."""
    if hasattr(store, "system"):
        return store.system()
    return System(revision="0005", oldest_code="0001", server=store.dialect.name, size=None, tables=())
