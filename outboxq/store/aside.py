"""Rows that cannot be claimed or used: each ends alone, and its neighbours run.

The tables refuse such rows; what is here is for those that got in all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from ..column_types import UnreadableInstant
from ..dialects import Begin
from ..model import LONGEST, Claim, EventType, Outcome
from ..payload import sanitize
from ..target import Target
from .claims import Claims

log = logging.getLogger("outboxq.store")

_AT_ONCE = 500
_LONGEST = LONGEST.total_seconds()
Broken = tuple[int, Exception]
"""An outbox entry that cannot be claimed, and why."""


class _Tried(Exception):
    """Rolls back a claim that succeeded."""


class Aside(Claims):
    def _usable(self, claims: list[Claim], using: object) -> list[Claim]:
        """Fail those of the claims whose values no worker can use, and return the others."""
        broken = [(claim, why) for claim in claims if (why := _complaint(claim)) is not None]
        if not broken:
            return claims
        outcomes = []
        for claim, why in broken:
            error = sanitize(f"UnusableRow: its {why}; outboxq did not write that")
            log.error("task %s is failed: %s", claim.id, error)
            outcomes.append(Outcome(claim=claim, event_type=EventType.FAILED, error=error, data={"error": error}))
        self.finish(outcomes, using=using)
        bad = {claim.id for claim, _ in broken}
        return [claim for claim in claims if claim.id not in bad]

    def _set_aside(self, worker_id: UUID) -> int:
        """Find the due entries that a claim fails at, and fail their tasks; returns how many that were.

        Each is found by claims that are rolled back, of half as many entries each time. An error that need not be the row's own
        (a CHECK, a trigger of somebody's) counts only where the claim of another entry succeeds: else every task would be
        failed for what an administrator has to mend.
        """
        after = 0
        while entries := self._due_entries(after):
            broken = self._broken_among(entries, worker_id)
            if len(broken) == len(entries):
                broken = [(entry, error) for entry, error in broken if self._is_the_rows(error)]
            for entry, error in broken:
                self._end_entry(entry, error)
            if broken:
                return len(broken)
            after = entries[-1]
        return 0

    def _may_be_a_row(self, error: Exception) -> bool:
        return isinstance(error, IntegrityError) or self._is_the_rows(error)

    def _is_the_rows(self, error: Exception) -> bool:
        own = isinstance(error, ValueError | TypeError | OverflowError | AttributeError)
        return own or self.dialect.is_bad_value(error)

    def _due_entries(self, after: int) -> list[int]:
        def work(target: Target) -> list[int]:
            values = self._values(target, after=after, limit=_AT_ONCE)
            return [row["entry_id"] for row in target.dialect.statements.due_entries.run(target.execute, values)]

        return self._run(work, begin=Begin.READ)

    def _broken_among(self, entries: Sequence[int], worker_id: UUID) -> list[Broken]:
        error = self._try(entries, worker_id)
        if error is None:
            return []
        if len(entries) == 1:
            return [(entries[0], error)]
        half = len(entries) // 2
        return self._broken_among(entries[:half], worker_id) + self._broken_among(entries[half:], worker_id)

    def _try(self, entries: Sequence[int], worker_id: UUID) -> Exception | None:
        """Claim them and take that back; returns why they cannot be claimed. Raises what says nothing of them."""
        try:
            with suppress(_Tried), self._transaction(Begin.WRITE) as target:
                values = self._values(target, worker_id=worker_id)
                target.dialect.statements.claim_entries.run(target.execute, values, [(entry,) for entry in entries])
                raise _Tried
        except Exception as error:
            if not self._may_be_a_row(error):
                raise
            return error
        return None

    def _end_entry(self, entry: int, error: Exception) -> None:
        cause = str(getattr(error, "orig", None) or error).splitlines()
        said = sanitize(f"UnusableRow: it cannot be claimed: {cause[0] if cause else type(error).__name__}", limit=300)

        def end(target: Target) -> list[object]:
            values = self._values(target, entry_id=entry, error=said)
            with target.atomic():
                return [row["id"] for row in target.dialect.statements.set_aside.run(target.execute, values)]

        def forget(target: Target) -> list[object]:
            values = {"entry_id": entry}
            return [row["id"] for row in target.dialect.statements.forget_entry.run(target.execute, values)]

        try:
            ended = self._run(end)
        except Exception:
            log.exception(
                "outbox entry %d cannot be claimed, and its task cannot be failed; the entry is deleted", entry
            )
            self._run(forget)
        else:
            log.error("outbox entry %d of task %s is set aside: %s", entry, *(ended or ["?"]), said)


def _complaint(claim: Claim) -> str | None:
    """Return which value no worker can use; None: all are fine."""
    try:
        if (
            type(claim.id) is type(claim.pipeline_execution_id) is UUID
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
    for name in ("created_at", "first_started_at"):
        if isinstance(getattr(claim, name), UnreadableInstant):
            return f"{name} is {getattr(claim, name)}"
    return f"lease or timeout is {claim.lease_seconds!r} or {claim.timeout_seconds!r} seconds"
