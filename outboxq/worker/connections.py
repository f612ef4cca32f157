"""The connections of a worker's own: handlers may have every one of the application's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy import event

from ..database.engine import close
from ..store import Store


class Connections:
    """Three stores on connections of their own, so that none of them waits for the work of another."""

    def __init__(self, store: Store, *, stopping: threading.Event, stopped: threading.Event) -> None:
        """`stopping` is set when the worker begins to stop, `stopped` when it has written what it had to."""
        self.outcomes = store.reserved(stopped)
        self.urgent = store.reserved(stopped, hurried=True)
        """For heartbeats, and for what is as urgent."""
        self.claims = store.reserved(stopping)  # what waits for the database must not delay a stop

    def watch(self, on_loss: Callable[[], object]) -> None:
        """Call `on_loss` whenever the server may have broken a connection. SQLite has no server.

        A pool that tests its connections, by `pool_pre_ping=True`, replaces a broken one, and no transaction fails.
        """
        for one in (self.outcomes, self.urgent, self.claims):
            if not one.dialect.one_writer:
                one.on_retry = on_loss
                event.listen(one.bound_engine.pool, "invalidate", lambda *_broken: on_loss())

    def close(self) -> None:
        """Close all of them."""
        for one in (self.outcomes, self.claims, self.urgent):
            close(one.bound_engine)
