"""The buckets into which durations are counted: for the statistics in the database and for metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS: Final = (*(0.001 * 2**power for power in range(21)), 3600.0)
"""The upper bounds of the buckets in seconds, each inclusive: from 1 ms, twice as much each time up to 17 minutes, then an hour."""

BUCKETS: Final = len(BOUNDS) + 1
"""The number of buckets: one for each bound, and one for what took longer than an hour."""


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket, from 0, that a duration is counted in. A negative one counts as 0 s."""
    return bisect_left(BOUNDS, seconds)
