"""The templates of the dashboard."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from .formats import FILTERS, plain

NAVIGATION: Final = (
    ("overview", "Overview"),
    ("queues", "Queues"),
    ("tasks", "Tasks"),
    ("failures", "Failures"),
    ("workers", "Workers"),
    ("schedules", "Schedules"),
    ("system", "System"),
)
"""The entries of the navigation: the name of a route, and its words."""


def environment() -> Environment:
    """Return the environment of the templates.

    Every text is escaped, invisible characters are written out, and a variable that is missing is an error.
    """
    found = Environment(
        loader=PackageLoader("outboxq.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_shown,
    )
    found.filters.update(FILTERS)
    return found


def _shown(value: Any) -> Any:
    """Return what a template prints of a value: nothing for None, and `plain` text without invisible characters."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else plain(value)
