"""Fan-out."""

from __future__ import annotations

from functools import cached_property

from ...statements import fanout
from ..plan import Plan
from ..prepared import Prepared
from .base import Catalogue


class Fanout(Catalogue):
    @cached_property
    def emit(self) -> Plan:
        return self._compile(fanout.emit(self._g))

    @cached_property
    def emit_keyed(self) -> Plan:
        return self._compile(fanout.emit_keyed(self._g))

    @cached_property
    def held_for_event(self) -> Prepared:
        return self._dialect.prepare(fanout.held_for_event(self._g))

    @cached_property
    def emitted(self) -> Prepared:
        return self._dialect.prepare(fanout.emitted())

    @cached_property
    def unrouted(self) -> Prepared:
        return self._dialect.prepare(fanout.unrouted())

    @cached_property
    def subscriptions(self) -> Prepared:
        return self._dialect.prepare(fanout.subscriptions())

    @cached_property
    def lock_subscriptions(self) -> Prepared:
        return self._dialect.prepare(fanout.lock_subscriptions(self._g))

    @cached_property
    def subscribe(self) -> Plan:
        return self._compile(fanout.subscribe(self._g))

    @cached_property
    def unsubscribe(self) -> Plan:
        return self._compile(fanout.unsubscribe())
