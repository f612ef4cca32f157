"""The first page: what needs attention, what waits, runs and has failed, and the last hours as charts."""

from __future__ import annotations

from ...store import Rule
from ..charts import NOTHING, axis_of, charts_of, chosen, tabs
from ..request import PageRequest, View
from .actions import offers
from .queues import LIMITS, in_full, in_order_of_trouble, once


def page(request: PageRequest) -> View:
    """Show the problems first, then the numbers of all queues together, charts, and the queues in order of trouble."""
    found = request.store.overview(LIMITS)
    problems = once(found.problems)
    axis = axis_of(chosen(request), found.at)
    trends = request.store.trends(since=axis.since, until=axis.until, step=axis.step)
    charts = charts_of(axis, trends)
    return View(
        template="overview.html",
        title="Overview",
        values={
            "overview": found,
            "now": found.at,
            "problems": [(one, offers(request, one.cures)) for one in problems],
            "full": {name: in_full(found.queues, name) for name in ("ready", "delayed", "failed")},
            "is_late": any(one.rule is Rule.OLDEST for one in found.problems),
            "charts": charts,
            "nothing": NOTHING,
            "ranges": tabs(request, "overview"),
            "queues": in_order_of_trouble(found.queues, problems),
            "is_new": not (found.queues or found.live_workers or request.store.tasks(limit=1)),
            "start": request.outbox.integration.front_end.typed(("worker",)),
        },
        data={"overview": found, "trends": trends},
    )
