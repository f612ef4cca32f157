"""Questions of a worker before it waits: can something be claimed, and when does the next task become due?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..database.dialects import Begin
from ..database.statements import due as statements
from ..database.target import Target
from .tasks import tasks
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
        return _following(store, target, queues)

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
        moment = _following(store, target, queues)
        values = store.values(target) | store.scope(target, queues, topics)
        now = target.run(tasks.select_now, values)[0]["now"]
        found = target.run(_RECENT[queues is None] if recent else _DUE[queues is None], values)[0]
        if not found["due"] and found["by_key"]:
            found = target.run(_DUE_BY_KEY[queues is None], values)[0]
        due = bool(found["due"])
        return Look(due=due, seconds=None if moment is None else max(0.0, (moment - now).total_seconds()))

    return store.run(work, using=using, begin=Begin.READ)


def _following(store: Transactions, target: Target, queues: Sequence[str] | None) -> datetime | None:
    values = store.values(target) | store.scope(target, queues, None)
    found = target.run(_NEXT[queues is None], values)[0]
    if found["by_key"]:
        found = target.run(_NEXT_BY_KEY[queues is None], values)[0]
    moment: datetime | None = found["available_at"]
    return moment


_DUE = (statements.any_due_given, statements.any_due)
_RECENT = (statements.any_recent_given, statements.any_recent)
_NEXT = (statements.next_available_at_given, statements.next_available_at)
_DUE_BY_KEY = (statements.any_due_given_by_key, statements.any_due_by_key)
_NEXT_BY_KEY = (statements.next_available_at_given_by_key, statements.next_available_at_by_key)
"""The statement for the queues given, and the one for all. The last two include queues that limit their keys."""
