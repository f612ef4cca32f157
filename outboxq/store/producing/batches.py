"""Create, fill, read and cancel batches and chains."""

from __future__ import annotations

import builtins
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any
from uuid import UUID

from ...database.dialects import Begin, Row
from ...database.grammar import Builder
from ...database.privileges import Feature
from ...database.tables import task_leases
from ...database.target import Target
from ...errors import BatchClosed, BatchNotFound, InvalidArgument, InvalidTarget, InvalidTransition
from ...model import EventType, NewTask, TaskStatus
from ...model.batches import Batch, BatchKind, BatchLink, BatchStatus, NewBatch, OnFailed, is_batch, links_of
from ...model.options import bad_name, is_name
from ...model.unknown_options import Answering
from ..arguments import AnyId, identifier, positive
from ..failure_log import sentence
from ..tasks.cancelling import Bulk, change_all
from ..tasks.operations import OnChange
from ..tasks.results import read_ended
from ..transactions import Noun
from . import batches_sql

log = logging.getLogger("outboxq.store")

_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)
_IDS, _RESULTS, _CANCELLED_AT_ONCE = 50_000, 200, 500
_EVERY = 2**31 - 1
_PRUNED_AT_ONCE = 500
_NOTHING = Counter[UUID]()


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A task of a batch."""

    id: UUID
    task_name: str
    status: TaskStatus
    attempt: int
    result: str | None = field(repr=False)
    """The result as JSON; None if the task has no result."""
    error: str | None = field(repr=False)
    """The last error, on one line."""


class Batches(Noun, Answering):
    """The batches and chains. Their counts include only committed transactions."""

    _noun = "outbox.store.batches"

    def create(self, batch: NewBatch, *, using: object = None) -> None:
        """Write an open batch. Tasks are added by enqueueing them with the batch's id as their `pipeline_execution_id`.

        The batch takes effect when `close` is called. Raises InvalidArgument before anything is written.
        """
        _check(batch)
        options = (batch.id, batch.kind.value, batch.name, batch.on_failed.value)
        row = (*options, batch.size, batch.closed, batch.then_as_json, len(batch.then))

        def work(target: Target) -> None:
            with target.atomic():
                target.run(batches_sql.create, self._store.values(target), [row])

        def committed(target: Target, _: None) -> bool:
            return bool(target.run(batches_sql.known, {"batch_id": batch.id}))

        self._store.run(work, using=using, enqueues=frozenset({Feature.BATCHES}), committed=committed)

    def close(self, batch_id: UUID, *, using: object = None) -> None:
        """Close the batch, so that no more tasks can be added. When all of its tasks have ended, the `then` tasks are
        enqueued. Raises BatchNotFound.
        """

        def work(target: Target) -> None:
            values = self._store.values(target, batch_id=batch_id, added=0, closes=True)
            if not target.run(batches_sql.change, values):
                raise BatchNotFound(f"there is no open batch {batch_id}")

        def committed(target: Target, _: None) -> bool:
            rows = target.run(batches_sql.get, {"batch_id": batch_id})
            return bool(rows and rows[0]["closed"])

        self._store.run(work, using=using, committed=committed)

    def forbid_commit(self, batch_id: UUID, why: str, *, using: object) -> None:
        """Refuse to commit the transaction that creates this incomplete batch, unless a rollback to a savepoint removes
        the batch.
        """

        def reason() -> InvalidTarget | None:
            try:
                if not target.run(batches_sql.left_open, {"batch_id": batch_id}):
                    return None
            except Exception as error:  # noqa: BLE001 - the transaction has failed, so it cannot be committed either
                log.debug("batch %s could not be looked up: %s", batch_id, error)
            return InvalidTarget(text)

        text = (
            f"this transaction cannot be committed: the `with` block of batch {batch_id} raised an error, so the batch is incomplete "
            f"({why}); roll the transaction back, or create the batch in a savepoint that is rolled back"
        )
        target = self._store.join(using)
        target.forbid_commit(reason)

    def get(self, batch_id: AnyId, *, using: object = None) -> Batch:
        """Return the batch. Raises BatchNotFound."""
        rows = self._store.run_one(batches_sql.get, batch_id=identifier(batch_id), using=using)
        if not rows:
            raise BatchNotFound(f"there is no batch {batch_id}")
        return batch_of(rows[0])

    def list(
        self, *, limit: int = 100, before: AnyId | None = None, only_open: bool = False, using: object = None
    ) -> builtins.list[Batch]:
        """Return up to `limit` batches with ids below `before`, newest first; with `only_open`, only unfinished ones."""
        asked: dict[str, Any] = {"limit": positive(limit), "before": _LAST if before is None else identifier(before)}
        found = batches_sql.newest_open if only_open else batches_sql.newest
        return [batch_of(row) for row in self._store.run_one(found, using=using, **asked)]

    def statuses(self, batch_id: AnyId, *, using: object = None) -> dict[TaskStatus, int]:
        """Count the tasks of a batch by status, including the `then` tasks. This reads all of the batch's tasks."""
        rows = self._store.run_one(batches_sql.statuses, batch_id=identifier(batch_id), using=using)
        return {TaskStatus(row["status"]): row["tasks"] for row in rows}

    def members(
        self, batch_id: UUID, statuses: Iterable[TaskStatus] | None = None, *, using: object = None
    ) -> Iterator[Member]:
        """Return a batch's tasks that have one of these statuses, in id order, including the `then` tasks.

        Each page of 200 tasks is read in its own transaction when it is needed, so a batch of any size can be read.
        """
        wanted = frozenset(TaskStatus if statuses is None else statuses)
        return self._members(batch_id, self._ids(batch_id, _FIRST, using), wanted, using)

    def not_completed(self, batch_id: AnyId, *, limit: int = 100, using: object = None) -> builtins.list[Member]:
        """Return up to `limit` of a batch's tasks that are not Completed: Failed tasks first, and then Cancelled, Running
        and Ready tasks. The tasks include the `then` tasks. This reads all of the batch's tasks.
        """
        asked: dict[str, Any] = {"batch_id": identifier(batch_id), "limit": positive(limit)}
        ids = [row["id"] for row in self._store.run_one(batches_sql.not_completed, using=using, **asked)]
        found = {one.id: one for one in self.named(ids, using=using) if one.status is not TaskStatus.COMPLETED}
        return [found[one] for one in ids if one in found]

    def _members(
        self, batch_id: UUID, rows: Sequence[Row], wanted: frozenset[TaskStatus], using: object
    ) -> Iterator[Member]:
        while True:
            ids = [row["id"] for row in rows if row["status"] in wanted]
            for start in range(0, len(ids), _RESULTS):
                yield from self._read(ids[start : start + _RESULTS], wanted, using)
            if len(rows) < _IDS:
                return
            rows = self._ids(batch_id, rows[-1]["id"], using)

    def _ids(
        self, batch_id: UUID, after: UUID, using: object, *, found: Builder = batches_sql.members, **asked: bool
    ) -> Sequence[Row]:
        """Return the ids and statuses of the next tasks that this statement selects from a batch."""
        values: dict[str, Any] = {"batch_id": identifier(batch_id), "after": after, "limit": _IDS, **asked}
        return self._store.run_one(found, using=using, **values)

    def named(self, ids: Sequence[UUID], *, using: object = None) -> builtins.list[Member]:
        """Return the given tasks that are stored, in id order."""
        return self._read(ids, frozenset(TaskStatus), using) if ids else []

    def completed(self, ids: Sequence[UUID], *, using: object = None) -> builtins.list[Member]:
        """Return the given tasks that are Completed."""
        return self._read(ids, frozenset({TaskStatus.COMPLETED}), using)

    def _read(self, ids: Sequence[UUID], wanted: frozenset[TaskStatus], using: object) -> builtins.list[Member]:
        work = partial(read_ended, task_ids=ids, everything=True)
        rows = self._store.run(work, using=using, begin=Begin.READ)
        read = [{"error": row.pop("last_error"), **row, "status": TaskStatus(row["status"])} for row in rows]
        return [Member(**one) for one in sorted(read, key=itemgetter("id")) if one["status"] in wanted]

    def cancel(
        self,
        batch_id: AnyId,
        *,
        reason: str = "",
        force: bool = False,
        runs_then: bool = False,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        on_change: OnChange | None = None,
        using: object = None,
    ) -> int:
        """Cancel the unfinished tasks of a batch, and return their number. The `then` tasks are not enqueued.

        A running task is asked to stop or, with `force`, Cancelled immediately. Dead letters that the batch is waiting
        for are discarded. With `runs_then`, the `then` tasks are enqueued when all tasks have ended. No more tasks can
        be added to the batch. With `limit`, this call cancels at most this number of tasks, and workers cancel the
        rest. Each transaction cancels up to 500 tasks (with `using`, the caller's transaction cancels all of them).
        `on_change` is called in each transaction with the number of tasks that the transaction cancels: 0 in the first
        transaction, which only closes the batch. Raises BatchNotFound, and InvalidTransition for a batch that has
        ended.
        """
        most = None if limit is None else positive(limit)
        values = {"batch_id": identifier(batch_id), "runs_then": runs_then}

        def request(target: Target) -> builtins.list[Row]:
            if using is not None and not target.dialect.one_writer:
                # The caller keeps the lock on the batch's row. A worker that ends a task locks this row last, so the
                # tasks are locked first; otherwise, both could wait for each other.
                asked = {**values, "after": _FIRST, "force": force, "dead_letters": True, "limit": most or _EVERY}
                for table, lock in batches_sql.LOCK.items():
                    if force or table != task_leases.name:
                        target.run(lock, asked)
            rows = target.run(batches_sql.request_cancel, self._store.values(target, **values))
            if rows and on_change is not None:
                on_change(target, 0)
            return rows

        def committed(target: Target, _: object) -> bool:
            rows = target.run(batches_sql.get, {"batch_id": identifier(batch_id)})
            if not rows or rows[0]["cancel_requested_at"] is None:
                return False
            # A dead letter may have requested the cancellation earlier, and would still let the `then` tasks run.
            return runs_then or not rows[0]["runs_then"]

        if not (found := self._store.run(request, using=using, committed=committed)):
            raise already_ended(self.get(batch_id, using=using))
        bulk = Bulk(reason=reason, limit=most, on_progress=on_progress, on_change=on_change, using=using)
        return self._cancel_members(found[0], bulk, force=force)

    def continue_cancelling(self, *, limit: int = 100) -> int:
        """Cancel the tasks of the batches that are being cancelled, and return their number. Every worker calls this
        periodically. The cost depends on the number of tasks that are running or left to cancel, not on the size of the
        batches. A batch that another worker is cancelling is left to that worker, and a locked batch is left to a later
        call.
        """

        def look(target: Target) -> builtins.list[Row]:
            values = self._store.values(target, limit=positive(limit))
            if not target.run(batches_sql.cancelling, values):
                return []
            return target.run(batches_sql.left_to_cancel, values)

        return sum(self._continue(row) for row in self._store.run(look, begin=Begin.READ))

    def _continue(self, batch: Row) -> int:
        """Cancel the remaining tasks of one batch."""
        reads_all = batch["waiting"] or (batch["failed"] and _discards(batch))
        found = batches_sql.unended if reads_all else batches_sql.unasked
        reason = "a task of its batch failed" if batch["runs_then"] else "its batch was cancelled"
        try:
            return self._cancel_members(batch, Bulk(reason=reason), found=found, shares=True)
        except Exception as error:
            if not self._store.is_locked_out(error):
                raise
            why = sentence(error)
            log.info("batch %s will be cancelled later, because one of its rows is locked: %s", batch["id"], why)
            return 0

    def _cancel_members(
        self,
        batch: Row,
        bulk: Bulk,
        *,
        found: Builder = batches_sql.unended,
        force: bool = False,
        shares: bool = False,
    ) -> int:
        """Cancel those tasks of a batch that this statement selects. With `shares`, stop if other workers have
        cancelled the same tasks.
        """
        cancelled, after, gives_up = 0, _FIRST, self._store.is_locked_out if shares else None
        kinds = {EventType.CANCELLED: {TaskStatus.READY, TaskStatus.RUNNING}}
        if dead_letters := _discards(batch):
            kinds[EventType.DISCARDED] = {TaskStatus.FAILED}
        while True:
            rows = self._ids(batch["id"], after, bulk.using, found=found, force=force, dead_letters=dead_letters)
            for kind, statuses in kinds.items():
                ids = [row["id"] for row in rows if TaskStatus(row["status"]) in statuses]
                while ids and cancelled != bulk.limit:
                    most = min(_CANCELLED_AT_ONCE, (bulk.limit or _EVERY) - cancelled)
                    number = change_all(self._store, ids[:most], kind, statuses, bulk, force=force, gives_up=gives_up)
                    if shares and not number:
                        return cancelled
                    cancelled += number
                    del ids[:most]
                    if bulk.on_progress is not None:
                        bulk.on_progress(cancelled)
            if len(rows) < _IDS or cancelled == bulk.limit:
                return cancelled
            after = rows[-1]["id"]

    def prune(self, before: datetime, stop: Callable[[], bool], *, using: object = None) -> None:
        """Delete the batches that completed before this time and no longer have tasks.

        If a dead letter that a batch is waiting for was pruned, the task counts as discarded, and the batch stops
        waiting.
        """

        def work(target: Target) -> int:
            with target.atomic():
                if found := target.run(batches_sql.missing_dead_letters, {"limit": _PRUNED_AT_ONCE}):
                    # This is a separate statement, so that it sees all tasks that ended before the batches were locked.
                    ids = [(row["id"],) for row in found]
                    target.run(batches_sql.forget_dead_letters, self._store.values(target), ids)
                gone = target.run(batches_sql.prune, {"older": before, "limit": _PRUNED_AT_ONCE})
            return max(len(found), len(gone))

        while not stop() and self._store.run(work, using=using) == _PRUNED_AT_ONCE:
            pass


def already_ended(batch: Batch) -> InvalidTransition:
    """Return the error for an attempt to cancel a batch that has ended. The error names the last `then` task, which can
    be cancelled separately.
    """
    is_whole = batch.status is BatchStatus.COMPLETED
    how = "completed" if is_whole else "ended as Cancelled"
    at = "" if batch.completed_at is None else f" at {batch.completed_at:%Y-%m-%d %H:%M:%S} UTC"
    last = batch.then_ids[batch.stage - 1 : batch.stage] if is_whole and batch.stage else ()
    follows = "".join(f"; to cancel the task that follows, use its own id: {task_id}" for task_id in last)
    return InvalidTransition(f"the {batch.kind} {batch.id} {how}{at}, so nothing was cancelled{follows}")


def added_to(tasks: Iterable[NewTask]) -> Counter[UUID]:
    """Count the tasks that are added to each batch."""
    ids = [
        one for task in tasks if (one := task.pipeline_execution_id) is not None and one.int >> 127 and is_batch(one)
    ]
    return Counter(ids) if ids else _NOTHING


def join(target: Target, values: Mapping[str, Any], added: Counter[UUID]) -> None:
    """Add this number of tasks to each of these batches, before the tasks are written. Raises BatchClosed for a batch
    that does not accept tasks.
    """
    for batch_id, number in sorted(added.items()):
        if not target.run(batches_sql.change, {**values, "batch_id": batch_id, "added": number}):
            raise BatchClosed(
                f"batch {batch_id} does not accept more tasks: it has completed, is being cancelled, or is not in this "
                "database"
            )


def leave(target: Target, values: Mapping[str, Any], batch_id: UUID, number: int) -> None:
    """Subtract from the batch's count the tasks that were counted but not written."""
    target.run(batches_sql.change, {**values, "batch_id": batch_id, "added": -number})


def _check(batch: NewBatch) -> None:
    if not is_batch(batch.id):
        raise InvalidArgument("a batch id must come from new_batch_id()")
    if batch.name is not None and not is_name(batch.name):
        raise bad_name("name", "a batch")
    for number, task in enumerate(batch.then, start=1):
        if task.id != (needed := BatchLink(batch_id=batch.id, number=number).task_id):
            raise InvalidArgument(
                f"the task at position {number} in the batch's `then` must have the id {needed}, not {task.id}, because "
                "retention finds the task by this id; get the id from BatchLink(batch_id=…, number=…).task_id"
            )
    if type(batch.on_failed) is not OnFailed or type(batch.kind) is not BatchKind:
        raise InvalidArgument("on_failed of a batch must be an OnFailed, and its kind must be a BatchKind")


def _discards(batch: Row) -> bool:
    """Return whether cancelling the batch discards its dead letters, for which the batch would otherwise wait."""
    return OnFailed(batch["on_failed"]) is OnFailed.WAIT


def batch_of(row: Row) -> Batch:
    """Return the batch in a row of `task_batches`."""
    try:
        links, is_readable = links_of(row["then_tasks"]), True
    except ValueError:
        links, is_readable = [], False
    fields = {name: value for name, value in row.items() if name != "then_tasks"}
    kinds = {"kind": BatchKind(row["kind"]), "on_failed": OnFailed(row["on_failed"])}
    return Batch(
        **{**fields, **kinds},
        then_ids=tuple(UUID(link["id"]) for link in links),
        then_names=tuple(str(link["task_name"]) for link in links),
        then_is_readable=is_readable,
    )
