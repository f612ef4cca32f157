"""The warning about events that declared tasks and relays miss, because their subscriptions are not stored yet."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ..model.relays import task_of
from ..model.subscriptions import Emitted
from ..model.wording import plural
from ..store import Store
from .task import Task

log = logging.getLogger("outboxq.store")


class MissedEvents:
    """Warns once about each task and relay that misses an event."""

    def __init__(self) -> None:
        self._known = set[str]()
        self._number = 0
        """The number of tasks whose topics are in the next two attributes."""
        self._exact: dict[str, list[str]] = {}
        self._prefixes: list[tuple[str, str]] = []

    def warn(self, store: Store, target: object, topic: str, emitted: Emitted, tasks: Iterable[Task[..., Any]]) -> None:
        """Warn if any of the tasks subscribes to the topic and did not get the event, which was written in `target`."""
        declared = [*tasks]
        if len(declared) != self._number:
            self._read(declared)
        names = {*self._exact.get(topic, ()), *(name for prefix, name in self._prefixes if topic.startswith(prefix))}
        missing = names - self._known - emitted.handles.keys() - {task_of(name) for name in emitted.relays}
        if not missing:
            return
        self._known |= missing  # without a lock, which a fork could copy: at worst, two threads warn
        # A relay is also left out of an event whose idempotency key it has had before.
        missing -= {one.task_name for one in store.subscriptions.list(using=target)}
        if missing:
            log.warning(
                "an event of the topic %r was emitted, but %s %s, which this application declares, will never get it: the %s not "
                "stored yet; run %s before you emit, or call sync_subscriptions()",
                topic,
                plural(len(missing), "the task", "the tasks"),
                ", ".join(map(repr, sorted(missing))),
                plural(len(missing), "subscription is", "subscriptions are"),
                store.upgrade_command,
            )

    def _read(self, declared: Sequence[Task[..., Any]]) -> None:
        exact, prefixes = defaultdict[str, list[str]](list), []
        for name, topic in ((one.name, it.topic) for one in declared for it in one.subscriptions):
            if topic.endswith("*"):
                prefixes.append((topic[:-1], name))
            else:
                exact[topic].append(name)
        self._exact, self._prefixes, self._number = dict(exact), prefixes, len(declared)
