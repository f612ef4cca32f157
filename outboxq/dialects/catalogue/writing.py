"""Writing tasks."""

from __future__ import annotations

from functools import cached_property

from ...statements import enqueue
from ..plan import Plan
from .base import Catalogue


class Writing(Catalogue):
    @cached_property
    def enqueue(self) -> Plan:
        return self._compile(enqueue.enqueue(self._g))

    @cached_property
    def enqueue_keyed(self) -> Plan:
        return self._compile(enqueue.enqueue_keyed(self._g))

    @cached_property
    def keyed_tasks(self) -> Plan:
        return self._compile(enqueue.keyed_tasks())
