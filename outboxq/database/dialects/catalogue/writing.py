"""Writing tasks."""

from __future__ import annotations

from functools import cached_property

from ...statements import enqueue, idempotency
from ..plan import Plan
from .base import Catalogue


class Writing(Catalogue):
    @cached_property
    def enqueue(self) -> Plan:
        return self._compile(enqueue.enqueue(self._g))

    @cached_property
    def enqueue_keyed(self) -> Plan:
        return self._compile(idempotency.enqueue_keyed(self._g))

    @cached_property
    def key_holders(self) -> Plan:
        return self._compile(idempotency.key_holders(self._g))

    @cached_property
    def lock_keys(self) -> Plan:
        return self._compile(idempotency.lock_keys(self._g))

    @cached_property
    def take_over_keys(self) -> Plan:
        return self._compile(idempotency.take_over_keys(self._g))

    @cached_property
    def replace(self) -> Plan:
        return self._compile(idempotency.replace(self._g))

    @cached_property
    def written(self) -> Plan:
        return self._compile(idempotency.written(self._g))
