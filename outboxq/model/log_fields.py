"""The fields of log records about a task: the same names wherever outboxq logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .records import Claim, EventType

LOST: Final = "lost"
"""The outcome of a claim that another worker may have taken over, or whose worker died."""

OUTCOMES: Final[Mapping[EventType, str]] = {
    EventType.COMPLETED: "completed",
    EventType.RETRY_SCHEDULED: "retried",
    EventType.FAILED: "failed",
    EventType.CANCELLED: "cancelled",
    EventType.SNOOZED: "snoozed",
    EventType.RELEASED: "released",
    EventType.RESET: LOST,
    EventType.ABANDONED: "failed",
}
"""The outcome of an attempt by the event that ends its claim."""


def fields_of(claim: Claim, **more: Any) -> dict[str, Any]:
    """Return the fields of a record about this claim, as `extra=` takes them. Its arguments are never among them."""
    return {
        "task_id": str(claim.id),
        "task": claim.task_name,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "worker": str(claim.worker_id),
        "pipeline_id": str(claim.pipeline_execution_id),
        **more,
    }
