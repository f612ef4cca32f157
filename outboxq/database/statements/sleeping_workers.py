"""Record the workers that sleep and want to be notified (PostgreSQL only). The proof is in `store/sleeping_workers.py`."""

from __future__ import annotations

from typing import Any

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

from .. import queue_order
from ..column_types import Xid8
from ..dialects.channel import ALL
from ..grammar import Grammar, worker_id
from ..tables import sleeping_workers
from . import key_limits
from .due import Queues, all_queues, given, may_claim, next_moment

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
    limited = key_limits.open_queues(g, asked)
    due = or_(may_claim(g, *queues), key_limits.any_due(g, limited))
    return _look(g, due, next_moment(g, *queues, key_limits.next_start(g, limited)))


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
