"""A thread that listens to PostgreSQL on a separate connection, and reconnects whenever that connection breaks."""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self
from uuid import uuid4

import psycopg
import tenacity
from psycopg import sql
from psycopg.rows import tuple_row

from ...database.dialects import Dialect, Row, channel
from ...database.dialects.channel import PROOF
from ...database.engine import detached, make_engine
from ...database.grammar import Builder
from ...store import Store
from .base import Health

log = logging.getLogger("outboxq.distributor")

PING_EVERY = 15.0
ANSWER_TIMEOUT = 5.0
"""Seconds without an answer after which the connection counts as dead."""
_CLOSE_TIMEOUT = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_STEADY_AFTER = 5.0
"""If a connection listened for this many seconds before it broke, the next attempt follows immediately."""
_NOT_YET = "not connected yet"
_CONNECTION_ERRORS = (psycopg.Error, OSError)
_IS_PROOF = re.compile(PROOF + "[0-9a-f]{32}")
"""The payload that a listener sends to itself. No queue can have this name."""


class NotificationsBlocked(Exception):
    """Notifications cannot reach this connection, because a pooler in between shares the server's connections."""


class TriggerMissing(Exception):
    """The database has no outbox, or no trigger that sends notifications."""


@dataclass(eq=False, repr=False)
class Listener(threading.Thread):
    """Listens to the trigger, on a connection over which the server delivers the trigger's notifications."""

    connect: Callable[[], psycopg.Connection[Any]]
    dialect: Dialect
    _: KW_ONLY
    connect_notifier: Callable[[], psycopg.Connection[Any]] | None = None
    """A function that connects to the worker's database. None means that `connect` is used."""
    on_notify: Callable[[str], None]
    """A function that is called with the payload of each notification."""
    on_change: Callable[[], None]
    """A function that is called when listening begins or ends."""
    on_break: Callable[[], object] = lambda: None
    """A function that is called when the connection is lost."""
    ping_every: float = PING_EVERY
    answer_timeout: float = ANSWER_TIMEOUT

    @classmethod
    def of(cls, store: Store, listen_url: str | None, **calls: Any) -> Self:
        """Return a listener for this store's database, whose server may be at another address than its engine's.

        The connections are opened like the engine's, but are not in its pool. A malformed URL is refused here, not in
        the thread.
        """
        engine = store.bound_engine
        connect = partial(detached, engine if listen_url is None else make_engine(listen_url))
        return cls(connect, store.dialect, connect_notifier=partial(detached, engine), **calls)

    def __post_init__(self) -> None:
        super().__init__(name="outboxq-listener", daemon=True)
        self.connections = 0
        """The number of times that listening has begun. If this number has changed, notifications may have been missed
        in the meantime.
        """
        self.session = 0
        """The number of the listening session, which holds a lock on this number."""
        self._outbox: int | None = None
        """The oid of the outbox, which stays the same if the table is moved."""
        self._channel = ""
        self._error: str | None = _NOT_YET
        self._connection: psycopg.Connection[Any] | None = None
        self._closed = threading.Event()

    @property
    def health(self) -> Health:
        return Health(listening=self._error is None, connections=self.connections, error=self._error)

    def run(self) -> None:
        """Listen until `close` is called. The pauses between attempts grow and vary, so as not to overload a server
        that has come back.
        """
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda lasted: not lasted),
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE),
            stop=tenacity.stop_when_event_set(self._closed),
            sleep=tenacity.sleep_using_event(self._closed),
            retry_error_callback=lambda _: None,
        )
        try:
            while not self._closed.is_set():
                attempts(self._attempt)
        except NotificationsBlocked:
            self._error = "a pooler does not forward notifications, or listen_url leads to another database"
            self.on_change()
            log.warning(
                "notifications do not reach this worker: %s; polling instead (pass --listen-url or --no-notifications; in code, listen_url= or notifications=False)",
                self._error,
            )
        finally:
            self._error = self._error or "closed"

    def _attempt(self) -> bool:
        """Connect, and listen until the connection breaks. Returns whether the connection lasted longer than
        `_STEADY_AFTER`.
        """
        began = math.inf
        try:
            connection = self._open()
            began = time.monotonic()
            self._listen(connection)
        except NotificationsBlocked:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the error is, listening must not end silently
            self._report_loss(f"{type(error).__name__}: {error}".strip())
        finally:
            broken, self._connection = self._connection, None
            if broken is not None:
                with suppress(*_CONNECTION_ERRORS):
                    broken.close()
        return time.monotonic() - began > _STEADY_AFTER

    def close(self) -> None:
        """End the thread, wherever it is waiting. Returns when the thread has ended, or after a second, because the
        thread may still be connecting.
        """
        self._closed.set()
        if (connection := self._connection) is not None:
            _shut_down(connection)
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_CLOSE_TIMEOUT)

    def _open(self) -> psycopg.Connection[Any]:
        self._connection = connection = self.connect()
        with self._watchdog(connection):
            connection.rollback()
            connection.autocommit = True  # inside a transaction, no notifications are delivered
            self._prove_delivery(connection)
            # This comes after the proof, because a pooler would keep the lock for other connections.
            self._run(connection, channel.open_session, session=(session := secrets.randbits(62)))
        self.session = session
        return connection

    def _prove_delivery(self, connection: psycopg.Connection[Any]) -> None:
        """Prove that notifications from the trigger in the worker's database reach this connection.

        Even if LISTEN succeeds, notifications may not arrive: a pooler may be in between, or the connection may lead to
        another database. The trigger must be on the same outbox table that the worker's own connections find.
        """
        word = f"{PROOF}{uuid4().hex}"
        other = (self.connect_notifier or self.connect)()
        with self._watchdog(other), other:
            other.rollback()
            other.autocommit, other.read_only = False, False  # overrides the role's defaults
            self._find_channel(other)
            connection.execute(_listen_to(self._channel))
            self._run(other, channel.prove, word=word)
        if not self._receives(connection, word, self.answer_timeout / 2):
            connection.execute("SELECT 1")  # fails if the peer does not answer, which means an outage, not a pooler
            if not self._receives(connection, word, 0):
                raise NotificationsBlocked

    def _find_channel(self, connection: psycopg.Connection[Any]) -> None:
        found = self._run(connection, channel.find)
        if not found:
            raise TriggerMissing("this worker's database has no outbox")
        if not found[0]["fires"]:
            raise TriggerMissing(
                "the trigger task_outbox_notify is missing or switched off; outboxq verify reports that too"
            )
        self._outbox, self._channel = found[0]["outbox"], found[0]["channel"]

    def _receives(self, connection: psycopg.Connection[Any], word: str, seconds: float) -> bool:
        return any(notice.payload == word for notice in connection.notifies(timeout=seconds))

    def _run(self, connection: psycopg.Connection[Any], builder: Builder, **values: Any) -> list[Row]:
        def execute(text: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
            with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
                cursor.execute(text.encode(), parameters, prepare=False)
                return cursor.fetchall() if cursor.description else []

        return self.dialect.compiled[builder].run(execute, values)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        if self._closed.is_set():
            return
        self.connections += 1
        self._error = None
        self.on_change()
        log.debug("listening on %s", self._channel)
        while not self._closed.is_set():
            for notice in connection.notifies(timeout=self.ping_every):
                if not _IS_PROOF.fullmatch(notice.payload):
                    self.on_notify(notice.payload)
            with self._watchdog(connection):
                still = self._run(connection, channel.find_again, outbox=self._outbox)
            if still != [{"channel": self._channel}]:
                raise TriggerMissing("the outbox was moved or dropped")

    def _report_loss(self, error: str) -> None:
        """Log an outage only once, not at each attempt."""
        if self._error is None and not self._closed.is_set():
            self.on_break()
        begins, self._error = self._error in (None, _NOT_YET), error
        if begins and not self._closed.is_set():
            self.on_change()
            log.warning("the listening connection broke; reconnecting, and polling in the meantime: %s", error)

    @contextmanager
    def _watchdog(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Cut the connection if the block takes too long. Otherwise a frozen or unreachable peer would block this
        thread forever.
        """
        timer = threading.Timer(self.answer_timeout, _shut_down, (connection,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _shut_down(connection: psycopg.Connection[Any]) -> None:
    """Wake any thread that is waiting on this connection. (psycopg's close() must not be called from another thread.)"""
    if connection.closed:
        return
    with suppress(*_CONNECTION_ERRORS), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


def _listen_to(channel: str) -> sql.Composed:
    return sql.SQL("LISTEN {}").format(sql.Identifier(channel))
