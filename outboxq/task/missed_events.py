"""The warning about events that declared tasks and relays miss, because their subscriptions are not stored yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Lock
from typing import Any

from ..model.relays import task_of
from ..model.subscriptions import Emitted
from ..model.wording import plural
from ..store import Store
from ..store.claims.workers import takes
from .task import Task

log = logging.getLogger("outboxq.store")


class MissedEvents:
    """Warns once about each task and relay that misses an event."""

    def __init__(self) -> None:
        self._known = set[str]()
        self._lock = Lock()

    def warn(self, store: Store, target: object, topic: str, emitted: Emitted, tasks: Iterable[Task[..., Any]]) -> None:
        """Warn if any of the tasks subscribes to the topic and did not get the event, which was written in `target`."""
        names = {one.name for one in tasks if one.subscriptions and _subscribes(one, topic)}
        missing = names - self._known - emitted.handles.keys() - {task_of(name) for name in emitted.relays}
        if not missing:
            return
        with self._lock:
            missing -= self._known
            self._known |= missing
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


def _subscribes(task: Task[..., Any], topic: str) -> bool:
    return takes([one.topic for one in task.subscriptions], topic)
