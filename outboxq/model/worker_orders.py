"""The orders that a person gives to a single worker, and the states that it reaches."""

from __future__ import annotations

from dataclasses import dataclass
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
    """The orders that a worker reads whenever it reports."""

    asked_to: WorkerOrder | None = None
    stacks: bool = False
    """True if a person waits for the stacks of its threads."""
