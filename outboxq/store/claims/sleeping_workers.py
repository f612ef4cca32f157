"""Let a worker sleep without a lost wake-up, although producers notify only sleeping workers.

NOTIFY takes a lock at commit that all notifying transactions share: with eight producers, unconditional notifications cost two
thirds of their commits. So the trigger notifies only if a row of `sleeping_workers` asks for it. A worker that found no task

1. commits its row (`announce`);
2. draws an id in a transaction that begins after that (`horizon`);
3. looks until a single snapshot shows that all transactions before the horizon have ended and that no task is due
   (`look`).

Then it may sleep until a notification, until the next task is due, or until its row expires. No wake-up is lost. A
producer whose trigger did not see the row had read the table before the row was committed, and its insert had given it
an id before that. So its id is below the horizon, inside savepoints and prepared transactions too. While that
transaction runs, the worker keeps looking. Once it has ended, the snapshot of step 3 shows its tasks. A producer that
reads the table later sees the row, and notifies. (The id must be drawn: the latest completed id plus one,
`pg_snapshot_xmax`, may belong to a producer that is still open.)

Among many dead entries, a look may read only what is behind the worker's floors (`floors.py`). What it proves is limited to that,
so the worker sleeps on it only until its next look from the front, for ten seconds at most.

The row says when its worker wakes by itself. Tasks that become due later do not need a notification, and the row of a
dead worker expires. It must be written only while LISTEN is in force, and again after each reconnect.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database import queue_order
from ...database.column_types import Xid8
from ...database.dialects import Begin, Row, channel
from ...database.dialects.channel import ALL
from ...database.grammar import Builder, Grammar, worker_id
from ...database.tables import sleeping_workers
from ...database.target import Target
from ..failure_log import say
from ..transactions import Transactions
from .due import Look, answer, asked_queues, next_moment, outlook, statements
from .floors import Floors

log = logging.getLogger("outboxq.store")


class SleepingWorkers:
    """The notification requests of sleeping workers, in databases that can notify."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def compile(self, queues: Sequence[str] | None) -> None:
        """Compile the statements with which a worker of these queues falls asleep and wakes up."""
        given = queues is not None
        also = horizon, withdraw, forget, channel.wake
        self._store.dialect.warm(ANNOUNCE[given], LOOK[given][0], *also)

    def announce(
        self, worker_id: UUID, queues: Sequence[str] | None, longest: timedelta, floors: Floors | None = None
    ) -> float:
        """Ask for notifications until the next task is due, at most for `longest`. Returns the seconds until then.

        `floors` are those of the worker's claims: a task that is not due yet is not behind them.
        """
        floors = floors or Floors()

        def work(target: Target) -> list[Row]:
            values = self._store.values(target, worker_id=worker_id, longest_seconds=longest.total_seconds())
            values |= self._store.scope(target, queues, None) | floors.parameters(target, queues, at_front=False)
            return target.run(ANNOUNCE[queues is not None], values)

        return float(min(row["seconds"] for row in self._store.run(work, begin=Begin.SINGLE_ASYNCHRONOUS)))

    def horizon(self) -> int:
        """Return a number below the id of each later transaction, but not below the id of any transaction that has
        already written.
        """
        return int(self._run(horizon)[0]["horizon"])

    def look(
        self,
        horizon: int,
        queues: Sequence[str] | None,
        topics: Sequence[str] | None = None,
        floors: Floors | None = None,
    ) -> Look:
        """Return, as of one snapshot, whether a task is due and whether all transactions before the horizon have ended.

        A look that does not read behind the worker's `floors` is no proof that nothing is due there. Its `seconds` end when the
        next look reads there, at most `floors._LONGEST` later.
        """
        floors = floors or Floors()
        at_front, began = floors.looks_from_front(), time.monotonic()

        def work(target: Target) -> Row:
            values = self._store.values(target, horizon=horizon) | self._store.scope(target, queues, topics)
            values |= floors.parameters(target, queues, at_front=at_front)
            return answer(target, LOOK[queues is not None], values)

        # Not READ: on a worker's own connection a single statement is a transaction by itself, without BEGIN and COMMIT.
        found = self._store.run(work, begin=Begin.SINGLE_ASYNCHRONOUS)
        proven_for = floors.looked(found=found["due"], at_front=at_front, seconds=time.monotonic() - began)
        seconds = found["seconds"]
        if proven_for < math.inf:
            seconds = max(0.0, proven_for if seconds is None else min(seconds, proven_for))
        return Look(settled=found["settled"], due=found["due"], seconds=seconds)

    def withdraw(self, worker_id: UUID) -> None:
        """End the requests of a worker that is awake."""
        self._run(withdraw, worker_id=worker_id)

    def forget(self, worker_id: UUID) -> None:
        """Delete the requests of a worker that is stopping."""
        self._run(forget, worker_id=worker_id)

    def forget_ended(self) -> None:
        """Delete the requests of workers that were killed while asleep.

        Otherwise, every enqueue would look them up. An error is logged, and does not affect the caller.
        """
        if not self._store.dialect.notifies:
            return
        try:
            with self._store.transaction(Begin.SINGLE_ASYNCHRONOUS) as target:
                target.run(forget_ended, self._store.values(target))
        except Exception as error:  # noqa: BLE001
            say(log, logging.INFO, "the requests of sleeping workers that no longer run could not be deleted", error)

    def _run(self, builder: Builder, **values: Any) -> list[Row]:
        return self._store.run_one(builder, begin=Begin.SINGLE_ASYNCHRONOUS, **values)


_longest = sa.bindparam("longest_seconds", type_=sa.Double, required=True)
_horizon = sa.bindparam("horizon", type_=sa.BigInteger, required=True)


def _announce(g: Grammar, *, given: bool) -> sa.Insert:
    """Ask for notifications of these queues until their next task is due, or until :longest_seconds have passed.

    Returns for each queue the seconds after which the request ends.
    """
    queues = asked_queues(g, given=given)
    due = next_moment(g, *queues).scalar_subquery()
    wakes_at = sa.func.least(g.later(g.now, _longest), due, type_=sleeping_workers.c.wakes_at.type)
    asked = sa.select(queues[0].c.queue if given else ALL.label("queue")).subquery("asked")
    new = g.insert(sleeping_workers).from_select(
        ["worker_id", "queue", "wakes_at"], sa.select(worker_id, asked.c.queue, wakes_at)
    )
    return (  # type: ignore[no-any-return]
        new.on_conflict_do_update(
            index_elements=[sleeping_workers.c.worker_id, sleeping_workers.c.queue],
            set_={"wakes_at": new.excluded.wakes_at},
        ).returning(_seconds_until(g, sleeping_workers.c.wakes_at))
    )


def horizon(_: Grammar) -> sa.Select[Any]:
    """Select a number below the id of every transaction that begins from now on, but not below that of any that has written."""
    return sa.select(sa.cast(sa.cast(sa.func.pg_current_xact_id(), sa.Text), sa.BigInteger).label("horizon"))


def _look(g: Grammar, *, given: bool, by_key: bool) -> sa.Select[Any]:
    """Select, as of one snapshot, whether all transactions before :horizon have ended, whether a task is due, when the
    next one is due, and whether any queue limits its keys.
    """
    due, moment = outlook(g, given=given, by_key=by_key)
    oldest = sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot(), type_=Xid8())
    return sa.select(
        (oldest >= sa.cast(sa.cast(_horizon, sa.Text), Xid8)).label("settled"),
        due.label("due"),
        _seconds_until(g, moment.scalar_subquery()),
        queue_order.any_by_key().label("by_key"),
    )


def withdraw(g: Grammar) -> sa.Update:
    """Delete the requests of a worker that is awake."""
    return sa.update(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id).values(wakes_at=g.now)


def forget(_: Grammar) -> sa.Delete:
    """Delete the requests of a worker that has ended."""
    return sa.delete(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id)


def forget_ended(g: Grammar) -> sa.Delete:
    """Delete expired requests: each one that is left costs every enqueue a look-up.

    A live worker writes a new request when it falls asleep again. A request that is being written now is skipped.
    """
    key = sa.tuple_(sleeping_workers.c.worker_id, sleeping_workers.c.queue)
    ended = (
        sa.select(sleeping_workers.c.worker_id, sleeping_workers.c.queue)
        .where(sleeping_workers.c.wakes_at < g.now)
        .with_for_update(skip_locked=True)
    )
    return sa.delete(sleeping_workers).where(key.in_(ended), sleeping_workers.c.wakes_at < g.now)


def _seconds_until(g: Grammar, moment: Any) -> Any:
    return sa.cast(sa.extract("epoch", moment - g.now), sa.Double).label("seconds")


ANNOUNCE: Mapping[bool, Builder] = {given: partial(_announce, given=given) for given in (False, True)}
LOOK = statements(_look)
