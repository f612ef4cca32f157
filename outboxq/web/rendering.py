"""The templates of the dashboard."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from .formats import FILTERS, plain
from .forms import Notice, hidden_field

NAVIGATION: Final = (
    ("overview", "Overview"),
    ("queues", "Queues"),
    ("tasks", "Tasks"),
    ("failures", "Failures"),
    ("batches", "Batches"),
    ("workers", "Workers"),
    ("schedules", "Schedules"),
    ("system", "System"),
)
"""The entries of the navigation: the name of a route, and its words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Places in a rendered page that differ between browsers. They are random, so that no text of a table can hold one."""

    form_token: str
    notice: str
    etag: str


class Templates:
    """Renders pages. One text serves all browsers of a viewer: what differs between them is filled in afterwards."""

    def __init__(self) -> None:
        self._marks = Marks(form_token=secrets.token_hex(16), notice=secrets.token_hex(16), etag=secrets.token_hex(16))
        self._environment = environment()
        self._environment.globals["csrf_field"] = hidden_field(self._marks.form_token)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the page with its marks."""
        places = {"notice_place": self._marks.notice, "etag_place": self._marks.etag}
        return self._environment.get_template(template).render({**values, **places})

    def fill(self, text: str, *, form_token: str, notice: Notice | None, etag: str) -> str:
        """Return the page for one browser."""
        shown = "" if notice is None else self._environment.get_template("notice.html").render(notice=notice)
        text = text.replace(self._marks.form_token, form_token).replace(self._marks.etag, str(escape(etag)))
        return text.replace(self._marks.notice, shown)


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
