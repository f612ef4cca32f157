"""Attempt outcomes, and the buckets in which durations are counted, for the statistics in the database and for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

BOUNDS: Final[tuple[float, ...]] = (*(0.001 * 2**power for power in range(21)), 3600.0)
"""The inclusive upper bounds of the buckets, in seconds. The bounds start at 1 ms and double until they reach 17
minutes; the last bound is an hour.
"""

BUCKETS: Final = len(BOUNDS) + 1
"""The number of buckets: one for each bound, and one for everything that took longer than an hour. Each bucket has its
own columns in `task_metrics`, so another number needs a migration.
"""


@dataclass(kw_only=True, slots=True)
class AttemptCounts:
    """The outcomes of the attempts at one task in one queue. Each attempt is counted in exactly one of the first eight
    fields.
    """

    completed: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    snoozed: int = 0
    released: int = 0
    lost: int = 0
    timed_out: int = 0
    timed_out_last: int = 0
    """The number of `timed_out` attempts that were not followed by another attempt."""
    wait_seconds: float = 0.0
    """The total waiting time in seconds of the attempts counted in `wait`."""
    run_seconds: float = 0.0
    """The total run time in seconds of the attempts counted in `run`."""
    wait: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """The number of started attempts in each bucket, by waiting time: from the due time to the start."""
    run: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """The number of attempts whose handler has ended, in each bucket, by the handler's run time."""

    def copy(self) -> AttemptCounts:
        """Return a copy that is not changed by later outcomes."""
        return replace(self, wait=[*self.wait], run=[*self.run])

    def since(self, earlier: AttemptCounts) -> AttemptCounts:
        """Return what has been counted since `earlier`."""
        numbers = {name: getattr(self, name) - getattr(earlier, name) for name in (*COUNTS, *SECONDS)}
        wait, run = (
            [more - less for more, less in zip(now, then, strict=True)]
            for now, then in ((self.wait, earlier.wait), (self.run, earlier.run))
        )
        return AttemptCounts(**numbers, wait=wait, run=run)


COUNTS: Final = tuple(one.name for one in fields(AttemptCounts) if one.type == "int")
SECONDS: Final = ("wait_seconds", "run_seconds")
