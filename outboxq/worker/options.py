"""The options of a worker, and what is refused of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypedDict

from ..errors import InvalidArgument
from ..model import duration
from .failpoints import OnFailpoint


class WorkerOptions(TypedDict, total=False):
    """Options that `Worker` takes and `Outbox.worker()` passes on."""

    queues: Sequence[str] | None
    topics: Sequence[str] | None
    concurrency: int
    prefetch: int | None
    poll: timedelta | float | None
    notifications: bool
    listen_url: str | None
    drain_timeout: timedelta | float
    heartbeat: timedelta | float | None
    recover_every: timedelta | float
    unknown_task_delay: timedelta | float
    unknown_task_longest_delay: timedelta | float
    unknown_task_limit: timedelta | float
    max_tasks: int | None
    relaxed_durability: bool
    log_tracebacks: bool | None
    label: str | None
    on_failpoint: OnFailpoint


def whole(value: int, name: str, least: int) -> int:
    """Return the value. Raises InvalidArgument unless it is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def positive(value: timedelta | float, name: str) -> timedelta:
    """Return the span, given as timedelta or seconds. Raises InvalidArgument unless it is longer than nothing."""
    span = duration(value, name)
    if span <= timedelta(0):
        raise InvalidArgument(f"{name} must be longer than nothing")
    return span
