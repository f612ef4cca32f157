"""The request for a page of the dashboard, and its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from werkzeug.datastructures import MultiDict

from ..errors import InvalidArgument
from ..operating.verbs import RECORDED
from ..store import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ..outbox import Outbox


Redact = Callable[[str], str]
"""A function that takes a string and returns it without its sensitive parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """The right to make certain changes. A permission whose fields are not set is the right to make all changes."""

    actions: Collection[str] | None = None
    """The actions, named by their commands, such as "failed redrive"; None means all actions."""
    queues: Collection[str] | None = None
    """The queues on whose tasks, schedules and settings the actions may be carried out; None means all queues. A batch,
    or a bulk change without a filter for the queue, needs a permission for all queues.
    """

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an action that does not exist, and for a string instead of a collection."""
        for name in ("actions", "queues"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise InvalidArgument(f"{name} must be a collection of strings; write [{given!r}]")
            object.__setattr__(self, name, None if given is None else tuple(sorted(set(given))))
        if unknown := sorted(set(self.actions or ()) - set(RECORDED)):
            raise InvalidArgument(f"there is no action {unknown[0]!r}; choose from {', '.join(RECORDED)}")

    def covers(self, action: str, queue: str | None) -> bool:
        """Return whether this permission covers the action on this queue or, if `queue` is None, on all queues."""
        is_named = self.actions is None or action in self.actions
        return is_named and (self.queues is None or (queue is not None and queue in self.queues))


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """The person who requests a page."""

    name: str = ""
    """The person's name, for the history of tasks and for the log; "" if it is unknown."""
    may_act: bool = False
    """True if the person may change tasks, queues and schedules."""
    permissions: Sequence[Permission] | None = None
    """The changes that a person with `may_act` may make: each change that at least one permission covers. None means
    all.
    """
    may_see_arguments: bool = False
    """True if pages show arguments, results and headers to the person, except values whose names suggest secrets."""

    def __post_init__(self) -> None:
        if self.permissions is not None:
            object.__setattr__(self, "permissions", tuple(self.permissions))

    def may(self, action: str, queue: str | None = None) -> bool:
        """Return whether the person may carry out this action on this queue or, if `queue` is None, on all queues."""
        if not self.may_act or self.permissions is None:
            return self.may_act
        return any(one.covers(action, queue) for one in self.permissions)

    def may_somewhere(self, action: str) -> bool:
        """Return whether the person may carry out this action on at least one queue."""
        given = [Permission()] if self.permissions is None else self.permissions
        return self.may_act and any(one.actions is None or action in one.actions for one in given)


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
    redact: Redact
    """A function that takes a string and returns it without its sensitive parts."""
    url: Callable[..., str]
    """A function that returns the URL of a page, given the name of its route: ``url("task", task_id=…, tab="events")``.
    """

    def typed(self, *command: str) -> str:
        """Return a command as it is typed in a shell."""
        return self.outbox.integration.front_end.typed(command)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A page: its template and the template's variables."""

    template: str
    """The template's path in the directory `templates`."""
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    data: object = None
    """The same data as dataclasses, lists and mappings, for `/api/….json`; None if the page is not available as JSON.
    """
    status: int = 200
    section: str = ""
    """The navigation entry to mark, if it differs from that of the page's route."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirect:
    """The response to a form: another page to show, with a sentence about what happened."""

    url: str
    notice: str
    is_warning: bool = False
    undo: str = ""
    """The URL of the action that undoes what the form did; "" if there is none."""


PAYLOAD: Final = ("args", "headers", "result")
"""The task fields that contain the application's JSON."""
PRIVATE: Final = frozenset(
    {"last_error", "error", "message", "traceback", "text", "note", "reason", "pause_reason", "sentence"}
)
"""The other fields that can contain what a handler or an operator wrote."""


def without(record: DataclassInstance, *names: str) -> dict[str, Any]:
    """Return the fields of a record's JSON form, except the named ones."""
    return {one.name: getattr(record, one.name) for one in fields(record) if one.compare and one.name not in names}
