"""The pages about dead letters: all groups by task, exception and message, or by exception alone, and a single group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ...errors import InvalidArgument
from ...model.wording import sentence
from ...operating.reading import read_since, read_utc
from ...store import DeadLetterGroup
from ...store.tasks.dead_letter_groups import DeadLetterGroups
from ...store.tasks.tasks import attempts_of
from ..request import PageRequest, View
from .actions import unfound
from .tasks import suggestions

_GROUPS: Final = 100
_ROWS: Final = 50
_FEW: Final = 2_000
_MANY: Final = 10_000
"""The default and the maximum number of dead letters that a page groups, beginning with the newest. Grouping 10,000
takes about 100 ms, so a page groups that many only on request, or if it does not find the requested group among the
newest 2,000.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupByException:
    """The dead letters with the same exception, whatever their tasks and messages."""

    exception: str | None
    """The exception's class; None for tasks that failed without an exception."""
    task_names: tuple[str, ...]
    """The names of the tasks. The task with the most dead letters comes first."""
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    newest: UUID
    """The id of the task that failed last."""
    queues: tuple[str, ...]


def page(request: PageRequest) -> View:
    """Show the groups that match the filters, in the chosen order."""
    given = {name: value for name in _FILTERS if (value := request.query.get(name, ""))}
    order, by = request.query.get("sort", "last"), request.query.get("by", "")
    chosen = {"by": by} if by == _BY_EXCEPTION else {}
    far = {"look": "far"} if request.query.get("look") == "far" else {}
    now, found, problem = request.store.now(), DeadLetterGroups(groups=[], looked_at=0, is_complete=True), ""
    try:
        if order not in _ORDERS:
            raise InvalidArgument(f"cannot sort by {order!r}: choose one of {', '.join(_ORDERS)}")
        if by not in {"", _BY_EXCEPTION}:
            raise InvalidArgument(f"cannot group by {by!r}: use {_BY_EXCEPTION}, or leave `by` out")
        most = _MANY if far else _FEW
        limit = most if chosen else _GROUPS
        found = request.store.dead_letters.groups(limit=limit, most=most, **_wanted(given, now))
    except InvalidArgument as error:
        problem = f"{sentence(str(error))}."
    joined = by_exception(found.groups) if chosen else found.groups
    groups, is_complete = joined[:_GROUPS], found.is_complete and len(joined) <= _GROUPS
    asked = {**given, **chosen}
    farther = {**asked, "sort": order, "look": "far"}
    values = {
        "groups": [
            (one, {**selection_of(one), **given} if isinstance(one, DeadLetterGroup) else _selection_of_all(one, given))
            for one in sorted(groups, key=_ORDERS.get(order, _ORDERS["last"]))
        ],
        "total": sum(one.count for one in groups),
        "looked_at": None if is_complete else found.looked_at,
        "farther": None if is_complete or far else request.url("failures", **farther),
        "filters": dict.fromkeys(_FILTERS, "") | given,
        "given": given,
        "problem": problem,
        "suggested": suggestions(
            request,
            queues=(queue for one in found.groups for queue in one.queues),
            tasks=(one.task_name for one in found.groups),
        ),
        "orders": {name: request.url("failures", **asked, **far, sort=name) for name in _ORDERS},
        "order": order,
        "by": chosen.get("by", ""),
        "other_groups": request.url(
            "failures", **given, **far, sort=order, **({} if chosen else {"by": _BY_EXCEPTION})
        ),
        "now": now,
    }
    data = {"groups": groups, "looked_at": found.looked_at, "is_complete": is_complete} if chosen else found
    return View(template="pages/failures.html", title="Failures", values=values, data=data)


def by_exception(groups: Iterable[DeadLetterGroup]) -> list[GroupByException]:
    """Return the groups by exception alone, largest first. With this grouping, a server that is down takes up only one
    row, no matter how many tasks call it.
    """
    found: dict[str | None, list[DeadLetterGroup]] = {}
    for one in groups:
        found.setdefault(one.exception, []).append(one)
    joined = [_joined(exception, several) for exception, several in found.items()]
    return sorted(joined, key=lambda one: (-one.count, one.exception or ""))


def _joined(exception: str | None, groups: Iterable[DeadLetterGroup]) -> GroupByException:
    several = sorted(groups, key=lambda one: one.last_failed_at)
    counts = Counter[str]()
    for one in several:
        counts[one.task_name] += one.count
    return GroupByException(
        exception=exception,
        task_names=tuple(sorted(counts, key=lambda name: (-counts[name], name))),
        count=counts.total(),
        first_failed_at=min(one.first_failed_at for one in several),
        last_failed_at=several[-1].last_failed_at,
        newest=several[-1].newest,
        queues=tuple(sorted({queue for one in several for queue in one.queues})),
    )


def _selection_of_all(group: GroupByException, given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the filters that select the dead letters with a group's exception; None if the group has no exception."""
    return None if group.exception is None else {**given, "exception": group.exception}


_NAMES: Final = ("queue", "task", "key", "topic", "exception")
_FILTERS: Final = (*_NAMES, "since", "until")
_BY_EXCEPTION: Final = "exception"


def _name_of(one: DeadLetterGroup | GroupByException) -> tuple[str, ...]:
    """Return the words by which groups are sorted."""
    if isinstance(one, GroupByException):
        return (one.exception or "",)
    return one.task_name, one.exception or "", one.id


_ORDERS: Final[Mapping[str, Callable[[DeadLetterGroup | GroupByException], Any]]] = {
    "last": lambda one: (-one.last_failed_at.timestamp(), _name_of(one)),
    "first": lambda one: (one.first_failed_at, _name_of(one)),
    "number": lambda one: (-one.count, _name_of(one)),
    "task": _name_of,
}
"""The sort orders for the groups. While tasks keep failing in the same way, only the "last" order changes."""


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
        gone = "This group no longer has any dead letters, or has none among the newest 10,000."
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
    return View(template="pages/failure_group.html", title=title, values=values, data=data)


def selection_of(group: DeadLetterGroup) -> dict[str, Any]:
    """Return the filters that select a group. The filters include the group's task and exception, so that few errors
    have to be compared one by one.
    """
    exception = {} if group.exception is None else {"exception": group.exception}
    return {"group": group.id, "task": group.task_name, **exception}


def _place(request: PageRequest) -> tuple[datetime, UUID] | None:
    """Return the position after which the page begins. Raises InvalidArgument for a position that cannot come from a
    link on a page.
    """
    text = request.query.get("after")
    if not text:
        return None
    at, _, task_id = text.partition("_")
    try:
        return read_utc(at, "after"), UUID(task_id)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a position for `after`") from None
