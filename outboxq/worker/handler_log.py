"""Keeps the last lines that a handler logs, for the event of its end: the handler log.

The worker adds one `LogKeeper` to Python's root logger, where logging is configured: the root logger has another handler. Where it
has none, a second handler would keep `logging.basicConfig()` from configuring it, and Python from printing warnings by itself.

A line belongs to the task whose handler runs in the same `contextvars` context: in the handler's own thread, and in a thread that
runs in a copy of that.
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
"""Held while the keeper that workers share comes, goes, or changes hands: the root logger is the whole process's."""


class LogKeeper(logging.Handler):
    """A logging handler that keeps what the handlers of tasks log, at INFO and above.

    A worker adds one to the root logger by itself, unless there is one. Add one to a logger of yours that does not propagate; or
    to the root logger, with a filter that takes secrets out of the records. It may be added in several places: a record is kept
    once.
    """

    def __init__(self, level: int | str = logging.INFO) -> None:
        super().__init__(level)

    def handle(self, record: logging.LogRecord) -> bool:
        """Keep the record if a handler of a task logs it. Threads do not wait for each other here."""
        if current.get() is None:  # most records of a worker: its own
            return False
        found: Any = self.filter(record)  # since Python 3.12 a filter may return another record
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record. Never raises: a record that cannot be written must not end the task that logged it."""
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
        except Exception:  # noqa: BLE001 - as every handler of Python's does
            self.handleError(record)


class _OwnKeeper(LogKeeper):
    """The keeper that a worker adds by itself. The workers of a process share it: two would keep some lines twice."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[KeeperPlace] = set()
        """The places of the workers that need it."""


class KeeperPlace:
    """The place of one worker on the root logger, where a keeper is as long as a worker needs it."""

    def __init__(self) -> None:
        self.root = logging.getLogger()
        self.seen: list[logging.Handler] | None = None
        """The handlers of the root logger when they were looked at last. If it has others now, `take()` is due."""

    def take(self) -> None:
        """Add the keeper to the root logger if logging is configured and has none.

        Take it away where it is the only handler, or where the application has added one, whose filter the lines need.
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
        """Take the keeper away, unless another worker needs it."""
        with _sharing:
            self.seen = None
            for one in list(self.root.handlers):
                if isinstance(one, _OwnKeeper):
                    one.places.discard(self)
                    if not one.places:
                        self.root.removeHandler(one)


def _renew_locks() -> None:
    """Make new locks: a child forked while another thread held one, such as a server of child processes, would wait for ever."""
    global _making, _sharing
    _making, _sharing = threading.Lock(), threading.Lock()


in_children(_renew_locks)


@contextmanager
def keeping() -> Iterator[None]:
    """Keep what handlers log inside the block, also where logging is not configured. For tests."""
    root, keeper = logging.getLogger(), LogKeeper()
    root.addHandler(keeper)
    try:
        yield
    finally:
        root.removeHandler(keeper)


def _line_of(record: logging.LogRecord) -> LogLine:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - its arguments do not fit; Python's own handlers print a traceback then
        text = str(record.msg)
    if record.exc_text:  # as the formatter of another handler has written it
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
