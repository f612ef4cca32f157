"""The functions that build outboxq's statements, by name: what the golden files, and the processes that compile ahead, go by."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from outboxq.database import statements
from outboxq.database.dialects import granting
from outboxq.database.statements import task_pages, time_partitions
from outboxq.database.statements.checks import CHECKS, LOCKS, REPAIRS
from outboxq.database.statements.grammar import Builder
from outboxq.store import explain, numbers
from outboxq.store.numbers import metrics

MODULES = {
    name: import_module(f"{room.__name__}.{name}")
    for room in (statements, explain, numbers)
    for _, name, _ in pkgutil.iter_modules(room.__path__)
}
ONLY_POSTGRESQL = ("channel.", "granting.", "sleeping_workers.", "system.sizes", "table_locks.", "time_partitions.")
_BUILT = {"Select[Any]", "Insert", "Update", "Delete", "Statement", "Transition"}


def of_module(module: Any) -> Iterator[tuple[str, Builder]]:
    """The public functions of a module that take a grammar alone and return a statement or a transition."""
    short = module.__name__.rpartition(".")[2]
    for name, function in inspect.getmembers(module, inspect.isfunction):
        given = function.__annotations__
        builds = list(given.values())[:-1] == ["Grammar"] and given["return"] in _BUILT
        if builds and function.__module__ == module.__name__ and not name.startswith("_"):
            yield f"{short}.{name}", function


def all_builders() -> Mapping[str, Builder]:
    found = dict(one for module in (*MODULES.values(), granting) for one in of_module(module))
    groups: Mapping[str, Mapping[str, Builder]] = {
        "metrics.since": metrics.SINCE,
        "task_pages.page": task_pages.PAGE,
        "task_pages.end": task_pages.END,
        "task_pages.next_ids": task_pages.NEXT_IDS,
        "time_partitions.forget": time_partitions.FORGET,
        "checks": {name: check.broken for name, check in CHECKS.items()},
        "repairs": REPAIRS,
        "locks": LOCKS,
    }
    return found | {f"{group}.{name}": one for group, several in groups.items() for name, one in several.items()}


BUILDERS = all_builders()


def of_database(database: str) -> Mapping[str, Builder]:
    """Return the cases that a database runs."""
    return {
        name: one for name, one in BUILDERS.items() if database == "postgresql" or not name.startswith(ONLY_POSTGRESQL)
    }
