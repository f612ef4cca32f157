"""Claiming, ending, beating, recovering, sleeping."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...statements import claim, ends, reading, recovery
from ..plan import Plan
from ..prepared import Prepared
from .base import Catalogue


class Working(Catalogue):
    @cached_property
    def claim_from_one(self) -> Plan:
        return self._compile(claim.claim(self._g, "claim_from_one_queue", self._dialect.take_from_one))

    @cached_property
    def claim_from_given(self) -> Plan:
        queues = claim.given_queues(self._g)
        return self._compile(claim.claim(self._g, "claim_from_given_queues", lambda: self._dialect.take_from(queues)))

    @cached_property
    def claim_from_all(self) -> Plan:
        queues = claim.every_queue()
        return self._compile(claim.claim(self._g, "claim_from_all_queues", lambda: self._dialect.take_from(queues)))

    @cached_property
    def any_due(self) -> Prepared:
        return self._dialect.prepare(claim.any_due(self._g, claim.pairs(claim.every_queue())))

    @cached_property
    def any_due_given(self) -> Prepared:
        return self._dialect.prepare(claim.any_due(self._g, claim.pairs(claim.given_queues(self._g))))

    @cached_property
    def next_available_at(self) -> Prepared:
        return self._dialect.prepare(claim.next_available_at(self._g, claim.pairs(claim.every_queue())))

    @cached_property
    def next_available_at_given(self) -> Prepared:
        return self._dialect.prepare(claim.next_available_at(self._g, claim.pairs(claim.given_queues(self._g))))

    @cached_property
    def sleeping(self) -> Mapping[str, Prepared]:
        return self._dialect.sleeping()

    @cached_property
    def end(self) -> Plan:
        return self._compile(ends.end(self._g))

    @cached_property
    def heartbeat(self) -> Plan:
        return self._compile(ends.heartbeat(self._g))

    @cached_property
    def recover(self) -> Plan:
        return self._compile(recovery.recover(self._g))

    @cached_property
    def any_expired(self) -> Prepared:
        return self._dialect.prepare(recovery.any_expired(self._g))

    @cached_property
    def ended_by(self) -> Prepared:
        return self._dialect.prepare(reading.ended_by())
