"""The rule about live workers that cannot work because of an error, such as a full disk. For a full disk, the problem
names the disk's location, as far as the server reveals it, and says how to free space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from ...database.dialects.catalogue import pg_settings, pg_tablespace
from ...database.grammar import Grammar, text_literal
from ...database.target import Target
from ..claims.workers import LiveWorker
from ..explain.reasons import cure_of, span_of
from ..transactions import Transactions
from .problem import Facts, HealthLimits, Problem, Rule

_NAMED = 3


def failing_workers(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield a problem for each error. An error holds up the tasks that are due in the queues of the workers that it
    affects.
    """
    found: dict[str, list[LiveWorker]] = {}
    for one in facts.seen.workers if limits.worker_failing else ():
        if one.failure is not None:
            found.setdefault(one.failure, []).append(one)
    for failure, several in found.items():
        several.sort(key=lambda one: (one.failing_since or facts.now, one.label))
        first, labels, age = several[0], [one.label for one in several], facts.age(several[0].failing_since)
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        who = f"the worker {first.label}"
        if len(several) > 1:
            who = f"each of {len(several)} workers ({', '.join(labels[:_NAMED])}{more})"
        sentence = f"{who} {failure}; this began {span_of(age)} ago"
        cures = cure_of("see the worker", "workers", "show", first.id)
        if disk := facts.disks.get(failure):
            sentence += f"; {disk}"
            cures += cure_of("see which tables are the largest", "db", "sizes")
        tasks = sum(queue.due for queue in facts.queues if any(one.works_on(queue.queue) for one in several))
        yield Problem.of(Rule.WORKER_FAILING, labels, sentence, *cures, tasks=tasks, age=age)


_FULL = ("(53100)", "database or disk is full")
"""The parts of a worker's failure that indicate a full disk: the SQLSTATE of PostgreSQL, and the message of SQLite."""
_IN_TABLESPACE = re.compile(r'"pg_tblspc/(\d{1,10})/')
_CURE = "delete other files on that disk, or enlarge the disk; `outboxq prune` needs free space too, so it cannot be the first step"


def full_disks(store: Transactions, target: Target, workers: Iterable[LiveWorker]) -> dict[str, str]:
    """Return, for each of these workers' failures that is due to a full disk, a sentence about the disk and the cure.
    On PostgreSQL, this runs one statement for each such failure.
    """
    full = {one.failure for one in workers if one.failure and any(words in one.failure for words in _FULL)}
    return {failure: f"{_place(store, target, failure)} is full: {_CURE}" for failure in full}


def _place(store: Transactions, target: Target, failure: str) -> str:
    if not target.dialect.measures_tables:
        return f"the disk of {store.dialect.place(None if store.engine is None else store.engine.url, lambda: None)}"
    named = _IN_TABLESPACE.search(failure)
    [row] = target.run(places, {"tablespace": int(named[1]) if named else 0})
    if row["location"]:
        return f"the disk of the tablespace {row['tablespace']!r}, {row['location']},"
    if row["directory"]:
        return f"the disk of the server's data directory, {row['directory']},"
    return "the disk of the server's data directory (a superuser can find it with SHOW data_directory)"


_tablespace = sa.bindparam("tablespace", type_=sa.BigInteger, required=True)


def places(_: Grammar) -> sa.Select[Any]:
    """Select the server's data directory, which only some roles may see, and the location of the tablespace
    :tablespace.
    """
    directory = sa.select(pg_settings.c.setting).where(pg_settings.c.name == text_literal("data_directory"))
    mine = pg_tablespace.c.oid == sa.cast(_tablespace, sa.BigInteger)
    name = sa.select(pg_tablespace.c.spcname).where(mine)
    location: sa.ColumnElement[str] = sa.func.pg_tablespace_location(pg_tablespace.c.oid, type_=sa.Text)
    return sa.select(
        directory.scalar_subquery().label("directory"),
        name.scalar_subquery().label("tablespace"),
        sa.select(location).where(mine).scalar_subquery().label("location"),
    )
