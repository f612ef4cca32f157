"""Whether the tables tell one story."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements.checks import CHECKS, REPAIRS
from ..database.target import Target
from .transactions import Transactions

log = logging.getLogger("outboxq.store")
_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """An invariant that does not hold, with examples."""

    name: str
    meaning: str
    count: int
    examples: Sequence[UUID | str]
    """Ids of a few of the tasks; or names, if no task is wrong but a queue or an index."""
    repaired: int = 0


def verify(store: Transactions, *, repair: bool = False, using: object = None) -> list[Violation]:
    """Check every invariant in one snapshot of a running system; empty if all hold. Reads all tables, so it takes time.

    With `repair`, what can be put right without guessing is: a lost outbox entry comes back, due when the last event
    says; a stale entry, lease, dead letter or claim of a partition key goes; an entry, lease or dead letter that differs
    from its task is made as the task says; a Running task without a lease gets one that has run out, for `recover` to
    find; a Failed task is a dead letter again; a partition key goes back to the task that runs or holds it, unless another
    has taken it. A due time, retry, end, error, worker, position, idempotency key or cancel request that differs from what
    the task's events say is made as they say. A lease or a rate that ends too late ends its own length from now, and the
    counter of positions goes on behind the largest. Each repair is a transaction of its own. With `using` the snapshot is
    that of the connection's transaction.
    """
    broken = _broken(store, using)
    return [_repair(store, violation, using) for violation in broken] if repair else broken


def _broken(store: Transactions, using: object) -> list[Violation]:
    """Ask every check; where a row cannot be read at all, once more, each by itself: then the others answer still."""

    def work(target: Target, *, apart: bool) -> list[Violation]:
        found: list[Violation] = []
        for name, check in CHECKS.items():
            try:
                with target.atomic(savepoint=apart):
                    rows = target.run(check.broken, store.values(target))
            except Exception as error:
                if not apart or not _is_unreadable(store, error):
                    raise
                found.append(_unanswered(name, error))
                continue
            found += _found({name: check.meaning, **check.also}, rows)
        return found

    def together(target: Target) -> list[Violation]:
        with target.atomic(savepoint=using is not None):
            return work(target, apart=False)

    try:
        return store.run(together, using=using, begin=Begin.SNAPSHOT)
    except Exception as error:
        if not _is_unreadable(store, error):
            raise
    return store.run(lambda target: work(target, apart=True), using=using, begin=Begin.SNAPSHOT)


def _is_unreadable(store: Transactions, error: Exception) -> bool:
    return store.dialect.is_bad_value(error)


def _repair(store: Transactions, violation: Violation, using: object) -> Violation:
    def work(target: Target) -> list[Row] | None:
        repair = REPAIRS.get(violation.name)
        if repair is None:
            return None
        with target.atomic():
            rows = target.run(repair, store.values(target))
        store.wake(target, {row["queue"] for row in rows if "queue" in row})
        return rows

    rows = store.run(work, using=using)
    if rows is None:
        return violation
    for row in rows:
        log.warning("repaired %s: %s", row["id"], violation.meaning)
    return Violation(
        name=violation.name,
        meaning=violation.meaning,
        count=violation.count,
        examples=violation.examples,
        repaired=len(rows),
    )


def _found(meanings: Mapping[str, str], rows: Sequence[Row]) -> list[Violation]:
    found = []
    for name, meaning in meanings.items():
        if ids := [row["id"] for row in rows if row.get(name, True)]:
            found.append(Violation(name=name, meaning=meaning, count=len(ids), examples=tuple(ids[:_EXAMPLES])))
    return found


def _unanswered(name: str, error: Exception) -> Violation:
    cause = str(getattr(error, "orig", None) or error).partition("\n")[0] or type(error).__name__
    meaning = f"this could not be checked, since the database cannot read a row: {cause}"
    return Violation(name=name, meaning=meaning, count=1, examples=())
