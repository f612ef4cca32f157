"""The names in the filters of a bulk change that matches nothing: a mistyped name would look like a success."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from ..model.unknown_options import nearest, no_queue, no_task_name
from .console import EXIT_NOT_FOUND, fail
from .database import present_outbox

if TYPE_CHECKING:
    from ..store import Store

_COUNTED_WITHIN = timedelta(days=30)
_MOST_GROUPS = 1_000


def ensure_known(store: Store, wanted: Mapping[str, object]) -> None:
    """Exit if the filters name a queue or a task that the database and the application do not know."""
    queue, task = wanted.get("queue"), wanted.get("task")
    if isinstance(queue, str) and not store.queues.is_known(queue):
        fail(no_queue(queue, [one.queue for one in store.queues.list()]), EXIT_NOT_FOUND)
    if isinstance(task, str) and task not in (known := _task_names(store)) and not store.tasks(task=task, limit=1):
        fail(no_task_name(task, known), EXIT_NOT_FOUND)


def none_matched(store: Store, noun: str, wanted: Mapping[str, object]) -> str:
    """Return the sentence about filters that match nothing. An exception that no dead letter has may be mistyped."""
    sentence, exception = f"0 {noun} matched", wanted.get("exception")
    if not isinstance(exception, str):
        return sentence
    names = {one.exception for one in store.dead_letters.groups(limit=_MOST_GROUPS).groups if one.exception is not None}
    if "." not in exception:
        names = {name.rpartition(".")[2] for name in names}
    return f"{sentence}: {_of_exception(exception, names)}"


def _of_exception(exception: str, names: Collection[str]) -> str:
    if exception in names:
        return f"the dead letters with the exception {exception!r} do not match the other filters"
    return f"no dead letter has the exception {exception!r}{nearest(exception, names)}"


def _task_names(store: Store) -> set[str]:
    """Return the names of tasks in the application, in schedules and subscriptions, among the dead letters, and those
    that workers of the last week know or have counted.
    """
    from ..store.claims.workers import KEPT

    outbox = present_outbox()
    return {
        *(() if outbox is None else (one.name for one in outbox.tasks)),
        *(one.task_name for one in store.schedules.list()),
        *(one.task_name for one in store.subscriptions.list()),
        *(one.task_name for one in store.dead_letters.groups(limit=_MOST_GROUPS).groups),
        *(name for one in store.workers.presence(KEPT, with_ended=True).workers for name in one.task_names),
        *(one.task_name for one in store.stats(window=_COUNTED_WITHIN, by="task") if one.task_name is not None),
    }
