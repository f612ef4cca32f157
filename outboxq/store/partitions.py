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


class Partitions(Transactions):
    def make_partitions(self, ahead: int = AHEAD) -> int:
        """Make the partition of now and `ahead` more, where they are missing; returns how many pairs were made.

        Does nothing on SQLite and while the tables are not partitioned; otherwise one look when all are there. Only the tables'
        owner can make them: for any other role it logs a warning. A table that others use for long is asked for again and again,
        briefly each time; then LockNotAvailable passes through.
        """
        if type(ahead) is not int or ahead < 0:
            raise InvalidArgument(f"ahead must be a whole number of at least 0, not {ahead!r}")
        if (layout := self._layout()) is None:
            return 0
        partitioning = Partitioning(self.dialect)
        now = self._moment()
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

        return self._briefly(work)

    def _partitions(self) -> Sequence[Partition]:
        layout = self._layout()
        return layout.partitions if layout else ()

    def _layout(self, using: object = None) -> Layout | None:
        """None where the history is not partitioned; costs nothing where it cannot be."""
        if using is None and not self.dialect.has_partitions:
            return None
        return self.run(_layout, using=using, begin=Begin.READ)

    def _drop_before(
        self, before: datetime, values: Mapping[str, Any], stop: Callable[[], bool] = lambda: False
    ) -> int:
        """Drop the partitions that ended before this moment, oldest first; returns how many tasks went."""
        layout = self._layout()
        if layout is None or not layout.owned:
            return 0
        partitioning = Partitioning(self.dialect)
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
                if one in self._partitions():
                    raise
                continue  # another prune was here
            dropped += self._drop(partitioning, one, values, found)
        return dropped

    def _look(self, partitioning: Partitioning, one: Partition, values: Mapping[str, Any]) -> Row:
        """At the whole partition, before anybody has to wait: what would go, and what a drop would have to carry over."""

        def work(target: Target) -> Row:
            target.run(partitions.scanning)
            return partitioning.keep(one).run(target.execute, values)[0]

        return self.run(work, begin=Begin.READ)

    def _free_keys(self, partitioning: Partitioning, one: Partition, values: Mapping[str, Any]) -> None:
        """In batches and before anybody has to wait: there may be one for each task."""
        free = partitioning.keys_ahead(one)
        bounds = {**values, "lower": one.lower, "upper": one.upper}
        while len(self.run(lambda target: free.run(target.execute, bounds))) == values["limit"]:
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
            for forget in partitions.FORGET.values():
                target.run(forget, {**bounds, "kept": kept})
            partitioning.drop(execute, one)
            return went

        return self._briefly(work, done=lambda target: None if _has(target, one) else went)

    def _briefly(self, work: Callable[[Target], T], done: Callable[[Target], T | None] = lambda _: None) -> T:
        """As `_run`, for work that asks for whole tables. Everybody queues behind such a wish: it is given up soon, and others
        get on before the next.
        """
        stop = tenacity.stop_after_attempt(15) | tenacity.stop_when_event_set(self.gone)
        attempts = self.tries().copy(wait=_PAUSE, stop=stop)
        for attempt in attempts:
            with attempt, self.transaction(Begin.WRITE) as target:
                if attempt.retry_state.attempt_number > 1 and (found := done(target)) is not None:
                    return found
                target.run(partitions.patience)
                return work(target)
        raise AssertionError("tenacity reraises the last error")

    def _moment(self, using: object = None) -> datetime:
        """What the clock says: the injected one, else the database's."""
        return self.run(  # type: ignore[no-any-return]
            lambda target: target.run(reading.now, self.values(target))[0]["now"],
            using=using,
            begin=Begin.READ,
        )


def _layout(target: Target) -> Layout | None:
    return Partitioning(target.dialect).layout(target.execute) if target.dialect.has_partitions else None


def _has(target: Target, one: Partition) -> bool:
    layout = _layout(target)
    return layout is not None and one in layout.partitions
