"""The line at the foot of the terminal that shows a worker's throughput, rewritten each second."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

EVERY = 1.0
"""Seconds between two looks at the worker."""

_CLEAR = "\r\x1b[2K"


class Counts(Protocol):
    """The counts of a worker that the line shows."""

    @property
    def handled(self) -> int: ...
    @property
    def running(self) -> int: ...


class LiveHandler(logging.StreamHandler[TextIO]):
    """Writes log records to stderr, above a line that stays at the foot of the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_CLEAR}{super().format(record)}"

    def show(self, line: str) -> None:
        """Rewrite the line. An empty one removes it."""
        self.acquire()
        try:
            line = line[: _columns(self.stream) - 1]  # one that wraps is not cleared whole
            self.terminator = f"\n{line}"
            self.stream.write(f"{_CLEAR}{line}")
            self.flush()
        except OSError:
            pass  # the terminal was closed; that stops nobody
        finally:
            self.release()


@contextmanager
def show_live_line(worker: Counts, handler: LiveHandler) -> Iterator[None]:
    """Keep the line up to date inside the block, unless the application has removed the handler to log by itself."""
    if handler not in logging.getLogger().handlers:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(worker, handler, over), name="outboxq-live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        handler.show("")


def _watch(worker: Counts, handler: LiveHandler, over: threading.Event) -> None:
    handled, looked = worker.handled, time.monotonic()
    while not over.wait(EVERY):
        before, since = handled, looked
        handled, looked = worker.handled, time.monotonic()
        rate = (handled - before) / (looked - since)
        handler.show(f"{rate:.0f} tasks/s · {handled} handled · {worker.running} running")


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
