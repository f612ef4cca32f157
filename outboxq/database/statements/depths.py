"""Count what waits and what has failed, up to a bound: each count reads at most :most index entries of a queue and priority.

Above the bound, the numbers are lower bounds. `samples` has the full counts, which are taken now and then.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    select,
    union_all,
)

from ..column_types import Instant
from ..grammar import Builder, Grammar
from ..queue_order import every_queue, given_queues, pairs
from ..tables import dead_letters, task_executions, task_outbox

_most = bindparam("most", type_=BigInteger, required=True)
_most_looked_up = bindparam("most_looked_up", type_=BigInteger, required=True)
"""The number of delayed entries of which it is looked up whether they wait for a retry: each is a look-up in a big table."""


def waiting(g: Grammar) -> Select[Any]:
    """Count the entries of each queue that are due now and those that are due later, in several rows for a queue.

    `looked_up` and `retrying` are about the first :most_looked_up entries that are due later.
    """
    return _both(g, every_queue(), every_queue(with_key=True), _counts)


def waiting_given(g: Grammar) -> Select[Any]:
    """Count as `waiting` does, of the given queues."""
    queues = given_queues(g)
    return _both(g, queues, queues, _counts)


def waiting_by_task(g: Grammar) -> Select[Any]:
    """Count the first :most entries that are due now, and of those that are due later, by queue and task name."""
    return _by_task(g, every_queue(), every_queue(with_key=True))


def waiting_by_task_given(g: Grammar) -> Select[Any]:
    """Count as `waiting_by_task` does, of the given queues."""
    queues = given_queues(g)
    return _by_task(g, queues, queues)


def failed(_: Grammar) -> Select[Any]:
    """Count dead letters by queue, :most in all."""
    listed = select(dead_letters.c.queue).limit(_most).subquery("listed")
    return select(listed.c.queue, func.count().label("failed")).group_by(listed.c.queue)


def failed_by_task(_: Grammar) -> Select[Any]:
    """Count dead letters by queue and task name, :most in all."""
    listed = select(dead_letters.c.queue, dead_letters.c.task_name).limit(_most).subquery("listed")
    names = (listed.c.queue, listed.c.task_name)
    return select(*names, func.count().label("failed")).group_by(*names)


def _both(g: Grammar, plain: FromClause, keyed: FromClause, counts: Any) -> Select[Any]:
    """Select the counts of entries without a key, by queue and priority, and of those with one, by queue."""
    without_key = pairs(plain)
    parts = [
        counts(g, without_key, without_key.c.priority.is_not(None), with_key=False),
        counts(g, keyed, keyed.c.queue.is_not(None), with_key=True),
    ]
    found = union_all(*parts).subquery("found")
    return select(found)


def _counts(g: Grammar, queues: FromClause, is_one: ColumnElement[bool], *, with_key: bool) -> Select[Any]:
    entry = task_outbox.alias("entry")
    due, later = entry.c.available_at <= g.now, entry.c.available_at > g.now
    of_queue = _of(entry, queues, with_key=with_key)

    def number(*where: ColumnElement[bool]) -> ColumnElement[int]:
        some: Select[Any] = (
            select(literal_column("1").label("one")).where(of_queue, *where).limit(_most).correlate(queues)
        )
        return select(func.count()).select_from(some.subquery("some")).scalar_subquery()

    first = select(entry.c.available_at).where(of_queue, due).order_by(entry.c.available_at, entry.c.id).limit(1)
    nearest = select(entry.c.task_execution_id.label("id")).where(of_queue, later)
    nearest = nearest.order_by(entry.c.available_at, entry.c.id).limit(_most_looked_up).correlate(queues)
    looked_up = nearest.subquery("nearest")
    again = _retry_at(looked_up.c.id).correlate(looked_up).scalar_subquery()
    retrying = select(func.count()).select_from(looked_up).where(again.is_not(None)).scalar_subquery()
    return select(
        queues.c.queue,
        number(due).label("ready"),
        number(later).label("later"),
        retrying.label("retrying"),
        first.correlate(queues).scalar_subquery().label("oldest_ready_at"),
    ).where(is_one)


def _by_task(g: Grammar, plain: FromClause, keyed: FromClause) -> Select[Any]:
    without_key = pairs(plain)
    parts = [
        _entries(g, source, with_key=with_key, due=due)
        for source, with_key in ((without_key, False), (keyed, True))
        for due in (True, False)
    ]
    found = union_all(*parts).subquery("found")
    execution = task_executions.alias("execution")
    name = select(execution.c.task_name).where(execution.c.id == found.c.id).correlate(found).scalar_subquery()
    again = _retry_at(found.c.id).correlate(found).scalar_subquery()
    named = select(
        found.c.queue,
        name.label("task_name"),
        found.c.available_at,
        case((found.c.available_at > g.now, again), else_=null()).label("retry_at"),
    ).subquery("named")
    due_now: ColumnElement[bool] = named.c.available_at <= g.now
    return (
        select(
            named.c.queue,
            named.c.task_name,
            func.count().filter(due_now).label("ready"),
            func.count().filter(named.c.available_at > g.now).label("later"),
            func.count().filter(named.c.retry_at.is_not(None)).label("retrying"),
            func.min(named.c.available_at, type_=Instant).filter(due_now).label("oldest_ready_at"),
        )
        .where(named.c.task_name.is_not(None))
        .group_by(named.c.queue, named.c.task_name)
    )


def _entries(g: Grammar, queues: FromClause, *, with_key: bool, due: bool) -> Select[Any]:
    """Select up to :most entries of each of these queues that are due now, or of those that are due later."""

    def choose(entry: FromClause) -> Select[Any]:
        when = entry.c.available_at <= g.now if due else entry.c.available_at > g.now
        columns = (entry.c.queue, entry.c.available_at, entry.c.task_execution_id)
        chosen = select(*columns).where(_of(entry, queues, with_key=with_key), when)
        return chosen.order_by(entry.c.available_at, entry.c.id)

    name = f"{'keyed' if with_key else 'plain'}_{'due' if due else 'later'}"
    rows, entry = g.each(queues, name, choose, _most)
    return select(entry.queue, entry.available_at, entry.task_execution_id.label("id")).select_from(rows)


def _of(entry: FromClause, queues: FromClause, *, with_key: bool) -> ColumnElement[bool]:
    """Return a condition: the entry is of this queue, and of its priority if it has no key."""
    if with_key:
        return and_(entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None))
    same = entry.c.priority == queues.c.priority
    return and_(entry.c.queue == queues.c.queue, entry.c.partition_key.is_(None), same)


def _retry_at(task_id: ColumnElement[Any]) -> Select[Any]:
    execution = task_executions.alias("execution")
    return select(execution.c.retry_at).where(execution.c.id == task_id)


BY_QUEUE: tuple[Builder, Builder] = (waiting, waiting_given)
BY_TASK: tuple[Builder, Builder] = (waiting_by_task, waiting_by_task_given)
"""The statements for every queue, and for those given."""
