"""Count the tasks that are currently waiting, running or failed, up to a bound, so that the cost does not grow with the
backlog.

Each count reads a bounded number of index entries for each queue and priority. If a count reaches the bound, the actual
number may be higher. `samples` has the full counts, which are taken at intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Row
from ...database.grammar import Builder, Grammar
from ...database.queue_order import pairs
from ...database.tables import dead_letters, task_executions, task_leases, task_outbox
from ...database.target import Target
from ..arguments import parameters
from ..claims.due import asked_queues
from ..transactions import Transactions

BOUND = 10_000
"""Maximum number of entries counted for each queue and priority; also the maximum number of dead letters counted.
Samples contain larger counts.
"""
BOUND_BY_TASK = 1_000
"""Maximum number of entries for each queue and priority whose task names are looked up. Each lookup reads a large
table.
"""
LOOKED_UP = 1_000
"""Maximum number of delayed tasks that are looked up to find the ones that are waiting for a retry."""
STATES = ("due", "delayed", "running", "failed")
MARKS = ("due_at_least", "delayed_at_least", "retrying_at_least", "failed_at_least")
"""Names of the flags that mark a number as a lower bound."""

Found = dict[tuple[str, str | None], Row]
"""The numbers for each queue, or for each task name in each queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """The numbers at a point in time."""

    now: datetime
    found: Found
    """For each queue, or each task name in it: the nonzero values of `STATES` and `MARKS`, `retrying` and
    `oldest_due_at`.
    """
    signs: Mapping[str, list[Row]]
    """Other rows from the statement, by kind."""
    failed_at_least: bool
    """True if all queues together have more dead letters than the bound. The uncounted dead letters may belong to any
    queue.
    """


def count(
    store: Transactions,
    target: Target,
    builder: Builder | None = None,
    *,
    names: Collection[str] | None = None,
    by_task: bool = False,
    most: int | None = None,
    retries: bool = True,
    **values: Any,
) -> Live:
    """Count the tasks in these queues (None means all queues), up to `most` in each state (None means the default
    bound), in two statements.

    With `retries`, this looks up which delayed tasks are waiting for a retry; otherwise they count as delayed.
    `builder` builds a statement that takes `values` and selects further kinds of rows.
    """
    bound = most or BOUND
    waiting_most, looked_up = BOUND_BY_TASK if by_task else bound, LOOKED_UP if retries else 0
    given = store.values(target, **values, most=bound + 1)
    signs: dict[str, list[Row]] = {}
    for row in target.run(builder or (present_by_task if by_task else present), given):
        signs.setdefault(row["kind"], []).append(row)
    given |= {"most": waiting_most + 1, "most_looked_up": looked_up, **store.queue_values(target, names or ())}
    rows = target.run(WAITING[by_task][names is not None], given)
    found = _waiting_of(rows, waiting_most, looked_up, by_task=by_task)
    if names is not None and not by_task:
        found = {(queue, None): {} for queue in names} | found
    for kind in ("running", "failed"):
        for row in signs.get(kind, ()):
            if names is None or row["name"] in names:
                found.setdefault((row["name"], row["detail"]), {})[kind] = row["number"]
    beyond = sum(row["number"] for row in signs.get("failed", ())) > bound
    for mine in found.values() if beyond else ():
        mine["failed_at_least"] = True
    return Live(now=signs["now"][0]["at"], found=found, signs=signs, failed_at_least=beyond)


def _waiting_of(rows: Collection[Row], most: int, looked_up: int, *, by_task: bool) -> Found:
    """Add up the rows for each queue, and mark the lower bounds."""
    found: Found = {}
    totals: Counter[tuple[str, str]] = Counter()
    for row in rows:
        mine = found.setdefault((row["queue"], row.get("task_name")), {"due": 0, "later": 0, "retrying": 0})
        for name in ("due", "later", "retrying"):
            mine[name] += row[name]
            totals[row["queue"], name] += row[name]
        moments = (mine.get("oldest_due_at"), row["oldest_due_at"])
        mine["oldest_due_at"] = min((one for one in moments if one is not None), default=None)
    for (queue, _), mine in found.items():
        later = mine.pop("later")
        mine["due"] = min(mine["due"], most)
        mine["retrying"] = min(mine["retrying"], most)
        mine["delayed"] = min(later, most) - mine["retrying"]
        mine["due_at_least"] = totals[queue, "due"] > most
        mine["delayed_at_least"] = totals[queue, "later"] > most
        # By task, all entries that were read are looked up.
        mine["retrying_at_least"] = mine["delayed_at_least"] if by_task else later > looked_up > 0
    return found


_most, _most_looked_up = parameters(sa.BigInteger, "most", "most_looked_up")
_COLUMNS: Mapping[str, Any] = {
    "name": sa.Text(),
    "detail": sa.Text(),
    "task_id": sa.Uuid(),
    "number": sa.BigInteger(),
    "at": Instant,
}


def present(g: Grammar) -> sa.Select[Any]:
    """Select several kinds of rows, which fill different columns: the time, and the running and failed tasks of each
    queue. At most :most dead letters are counted.
    """
    return signals(*counts(g))


def present_by_task(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `present`, grouped by queue and task name."""
    return signals(*counts(g, by_task=True))


def counts(g: Grammar, *, by_task: bool = False) -> list[sa.Select[Any]]:
    """Return the parts of `present`."""
    dead_letter, lease, execution = dead_letters.c, task_leases.c, task_executions.c
    # A worker's role may read only the column `queue` of the dead letters.
    names = (dead_letter.queue, dead_letter.task_name) if by_task else (dead_letter.queue,)
    listed = sa.select(*names).limit(_most).subquery("listed")
    running = signal("running", name=lease.queue, number=sa.func.count()).group_by(lease.queue)
    if by_task:
        running = signal("running", name=lease.queue, detail=execution.task_name, number=sa.func.count())
        running = running.join_from(task_leases, task_executions, execution.id == lease.task_execution_id)
        running = running.group_by(lease.queue, execution.task_name)
    failed = signal("failed", name=listed.c.queue, detail=listed.c.get("task_name"), number=sa.func.count())
    failed = failed.group_by(*listed.c)
    return [signal("now", at=g.now), running, failed]


def signals(*parts: sa.Select[Any]) -> sa.Select[Any]:
    """Select the rows of all parts."""
    return sa.select(sa.union_all(*parts).subquery("found"))


def signal(kind: str, **values: Any) -> sa.Select[Any]:
    """Select the kind and these values, and NULL for all other columns."""
    cells: list[Any] = []
    for name, type_of in _COLUMNS.items():
        value = values.get(name)
        convert: Any = sa.cast if value is None or isinstance(type_of, sa.BigInteger) else sa.type_coerce
        cells.append(convert(sa.null() if value is None else value, type_of).label(name))
    return sa.select(sa.literal_column(f"'{kind}'", sa.Text).label("kind"), *cells)


def _by_queue(g: Grammar, *, given: bool) -> sa.Select[Any]:
    """Count the entries that are due now and the entries that are due later, in several rows per queue.

    Entries without a key are counted by priority. `retrying` is the number of retries among the first :most_looked_up
    entries that are due later. Each of these entries is looked up in a large table.
    """
    plain, keyed = asked_queues(g, given=given, beyond_floors=False)
    without_key = pairs(plain)
    return signals(
        _counts(g, without_key, without_key.c.priority.is_not(None), with_key=False),
        _counts(g, keyed, keyed.c.queue.is_not(None), with_key=True),
    )


def _counts(g: Grammar, queues: sa.FromClause, is_one: sa.ColumnElement[bool], *, with_key: bool) -> sa.Select[Any]:
    entry = task_outbox.alias("entry")
    due, later = entry.c.available_at <= g.now, entry.c.available_at > g.now
    of_queue = _of(entry, queues, with_key=with_key)

    def number(*where: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        some: sa.Select[Any] = (
            sa.select(sa.literal_column("1").label("one")).where(of_queue, *where).limit(_most).correlate(queues)
        )
        return sa.select(sa.func.count()).select_from(some.subquery("some")).scalar_subquery()

    first = sa.select(entry.c.available_at).where(of_queue, due).order_by(entry.c.available_at, entry.c.id).limit(1)
    nearest = sa.select(entry.c.task_execution_id.label("id")).where(of_queue, later)
    nearest = nearest.order_by(entry.c.available_at, entry.c.id).limit(_most_looked_up).correlate(queues)
    looked_up = nearest.subquery("nearest")
    again = _retry_at(looked_up.c.id).correlate(looked_up).scalar_subquery()
    retrying = sa.select(sa.func.count()).select_from(looked_up).where(again.is_not(None)).scalar_subquery()
    return sa.select(
        queues.c.queue,
        number(due).label("due"),
        number(later).label("later"),
        retrying.label("retrying"),
        first.correlate(queues).scalar_subquery().label("oldest_due_at"),
    ).where(is_one)


def _by_task(g: Grammar, *, given: bool) -> sa.Select[Any]:
    """Count the first :most entries that are due now, and the first :most that are due later, by queue and task name."""
    plain, keyed = asked_queues(g, given=given, beyond_floors=False)
    sources = (pairs(plain), keyed)
    parts = [_entries(g, one, with_key=one is keyed, due=due) for one in sources for due in (True, False)]
    found = sa.union_all(*parts).subquery("found")
    execution = task_executions.alias("execution")
    name = sa.select(execution.c.task_name).where(execution.c.id == found.c.id).correlate(found).scalar_subquery()
    again = _retry_at(found.c.id).correlate(found).scalar_subquery()
    named = sa.select(
        found.c.queue,
        name.label("task_name"),
        found.c.available_at,
        sa.case((found.c.available_at > g.now, again), else_=sa.null()).label("retry_at"),
    ).subquery("named")
    due_now: sa.ColumnElement[bool] = named.c.available_at <= g.now
    return (
        sa.select(
            named.c.queue,
            named.c.task_name,
            sa.func.count().filter(due_now).label("due"),
            sa.func.count().filter(named.c.available_at > g.now).label("later"),
            sa.func.count().filter(named.c.retry_at.is_not(None)).label("retrying"),
            sa.func.min(named.c.available_at, type_=Instant).filter(due_now).label("oldest_due_at"),
        )
        .where(named.c.task_name.is_not(None))
        .group_by(named.c.queue, named.c.task_name)
    )


def _entries(g: Grammar, queues: sa.FromClause, *, with_key: bool, due: bool) -> sa.Select[Any]:
    """Select up to :most entries from each of these queues: entries that are due now, or entries that are due later."""

    def choose(entry: sa.FromClause) -> sa.Select[Any]:
        when = entry.c.available_at <= g.now if due else entry.c.available_at > g.now
        columns = (entry.c.queue, entry.c.available_at, entry.c.task_execution_id)
        chosen = sa.select(*columns).where(_of(entry, queues, with_key=with_key), when)
        return chosen.order_by(entry.c.available_at, entry.c.id)

    name = f"{'keyed' if with_key else 'plain'}_{'due' if due else 'later'}"
    rows, entry = g.each(queues, name, choose, _most)
    return sa.select(entry.queue, entry.available_at, entry.task_execution_id.label("id")).select_from(rows)


def _of(entry: sa.FromClause, queues: sa.FromClause, *, with_key: bool) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the entry belongs to this queue and, if it does not have a key, to this
    priority.
    """
    if with_key:
        return sa.and_(entry.c.queue == queues.c.queue, entry.c.partition_key.is_not(None))
    same = entry.c.priority == queues.c.priority
    return sa.and_(entry.c.queue == queues.c.queue, entry.c.partition_key.is_(None), same)


def oldest_due(g: Grammar) -> sa.Select[Any]:
    """Select the first :most due entries for each priority, and for the tasks with a key, in the given queues."""
    plain, keyed = asked_queues(g, given=True, beyond_floors=False)
    return signals(*(_entries(g, source, with_key=source is keyed, due=True) for source in (pairs(plain), keyed)))


WAITING: Mapping[bool, Mapping[bool, Builder]] = {
    by_task: {given: partial(_by_task if by_task else _by_queue, given=given) for given in (False, True)}
    for by_task in (False, True)
}
"""The statements, keyed by whether they count by task and by whether they count only the given queues."""


def _retry_at(task_id: sa.ColumnElement[Any]) -> sa.Select[Any]:
    execution = task_executions.alias("execution")
    return sa.select(execution.c.retry_at).where(execution.c.id == task_id)
