"""The first page: what waits, runs and has failed, and what needs attention."""

from __future__ import annotations

from ..request import PageRequest, View


def page(request: PageRequest) -> View:
    """Show the counts of each queue."""
    found = request.store.stats()
    return View(template="overview.html", title="Overview", values={"queues": found}, data=found)
