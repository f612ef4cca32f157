"""The history in partitions: made ahead of time, and dropped whole when they are old."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import tenacity
from sqlalchemy.exc import DBAPIError

from ..database.dialects import Begin, Row
from ..database.dialects.partitioning import Layout, Partition, Partitioning
from ..database.statements import partitions, reading
from ..database.target import Target
from ..errors import InvalidArgument
from ..model.periods import periods
from .transactions import Transactions

T = TypeVar("T")
log = logging.getLogger("outboxq.store")

AHEAD = 3
MOVED_AT_MOST = 10_000
"""Tasks that a drop carries to the default partition while everybody waits; where more are to be kept, rows are deleted."""
_PAUSE = tenacity.wait_random(0.5, 2)


def make_partitions(store: Transactions, ahead: int = AHEAD) -> int:
    """Make the partition of now and `ahead` more, where they are missing; returns how many pairs were made.

    Does nothing on SQLite and while the tables are not partitioned; otherwise one look when all are there. Only the tables'
    owner can make them: for any other role it logs a warning. A table that others use for long is asked for again and again,
    briefly each time; then LockNotAvailable passes through.
    """
    if type(ahead) is not int or ahead < 0:
        raise InvalidArgument(f"ahead must be a whole number of at least 0, not {ahead!r}")
    if (layout := read_layout(store)) is None:
        return 0
    partitioning = Partitioning(store.dialect)
    now = moment(store)
    if not (wanted := layout.missing(periods(layout.every, now, ahead))):
        return 0
    if not layout.owned:
        log.warning("partitions of the history are missing, but only %s can make them", layout.owner)
        return 0

    def work(target: Target) -> int:
        partitioning.alone_in_making(target.execute, layout.schema)
        current = _layout(target)
        missing = current.missing(wanted) if current else []
        if current and missing:
            partitioning.make(target.execute, current, missing, now)
        return len(missing)

    return _briefly(store, work)


def _partitions(store: Transactions) -> Sequence[Partition]:
    layout = read_layout(store)
    return layout.partitions if layout else ()


def read_layout(store: Transactions, using: object = None) -> Layout | None:
    """Return the layout; None where the history is not partitioned, which costs nothing where it cannot be."""
    if using is None and not store.dialect.has_partitions:
        return None
    return store.run(_layout, using=using, begin=Begin.READ)


def drop_before(
    store: Transactions, before: datetime, values: Mapping[str, Any], stop: Callable[[], bool] = lambda: False
) -> int:
    """Drop the partitions that ended before this moment, oldest first; returns how many tasks went."""
    layout = read_layout(store)
    if layout is None or not layout.owned:
        return 0
    partitioning = Partitioning(store.dialect)
    dropped = 0
    for one in layout.partitions:
        if one.end > before or stop():
            break
        try:
            found = _look(store, partitioning, one, values)
            if len(found["kept"] or ()) > MOVED_AT_MOST:
                continue
            _free_keys(store, partitioning, one, values)
        except DBAPIError:
            if one in _partitions(store):
                raise
            continue  # another prune was here
        dropped += _drop(store, partitioning, one, values, found)
    return dropped


def _look(store: Transactions, partitioning: Partitioning, one: Partition, values: Mapping[str, Any]) -> Row:
    """Read the whole partition, before any session has to wait: what would go, and what a drop would have to carry over."""

    def work(target: Target) -> Row:
        target.run(partitions.scanning)
        return partitioning.keep(one).run(target.execute, values)[0]

    return store.run(work, begin=Begin.READ)


def _free_keys(store: Transactions, partitioning: Partitioning, one: Partition, values: Mapping[str, Any]) -> None:
    """Free the keys in batches, before any session has to wait: there may be one for each task."""
    free = partitioning.keys_ahead(one)
    bounds = {**values, "lower": one.lower, "upper": one.upper}
    while len(store.run(lambda target: free.run(target.execute, bounds))) == values["limit"]:
        pass


def _drop(
    store: Transactions, partitioning: Partitioning, one: Partition, values: Mapping[str, Any], found: Row
) -> int:
    """All of it in one transaction: what is to be kept is carried over, the rest goes with its tables."""
    went = 0

    def work(target: Target) -> int:
        nonlocal went
        execute = target.execute
        partitioning.alone(execute, one.schema)
        if not _has(target, one):
            return 0  # another prune was here
        bounds = {"lower": one.lower, "upper": one.upper}
        seen = {"failed": found["failed"] or [], "last_event": found["last_event"]}
        since = partitioning.kept_since(one).run(execute, {**values, **bounds, **seen})
        before = set(found["kept"] or ())
        new = {row["id"] for row in since}
        kept, went = sorted(before | new), int(found["tasks"]) - len(new & set(found["failed"] or ()))
        partitioning.detach(execute, one)
        for bring in partitioning.bring(one) if kept else ():
            bring.run(execute, {"kept": kept})
        for forget in partitions.FORGET.values():
            target.run(forget, {**bounds, "kept": kept})
        partitioning.drop(execute, one)
        return went

    return _briefly(store, work, done=lambda target: None if _has(target, one) else went)


def _briefly(
    store: Transactions, work: Callable[[Target], T], done: Callable[[Target], T | None] = lambda _: None
) -> T:
    """Run work that locks whole tables. Every session queues behind such a lock: it is given up soon, and others
    get on before the next.
    """
    stop = tenacity.stop_after_attempt(15) | tenacity.stop_when_event_set(store.gone)
    attempts = store.tries().copy(wait=_PAUSE, stop=stop)
    for attempt in attempts:
        with attempt, store.transaction(Begin.WRITE) as target:
            if attempt.retry_state.attempt_number > 1 and (found := done(target)) is not None:
                return found
            target.run(partitions.patience)
            return work(target)
    raise AssertionError("tenacity reraises the last error")


def moment(store: Transactions, using: object = None) -> datetime:
    """Return the moment by the injected clock, else by the database's."""
    return store.run(  # type: ignore[no-any-return]
        lambda target: target.run(reading.now, store.values(target))[0]["now"],
        using=using,
        begin=Begin.READ,
    )


def _layout(target: Target) -> Layout | None:
    return Partitioning(target.dialect).layout(target.execute) if target.dialect.has_partitions else None


def _has(target: Target, one: Partition) -> bool:
    layout = _layout(target)
    return layout is not None and one in layout.partitions
