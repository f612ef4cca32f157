"""What people do by hand, and the lists they do it from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...statements import by_hand, letters, listing, queues, regaining
from ..plan import Plan
from ..prepared import Prepared
from .base import Catalogue


class Hand(Catalogue):
    @cached_property
    def by_hand(self) -> Plan:
        return self._compile(by_hand.by_hand(self._g))

    @cached_property
    def lock_lost_keys(self) -> Plan:
        return self._compile(regaining.lock(self._g))

    @cached_property
    def lost_keys(self) -> Plan:
        return self._compile(regaining.lost(self._g))

    @cached_property
    def take_back_keys(self) -> Plan:
        return self._compile(regaining.take_back(self._g))

    @cached_property
    def request_cancel(self) -> Plan:
        return self._compile(by_hand.request_cancel(self._g))

    @cached_property
    def reschedule(self) -> Plan:
        return self._compile(by_hand.reschedule(self._g))

    @cached_property
    def make_due(self) -> Plan:
        return self._compile(by_hand.make_due(self._g))

    @cached_property
    def waiting(self) -> Prepared:
        return self._dialect.prepare(by_hand.waiting(self._g))

    @cached_property
    def letters_newest(self) -> Prepared:
        return self._dialect.prepare(letters.newest(self._g))

    @cached_property
    def letters_oldest(self) -> Prepared:
        return self._dialect.prepare(letters.oldest())

    @cached_property
    def queue_change(self) -> Prepared:
        return self._dialect.prepare(queues.change(self._g))

    @cached_property
    def queue_forget(self) -> Prepared:
        return self._dialect.prepare(queues.forget())

    @cached_property
    def queue_settings(self) -> Prepared:
        return self._dialect.prepare(queues.settings())

    @cached_property
    def beginning(self) -> Prepared:
        return self._dialect.prepare(listing.beginning())

    @cached_property
    def listed(self) -> Mapping[str, Prepared]:
        lists = {
            "finished": listing.finished(self._g),
            "ready": listing.ready(self._g),
            "ready_of_queue": listing.ready_of_queue(self._g),
            "running": listing.running(self._g),
            "failed": listing.failed(self._g),
        }
        return {name: self._dialect.prepare(statement) for name, statement in lists.items()}
