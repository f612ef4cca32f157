"""The history in partitions: made ahead of time, and dropped whole when they are old."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import tenacity
from sqlalchemy.exc import DBAPIError

from ..database.dialects import Begin, Row, milliseconds_of_a_statement, time_partitions
from ..database.dialects.partitioning import Layout, Partition, Partitioning
from ..database.target import Target
from ..errors import InvalidArgument
from ..model.periods import periods
from .tasks.tasks import now
from .transactions import Transactions

T = TypeVar("T")
log = logging.getLogger("outboxq.store")

AHEAD = 3
MOVED_AT_MOST = 10_000
"""Tasks that a drop carries to the default partition while everybody waits; where more are to be kept, rows are deleted."""
_PAUSE = tenacity.wait_random(0.5, 2)


class TimePartitions:
    """The partitions of a history that is divided by time."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def make(self, ahead: int = AHEAD) -> int:
        """Make the partition of now and `ahead` more, where they are missing; returns how many pairs were made.

        Does nothing on SQLite and while the tables are not partitioned; otherwise one look when all are there. Only the tables'
        owner can make them: for any other role it logs a warning. A table that others use for long is asked for again and again,
        briefly each time; then LockNotAvailable passes through.
        """
        if type(ahead) is not int or ahead < 0:
            raise InvalidArgument(f"ahead must be a whole number of at least 0, not {ahead!r}")
        if (layout := self.layout()) is None:
            return 0
        partitioning = Partitioning(self._store.dialect)
        present = now(self._store)
        if not (wanted := layout.missing(periods(layout.every, present, ahead))):
            return 0
        if not layout.owned:
            log.warning("partitions of the history are missing, but only %s can make them", layout.owner)
            return 0

        def work(target: Target) -> int:
            partitioning.alone_in_making(target.execute, layout.schema)
            current = _layout(target)
            missing = current.missing(wanted) if current else []
            if current and missing:
                partitioning.make(target.execute, current, missing, present)
            return len(missing)

        return self._briefly(work)

    def drop_before(self, before: datetime, values: Mapping[str, Any], stop: Callable[[], bool]) -> int:
        """Drop the partitions that ended before this moment, oldest first; returns how many tasks went."""
        layout = self.layout()
        if layout is None or not layout.owned:
            return 0
        partitioning = Partitioning(self._store.dialect)
        dropped = 0
        for one in layout.partitions:
            if one.end > before or stop():
                break
            try:
                found = self._look(partitioning, one, values)
                if len(found["kept"] or ()) > MOVED_AT_MOST:
                    continue
                self._free_keys(partitioning, one, values)
            except DBAPIError:
                if self._is_there(one):
                    raise
                continue  # another prune was here
            dropped += self._drop(partitioning, one, values, found)
        return dropped

    def layout(self, using: object = None) -> Layout | None:
        """Return the layout; None where the history is not partitioned, which costs nothing where it cannot be."""
        if using is None and not self._store.dialect.has_partitions:
            return None
        return self._store.run(_layout, using=using, begin=Begin.READ)

    def _is_there(self, one: Partition) -> bool:
        return self._store.run(lambda target: _has(target, one), begin=Begin.READ)

    def _look(self, partitioning: Partitioning, one: Partition, values: Mapping[str, Any]) -> Row:
        """Read the whole partition, before any session has to wait: what would go, and what a drop would have to carry over."""

        def work(target: Target) -> Row:
            target.run(time_partitions.scanning, {"statement_timeout": f"{milliseconds_of_a_statement()}ms"})
            return partitioning.keep(one).run(target.execute, values)[0]

        return self._store.run(work, begin=Begin.READ)

    def _free_keys(self, partitioning: Partitioning, one: Partition, values: Mapping[str, Any]) -> None:
        """Free the keys in batches, before any session has to wait: there may be one for each task."""
        free = partitioning.keys_ahead(one)
        bounds = {**values, "lower": one.lower, "upper": one.upper}
        while len(self._store.run(lambda target: free.run(target.execute, bounds))) == values["limit"]:
            pass

    def _drop(self, partitioning: Partitioning, one: Partition, values: Mapping[str, Any], found: Row) -> int:
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
            for forget in time_partitions.FORGET.values():
                target.run(forget, {**bounds, "kept": kept})
            partitioning.drop(execute, one)
            return went

        return self._briefly(work, done=lambda target: None if _has(target, one) else went)

    def _briefly(self, work: Callable[[Target], T], done: Callable[[Target], T | None] = lambda _: None) -> T:
        """Run work that locks whole tables. Every session queues behind such a lock: it is given up soon, and others
        get on before the next.
        """
        stop = tenacity.stop_after_attempt(15) | tenacity.stop_when_event_set(self._store.gone)
        attempts = self._store.tries().copy(wait=_PAUSE, stop=stop)
        for attempt in attempts:
            with attempt, self._store.transaction(Begin.WRITE) as target:
                if attempt.retry_state.attempt_number > 1 and (found := done(target)) is not None:
                    return found
                target.run(time_partitions.patience)
                return work(target)
        raise AssertionError("tenacity reraises the last error")


def _layout(target: Target) -> Layout | None:
    return Partitioning(target.dialect).layout(target.execute) if target.dialect.has_partitions else None


def _has(target: Target, one: Partition) -> bool:
    layout = _layout(target)
    return layout is not None and one in layout.partitions
