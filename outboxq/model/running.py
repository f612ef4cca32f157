"""Progress, log lines and durable steps: the reports and the stored results of a running handler."""

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
"""Largest number of lines kept per attempt."""
MOST_BYTES: Final = 65_536
"""Largest total size in bytes of the lines kept per attempt, as JSON."""
MOST_LINE_BYTES: Final = 4_096
"""Largest size of one line in bytes of UTF-8. If it is longer, its head and tail are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line in a handler log."""

    at: datetime
    """Moment at which it was logged, by the clock of the worker."""
    level: str
    """Name of its level: ``INFO``."""
    logger: str
    text: str
    """The message, with the traceback if the record has one."""

    def as_data(self) -> dict[str, str]:
        """Return the line as stored in the data of an event."""
        at = (self.at if self.at.tzinfo is UTC else self.at.astimezone(UTC)).isoformat(timespec="milliseconds")
        return {"at": at, "level": self.level, "logger": self.logger, "text": self.text}


class HandlerLog:
    """The last lines of one attempt, within both bounds. Several threads may add lines."""

    def __init__(self) -> None:
        self.omitted = 0
        """Number of earlier lines that were dropped."""
        self._lock = threading.Lock()
        self._lines: deque[tuple[int, dict[str, str]]] = deque()
        self._size = 0
        self._newest: weakref.ref[Any] | None = None

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> HandlerLog:
        """Return a handler log with these lines, as `as_data` gives them."""
        made = cls()
        made._lines.extend((0, line) for line in data.get("log", ()))
        made.omitted = omitted_of(data)
        return made

    def add(self, record: T, line_of: Callable[[T], LogLine]) -> None:
        """Keep the line of a record, and drop the oldest lines beyond the limits.

        A record that two logging handlers deliver in a row is kept once.
        """
        with self._lock:
            if self._newest is not None and self._newest() is record:
                return
            self._newest = weakref.ref(record)
        data = line_of(record).as_data()
        size = len(json.dumps(data)) + 2  # with the comma and the space between two lines
        with self._lock:
            self._lines.append((size, data))
            self._size += size
            while len(self._lines) > MOST_LINES or (self._size > MOST_BYTES and len(self._lines) > 1):
                self._size -= self._lines.popleft()[0]
                self.omitted += 1

    def as_data(self) -> dict[str, Any]:
        """Return the members for the data of an event: the lines, and the number of dropped lines; empty without
        lines.
        """
        with self._lock:
            if not self._lines:
                return {}
            omitted = {"log_omitted": self.omitted} if self.omitted else {}
            return {"log": [data for _, data in self._lines], **omitted}


def log_of(data: Mapping[str, Any]) -> tuple[LogLine, ...]:
    """Return the lines in the data of an event. Anything that outboxq did not write is left out."""
    written = data.get("log")
    return tuple(_lines_of(written)) if isinstance(written, list) else ()


def omitted_of(data: Mapping[str, Any]) -> int:
    """Return the number of earlier lines missing from the data of an event."""
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
"""Largest size of a note in bytes of UTF-8. A longer one is cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The progress of one attempt, as last reported by its handler."""

    fraction: float
    """Part of the work that is done, from 0 to 1."""
    note: str = ""
    """A few words about it: ``12 of 30``."""

    def __str__(self) -> str:
        percent = f"{math.floor(self.fraction * 100 + 1e-9)} %"  # rounded down: 100 % is the end
        return f"{percent}: {self.note}" if self.note else percent

    def as_data(self) -> dict[str, Any]:
        """Return the progress as stored in the data of an event."""
        return {"fraction": self.fraction, "note": self.note}


def fraction_of(value: object) -> float:
    """Return the completed part of the work as a float from 0 to 1. A number outside this range counts as the nearer
    bound.

    Raises InvalidArgument for anything but a number.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or isinstance(value, str | bytes):
        raise InvalidArgument(f"the progress must be a number from 0 to 1, such as done / total, not {value!r}")
    return min(max(number, 0.0), 1.0)


def progress_of(data: Any) -> Progress | None:
    """Return the progress in the data of an event; None for anything that outboxq did not write."""
    if not isinstance(data, Mapping):
        return None
    try:
        return Progress(fraction=fraction_of(data.get("fraction")), note=str(data.get("note") or ""))
    except InvalidArgument:
        return None


MAX_STEPS = 1000
"""Maximum number of steps of one task, sleeps included."""
LONGEST_NAME = 200
"""Maximum number of characters in a step's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A row of `task_steps`: a step that the task has completed, or a sleep that it has begun."""

    task_execution_id: UUID
    name: str
    number: int
    """The place in the order in which the task completed its steps, from 1."""
    lease_token: int
    """The lease token of the claim that wrote it."""
    result: str | None = field(repr=False)
    """The result as JSON; None: the function returned None, or it is a sleep."""
    due_at: datetime | None
    """The end of a sleep; None: the step is not a sleep."""
    created_at: datetime


def time_asleep(steps: Iterable[Step], *, since: datetime, until: datetime) -> timedelta:
    """Return the time for which the task slept between two moments. Overlapping sleeps count once."""
    total = timedelta(0)
    for begun, due in sorted((step.created_at, step.due_at) for step in steps if step.due_at is not None):
        begun, due = max(begun, since), min(due, until)  # noqa: PLW2901 - the part that counts
        if begun < due:
            total, since = total + (due - begun), due
    return total
