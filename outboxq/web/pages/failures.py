"""The dead letters, grouped by task, exception and message; and one group of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ...errors import InvalidArgument
from ...operating.reading import read_utc
from ...store import DeadLetter, DeadLetterGroup
from ...store.tasks.tasks import attempts_of
from ..request import PageRequest, View
from .actions import unfound

_GROUPS: Final = 100
_ROWS: Final = 50
_FEW: Final = 2_000
_MANY: Final = 10_000
"""The number of dead letters that are put into groups: 10 000 take some 100 ms, so a page does it only where it must."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The last failure of a dead letter of a group."""

    task_id: UUID
    error: str
    traceback: str


def page(request: PageRequest) -> View:
    """Show the groups, those with the latest failure first."""
    filters = _filters(request)
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
    """Show the dead letters of one group, newest first, with a sample of their traceback."""
    group_id = request.path["group"]
    for most in (_FEW, _MANY):
        found = request.store.dead_letters.groups(limit=1, most=most, group=group_id)
        if found.groups:
            break
    else:
        gone = "There is no dead letter of this group any more, or none among the newest 10 000."
        return unfound("No such failures", gone)
    one = found.groups[0]
    listed = request.store.dead_letters.list(limit=_ROWS + 1, after=_place(request), **selection_of(one))
    shown, more = listed[:_ROWS], len(listed) > _ROWS
    values = {
        "group": one,
        "looked_at": None if found.is_complete else found.looked_at,
        "letters": shown,
        "older": _older(request, shown[-1]) if more and shown else None,
        "newer": request.url("failure_group", group=group_id) if request.query.get("after") else None,
        "sample": _sample(request, one),
        "selection": selection_of(one),
        "redrive": request.outbox.integration.front_end.typed(("failed", "redrive", "--group", one.id)),
        "now": request.store.now(),
    }
    return View(
        template="failure_group.html",
        title=f"{one.task_name}: {one.exception or 'failed'}",
        values=values,
        data={"group": one, "dead_letters": shown},
    )


def selection_of(group: DeadLetterGroup) -> dict[str, Any]:
    """Return the filters of a group. Its task and its exception leave few errors to be compared one by one."""
    exception = {} if group.exception is None else {"exception": group.exception}
    return {"group": group.id, "task": group.task_name, **exception}


def _filters(request: PageRequest) -> dict[str, Any]:
    return {name: value for name in ("queue", "task") if (value := request.query.get(name, ""))}


def _place(request: PageRequest) -> tuple[datetime, UUID] | None:
    """Return the place behind which the page begins. Raises InvalidArgument for one that no page has linked."""
    text = request.query.get("after")
    if not text:
        return None
    at, _, task_id = text.partition("_")
    try:
        return read_utc(at, "after"), UUID(task_id)
    except ValueError:
        raise InvalidArgument(f"after names no place in the list: {text!r}") from None


def _older(request: PageRequest, last: DeadLetter) -> str:
    return request.url("failure_group", group=request.path["group"], after=f"{last.failed_at.isoformat()}_{last.id}")


def _sample(request: PageRequest, one: DeadLetterGroup) -> Sample | None:
    """Return the failure of the newest dead letter; None if it is not there any more."""
    failed = [attempt for attempt in attempts_of(request.store.recent_history(one.newest, 4)) if attempt.error]
    if not failed:
        return None
    return Sample(task_id=one.newest, error=failed[-1].error or "", traceback=failed[-1].traceback or "")
