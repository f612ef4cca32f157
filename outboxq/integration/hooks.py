"""Hooks: an application's own code around the sending and the handling of tasks, for traces, metrics and the like.

Hooks watch. An exception of a hook is logged, and changes neither what is enqueued nor how a task ends. What must succeed before
a handler may run, such as a framework's set-up, belongs to an `Integration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from uuid import UUID

from ..context import TaskContext
from ..model import Handle, Outcome


@dataclass(frozen=True, kw_only=True)
class Sending:
    """One enqueue, enqueue_many or emit that is about to be written."""

    task_names: tuple[str, ...]
    """The name of the task; empty for an emit, whose subscribers the database knows."""
    topic: str | None
    """The topic of an emit; None: a task is enqueued by name."""
    queue: str | None
    """The queue in which the tasks will wait; None for an emit: each subscriber has its own."""
    count: int | None
    """The number of tasks; None for an emit."""
    ids: tuple[UUID, ...]
    """The ids of the new tasks, in the order of the calls; empty for an emit. A taken idempotency key keeps its own task."""
    pipeline_execution_id: UUID | None
    """The common id of the tasks of an emit or an enqueue_many; None: the task is enqueued by itself."""
    size: int
    """The arguments of all tasks, or the payload of an emit, in bytes of JSON."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers so far: those of the caller, and of the hooks before this one."""
    handles: list[Handle] = field(default_factory=list, repr=False)
    """The handles of the tasks; empty until they are written, so for a context manager to read when it is left."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """A worker that has started or stopped."""

    id: UUID
    """The worker's id, new at each start; `context.claim.worker_id` of the tasks that it runs."""
    label: str
    """The name for people, such as `host:pid`."""
    queues: Sequence[str] | None
    """The queues that it works on; None: all."""
    topics: Sequence[str] | None
    """The topics to whose tasks it is limited; None: all tasks."""
    concurrency: int
    """The number of handlers that may run at once."""
    task_names: Sequence[str]
    """The names of the tasks that it knows."""


class Hook:
    """The base class of hooks, for `Outbox(hooks=[…])`. Override what you need: a method that is not overridden costs nothing.

    The first hook of the list is entered first and left last. An Exception of a hook is logged once a minute with the hook's
    name, and the other hooks go on. One hook is called by many threads at once.
    """

    def sending(self, sent: Sending) -> AbstractContextManager[Mapping[str, str] | None]:  # noqa: ARG002 - for those who override it
        """Return a context manager around the write of an enqueue, an enqueue_many or an emit.

        It yields headers for all tasks of the call, or None. They are laid over `sent.headers`, and handlers find them in
        `ctx.headers`. An error of the call is raised inside the context manager, and reaches the caller in any case. The caller's
        transaction may still be rolled back afterwards.
        """
        return nullcontext()

    def handling(self, context: TaskContext) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager around an attempt, in the handler's thread: around the framework's work and the transaction too.

        The exception that failed the attempt, `context.error`, is raised inside it. Whether it is swallowed makes no difference.
        """
        return nullcontext()

    def ended(self, context: TaskContext, outcome: Outcome, seconds: float) -> None:
        """Take note of an outcome, inside `handling`, after an attempt of so many seconds. `context.error` is its exception.

        With `context.was_killed` it is not inside `handling`: the handler does not end, or its child process has died.

        The completion of a transactional task is committed by then; any other outcome is on its way to the database. It is not
        called if the lease was lost, since the outcome is then discarded.
        """

    def worker_started(self, worker: WorkerInfo) -> None:
        """Take note of a worker that is about to begin, in this process."""

    def worker_stopped(self, worker: WorkerInfo) -> None:
        """Take note of a worker that has ended its work. It is not called in a process that is killed or told to stop at once."""
