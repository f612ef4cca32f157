"""Logging to stderr for outboxq's processes, as text or as one JSON object per line, and a worker's live line."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from ...context import LOG_FIELDS, TaskContextFilter
from ...model.wording import plain

if TYPE_CHECKING:
    from ...worker.worker import Worker

EVERY = 1.0
"""Seconds between two updates of the live line."""
_CLEAR = "\r\x1b[2K"
_OF_EVERY_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def configure(
    level: str, format: LogFormat, handler: logging.Handler | None = None, *, tracebacks: bool | None = None
) -> None:
    """Send log records to `handler`, by default stderr. If the application has already configured logging, its
    configuration is kept.

    Records that an application logs inside a task's handler get that task's fields. `tracebacks` says whether to print
    the tracebacks of failed tasks; with None, they are printed only at DEBUG level. All other tracebacks are always
    printed.
    """
    handler = handler or logging.StreamHandler()
    shown = level.upper() == "DEBUG" if tracebacks is None else tracebacks
    handler.setFormatter((JsonFormatter if format is LogFormat.JSON else TextFormatter)(tracebacks=shown))
    handler.addFilter(TaskContextFilter())
    logging.basicConfig(level=level, handlers=[handler])


class TextFormatter(logging.Formatter):
    """A formatter for text lines, in which invisible characters are escaped. With `tracebacks`, the formatter includes
    the tracebacks of failed tasks.
    """

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and _is_of_task(record):
            record = copy(record)
            record.exc_text = None  # left by another formatter
            if not self._tracebacks:
                record.exc_info = None
        return plain(super().format(record), kept="\n\t")


class JsonFormatter(logging.Formatter):
    """A formatter for JSON lines: the record's own fields, followed by the fields from `extra=`, which never replace
    the record's own.

    `exception` is an object with `type`, `message` and `traceback`. For a failed task the message is one line, and the traceback
    is included only with `tracebacks`. Fields that `TaskContextFilter` sets to None are omitted.
    """

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if _is_of_task(record):
            line["exception"] = dict(vars(record)["exception"])
            if self._tracebacks and record.exc_info:
                line["exception"]["traceback"] = self.formatException(record.exc_info)
        elif record.exc_info and (error := record.exc_info[1]) is not None:
            kind = type(error)
            line["exception"] = {
                "type": f"{kind.__module__}.{kind.__qualname__}",
                "message": _message(error),
                "traceback": self.formatException(record.exc_info),
            }
        extra = {
            name: value
            for name, value in vars(record).items()
            if name not in _OF_EVERY_RECORD and not (value is None and name in LOG_FIELDS)
        }
        return json.dumps({**line, **extra, **line}, default=str, skipkeys=True)


def _is_of_task(record: logging.LogRecord) -> bool:
    """Return whether the record reports a failed attempt (`outboxq/worker/log_lines.py`)."""
    is_end = record.name == "outboxq.worker" and hasattr(record, "event")
    return is_end and isinstance(getattr(record, "exception", None), dict)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not lose the record
        return "(the message cannot be read)"


class LiveHandler(logging.StreamHandler[TextIO]):
    """A handler that writes log records to stderr, above a line that stays at the bottom of the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_CLEAR}{super().format(record)}"

    def show(self, line: str) -> None:
        """Rewrite the line. An empty string removes the line."""
        self.acquire()
        try:
            line = line[: _columns(self.stream) - 1]  # a wrapped line would not be cleared completely
            self.terminator = f"\n{line}"
            with suppress(OSError):  # a closed terminal must not stop the worker
                self.stream.write(f"{_CLEAR}{line}")
                self.flush()
        finally:
            self.release()


@contextmanager
def show_live_line(worker: Worker, handler: LiveHandler) -> Iterator[None]:
    """Keep the line up to date during the block, unless the application has replaced the handler with its own logging."""
    if handler not in logging.getLogger().handlers:
        yield
        return

    def watch(over: threading.Event) -> None:
        handled, looked = worker.handled, time.monotonic()
        while not over.wait(EVERY):
            before, since = handled, looked
            handled, looked = worker.handled, time.monotonic()
            rate = (handled - before) / (looked - since)
            handler.show(f"{rate:.0f} tasks/s · {handled} handled · {worker.running} running")

    try:
        with in_thread(watch, "outboxq-live"):
            yield
    finally:
        handler.show("")


@contextmanager
def in_thread(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work` in a thread during the block. `work` must return soon after its event is set."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
