"""Records for workers: the orders that people give to a worker, the states that it reaches, and its receivers, which
turn the messages from a broker into tasks. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum


class WorkerOrder(StrEnum):
    """An order to a worker. A worker without an order claims tasks."""

    QUIET = "quiet"
    """Claim nothing new, and finish the running tasks."""
    STOP = "stop"
    """Stop in the same way as after SIGTERM."""


class WorkerState(StrEnum):
    """The state that a worker has reached. A worker without a state claims tasks."""

    QUIET = "quiet"
    STOPPING = "stopping"


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """The orders that a worker reads whenever it renews its registration."""

    asked_to: WorkerOrder | None = None
    stacks: bool = False
    """True if a person is waiting for the stacks of the worker's threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverState:
    """The state of one worker's receiver for one source."""

    source: str
    """The source in words, such as its broker and queue."""
    tasks: tuple[str, ...]
    """The names of the tasks that the source's messages become."""
    failing_since: datetime | None = None
    """The time of the first failure since the receiver last worked, by the worker's clock; None if the receiver works.
    """
    last_error: str | None = None
    """The reason for the last failure; None if the receiver works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceState:
    """The state of one source in all live workers that receive from it."""

    source: str
    tasks: tuple[str, ...]
    workers: int
    """The number of live workers that receive from the source."""
    failing: int
    """The number of live workers whose receiver for the source is failing."""
    failing_since: datetime | None
    """The earliest of the receivers' first failures; None if all of them work."""
    last_error: str | None

    @property
    def state(self) -> str:
        """The state in a word: `failing` if at least one receiver is failing."""
        return "failing" if self.failing else "active"


def sources_of(states: Iterable[ReceiverState]) -> list[SourceState]:
    """Return the states of all sources, sorted by name. `states` are the states of live workers' receivers."""
    by_source: dict[str, list[ReceiverState]] = {}
    for one in states:
        by_source.setdefault(one.source, []).append(one)
    found = []
    for source, several in sorted(by_source.items()):
        failing = [(one.failing_since, one) for one in several if one.failing_since is not None]
        since, first = min(failing, key=lambda pair: pair[0], default=(None, None))
        found.append(
            SourceState(
                source=source,
                tasks=tuple(sorted({name for one in several for name in one.tasks})),
                workers=len(several),
                failing=len(failing),
                failing_since=since,
                last_error=None if first is None else first.last_error,
            )
        )
    return found


def as_stored(states: Iterable[ReceiverState]) -> str | None:
    """Return the states as they are stored with a worker; None for a worker without receivers."""
    listed = [asdict(one) for one in states]
    return json.dumps(listed, ensure_ascii=False, default=datetime.isoformat) if listed else None


def read_states(stored: str | None) -> tuple[ReceiverState, ...]:
    """Return the states that `as_stored` wrote."""
    return tuple(
        ReceiverState(
            source=one["source"],
            tasks=tuple(one["tasks"]),
            failing_since=None if one["failing_since"] is None else datetime.fromisoformat(one["failing_since"]),
            last_error=one["last_error"],
        )
        for one in json.loads(stored or "[]")
    )
