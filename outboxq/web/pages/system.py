"""The page of the database: its tables, its schema, and what the dashboard cannot show of it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...database.revisions import REVISION
from ...errors import SchemaOutOfDate
from ...task.pruning import PRUNE
from ..request import PageRequest, View

_BROUGHT = (
    ("0002", "schedules (0002)"),
    ("0003", "charts and statistics (0003)"),
    ("0004", "headers in the SQL function (0004)"),
    ("0005", "hosts, versions and busy threads of workers (0005)"),
    ("0006", "durable steps (0006)"),
    ("0007", "batches and chains (0007)"),
    ("0008", "the progress of running tasks (0008)"),
)
"""Revisions of the schema, and the parts of the pages that need each of them."""


def page(request: PageRequest) -> View:
    """Show the sizes of the tables, the oldest snapshot, the partitions, and the revision of the schema."""
    found = request.store.system()
    return View(
        template="system.html",
        title="System",
        values={
            "system": found,
            "now": found.at,
            "release": _release(),
            "revision": REVISION,
            "missing": [words for since, words in _BROUGHT if found.revision < since],
            "upgrade": request.outbox.integration.front_end.typed(("upgrade",)),
            "retention": _retention(request),
            "add_retention": request.outbox.integration.front_end.typed(("schedule", "add-retention", "90d")),
            "whole": sum(one.size for one in found.tables) or 1,
        },
        data=found,
    )


def _retention(request: PageRequest) -> str | None:
    """Return the name of the schedule that deletes old tasks. None: there is none."""
    try:
        schedules = request.store.schedules.list()
    except SchemaOutOfDate:
        return None
    return next((one.name for one in schedules if one.task_name == PRUNE and one.paused_at is None), None)


def _release() -> str:
    try:
        return version("outboxq")
    except PackageNotFoundError:
        return "not installed"
