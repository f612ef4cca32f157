"""The pages about dead letters: all groups by task, exception and message, and a single group."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ...errors import InvalidArgument
from ...operating.reading import read_utc
from ...store import DeadLetterGroup
from ...store.tasks.tasks import attempts_of
from ..request import PageRequest, View
from .actions import unfound

_GROUPS: Final = 100
_ROWS: Final = 50
_FEW: Final = 2_000
_MANY: Final = 10_000
"""The numbers of newest dead letters that a page groups. Grouping 10,000 takes about 100 ms, so it is only done on
request, or if a group is not found otherwise.
"""


def page(request: PageRequest) -> View:
    """Show the groups, latest failure first."""
    filters: dict[str, Any] = {name: value for name in ("queue", "task") if (value := request.query.get(name, ""))}
    most = _MANY if request.query.get("look") == "far" else _FEW
    found = request.store.dead_letters.groups(limit=_GROUPS, most=most, **filters)
    groups = sorted(found.groups, key=lambda one: one.last_failed_at, reverse=True)
    values = {
        "groups": [(one, {**selection_of(one), **filters}) for one in groups],
        "total": sum(one.count for one in groups),
        "looked_at": None if found.is_complete else found.looked_at,
        "farther": request.url("failures", **filters, look="far") if not found.is_complete and most == _FEW else None,
        "filters": filters,
        "now": request.store.now(),
    }
    return View(template="failures.html", title="Failures", values=values, data=found)


def group(request: PageRequest) -> View:
    """Show the dead letters in one group, newest first, with the traceback of the newest."""
    group_id = request.path["group"]
    for most in (_FEW, _MANY):
        found = request.store.dead_letters.groups(limit=1, most=most, group=group_id)
        if found.groups:
            break
    else:
        gone = "This group no longer has any dead letters, or does not have any among the newest 10 000."
        return unfound("No such failures", gone)
    one = found.groups[0]
    listed = request.store.dead_letters.list(limit=_ROWS + 1, after=_place(request), **selection_of(one))
    shown, older = listed[:_ROWS], None
    if len(listed) > _ROWS:
        place = f"{shown[-1].failed_at.isoformat()}_{shown[-1].id}"
        older = request.url("failure_group", group=group_id, after=place)
    attempts = attempts_of(request.store.recent_history(one.newest, 4))
    values = {
        "group": one,
        "looked_at": None if found.is_complete else found.looked_at,
        "letters": shown,
        "older": older,
        "newer": request.url("failure_group", group=group_id) if request.query.get("after") else None,
        "sample": next((attempt for attempt in reversed(attempts) if attempt.error), None),
        "selection": selection_of(one),
        "redrive": request.typed("failed", "redrive", "--group", one.id),
        "now": request.store.now(),
    }
    title = f"{one.task_name}: {one.exception or 'failed'}"
    data = {"group": one, "dead_letters": shown}
    return View(template="failure_group.html", title=title, values=values, data=data)


def selection_of(group: DeadLetterGroup) -> dict[str, Any]:
    """Return the filters that select a group. They include its task and exception, so that few errors have to be
    compared one by one.
    """
    exception = {} if group.exception is None else {"exception": group.exception}
    return {"group": group.id, "task": group.task_name, **exception}


def _place(request: PageRequest) -> tuple[datetime, UUID] | None:
    """Return the position after which the page begins. Raises InvalidArgument for a position that a page cannot have
    linked to.
    """
    text = request.query.get("after")
    if not text:
        return None
    at, _, task_id = text.partition("_")
    try:
        return read_utc(at, "after"), UUID(task_id)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a place in the list of `after`") from None
