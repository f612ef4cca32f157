"""Code that the tracing hooks share: the `baggage` header, to which each library adds members, and an attempt's error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..context import TaskContext
from ..model import EventType, Outcome, Retry

HEADER: Final = "baggage"
LONGEST: Final = 4096
"""The maximum number of bytes in the header's value: half of the limit for all headers of a task."""


def with_baggage(ours: Mapping[str, str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Return the hook's headers, with the earlier headers' baggage added. If both contain the same member, the hook's
    is kept.

    Members that do not fit are dropped, starting with those of the earlier headers. Otherwise, the headers could become
    too long.
    """
    mine, theirs = _members(ours.get(HEADER, "")), _members(earlier.get(HEADER, ""))
    kept: list[str] = []
    free = LONGEST
    for member in (mine | {key: one for key, one in theirs.items() if key not in mine}).values():
        size = len(member.encode()) + 1
        if size <= free:
            kept.append(member)
            free -= size
    joined = {name: value for name, value in ours.items() if name != HEADER}
    return {**joined, HEADER: ",".join(kept)} if kept else joined


def _members(baggage: str) -> dict[str, str]:
    """Return the members of a baggage header by key."""
    members = (member.strip() for member in baggage.split(","))
    return {member.partition("=")[0].strip(): member for member in members if member}


def error_of(context: TaskContext, outcome: Outcome) -> BaseException | None:
    """Return a failed attempt's error; None if the attempt did not fail.

    A handler that raises Retry requests another attempt. The current attempt counts as failed only if no attempts are
    left.
    """
    error = context.error
    if outcome.event_type is EventType.FAILED:
        return error
    wished = error is None or isinstance(error, Retry)
    return error if outcome.event_type is EventType.RETRY_SCHEDULED and not wished else None
