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
worker ends. It is to be written only while LISTEN is in force, and again after each reconnect.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row, channel
from ..database.grammar import Builder
from ..database.statements import sleeping_workers as statements
from ..database.target import Target
from .due import Look
from .failure_log import say
from .transactions import Transactions

log = logging.getLogger("outboxq.store")

_ANNOUNCE = statements.announce, statements.announce_given
_LOOK = statements.look, statements.look_given
_LOOK_BY_KEY = statements.look_by_key, statements.look_given_by_key
"""The statement for all queues, and the one for those given. The last ones include queues that limit their keys."""


class SleepingWorkers:
    """Workers that ask to be notified, in databases that can notify."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def compile(self, queues: Sequence[str] | None) -> None:
        """Compile what a worker of these queues says when it falls asleep and wakes, before anything waits for it."""
        ask, look = (_ANNOUNCE[0], _LOOK[0]) if queues is None else (_ANNOUNCE[1], _LOOK[1])
        also = statements.horizon, statements.withdraw, statements.forget, channel.wake
        self._store.dialect.warm(ask, look, *also)

    def announce(self, worker_id: UUID, queues: Sequence[str] | None, longest: timedelta) -> float:
        """Ask to be notified, for `longest` or until the next task is due; returns for how many seconds that is."""
        given = {"worker_id": worker_id, "longest_seconds": longest.total_seconds()}
        rows = self._ask(_ANNOUNCE, queues, None, Begin.SINGLE_ASYNCHRONOUS, **given)
        return float(min(row["seconds"] for row in rows))

    def horizon(self) -> int:
        """Every transaction begun from now on has a greater id; none that has written by now has."""
        return int(self._run(statements.horizon)[0]["horizon"])

    def look(self, horizon: int, queues: Sequence[str] | None, topics: Sequence[str] | None = None) -> Look:
        """Look, in one snapshot, if work is due and if all transactions before the horizon have ended."""

        def work(target: Target) -> Look:
            values = self._store.values(target, horizon=horizon) | self._store.scope(target, queues, topics)
            found = target.run(_LOOK[0] if queues is None else _LOOK[1], values)[0]
            if not found["due"] and found["by_key"]:
                found = target.run(_LOOK_BY_KEY[0] if queues is None else _LOOK_BY_KEY[1], values)[0]
            return Look(settled=found["settled"], due=found["due"], seconds=found["seconds"])

        return self._store.run(work, begin=Begin.READ)

    def withdraw(self, worker_id: UUID) -> None:
        """The worker is at work and need not be notified."""
        self._run(statements.withdraw, worker_id=worker_id)

    def forget(self, worker_id: UUID) -> None:
        """The worker is gone."""
        self._run(statements.forget, worker_id=worker_id)

    def forget_ended(self) -> None:
        """Delete what workers that were killed in their sleep have asked for; every enqueue would look at it for ever.

        It only tidies up, so an error is logged and costs the caller nothing.
        """
        if not self._store.dialect.notifies:
            return
        try:
            with self._store.transaction(Begin.SINGLE_ASYNCHRONOUS) as target:
                target.run(statements.forget_ended, self._store.values(target))
        except Exception as error:  # noqa: BLE001
            say(log, logging.INFO, "what sleeping workers had asked for could not be tidied up", error)

    def _run(self, builder: Builder, **values: Any) -> list[Row]:
        return self._store.run(
            lambda target: target.run(builder, self._store.values(target, **values)), begin=Begin.SINGLE_ASYNCHRONOUS
        )

    def _ask(
        self,
        asked: tuple[Builder, Builder],
        queues: Sequence[str] | None,
        topics: Sequence[str] | None,
        begin: Begin,
        **values: Any,
    ) -> list[Row]:
        def work(target: Target) -> list[Row]:
            given = self._store.values(target, **values) | self._store.scope(target, queues, topics)
            return target.run(asked[0] if queues is None else asked[1], given)

        return self._store.run(work, begin=begin)
