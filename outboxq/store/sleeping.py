"""Falling asleep so that no wake-up is lost, although producers notify only those who sleep.

NOTIFY takes a lock at commit that all notifying transactions share: with eight producers, notifying always costs two thirds
of their commits. So the trigger notifies only where a row of `sleeping_workers` asks for it, and a worker that found nothing

1. commits its row (`announce`);
2. in a transaction begun after that, draws an id (`horizon`);
3. looks until one snapshot shows that all transactions before the horizon have ended and that nothing is due (`look`).

Then it may sleep until it is notified, until the next task is due, or until its row ends. Nothing is lost: a producer whose
trigger did not see the row looked before the row was committed, and its insert had given it an id before that; so that id is
below the horizon, inside savepoints and prepared transactions too. While it runs, the worker keeps looking; once it has
ended, the snapshot of step 3 shows its tasks. Who looks later sees the row, and notifies. (The id must be drawn: the latest
completed id plus one, `pg_snapshot_xmax`, may be that of a producer that is still open.)

The row says when its worker wakes by itself; tasks that are due only after that need no notification, and the row of a dead
worker ends. It is to be written only while LISTEN is in force, and anew after each reconnect.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.target import Target
from .base import Transactions
from .reading import Look


class Sleeping(Transactions):
    """For databases that can notify."""

    def announce(self, worker_id: UUID, queues: Sequence[str] | None, longest: timedelta) -> float:
        """Ask to be notified, for `longest` or until the next task is due; returns for how many seconds that is."""
        values = {"worker_id": worker_id, "longest_seconds": longest.total_seconds()}
        rows = self._run(lambda target: self._ask(target, "announce", queues, values), begin=Begin.SINGLE_ASYNCHRONOUS)
        return float(min(row["seconds"] for row in rows))

    def horizon(self) -> int:
        """Every transaction begun from now on has a greater id; none that has written by now has."""
        statement = self.dialect.statements.sleeping["horizon"]
        rows = self._run(lambda target: statement.run(target.execute, {}), begin=Begin.SINGLE_ASYNCHRONOUS)
        return int(rows[0]["horizon"])

    def look(self, horizon: int, queues: Sequence[str] | None, topics: Sequence[str] | None = None) -> Look:
        """As of one snapshot."""
        found = self._run(
            lambda target: self._ask(target, "look", queues, {"horizon": horizon}, topics), begin=Begin.READ
        )
        return Look(**found[0])

    def withdraw(self, worker_id: UUID) -> None:
        """The worker is at work and need not be notified."""
        self._change("withdraw", worker_id)

    def forget(self, worker_id: UUID) -> None:
        """The worker is gone."""
        self._change("forget", worker_id)

    def _change(self, name: str, worker_id: UUID) -> None:
        statement = self.dialect.statements.sleeping[name]
        self._run(
            lambda target: statement.run(target.execute, self._values(target, worker_id=worker_id)),
            begin=Begin.SINGLE_ASYNCHRONOUS,
        )

    def _ask(
        self,
        target: Target,
        name: str,
        queues: Sequence[str] | None,
        values: dict[str, Any],
        topics: Sequence[str] | None = None,
    ) -> list[Row]:
        statement = target.dialect.statements.sleeping[name if queues is None else f"{name}_given"]
        values = self._values(target, **values) | self._scope(target, queues, topics)
        return statement.run(target.execute, values)
