"""The listeners of an engine's commits.

SQLAlchemy gets one listener for each engine, for good: it iterates over its list of them during each commit, so one that came
or went meanwhile would break the commit of another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from ...database.engine_events import listen

CommitListeners: TypeAlias = dict[object, Callable[[], None]]
"""Callbacks by their owners. Entries come and go in any thread and in signal handlers, each in one step."""


def commit_listeners(engine: Engine) -> CommitListeners:
    """Return what is called when a commit is about to happen."""
    with _lock:
        if (listeners := _listeners_by_engine.get(engine)) is None:
            listeners = _listeners_by_engine[engine] = {}
            _listen(engine, listeners)
        return listeners


_listeners_by_engine: WeakKeyDictionary[Engine, CommitListeners] = WeakKeyDictionary()
_lock = threading.Lock()


def _listen(engine: Engine, listeners: CommitListeners) -> None:
    def call_listeners(_connection: Connection) -> None:
        for call in list(listeners.values()):
            call()

    listen(engine, "commit", call_listeners)
