"""The failures that keep a worker from working, such as a full disk. The worker's registration reports them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..payload.parameters import sanitize
from ..store.failure_log import sentence

CLAIM = "claim tasks"
END = "write the outcomes of tasks"
_LASTING = 3
"""The number of failures in a row after which a failure is reported. A single failure may be a deadlock or a lost
connection.
"""
_LONGEST = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFailure:
    """A failure that persists."""

    since: datetime
    """The time of the first of these consecutive failures, by the worker's clock."""
    failure: str
    """The failure in words, such as "cannot claim tasks: DiskFull (53100): …"."""


@dataclass(eq=False, repr=False)
class WorkFailures:
    """The failures of the worker's activities. Any thread may call the methods. Recording repeated successes costs
    nothing.
    """

    on_change: Callable[[], object] = lambda: None
    """A function that is called when `current` has changed, so that the registration is renewed."""
    _found: dict[str, WorkFailure] = field(default_factory=dict, init=False)
    _counts: dict[str, int] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def current(self) -> WorkFailure | None:
        """The failure that has lasted longest; None if the worker can work."""
        with self._lock:
            lasting = [one for activity, one in self._found.items() if self._counts[activity] >= _LASTING]
        return min(lasting, key=lambda one: one.since, default=None)

    def failed(self, activity: str, error: BaseException) -> None:
        """Record that an activity, such as "claim tasks", has failed again. A reported error is not replaced by a later
        one, because each change to the report is written to the database.
        """
        words = sanitize(f"cannot {activity}: {sentence(error)}", limit=_LONGEST)
        with self._lock:
            self._counts[activity] = count = self._counts.get(activity, 0) + 1
            if count <= _LASTING:
                since = self._found[activity].since if count > 1 else datetime.now(UTC)
                self._found[activity] = WorkFailure(since=since, failure=words)
        if count == _LASTING:
            self.on_change()

    def worked(self, activity: str) -> None:
        """Record that an activity has succeeded."""
        if activity not in self._counts:
            return
        with self._lock:
            count = self._counts.pop(activity, 0)
            self._found.pop(activity, None)
        if count >= _LASTING:
            self.on_change()
