"""Let one worker at a time do a job on behalf of all workers, such as taking samples or rolling up metrics.

A row of `maintenance_jobs` contains the time from which a job is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

from ...database.dialects import Begin
from ...database.grammar import Grammar
from ...database.tables import maintenance_jobs
from ...database.target import Target
from ..transactions import Transactions

PRUNE: Final = "outboxq.prune"
"""The name of the task that deletes old tasks, and of the job that records when old tasks were last deleted. No worker
takes this job.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The answer to a worker that requests a job."""

    is_mine: bool
    due_in: timedelta
    """Time until the job is due; 0 if this worker has taken it."""


class MaintenanceJobs:
    """The maintenance jobs, each with its due time."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def take(self, name: str, *, for_at_most: timedelta) -> Turn:
        """Take the job if it is due. Another worker may take it if it is not `done` within `for_at_most`."""
        found = self._store.run_one(due, name=name)
        if found and found[0]["seconds"] > 0:
            return Turn(is_mine=False, due_in=timedelta(seconds=found[0]["seconds"]))

        def work(target: Target) -> bool:
            values = self._store.values(target, name=name, pause_seconds=for_at_most.total_seconds())
            if not found:
                target.run(make, values)
            return bool(target.run(take, values))

        mine = self._store.run(work, begin=Begin.ASYNCHRONOUS)
        return Turn(is_mine=mine, due_in=timedelta(0) if mine else for_at_most)

    def make(self, name: str) -> None:
        """Create the job, due now, unless it exists."""
        self._store.run_one(make, begin=Begin.ASYNCHRONOUS, name=name)

    def done(self, name: str, *, again_in: timedelta) -> None:
        """Record that the job is done, and that it is due again after this time."""
        self._store.run_one(done, begin=Begin.ASYNCHRONOUS, name=name, pause_seconds=again_in.total_seconds())


def record_prune(store: Transactions, *, using: object = None) -> None:
    """Record that old tasks have just been deleted."""

    def work(target: Target) -> None:
        values = store.values(target, name=PRUNE, pause_seconds=0.0)
        target.run(make, values)
        target.run(done, values)

    store.run(work, using=using, begin=Begin.ASYNCHRONOUS)


def locked(store: Transactions, target: Target, name: str) -> bool:
    """Lock the job until the transaction ends. Returns False if another session has locked it."""
    return bool(target.run(lock, store.values(target, name=name)))


_job = maintenance_jobs.c
_name = sa.bindparam("name", type_=sa.Text, required=True)
_pause = sa.bindparam("pause_seconds", type_=sa.Double, required=True)


def due(g: Grammar) -> sa.Select[Any]:
    """Select the number of seconds until the job is due, which is at most 0 if it is due now. Selects no row if the job
    does not exist.
    """
    seconds = g.between(g.now, _job.due_at) / sa.literal_column("1000000.0", sa.Double)
    left = sa.case((_job.done_at > g.now, sa.literal_column("0.0", sa.Double)), else_=seconds)
    return sa.select(left.label("seconds")).where(_job.name == _name)


def make(g: Grammar) -> sa.Insert:
    """Create a job that is due now, if it does not exist."""
    values: dict[str, Any] = {"name": _name, "due_at": g.now}
    # After a query without WHERE, SQLite reads ON CONFLICT as the ON of a join.
    rows = sa.select(*values.values()).where(_name.is_not(None))
    return g.insert(maintenance_jobs).from_select(list(values), rows).on_conflict_do_nothing()  # type: ignore[no-any-return]


def take(g: Grammar) -> sa.Update:
    """Take the job if it is due, so that no other worker takes it for :pause_seconds. Returns no row if it is not due.

    A job whose last completion is recorded as a time in the future counts as due, because the clock has since been set
    back.
    """
    is_due = sa.or_(_job.due_at <= g.now, _job.done_at > g.now)
    taken = sa.update(maintenance_jobs).where(_job.name == _name, is_due)
    return taken.values(due_at=g.later(g.now, _pause)).returning(_job.name)


def lock(_: Grammar) -> sa.Select[Any]:
    """Lock the job's row. Returns no row if another session has locked it."""
    return sa.select(_job.name).where(_job.name == _name).with_for_update(skip_locked=True)


def done(g: Grammar) -> sa.Update:
    """Record that the job is done, and that it is due again after :pause_seconds."""
    return sa.update(maintenance_jobs).where(_job.name == _name).values(due_at=g.later(g.now, _pause), done_at=g.now)
