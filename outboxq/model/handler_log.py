"""The handler log: the last lines that a handler logged in one attempt."""

from __future__ import annotations

import json
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_LINES: Final = 200
"""Largest number of lines that are kept of one attempt."""
MOST_BYTES: Final = 65_536
"""Largest size in bytes of all kept lines of one attempt together, as JSON."""
MOST_LINE_BYTES: Final = 4_096
"""Largest size of one line in bytes of UTF-8. Of a longer one the head and the tail are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of a handler log."""

    at: datetime
    """Moment at which it was logged, by the clock of the worker."""
    level: str
    """Name of its level: ``INFO``."""
    logger: str
    text: str
    """The message, with the traceback if the record has one."""

    def as_data(self) -> dict[str, str]:
        """Return the line as the data of an event has it."""
        at = (self.at if self.at.tzinfo is UTC else self.at.astimezone(UTC)).isoformat(timespec="milliseconds")
        return {"at": at, "level": self.level, "logger": self.logger, "text": self.text}


class HandlerLog:
    """The last lines of one attempt, within both bounds. Several threads may add lines."""

    def __init__(self) -> None:
        self.omitted = 0
        """Number of earlier lines that are kept no more."""
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
        """Keep the line of a record, and drop the oldest lines that have no place beside it.

        A record that comes again at once, because two logging handlers have it, is kept once.
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
        """Return the members for the data of an event: the lines, and the number of those that were dropped; none without lines."""
        with self._lock:
            if not self._lines:
                return {}
            omitted = {"log_omitted": self.omitted} if self.omitted else {}
            return {"log": [data for _, data in self._lines], **omitted}


def log_of(data: Mapping[str, Any]) -> tuple[LogLine, ...]:
    """Return the lines in the data of an event. What outboxq did not write is left out."""
    written = data.get("log")
    return tuple(_lines_of(written)) if isinstance(written, list) else ()


def omitted_of(data: Mapping[str, Any]) -> int:
    """Return the number of earlier lines that the data of an event lacks."""
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
