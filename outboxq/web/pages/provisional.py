"""Series until the store has its own methods for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...store import Percentiles


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPoint:
    """The ends of a step."""

    at: datetime
    step: timedelta
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    wait: Percentiles | None = None
    run: Percentiles | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthPoint:
    """The depths at the end of a step."""

    at: datetime
    ready: int | None = None
    delayed: int | None = None
    running: int | None = None
    failed: int | None = None


def metric_series(store: Any, **options: Any) -> list[Any]:
    """Return the series of the store, or nothing until it has one."""
    return store.metrics.series(**options) if hasattr(store.metrics, "series") else []


def depth_series(store: Any, **options: Any) -> list[Any]:
    """Return the series of the store, or nothing until it has one."""
    return store.samples.series(**options) if hasattr(store.samples, "series") else []


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
