"""Isolate rows that cannot be claimed or used, so that only the tasks of these rows fail and all other tasks run.

The tables refuse such rows. This module handles rows that were written while the tables lacked their constraints.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from ...database import grammar, queue_order, table_locks
from ...database.column_types import UnreadableInstant
from ...database.dialects import Begin, Row
from ...database.grammar import Columns, Grammar, Relations, Statement, Transition, number, sql_literal
from ...database.tables import task_executions, task_outbox
from ...database.target import Target
from ...model import LONGEST, Claim, EventType, Outcome, TaskStatus
from ...model.records import OUTCOMES, fields_of
from ...payload.parameters import sanitize
from .. import task_rows
from ..arguments import parameters
from ..failure_log import say
from ..transactions import Transactions
from . import claim_sql
from .ends import A_MOMENT, finish

log = logging.getLogger("outboxq.store")

_AT_ONCE = 500
_LONGEST = LONGEST.total_seconds()
_PAUSE = 10
"""The pause after a search in which all claims failed in the same way, as a multiple of the search's duration. A search
takes up to 1,000 transactions.
"""


class Broken(NamedTuple):
    """An outbox entry that cannot be claimed, with the error that its claim raised."""

    entry: int
    error: Exception


class _Tried(Exception):
    """Raised to roll back a claim that succeeded."""


class Search:
    """The monotonic time after which the search for entries that cannot be claimed may run again."""

    def __init__(self) -> None:
        self.again_at = -math.inf


def usable(store: Transactions, claims: list[Claim], using: object) -> list[Claim]:
    """Fail the claims whose values no worker can use, and return the others."""
    broken = [(claim, why) for claim in claims if (why := _complaint(claim)) is not None]
    if not broken:
        return claims
    outcomes = []
    for claim, why in broken:
        error = sanitize(f"UnusableRow: its {why}; outboxq did not write this value")
        fields = fields_of(claim, outcome=OUTCOMES[EventType.FAILED])
        log.error("marking task %s as failed: %s", claim.id, error, extra=fields)
        outcomes.append(Outcome(claim=claim, event_type=EventType.FAILED, error=error, data={"error": error}))
    try:
        finish(store, outcomes, using=using)
    except Exception as error:
        if using is not None:
            raise
        what = (
            "tasks with unusable values could not be marked as failed; they will be recovered when their leases expire"
        )
        say(log, logging.ERROR, what, error)
    bad = {claim.id for claim, _ in broken}
    return [claim for claim in claims if claim.id not in bad]


def set_aside(store: Transactions, search: Search, worker_id: UUID) -> int:
    """Fail the tasks of due entries that cannot be claimed, and return the number of these tasks.

    The entries are claimed together, and the claim is rolled back. After an error, each half of the entries is tried in
    the same way. An error that may have another cause (such as a CHECK, trigger or listener that is not outboxq's)
    counts only if the claim of another entry succeeds. Otherwise, every task would fail because of a fault that an
    administrator has to repair.
    """
    if time.monotonic() < search.again_at:
        return 0
    after, began = 0, time.monotonic()
    while entries := [row["entry_id"] for row in store.run_one(due_entries, after=after, limit=_AT_ONCE)]:
        failed, claimable = _broken_among(store, entries, worker_id)
        broken = failed if claimable else [one for one in failed if store.dialect.is_bad_value(one.error)]
        for one in broken:
            _end_entry(store, one)
        if broken:
            return len(broken)
        if len(failed) == len(entries) and len({type(one.error) for one in failed}) == 1:
            search.again_at = time.monotonic() + _PAUSE * (time.monotonic() - began)
            return 0  # the rows are not the cause
        after = entries[-1]
    return 0


def perhaps_the_row(store: Transactions, error: Exception) -> bool:
    """Return whether a row may have caused the error. Only a successful claim of another row, or `is_bad_value`, proves
    this.
    """
    own = isinstance(error, IntegrityError | ValueError | TypeError | OverflowError | AttributeError)
    return own or store.dialect.is_bad_value(error)


def cancel_expired(store: Transactions, worker_id: UUID) -> int:
    """Cancel expired tasks of batches, one batch at a time. If a batch's row is locked, postpone the batch's tasks by
    half a minute.

    Returns the number of tasks that no longer block claims.
    """
    batches: dict[UUID, list[tuple[int]]] = {}
    for row in store.run_one(expired_in_batches, limit=_AT_ONCE):
        batches.setdefault(row["batch_id"], []).append((row["entry_id"],))
    return sum(_cancel_or_put_off(store, entries, worker_id) for entries in batches.values())


def _cancel_or_put_off(store: Transactions, entries: Sequence[tuple[int]], worker_id: UUID) -> int:
    """Cancel or postpone the expired tasks of these entries, which all belong to one batch, and return the number of
    tasks.
    """

    def cancel(target: Target) -> int:
        target.run(table_locks.limits, A_MOMENT)
        return len(target.run(claim_entries, store.values(target, worker_id=worker_id), entries))

    try:
        return store.run(cancel, gives_up=store.is_locked_out)
    except Exception as error:
        if not store.is_locked_out(error):
            raise
    return len(store.run(lambda target: target.run(put_off, store.values(target), entries)))


def _broken_among(store: Transactions, entries: Sequence[int], worker_id: UUID) -> tuple[list[Broken], bool]:
    """Return the entries that cannot be claimed, and whether any other entry can be claimed. Skipped entries are
    ignored. An error that the entries did not cause is raised again.
    """
    try:
        return [], _claims_any(store, entries, worker_id)
    except Exception as error:
        if not perhaps_the_row(store, error):
            raise
        if len(entries) == 1:
            return [Broken(entries[0], error)], False
    half = len(entries) // 2
    first, one = _broken_among(store, entries[:half], worker_id)
    second, other = _broken_among(store, entries[half:], worker_id)
    return first + second, one or other


def _claims_any(store: Transactions, entries: Sequence[int], worker_id: UUID) -> bool:
    """Claim the entries, roll the claim back, and return whether a task could be claimed."""
    taken: list[Row] = []
    with suppress(_Tried), store.transaction(Begin.WRITE) as target:
        values = store.values(target, worker_id=worker_id)
        taken = target.run(claim_entries, values, [(entry,) for entry in entries])
        raise _Tried
    return any(row["lease_token"] is not None for row in taken)


def _end_entry(store: Transactions, broken: Broken) -> None:
    entry, error = broken
    cause = str(getattr(error, "orig", None) or error).splitlines()
    complaint = sanitize(f"UnusableRow: it cannot be claimed: {cause[0] if cause else type(error).__name__}", limit=300)

    def end(target: Target) -> list[Row]:
        with target.atomic():
            return target.run(fail_entry, store.values(target, entry_id=entry, error=complaint))

    try:
        ended = store.run(end)
    except Exception as refused:
        if not perhaps_the_row(store, refused):
            raise  # the database is not accepting writes now, so the entry is kept
        log.exception("deleting outbox entry %d, which cannot be claimed; its task cannot be marked as failed", entry)
        store.run(lambda target: target.run(forget_entry, {"entry_id": entry}))
    else:
        task_id = ended[0]["id"] if ended else "?"
        fields = {"task_id": str(task_id), "outcome": OUTCOMES[EventType.FAILED]} if ended else {}
        log.error("outbox entry %d of task %s is set aside: %s", entry, task_id, complaint, extra=fields)


def started(taken: Sequence[Row]) -> list[Row]:
    """Return the rows of the tasks that are now running. The other rows were stale, or their tasks had expired."""
    stale = [row for row in taken if row["lease_token"] is None and row["expires_at"] is None]
    if stale:
        log.warning("deleted %d outbox entries of tasks that were not Ready", len(stale))
    return [row for row in taken if row["lease_token"] is not None]


def _complaint(claim: Claim) -> str | None:
    """Return a description of the value that no worker can use; None if all values are usable."""
    with suppress(TypeError):
        if (
            type(claim.id) is type(claim.pipeline_execution_id) is UUID
            and type(claim.attempt) is type(claim.recovery_attempts) is int
            and not isinstance(claim.created_at, UnreadableInstant)
            and not isinstance(claim.first_started_at, UnreadableInstant)
            and 0 < claim.lease_seconds <= _LONGEST
            and (claim.timeout_seconds is None or 0 < claim.timeout_seconds <= _LONGEST)
        ):
            return None
    for name, kind in {"id": UUID, "pipeline_execution_id": UUID, "attempt": int, "recovery_attempts": int}.items():
        if type(value := getattr(claim, name)) is not kind:
            return f"{name} is {value!r}"
    for name in ("created_at", "first_started_at"):
        if isinstance(value := getattr(claim, name), UnreadableInstant):
            return f"{name} is {value}"
    return f"lease is {claim.lease_seconds!r} s, and its timeout {claim.timeout_seconds!r} s"


ENTRY: Columns = {"entry_id": sa.BigInteger()}
_FIRST_BATCH = sa.literal(UUID(int=1 << 127), sa.Uuid)
"""The smallest batch id. All task ids are smaller."""
_after, _entry_id = parameters(sa.BigInteger, "after", "entry_id")
_error = sa.bindparam("error", type_=sa.Text, required=True)


def due_entries(g: Grammar) -> sa.Select[Any]:
    """Select up to :limit due entries from all queues, starting after the id :after, without locking them."""
    entry = task_outbox.c
    due = sa.select(entry.id.label("entry_id")).where(entry.id > _after, entry.available_at <= g.now)
    return due.order_by(entry.id).limit(grammar.limit)


def claim_entries(g: Grammar) -> Transition:
    """Claim exactly these entries, regardless of their keys and limits. The caller rolls the claim back, or passes only
    entries of expired tasks.

    Skips entries that another transaction has locked.
    """

    def take(r: Relations) -> Statement:
        entry = task_outbox.alias("entry")
        free = sa.select(entry.c.id).where(g.among(entry.c.id, r["given"].c.entry_id)).with_for_update(skip_locked=True)
        picked = free.subquery("picked")
        # A claim reads these columns too.
        read = (task_outbox.c[name].label(f"entry_{name}") for name in ("queue", "partition_key"))
        gone = sa.delete(task_outbox).where(g.among(task_outbox.c.id, picked.c.id))
        return gone.returning(*queue_order.taken(g), *read)

    return claim_sql.claim(g, take, given=ENTRY)


def fail_entry(g: Grammar) -> Transition:
    """Delete the entry :entry_id, and fail its task with :error, because no worker can claim the task. Returns the
    task's id.
    """
    entry, execution = task_outbox.c, task_executions.c

    gone = sa.delete(task_outbox).where(entry.id == _entry_id).returning(entry.task_execution_id.label("id"))

    def failed(r: Relations) -> Statement:
        return (
            sa.update(task_executions)
            .where(g.among(execution.id, r["gone"].c.id), execution.status == sql_literal(TaskStatus.READY))
            .values(status=sql_literal(TaskStatus.FAILED), completed_at=g.now, updated_at=g.now, last_error=_error)
            .returning(*task_rows.CARRIED)
        )

    return Transition(
        steps={
            "gone": lambda _: gone,
            "failed": failed,
            "event": lambda r: task_rows.event(
                g, r["failed"].c, r["failed"], event_type=sql_literal(EventType.FAILED), data=g.json(error=_error)
            ),
            "letter": lambda r: task_rows.dead_letter(g, r["failed"].c, r["failed"], exception=sa.null()),
        },
        returns="gone",
    )


def expired_in_batches(g: Grammar) -> sa.Select[Any]:
    """Select up to :limit due entries of expired batch tasks, with their batch ids, without locking the entries."""
    entry, execution = task_outbox.c, task_executions.c
    # A scalar subquery is always a lookup by key, whereas a join could read all tasks.
    pipeline = sa.select(execution.pipeline_execution_id).where(execution.id == entry.task_execution_id)
    batch = pipeline.correlate(task_outbox).scalar_subquery()
    late = (entry.available_at <= g.now, entry.expires_at <= g.now, batch >= _FIRST_BATCH)
    return (
        sa.select(entry.id.label("entry_id"), batch.label("batch_id"))
        .where(*late)
        .order_by(entry.id)
        .limit(grammar.limit)
    )


def put_off(g: Grammar) -> Transition:
    """Postpone these entries of expired tasks by half a minute. Skips locked entries and tasks."""

    def found(r: Relations) -> Statement:
        entry, execution = task_outbox.alias("entry"), task_executions.alias("execution")
        both = entry.join(execution, execution.c.id == entry.c.task_execution_id)
        given = g.among(entry.c.id, r["given"].c.entry_id)
        return sa.select(entry.c.id).select_from(both).where(given).with_for_update(skip_locked=True)

    due = g.later(g.now, number(30.0))
    return task_rows.rescheduled(g, found, due=due, reason="the row of its batch is locked", given=ENTRY)


def forget_entry(_: Grammar) -> Statement:
    """Delete only the entry :entry_id, because its task can be neither claimed nor marked as failed."""
    entry = task_outbox.c
    return (
        sa.delete(task_outbox).where(entry.id == _entry_id).returning(entry.id)
    )  # the task's id may be the unreadable value
