"""The list of tasks: by state, with filters that stand in the URL, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from uuid import UUID

from ...errors import AmbiguousTask, InvalidArgument, TaskNotFound
from ...model import TaskExecution, TaskStatus
from ...operating.reading import read_utc
from ...store import Reason, TaskPage
from ..request import PageRequest, View

_ROWS: Final = 50
_STATES: Final[Mapping[str, TaskStatus]] = {status.lower(): status for status in TaskStatus}
_CALM: Final = frozenset({Reason.DUE, Reason.RUNNING})
"""The reasons that say no more than the state does."""


_NO_NAMES: Final = frozenset({"since", "until", "worker", "batch"})
"""The filters that compare no name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """The filters of a list as a person types them; "": any. Names may begin and end with spaces."""

    queue: str = ""
    task: str = ""
    key: str = ""
    topic: str = ""
    since: str = ""
    until: str = ""
    worker: str = ""
    batch: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Filters:
        typed = {one.name: given.get(one.name, "") for one in fields(cls)}
        return cls(**{name: value.strip() if name in _NO_NAMES else value for name, value in typed.items()})

    @property
    def given(self) -> dict[str, str]:
        """The filters that are set, by name."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}

    @property
    def is_spaced(self) -> bool:
        """True if a name begins or ends with a space, which a person who pastes it does not see."""
        return any(value != value.strip() for value in self.given.values())

    @property
    def wanted(self) -> dict[str, Any]:
        """The filters as the store takes them. Raises InvalidArgument."""
        found: dict[str, Any] = dict(self.given)
        for name in found.keys() & {"since", "until"}:
            found[name] = read_utc(found[name], name)
        for name in found.keys() & {"worker", "batch"}:
            found[name] = _uuid(found[name], name)
        return found


def page(request: PageRequest) -> View:
    """Show a page of tasks, and what each that has not ended waits for."""
    filters = Filters.of(request.query)
    state = request.query.get("state", "").lower()
    searched = request.query.get("id", "").strip()
    found, problem = TaskPage(tasks=[], older=None, newer=None, is_cut=False), ""
    several: tuple[UUID, ...] = ()
    try:
        found = _found(request, searched) if searched else _listed(request, state, filters)
    except AmbiguousTask as error:
        several, problem = error.task_ids, "Several tasks have an id that begins so; write more of it, or choose one."
    except (InvalidArgument, TaskNotFound) as error:
        problem = f"{str(error)[:1].upper()}{str(error)[1:]}."
    outlooks = request.store.outlooks(found.tasks)
    here = {**filters.given, **({"state": state} if state else {})}
    values = {
        "tabs": _tabs(request, state if state in _STATES else "", filters),
        "filters": filters,
        "state": state,
        "searched": searched,
        "problem": problem,
        "several": several,
        "tasks": found.tasks,
        "outlooks": outlooks,
        "now": request.store.now(),
        "calm": _CALM,
        "looked_at": found.looked_at if found.is_cut else None,
        "older": None if found.older is None else request.url("tasks", **here, before=found.older),
        "newer": None if found.newer is None else request.url("tasks", **here, after=found.newer),
        "clear": request.url("tasks", state=state) if state else request.url("tasks"),
        "cancel_all": _cancel_all(request, state, filters) if not problem and not searched else None,
    }
    data: dict[str, Any] = {"tasks": [_record(one) for one in found.tasks], "older": found.older, "newer": found.newer}
    data["problem"] = problem or None
    return View(template="tasks.html", title="Tasks", values=values, data=data)


def _listed(request: PageRequest, state: str, filters: Filters) -> TaskPage:
    if state and state not in _STATES:
        raise InvalidArgument(f"there is no state {state!r}: write {', '.join(_STATES)}")
    beside = {name: _uuid(request.query[name], name) for name in ("before", "after") if request.query.get(name)}
    wanted = filters.wanted | beside
    return request.store.task_page(status=_STATES.get(state), **wanted, limit=_ROWS)


def _found(request: PageRequest, beginning: str) -> TaskPage:
    """Return the one task whose id begins so."""
    task = request.store.get(request.store.find(beginning))
    return TaskPage(tasks=[task], older=None, newer=None, is_cut=False)


def _tabs(request: PageRequest, state: str, filters: Filters) -> list[tuple[str, str, None, bool]]:
    every = [("All", request.url("tasks", **filters.given), None, not state)]
    for name, status in _STATES.items():
        every.append((str(status), request.url("tasks", state=name, **filters.given), None, name == state))
    return every


def _cancel_all(request: PageRequest, state: str, filters: Filters) -> str | None:
    """Return the page that asks before it cancels all that the list shows; None: that would be no task, or every one."""
    may = request.viewer.may_act and not (filters.worker or filters.batch) and state in {"", "ready", "running"}
    if not may or not filters.given:
        return None
    return request.url("bulk", action="cancel", **filters.given, **({"state": state} if state else {}))


def _uuid(text: str, name: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidArgument(f"{name} takes a whole id, not {text!r}") from None


def _record(task: TaskExecution) -> dict[str, Any]:
    hidden = {"args", "headers", "result"}
    return {one.name: getattr(task, one.name) for one in fields(TaskExecution) if one.name not in hidden}
