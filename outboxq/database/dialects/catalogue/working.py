"""Claiming, ending, beating, recovering, sleeping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from sqlalchemy import CTE

from ...statements import aside, claim, clock, ends, interruptions, keyed, limits, reading, recovery, unknown, waiting
from ...statements.grammar import Statement
from ..plan import Plan
from ..prepared import Prepared
from .base import Catalogue


class Working(Catalogue):
    @cached_property
    def claim_from_one(self) -> Plan:
        return self._claim("claim_from_one_queue", lambda: self._dialect.take_from_one(self._given_pairs()))

    @cached_property
    def claim_from_given(self) -> Plan:
        return self._claim("claim_from_given_queues", lambda: self._dialect.take_from(self._given_pairs()))

    @cached_property
    def claim_from_all(self) -> Plan:
        found = claim.pairs(claim.every_queue(), limits.closed)
        return self._claim("claim_from_all_queues", lambda: self._dialect.take_from(found))

    @cached_property
    def claim_from_limited(self) -> Plan:
        found = claim.pairs(claim.given_queues(self._g))
        return self._claim("claim_from_limited_queue", lambda: self._dialect.take_from_one(found))

    @cached_property
    def besides(self) -> Prepared:
        return self._dialect.prepare(keyed.besides(self._g, keyed.all_queues()))

    @cached_property
    def besides_given(self) -> Prepared:
        return self._dialect.prepare(keyed.besides(self._g, claim.given_queues(self._g)))

    @cached_property
    def win_keys(self) -> Plan:
        return self._compile(keyed.win(self._g))

    @cached_property
    def win_due_keys(self) -> Plan:
        return self._compile(keyed.win_due(self._g))

    @cached_property
    def win_recent_keys(self) -> Plan:
        return self._compile(keyed.win_recent(self._g))

    @cached_property
    def claim_heads(self) -> Plan:
        return self._compile(keyed.take_heads(self._g))

    @cached_property
    def settle_keys(self) -> Plan:
        return self._compile(keyed.settle(self._g))

    @cached_property
    def lock_limits(self) -> Prepared:
        return self._dialect.prepare(limits.lock(self._g))

    @cached_property
    def count_running(self) -> Prepared:
        return self._dialect.prepare(limits.running())

    @cached_property
    def spend_starts(self) -> Prepared:
        return self._dialect.prepare(limits.spend())

    @cached_property
    def any_due(self) -> Prepared:
        return self._dialect.prepare(waiting.any_due(self._g, claim.every_queue(), keyed.every_queue()))

    @cached_property
    def any_due_given(self) -> Prepared:
        given = self._given()
        return self._dialect.prepare(waiting.any_due(self._g, given, given))

    @cached_property
    def any_recent(self) -> Prepared:
        return self._dialect.prepare(waiting.any_recent(self._g, claim.every_queue(), keyed.every_queue()))

    @cached_property
    def any_recent_given(self) -> Prepared:
        given = self._given()
        return self._dialect.prepare(waiting.any_recent(self._g, given, given))

    @cached_property
    def next_available_at(self) -> Prepared:
        return self._dialect.prepare(waiting.next_available_at(self._g, claim.every_queue(), keyed.every_queue()))

    @cached_property
    def next_available_at_given(self) -> Prepared:
        given = self._given()
        return self._dialect.prepare(waiting.next_available_at(self._g, given, given))

    @cached_property
    def sleeping(self) -> Mapping[str, Prepared]:
        return self._dialect.sleeping()

    @cached_property
    def end(self) -> Plan:
        return self._compile(ends.end(self._g))

    @cached_property
    def end_unlocked(self) -> Plan:
        return self._compile(ends.end_unlocked(self._g))

    @cached_property
    def held(self) -> Plan:
        return self._compile(ends.held(self._g))

    @cached_property
    def begin(self) -> Prepared:
        return self._dialect.prepare(ends.begin())

    @cached_property
    def heartbeat(self) -> Plan:
        return self._compile(ends.heartbeat(self._g))

    @cached_property
    def recover(self) -> Plan:
        return self._compile(recovery.recover(self._g))

    @cached_property
    def recover_seen(self) -> Plan:
        return self._compile(recovery.recover_seen(self._g))

    @cached_property
    def expired_leases(self) -> Prepared:
        return self._dialect.prepare(recovery.expired(self._g))

    @cached_property
    def outlasting_leases(self) -> Prepared:
        return self._dialect.prepare(recovery.outlasting(self._g))

    @cached_property
    def any_expired(self) -> Prepared:
        return self._dialect.prepare(recovery.any_expired(self._g))

    @cached_property
    def due_again(self) -> Plan:
        return self._compile(clock.due_again(self._g))

    @cached_property
    def ended_by(self) -> Prepared:
        return self._dialect.prepare(reading.ended_by())

    @cached_property
    def releases_as_unknown(self) -> Prepared:
        return self._dialect.prepare(unknown.releases(self._g))

    @cached_property
    def last_end(self) -> Prepared:
        return self._dialect.prepare(interruptions.last_end(self._g))

    @cached_property
    def delayed_entries(self) -> Prepared:
        return self._dialect.prepare(unknown.delayed(self._g))

    @cached_property
    def due_entries(self) -> Prepared:
        return self._dialect.prepare(aside.due_entries(self._g))

    @cached_property
    def claim_entries(self) -> Plan:
        return self._compile(aside.claim_entries(self._g))

    @cached_property
    def set_aside(self) -> Plan:
        return self._compile(aside.set_aside(self._g))

    @cached_property
    def forget_entry(self) -> Prepared:
        return self._dialect.prepare(aside.forget_entry())

    def _claim(self, name: str, take: Callable[[], Statement]) -> Plan:
        return self._compile(claim.claim(self._g, name, lambda _: take()))

    def _given(self) -> CTE:
        return claim.given_queues(self._g)  # type: ignore[return-value]

    def _given_pairs(self) -> CTE:
        return claim.pairs(self._given(), limits.closed)
