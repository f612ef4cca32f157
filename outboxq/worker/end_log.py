"""The log line of each attempt's end, and the exception of a failure.

An exception's message may hold personal data. Its traceback holds the message and those of the exceptions that caused it; one
from the database holds the statement with its parameters. So the line has the type and the first line of the message, where
libraries name the mistake and not the values. The whole exception goes along as `exc_info`, as in every Python program that
logs an error: error trackers need it, and an application's own formatter decides whether to print it.
"""

from __future__ import annotations

import logging
from datetime import UTC, timedelta
from typing import Any

from ..context import TaskContext
from ..integration.front_end import FrontEnd
from ..model import EventType, Outcome

log = logging.getLogger("outboxq.worker")

_LEVELS = {EventType.RETRY_SCHEDULED: logging.WARNING, EventType.FAILED: logging.ERROR}
_LONGEST = 300
"""The number of characters of a message that the line shows."""


class EndLog:
    """Logs how attempts end: at INFO, at WARNING if the task is tried again, at ERROR if that was the last attempt.

    Each record has the fields `task_id`, `task`, `queue`, `attempt`, `duration_ms` and `event`. The record of a failure also has
    `exception`, a dict of `type` (module and name) and `message` (its first line).
    """

    def __init__(self, *, tracebacks: bool | None = None, front_end: FrontEnd | None = None) -> None:
        """`tracebacks` True: the record of each failure has `exc_info`. False: none has it. None: that of a last attempt has it, and
        at the level DEBUG all have. `front_end` writes the command `task show` as users type it.
        """
        self._tracebacks = tracebacks
        self._front_end = front_end or FrontEnd()

    def write(self, outcome: Outcome, context: TaskContext, seconds: float) -> None:
        """Log how the attempt ended that ran for so long. `context.error` is what it raised."""
        kind = outcome.event_type
        level = _LEVELS.get(kind, logging.INFO)
        if not log.isEnabledFor(level):
            return
        claim = outcome.claim
        extra: dict[str, Any] = {
            "task_id": str(claim.id),
            "task": claim.task_name,
            "queue": claim.queue,
            "attempt": claim.attempt,
            "duration_ms": round(seconds * 1000, 3),
            "event": str(kind),
        }
        text = f"task {claim.id} ({claim.task_name}): {kind} in {seconds:.3f} s"
        if level == logging.INFO:
            log.log(level, "%s", text + _following(outcome), extra=extra)
            return
        extra["exception"] = {"type": outcome.data.get("exception"), "message": _message(outcome)}
        text += f", attempt {claim.attempt}{_of(context.max_attempts)}{_following(outcome)}"
        text += f": {_first_line(outcome.error or '')}"
        if broken := outcome.data.get("policy_error"):
            text += f"; its retry policy failed: {_first_line(broken)}"
        if kind is EventType.FAILED:
            text += f"; see: {self._front_end.typed(('task', 'show', str(claim.id), '--traceback'))}"
        log.log(level, "%s", text, extra=extra, exc_info=context.error if self._has_traceback(kind) else None)

    def _has_traceback(self, kind: EventType) -> bool:
        if self._tracebacks is None:
            return kind is EventType.FAILED or log.isEnabledFor(logging.DEBUG)
        return self._tracebacks


def _of(bound: int | None) -> str:
    return "" if bound is None else f" of {bound}"


def _following(outcome: Outcome) -> str:
    """Return when the task runs again. Empty if it does not, or at once."""
    name = "next attempt" if outcome.event_type is EventType.RETRY_SCHEDULED else "runs again"
    if outcome.available_at is not None:
        return f", {name} at {outcome.available_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if outcome.event_type is EventType.RETRY_SCHEDULED or outcome.delay > timedelta(0):
        return f", {name} in {outcome.delay.total_seconds():.1f} s"
    return ""


def _message(outcome: Outcome) -> str:
    """Return the first line of the message, which follows the type's name in `outcome.error`."""
    line = _first_line(outcome.error or "")
    name, _, message = line.partition(":")
    return message.strip() if str(outcome.data.get("exception", "")).endswith(f".{name}") else line


def _first_line(text: str) -> str:
    """Return the first line, shortened, with unprintable characters escaped: a message must not control a terminal."""
    line = text.strip().partition("\n")[0].strip()
    cut = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut)
