"""Check the invariants of the tables, and make the repairs that do not require guessing.

Each invariant is a query for the ids that violate it, and some have a repair. Every snapshot must satisfy all
invariants, so they are checked in one snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from ...database.dialects import Begin, Row
from ...database.target import Target
from ..transactions import Transactions
from .batches import BATCH_CHECKS, unreadable
from .check import Check
from .events import LOG_CHECKS, TASK_EVENT_CHECKS
from .keys import IDEMPOTENCY_KEY_CHECKS, PARTITION_KEY_CHECKS
from .repairs import LOCKS, REPAIRS
from .rows import PART_CHECKS, RELAY_CHECKS, ROW_CHECKS, STEP_CHECKS, TICK_CHECKS, VALUE_CHECKS

log = logging.getLogger("outboxq.store")
_EXAMPLES = 5

CHECKS: Mapping[str, Check] = {
    **PART_CHECKS,
    **TASK_EVENT_CHECKS,
    **VALUE_CHECKS,
    **ROW_CHECKS,
    **PARTITION_KEY_CHECKS,
    **IDEMPOTENCY_KEY_CHECKS,
    **LOG_CHECKS,
    **TICK_CHECKS,
    **STEP_CHECKS,
    **BATCH_CHECKS,
    **RELAY_CHECKS,
}
"""All invariants by name, in the order in which their repairs are made. The order matters, because a stale row may
occupy the place of another row. Differences from the events are repaired before differences from other tables.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A violated invariant, with examples."""

    name: str
    meaning: str
    count: int
    examples: Sequence[UUID | str]
    """The ids of some of the tasks, or names if the violation concerns a queue or an index instead of a task."""
    repaired: int = 0


def verify(
    store: Transactions,
    *,
    repair: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    using: object = None,
) -> list[Violation]:
    """Check every invariant in one snapshot of a running system, and return the violated ones. This reads all tables,
    so it may take a long time.

    With `repair`, the call also makes the repairs that do not require guessing. A lost outbox entry is restored with
    the due time from the task's last event. Stale entries, leases, dead letters and claims of partition keys are
    deleted. An entry, lease or dead letter that differs from its task gets the task's values. A Running task without a
    lease gets an expired one, so that `recover` finds it. A Failed task becomes a dead letter again. A partition key is
    returned to its running task, or to the dead letter that holds the key, unless another task has taken it. A due
    time, retry time, completion time, error, worker, position, idempotency key, expiry of a key or cancel request that
    differs from the task's events gets the value from the events. A lease that ends too late is set to end after its
    own length, counted from now. A rate limit that is used up for longer than its period becomes fully available again
    one period from now. A relay that waits too long tries again now. The position counter continues after the largest
    position. Ticks and steps without tasks are deleted. Each repair is a separate transaction. With `using`, the
    snapshot of the caller's transaction is used.

    `on_progress` is called after each check, with the number of finished checks and the total number of checks.
    """
    done = on_progress or (lambda _done, _all: None)
    broken = store.run(partial(_broken, store, on_progress=done), using=using, begin=Begin.SNAPSHOT)
    return [_repair(store, violation, using) for violation in broken] if repair else broken


def _broken(store: Transactions, target: Target, *, on_progress: Callable[[int, int], None]) -> list[Violation]:
    """Run every check, even if the database cannot read a row for one of them. One savepoint serves all checks until
    one of them raises an error. A savepoint for each check would cost two more round trips per check.
    """
    found: list[Violation] = []
    waiting = [*CHECKS][::-1]
    while waiting:
        try:
            with target.atomic(savepoint=True):
                while waiting:
                    found += _ask(store, target, waiting[-1])
                    waiting.pop()
                    on_progress(len(CHECKS) - len(waiting), len(CHECKS))
        except Exception as error:
            if not waiting or not store.dialect.is_bad_value(error):
                raise
            meaning = f"this could not be checked, because the database cannot read a row: {_cause(error)}"
            found.append(Violation(name=waiting.pop(), meaning=meaning, count=1, examples=()))
            on_progress(len(CHECKS) - len(waiting), len(CHECKS))
    return found


def _ask(store: Transactions, target: Target, name: str) -> list[Violation]:
    """Return the violations that this check finds, for its own invariant and for the others that it checks."""
    check, found = CHECKS[name], []
    rows = target.run(check.broken, store.values(target))
    if check.is_broken is not None:
        rows = [row for row in rows if check.is_broken(row)]
    for each, meaning in {name: check.meaning, **check.also}.items():
        if ids := [row["id"] for row in rows if row.get(each, True)]:
            found.append(Violation(name=each, meaning=meaning, count=len(ids), examples=tuple(ids[:_EXAMPLES])))
    return found


def _cause(error: Exception) -> str:
    """Return the database's message without details."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0] or type(error).__name__


def _repair(store: Transactions, violation: Violation, using: object) -> Violation:
    """Make the repair, if there is one. If the database cannot read one of the rows, nothing is repaired, and the
    violation's meaning says so. The other repairs do not depend on this one.
    """
    if (repair := REPAIRS.get(violation.name)) is None:
        return violation

    def work(target: Target) -> list[Row]:
        with target.atomic(savepoint=True):
            lock = LOCKS.get(violation.name)
            locked = target.run(lock, store.values(target)) if lock else []
            rows = target.run(repair, {**store.values(target), **unreadable(target, locked)})
        store.wake(target, {row["queue"] for row in rows if "queue" in row})
        return rows

    try:
        rows = store.run(work, using=using)
    except Exception as error:
        if not store.dialect.is_bad_value(error):
            raise
        reason = f"it could not be repaired, because the database cannot read a row: {_cause(error)}"
        return replace(violation, meaning=f"{violation.meaning}; {reason}")
    for row in rows:
        fields = {"task_id": str(row["id"])} if isinstance(row["id"], UUID) else None  # otherwise it is a queue
        log.warning("repaired %s: %s", row["id"], violation.meaning, extra=fields)
    return replace(violation, repaired=len(rows))
