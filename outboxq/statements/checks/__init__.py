"""The invariants, each as a query for the ids that break it; and the repairs.

They hold at any instant, so they are read from one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import keys, log, rows
from .check import Check
from .repairs import repairs

__all__ = ["Check", "checks", "repairs"]


def checks() -> Mapping[str, Check]:
    """Every invariant by its name. What is repaired first stands first: a stale row may be in another's place."""
    return {**rows.checks(), **keys.checks(), **log.checks()}
