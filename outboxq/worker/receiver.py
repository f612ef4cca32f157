"""Receive the messages from a broker, and turn each message into a task."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from ..errors import SourceUnavailable
from ..model.transports import Source, SourceConnection
from ..model.workers import ReceiverState
from ..payload.parameters import sanitize
from ..store import Store
from ..task.receivers import Reader

_AT_ONCE = 200
"""The maximum number of messages in one transaction."""
_LONGEST_WAIT = 0.5
"""Seconds that one call waits for a message. A stopping worker waits that long for the broker, or 1 s for SQS."""
_BACK_OFF = (1.0, 5.0)
"""The first and the longest wait, in seconds, after a failure to reach the broker. The longest wait is short, because
messages may be waiting once the broker is back, and an attempt to connect costs little.
"""
_LONGEST_ERROR = 500


class Receiver:
    """Receives the messages from one source. Each message is acknowledged after its tasks have been committed."""

    def __init__(
        self,
        source: Source,
        reader: Reader,
        store: Store,
        stopping: threading.Event,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_change` is called when the receiver begins to fail, and when it works again."""
        self._source, self._reader, self._store, self._stopping = source, reader, store, stopping
        self._on_change = on_change
        self._connection: SourceConnection | None = None
        self._wait = 0.0
        self.state = ReceiverState(source=sanitize(str(source), limit=_LONGEST_ERROR), tasks=reader.task_names)
        """The receiver's state, for people. Any thread may read the state."""

    def receive_all(self) -> None:
        """Receive until no more messages arrive. A worker calls this before a burst begins."""
        while self.run_once():
            pass

    def run_once(self) -> int:
        """Receive a batch, and return the number of messages in it. Raises SourceUnavailable, and whatever the database
        raises.

        If anything fails, the connection is closed, so that the broker delivers the messages again. The inbox then
        drops the messages that were already committed.
        """
        try:
            with self._reaching():
                if (connection := self._connection) is None:
                    connection = self._connection = self._source.connect()
                messages = connection.receive(_AT_ONCE, time.monotonic() + _LONGEST_WAIT)
            if not messages:
                self._works()
            if self._stopping.is_set() or not messages:
                return 0
            self._store.inbox.receive([one for message in messages for one in self._reader.read(message)])
            with self._reaching():
                connection.acknowledge(messages)
        except BaseException as error:
            self.close()
            self._wait = min(_BACK_OFF[1], max(_BACK_OFF[0], 2 * self._wait))
            self._fails(error)
            raise
        self._works()
        return len(messages)

    def pause(self) -> float:
        """Return the number of seconds until the next batch: 0 or, after failures, an increasing wait of up to 5 s."""
        return self._wait * random.uniform(0.5, 1.0)  # noqa: S311

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _works(self) -> None:
        """Record that the source has responded, with or without messages, so that no pause precedes the next batch."""
        self._wait = 0.0
        if self.state.failing_since is not None:
            self.state = replace(self.state, failing_since=None, last_error=None)
            self._on_change()

    def _fails(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, SourceUnavailable) else f"{type(error).__name__}: {error}"
        since = self.state.failing_since
        reason = sanitize(" ".join(text.split()), limit=_LONGEST_ERROR)
        self.state = replace(self.state, failing_since=since or datetime.now(UTC), last_error=reason)
        if since is None:
            self._on_change()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raise SourceUnavailable for any error from the broker's client."""
        try:
            yield
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise SourceUnavailable(f"cannot receive from {self._source}: {reason}") from error
