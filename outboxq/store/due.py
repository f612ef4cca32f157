"""Questions of a worker before it waits: can something be claimed, and when does the next task become due?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..database.dialects import Begin
from ..database.statements import due as statements
from ..database.statements import tasks
from ..database.target import Target
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The answer to a look ahead."""

    settled: bool = True
    """No transaction is open that this may have missed (`store/sleeping_workers.py`)."""
    due: bool
    """Something may be claimed, unless another worker is about to."""
    seconds: float | None
    """Until the next task is due; None: none is waiting."""


def next_available_at(
    store: Transactions, queues: Sequence[str] | None = None, *, using: object = None
) -> datetime | None:
    """Return the next moment, strictly in the future, at which a task of these queues becomes due; None: none is waiting."""

    def work(target: Target) -> Any:
        following = statements.next_available_at if queues is None else statements.next_available_at_given
        values = store.values(target) | store.scope(target, queues, None)
        return target.run(following, values)[0]["available_at"]

    return store.run(work, using=using, begin=Begin.READ)  # type: ignore[no-any-return]


def look_ahead(
    store: Transactions,
    queues: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    recent: bool = False,
    using: object = None,
) -> Look:
    """Look if a task of these queues is due, and when the next one is.

    In this order of reading, so that a task that becomes due meanwhile is seen by one or the other. `recent` asks only
    for what became claimable lately: a short look behind any number of keys that cannot be claimed, which may miss others.
    """

    def work(target: Target) -> Look:
        if queues is None:
            following = statements.next_available_at
            any_due = statements.any_recent if recent else statements.any_due
        else:
            following = statements.next_available_at_given
            any_due = statements.any_recent_given if recent else statements.any_due_given
        values = store.values(target) | store.scope(target, queues, topics)
        moment = target.run(following, values)[0]["available_at"]
        values |= store.values(target)
        now = target.run(tasks.now, values)[0]["now"]
        due = bool(target.run(any_due, values))
        return Look(due=due, seconds=None if moment is None else max(0.0, (moment - now).total_seconds()))

    return store.run(work, using=using, begin=Begin.READ)
