"""The names that the fields of a filter suggest while a person types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..request import PageRequest

_MOST: Final = 200
"""The maximum number of suggested names of each kind."""


def suggestions(request: PageRequest, *, queues: Iterable[str], tasks: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the names of queues and tasks that this program has declared, and those that the page shows. This does not
    take a statement.
    """
    declared = [*request.outbox.tasks]
    found = {
        "queue": {*queues, *(one.options.queue for one in declared)},
        "task": {*tasks, *(one.name for one in declared)},
    }
    return {kind: sorted(names)[:_MOST] for kind, names in found.items()}
