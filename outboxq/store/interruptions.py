"""Count the interruptions of a task's transaction in a row."""

from __future__ import annotations

import json

from ..database.dialects import Begin
from ..database.statements import interruptions as statements
from ..model import INTERRUPTED, Claim, EventType
from .transactions import Transactions


def interruptions(store: Transactions, claim: Claim, *, using: object = None) -> int:
    """Return how often in a row, before this claim, the task was given back because its transaction was interrupted.

    An end by its handler restarts the count, and so does an operator who runs the task again.
    """
    if claim.lease_token <= 1:  # the first claim
        return 0
    values = {"task_id": claim.id}
    found = store.run(
        lambda target: target.run(statements.last_end, values),
        using=using,
        begin=Begin.READ,
    )
    if not found or found[0]["event_type"] != EventType.RELEASED:
        return 0
    data = json.loads(found[0]["event_data"])
    return int(data.get("times", 1)) if data.get("reason") == INTERRUPTED else 0
