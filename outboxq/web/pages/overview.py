"""The first page: what needs attention, what waits, runs and has failed, and the last hours as charts."""

from __future__ import annotations

from ..request import PageRequest, View
from .cures import offers
from .provisional import Overview, depth_series, metric_series, overview
from .queues import in_full, in_order_of_trouble
from .ranges import axis_of, charts_of, chosen, tabs


def page(request: PageRequest) -> View:
    """Show the problems first, then the numbers of all queues together, charts, and the queues in order of trouble."""
    found: Overview = overview(request.store)
    axis = axis_of(chosen(request), found.at)
    metrics = metric_series(request.store, since=axis.since, until=axis.until, step=axis.step)
    depths = depth_series(request.store, since=axis.since, until=axis.until, step=axis.step)
    return View(
        template="overview.html",
        title="Overview",
        values={
            "overview": found,
            "now": found.at,
            "problems": [(one, offers(request, one.cures)) for one in found.problems],
            "full": {name: in_full(found.queues, name) for name in ("ready", "delayed", "failed")},
            "charts": charts_of(axis, metrics, depths),
            "ranges": tabs(request, "overview"),
            "queues": in_order_of_trouble(found.queues, found.problems),
        },
        data={"overview": found, "metrics": metrics, "depths": depths},
    )
