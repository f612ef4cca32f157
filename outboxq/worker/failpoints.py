"""Named places at which a test can make the process die, freeze or wait. In production, these places have no effect."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Failpoint(StrEnum):
    """The places at which a test can act. The tables must be consistent whatever happens to the process between two of
    these places.
    """

    BEFORE_CLAIM = "before_claim"
    AFTER_CLAIM = "after_claim"
    BEFORE_START = "before_start"
    """A handler thread has taken the claim but has not called the function yet."""
    BEFORE_STEP = "before_step"
    """A step is about to call its function, or a sleep is about to begin."""
    AFTER_STEP = "after_step"
    """The function of a step has returned, but its result is not stored yet."""
    STEP_WRITTEN = "step_written"
    """The result of a step is stored."""
    AFTER_HANDLER = "after_handler"
    BEFORE_FINISH = "before_finish"
    AFTER_FINISH = "after_finish"
    TRANSACTION_BEGUN = "transaction_begun"
    """A transactional task's transaction has begun."""
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_BEAT = "before_beat"
    AFTER_BEAT = "after_beat"
    BEFORE_RECOVERY = "before_recovery"
    AFTER_RECOVERY = "after_recovery"
    BEFORE_RELEASE = "before_release"
    AFTER_RELEASE = "after_release"
    BEFORE_SLEEP = "before_sleep"
    """The claim found nothing more, and the worker is about to wait for work."""
    AFTER_SLEEP = "after_sleep"


OnFailpoint = Callable[[Failpoint], object]
"""A function that is called at each failpoint, in the thread that reaches it."""


def ignore_failpoint(_: Failpoint) -> None:
    """Do nothing, as in production."""
