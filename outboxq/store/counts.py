"""A number that was counted up to a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A number of rows, counted up to a bound."""

    number: int
    at_least: bool = False
    """True: there may be more than `number`, where the count was ended."""


def counted_to(most: int, found: int, *, cut: bool = False) -> Count:
    """Return the count of rows of which at most one more than `most` were counted. `cut`: the look was ended before."""
    return Count(number=min(found, most), at_least=cut or found > most)
