"""Heartbeats, and the ways a claim ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import ends, table_locks, tasks
from ..database.statements.grammar import Builder
from ..database.target import Target
from ..errors import InvalidArgument, LeaseLost
from ..model import ENDS_CLAIM, STATUS_AFTER, Claim, EventType, Outcome, duration
from ..model.running import Progress
from ..payload.parameters import sanitize
from .rows import event_data
from .transactions import Transactions

_BEGIN = {
    (True, True): Begin.SINGLE,
    (True, False): Begin.WRITE,
    (False, True): Begin.SINGLE_ASYNCHRONOUS,
    (False, False): Begin.ASYNCHRONOUS,
}
"""The kind of transaction: the first value says if it is durable, the second if it is one statement."""
A_MOMENT: Final = {"lock_timeout": "50ms", "statement_timeout": None}
"""It is long enough to stand in line for the row of a batch whose ends other workers commit one after the other."""
NO_PROGRESS: Final[Mapping[UUID, Progress]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Beat:
    """One lease that is still the worker's when a heartbeat comes by."""

    lease_expires_at: datetime | None
    """The moment at which it ends now. None: another transaction has it locked, so it was neither extended nor lost."""
    cancel_requested: bool


class Finishes(Protocol):
    """A store whose `finish` these verbs call: a subclass that overrides it sees the ends that they write."""

    def finish(self, outcomes: Sequence[Outcome], *, using: object = None) -> frozenset[UUID]: ...


def compile_ends(store: Transactions) -> None:
    """Compile what a worker with its first claims in hand will run, while nothing waits for it."""
    store.dialect.warm(ends.heartbeat, ends.end)


def complete(store: Finishes, claim: Claim, result: str | None = None, *, using: object = None) -> None:
    """End the claim: Completed, with the encoded result. Raises LeaseLost if it is not the worker's any more."""
    _finish_one(store, Outcome(claim=claim, event_type=EventType.COMPLETED, result=result), using)


def fail(store: Finishes, claim: Claim, error: str, *, using: object = None) -> None:
    """End the claim: Failed, a dead letter; `error` is one line. Raises LeaseLost."""
    data = {"error": error}
    _finish_one(store, Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data), using)


def release(
    store: Finishes, claim: Claim, *, delay: timedelta | float = 0, reason: str = "", using: object = None
) -> None:
    """Give the task back unfinished, due after `delay`; no attempt is used. Raises LeaseLost."""
    data = {"reason": reason} if reason else {}
    outcome = Outcome(claim=claim, event_type=EventType.RELEASED, delay=duration(delay, "delay"), data=data)
    _finish_one(store, outcome, using)


def finish(
    store: Transactions, outcomes: Sequence[Outcome], *, durable: bool = True, waits: bool = True, using: object = None
) -> frozenset[UUID]:
    """End many claims of one worker, each in its own way, as one statement.

    Returns the ids of those that were lost: for them nothing was changed and no event written. Unless `durable`,
    PostgreSQL answers before the commit is on disk: a crash of the server, not of this process, may take the ends of its
    last moments back, and those tasks run again when their leases have run out. SQLite does so on a worker's own connections.
    `waits` False: a row that another session keeps locked for longer than two seconds ends the call with an error that
    `is_locked_out` knows. It is not waited for again.
    """
    if not outcomes:
        return frozenset()
    _check(outcomes)

    def done(target: Target) -> frozenset[UUID] | None:
        lost = frozenset(outcome.claim.id for outcome in outcomes if not _has_ended(target, outcome))
        return lost if len(lost) < len(outcomes) else None

    # The end of a task that makes way for another is told in the same transaction.
    alone = not any(outcome.claim.makes_way for outcome in outcomes)
    return store.run(
        lambda target: _end(store, target, ends.end, outcomes),
        using=using,
        begin=_BEGIN[durable, alone],
        done=done,
        gives_up=None if waits else store.is_locked_out,
    )


def finish_unlocked(
    store: Transactions, outcomes: Sequence[Outcome], *, durable: bool = True
) -> tuple[frozenset[UUID], frozenset[UUID]]:
    """End the claims whose lease and task no other session has locked, as `finish` does.

    Returns the ids of those that were lost, and of those that are locked: they have not ended yet. Any other row, such as that
    of a batch, is waited for a moment: an error that `is_locked_out` knows ends the call, and nothing has ended.
    """
    if not outcomes:
        return frozenset(), frozenset()
    _check(outcomes)

    def work(target: Target) -> tuple[frozenset[UUID], frozenset[UUID]]:
        if not target.dialect.one_writer:
            target.run(table_locks.limits, A_MOMENT)
        left = _end(store, target, ends.end_unlocked, outcomes)
        if not left:
            return frozenset(), frozenset()
        values = store.values(target, worker_id=outcomes[0].claim.worker_id)
        rest = [outcome for outcome in outcomes if outcome.claim.id in left]
        rows = [(outcome.claim.id, outcome.claim.lease_token) for outcome in rest]
        locked = frozenset(row["id"] for row in target.run(ends.held, values, rows))
        # An earlier try may have ended them, if its COMMIT was not answered.
        ended = {outcome.claim.id for outcome in rest if _has_ended(target, outcome)}
        return left - locked - ended, locked

    return store.run(work, begin=_BEGIN[durable, False], gives_up=store.is_locked_out)


def begin(store: Transactions, claim: Claim) -> bool:
    """Write down that the claim's handler begins now; returns whether the claim still holds.

    For claims made with `says_begin`. A crash of the server may take that back.
    """
    values = {"task_id": claim.id, "lease_token": claim.lease_token, "worker_id": claim.worker_id}
    return bool(store.run(lambda target: target.run(ends.begin, values), begin=Begin.SINGLE_ASYNCHRONOUS))


def heartbeat(
    store: Transactions,
    claims: Sequence[Claim],
    *,
    progress: Mapping[UUID, Progress] = NO_PROGRESS,
    using: object = None,
) -> dict[UUID, Beat]:
    """Extend the leases of these claims of one worker by their own length from now; a missing id was lost.

    Never waits for a row that another session has locked: see `Beat.lease_expires_at`. `progress` has that of their tasks, which
    the same statement writes. A task that is missing there keeps the progress that it has.
    """
    if not claims:
        return {}
    if len({claim.worker_id for claim in claims}) > 1:
        raise InvalidArgument("heartbeat() takes the claims of one worker")
    rows = [(claim.id, claim.lease_token, claim.lease_seconds, *_cells(progress.get(claim.id))) for claim in claims]

    def work(target: Target) -> dict[UUID, Beat]:
        values = store.values(target, worker_id=claims[0].worker_id)
        with target.atomic():
            beaten = target.run(ends.heartbeat, values, rows)
        return {row["id"]: Beat(row["lease_expires_at"], row["cancel_requested_at"] is not None) for row in beaten}

    # At worst the lease ends as if it had not been extended.
    return store.run(work, using=using, begin=Begin.SINGLE_ASYNCHRONOUS)


def _cells(progress: Progress | None) -> tuple[float | None, str | None]:
    return (None, None) if progress is None else (progress.fraction, progress.note)


def _finish_one(store: Finishes, outcome: Outcome, using: object) -> None:
    if store.finish([outcome], using=using):
        raise LeaseLost(
            f"task {outcome.claim.id} is no longer held under lease token {outcome.claim.lease_token} by worker "
            f"{outcome.claim.worker_id}; nothing was written"
        )


def _end(store: Transactions, target: Target, end: Builder, outcomes: Sequence[Outcome]) -> frozenset[UUID]:
    """End the claims by this statement; returns the ids of those that it did not end."""
    values = store.values(target, worker_id=outcomes[0].claim.worker_id)
    rows = [_row(outcome) for outcome in outcomes]
    with target.atomic():
        ended = target.run(end, values, rows)
    store.wake(target, {row["queue"] for row in ended if row["limits"] or row["partition_key"] is not None})
    if len(ended) == len(outcomes):
        return frozenset()
    return frozenset(outcome.claim.id for outcome in outcomes) - {row["id"] for row in ended}


def _has_ended(target: Target, outcome: Outcome) -> bool:
    claim = outcome.claim
    values = {"task_id": claim.id, "lease_token": claim.lease_token, "worker_id": claim.worker_id}
    return [row["event_type"] for row in target.run(tasks.ended_by, values)] == [outcome.event_type]


def _check(outcomes: Sequence[Outcome]) -> None:
    workers = {outcome.claim.worker_id for outcome in outcomes}
    if len(workers) > 1 or len({outcome.claim.id for outcome in outcomes}) < len(outcomes):
        raise InvalidArgument("finish() takes the outcomes of one worker, one for each task")
    if wrong := {outcome.event_type for outcome in outcomes} - ENDS_CLAIM:
        raise InvalidArgument(f"{', '.join(sorted(wrong))} ends no claim; a worker's outcome must")


def _row(outcome: Outcome) -> tuple[object, ...]:
    data = outcome.data
    if outcome.claim.recovery_attempts and outcome.event_type is not EventType.RELEASED:
        data = {**data, "recovery_attempts": 0}  # forgiven, and said where it changes something
    if outcome.error is not None and "error" not in data:
        data = {**data, "error": outcome.error}  # what the row says, its event says too
    return (
        outcome.claim.id,
        outcome.claim.lease_token,
        *_WRITTEN[outcome.event_type],
        outcome.available_at,
        outcome.delay.total_seconds(),
        None if outcome.error is None else sanitize(outcome.error),
        outcome.result,
        event_data(data),
        outcome.claim.partition_key,
    )


_WRITTEN = {kind: (kind.value, STATUS_AFTER[kind].value) for kind in ENDS_CLAIM}
"""The event type and the status of each end, as they are stored."""
