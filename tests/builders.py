"""The functions that build outboxq's SQL statements, by name. The golden files and `tests.compiled` use these names."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from outboxq import database, store
from outboxq.database.dialects import time_partitions
from outboxq.database.grammar import Builder
from outboxq.store.claims import due, sleeping_workers
from outboxq.store.messages import relays_sql
from outboxq.store.numbers import live, metrics
from outboxq.store.producing import batches_sql, fanout
from outboxq.store.tasks import slowest, task_pages
from outboxq.store.verify import CHECKS
from outboxq.store.verify.repairs import LOCKS, REPAIRS

MODULES = [
    import_module(name)
    for package in (database, store)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if ".verify." not in name
]
"""Modules that build statements. The statements of `verify` are in CHECKS, LOCKS and REPAIRS instead."""
ONLY_POSTGRESQL = (
    "batches.lock.",
    "channel.",
    "dead_rows.",
    "rights.",
    "sleeping_workers.",
    "system.sizes",
    "table_locks.",
    "time_partitions.",
)
_BUILT = {"Select[Any]", "Insert", "Update", "Delete", "Statement", "Transition"}


def of_module(module: Any) -> Iterator[tuple[str, Builder]]:
    """Yield a module's public functions that take only a grammar and return a statement or a transition."""
    short = module.__name__.rpartition(".")[2].removesuffix("_sql")
    for name, function in inspect.getmembers(module, inspect.isfunction):
        given = function.__annotations__
        builds = list(given.values())[:-1] == ["Grammar"] and given["return"].removeprefix("sa.") in _BUILT
        if builds and function.__module__ == module.__name__ and not name.startswith("_"):
            yield f"{short}.{name}", function


def all_builders() -> Mapping[str, Builder]:
    found = dict(one for module in MODULES for one in of_module(module))
    groups: Mapping[str, Mapping[str, Builder]] = {
        "metrics.since": metrics.SINCE,
        "task_pages.page": task_pages.PAGE,
        "task_pages.end": task_pages.END,
        "slowest.times": slowest.TIMES,
        "task_pages.next_ids": task_pages.NEXT_IDS,
        "time_partitions.forget": time_partitions.FORGET,
        "batches.lock": batches_sql.LOCK,
        "checks": {name: check.broken for name, check in CHECKS.items()},
        "repairs": REPAIRS,
        "locks": LOCKS,
    }
    pairs = {
        "due.any_due": due.ANY_DUE,
        "due.next_available_at": due.NEXT_AVAILABLE_AT,
        "sleeping_workers.look": sleeping_workers.LOOK,
    }
    singles = {
        "due.any_recent": due.ANY_RECENT,
        "sleeping_workers.announce": sleeping_workers.ANNOUNCE,
        "live.waiting": live.WAITING[False],
        "live.waiting_by_task": live.WAITING[True],
    }
    for has in (False, True):
        messages, held = "_and_messages" * has, "_unheld" * has
        found |= {f"fanout.insert_for_subscribers{messages}": fanout.INSERT_FOR_SUBSCRIBERS[has]}
        found |= {f"fanout.emit_keyed{messages}": fanout.EMIT_KEYED[has]}
        found |= {f"relays.following{held}": relays_sql.FOLLOWING[has]}
    for given in (False, True):
        asked = "_given" * given
        found |= {f"{name}{asked}": several[given] for name, several in singles.items()}
        for by_key in (False, True):
            found |= {f"{name}{asked}{'_by_key' * by_key}": several[given][by_key] for name, several in pairs.items()}
    rooms = [f"{module.__name__.rpartition('.')[2].removesuffix('_sql')}." for module in MODULES]
    found = {name: found[name] for room in dict.fromkeys(rooms) for name in sorted(found) if name.startswith(room)}
    return found | {f"{group}.{name}": one for group, several in groups.items() for name, one in several.items()}


BUILDERS = all_builders()


def of_database(database: str) -> Mapping[str, Builder]:
    """Return the builders of the statements that run on a database."""
    return {
        name: one for name, one in BUILDERS.items() if database == "postgresql" or not name.startswith(ONLY_POSTGRESQL)
    }
