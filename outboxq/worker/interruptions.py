"""Transactional tasks whose transaction was ended by an error from outside, such as a restart of the server."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..model import INTERRUPTED, MAX_INTERRUPTIONS, Claim, Outcome
from ..payload.parameters import sanitize
from ..store import Store
from ..store.failure_log import sentence
from .executor import released

log = logging.getLogger("outboxq.worker")

FIRST_DELAY = timedelta(seconds=1)
"""The delay after the first interruption. It doubles each time: 1, 2, 4, 8 and 16 s, so a server has half a minute to return."""
_CAUSE_BYTES = 500


class Interruptions:
    """Gives such tasks back without a used attempt, with a longer delay each time. The sixth time in a row is a failed attempt,
    since the task itself may break its connection, for instance by a pause that the server takes for idleness.
    """

    def __init__(self, store: Store) -> None:
        """`store`: the worker's own, so that handlers which use all connections of the application do not block it."""
        self._store = store

    def outcome(self, claim: Claim, error: BaseException) -> Outcome | None:
        """Return the release that ends the claim. None: the interruption counts as a failed attempt.

        Waits up to half a minute for the database.
        """
        try:
            before = self._store.interruptions(claim)
        except Exception as refused:  # noqa: BLE001 - sorted out here
            if not self._store.may_pass(refused):
                log.warning(
                    "task %s (%s): its earlier interruptions could not be read, so this one counts as a failed attempt: %s",
                    claim.id,
                    claim.task_name,
                    sentence(refused),
                )
                return None
            before = 0  # the release waits for the database as well
        if before >= MAX_INTERRUPTIONS:
            return None
        times, delay = before + 1, FIRST_DELAY * 2**before
        cause = sentence(error)
        log.warning(
            "task %s (%s): its transaction was interrupted; unless it was committed, no attempt is used, and it runs again in %g s "
            "(%d of %d times in a row): %s",
            claim.id,
            claim.task_name,
            delay.total_seconds(),
            times,
            MAX_INTERRUPTIONS,
            cause,
        )
        data = {"times": times, "cause": sanitize(cause, limit=_CAUSE_BYTES)}
        return released(claim, INTERRUPTED, delay=delay, **data)
