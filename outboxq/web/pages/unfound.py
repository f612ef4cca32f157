"""The page of what is not there, or cannot be done: a sentence, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..request import View
from .cures import Offer


def unfound(
    title: str,
    sentence: str,
    *,
    task_id: UUID | None = None,
    several: Sequence[UUID] = (),
    first: UUID | None = None,
    offered: Sequence[Offer] = (),
    data: object = None,
    status: int = 404,
) -> View:
    """Return the page. It links to `several` tasks that may be meant, and leads to the `first` task that is to be dealt with."""
    values = {"sentence": sentence, "task_id": task_id, "several": several, "first": first, "offers": offered}
    return View(template="unfound.html", title=title, values=values, data=data, status=status)
