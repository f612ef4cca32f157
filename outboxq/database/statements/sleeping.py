"""Who sleeps and is to be notified; for databases that can notify (PostgreSQL). The proof is in `store/sleeping.py`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
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
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from ..column_types import Xid8
from ..tables import sleeping_workers, task_outbox
from .channel import channel_of
from .claim import given_queues, worker_id
from .grammar import Grammar
from .waiting import Queues, all_queues, given, may_claim, next_moment

ALL = literal_column("''", Text)
"""The queue of a worker of all queues; no queue's name is empty."""

_longest = bindparam("longest_seconds", type_=Double, required=True)
_horizon = bindparam("horizon", type_=BigInteger, required=True)


def announce(g: Grammar) -> Insert:
    """Ask to be notified of all queues."""
    return _announce(g, all_queues(), select(ALL.label("queue")))


def announce_given(g: Grammar) -> Insert:
    """Ask to be notified of the queues given."""
    queues = given(g)
    return _announce(g, queues, select(queues[0].c.queue))


def _announce(g: Grammar, queues: Queues, rows: Select[Any]) -> Insert:
    """Ask to be notified of these queues, until the next of their tasks is due or :longest_seconds have passed.

    `rows` are the queues as they are written down. Returns, for each, in how many seconds the request ends.
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
    """A number that every transaction begun from now on exceeds, and none that has written by now does."""
    return select(cast(cast(func.pg_current_xact_id(), Text), BigInteger).label("horizon"))


def look(g: Grammar) -> Select[Any]:
    """Look at all queues, as of one snapshot."""
    return _look(g, *all_queues())


def look_given(g: Grammar) -> Select[Any]:
    """Look at the queues given, as of one snapshot."""
    return _look(g, *given(g))


def _look(g: Grammar, plain: FromClause, with_keys: FromClause) -> Select[Any]:
    """As of one snapshot: whether all transactions before :horizon have ended, whether a task is due, when the next one is."""
    oldest = func.pg_snapshot_xmin(func.pg_current_snapshot(), type_=Xid8())
    return select(
        (oldest >= cast(cast(_horizon, Text), Xid8)).label("settled"),
        may_claim(g, plain, with_keys).label("due"),
        _seconds_until(g, next_moment(g, plain, with_keys).scalar_subquery()),
    )


def wake(g: Grammar) -> Select[Any]:
    """Notify of these queues where somebody sleeps: for what makes work claimable without an insert, whose trigger this mirrors.

    To be run after what it tells of was written, so that the transaction has its id before it looks at the sleepers.
    """
    queues, channel = given_queues(g), channel_of(g.oid(task_outbox.name))
    notify = func.current_setting(literal_column("'outboxq.notify'"), literal_column("true"), type_=Text)
    sleeper = sleeping_workers.c
    sleeps = select(sleeper.queue).where(
        or_(sleeper.queue == queues.c.queue, sleeper.queue == ALL), sleeper.wakes_at > g.now
    )
    level = func.current_setting(literal_column("'transaction_isolation'"), type_=Text)
    return select(func.pg_notify(channel, queues.c.queue).label("told")).where(
        notify.is_distinct_from(literal_column("'off'")),
        or_(
            notify == literal_column("'always'"),
            level != literal_column("'read committed'"),
            sleeps.correlate(queues).exists(),
        ),
    )


def withdraw(g: Grammar) -> Update:
    """The worker is at work: it need not be notified."""
    return update(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id).values(wakes_at=g.now)


def forget(_: Grammar) -> Delete:
    """Delete the requests of a worker that is gone."""
    return delete(sleeping_workers).where(sleeping_workers.c.worker_id == worker_id)


def forget_ended(g: Grammar) -> Delete:
    """Delete the requests that have ended: each one that is left costs every enqueue a look.

    A worker that lives writes its own anew when it falls asleep again. One that does so at this moment is passed over.
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
