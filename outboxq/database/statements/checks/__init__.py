"""Check the invariants: each is a query for the ids that break it. Some have a repair.

They hold at any time, so they are read from one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import batches, fold, keys, limits, log, parts, rows, steps, ticks, unique
from .check import Check
from .repairs import LOCKS, REPAIRS

__all__ = ["CHECKS", "LOCKS", "REPAIRS", "Check"]

CHECKS: Mapping[str, Check] = {
    name: check
    for kind in (parts, fold, limits, rows, keys, unique, log, ticks, steps, batches)
    for name, check in kind.checks().items()
}
"""Every invariant by its name, in the order of repair: a stale row may stand in another's place, and differences from the log are
repaired before differences from other tables.
"""
