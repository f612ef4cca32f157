"""The pages of batches and chains: the newest of them, and one with its tasks."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

from werkzeug.exceptions import NotFound

from ...errors import BatchNotFound, InvalidTransition
from ...model import TaskStatus
from ...model.batches import UNCLOSED, Batch
from ...model.wording import plural
from ..formats import sentence
from ..request import PageRequest, Redirect, View
from .task_actions import reason_of

_MOST = 100
"""Maximum number of batches, or of tasks of a batch, on a page."""
_SHOWN_FIRST = (TaskStatus.FAILED, TaskStatus.RUNNING, TaskStatus.READY, TaskStatus.CANCELLED)


def page(request: PageRequest) -> View:
    """Show the newest batches and chains."""
    only_open = request.query.get("state") == "open"
    found = request.store.batches.list(limit=_MOST, only_open=only_open)
    return View(
        template="batches.html",
        title="Batches",
        values={"batches": found, "only_open": only_open, "now": request.store.now()},
        data=[record_of(one) for one in found],
    )


def one_page(request: PageRequest) -> View:
    """Show a batch: its counts, what follows, and the tasks that have not completed. Raises NotFound."""
    batch_id = request.path["batch_id"]
    try:
        found = request.store.batches.get(batch_id)
    except BatchNotFound as error:
        raise NotFound(f"There is no batch {batch_id}. A batch goes once its tasks are pruned.") from error
    members = list(islice(request.store.batches.members(batch_id, _SHOWN_FIRST), _MOST))
    typed = request.outbox.integration.front_end.typed
    return View(
        template="batch.html",
        title=found.name or str(found.id),
        values={
            "batch": found,
            "unclosed": UNCLOSED,
            "now": request.store.now(),
            "members": members,
            "is_cut": len(members) == _MOST,
            "then": list(zip(found.then_ids, found.then_names, strict=True)),
            "cancel": typed(("batch", "cancel", str(found.id))),
        },
        data={**record_of(found), "members": [{"id": one.id, "status": one.status} for one in members]},
    )


def cancel(request: PageRequest) -> Redirect:
    """Cancel the tasks of a batch that have not ended."""
    batch_id = request.path["batch_id"]
    url = request.url("batch", batch_id=batch_id)
    try:
        number = request.store.batches.cancel(batch_id, reason=reason_of(request))
    except BatchNotFound as error:
        return Redirect(url=request.url("batches"), notice=f"Nothing was done: {error}.", is_warning=True)
    except InvalidTransition as error:
        return Redirect(url=url, notice=f"{sentence(str(error))}.", is_warning=True)
    return Redirect(
        url=url,
        notice=f"{number} {plural(number, 'task of the batch was', 'tasks of the batch were')} cancelled or asked to stop. Nothing follows it.",
    )


def record_of(one: Batch) -> dict[str, Any]:
    """Return the record of a batch, with what is computed from its counts."""
    return {**asdict(one), "pending": one.pending, "awaited": one.awaited, "status": one.status}
