"""The pages about batches and chains: the newest ones, and a single one with its tasks and its drawing.

The drawing shows a batch or a chain, and the tasks that follow it, as boxes in a row with arrows between them. The geometry is
in attributes and the colors are in the style sheet, because pages must not contain inline styles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from uuid import UUID

from werkzeug.exceptions import NotFound

from ...errors import BatchNotFound
from ...model import TaskStatus
from ...model.batches import UNCLOSED, Batch, BatchKind, BatchStatus, first_id
from ...model.wording import grouped, plain_text, plural
from ...operating.verb import Noun, State, Verb
from ...operating.verbs import DISCARD, REDRIVE
from ...store.producing.batches import Member
from ..request import PageRequest, View
from .actions import Offer, offered, url_of

_MOST = 100
"""The maximum number of batches, or of tasks in a batch, on a page."""
WIDTH: Final = 176
GAP: Final = 32
"""The space between two boxes, which contains the arrow."""
_BAR: Final = 156
"""The width of the bar in a batch's box."""
_DRAWN: Final = 10
"""The maximum number of tasks that are drawn as separate boxes."""
_LONGEST: Final = 23
"""The number of characters that fit into a box."""


def page(request: PageRequest) -> View:
    """Show the newest batches and chains."""
    only_open = request.query.get("state") == "open"
    found = request.store.batches.list(limit=_MOST, only_open=only_open)
    values = {"batches": found, "only_open": only_open, "now": request.store.now()}
    return View(template="pages/batches.html", title="Batches", values=values, data=[_record(one) for one in found])


def one_page(request: PageRequest) -> View:
    """Show a batch with its counts, its tasks that are not Completed, and the tasks that follow the batch. Raises
    NotFound.
    """
    batch_id = request.path["batch_id"]
    try:
        found = request.store.batches.get(batch_id)
    except BatchNotFound as error:
        raise NotFound(f"There is no batch {batch_id}. A batch is deleted with its tasks.") from error
    drawn = {one.id: one for one in request.store.batches.named(drawn_ids(found))}
    members = request.store.batches.not_completed(batch_id, limit=_MOST)
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
    return View(template="pages/batch.html", title=found.name or str(found.id), values=values, data=data)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The share of a batch's tasks that ended in the same way, as a segment of a bar."""

    x: float
    width: float
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A task, all tasks in a batch, or the tasks that are left out of the drawing."""

    x: int
    title: str
    note: str
    kind: str
    """The name of the box's color in the style sheet."""
    words: str
    """The complete title and note."""
    url: str | None = None
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """The drawing of a batch or a chain, as boxes from left to right."""

    boxes: tuple[Box, ...]
    label: str
    """A sentence that describes the drawing to people who cannot see it."""

    @property
    def width(self) -> int:
        return len(self.boxes) * (WIDTH + GAP) - GAP


def drawn_ids(batch: Batch) -> list[UUID]:
    """Return the ids of the tasks that are drawn as separate boxes."""
    return [task_id for _, task_id, _ in _window(batch)]


def drawing_of(batch: Batch, known: Mapping[UUID, Member], url: Callable[[UUID], str]) -> Drawing | None:
    """Return the drawing of a batch or a chain; None for a batch that no task follows. `known` contains the stored
    tasks whose ids are in `drawn_ids`, and `url` returns the address of the page about a task.
    """
    calls = _calls(batch)
    if not batch.then_ids:
        return None
    drawn = _window(batch)
    boxes = [_tasks(batch)] if batch.kind is BatchKind.BATCH else []
    left, right = drawn[0][0], len(calls) - drawn[-1][0] - 1
    boxes += [_others(left)] if left else []
    boxes += [_task(batch, place, name, known.get(task_id), url(task_id)) for place, task_id, name in drawn]
    boxes += [_others(right)] if right else []
    step = WIDTH + GAP
    placed = [replace(one, x=x * step, title=_cut(one.title), note=_cut(one.note)) for x, one in enumerate(boxes)]
    label = f"{batch.kind.value.capitalize()}: {', then '.join(one.words for one in boxes)}."
    return Drawing(boxes=tuple(placed), label=label)


def _calls(batch: Batch) -> list[tuple[UUID, str | None]]:
    """Return the ids and names of the tasks that are drawn one after another. The name of a chain's first task is not stored
    with the chain.
    """
    first: list[tuple[UUID, str | None]] = [(first_id(batch.id), None)] if batch.kind is BatchKind.CHAIN else []
    return first + list(zip(batch.then_ids, batch.then_names, strict=True))


def _window(batch: Batch) -> list[tuple[int, UUID, str | None]]:
    """Return the tasks around the one that was enqueued last, with their places."""
    calls = _calls(batch)
    enqueued = batch.stage + (batch.kind is BatchKind.CHAIN)
    begin = max(0, min(enqueued - _DRAWN // 2, len(calls) - _DRAWN))
    return [(place, *calls[place]) for place in range(begin, min(begin + _DRAWN, len(calls)))]


def _tasks(batch: Batch) -> Box:
    """Return the box for the tasks in a batch, with a bar that shows how they ended."""
    counts = (("completed", batch.completed), ("failed", batch.failed), ("cancelled", batch.cancelled))
    title = f"{grouped(batch.size)} {plural(batch.size, 'task')}"
    notes = [f"{grouped(count)} {kind}" for kind, count in counts if count]
    notes += [f"{grouped(batch.pending)} not ended"] if batch.pending else []
    shares, x = [], 0.0
    for kind, count in counts:
        width = round(_BAR * min(count / max(1, batch.size), 1.0), 2)
        shares += [Share(x=x, width=width, kind=kind)] if width else []
        x = round(x + width, 2)
    color = "failed" if batch.awaited else _COLORS.get(batch.status, "running")
    note = ", ".join(notes[:1] if len(notes) > 2 else notes)
    words = f"{title} ({', '.join(notes)})" if notes else title
    return Box(x=0, title=title, note=note, kind=color, words=words, shares=tuple(shares))


_COLORS: Final = {
    BatchStatus.COMPLETED: "completed",
    BatchStatus.CANCELLED: "cancelled",
    BatchStatus.UNCLOSED: "warning",
}


def _task(batch: Batch, place: int, name: str | None, stored: Member | None, url: str) -> Box:
    title = plain_text(name if stored is None else stored.task_name) or "its first task"
    enqueued = batch.stage + (batch.kind is BatchKind.CHAIN)
    if stored is not None:
        note, kind = stored.status.lower(), stored.status.lower()
        if stored.status is TaskStatus.READY:
            note = "waiting"
    elif place < enqueued:
        note, kind = "deleted", "cancelled"
    elif batch.status in (BatchStatus.RUNNING, BatchStatus.COMPLETED) and batch.runs_then:
        note, kind = "not enqueued", "planned"
    else:
        note, kind = "will not run", "planned"
    return Box(x=0, title=title, note=note, kind=kind, words=f"{title} ({note})", url=url)


def _others(number: int) -> Box:
    title = f"{grouped(number)} more {plural(number, 'task')}"
    return Box(x=0, title=title, note="listed above", kind="planned", words=title)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
