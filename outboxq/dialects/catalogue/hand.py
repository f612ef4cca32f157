"""What people do by hand."""

from __future__ import annotations

from functools import cached_property

from ...statements import by_hand
from ..plan import Plan
from .base import Catalogue


class Hand(Catalogue):
    @cached_property
    def by_hand(self) -> Plan:
        return self._compile(by_hand.by_hand(self._g))

    @cached_property
    def request_cancel(self) -> Plan:
        return self._compile(by_hand.request_cancel(self._g))
