"""Let one worker at a time do a job for all: a row of `maintenance_jobs` says from when on the job is due."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, Insert, Select, Text, Update, bindparam, case, literal_column, or_, select, update

from ..grammar import Grammar
from ..tables import maintenance_jobs

_job = maintenance_jobs.c
_name = bindparam("name", type_=Text, required=True)
_pause = bindparam("pause_seconds", type_=Double, required=True)


def due(g: Grammar) -> Select[Any]:
    """Select the seconds until the job is due, at most 0 if it is; no row if there is no such job yet."""
    seconds = g.between(g.now, _job.due_at) / literal_column("1000000.0", Double)
    left = case((_job.done_at > g.now, literal_column("0.0", Double)), else_=seconds)
    return select(left.label("seconds")).where(_job.name == _name)


def make(g: Grammar) -> Insert:
    """Write the row of a job that is due now, unless it is there."""
    values: dict[str, Any] = {"name": _name, "due_at": g.now}
    # SQLite reads ON CONFLICT after a query without WHERE as the ON of a join.
    rows = select(*values.values()).where(_name.is_not(None))
    return g.insert(maintenance_jobs).from_select(list(values), rows).on_conflict_do_nothing()  # type: ignore[no-any-return]


def take(g: Grammar) -> Update:
    """Take the job if it is due: no other worker has it for :pause_seconds. Returns no row if it is not due.

    A job that was done in the future is due: the clock was set back.
    """
    is_due = or_(_job.due_at <= g.now, _job.done_at > g.now)
    taken = update(maintenance_jobs).where(_job.name == _name, is_due)
    return taken.values(due_at=g.later(g.now, _pause)).returning(_job.name)


def lock(_: Grammar) -> Select[Any]:
    """Lock the row of the job; no row if another session has locked it."""
    return select(_job.name).where(_job.name == _name).with_for_update(skip_locked=True)


def done(g: Grammar) -> Update:
    """Record that the job is done, and due again after :pause_seconds."""
    return update(maintenance_jobs).where(_job.name == _name).values(due_at=g.later(g.now, _pause), done_at=g.now)
