"""The pages about dead letters: all groups by task, exception and message, and a single group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ...errors import InvalidArgument
from ...model.wording import sentence
from ...operating.reading import read_since, read_utc
from ...store import DeadLetterGroup
from ...store.tasks.dead_letters import DeadLetterGroups
from ...store.tasks.tasks import attempts_of
from ..request import PageRequest, View
from .actions import unfound
from .suggestions import suggestions

_GROUPS: Final = 100
_ROWS: Final = 50
_FEW: Final = 2_000
_MANY: Final = 10_000
"""The numbers of newest dead letters that a page groups. Grouping 10,000 takes about 100 ms, so it is only done on
request, or if a group is not found otherwise.
"""


def page(request: PageRequest) -> View:
    """Show the groups that match the filters, in the chosen order."""
    given = {name: value for name in _FILTERS if (value := request.query.get(name, ""))}
    order = request.query.get("sort", "last")
    far = {"look": "far"} if request.query.get("look") == "far" else {}
    now, found, problem = request.store.now(), DeadLetterGroups(groups=[], looked_at=0, is_complete=True), ""
    try:
        if order not in _ORDERS:
            raise InvalidArgument(f"there is no order {order!r}: write {', '.join(_ORDERS)}")
        found = request.store.dead_letters.groups(limit=_GROUPS, most=_MANY if far else _FEW, **_wanted(given, now))
    except InvalidArgument as error:
        problem = f"{sentence(str(error))}."
    groups = sorted(found.groups, key=_ORDERS.get(order, _ORDERS["last"]))
    farther = {**given, "sort": order, "look": "far"}
    values = {
        "groups": [(one, {**selection_of(one), **given}) for one in groups],
        "total": sum(one.count for one in groups),
        "looked_at": None if found.is_complete else found.looked_at,
        "farther": None if found.is_complete or far else request.url("failures", **farther),
        "filters": dict.fromkeys(_FILTERS, "") | given,
        "given": given,
        "problem": problem,
        "suggested": suggestions(
            request,
            queues=(queue for one in found.groups for queue in one.queues),
            tasks=(one.task_name for one in found.groups),
        ),
        "orders": {name: request.url("failures", **given, **far, sort=name) for name in _ORDERS},
        "order": order,
        "now": now,
    }
    return View(template="failures.html", title="Failures", values=values, data=found)


_NAMES: Final = ("queue", "task", "key", "topic", "exception")
_FILTERS: Final = (*_NAMES, "since", "until")
_ORDERS: Final[Mapping[str, Callable[[DeadLetterGroup], Any]]] = {
    "last": lambda one: (-one.last_failed_at.timestamp(), one.id),
    "first": lambda one: (one.first_failed_at, one.id),
    "number": lambda one: (-one.count, one.id),
    "task": lambda one: (one.task_name, one.exception or "", one.id),
}
"""The orders of the groups. Only "last" changes while tasks keep failing in the same way."""


def _wanted(given: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Return the filters for the store. Raises InvalidArgument."""
    return {
        "partition_key" if name == "key" else name: value if name in _NAMES else read_since(value, name, now)
        for name, value in given.items()
    }


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
