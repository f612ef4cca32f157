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

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Double,
    FromClause,
    Insert,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    delete,
    extract,
    func,
    or_,
    select,
    tuple_,
    update,
)

from ...database import queue_order
from ...database.column_types import Xid8
from ...database.dialects import Begin, Row, channel
from ...database.dialects.channel import ALL
from ...database.grammar import Builder, Grammar, worker_id
from ...database.tables import sleeping_workers
from ...database.target import Target
from ..failure_log import say
from ..transactions import Transactions
from . import limits_sql
from .due import Look, Queues, all_queues, given, may_claim, next_moment

log = logging.getLogger("outboxq.store")


class SleepingWorkers:
    """Workers that ask to be notified, in databases that can notify."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def compile(self, queues: Sequence[str] | None) -> None:
        """Compile what a worker of these queues says when it falls asleep and wakes, before anything waits for it."""
        ask, look = (_ANNOUNCE[0], _LOOK[0]) if queues is None else (_ANNOUNCE[1], _LOOK[1])
        also = horizon, withdraw, forget, channel.wake
        self._store.dialect.warm(ask, look, *also)

    def announce(self, worker_id: UUID, queues: Sequence[str] | None, longest: timedelta) -> float:
        """Ask to be notified, for `longest` or until the next task is due; returns for how many seconds that is."""
        given = {"worker_id": worker_id, "longest_seconds": longest.total_seconds()}
        rows = self._ask(_ANNOUNCE, queues, None, Begin.SINGLE_ASYNCHRONOUS, **given)
        return float(min(row["seconds"] for row in rows))

    def horizon(self) -> int:
        """Every transaction begun from now on has a greater id; none that has written by now has."""
        return int(self._run(horizon)[0]["horizon"])

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
        self._run(withdraw, worker_id=worker_id)

    def forget(self, worker_id: UUID) -> None:
        """The worker is gone."""
        self._run(forget, worker_id=worker_id)

    def forget_ended(self) -> None:
        """Delete what workers that were killed in their sleep have asked for; every enqueue would look at it for ever.

        It only tidies up, so an error is logged and costs the caller nothing.
        """
        if not self._store.dialect.notifies:
            return
        try:
            with self._store.transaction(Begin.SINGLE_ASYNCHRONOUS) as target:
                target.run(forget_ended, self._store.values(target))
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


_longest = bindparam("longest_seconds", type_=Double, required=True)
_horizon = bindparam("horizon", type_=BigInteger, required=True)


def announce(g: Grammar) -> Insert:
    """Ask to be notified of all queues."""
    return _announce(g, all_queues(), select(ALL.label("queue")))


def announce_given(g: Grammar) -> Insert:
    """Ask to be notified of the given queues."""
    queues = given(g)
    return _announce(g, queues, select(queues[0].c.queue))


def _announce(g: Grammar, queues: Queues, rows: Select[Any]) -> Insert:
    """Ask to be notified of these queues, until their next task is due or :longest_seconds have passed.

    `rows` are the queues as they are stored. Returns the seconds after which the request ends, for each queue.
    """
    due = next_moment(g, *queues).scalar_subquery()
    wakes_at = func.least(g.later(g.now, _longest), due, type_=sleeping_workers.c.wakes_at.type)
    asked = rows.subquery("asked")
    new = g.insert(sleeping_workers).from_select(
        ["worker_id", "queue", "wakes_at"], select(worker_id, asked.c.queue, wakes_at)
    )
    return (  # type: ignore[no-any-return]
        new.on_conflict_do_update(
            index_elements=[sleeping_workers.c.worker_id, sleeping_workers.c.queue],
            set_={"wakes_at": new.excluded.wakes_at},
        ).returning(_seconds_until(g, sleeping_workers.c.wakes_at))
    )


def horizon(_: Grammar) -> Select[Any]:
    """Select a number below the id of every transaction that begins from now on, but not below that of any that has written."""
    return select(cast(cast(func.pg_current_xact_id(), Text), BigInteger).label("horizon"))


def look(g: Grammar) -> Select[Any]:
    """Look at all queues as of one snapshot."""
    queues = all_queues()
    return _look(g, may_claim(g, *queues), next_moment(g, *queues))


def look_given(g: Grammar) -> Select[Any]:
    """Look at the given queues as of one snapshot."""
    queues = given(g)
    return _look(g, may_claim(g, *queues), next_moment(g, *queues))


def look_by_key(g: Grammar) -> Select[Any]:
    """Look at all queues as of one snapshot, those included that limit their keys."""
    return _look_by_key(g, all_queues(), None)


def look_given_by_key(g: Grammar) -> Select[Any]:
    """Look at the given queues as of one snapshot, those included that limit their keys."""
    queues = given(g)
    return _look_by_key(g, queues, queues[0])


def _look_by_key(g: Grammar, queues: Queues, asked: FromClause | None) -> Select[Any]:
    limited = limits_sql.open_queues(g, asked)
    due = or_(may_claim(g, *queues), limits_sql.any_due(g, limited))
    return _look(g, due, next_moment(g, *queues, limits_sql.next_start(g, limited)))


def _look(g: Grammar, due: ColumnElement[bool], moment: Select[Any]) -> Select[Any]:
    """Select, as of one snapshot: if all transactions before :horizon have ended, if a task is due, when the next one is, and
    if some queue limits its keys.
    """
    oldest = func.pg_snapshot_xmin(func.pg_current_snapshot(), type_=Xid8())
    return select(
        (oldest >= cast(cast(_horizon, Text), Xid8)).label("settled"),
        due.label("due"),
        _seconds_until(g, moment.scalar_subquery()),
        queue_order.any_by_key().label("by_key"),
    )


def withdraw(g: Grammar) -> Update:
    """Delete the requests of a worker that is awake."""
    return update(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id).values(wakes_at=g.now)


def forget(_: Grammar) -> Delete:
    """Delete the requests of a worker that has ended."""
    return delete(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id)


def forget_ended(g: Grammar) -> Delete:
    """Delete expired requests: each one that is left costs every enqueue a look-up.

    A live worker writes a new request when it falls asleep again. A request that is being written now is skipped.
    """
    key = tuple_(sleeping_workers.c.worker_id, sleeping_workers.c.queue)
    ended = (
        select(sleeping_workers.c.worker_id, sleeping_workers.c.queue)
        .where(sleeping_workers.c.wakes_at < g.now)
        .with_for_update(skip_locked=True)
    )
    return delete(sleeping_workers).where(key.in_(ended), sleeping_workers.c.wakes_at < g.now)


def _seconds_until(g: Grammar, moment: Any) -> Any:
    return cast(extract("epoch", moment - g.now), Double).label("seconds")


_ANNOUNCE = announce, announce_given
_LOOK = look, look_given
_LOOK_BY_KEY = look_by_key, look_given_by_key
"""The statement for all queues, and the one for those given. The last ones include queues that limit their keys."""
