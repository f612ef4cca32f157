"""Count the interruptions of a task's transaction in a row."""

from __future__ import annotations

import json

from ..database.dialects import Begin
from ..database.statements import ends as statements
from ..model import Claim, EventType
from .transactions import Transactions


def interruptions(store: Transactions, claim: Claim, *, using: object = None) -> int:
    """Return how often in a row, before this claim, the task was given back because its transaction was interrupted.

    An end by its handler restarts the count, and so does an operator who runs the task again. A release that cannot be read counts
    as none.
    """
    if claim.lease_token <= 1:  # the first claim
        return 0
    values = {"task_id": claim.id}
    ends = store.run(lambda target: target.run(statements.last_end, values), using=using, begin=Begin.READ)
    if not ends or ends[0]["event_type"] != EventType.RELEASED:
        return 0
    return _times(ends[0]["event_data"])


def _times(event_data: str) -> int:
    try:
        return int(json.loads(event_data).get("times", 1))
    except (TypeError, ValueError):
        return 0
