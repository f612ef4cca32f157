"""The request that a page of the dashboard is made from, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from werkzeug.datastructures import MultiDict

from ..store import Store

if TYPE_CHECKING:
    from ..outbox import Outbox


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """The person who asks for a page."""

    name: str = ""
    """Name for the task's history and the log; "" if the dashboard does not know it."""
    may_act: bool = False
    """True if the person may change tasks and queues."""
    may_see_arguments: bool = False
    """True if pages show arguments, results and headers, without the values of `redaction.HIDDEN` names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRequest:
    """A request for a page, after its access has been checked."""

    outbox: Outbox
    store: Store
    viewer: Viewer
    path: Mapping[str, Any]
    """The variable parts of the URL's path, by name."""
    query: MultiDict[str, str]
    """The parameters behind the URL's question mark."""
    form: MultiDict[str, str]
    """The fields of the form that was sent; empty unless the method is POST."""
    url: Callable[..., str]
    """Returns the URL of a page by its name in `routes`: ``url("task", task_id=…, tab="events")``."""
    refresh: timedelta | None
    """The time after which the page asks for itself again; None: it does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A page: its template and what that shows."""

    template: str
    """The template's file name."""
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """The template's variables."""
    data: object = None
    """The same as records for `/api/….json`: dataclasses, lists and mappings. None: the page has no JSON beside it."""
    status: int = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirect:
    """The answer to a form: another page, with a sentence about what was done."""

    url: str
    notice: str
    is_warning: bool = False
