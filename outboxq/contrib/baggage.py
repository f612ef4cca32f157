"""The header `baggage`, which several tracing libraries share: each has its own members in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEADER: Final = "baggage"
LONGEST: Final = 4096
"""The bytes of the header's value that are kept: half of what all headers of a task may have."""


def with_baggage(ours: Mapping[str, str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Return our headers, their baggage joined with that of earlier ones. A member that is in both is ours.

    Members that do not fit are left out, ours last: else all headers of the hook would be too long.
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
    """Return the members of a baggage by their keys."""
    members = (member.strip() for member in baggage.split(","))
    return {member.partition("=")[0].strip(): member for member in members if member}
