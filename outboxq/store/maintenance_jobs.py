"""Jobs that one worker at a time does for all, such as samples and the summing up of statistics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..database.dialects import Begin
from ..database.statements import maintenance_jobs as statements
from ..database.target import Target
from .transactions import Transactions


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The answer to a worker that asks for a job."""

    is_mine: bool
    due_in: timedelta
    """The time until the job is due; 0 if this worker has it."""


class MaintenanceJobs:
    """The jobs, each with the moment at which it is due."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def take(self, name: str, *, for_at_most: timedelta) -> Turn:
        """Take the job if it is due. Another worker may take it if it is not `done` within `for_at_most`."""
        given = {"name": name}
        found = self._store.read(statements.due, **given)
        if found and found[0]["seconds"] > 0:
            return Turn(is_mine=False, due_in=timedelta(seconds=found[0]["seconds"]))

        def work(target: Target) -> bool:
            values = self._store.values(target, **given, pause_seconds=for_at_most.total_seconds())
            if not found:
                target.run(statements.make, values)
            return bool(target.run(statements.take, values))

        mine = self._store.run(work, begin=Begin.ASYNCHRONOUS)
        return Turn(is_mine=mine, due_in=timedelta(0) if mine else for_at_most)

    def make(self, name: str) -> None:
        """Make the job, due now, unless it is there."""
        self._store.run(
            lambda target: target.run(statements.make, self._store.values(target, name=name)), begin=Begin.ASYNCHRONOUS
        )

    def done(self, name: str, *, again_in: timedelta) -> None:
        """Record that the job is done, and due again after this time."""

        def work(target: Target) -> None:
            target.run(statements.done, self._store.values(target, name=name, pause_seconds=again_in.total_seconds()))

        self._store.run(work, begin=Begin.ASYNCHRONOUS)


def locked(store: Transactions, target: Target, name: str) -> bool:
    """Lock the job until the transaction ends. Returns False if another session has locked it."""
    return bool(target.run(statements.lock, store.values(target, name=name)))
