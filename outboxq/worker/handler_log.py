"""Keeps the handler log: the last lines that a handler logs, which are stored with the event that records how the
handler ended.

The worker adds one `LogKeeper` to Python's root logger if logging is configured, that is, if the root logger has
another handler. If the keeper were the only handler, `logging.basicConfig()` would do nothing and Python would not
print warnings.

A line belongs to the task whose handler runs in the same `contextvars` context: in the handler's thread, or in a thread
with a copy of that context.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ..context import current
from ..model.forks import in_children
from ..model.running import MOST_LINE_BYTES, HandlerLog, LogLine
from ..payload.parameters import sanitize

_LONGEST_NAME = 200


_making = threading.Lock()
_sharing = threading.Lock()
"""The lock for adding, removing and sharing the keeper. All workers in the process use this lock."""


class LogKeeper(logging.Handler):
    """A logging handler that keeps the records that task handlers log, at INFO and above.

    A worker adds a keeper to the root logger, unless that logger already has one. Add a keeper yourself to a logger
    that does not propagate, or to the root logger with a filter that removes secrets from the records. You may add the
    same keeper to several loggers, because each record is kept only once.
    """

    def __init__(self, level: int | str = logging.INFO) -> None:
        super().__init__(level)

    def handle(self, record: logging.LogRecord) -> bool:
        """Keep the record if a task's handler has logged it. Threads do not wait for each other in this method."""
        if current.get() is None:  # true for most of a worker's records
            return False
        found: Any = self.filter(record)  # since Python 3.12 a filter may return another record
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record. Never raises an error, because a record that cannot be kept must not end the task that
        logged it.
        """
        context = current.get()
        if context is None or context.has_ended:
            return
        if context.handler_log is None:
            if not context.keeps_log:
                return
            with _making:  # two threads of one handler may log at the same time
                if context.handler_log is None:
                    context.handler_log = HandlerLog()
        try:
            context.handler_log.add(record, _line_of)
        except Exception:  # noqa: BLE001 - as every handler in Python's logging does
            self.handleError(record)


class _OwnKeeper(LogKeeper):
    """The keeper that a worker adds. The workers in a process share this keeper, because two keepers would keep some
    lines twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: set[KeeperPlace] = set()
        """The registrations of the workers that use this keeper."""


class KeeperPlace:
    """One worker's use of the keeper on the root logger. The keeper stays there as long as any worker uses it."""

    def __init__(self) -> None:
        self.root = logging.getLogger()
        self.seen: list[logging.Handler] | None = None
        """The root logger's handlers at the last `take()`. If the handlers have changed since then, call `take()`
        again.
        """

    def take(self) -> None:
        """Add the keeper to the root logger if that logger has handlers but no keeper.

        Remove the keeper if it is the only handler, or if the application has added its own keeper, whose filter must
        then be applied.
        """
        root, handlers = self.root, self.root.handlers
        with _sharing:
            keepers = [one for one in handlers if isinstance(one, LogKeeper)]
            own = [one for one in keepers if isinstance(one, _OwnKeeper)]
            if not keepers and handlers:
                own = [_OwnKeeper()]
                root.addHandler(own[0])
            elif len(own) < len(keepers) or len(keepers) == len(handlers):
                for one in own:
                    root.removeHandler(one)
            for one in own:
                one.places.add(self)
            self.seen = list(handlers)

    def leave(self) -> None:
        """Remove the keeper, unless another worker uses it."""
        with _sharing:
            self.seen = None
            for one in list(self.root.handlers):
                if isinstance(one, _OwnKeeper):
                    one.places.discard(self)
                    if not one.places:
                        self.root.removeHandler(one)


def _renew_locks() -> None:
    """Make new locks. If another thread held a lock at the time of the fork, the child process would wait for the lock
    forever.
    """
    global _making, _sharing
    _making, _sharing = threading.Lock(), threading.Lock()


in_children(_renew_locks)


@contextmanager
def keeping() -> Iterator[None]:
    """Keep the lines that handlers log inside the block, even if logging is not configured. This is for tests."""
    root, keeper = logging.getLogger(), LogKeeper()
    root.addHandler(keeper)
    try:
        yield
    finally:
        root.removeHandler(keeper)


def _line_of(record: logging.LogRecord) -> LogLine:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - its arguments do not match, so Python's own handlers print a traceback
        text = str(record.msg)
    if record.exc_text:  # set by another logging handler's formatter
        text = f"{text}\n{record.exc_text}"
    elif record.exc_info:
        text = f"{text}\n{''.join(traceback.format_exception(*record.exc_info)).rstrip()}"
    if record.stack_info:
        text = f"{text}\n{record.stack_info}"
    return LogLine(
        at=datetime.fromtimestamp(record.created, UTC),
        level=sanitize(record.levelname, limit=_LONGEST_NAME),
        logger=sanitize(record.name, limit=_LONGEST_NAME),
        text=sanitize(text, limit=MOST_LINE_BYTES),
    )
