"""Completion of the names that a command's database knows: queues, tasks, schedules, and groups of dead letters."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from ..store.transactions import patience
from .database import given, opened, present_outbox

if TYPE_CHECKING:
    from ..store import Store

_PATIENCE: Final = 1.0
"""Seconds for which a failed read of the database is retried."""


def completions(kind: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the known names of this kind that begin with `incomplete`, with a hint for shells that show one. The list
    is empty if the database cannot be read, because an error message would be printed in the middle of the user's line.
    """
    try:
        with redirect_stderr(io.StringIO()), context.scope(cleanup=False), patience(_PATIENCE):
            values = {"url": None, "schema": None, "app": None, **context.params}
            with opened(given(context, values)) as store:
                found = dict(_SOURCES[kind](store))
    except (Exception, SystemExit):  # noqa: BLE001
        return []
    # Shells read the names line by line.
    return [
        CompletionItem(name, help=hint if hint.isprintable() else None)
        for name, hint in sorted(found.items())
        if name.startswith(incomplete) and name.isprintable()
    ]


def _queues(store: Store) -> Iterable[tuple[str, str]]:
    return ((one.queue, "") for one in store.queues.list())


def _tasks(store: Store) -> Iterable[tuple[str, str]]:
    outbox = present_outbox()
    declared = () if outbox is None else ((task.name, task.options.queue) for task in outbox.tasks)
    counted = store.stats(window=timedelta(days=1), by="task")
    return (*((one.task_name, one.queue) for one in counted if one.task_name is not None), *declared)


def _schedules(store: Store) -> Iterable[tuple[str, str]]:
    return ((one.name, one.rule) for one in store.schedules.list())


def _groups(store: Store) -> Iterable[tuple[str, str]]:
    found = store.dead_letters.groups().groups
    return ((one.id, f"{one.task_name}: {one.message}") for one in found)


_SOURCES: Final[Mapping[str, Callable[[Store], Iterable[tuple[str, str]]]]] = {
    "queue": _queues,
    "task": _tasks,
    "schedule": _schedules,
    "group": _groups,
}
