"""What every part of the catalogue stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...statements.grammar import Grammar, Transition
from ..plan import Plan

if TYPE_CHECKING:
    from ..base import Dialect


class Catalogue:
    """Statements of one dialect and schema, each compiled at its first use."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def _compile(self, transition: Transition) -> Plan:
        return self._dialect.compile(transition)

    @property
    def _g(self) -> Grammar:
        return self._dialect.grammar
