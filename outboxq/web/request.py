"""The request for a page of the dashboard, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from werkzeug.datastructures import MultiDict

from ..model.display import as_json
from ..store import Store

if TYPE_CHECKING:
    from ..outbox import Outbox


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """The person who requests a page."""

    name: str = ""
    """The person's name, for the history of tasks and for the log; "" if it is unknown."""
    may_act: bool = False
    """True if the person may change tasks, queues and schedules."""
    may_see_arguments: bool = False
    """True if pages show arguments, results and headers to the person, except values with secret names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRequest:
    """A request for a page, after access has been checked."""

    outbox: Outbox
    store: Store
    viewer: Viewer
    path: Mapping[str, Any]
    """The variable parts of the path in the URL, by name."""
    query: MultiDict[str, str]
    """The query parameters in the URL."""
    form: MultiDict[str, str]
    """The fields of the form; empty unless the method is POST."""
    url: Callable[..., str]
    """Returns the URL of a page by the name of its route: ``url("task", task_id=…, tab="events")``."""

    def typed(self, *command: str) -> str:
        """Return a command as it is typed in a shell."""
        return self.outbox.integration.front_end.typed(command)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A page: its template and the template's variables."""

    template: str
    """The template's file name."""
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    data: object = None
    """The same data as dataclasses, lists and mappings, for `/api/….json`. None if the page is not available as JSON.
    """
    status: int = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirect:
    """The response to a form: another page to show, with a sentence about what happened."""

    url: str
    notice: str
    is_warning: bool = False
    undo: str = ""
    """The URL of the action that undoes what was done; "" if there is none."""


PAYLOAD: Final = ("args", "headers", "result")
"""The fields of a task that contain the application's JSON."""


def without(record: object, *names: str) -> dict[str, Any]:
    """Return the fields of a record in JSON form, without the named ones."""
    return {name: value for name, value in as_json(record).items() if name not in names}
