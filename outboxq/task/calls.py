"""Calls of tasks that are described and not enqueued yet, and what they are added to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import UUID

from ..integration.ambient import OutboxRef
from ..model import Handle, NewTask
from ..model.uuid7 import uuid7

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCall(Generic[R_co]):
    """A call of a task: its arguments, checked, and its options. `Task.call()` makes one.

    A batch and a chain enqueue it later. One call may be used any number of times.
    """

    outbox: OutboxRef = field(repr=False, compare=False)
    """The outbox that the task was declared on."""
    task: NewTask
    """The task to enqueue, but for its id."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            hint = "; a chain or a batch enqueues it. To enqueue the task itself, write task.using(session).enqueue(…)"
            raise AttributeError(
                f"the call of a task has no {name!r}{hint if name == 'enqueue' else ''}", name=name, obj=self
            )

    def as_new(self, task_id: UUID | None = None) -> NewTask:
        """Return a task of this call with the headers that hooks add, and with this id; None: one of its own."""
        task = replace(self.task, id=task_id or uuid7())
        if self.outbox.hooks is None:
            return task
        sent: list[NewTask] = []

        def send(tasks: Sequence[NewTask]) -> list[Handle]:
            sent.extend(tasks)
            return [Handle(id=one.id) for one in tasks]

        self.outbox.hooks.enqueue([task], send)
        return sent[0]


class BatchTarget(Protocol):
    """A batch to which tasks can be added by ``task.using(batch)``."""

    @property
    def id(self) -> UUID:
        """The id of the batch."""

    @property
    def outbox(self) -> object:
        """The outbox of its tasks."""

    @property
    def target(self) -> Any:
        """The transaction in which tasks are added, as `using()` takes it."""

    def takes_tasks(self) -> bool:
        """Return True: it is a batch."""


def batch_in(target: object) -> BatchTarget | None:
    """Return the batch, if the argument of `using()` is one."""
    return target if getattr(type(target), "takes_tasks", None) is not None else None  # type: ignore[return-value]
