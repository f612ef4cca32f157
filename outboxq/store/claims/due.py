"""Tell a worker that finds no task whether a claim could take a task, and when the next task becomes due.

A wrong "yes" costs a claim that finds nothing, but a "no" must never be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import queue_order
from ...database.dialects import Begin, Row
from ...database.grammar import Builder, Grammar
from ...database.queue_order import due, every_queue, given_queues, pairs_beyond, queues_beyond
from ...database.tables import queue_settings, task_outbox
from ...database.target import Target
from ..arguments import queue_names
from ..producing import schedules_sql
from ..transactions import Transactions
from . import limits_sql, partition_keys
from .claim_sql import value_for


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The answer to a worker that checks for due tasks before it goes to sleep."""

    settled: bool = True
    """True if no open transaction can hide a task from this answer (`sleeping_workers.py`)."""
    due: bool
    """True if a claim may find a task, unless another worker takes it first."""
    seconds: float | None
    """The time until the next task becomes due; None if no task is delayed."""


def next_available_at(
    store: Transactions, queues: Sequence[str] | None = None, *, using: object = None
) -> datetime | None:
    """Return the next time, strictly in the future, at which a task in these queues becomes due; None if no task is
    delayed. Raises InvalidArgument.
    """
    names = queue_names(queues)

    def work(target: Target) -> datetime | None:
        values = store.values(target) | store.scope(target, names, None)
        return answer(target, NEXT_AVAILABLE_AT[names is not None], values)["available_at"]  # type: ignore[no-any-return]

    return store.run(work, using=using, begin=Begin.READ)


def look_ahead(
    store: Transactions,
    queues: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    recent: bool = False,
    using: object = None,
) -> Look:
    """Return whether a task in these queues is due, and when the next one becomes due.

    With `recent`, the answer covers only tasks that became claimable recently. The query reads few rows, however many
    keys are blocked.
    """

    def work(target: Target) -> Look:
        given = queues is not None
        values = store.values(target) | store.scope(target, queues, topics)
        # The next time is read first, so that a task that becomes due between the two statements is seen by one of
        # them.
        moment = answer(target, NEXT_AVAILABLE_AT[given], values)["available_at"]
        now = store.now_in(target)
        first, by_key = ANY_DUE[given]
        found = answer(target, (ANY_RECENT[given] if recent else first, by_key), values)
        return _look_of(found, moment, now)

    return store.run(work, using=using, begin=Begin.READ)


def look_with_schedules(
    store: Transactions, target: Target, queues: Sequence[str] | None, *, until: datetime
) -> Look | None:
    """Return the same answer as `look_ahead`, but read it with one statement; None if ticks must first be planted up to
    `until`.
    """
    values = store.values(target, until=until) | store.scope(target, queues, None)
    found = answer(target, WITH_SCHEDULES[queues is not None], values)
    if found["is_unplanted"]:
        return None
    return _look_of(found, found["available_at"], store.now_in(target))


def _look_of(found: Row, moment: datetime | None, now: datetime) -> Look:
    seconds = None if moment is None else max(0.0, (moment - now).total_seconds())
    return Look(due=bool(found["due"]), seconds=seconds)


def answer(target: Target, statements: tuple[Builder, Builder], values: Mapping[str, Any]) -> Row:
    """Return the first statement's row. If that statement found nothing due and a queue limits its keys, return the
    second statement's row instead.
    """
    found = target.run(statements[0], values)[0]
    return target.run(statements[1], values)[0] if found["by_key"] and not found.get("due") else found


Statements = Mapping[bool, tuple[Builder, Builder]]
"""Two statements for all queues (False) and two for given queues (True). Only the second statement of each pair also
reads queues that limit their keys.
"""


def statements(build: Callable[..., sa.Select[Any]]) -> Statements:
    """Return the four statements that `build` makes for all combinations of `given` and `by_key`."""
    return {
        given: (partial(build, given=given, by_key=False), partial(build, given=given, by_key=True))
        for given in (False, True)
    }


def asked_queues(g: Grammar, *, given: bool, beyond_floors: bool = True) -> tuple[sa.FromClause, sa.FromClause]:
    """Return the given queues, or all queues, as two relations: the queues of tasks without a key, and those of tasks
    with a key. If `beyond_floors` is False, the statement does not take floors as parameters.
    """
    if given:
        queues = given_queues(g)
        return queues, queues
    return queues_beyond(g) if beyond_floors else every_queue(), every_queue(with_key=True)


def outlook(g: Grammar, *, given: bool, by_key: bool) -> tuple[sa.ColumnElement[bool], sa.Select[Any]]:
    """Return a condition that tests whether a claim may find a task, and the query for the next time at which a task
    may start.

    Without `by_key`, queues that limit their keys are left out.
    """
    plain, with_keys = asked_queues(g, given=given)
    may_claim = sa.or_(_plain_due(g, plain), partition_keys.any_due(g, with_keys))
    if not by_key:
        return may_claim, next_moment(g, plain, with_keys)
    limited = limits_sql.open_queues(g, plain if given else None)
    moment = next_moment(g, plain, with_keys, limits_sql.next_start(g, limited))
    return sa.or_(may_claim, limits_sql.any_due(g, limited)), moment


def _any_due(g: Grammar, *, given: bool, by_key: bool) -> sa.Select[Any]:
    """Select as `due` whether a claim may find a task, and as `by_key` whether any queue limits its keys."""
    return _answer(outlook(g, given=given, by_key=by_key)[0])


def _any_recent(g: Grammar, *, given: bool) -> sa.Select[Any]:
    """Select whether a claim may find a task that became claimable recently. The query reads few rows, however many
    keys are blocked.

    A false answer does not mean that a claim would find nothing.
    """
    plain, with_keys = asked_queues(g, given=given)
    return _answer(sa.or_(_plain_due(g, plain), partition_keys.any_recent(g, with_keys)))


def _next_available_at(g: Grammar, *, given: bool, by_key: bool) -> sa.Select[Any]:
    """Select the earliest future time at which a task may start; NULL if there is no such time. For `by_key`, see
    `_any_due`.
    """
    moment = outlook(g, given=given, by_key=by_key)[1]
    return moment if by_key else moment.add_columns(queue_order.any_by_key().label("by_key"))


def _with_schedules(g: Grammar, *, given: bool, by_key: bool) -> sa.Select[Any]:
    """Select the answers of `_any_due` and `_next_available_at`, and whether a schedule has ticks to plant up to
    :until.
    """
    due, moment = outlook(g, given=given, by_key=by_key)
    return _answer(due).add_columns(
        moment.scalar_subquery().label("available_at"), schedules_sql.some_due(g).exists().label("is_unplanted")
    )


ANY_DUE = statements(_any_due)
NEXT_AVAILABLE_AT = statements(_next_available_at)
WITH_SCHEDULES = statements(_with_schedules)
ANY_RECENT: Mapping[bool, Builder] = {given: partial(_any_recent, given=given) for given in (False, True)}


def next_moment(g: Grammar, plain: sa.FromClause, with_keys: sa.FromClause, *others: sa.Select[Any]) -> sa.Select[Any]:
    """Select the earliest future time at which an entry of these queues becomes due or a rate limit allows a start.

    Selects NULL if there is no such time. `others` are queries for additional times.
    """
    found = pairs_beyond(g, plain, queue_order.paused, name="waiting_pairs")
    entry = task_outbox.alias("entry_later")
    plain_later = sa.select(entry.c.available_at).where(
        entry.c.partition_key.is_(None),
        entry.c.queue == found.c.queue,
        entry.c.priority == found.c.priority,
        entry.c.available_at > g.now,
    )
    later = value_for(found, plain_later.order_by(entry.c.available_at, entry.c.id).limit(1))
    start = queue_order.next_start(g, queue_settings)
    asked = sa.union_all(sa.select(plain.c.queue), sa.select(with_keys.c.queue)).subquery("asked")
    mine = sa.select(asked.c.queue).where(asked.c.queue == queue_settings.c.queue).exists()
    rates = (
        sa.select(start.label("available_at"))
        .select_from(queue_settings)
        .where(start > g.now, queue_settings.c.paused_at.is_(None), mine)
    )
    moments = sa.union_all(
        sa.select(later.label("available_at")).select_from(found),
        partition_keys.next_available_at(g, with_keys),
        rates,
        *others,
    ).subquery("moments")
    return sa.select(sa.func.min(moments.c.available_at, type_=task_outbox.c.available_at.type).label("available_at"))


def _answer(due: sa.ColumnElement[bool]) -> sa.Select[Any]:
    columns: tuple[Any, ...] = (due.label("due"), queue_order.any_by_key().label("by_key"))
    return sa.select(*columns)


def _plain_due(g: Grammar, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    stopped = partial(queue_order.stopped, g)
    found = pairs_beyond(g, queues, stopped, keeps_floors=True)
    entry = task_outbox.alias("entry_due")
    # This is not an EXISTS, which could be planned as a join that reads every entry.
    may_start = value_for(found, due(g, found, entry.c.id, entry=entry).limit(1)).is_not(None)
    if g.floors is not None:  # the test reads more pages than the search for an entry
        may_start = sa.case((may_start, sa.not_(stopped(found.c.queue))), else_=sa.false())
    return sa.select(found.c.queue).where(may_start).exists()
