"""The header `baggage`, which several tracing libraries share: each has its own members in it."""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "baggage"


def with_baggage(ours: Mapping[str, str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Return our headers, their baggage joined with that of earlier ones. A member that is in both is ours."""
    joined = dict(ours)
    if earlier.get(HEADER):
        members = _members(earlier[HEADER]) | _members(ours.get(HEADER, ""))
        joined[HEADER] = ",".join(members.values())
    return joined


def _members(baggage: str) -> dict[str, str]:
    """Return the members of a baggage by their keys."""
    members = (member.strip() for member in baggage.split(","))
    return {member.partition("=")[0].strip(): member for member in members if member}
