"""Progress, log lines and durable steps: what a running handler reports and stores."""

from __future__ import annotations

import json
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from ..errors import InvalidArgument

T = TypeVar("T")

MOST_LINES: Final = 200
"""The maximum number of lines that are kept per attempt."""
MOST_BYTES: Final = 65_536
"""The maximum total size in bytes, as JSON, of the lines that are kept per attempt."""
MOST_LINE_BYTES: Final = 4_096
"""The maximum size of a line in bytes of UTF-8. Only the beginning and the end of a longer line are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line in a handler log."""

    at: datetime
    """The time at which the line was logged, by the worker's clock."""
    level: str
    """The name of the level, such as ``INFO``."""
    logger: str
    text: str
    """The message, with the traceback if the record has one."""

    def as_data(self) -> dict[str, str]:
        """Return the line as stored in an event's data."""
        at = (self.at if self.at.tzinfo is UTC else self.at.astimezone(UTC)).isoformat(timespec="milliseconds")
        return {"at": at, "level": self.level, "logger": self.logger, "text": self.text}


class HandlerLog:
    """The last lines of one attempt, within the limits on lines and bytes. Several threads may add lines."""

    def __init__(self) -> None:
        self.omitted = 0
        """The number of earlier lines that were dropped."""
        self._lock = threading.Lock()
        self._lines: deque[tuple[int, dict[str, str]]] = deque()
        self._size = 0
        self._newest: weakref.ref[Any] | None = None

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> HandlerLog:
        """Return a handler log with the lines in this data, which `as_data` returned."""
        made = cls()
        made._lines.extend((0, line) for line in data.get("log", ()))
        made.omitted = omitted_of(data)
        return made

    def add(self, record: T, line_of: Callable[[T], LogLine]) -> None:
        """Keep the line for a record, and drop the oldest lines beyond the limits.

        If two logging handlers deliver the same record one after the other, the line is kept only once.
        """
        with self._lock:
            if self._newest is not None and self._newest() is record:
                return
            self._newest = weakref.ref(record)
        data = line_of(record).as_data()
        size = len(json.dumps(data)) + 2  # including the comma and the space between two lines
        with self._lock:
            self._lines.append((size, data))
            self._size += size
            while len(self._lines) > MOST_LINES or (self._size > MOST_BYTES and len(self._lines) > 1):
                self._size -= self._lines.popleft()[0]
                self.omitted += 1

    def as_data(self) -> dict[str, Any]:
        """Return the lines and the number of dropped lines, for an event's data. The result is empty if there are no
        lines.
        """
        with self._lock:
            if not self._lines:
                return {}
            omitted = {"log_omitted": self.omitted} if self.omitted else {}
            return {"log": [data for _, data in self._lines], **omitted}


def log_of(data: Mapping[str, Any]) -> tuple[LogLine, ...]:
    """Return the log lines in an event's data. Anything that outboxq did not write is left out."""
    written = data.get("log")
    return tuple(_lines_of(written)) if isinstance(written, list) else ()


def omitted_of(data: Mapping[str, Any]) -> int:
    """Return the number of earlier lines that are missing from an event's data."""
    written = data.get("log_omitted")
    return written if isinstance(written, int) and written > 0 else 0


def _lines_of(written: list[Any]) -> Iterator[LogLine]:
    for one in written:
        try:
            at = datetime.fromisoformat(one["at"])
            if at.tzinfo is not None:
                yield LogLine(at=at, level=str(one["level"]), logger=str(one["logger"]), text=str(one["text"]))
        except (TypeError, ValueError, LookupError):
            continue


MAX_NOTE = 500
"""The maximum size of a note in bytes of UTF-8. A longer note is truncated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The progress of an attempt, as last reported by its handler."""

    fraction: float
    """The fraction of the work that is done, from 0 to 1."""
    note: str = ""
    """A short note about the progress, such as ``12 of 30``."""

    def __str__(self) -> str:
        percent = f"{math.floor(self.fraction * 100 + 1e-9)} %"  # rounded down: 100 % means finished
        return f"{percent}: {self.note}" if self.note else percent

    def as_data(self) -> dict[str, Any]:
        """Return the progress as stored in an event's data."""
        return {"fraction": self.fraction, "note": self.note}


def fraction_of(value: object) -> float:
    """Return the completed fraction of the work as a float from 0 to 1. A number outside this range is replaced by 0 or
    1, whichever is nearer.

    Raises InvalidArgument for anything that is not a number.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or isinstance(value, str | bytes):
        raise InvalidArgument(f"the progress must be a number from 0 to 1, such as done / total, not {value!r}")
    return min(max(number, 0.0), 1.0)


def progress_of(data: Any) -> Progress | None:
    """Return the progress in an event's data; None if outboxq did not write it."""
    if not isinstance(data, Mapping):
        return None
    try:
        return Progress(fraction=fraction_of(data.get("fraction")), note=str(data.get("note") or ""))
    except InvalidArgument:
        return None


MAX_STEPS = 1000
"""The maximum number of steps in a task, including sleeps."""
LONGEST_NAME = 200
"""The maximum number of characters in a step's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A row of `task_steps`: a step that the task has completed, or a sleep that it has begun."""

    task_execution_id: UUID
    name: str
    number: int
    """The position in the order in which the task completed its steps, starting at 1."""
    lease_token: int
    """The lease token of the claim that wrote the step."""
    result: str | None = field(repr=False)
    """The result as JSON; None if the function returned None, or if the step is a sleep."""
    due_at: datetime | None
    """The time at which a sleep ends; None if the step is not a sleep."""
    created_at: datetime


def time_asleep(steps: Iterable[Step], *, since: datetime, until: datetime) -> timedelta:
    """Return how long the task slept between two points in time. Overlapping sleeps count only once."""
    total = timedelta(0)
    for begun, due in sorted((step.created_at, step.due_at) for step in steps if step.due_at is not None):
        begun, due = max(begun, since), min(due, until)  # noqa: PLW2901 - the part between the two times
        if begun < due:
            total, since = total + (due - begun), due
    return total
