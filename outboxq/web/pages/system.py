"""The page of the database: its tables, its schema, and what the dashboard cannot show of it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...database.revisions import REVISION
from ...task.built_in import PRUNE
from ..request import PageRequest, View


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
            "upgrade": request.outbox.integration.front_end.typed(("upgrade",)),
            "retention": _retention(request),
            "add_retention": request.outbox.integration.front_end.typed(("schedule", "add-retention", "90d")),
            "whole": sum(one.size for one in found.tables) or 1,
        },
        data=found,
    )


def _retention(request: PageRequest) -> str | None:
    """Return the name of the schedule that deletes old tasks. None: there is none."""
    schedules = request.store.schedules.list()
    return next((one.name for one in schedules if one.task_name == PRUNE and one.paused_at is None), None)


def _release() -> str:
    try:
        return version("outboxq")
    except PackageNotFoundError:
        return "not installed"
