"""Notices changes of Python files, for `--reload`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .console import EXIT_USAGE, fail

log = logging.getLogger("outboxq.supervisor")


@contextmanager
def watch_files(directory: Path, changed: Callable[[], None]) -> Iterator[None]:
    """Call `changed` whenever a Python file below `directory` has changed during the block."""
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError as error:
        if error.name != "watchfiles":
            raise
        fail("--reload needs watchfiles; run: pip install 'outboxq[reload]'", EXIT_USAGE)
    over = threading.Event()

    def look() -> None:
        for changes in watch(directory, watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False):
            log.info("%s changed", ", ".join(sorted({os.path.relpath(path, directory) for _, path in changes})))
            changed()

    thread = threading.Thread(target=look, name="outboxq-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
