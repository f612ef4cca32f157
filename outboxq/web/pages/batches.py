"""The pages about batches and chains: the newest ones, and a single one with its tasks."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any
from uuid import UUID

from werkzeug.exceptions import NotFound

from ...errors import BatchNotFound
from ...model import TaskStatus
from ...model.batches import UNCLOSED, Batch
from ...operating.verb import Noun, State, Verb
from ...operating.verbs import DISCARD, REDRIVE
from ..request import PageRequest, View
from ..workflow import drawing_of, drawn_ids
from .actions import Offer, offered, url_of

_MOST = 100
"""The maximum number of batches, or of tasks in a batch, on a page."""
_SHOWN_FIRST = (TaskStatus.FAILED, TaskStatus.RUNNING, TaskStatus.READY, TaskStatus.CANCELLED)


def page(request: PageRequest) -> View:
    """Show the newest batches and chains."""
    only_open = request.query.get("state") == "open"
    found = request.store.batches.list(limit=_MOST, only_open=only_open)
    values = {"batches": found, "only_open": only_open, "now": request.store.now()}
    return View(template="batches.html", title="Batches", values=values, data=[_record(one) for one in found])


def one_page(request: PageRequest) -> View:
    """Show a batch with its counts, the tasks that follow it, and its tasks that have not
    completed. Raises NotFound.
    """
    batch_id = request.path["batch_id"]
    try:
        found = request.store.batches.get(batch_id)
    except BatchNotFound as error:
        raise NotFound(f"There is no batch {batch_id}. A batch is deleted with its tasks.") from error
    drawn = {one.id: one for one in request.store.batches.named(drawn_ids(found))}
    members = list(islice(request.store.batches.members(batch_id, _SHOWN_FIRST), _MOST))
    # A batch belongs to no queue, so its page offers what the viewer may do in all queues.
    verbs = [one for one in (REDRIVE, DISCARD) if request.viewer.may(one.recorded_as, None)]
    values = {
        "batch": found,
        "unclosed": UNCLOSED,
        "now": request.store.now(),
        "members": members,
        "is_cut": len(members) == _MOST,
        "drawing": drawing_of(found, drawn, lambda task_id: request.url("task", task_id=task_id)),
        "then": list(zip(found.then_ids, found.then_names, strict=True)),
        "cures": {
            one.id: [_offer(request, verb, one.id, batch_id) for verb in verbs]
            for one in members
            if one.status is TaskStatus.FAILED and verbs
        },
        "acts": offered(request, Noun.BATCH, batch_id, State(has_ended=found.completed_at is not None)),
        "cancel": request.typed("batch", "cancel", str(found.id)),
    }
    data = {**_record(found), "members": [{"id": one.id, "status": one.status} for one in members]}
    return View(template="batch.html", title=found.name or str(found.id), values=values, data=data)


def _offer(request: PageRequest, verb: Verb, task_id: UUID, batch_id: UUID) -> Offer:
    """Return the button that redrives or discards a dead letter and leads back to its batch."""
    return Offer(
        purpose=verb.name,
        command=request.typed(*verb.words, str(task_id)),
        href=None,
        action=url_of(request, verb, task_id),
        fields={"back": str(batch_id)},
        is_final=verb.is_final,
    )


def _record(one: Batch) -> dict[str, Any]:
    """Return the record of a batch, including the values that are derived from its counts."""
    return {**asdict(one), "pending": one.pending, "awaited": one.awaited, "status": one.status}
