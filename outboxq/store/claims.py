"""Heartbeats, the ways a claim ends, and taking back the leases of dead workers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from ..dialects import Begin
from ..errors import InvalidArgument, LeaseLost
from ..model import ENDS_CLAIM, MAX_RECOVERIES, STATUS_AFTER, Claim, EventType, Outcome, TaskStatus, duration
from ..payload import sanitize
from ..target import Target
from .base import Transactions, event_data, positive

log = logging.getLogger("outboxq.store")

_BEGIN = {
    (True, True): Begin.SINGLE,
    (True, False): Begin.WRITE,
    (False, True): Begin.SINGLE_ASYNCHRONOUS,
    (False, False): Begin.ASYNCHRONOUS,
}
"""By whether it is to be durable, and whether it is one statement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """One lease that a heartbeat extended."""

    id: UUID
    lease_expires_at: datetime
    cancel_requested: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """One task taken back from a dead worker: Ready again, or ended."""

    id: UUID
    status: TaskStatus
    recovery_attempts: int


class Claims(Transactions):
    def compile_ends(self) -> None:
        """Compile what a worker with its first claims in hand will run, while nothing waits for it."""
        for plan in (self.dialect.statements.heartbeat, self.dialect.statements.end):
            plan.compile()

    def complete(self, claim: Claim, result: str | None = None, *, using: object = None) -> None:
        """End the claim: Completed, with the encoded result. Raises LeaseLost if it is not the worker's any more."""
        self._finish_one(Outcome(claim=claim, event_type=EventType.COMPLETED, result=result), using)

    def fail(self, claim: Claim, error: str, *, using: object = None) -> None:
        """End the claim: Failed, a dead letter; `error` is one line. Raises LeaseLost."""
        data = {"error": error}
        self._finish_one(Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data), using)

    def release(self, claim: Claim, *, delay: timedelta | float = 0, reason: str = "", using: object = None) -> None:
        """Give the task back unfinished, due after `delay`; no attempt is used. Raises LeaseLost."""
        data = {"reason": reason} if reason else {}
        self._finish_one(
            Outcome(claim=claim, event_type=EventType.RELEASED, delay=duration(delay, "delay"), data=data), using
        )

    def finish(self, outcomes: Sequence[Outcome], *, durable: bool = True, using: object = None) -> frozenset[UUID]:
        """End many claims of one worker, each in its own way, as one statement.

        Returns the ids of those that were lost: for them nothing was changed and no event written. Unless `durable`,
        PostgreSQL answers before the commit is on disk: a crash of the server, not of this process, may take the ends of its
        last moments back; those tasks run again when their leases have run out. SQLite does so on a worker's own connections.
        """
        workers = {outcome.claim.worker_id for outcome in outcomes}
        if not outcomes:
            return frozenset()
        if len(workers) > 1 or len({outcome.claim.id for outcome in outcomes}) < len(outcomes):
            raise InvalidArgument("finish() takes the outcomes of one worker, one for each task")
        if wrong := {outcome.event_type for outcome in outcomes} - ENDS_CLAIM:
            raise InvalidArgument(f"{', '.join(sorted(wrong))} ends no claim; a worker's outcome must")

        def work(target: Target) -> frozenset[UUID]:
            claims = [outcome.claim for outcome in outcomes]
            values = self._values(target, worker_id=claims[0].worker_id)
            rows = [_end(outcome) for outcome in outcomes]
            with target.atomic():
                ended = target.dialect.statements.end.run(target.execute, values, rows)
            self._wake(target, {row["queue"] for row in ended if row["limits"] or row["partition_key"] is not None})
            if len(ended) == len(outcomes):
                return frozenset()
            return frozenset(outcome.claim.id for outcome in outcomes) - {row["id"] for row in ended}

        def done(target: Target) -> frozenset[UUID] | None:
            lost = frozenset(outcome.claim.id for outcome in outcomes if not self._has_ended(target, outcome))
            return lost if len(lost) < len(outcomes) else None

        # The end of a task that makes way for another is told in the same transaction.
        alone = not any(outcome.claim.makes_way for outcome in outcomes)
        return self._run(work, using=using, begin=_BEGIN[durable, alone], done=done)

    def heartbeat(self, claims: Sequence[Claim], *, using: object = None) -> dict[UUID, Beat]:
        """Extend the leases of these claims of one worker by their own length from now; a missing id was lost."""
        if not claims:
            return {}
        if len({claim.worker_id for claim in claims}) > 1:
            raise InvalidArgument("heartbeat() takes the claims of one worker")
        rows = [(claim.id, claim.lease_token, claim.lease_seconds) for claim in claims]

        def work(target: Target) -> dict[UUID, Beat]:
            values = self._values(target, worker_id=claims[0].worker_id)
            with target.atomic():
                beaten = target.dialect.statements.heartbeat.run(target.execute, values, rows)
            return {
                row["id"]: Beat(
                    id=row["id"],
                    lease_expires_at=row["lease_expires_at"],
                    cancel_requested=row["cancel_requested_at"] is not None,
                )
                for row in beaten
            }

        return self._run(
            work, using=using, begin=Begin.SINGLE_ASYNCHRONOUS
        )  # at worst the lease ends as if it had not been beaten

    def recover(
        self, limit: int = 100, *, max_recoveries: int = MAX_RECOVERIES, using: object = None
    ) -> list[Recovered]:
        """Take back up to `limit` expired leases: `task_reset`, or `task_abandoned` after `max_recoveries` of a task.

        Every worker calls it; two at once pass over each other's rows. Looks only at the lease, never at a worker registry.
        """
        positive(limit)
        if max_recoveries < 0:
            raise InvalidArgument("max_recoveries must be at least 0")
        abandonment = f"ABANDONED: the lease expired again after {max_recoveries} recoveries"

        def work(target: Target) -> list[Recovered]:
            values = self._values(target, limit=limit, max_recoveries=max_recoveries, abandonment=abandonment)
            with target.atomic():
                rows = target.dialect.statements.recover.run(target.execute, values)
            # The others are in the outbox again, which tells by itself.
            ended = [row for row in rows if row["partition_key"] is not None or row["status"] != TaskStatus.READY]
            self._wake(target, {row["queue"] for row in ended})
            return [
                Recovered(id=row["id"], status=TaskStatus(row["status"]), recovery_attempts=row["recovery_attempts"])
                for row in rows
            ]

        if using is None and self.dialect.reads_before_writing and not self._any_expired():
            return []
        recovered = self._run(work, using=using)
        if recovered and using is None:
            self._forget_sleepers()  # who died at work seldom died alone
        return recovered

    def _finish_one(self, outcome: Outcome, using: object) -> None:
        if self.finish([outcome], using=using):
            raise LeaseLost(
                f"task {outcome.claim.id} is no longer held under lease token {outcome.claim.lease_token} by worker "
                f"{outcome.claim.worker_id}; nothing was written"
            )

    def _has_ended(self, target: Target, outcome: Outcome) -> bool:
        claim = outcome.claim
        values = {"task_id": claim.id, "lease_token": claim.lease_token, "worker_id": claim.worker_id}
        ended = target.dialect.statements.ended_by.run(target.execute, values)
        return [row["event_type"] for row in ended] == [outcome.event_type]

    def _any_expired(self) -> bool:
        return self._run(
            lambda target: bool(target.dialect.statements.any_expired.run(target.execute, self._values(target))),
            begin=Begin.READ,
        )


def _end(outcome: Outcome) -> tuple[object, ...]:
    return (
        outcome.claim.id,
        outcome.claim.lease_token,
        *_WRITTEN[outcome.event_type],
        outcome.available_at,
        outcome.delay.total_seconds(),
        None if outcome.error is None else sanitize(outcome.error),
        outcome.result,
        event_data(outcome.data),
        outcome.claim.partition_key,
    )


_WRITTEN = {kind: (kind.value, STATUS_AFTER[kind].value) for kind in ENDS_CLAIM}
"""Of each end its event's type and the status it leads to, as they are stored."""
