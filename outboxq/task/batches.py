"""The part of an Outbox that creates batches and chains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload
from uuid import UUID

from sqlalchemy.util import memoized_property

from ..context import TaskContext
from ..errors import InvalidArgument, InvalidCall, InvalidTarget, TaskNotFound, WaitRefused
from ..integration.ambient import CURRENT, resolve_target
from ..integration.uncommitted import note
from ..model import TaskStatus
from ..model.batches import (
    LONGEST_CHAIN,
    Batch,
    BatchCounts,
    BatchFailure,
    BatchKind,
    BatchLink,
    BatchResult,
    NewBatch,
    OnFailed,
    first_id,
    new_batch_id,
)
from ..model.guesses import Guess, instead_of, replacement
from ..model.options import choice
from ..model.records import Sourced
from ..model.unknown_options import naming_options
from ..model.wording import plural
from ..payload.parameters import parsed_result
from ..store import Member, Store
from ..store.failure_log import sentence
from .registry import TaskRegistry
from .results import AwaitedResults
from .task import Origin, TaskCall, batch_in

log = logging.getLogger("outboxq.store")

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OpenBatch(AbstractContextManager["OpenBatch[R_co]"]):
    """A batch. `Outbox.batch` returns this object, its `with` block writes the batch, and ``task.using(batch)`` adds
    tasks inside the block.
    """

    id: UUID
    """The id of the batch, which is the `pipeline_execution_id` of its tasks. It is set when the block begins."""
    then_id: UUID | None
    """The id of the task that will follow; None if no task follows. It is set when the block begins."""

    def __init__(self, outbox: BatchedTasks, batch: NewBatch, using: object) -> None:
        self.outbox = outbox
        self._batch, self._using = batch, using
        self._target: object = None
        self._origin: Origin | None = None
        self._is_open = self._was_named = False
        """`_was_named`: True once a task has been, or could have been, enqueued with ``using(batch)``."""

    def __repr__(self) -> str:
        return f"<OpenBatch {self._batch.id}>"

    def __enter__(self) -> Self:
        if self._origin is not None:
            raise InvalidTarget(
                f"batch {self.id} has already been created; write `with outbox.batch(…)` again for another batch"
            )
        self._block = self.outbox.making(self._batch, self._using, "a batch")
        self._target = self._block.__enter__()
        self.id = self._batch.id
        self.then_id = self._batch.then[0].id if self._batch.then else None
        self._origin, self._is_open = Origin(self.outbox, self._target), True
        return self

    def __exit__(self, *failure: object) -> bool | None:
        self._is_open = False
        is_handled = self._block.__exit__(*failure)  # type: ignore[arg-type]
        if failure[0] is None and self._batch.then and not self._was_named:
            log.warning(
                "%r is empty, so its then= task runs immediately; add tasks with task.using(batch).enqueue(…)", self
            )
        if failure[0] is None and self._using is self.outbox and self._origin is not None:
            self._origin.settle()
        return is_handled

    @property
    def target(self) -> object:
        """The transaction in which the batch is written. Raises InvalidTarget outside the `with` block."""
        if self._origin is None:
            raise InvalidTarget(f"the batch {_NOT_MADE}")
        if not self._is_open:
            raise InvalidTarget(
                f"batch {self.id} is closed: its `with` block has ended; only its own tasks can still add tasks, with using(ctx.batch)"
            )
        self._was_named = True
        return self._target

    def takes_tasks(self) -> bool:
        """Return whether tasks can be added to the batch."""
        return self._is_open

    def result(self, timeout: timedelta | float | None = None) -> R_co:
        """Wait until the batch and the task that follows it have ended, and return what that task's function returned.

        If no task follows, this method waits until the batch has ended, even if it is cancelled, and returns its
        BatchCounts. Raises TaskFailed as soon as the batch has to wait for a dead letter, and TaskCancelled if the task
        will not follow because the batch is cancelled. Otherwise, this method behaves like `Handle.result`. In another
        process, use ``outbox.result(batch.then_id)``.

        Raises WaitRefused in three cases: inside the `with` block; in the block's thread, while the block's transaction
        is open; and if the block raised an error, but its transaction was committed. With a timeout of 0, raises
        TimeoutError until the transaction has been committed.
        """
        if self._is_open and timeout not in (0, timedelta(0)):
            raise WaitRefused(
                f"batch {self.id} is not complete, so workers cannot see its tasks yet; wait for its result after the `with` "
                "block, once its transaction has been committed"
            )
        wait: Any = self.outbox.wait_for_batch if self.then_id is None else self.outbox.wait_for_result
        return wait(self.then_id or self.id, timeout, self._origin)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            hint = f"the batch has no {name!r} yet: it {_NOT_MADE}"
            cure = instead_of(replacement(Guess.ATTRIBUTE, "the batch", name))
            text = hint if name in {"id", "then_id"} else f"a batch has no {name!r}{cure}"
            raise AttributeError(text, name=name, obj=self)


_IN_A_BATCH = "task.using(batch).enqueue(…) in the `with` block"
_NOT_MADE = "is created by a `with` block; write `with outbox.batch(…) as batch:`, and call task.using(batch) inside it"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHandle(Sourced[R_co]):
    """The ids of a chain that has been enqueued."""

    _noun = "a chain handle"
    id: UUID
    """The id of the chain, which is the `pipeline_execution_id` of its tasks."""
    task_ids: tuple[UUID, ...]
    """The ids of its tasks, in order. At first, only the first task exists."""

    def result(self, timeout: timedelta | float | None = None) -> R_co:
        """Wait until the chain has ended, and return what the last task's function returned, read according to the
        return annotation.

        If a task stops the chain, the wait ends immediately, and that task's TaskFailed or TaskCancelled is raised. If
        that task became a dead letter, the chain continues after the dead letter is redriven. For `timeout` and the
        other exceptions, see `Handle.result`.

        Raises InvalidCall if the handle was pickled or copied; write ``outbox.result(handle.task_ids[-1])`` instead.
        """
        if self._known_source is None:
            raise InvalidCall(
                f"the handle of chain {self.id} does not know its outbox, because it was pickled or copied; write "
                "outbox.result(handle.task_ids[-1])"
            )
        return self._known_source.result(self.task_ids[-1], timeout)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Chain(Generic[R_co]):
    """Calls that run one after another. `Outbox.chain()` returns a chain, and `enqueue()` writes it."""

    outbox: Any = field(repr=False)
    calls: tuple[TaskCall[Any], ...]
    on_failed: OnFailed
    name: str | None = None
    target: object = CURRENT

    def using(self, target: object) -> Chain[R_co]:
        """Return the chain with the transaction in which to enqueue it, as in `Task.using`."""
        return replace(self, target=target)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            hint = f"the chain has no {name!r} yet: enqueue it with outbox.chain(…).using(session).enqueue(), and use the handle that this returns"
            cure = instead_of(replacement(Guess.ATTRIBUTE, "a chain", name))
            text = hint if name in {"id", "result", "task_ids"} else f"a chain has no {name!r}{cure}"
            raise AttributeError(text, name=name, obj=self)

        def __or__(self, other: object) -> object:
            raise InvalidCall(f"'|' does not extend a chain; write {replacement(Guess.ATTRIBUTE, 'a chain', 'then')}")

    def enqueue(self) -> ChainHandle[R_co]:
        """Enqueue the first call. Each later call is enqueued by the transaction in which the previous call completes.

        Calling this method again enqueues another chain. Raises InvalidTarget if there is no transaction to write in.
        """
        batch_id = new_batch_id()
        first = self.calls[0].as_new(first_id(batch_id))
        others = tuple(
            call.as_new(BatchLink(batch_id=batch_id, number=number).task_id)
            for number, call in enumerate(self.calls[1:], start=1)
        )
        batch = NewBatch(id=batch_id, kind=BatchKind.CHAIN, name=self.name, on_failed=self.on_failed, then=others)
        with self.outbox.making(batch, self.target, "a chain") as target:
            self.outbox.store.enqueue(replace(first, pipeline_execution_id=batch.id), using=target)
            note(target, first.task_name)
            source = Origin(self.outbox, target)
        if self.target is self.outbox:
            source.settle()
        handle: ChainHandle[R_co] = ChainHandle(id=batch.id, task_ids=(first.id, *(task.id for task in others)))
        return handle.asking(source)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIn:
    """The store that replaces an Outbox's store during a test."""

    store: Store
    making: Callable[[AbstractContextManager[object]], AbstractContextManager[object]]
    """A function that wraps the creation of a batch or a chain."""


class BatchedTasks(AwaitedResults):
    """An Outbox's batches and chains."""

    _stand_in: StandIn | None = None

    @overload
    def batch(
        self,
        *,
        then: TaskCall[R],
        using: object = ...,
        on_failed: OnFailed | str = ...,
        name: str | None = ...,
    ) -> OpenBatch[R]: ...
    @overload
    def batch(
        self,
        *,
        then: None = None,
        using: object = ...,
        on_failed: OnFailed | str = ...,
        name: str | None = ...,
    ) -> OpenBatch[BatchCounts]: ...

    @naming_options("batch()", positional=_IN_A_BATCH)
    def batch(
        self,
        *,
        using: object = CURRENT,
        then: TaskCall[Any] | None = None,
        on_failed: OnFailed | str = OnFailed.CONTINUE,
        name: str | None = None,
    ) -> OpenBatch[Any]:
        """Create a batch: ``with outbox.batch(using=session, then=report.call()) as batch:``. Add tasks to it with
        ``task.using(batch)``.

        The batch and its tasks are committed with the transaction that `using` specifies. When all of its tasks have
        ended, `then` is enqueued exactly once, by the transaction in which the last task ends. Tasks in the batch can
        add more tasks to it with ``task.using(ctx.batch)``. If the block raises an error, the batch is not closed, so
        roll the transaction back.

        Args:
            using: The owner of the transaction, as in `Task.using`. Pass the outbox itself for a separate transaction
                around the block.
            then: The call that follows the batch: ``report.call(42)``, or with options
                ``report.using(priority=5).call(42)``. None if no call follows.
            on_failed: The effect of a dead letter on the batch. "continue": the dead letter counts as ended. "wait":
                the batch waits until the dead letter is redriven and completes, or is discarded. "cancel": the other
                tasks in the batch are cancelled, and `then` still follows.
            name: A name for people to read. None means no name.

        Raises InvalidTarget if there is no transaction to write in, and InvalidArgument if an option is out of range.
        """
        batch_id, policy = new_batch_id(), choice(OnFailed, on_failed, "on_failed")
        link = BatchLink(batch_id=batch_id, number=1)
        follow = () if then is None else (_ours(self, then, "then=").as_new(link.task_id),)
        batch = NewBatch(id=batch_id, name=name, on_failed=policy, then=follow)
        return OpenBatch(self, batch, using)

    def making(self, batch: NewBatch, using: object, what: str) -> AbstractContextManager[object]:
        """Write the batch, yield the transaction's owner to the block, and close the batch, all in one transaction."""
        made = self._made(batch, using, what)
        return made if self._stand_in is None else self._stand_in.making(made)

    @contextmanager
    def _made(self, batch: NewBatch, using: object, what: str) -> Iterator[object]:
        if (outer := batch_in(using)) is not None:
            raise InvalidTarget(
                f"{what} cannot be part of {outer!r}, which takes only single tasks; create it separately, with using=session, or "
                "let a task in the batch add the next task when it finishes: task.using(ctx.batch)"
            )
        store = self.store
        with resolve_target(self, using, what, is_option=True) as known:
            unit = store.unit() if known is None else nullcontext()
            with unit as own:
                target = known if own is None else own.connection
                store.batches.create(batch, using=target)
                try:
                    yield target
                    store.batches.close(batch.id, using=target)
                except BaseException as error:
                    if own is None:
                        with suppress(Exception):  # if the transaction has failed or ended, none of it is committed
                            store.batches.forbid_commit(batch.id, sentence(error), using=target)
                    raise

    @overload
    def chain(
        self,
        *calls: *tuple[*tuple[TaskCall[Any], ...], TaskCall[R]],
        on_failed: OnFailed | str = ...,
        name: str | None = ...,
    ) -> Chain[R]: ...
    @overload
    def chain(self, *calls: TaskCall[R], on_failed: OnFailed | str = ..., name: str | None = ...) -> Chain[R]: ...

    @naming_options("chain()")  # type: ignore[misc]  # mypy takes the first signature's last call for one more
    def chain(
        self, *calls: TaskCall[Any], on_failed: OnFailed | str = OnFailed.WAIT, name: str | None = None
    ) -> Chain[Any]:
        """Return a chain of these calls: ``outbox.chain(a.call(1), b.call()).using(session).enqueue()``.

        Each later call is enqueued by the transaction in which the previous call completes. In the later call's handler,
        `ctx.previous` is the previous call's return value. A task that expires, or is cancelled or discarded, ends the
        chain.

        Args:
            calls: The calls, in order.
            on_failed: The effect of a dead letter on the chain. "wait": the chain waits until the dead letter is redriven
                and completes. "cancel": the chain ends.
            name: A name for people to read. None means no name.

        Raises InvalidCall for anything that is not a call, and InvalidArgument if there are no calls.
        """
        policy = choice(OnFailed, on_failed, "on_failed")
        if policy is OnFailed.CONTINUE:
            raise InvalidArgument(
                "on_failed of a chain must be 'wait' or 'cancel': otherwise, the next task would lack the result of the failed task"
            )
        if not calls:
            raise InvalidArgument("a chain needs at least one call: outbox.chain(a.call(1), b.call())")
        if len(calls) > LONGEST_CHAIN:
            raise InvalidArgument(
                f"a chain can have at most {LONGEST_CHAIN} calls, but this one has {len(calls)}; let its last task enqueue the next chain"
            )
        return Chain(
            outbox=self, calls=tuple(_ours(self, call, "chain()") for call in calls), on_failed=policy, name=name
        )

    def batch_of(self, context: TaskContext) -> RunningBatch:
        """Return the batch that a handler's task belongs to."""
        return RunningBatch(self, context)

    def previous_of(self, context: TaskContext) -> Any:
        """Return the result of the previous task in the chain. Raises InvalidCall if there is no previous task, and
        TaskNotFound if it has been deleted.
        """
        batch: Any = context.batch
        record, within = batch.record, None if context.inside is None else context
        if record.kind is not BatchKind.CHAIN or context.task_id not in record.then_ids:
            raise InvalidCall(
                f"task {context.task_id} ({context.task_name}) has no previous task: {_why_none(context, record)}"
            )
        number = record.then_ids.index(context.task_id)
        before = record.then_ids[number - 1] if number else first_id(batch.id)
        for member in self.store.batches.completed([before], using=within):
            return value_of(self.tasks, member)
        raise TaskNotFound(f"task {before} was deleted, so its result is no longer known")


def _why_none(context: TaskContext, batch: Batch) -> str:
    if batch.kind is not BatchKind.CHAIN:
        return "it is in a batch, not a chain"
    if context.task_id == first_id(batch.id):
        return "it is the first task in its chain"
    return "another task added this task to its own chain; pass the values that this task needs as arguments"


def _ours(outbox: object, call: object, where: str) -> TaskCall[Any]:
    if not isinstance(call, TaskCall):
        hint = "write task.call(…), with the arguments of the function"
        if isinstance(call, Chain) or batch_in(call) is not None:
            hint = (
                "let a task in the chain add tasks to it with using(ctx.batch): the next call waits for those tasks too"
                if where == "chain()"
                else "let the task that follows create the next batch or chain"
            )
        raise InvalidCall(f"{where} takes task calls, not {type(call).__name__}; {hint}")
    if call.outbox is not outbox:
        raise InvalidCall(f"{where} was given a call to {call.task.task_name}, a task that belongs to another outbox")
    return call


class RunningBatch:
    """A TaskBatch that the outbox reads: the batch or chain that a handler's task belongs to."""

    def __init__(self, outbox: Any, context: TaskContext) -> None:
        self.id: UUID = context.pipeline_execution_id
        self.outbox = outbox
        self._context = context

    def __repr__(self) -> str:
        return f"<RunningBatch {self.id}>"

    @property
    def target(self) -> object:
        return self.outbox if self._within is None else self._within

    def takes_tasks(self) -> bool:
        return self.record.completed_at is None

    # Not functools.cached_property: until Python 3.12, all instances share its lock, so one slow read would delay the
    # other handlers.
    @memoized_property
    def record(self) -> Batch:
        """The batch's row. Raises BatchNotFound if the batch was pruned."""
        return self.outbox.store.batches.get(self.id, using=self._within)  # type: ignore[no-any-return]

    name = property(attrgetter("record.name"), doc="The name that the batch was given, or None.")
    size = property(attrgetter("record.size"), doc="The number of tasks in the batch, as in `Batch.size`.")
    completed = property(attrgetter("record.completed"), doc="The number of its Completed tasks.")
    failed = property(attrgetter("record.failed"), doc="The number of its dead letters.")
    cancelled = property(attrgetter("record.cancelled"), doc="The number of its Cancelled tasks.")
    pending = property(attrgetter("record.pending"), doc="The number of tasks to wait for, as in `Batch.pending`.")

    def results(self) -> Iterator[BatchResult]:
        completed, found = self.record.completed, 0
        there = self.outbox.store.batches.statuses(self.id, using=self._within).get(TaskStatus.COMPLETED, 0)
        if there < completed:
            raise _missing(self.record, there)
        for member in self._members({TaskStatus.COMPLETED}):
            found += 1
            yield BatchResult(task_id=member.id, task_name=member.task_name, value=value_of(self.outbox.tasks, member))
        if found < completed:
            raise _missing(self.record, found)

    def failures(self) -> Iterator[BatchFailure]:
        for member in self._members({TaskStatus.FAILED, TaskStatus.CANCELLED}):
            yield BatchFailure(task_id=member.id, task_name=member.task_name, status=member.status, error=member.error)

    def _members(self, statuses: set[TaskStatus]) -> Iterator[Member]:
        hidden = set(self.record.then_ids) if self.record.kind is BatchKind.BATCH else set()
        for member in self.outbox.store.batches.members(self.id, statuses, using=self._within):
            if member.id not in hidden:
                yield member

    @property
    def _within(self) -> object:
        """The handler's transaction; None if the handler does not have one."""
        return None if self._context.inside is None else self._context


def _missing(batch: Batch, found: int) -> TaskNotFound:
    gone = batch.completed - found
    return TaskNotFound(
        f"{gone} of the {batch.completed} tasks of {batch.kind} {batch.id} that completed {plural(gone, 'was', 'were')} deleted, so "
        f"{plural(gone, 'its result is', 'their results are')} no longer known; outboxq prune keeps such tasks "
        "until the task that follows the batch has completed or been cancelled"
    )


def value_of(tasks: TaskRegistry, member: Member) -> Any:
    """Return the result of a task in a batch, read according to the return annotation."""
    if member.task_name in tasks:
        return tasks.get(member.task_name).returned.load(member.result)
    return parsed_result(member.result, name=member.task_name)
