"""The names that the fields of a filter suggest while a person types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..request import PageRequest

_MOST: Final = 200
"""The maximum number of suggested names of each kind."""


def suggestions(request: PageRequest) -> Mapping[str, Sequence[str]]:
    """Return the names of queues and tasks that this program has declared, that live workers serve and know, and of
    queues with settings. This takes two statements, whose cost does not depend on the number of tasks.
    """
    declared, workers = [*request.outbox.tasks], request.store.workers.list()
    queues = {one.queue for one in request.store.queues.settings()} | {one.options.queue for one in declared}
    tasks = {one.name for one in declared}
    for worker in workers:
        queues |= set(worker.queues or ())
        tasks |= set(worker.task_names)
    return {"queue": sorted(queues)[:_MOST], "task": sorted(tasks)[:_MOST]}
