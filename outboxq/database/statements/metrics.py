"""Write and read what workers have counted: `task_metrics`.

A row is about a queue, a task and a span of time. Workers write spans of ten seconds. Old spans are summed up to longer
ones: a transition deletes the rows of a span and inserts their sums, so a row is summed up once, even where two workers try.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Delete,
    Double,
    Integer,
    Select,
    Text,
    Uuid,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
)

from ...model.periods import BUCKETS
from ..column_types import Instant
from ..grammar import Builder, Columns, Grammar, Relations, Statement, Transition, insert_values, worker_id
from ..tables import task_metrics

SPAN = 10
"""The seconds that a worker's row is about."""
COUNTS = (
    "completed",
    "retried",
    "failed",
    "cancelled",
    "snoozed",
    "released",
    "lost",
    "timed_out",
    "timed_out_last",
)
SECONDS = ("wait_seconds", "run_seconds")
WAIT = tuple(f"wait_{bucket}" for bucket in range(BUCKETS))
RUN = tuple(f"run_{bucket}" for bucket in range(BUCKETS))
SUMMED: Columns = {
    **{name: Integer() for name in COUNTS},
    **{name: Double() for name in SECONDS},
    **{name: Integer() for name in (*WAIT, *RUN)},
}
"""The columns that are added up."""
SERIES = ("completed", "retried", "failed", "cancelled", "timed_out", "timed_out_last", *WAIT, *RUN)
"""The columns of which a series has the sums."""
METRIC: Columns = {"id": Uuid(), "queue": Text(), "task_name": Text(), **SUMMED}

_metric = task_metrics.c
_begin = bindparam("begin", type_=Instant, required=True)
_end = bindparam("end", type_=Instant, required=True)
_before = bindparam("before", type_=Instant, required=True)
_since = bindparam("since", type_=Instant, required=True)
_until = bindparam("until", type_=Instant, required=True)
_a_span_ago = bindparam("a_span_ago", -float(SPAN), type_=Double)
_seconds = bindparam("seconds", type_=Integer, required=True)
_family = bindparam("family", type_=Uuid, required=True)


def record(g: Grammar) -> Transition:
    """Write rows that a worker has counted in the ten seconds up to now. A row whose id is there already is not written again."""

    def rows(r: Relations) -> Statement:
        given = r["given"].c
        values = {
            "id": given.id,
            "at": g.later(g.now, _a_span_ago),
            "seconds": literal_column(str(SPAN), Integer),
            "worker_id": worker_id,
            **{name: given[name] for name in METRIC if name != "id"},
        }
        # SQLite reads ON CONFLICT after a query without WHERE as the ON of a join.
        new = insert_values(g.insert(task_metrics), values, r["given"], given.id.is_not(None))
        return new.on_conflict_do_nothing()  # type: ignore[no-any-return]

    return Transition(given=METRIC, steps={"rows": rows})


def newest_to_sum_up(_: Grammar) -> Select[Any]:
    """Select the begin of the newest span before :before that is shorter than :seconds."""
    found = (_metric.at < _before, _metric.seconds < _seconds)
    return select(_metric.at).where(*found).order_by(_metric.at.desc()).limit(1)


def sum_up(g: Grammar) -> Transition:
    """Replace the rows that begin from :begin to before :end, and are shorter than :seconds, by their sums.

    Returns the rows that were replaced.
    """

    def gone(_: Relations) -> Statement:
        span = (_metric.at >= _begin, _metric.at < _end, _metric.seconds < _seconds)
        return (
            delete(task_metrics).where(*span).returning(_metric.id, *(_metric[name] for name in _KEY + tuple(SUMMED)))
        )

    def sums(r: Relations) -> Statement:
        row = r["gone"].c
        key = [row[name] for name in _KEY]
        values = {
            "id": g.numbered(_family, func.row_number().over(order_by=key)),
            "at": cast(_begin, task_metrics.c.at.type),
            "seconds": cast(_seconds, Integer),
            "worker_id": cast(null(), Uuid),
            **{name: row[name] for name in _KEY},
            **{name: func.sum(row[name]) for name in SUMMED},
        }
        new = insert(task_metrics)
        return new.from_select(list(values), select(*values.values()).group_by(*key))

    return Transition(steps={"gone": gone, "sums": sums}, returns="gone", returning=("id",))


def forget(_: Grammar) -> Delete:
    """Delete the rows of spans that begin before :before."""
    return delete(task_metrics).where(_metric.at < _before)


def first(_: Grammar) -> Select[Any]:
    """Select the begin of the first span that is kept; NULL if there is none."""
    return select(func.min(_metric.at).label("at"))


def _since_then(_: Grammar, *, by_task: bool) -> Select[Any]:
    """Select the sums of the spans that begin from :since on."""
    names = _KEY if by_task else _KEY[:1]
    sums = (cast(func.sum(_metric[name]), BigInteger if name not in SECONDS else Double).label(name) for name in SUMMED)
    return (
        select(*(_metric[name] for name in names), *sums)
        .where(_metric.at >= _since)
        .group_by(*(_metric[n] for n in names))
    )


def series(g: Grammar) -> Select[Any]:
    """Select the sums of each step of :step microseconds from :since to before :until, of one :queue or :task_name or all."""
    micros = bindparam("step", type_=BigInteger, required=True)
    same = [or_(wanted.is_(None), _metric[name] == wanted) for name, wanted in _WANTED.items()]
    spans = (
        select(g.steps(_since, _metric.at, micros).label("step"), *(_metric[name] for name in SERIES))
        .where(_metric.at >= _since, _metric.at < _until, *same)
        .subquery("spans")
    )
    sums = (cast(func.sum(spans.c[name]), BigInteger).label(name) for name in SERIES)
    return select(spans.c.step, *sums).group_by(spans.c.step)


_KEY = ("queue", "task_name")
_WANTED = {name: bindparam(name, type_=Text, required=True) for name in _KEY}
"""Filters; NULL for any value."""
SINCE: Mapping[str, Builder] = {
    "by_queue": partial(_since_then, by_task=False),
    "by_task": partial(_since_then, by_task=True),
}
"""The statements that add up what was counted, a row for each queue or for each task of a queue."""
