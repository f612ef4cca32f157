"""The drawing of a workflow: a batch or a chain, and the tasks that follow it, as boxes in a row with arrows between them.

The geometry is in attributes and the colours are in the style sheet, because pages must not contain inline styles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from ..model import TaskStatus
from ..model.batches import Batch, BatchKind, BatchStatus, first_id
from ..model.wording import grouped, plain_text, plural
from ..store.producing.batches import Member

WIDTH: Final = 176
GAP: Final = 32
"""The space between two boxes, in which the arrow is."""
_BAR: Final = 156
"""The width of the bar in the box of a batch."""
_MOST: Final = 10
"""The maximum number of tasks that are drawn as boxes of their own."""
_LONGEST: Final = 23
"""The number of characters that fit into a box."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The part of a batch's tasks that ended in the same way, as a piece of a bar."""

    x: float
    width: float
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A task, all tasks of a batch, or the tasks that are left out of the drawing."""

    x: int
    title: str
    note: str
    kind: str
    """The name of its colour in the style sheet."""
    words: str
    """The title and the note in full."""
    url: str | None = None
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """The boxes from left to right."""

    boxes: tuple[Box, ...]
    label: str
    """A sentence that describes the drawing to people who cannot see it."""

    @property
    def width(self) -> int:
        return len(self.boxes) * (WIDTH + GAP) - GAP


def drawn_ids(batch: Batch) -> list[UUID]:
    """Return the ids of the tasks that are drawn as boxes of their own."""
    return [task_id for _, task_id, _ in _window(batch)]


def drawing_of(batch: Batch, known: Mapping[UUID, Member], url: Callable[[UUID], str]) -> Drawing | None:
    """Return the drawing of a batch or a chain; None for a batch that nothing follows. `known` contains the stored tasks
    among `drawn_ids`, and `url` returns the address of the page about a task.
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
    placed = tuple(
        replace(one, x=place * (WIDTH + GAP), title=_cut(one.title), note=_cut(one.note))
        for place, one in enumerate(boxes)
    )
    return Drawing(
        boxes=placed, label=f"{batch.kind.value.capitalize()}: {', then '.join(one.words for one in boxes)}."
    )


def _calls(batch: Batch) -> list[tuple[UUID, str | None]]:
    """Return the ids and names of the tasks that are drawn one after another. The name of a chain's first task is not stored
    with the chain.
    """
    first: list[tuple[UUID, str | None]] = [(first_id(batch.id), None)] if batch.kind is BatchKind.CHAIN else []
    return first + list(zip(batch.then_ids, batch.then_names, strict=True))


def _window(batch: Batch) -> list[tuple[int, UUID, str | None]]:
    """Return the tasks around the last one that was enqueued, with their places."""
    calls = _calls(batch)
    enqueued = batch.stage + (batch.kind is BatchKind.CHAIN)
    begin = max(0, min(enqueued - _MOST // 2, len(calls) - _MOST))
    return [(place, *calls[place]) for place in range(begin, min(begin + _MOST, len(calls)))]


def _tasks(batch: Batch) -> Box:
    """Return the box for the tasks of a batch, with a bar that shows how they ended."""
    counts = (("completed", batch.completed), ("failed", batch.failed), ("cancelled", batch.cancelled))
    title = f"{grouped(batch.size)} {plural(batch.size, 'task')}"
    notes = [f"{grouped(count)} {kind}" for kind, count in counts if count]
    notes += [f"{grouped(batch.pending)} not ended"] if batch.pending else []
    shares, x = [], 0.0
    for kind, count in counts:
        width = round(_BAR * min(count / max(1, batch.size), 1.0), 2)
        shares += [Share(x=x, width=width, kind=kind)] if width else []
        x = round(x + width, 2)
    colour = "failed" if batch.awaited else _COLOURS.get(batch.status, "running")
    note = ", ".join(notes[:1] if len(notes) > 2 else notes)
    words = f"{title} ({', '.join(notes)})" if notes else title
    return Box(x=0, title=title, note=note, kind=colour, words=words, shares=tuple(shares))


_COLOURS: Final = {
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
