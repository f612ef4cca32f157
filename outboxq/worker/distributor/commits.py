"""Who is told of an engine's commits.

One listener for each engine, and for good: SQLAlchemy walks its list of them during each commit, and one that came or went
meanwhile would break the commit of another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from ...database.engine_events import listen

Told: TypeAlias = dict[object, Callable[[], None]]
"""By whom, what is called. Entries come and go in any thread, and in a signal handler: each in one step."""


def told_of_commits(engine: Engine) -> Told:
    """Those who are told when a commit is about to happen."""
    with _lock:
        if (told := _told.get(engine)) is None:
            told = _told[engine] = {}
            _listen(engine, told)
        return told


_told: WeakKeyDictionary[Engine, Told] = WeakKeyDictionary()
_lock = threading.Lock()


def _listen(engine: Engine, told: Told) -> None:
    def tell(_connection: Connection) -> None:
        for call in list(told.values()):
            call()

    listen(engine, "commit", tell)
