"""Invariants and retention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from ...statements import checks, retention
from ...statements.checks import Check
from ..plan import Plan
from ..prepared import Prepared
from .base import Catalogue


class Checked(NamedTuple):
    """An invariant, ready to be asked for."""

    meanings: Mapping[str, str]
    """What is wrong where it does not hold, by its name; with those that the same query answers."""
    query: Prepared


class Keeping(Catalogue):
    @cached_property
    def rights(self) -> Mapping[str, Prepared]:
        return self._dialect.rights()

    @cached_property
    def checks(self) -> Mapping[str, Checked]:
        return {
            name: Checked({name: check.meaning, **check.also}, self._dialect.prepare(check.broken(self._g)))
            for name, check in {**self._of_the_schema, **checks.checks()}.items()
        }

    @property
    def _of_the_schema(self) -> Mapping[str, Check]:
        """Return the entries of each database's own catalogue."""
        return {
            "positions_set_back": Check(
                meaning="the next positions are below those in use, so new tasks of a key overtake the older ones",
                broken=lambda _: self._dialect.set_back(),
            ),
            "part_missing": Check(
                meaning="an index or trigger that `outboxq upgrade` makes is missing, invalid or switched off; make it again "
                "as `outboxq upgrade --sql` prints it",
                broken=lambda _: self._dialect.missing_parts(),
            ),
        }

    @cached_property
    def repairs(self) -> Mapping[str, Plan]:
        return {
            "positions_set_back": self._compile(self._dialect.set_forward()),
            **{name: self._compile(repair(self._g)) for name, repair in checks.repairs().items()},
        }

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
