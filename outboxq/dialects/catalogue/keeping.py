"""Invariants and retention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from ...statements import checks, retention
from ..plan import Plan
from ..prepared import Prepared
from .base import Catalogue


class Checked(NamedTuple):
    """An invariant, ready to be asked for."""

    meaning: str
    query: Prepared


class Keeping(Catalogue):
    @cached_property
    def checks(self) -> Mapping[str, Checked]:
        return {
            name: Checked(check.meaning, self._dialect.prepare(check.broken(self._g)))
            for name, check in checks.checks().items()
        }

    @cached_property
    def repairs(self) -> Mapping[str, Plan]:
        return {name: self._compile(repair(self._g)) for name, repair in checks.repairs().items()}

    @cached_property
    def prune(self) -> Plan:
        return self._compile(retention.prune(self._g))

    @cached_property
    def prune_unrouted(self) -> Plan:
        return self._compile(retention.prune_unrouted(self._g))

    @cached_property
    def partitions(self) -> Mapping[str, Prepared]:
        """Of the history in partitions; none where the database has no such thing."""
        return self._dialect.partitioning.statements if self._dialect.partitioning else {}

    @cached_property
    def prunable(self) -> Prepared:
        return self._dialect.prepare(retention.prunable())
