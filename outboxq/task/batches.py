"""The part of an Outbox that makes batches and chains, and what a handler sees of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from uuid import UUID

from ..context import TaskContext
from ..errors import InvalidArgument, InvalidCall, InvalidTarget
from ..integration.ambient import CURRENT, resolve_target
from ..integration.base import Integration
from ..integration.hook_calls import HookCalls
from ..model import TaskStatus
from ..model.batches import Batch, BatchKind, NewBatch, OnFailed, new_batch_id
from ..model.options import choice
from ..payload.parameters import parsed_result
from ..store import Member, Store
from .calls import TaskCall
from .task import TaskRegistry

_FOLLOWED = frozenset({TaskStatus.COMPLETED})
_NOT_COMPLETED = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


class OpenBatch:
    """A batch that is being made: ``task.using(batch)`` adds tasks to it until the `with` block ends."""

    def __init__(self, batch: NewBatch, outbox: object, target: object) -> None:
        """`target`: the transaction in which it is made."""
        self.id = batch.id
        """The id of the batch, which its tasks have as their `pipeline_execution_id`."""
        self.outbox = outbox
        self.then_id = batch.then[0].id if batch.then else None
        """The id that the task that follows will have; None: none follows."""
        self._target = target
        self._is_open = True

    def __repr__(self) -> str:
        return f"<OpenBatch {self.id}>"

    @property
    def target(self) -> object:
        """The transaction in which the batch is made. Raises InvalidTarget once the block has ended."""
        if not self._is_open:
            raise InvalidTarget(
                f"batch {self.id} is closed: its `with` block has ended; only its own tasks can still add tasks, using(ctx.batch)"
            )
        return self._target

    def takes_tasks(self) -> bool:
        """Return whether tasks can be added."""
        return self._is_open

    def end(self) -> None:
        """Take no more tasks."""
        self._is_open = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """The result of one task of a batch."""

    task_id: UUID
    task_name: str
    value: Any
    """The value that its function returned, read by the return annotation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFailure:
    """A task of a batch that Failed or was Cancelled."""

    task_id: UUID
    task_name: str
    status: TaskStatus
    error: str | None
    """The last error in one line; None: there was none."""


class RunningBatch:
    """The batch or chain of a handler's task: `ctx.batch`. Its counts are read when the first of them is asked for."""

    def __init__(self, outbox: Any, context: TaskContext) -> None:
        self.id: UUID = context.pipeline_execution_id
        """The id of the batch."""
        self.outbox = outbox
        self._context = context

    def __repr__(self) -> str:
        return f"<RunningBatch {self.id}>"

    @property
    def target(self) -> object:
        """The transaction in which ``using(ctx.batch)`` enqueues: the transactional task's, or one of its own."""
        return self.outbox if self._within is None else self._within

    def takes_tasks(self) -> bool:
        """Return whether the batch goes on, by what was read of it."""
        return self.record.completed_at is None

    @cached_property
    def record(self) -> Batch:
        """The row of the batch. Raises BatchNotFound if it was pruned."""
        found: Batch = self.outbox.store.batches.get(self.id, using=self._within)
        return found

    @property
    def name(self) -> str | None:
        """The name that the batch was given."""
        return self.record.name

    @property
    def size(self) -> int:
        """The number of its tasks, without those that follow."""
        return self.record.size

    @property
    def completed(self) -> int:
        """The number of its tasks that completed."""
        return self.record.completed

    @property
    def failed(self) -> int:
        """The number of its dead letters."""
        return self.record.failed

    @property
    def cancelled(self) -> int:
        """The number of its tasks that were cancelled, expired or discarded."""
        return self.record.cancelled

    @property
    def pending(self) -> int:
        """The number of its tasks that have not ended."""
        return self.record.pending

    def results(self) -> Iterator[BatchResult]:
        """Yield the result of each task that completed, in the order of their ids. Pages of 200 are read as they are asked for.

        Of a batch, those that follow it are left out. Raises PayloadError for a result that does not fit its annotation.
        """
        for member in self._members(_FOLLOWED):
            yield BatchResult(task_id=member.id, task_name=member.task_name, value=_value(self.outbox.tasks, member))

    def failures(self) -> Iterator[BatchFailure]:
        """Yield each task that Failed or was Cancelled, in the order of their ids."""
        for member in self._members(_NOT_COMPLETED):
            yield BatchFailure(task_id=member.id, task_name=member.task_name, status=member.status, error=member.error)

    def _members(self, statuses: frozenset[TaskStatus]) -> Iterator[Member]:
        record = self.record
        hidden = set(record.then_ids) if record.kind is BatchKind.BATCH else set()
        for member in self.outbox.store.batches.members(self.id, statuses, using=self._within):
            if member.id not in hidden:
                yield member

    @property
    def _within(self) -> object:
        """The transaction of the handler; None: it has none."""
        return None if self._context.inside is None else self._context


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHandle:
    """The ids of a chain that was enqueued."""

    id: UUID
    """The id of the chain, which its tasks have as their `pipeline_execution_id`."""
    task_ids: tuple[UUID, ...]
    """The ids that its tasks have, in their order. Only the first exists yet."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Calls that run one after the other: `Outbox.chain()` makes one, `enqueue()` writes it."""

    outbox: Any = field(repr=False)
    calls: tuple[TaskCall[Any], ...]
    on_failed: OnFailed
    name: str | None = None
    target: object = CURRENT

    def using(self, target: object) -> Chain:
        """Return the chain with the transaction in which it is enqueued, as for `Task.using`."""
        return Chain(outbox=self.outbox, calls=self.calls, on_failed=self.on_failed, name=self.name, target=target)

    def enqueue(self) -> ChainHandle:
        """Enqueue the first call. Each of the others is enqueued by the transaction in which the one before it completes.

        Raises InvalidTarget if there is no transaction to write in, SchemaOutOfDate if the tables are older than chains.
        """
        first, *others = (call.as_new() for call in self.calls)
        batch = NewBatch(
            id=new_batch_id(), kind=BatchKind.CHAIN, name=self.name, on_failed=self.on_failed, then=tuple(others)
        )
        with _making(self.outbox, batch, self.target, "a chain") as target:
            self.outbox.store.enqueue(replace(first, pipeline_execution_id=batch.id), using=target)
        return ChainHandle(id=batch.id, task_ids=(first.id, *(task.id for task in others)))


class BatchedTasks(ABC):
    """The batches and chains of an Outbox."""

    tasks: TaskRegistry
    integration: Integration

    @property
    @abstractmethod
    def store(self) -> Store:
        """The Store, the layer below."""

    @property
    @abstractmethod
    def hooks(self) -> HookCalls | None:
        """The hooks; None if there are none."""

    @contextmanager
    def batch(
        self,
        *,
        using: object = CURRENT,
        then: TaskCall[Any] | None = None,
        on_failed: OnFailed | str = OnFailed.CONTINUE,
        name: str | None = None,
    ) -> Iterator[OpenBatch]:
        """Make a batch: ``with outbox.batch(using=session, then=report.call()) as batch:``, and in it ``task.using(batch)``.

        The batch and its tasks are committed with the transaction of `using`. Once all of its tasks have ended, `then` is
        enqueued, exactly once, by the transaction in which the last one ends. Tasks of the batch may add tasks to it:
        ``task.using(ctx.batch)``. After an error in the block the batch is not closed: let the transaction be rolled back.

        Args:
            using: The owner of the transaction, as for `Task.using`. The outbox itself stands for a transaction of its own around the
                block.
            then: The call that follows: ``report.call(42)``, with options ``report.using(priority=5).call(42)``. None: none.
            on_failed: The effect of a dead letter. "continue": it has ended. "wait": the batch waits until it is redriven and
                completes, or is discarded. "cancel": the other tasks of the batch are cancelled; `then` follows all the same.
            name: A name for people. None: none.

        Raises InvalidTarget if there is no transaction to write in, SchemaOutOfDate if the tables are older than batches,
        InvalidArgument for an option out of its range.
        """
        follow = () if then is None else (_ours(self, then, "then=").as_new(),)
        batch = NewBatch(id=new_batch_id(), name=name, on_failed=choice(OnFailed, on_failed, "on_failed"), then=follow)
        with _making(self, batch, using, "a batch") as target:
            made = OpenBatch(batch, self, target)
            try:
                yield made
            finally:
                made.end()

    def chain(self, *calls: TaskCall[Any], on_failed: OnFailed | str = OnFailed.WAIT, name: str | None = None) -> Chain:
        """Return a chain of these calls: ``outbox.chain(a.call(1), b.call()).using(session).enqueue()``.

        Each call is enqueued by the transaction in which the one before it completes; `ctx.previous` is what that one returned. A
        task that is cancelled, expires or is discarded ends the chain.

        Args:
            calls: The calls, in their order.
            on_failed: The effect of a dead letter. "wait": the chain waits, and goes on once it is redriven and completes. "cancel":
                the chain ends.
            name: A name for people. None: none.

        Raises InvalidCall for what is no call, InvalidArgument without any.
        """
        policy = choice(OnFailed, on_failed, "on_failed")
        if policy is OnFailed.CONTINUE:
            raise InvalidArgument(
                "on_failed of a chain is 'wait' or 'cancel': the next task has nothing to go on with after one that failed"
            )
        if not calls:
            raise InvalidArgument("a chain has at least one call: outbox.chain(a.call(1), b.call())")
        return Chain(
            outbox=self, calls=tuple(_ours(self, call, "chain()") for call in calls), on_failed=policy, name=name
        )

    def batch_of(self, context: TaskContext) -> RunningBatch:
        """Return the batch of a handler's task."""
        return RunningBatch(self, context)

    def previous_of(self, context: TaskContext) -> Any:
        """Return what the task before this one in its chain returned. Raises InvalidCall if there is none before it."""
        batch: RunningBatch = context.batch
        record, within = batch.record, None if context.inside is None else context
        is_first = context.task_id not in record.then_ids
        if record.kind is not BatchKind.CHAIN or is_first:
            raise InvalidCall(
                f"task {context.task_id} ({context.task_name}) has none before it: "
                + (
                    "it is the first of its chain"
                    if record.kind is BatchKind.CHAIN
                    else "it is in a batch, not a chain"
                )
            )
        place = record.then_ids.index(context.task_id)
        if place:
            return self._result(record.then_ids[place - 1], within)
        hidden = set(record.then_ids)
        for member in self.store.batches.members(batch.id, _FOLLOWED, using=within):
            if member.id not in hidden:
                return _value(self.tasks, member)
        raise InvalidCall(f"the first task of chain {batch.id} was pruned, so what it returned is not known any more")

    def _result(self, task_id: UUID, within: object) -> Any:
        for member in self.store.batches.named([task_id], using=within):
            return _value(self.tasks, member)
        raise InvalidCall(f"task {task_id} was pruned, so what it returned is not known any more")


@contextmanager
def _making(outbox: Any, batch: NewBatch, using: object, what: str) -> Iterator[object]:
    """Write the batch, run the block, and close the batch, in one transaction. Yields its owner."""
    store: Store = outbox.store
    with resolve_target(outbox, using, what, is_option=True) as known:
        unit = store.unit() if known is None else nullcontext()
        with unit as own:
            target = known if own is None else own.connection
            store.batches.create(batch, using=target)
            yield target
            store.batches.close(batch.id, using=target)


def _ours(outbox: object, call: object, where: str) -> TaskCall[Any]:
    if not isinstance(call, TaskCall):
        hint = "write task.call(…), with the arguments of the function"
        raise InvalidCall(f"{where} takes calls of tasks, not {type(call).__name__}; {hint}")
    if call.outbox is not outbox:
        raise InvalidCall(f"{where} was given a call of {call.task.task_name}, which belongs to another outbox")
    return call


def _value(tasks: TaskRegistry, member: Member) -> Any:
    if member.task_name in tasks:
        return tasks.get(member.task_name).returned.load(member.result)
    return parsed_result(member.result, name=member.task_name)
