"""Interruptions: errors from outside that end the transaction of a handler. The attempt is not counted."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..context import UnitOfWork
from ..model import INTERRUPTED, MAX_INTERRUPTIONS, Claim, EventType, Outcome, Retry
from ..model.records import OUTCOMES, fields_of
from ..payload.parameters import sanitize
from ..store import Store
from ..store.failure_log import exception_field, sentence
from .executor import released
from .leases import ActiveClaim

log = logging.getLogger("outboxq.worker")

FIRST_DELAY = timedelta(seconds=1)
"""The delay after the first interruption. It doubles each time: 1, 2, 4, 8 and 16 s, so a server has half a minute to return."""
FAILURES = frozenset({EventType.RETRY_SCHEDULED, EventType.FAILED})
"""The events of an attempt that has failed."""
_CAUSE_BYTES = 500


def interrupting_error(active: ActiveClaim, outcome: Outcome, unit: UnitOfWork) -> BaseException | None:
    """Return the handler's error if one from outside is behind it.

    An end that the handler asked for, such as Retry, is never an interruption.
    """
    error = active.context.error
    if outcome.event_type not in FAILURES or error is None or isinstance(error, Retry):
        return None
    return error if unit.was_interrupted(error) else None


def outcome_of_interruption(store: Store, claim: Claim, error: BaseException) -> Outcome | None:
    """Return the release that ends the claim of a transactional task whose transaction `error` ended from outside.

    No attempt is used, and the delay is longer each time. The sixth time in a row counts as a failed attempt, and None is
    returned, since the task itself may break its connection, for instance by a pause that the server takes for idleness.
    Waits up to half a minute for the database.
    """
    try:
        before = store.interruptions(claim)
    except Exception as refused:  # noqa: BLE001 - sorted out here
        if not store.may_pass(refused):
            what = "its earlier interruptions could not be read, so this one counts as a failed attempt"
            log.warning(
                "%s: %s: %s", claim, what, sentence(refused), extra=fields_of(claim, exception=exception_field(refused))
            )
            return None
        before = 0  # the release waits for the database as well
    if before >= MAX_INTERRUPTIONS:
        return None
    times, delay, cause = before + 1, FIRST_DELAY * 2**before, sentence(error)
    log.warning(
        "%s: its transaction was interrupted; unless it was committed, no attempt is used, and it runs again in %g s "
        "(%d of %d times in a row): %s",
        claim,
        delay.total_seconds(),
        times,
        MAX_INTERRUPTIONS,
        cause,
        extra=fields_of(claim, outcome=OUTCOMES[EventType.RELEASED], exception=exception_field(error)),
    )
    return released(claim, INTERRUPTED, delay=delay, times=times, cause=sanitize(cause, limit=_CAUSE_BYTES))
