"""Statistics, the registry of workers, and why a task does not run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...statements import explaining, registry, statistics
from ..prepared import Prepared
from .base import Catalogue


class Statistics(Catalogue):
    @cached_property
    def statistics_by_queue(self) -> Mapping[str, Prepared]:
        return self._statistics(by_task=False)

    @cached_property
    def statistics_by_task(self) -> Mapping[str, Prepared]:
        return self._statistics(by_task=True)

    @cached_property
    def first_of_window(self) -> Prepared:
        return self._dialect.prepare(statistics.first_of_window())

    @cached_property
    def workers(self) -> Mapping[str, Prepared]:
        g, prepare = self._g, self._dialect.prepare
        return {
            "register": prepare(registry.register(g)),
            "seen": prepare(registry.seen(g)),
            "unregister": prepare(registry.unregister(g)),
            "leave": prepare(registry.leave(g)),
            "live": prepare(registry.live()),
            "with_unknown_tasks": prepare(registry.with_unknown_tasks()),
            "one": prepare(registry.one()),
        }

    @cached_property
    def explaining(self) -> Mapping[str, Prepared]:
        prepare = self._dialect.prepare
        return {
            "entry": prepare(explaining.entry()),
            "waiting": prepare(explaining.waiting(self._g)),
            "settings": prepare(explaining.settings()),
            "holder": prepare(explaining.holder()),
            "head": prepare(explaining.head()),
            "ahead": prepare(explaining.ahead(self._g)),
        }

    def _statistics(self, *, by_task: bool) -> Mapping[str, Prepared]:
        parts = statistics.statistics(self._g, by_task=by_task)
        return {name: self._dialect.prepare(statement) for name, statement in parts.items()}
