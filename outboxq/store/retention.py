"""Deleting what is old and finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ..dialects import Begin, Row
from ..errors import InvalidArgument
from ..model import TERMINAL, TaskStatus, duration
from ..target import Target
from .base import Transactions, positive

_NIL = UUID(int=0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Retention(Transactions):
    def prune(
        self,
        older_than: timedelta | float,
        *,
        statuses: Iterable[TaskStatus] = (TaskStatus.COMPLETED, TaskStatus.CANCELLED),
        batch: int = 1000,
        dry_run: bool = False,
        stop: Callable[[], bool] = lambda: False,
        using: object = None,
    ) -> int:
        """Delete tasks that ended longer ago than this, each with its events and idempotency keys; returns how many.

        Each batch is a transaction of its own, and rows that somebody has locked are passed over. An unfinished task keeps
        its row and its events whatever its age. With `using`, all batches are one transaction. `dry_run` only counts. `stop` is asked before each batch.
        """
        positive(batch, "batch")
        wanted = set(statuses)
        older_than = duration(older_than, "older_than")
        if older_than < timedelta(0):
            raise InvalidArgument("older_than must not be negative")
        if not wanted <= TERMINAL:
            raise InvalidArgument("only Completed, Failed and Cancelled tasks can be pruned")
        now = self._run(
            lambda target: target.dialect.statements.now.run(target.execute, self._values(target))[0]["now"],
            using=using,
            begin=Begin.READ,
        )
        before = now - min(older_than, now - _EPOCH)
        values = {
            "before": before,
            "from_id": _NIL,
            "to_id": _first_uuid7(before + timedelta(days=1)),
            "limit": batch,
            **{f"prune_{status.lower()}": int(status in wanted) for status in TERMINAL},
        }
        if dry_run:
            counted = self._run(
                lambda target: target.dialect.statements.prunable.run(target.execute, values),
                using=using,
                begin=Begin.READ,
            )
            return int(counted[0]["tasks"])
        deleted = 0
        while not stop():
            gone = self._run(lambda target: self._prune(target, values), using=using)
            deleted += len(gone)
            if len(gone) < batch:
                break
            values["from_id"] = max(row["id"] for row in gone)
        return deleted

    def _prune(self, target: Target, values: dict[str, Any]) -> list[Row]:
        with target.atomic():
            return target.dialect.statements.prune.run(target.execute, values)


def _first_uuid7(moment: datetime) -> UUID:
    """Smaller than every uuid7 made from this moment on. (A day is added by the caller: ids carry their makers' clocks.)"""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)
