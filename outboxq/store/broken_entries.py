"""Rows that cannot be claimed or used: each ends alone, and its neighbours run.

The tables refuse such rows; what is here is for those that got in all the same.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from ..database.column_types import UnreadableInstant
from ..database.dialects import Begin, Row
from ..database.statements import broken_entries as statements
from ..database.statements import table_locks
from ..database.target import Target
from ..model import LONGEST, Claim, EventType, Outcome
from ..model.records import OUTCOMES, fields_of
from ..payload.parameters import sanitize
from .ends import A_MOMENT, finish
from .failure_log import say
from .transactions import Transactions

log = logging.getLogger("outboxq.store")

_AT_ONCE = 500
_LONGEST = LONGEST.total_seconds()
_PAUSE = 10
"""A search in which all failed alike is followed by a pause that is so many times as long: it takes up to 1,000 transactions."""


class Broken(NamedTuple):
    """An outbox entry that cannot be claimed, and why."""

    entry: int
    error: Exception


class _Tried(Exception):
    """Rolls back a claim that succeeded."""


class Search:
    """The moment (monotonic) from which entries that no claim can take may be searched for again."""

    def __init__(self) -> None:
        self.again_at = -math.inf


def usable(store: Transactions, claims: list[Claim], using: object) -> list[Claim]:
    """Fail those of the claims whose values no worker can use, and return the others."""
    broken = [(claim, why) for claim in claims if (why := _complaint(claim)) is not None]
    if not broken:
        return claims
    outcomes = []
    for claim, why in broken:
        error = sanitize(f"UnusableRow: its {why}; outboxq did not write that")
        log.error("task %s is failed: %s", claim.id, error, extra=fields_of(claim, outcome=OUTCOMES[EventType.FAILED]))
        outcomes.append(Outcome(claim=claim, event_type=EventType.FAILED, error=error, data={"error": error}))
    try:
        finish(store, outcomes, using=using)
    except Exception as error:
        if using is not None:
            raise
        what = "tasks that no worker can use could not be failed; they come again when their leases have ended"
        say(log, logging.ERROR, what, error)
    bad = {claim.id for claim, _ in broken}
    return [claim for claim in claims if claim.id not in bad]


def set_aside(store: Transactions, search: Search, worker_id: UUID) -> int:
    """Fail the tasks of those due entries that no claim can take; returns how many.

    Entries are tried in claims that are rolled back, half as many each time. An error that need not be the row's own (a
    CHECK, a trigger or a listener of another owner) counts only where the claim of another entry succeeds: else every task
    would be failed for what an administrator has to mend.
    """
    if time.monotonic() < search.again_at:
        return 0
    after, began = 0, time.monotonic()
    while entries := _due_entries(store, after):
        failed, claimable = _broken_among(store, entries, worker_id)
        broken = failed if claimable else [one for one in failed if store.dialect.is_bad_value(one.error)]
        for one in broken:
            _end_entry(store, one)
        if broken:
            return len(broken)
        if len(failed) == len(entries) and len({type(one.error) for one in failed}) == 1:
            search.again_at = time.monotonic() + _PAUSE * (time.monotonic() - began)
            return 0  # it is not the rows
        after = entries[-1]
    return 0


def perhaps_the_row(store: Transactions, error: Exception) -> bool:
    """Return whether a row may be at fault. Whether one is, only the claim of another can show, or `is_bad_value`."""
    own = isinstance(error, IntegrityError | ValueError | TypeError | OverflowError | AttributeError)
    return own or store.dialect.is_bad_value(error)


def cancel_expired(store: Transactions, worker_id: UUID) -> int:
    """Cancel expired tasks of batches, each batch by itself. Where its row is locked, claims pass over them for half a minute.

    Returns the number of tasks that no longer stand in the way of claims.
    """
    batches: dict[UUID, list[tuple[int]]] = {}
    for row in store.read(statements.expired_in_batches, limit=_AT_ONCE):
        batches.setdefault(row["batch_id"], []).append((row["entry_id"],))
    return sum(_cancel_or_put_off(store, entries, worker_id) for entries in batches.values())


def _cancel_or_put_off(store: Transactions, entries: Sequence[tuple[int]], worker_id: UUID) -> int:
    """Cancel the expired tasks of these entries of one batch, or put them off; returns how many it was."""

    def cancel(target: Target) -> int:
        target.run(table_locks.limits, A_MOMENT)
        return len(target.run(statements.claim_entries, store.values(target, worker_id=worker_id), entries))

    try:
        return store.run(cancel, gives_up=store.is_locked_out)
    except Exception as error:
        if not store.is_locked_out(error):
            raise
    return len(store.run(lambda target: target.run(statements.put_off, store.values(target), entries)))


def _due_entries(store: Transactions, after: int) -> list[int]:
    return [row["entry_id"] for row in store.read(statements.due_entries, after=after, limit=_AT_ONCE)]


def _broken_among(store: Transactions, entries: Sequence[int], worker_id: UUID) -> tuple[list[Broken], bool]:
    """Return those that cannot be claimed, and whether any other can: one that is passed over proves nothing.

    Raises what says nothing of the entries.
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
    """Claim the entries and take that back; returns whether there was one to be had."""
    taken: list[Row] = []
    with suppress(_Tried), store.transaction(Begin.WRITE) as target:
        values = store.values(target, worker_id=worker_id)
        taken = target.run(statements.claim_entries, values, [(entry,) for entry in entries])
        raise _Tried
    return any(row["lease_token"] is not None for row in taken)


def _end_entry(store: Transactions, broken: Broken) -> None:
    entry, error = broken
    cause = str(getattr(error, "orig", None) or error).splitlines()
    complaint = sanitize(f"UnusableRow: it cannot be claimed: {cause[0] if cause else type(error).__name__}", limit=300)

    def end(target: Target) -> list[object]:
        values = store.values(target, entry_id=entry, error=complaint)
        with target.atomic():
            return [row["id"] for row in target.run(statements.set_aside, values)]

    def forget(target: Target) -> list[object]:
        values = {"entry_id": entry}
        return [row["id"] for row in target.run(statements.forget_entry, values)]

    try:
        ended = store.run(end)
    except Exception as refused:
        if not perhaps_the_row(store, refused):
            raise  # the database takes no writes now: the entry stays
        log.exception("outbox entry %d cannot be claimed, and its task cannot be failed; the entry is deleted", entry)
        store.run(forget)
    else:
        fields = {"task_id": str(ended[0]), "outcome": OUTCOMES[EventType.FAILED]} if ended else {}
        log.error("outbox entry %d of task %s is set aside: %s", entry, *(ended or ["?"]), complaint, extra=fields)


def started(taken: Sequence[Row]) -> list[Row]:
    """Return the rows of tasks that run now; the others were stale, or expired."""
    stale = [row for row in taken if row["lease_token"] is None and row["expires_at"] is None]
    if stale:
        log.warning("deleted %d outbox entries of tasks that were not Ready", len(stale))
    return [row for row in taken if row["lease_token"] is not None]


def _complaint(claim: Claim) -> str | None:
    """Return which value no worker can use; None: all are fine."""
    try:
        if (
            type(claim.id) is type(claim.pipeline_execution_id) is UUID
            and type(claim.attempt) is type(claim.recovery_attempts) is int
            and not isinstance(claim.created_at, UnreadableInstant)
            and not isinstance(claim.first_started_at, UnreadableInstant)
            and 0 < claim.lease_seconds <= _LONGEST
            and (claim.timeout_seconds is None or 0 < claim.timeout_seconds <= _LONGEST)
        ):
            return None
    except TypeError:
        pass
    for name in ("id", "pipeline_execution_id"):
        if type(getattr(claim, name)) is not UUID:
            return f"{name} is {getattr(claim, name)!r}"
    for name in ("attempt", "recovery_attempts"):
        if type(getattr(claim, name)) is not int:
            return f"{name} is {getattr(claim, name)!r}"
    for name in ("created_at", "first_started_at"):
        if isinstance(getattr(claim, name), UnreadableInstant):
            return f"{name} is {getattr(claim, name)}"
    return f"lease or timeout is {claim.lease_seconds!r} or {claim.timeout_seconds!r} seconds"
