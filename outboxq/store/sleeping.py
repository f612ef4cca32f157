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
from ..database.statements import sleeping
from ..database.statements.grammar import Builder
from ..database.target import Target
from .transactions import Transactions
from .waiting import Look

_ANNOUNCE = sleeping.announce, sleeping.announce_given
_LOOK = sleeping.look, sleeping.look_given
"""The statement for all queues, and the one for those given."""


class Sleeping(Transactions):
    """For databases that can notify."""

    def compile(self, queues: Sequence[str] | None) -> None:
        """Compile what a worker of these queues says when it falls asleep and wakes, before anything waits for it."""
        position = 0 if queues is None else 1
        self.dialect.warm(
            _ANNOUNCE[position], _LOOK[position], sleeping.horizon, sleeping.withdraw, sleeping.forget, sleeping.wake
        )

    def announce(self, worker_id: UUID, queues: Sequence[str] | None, longest: timedelta) -> float:
        """Ask to be notified, for `longest` or until the next task is due; returns for how many seconds that is."""
        values = {"worker_id": worker_id, "longest_seconds": longest.total_seconds()}
        rows = self.run(lambda target: self._ask(target, _ANNOUNCE, queues, values), begin=Begin.SINGLE_ASYNCHRONOUS)
        return float(min(row["seconds"] for row in rows))

    def horizon(self) -> int:
        """Every transaction begun from now on has a greater id; none that has written by now has."""
        rows = self.run(lambda target: target.run(sleeping.horizon), begin=Begin.SINGLE_ASYNCHRONOUS)
        return int(rows[0]["horizon"])

    def look(self, horizon: int, queues: Sequence[str] | None, topics: Sequence[str] | None = None) -> Look:
        """As of one snapshot."""
        found = self.run(
            lambda target: self._ask(target, _LOOK, queues, {"horizon": horizon}, topics), begin=Begin.READ
        )
        return Look(**found[0])

    def withdraw(self, worker_id: UUID) -> None:
        """The worker is at work and need not be notified."""
        self._change(sleeping.withdraw, worker_id)

    def forget(self, worker_id: UUID) -> None:
        """The worker is gone."""
        self._change(sleeping.forget, worker_id)

    def _change(self, builder: Builder, worker_id: UUID) -> None:
        self.run(
            lambda target: target.run(builder, self.values(target, worker_id=worker_id)),
            begin=Begin.SINGLE_ASYNCHRONOUS,
        )

    def _ask(
        self,
        target: Target,
        asked: tuple[Builder, Builder],
        queues: Sequence[str] | None,
        values: dict[str, Any],
        topics: Sequence[str] | None = None,
    ) -> list[Row]:
        of_all, of_given = asked
        values = self.values(target, **values) | self.scope(target, queues, topics)
        return target.run(of_all if queues is None else of_given, values)
