"""Give an order to a single worker, and keep the stacks of its threads.

A worker reads its orders in the answer to its own report (`workers.seen`). The orders are columns of the worker's row,
so they disappear with the row, and the next worker in the same process does not see them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin, Row
from ...database.grammar import Grammar, worker_id
from ...database.tables import workers
from ...database.target import Target
from ...errors import InvalidArgument, InvalidTransition, WorkerNotFound
from ...model.workers import WorkerOrder
from ...payload.parameters import sanitize
from ..arguments import identifier
from ..transactions import Transactions
from .workers import is_registered, worker

LONGEST_STACKS = 64_000
"""Maximum size, in bytes, of the stacks that are kept for a worker."""
_FEWEST_DIGITS = 8
"""Minimum number of leading digits of a worker's id that can be given instead of the whole id."""
_NAMED = 5
"""Maximum number of workers that a message lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerStacks:
    """The stacks of a worker's threads."""

    text: str
    at: datetime
    """The time at which the worker wrote the stacks."""


class WorkerOrders:
    """Orders to individual workers."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def give(self, worker_id: UUID, order: WorkerOrder | None, *, using: object = None) -> bool:
        """Order a worker to go quiet, to stop or, with None, to claim tasks again. Returns False if the worker already
        had this order.

        Raises WorkerNotFound, and InvalidTransition for a worker that has ended, or that was told to stop.
        """

        def work(target: Target) -> bool:
            if target.run(give, {"worker_id": worker_id, "asked_to": order}):
                return True
            found = _present(target, worker_id)
            if found.asked_to is not order:
                raise InvalidTransition(f"worker {worker_id} ({found.label}) was told to stop, which cannot be undone")
            return False

        identifier(worker_id)
        return self._store.run(work, using=using)

    def ask_for_stacks(self, worker_id: UUID, *, using: object = None) -> None:
        """Ask a worker for the stacks of its threads. The worker answers with its next report.

        Raises WorkerNotFound, and InvalidTransition for a worker that has ended.
        """

        def work(target: Target) -> None:
            if not target.run(ask, self._store.values(target, worker_id=worker_id)):
                _present(target, worker_id)

        identifier(worker_id)
        self._store.run(work, using=using)

    def answer(self, worker_id: UUID, text: str, *, using: object = None) -> None:
        """Store the stacks of a worker's threads, up to 64 kB."""
        kept = sanitize(text, limit=LONGEST_STACKS)
        values = {"worker_id": identifier(worker_id), "stacks": kept}
        self._store.run_one(answer, using=using, begin=Begin.ASYNCHRONOUS, **values)

    def stacks(self, worker_id: UUID, *, using: object = None) -> WorkerStacks | None:
        """Return the stacks that a worker sent in answer to the last request; None until it has answered."""
        rows = self._store.run_one(stacks, using=using, begin=Begin.READ, worker_id=identifier(worker_id))
        return WorkerStacks(text=rows[0]["stacks"], at=rows[0]["stacks_at"]) if rows else None

    def find(self, name: str, *, using: object = None) -> UUID:
        """Return the id of the worker with this id or label. Among workers with the same label, those that have ended
        do not count. If `name` is neither an id nor a label, it may be a worker's process id, its host and process id
        (``web-1:4711``, with or without the domain), or the first eight or more hex digits of its id.

        Raises WorkerNotFound, and InvalidArgument if several workers match.
        """
        with suppress(ValueError):
            return UUID(name)
        workers = self._store.run_one(registered, using=using, begin=Begin.READ)
        found = [one for one in workers if one["label"] == name] or [one for one in workers if name in _names_of(one)]
        if not found and len(name) >= _FEWEST_DIGITS:
            found = [one for one in workers if str(one["id"]).startswith(name.lower())]
        if not found:
            raise WorkerNotFound(
                f"no registered worker is called {name!r}; `workers list` prints the ids of live workers"
            )
        if len(found) > 1:
            listed = ", ".join(f"{one['id']} ({one['label']})" for one in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise InvalidArgument(f"several workers are called {name!r}; give the id of one of them: {listed}{more}")
        return found[0]["id"]  # type: ignore[no-any-return]


def _names_of(worker: Row) -> set[str]:
    """Return the names of a worker's process: its id alone, and its host and id, with and without the host's domain."""
    host, pid = worker["host"], worker["pid"]
    if pid is None:
        return set()
    return {str(pid), *(() if host is None else (f"{host}:{pid}", f"{host.partition('.')[0]}:{pid}"))}


def _present(target: Target, worker_id: UUID) -> Any:
    """Return a worker that has not ended. Raises WorkerNotFound or InvalidTransition."""
    found = worker(target, worker_id)
    if found is None:
        raise WorkerNotFound(f"there is no worker {worker_id}: a worker is forgotten a week after it was last seen")
    if found.ended_at is not None:
        raise InvalidTransition(f"worker {worker_id} ({found.label}) has ended, so it cannot be given orders")
    return found


_asked_to, _stacks = (sa.bindparam(name, type_=sa.Text, required=True) for name in ("asked_to", "stacks"))
_mine = partial(sa.and_, workers.c.id == worker_id, is_registered())


def give(_: Grammar) -> sa.Update:
    """Write an order to a worker, unless it already has this order or has been told to stop."""
    order = workers.c.asked_to
    is_new = sa.and_(order.is_distinct_from(_asked_to), order.is_distinct_from(WorkerOrder.STOP.value))
    return sa.update(workers).where(_mine(is_new)).values(asked_to=_asked_to).returning(workers.c.id)


def ask(g: Grammar) -> sa.Update:
    """Ask a worker for its stacks, and forget its last answer."""
    values = {"stacks_asked_at": g.now, "stacks": sa.null(), "stacks_at": sa.null()}
    return sa.update(workers).where(_mine()).values(values).returning(workers.c.id)


def answer(g: Grammar) -> sa.Update:
    """Write a worker's stacks, and delete the request that they answer."""
    values = {"stacks_asked_at": sa.null(), "stacks": _stacks, "stacks_at": g.now}
    return sa.update(workers).where(workers.c.id == worker_id).values(values).returning(workers.c.id)


def stacks(_: Grammar) -> sa.Select[Any]:
    """Select a worker's stacks, if it has answered."""
    columns = (workers.c[name] for name in ("stacks", "stacks_at"))
    return sa.select(*columns).where(workers.c.id == worker_id, workers.c.stacks_at.is_not(None))


def registered(_: Grammar) -> sa.Select[Any]:
    """Select the ids, labels and processes of the workers that have not ended."""
    columns = (workers.c[name] for name in ("id", "label", "host", "pid"))
    return sa.select(*columns).where(is_registered()).order_by(workers.c.id)
