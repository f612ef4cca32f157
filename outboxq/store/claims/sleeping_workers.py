"""Let a worker sleep without losing a wake-up, although producers notify only sleeping workers.

At commit, NOTIFY takes a lock for which all notifying transactions compete. With eight producers, unconditional
notifications would cost two thirds of the commits per second. So the trigger notifies only if a row of
`sleeping_workers` asks for it. A worker that found no task

1. commits its row (`announce`);
2. draws an id in a transaction that begins after that (`horizon`);
3. repeats a check (`look`) until a single snapshot shows that all transactions before the horizon have ended and that
   no task is due.

Then it may sleep until a notification, until the next task is due, or until its row expires. No notification is lost.
If a producer's trigger did not see the row, the trigger must have read the table before the row was committed, and the
producer's insert must have given the transaction an id even earlier. So the id is below the horizon, even in savepoints
and prepared transactions. While that transaction runs, the worker keeps checking. Once the transaction has ended, the
snapshot of step 3 shows its tasks. A producer that reads the table later sees the row, and notifies. (The id must be
drawn: the latest completed id plus one, `pg_snapshot_xmax`, may belong to a producer's transaction that is still open.)

If there are many dead entries, a check may read only the entries after the worker's floors (`floors.py`). Such a check
proves nothing about the other entries, so the worker sleeps only until its next check from the front, which is at most
ten seconds later.

The row contains the time at which its worker wakes without a notification. Tasks that become due after that time do not
need a notification. The row of a dead worker expires at that time. The row must not be written before LISTEN is in
effect, and must be written again after each reconnect. If the server's clock is set forward, the row expires early, and
its worker finds new tasks when it wakes without a notification.

All sleepers receive each notification, but a task needs only one of them. So each notification is a numbered call. It
names the listening sessions of the workers that it calls (one for each task) and of a deputy. The trigger only reads,
so enqueues never wait for each other, and a rollback has nothing to undo. A session holds an advisory lock on its
number until it ends, so a worker that was killed is not called. If a transaction commits a due task, a worker takes the
task within a bounded time, unless every worker is busy:

* A called worker claims tasks. If the claim returns fewer tasks than the worker asked for, no task is left that the
  worker could take. If the claim is full, or no thread is idle, the worker checks for due tasks. If a task is due, the
  worker ends its own requests and calls two other sleepers, which do the same (`pass_on`). Each call removes one
  sleeper, so the calls end at an idle worker or when all workers are awake. A worker without an idle thread calls other
  workers within 50 ms, or within one second if its own call came later.
* The deputy checks 0.1 s after the call, and claims a task if one is due. So a worker that is frozen or cut off delays
  a task by only 0.1 s.
* One second after the call, all other sleepers begin to check, one after the other within another second, unless the
  call has been answered. So the task waits for at most two seconds if at least one sleeper reacts, however many are
  frozen.

The first worker that checks answers for the others. If nothing is due, it sends the number of the last call that it
received before the check (`answer`). Each worker that receives the answer forgets that call and the earlier calls for
the same queue. If a limit holds back tasks that these calls announced, the answer also contains the time at which the
next task may start, and the workers check at that time.

No task is lost when calls are forgotten. The server delivers notifications in commit order, which is the same for all
sessions. It delivers a notification only when the notifying transaction is visible. So each task of a forgotten call
was committed before the check, which began after the last of these calls had been received. The check did not find the
task due, and a check by the worker that forgets the call would not have found it due either. Calls that the answering
worker did not receive before its check come after the call that the answer names, and are not forgotten. A check that
began at the worker's floors does not answer for others. A worker that takes only some topics does not answer for others
either. A worker's own check answers all calls that the worker received before the check.

A worker with topics may refuse a task. So it is not called by name, but tries to claim tasks at each notification.
Every worker is called when a queue is resumed, when a key is freed, and when a transaction cannot see the sleepers. The
trigger also calls every worker if the tables have been moved.

Every sleeper receives the due time of a delayed task, so no sleeper needs to run a statement to learn that time. When
the task is due, the sleepers check one after the other, 10 ms apart, and claim the task if it is still there. They
check in id order, beginning with a different worker each time (`Place`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database import queue_order
from ...database.column_types import Xid8
from ...database.dialects import Begin, Row, channel
from ...database.dialects.channel import ALL, ANSWERS
from ...database.grammar import Builder, Grammar, worker_id
from ...database.queue_order import given_queues
from ...database.tables import sleeping_workers
from ...database.target import Target
from ..arguments import parameters
from ..failure_log import say
from ..transactions import Transactions
from .due import Look, answer, outlook, statements
from .floors import Floors

log = logging.getLogger("outboxq.store")


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen(Look):
    """The answer to a worker that is about to sleep."""

    now: float
    """The server's time as seconds since 1970."""
    complete: bool
    """False if the check did not read the entries before the worker's floors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A sleeper's place among the workers that can take the same tasks, in id order."""

    before: int = 0
    others: int = 0

    def turn(self, occasion: int) -> int:
        """Return the number of workers that check for due tasks before this one.

        On each occasion, a different worker is first. Otherwise, a worker that is frozen or does not know the task
        might always be first.
        """
        return (self.before + occasion) % (self.others + 1)

    def share(self, occasion: int) -> float:
        """Return the fraction of a given time for which this worker waits before it checks for due tasks, in case
        another worker's check makes this one unnecessary.

        The waiting times of the first turns are far apart. So even a late answer from one of these workers reaches most
        of the others in time.
        """
        return math.log1p(self.turn(occasion)) / math.log1p(self.others) if self.others else 0.0


class SleepingWorkers:
    """The notification requests of sleeping workers, in databases that can notify."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def compile(self, queues: Sequence[str] | None) -> None:
        """Compile the statements with which a worker that serves these queues falls asleep and wakes up."""
        given = queues is not None
        also = horizon, withdraw, forget, channel.wake, channel.answer
        self._store.dialect.warm(ANNOUNCE[given], LOOK[given][0], *also)

    def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str] | None,
        longest: timedelta,
        *,
        session: int | None = None,
    ) -> Place:
        """Ask for notifications for the duration `longest`. Returns the worker's place among the sleepers of the queue
        that has the fewest sleepers.

        `session` is the number that the worker's listening session has locked. If it is None, the worker cannot be
        called by name.
        """

        def work(target: Target) -> list[Row]:
            values = self._store.values(target, worker_id=worker_id, longest_seconds=longest.total_seconds())
            values |= self._store.queue_values(target, queues) if queues is not None else {}
            return target.run(ANNOUNCE[queues is not None], values | {"session": session})

        found = self._store.run(work, begin=Begin.SINGLE_ASYNCHRONOUS)
        others, before = min((row["others"], row["before"]) for row in found)
        return Place(before=before, others=others)

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
    ) -> Seen:
        """Return, as of one snapshot, whether a task is due and whether all transactions before the horizon have ended.

        A check that does not read the entries before the worker's `floors` does not prove that none of these entries is
        due. The `seconds` in its answer are at most the time until the next check that reads these entries, which
        follows within `floors._LONGEST`.
        """
        floors = floors or Floors()
        at_front, began = floors.looks_from_front(), time.monotonic()

        def work(target: Target) -> Row:
            values = self._store.values(target, horizon=horizon) | self._store.scope(target, queues, topics)
            values |= floors.parameters(target, queues, at_front=at_front)
            return answer(target, LOOK[queues is not None], values)

        # The kind is not READ, because a single statement on a worker's own connection is a transaction without BEGIN
        # and COMMIT.
        found = self._store.run(work, begin=Begin.SINGLE_ASYNCHRONOUS)
        seconds, crowded_at = time.monotonic() - began, found["now"] if found["crowded"] else None
        proven_for = floors.looked(found=found["due"], at_front=at_front, seconds=seconds, crowded_at=crowded_at)
        seconds = found["seconds"]
        if proven_for < math.inf:
            seconds = max(0.0, proven_for if seconds is None else min(seconds, proven_for))
        read = {name: found[name] for name in ("settled", "due", "now")}
        return Seen(**read, seconds=seconds, complete=proven_for == math.inf)

    def withdraw(self, worker_id: UUID) -> None:
        """End the requests of a worker that is awake."""
        self._run(withdraw, worker_id=worker_id)

    def pass_on(self, worker_id: UUID, queues: Sequence[str]) -> None:
        """End the requests of a worker that is awake, and call two other workers for each of these queues."""

        def work(target: Target) -> None:
            values = self._store.values(target, worker_id=worker_id)
            target.run(withdraw, values)
            target.run(channel.call, values | self._store.queue_values(target, queues))

        self._store.run(work, begin=Begin.ASYNCHRONOUS)

    def answer(self, calls: Mapping[str, int], moment: float | None) -> None:
        """Tell the other sleepers that a complete check, made after these calls were received, found nothing due in
        these queues.

        `moment` is the time at which the check expects the next task, in seconds since 1970 by the server's clock.
        """

        def work(target: Target) -> None:
            answers = target.dialect.pack("answers", ANSWERS, list(calls.items()))
            target.run(channel.answer, self._store.values(target, moment=moment) | answers)

        self._store.run(work, begin=Begin.SINGLE_ASYNCHRONOUS)

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
            say(log, logging.INFO, "the notification requests of killed workers could not be deleted", error)

    def _run(self, builder: Builder, **values: Any) -> list[Row]:
        return self._store.run_one(builder, begin=Begin.SINGLE_ASYNCHRONOUS, **values)


_longest = sa.bindparam("longest_seconds", type_=sa.Double, required=True)
_session, _horizon = parameters(sa.BigInteger, "session", "horizon")


def _announce(g: Grammar, *, given: bool) -> sa.Insert:
    """Ask for notifications about these queues until :longest_seconds have passed.

    Returns, for each queue, the number of other workers that serve all topics and are waiting for its tasks, and how
    many of these workers have lower ids.
    """
    mine = sleeping_workers.c
    queue = given_queues(g).c.queue if given else ALL
    new = g.insert(sleeping_workers).from_select(
        ["worker_id", "queue", "wakes_at", "session"],
        sa.select(worker_id, queue, g.later(g.now, _longest), _session),
    )
    other = sleeping_workers.alias("other")
    others = sa.select(sa.func.count()).where(
        other.c.worker_id != worker_id,
        other.c.queue.in_([sa.literal_column("sleeping_workers.queue", sa.Text), ALL]),
        other.c.wakes_at > g.now,
        other.c.session.is_not(None),
    )
    return (  # type: ignore[no-any-return]
        new.on_conflict_do_update(
            index_elements=[mine.worker_id, mine.queue],
            set_={"wakes_at": new.excluded.wakes_at, "session": new.excluded.session},
        ).returning(
            others.scalar_subquery().label("others"),
            others.where(other.c.worker_id < worker_id).scalar_subquery().label("before"),
        )
    )


def horizon(_: Grammar) -> sa.Select[Any]:
    """Select a number below the id of every transaction that begins from now on, but not below the id of any
    transaction that has already written.
    """
    return sa.select(sa.cast(sa.cast(sa.func.pg_current_xact_id(), sa.Text), sa.BigInteger).label("horizon"))


def _look(g: Grammar, *, given: bool, by_key: bool) -> sa.Select[Any]:
    """Select, as of one snapshot, whether all transactions before :horizon have ended, whether a task is due, when the
    next one is due, whether many entries are dead while no queue has a limit, and whether any queue limits its keys.
    """
    due, moment = outlook(g, given=given, by_key=by_key)
    oldest = sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot(), type_=Xid8())
    return sa.select(
        (oldest >= sa.cast(sa.cast(_horizon, sa.Text), Xid8)).label("settled"),
        due.label("due"),
        _epoch(moment.scalar_subquery() - g.now).label("seconds"),
        _epoch(g.now).label("now"),
        sa.and_(g.crowded(g.oid("task_outbox")), sa.not_(queue_order.any_limited())).label("crowded"),
        queue_order.any_by_key().label("by_key"),
    )


def withdraw(g: Grammar) -> sa.Update:
    """End the requests of a worker that is awake."""
    return sa.update(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id).values(wakes_at=g.now)


def forget(_: Grammar) -> sa.Delete:
    """Delete the requests of a worker that has ended."""
    return sa.delete(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id)


def forget_ended(g: Grammar) -> sa.Delete:
    """Delete expired requests, because each one that remains adds a lookup to every enqueue.

    A live worker writes a new request when it falls asleep again. A request that is being written now is skipped.
    """
    key = sa.tuple_(sleeping_workers.c.worker_id, sleeping_workers.c.queue)
    ended = (
        sa.select(sleeping_workers.c.worker_id, sleeping_workers.c.queue)
        .where(sleeping_workers.c.wakes_at < g.now)
        .with_for_update(skip_locked=True)
    )
    return sa.delete(sleeping_workers).where(key.in_(ended), sleeping_workers.c.wakes_at < g.now)


def _epoch(moment: Any) -> Any:
    return sa.cast(sa.extract("epoch", moment), sa.Double)


ANNOUNCE: Mapping[bool, Builder] = {given: partial(_announce, given=given) for given in (False, True)}
LOOK = statements(_look)
