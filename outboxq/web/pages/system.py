"""The page of the database: its tables, its schema, and what the dashboard cannot show of it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...database.revisions import OLDEST_SCHEMA, REVISION
from ...integration.front_end import FrontEnd
from ..request import PageRequest, View


def page(request: PageRequest) -> View:
    """Show the sizes of the tables, the oldest snapshot, the partitions, and the revision of the schema."""
    found = request.store.system()
    return View(
        template="system.html",
        title="System",
        values={
            "system": found,
            "now": request.store.now(),
            "release": _release(),
            "revision": REVISION,
            "oldest_schema": OLDEST_SCHEMA,
            "upgrade": FrontEnd().typed(("upgrade",)),
            "whole": sum(one.size for one in found.tables) or 1,
        },
        data=found,
    )


def _release() -> str:
    try:
        return version("outboxq")
    except PackageNotFoundError:
        return "not installed"
