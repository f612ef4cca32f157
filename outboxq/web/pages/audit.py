"""The page of what people changed: who, with which front end, what, why, and how many."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from ...errors import InvalidArgument
from ...model.actions import OperatorAction
from ...model.display import as_json
from ...operating.verb import Noun
from ...operating.verbs import RECORDED, noun_of
from ..request import PageRequest, View

_ROWS: Final = 50
_FILTERS: Final = ("action", "operator", "target")


def page(request: PageRequest) -> View:
    """Show the newest changes by people. Raises InvalidArgument."""
    given: dict[str, Any] = {name: value for name in _FILTERS if (value := request.query.get(name, "").strip())}
    before = request.query.get("before")
    try:
        last = None if before is None else UUID(before)
    except ValueError:
        raise InvalidArgument(f"before takes a complete id, not {before!r}") from None
    found = request.store.actions.list(limit=_ROWS + 1, before=last, **given)
    shown = found[:_ROWS]
    values = {
        "actions": [(one, address_of(request, one), details_of(one)) for one in shown],
        "names": RECORDED,
        "filters": dict.fromkeys(_FILTERS, "") | given,
        "given": given,
        "now": request.store.now(),
        "older": request.url("actions", **given, before=shown[-1].id) if len(found) > _ROWS else None,
    }
    return View(template="actions.html", title="Actions", values=values, data=shown)


def address_of(request: PageRequest, action: OperatorAction) -> str | None:
    """Return the URL of the page about the target. A bulk change that a task makes has the id of that task."""
    noun, target = noun_of(action.action), action.target
    if target is None:
        return None
    match noun:
        case Noun.QUEUE | Noun.SCHEDULE | Noun.RELAY:
            return request.url(noun, name=target)
        case Noun.BATCH:
            return request.url("batch", batch_id=UUID(target))
        case Noun.WORKER:
            return request.url("worker", worker_id=UUID(target))
        case Noun.TASK:
            return request.url("task", task_id=target)
    return None


def details_of(action: OperatorAction) -> str:
    """Return the values or the filters of an action in words, such as "queue: mail, limit: 300"."""
    details: dict[str, Any] = as_json(action.details)
    return ", ".join(f"{name.replace('_', ' ')}: {_words(value)}" for name, value in details.items())


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
