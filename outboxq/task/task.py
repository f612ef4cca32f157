"""Tasks: plain functions that an application can also enqueue, and calls to them."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_type_hints,
)
from uuid import UUID

from ..context import BatchTarget, TaskContext
from ..errors import ConfigurationError, InvalidArgument, InvalidCall, InvalidTarget
from ..integration.ambient import CURRENT, OutboxRef, no_transaction, present_target
from ..model import Handle, NewTask, OnConflict, TaskOptions, TimeoutAction, duration
from ..model.options import choice, headers_as_json, times
from ..model.subscriptions import Subscription, patterns_of
from ..model.unknown_options import OF_ONE_CALL, naming_options, no_method
from ..model.uuid7 import uuid7, uuid7s
from ..payload.parameters import Parameters, ReturnValue
from ..retry import RetryPolicy
from ..store import check, check_subscription

P = ParamSpec("P")
R = TypeVar("R")


class CallOptions(TypedDict, total=False):
    """The options of one call, as callers write them. `Task.using` says what each one means."""

    delay: timedelta | float | None
    run_after: datetime | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    partition_key: str | None
    concurrency_key: str | None
    expires: timedelta | float | datetime | None
    idempotency_key: str | None
    unique_for: timedelta | float | None
    unique_until_finished: bool
    on_conflict: OnConflict | str
    headers: Mapping[str, str] | None


_OF_A_CALL: Mapping[str, Any] = {
    **dict.fromkeys(CallOptions.__annotations__),
    "unique_until_finished": False,
    "on_conflict": OnConflict.RETURN,
}
"""The defaults of these options; None: as declared, or none."""


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling the task runs the function here and now, as if it were not a task."""

    def __init__(
        self,
        function: Callable[..., R],
        *,
        name: str,
        options: TaskOptions,
        retry: RetryPolicy,
        outbox: OutboxRef,
        transactional: bool = False,
        subscribe: str | Sequence[str] | None = None,
        check_types: bool = True,
        timeout_action: TimeoutAction = TimeoutAction.ASK,
    ) -> None:
        self.name = name
        self.function = function
        self.options = options
        self.retry = retry
        self.transactional = transactional
        self.timeout_action = timeout_action
        """The fate of a handler that runs past the timeout. Read from the code that runs the task, not stored."""
        self.outbox = outbox
        self.takes_context = takes_context(function)
        _refuse_other_contexts(function, name, given=self.takes_context)
        self.parameters = Parameters(function, name=name, context=self.takes_context, check_types=check_types)
        self.subscriptions = _subscriptions(self, subscribe)
        """The subscriptions of the task; see `Outbox.emit`."""
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise no_method(self.__dict__.get("__name__", "task"), name)

    @cached_property
    def returned(self) -> ReturnValue:
        """The value that the function returns, as it is stored."""
        return ReturnValue(self.function, name=self.name)

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.options.queue!r}>"

    @naming_options("using()", OF_ONE_CALL, options=CallOptions.__annotations__, defaults=_OF_A_CALL)
    def using(self, target: object = CURRENT, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """Choose the transaction of the next enqueue, and its options.

        A span of time is a timedelta or seconds; a moment is an aware datetime. Raises InvalidArgument for an option out of its
        range, InvalidTarget for a `target` of None.

        Args:
            target: The owner of the transaction: a SQLAlchemy Session, scoped_session or Connection, a psycopg or sqlite3
                connection, a Django connection or alias, the context of a transactional task; or the outbox itself, for a
                separate transaction; or a batch, to which the task is added. If left out: the current transaction, as
                for `enqueue()`.
            delay: The time from now until the task is due.
            run_after: The moment at which the task is due, instead of `delay`.
            queue: The queue in which the task waits. None: as declared.
            priority: -100 to 100. Tasks with a higher priority start first. None: as declared.
            max_attempts: The number of attempts, the first one included. None: the retry policy decides.
            partition_key: A key whose tasks run one at a time, within one queue, in the order in which they were
                enqueued.
            concurrency_key: A key whose tasks run in any order, as many at once as the queue's limit per key allows.
                Without such a limit they run one at a time.
            expires: The span from now, or the moment, after which the task is no longer started.
            idempotency_key: A key that only one task of this name can have: enqueueing with the key again finds the
                first task.
            unique_for: The time for which the key is taken. None: permanently.
            unique_until_finished: Free the key when that task has ended.
            on_conflict: The answer to a key that is taken. "return": the handle of the task that has the key. "skip": a
                handle without a task. "replace": that task takes over these arguments and options if it is still Ready.
                "raise": DuplicateTask is raised.
            headers: Strings that travel with the task, such as a request id: the handler reads them in `ctx.headers`.
                At most 8 KiB; names have 1 to 100 characters, and do not begin with `outboxq-`. Hooks may add more.
        """
        if target is None:
            raise no_transaction(self.name, "using(None) names no transaction")
        batch = batch_in(target)
        if batch is not None and batch.outbox is not self.outbox:
            raise InvalidTarget(f"task {self.name} and batch {batch.id} belong to different outboxes")
        fields = self._fields_of(options) if options else self._plain_fields
        if batch is None:
            return BoundTask(self, target, fields)
        return BoundTask(self, batch.target, {**fields, "pipeline_execution_id": batch.id})

    @cached_property
    def _plain_fields(self) -> dict[str, Any]:
        """The fields of a NewTask for a call without options."""
        return {**vars(self.options.with_key(None)), "task_name": self.name, "idempotency_key": None}

    def _fields_of(self, options: CallOptions) -> dict[str, Any]:
        """Return the fields of a NewTask for a call with these options."""
        given: dict[str, Any] = {**_OF_A_CALL, **options}
        moments = {name: given.pop(name) for name in ("delay", "run_after", "expires")}
        declared = vars(self.options if given["partition_key"] is not None else self.options.with_key(None))
        unique_for, headers = given["unique_for"], given["headers"]
        return {
            **declared,
            **given,
            **{name: declared[name] for name in declared if given.get(name) is None},
            "task_name": self.name,
            "unique_for": None if unique_for is None else duration(unique_for, "unique_for"),
            "on_conflict": choice(OnConflict, given["on_conflict"], "on_conflict"),
            "headers": None if headers is None else headers_as_json(headers, f"task {self.name!r}"),
            **times(self.name, **moments),
        }

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R]:
        """Return this call of the function, checked but not enqueued: for `then=` of a batch, or for a chain.

        With options: ``task.using(priority=5).call(…)``. Raises InvalidCall and PayloadError as `enqueue` does.
        """
        return self.using().call(*args, **kwargs)

    def call_as_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the arguments of a call in the form in which a row stores them. Raises InvalidCall and PayloadError as
        `enqueue` does.
        """
        if args or kwargs:
            return self.parameters.dump(tuple(args), kwargs)
        # Without arguments, annotations need not be known yet: the module may define their names further down.
        self.parameters.check_call((), {})
        return "{}"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call of the function in the current transaction, with the options of the declaration.

        The current transaction is known inside a transactional task of the same outbox, in Django, in Flask with
        Flask-SQLAlchemy, and with `Outbox(session=…)`. Elsewhere InvalidTarget is raised: name the transaction with
        `using()`. Raises what `BoundTask.enqueue` raises.
        """
        return self.using().enqueue(*args, **kwargs)


class ContextTask(Task[P, R]):
    """A task whose function takes the TaskContext. A direct call passes one; `enqueue()` does not: the worker adds it."""

    def __call__(self, ctx: TaskContext, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        return self.function(ctx, *args, **kwargs)


R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCall(Generic[R_co]):
    """A call of a task: its arguments, checked, and its options. `Task.call()` makes one.

    A batch or a chain enqueues it later. One call may be used any number of times.
    """

    outbox: OutboxRef = field(repr=False, compare=False)
    """The outbox that the task was declared on."""
    task: NewTask
    """The task to enqueue, without its id."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            hint = "; a chain or a batch enqueues it. To enqueue the task itself, write task.using(session).enqueue(…)"
            raise AttributeError(
                f"a task call does not accept {name!r}{hint if name == 'enqueue' else ''}", name=name, obj=self
            )

    def as_new(self, task_id: UUID | None = None) -> NewTask:
        """Return a task of this call with the headers that hooks add, and with this id; None: a new one."""
        task = replace(self.task, id=task_id or uuid7())
        if self.outbox.hooks is None:
            return task
        sent: list[NewTask] = []

        def send(tasks: Sequence[NewTask]) -> list[Handle]:
            sent.extend(tasks)
            return [Handle(id=one.id) for one in tasks]

        self.outbox.hooks.enqueue([task], send)
        return sent[0]


def batch_in(target: object) -> BatchTarget | None:
    """Return the batch, if the argument of `using()` is one."""
    return target if getattr(type(target), "takes_tasks", None) is not None else None  # type: ignore[return-value]


class BoundTask(Generic[P, R]):
    """A task with its transaction and options, ready for its arguments: `Task.using()` returns one."""

    def __init__(self, task: Task[P, R], target: object, options: Mapping[str, Any]) -> None:
        """Take `options`: the fields of a NewTask that all calls share."""
        self._task = task
        self._target = target
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call of the function: the arguments are typed and checked as for the function itself.

        Returns the Handle of the task. It runs when the transaction has been committed, and never if that is rolled
        back.

        Raises InvalidCall (a TypeError) if the arguments do not fit the signature, PayloadError if one of them does not
        match its annotated type or is not strict JSON, InvalidTarget if the target has no open transaction; each is
        raised before anything is written. Raises SchemaOutOfDate if outboxq's tables are missing, DuplicateTask with
        ``on_conflict="raise"``.
        """
        tasks, hooks = [self._new(args, kwargs)], self._task.outbox.hooks
        return (self._write(tasks) if hooks is None else hooks.enqueue(tasks, self._write))[0]

    def enqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any]], idempotency_keys: Sequence[str | None] | None = None
    ) -> list[Handle[R]]:
        """Enqueue one task for each call, in one statement and under one `pipeline_execution_id`.

        A call is a sequence of positional arguments or a mapping of keyword arguments. `idempotency_keys` has one entry for
        each call: its key, or None. All calls are checked before any is written. Returns the handles in the order of the calls;
        raises what `enqueue` raises.
        """
        if self._options["idempotency_key"] is not None:
            raise InvalidArgument(
                "an idempotency_key names one task, and enqueue_many() writes many; give it idempotency_keys=, one for each call"
            )
        given = [call_of(call) for call in calls]
        keys = [None] * len(given) if idempotency_keys is None else idempotency_keys
        if isinstance(keys, str) or len(keys) != len(given):
            raise InvalidArgument(f"idempotency_keys has one key, or None, for each call; give a list of {len(given)}")
        dump, (pipeline, *ids) = self._task.parameters.dump, uuid7s(1 + len(given))
        options = {"pipeline_execution_id": pipeline, **self._options}
        tasks = [
            NewTask.of(options if key is None else {**options, "idempotency_key": key}, task_id, dump(args, kwargs))
            for task_id, (args, kwargs), key in zip(ids, given, keys, strict=True)
        ]
        hooks = self._task.outbox.hooks
        return self._write(tasks) if hooks is None else hooks.enqueue(tasks, self._write)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R]:
        """Return a call with these options, checked but not enqueued; see `Task.call`."""
        task = self.planned(*args, **kwargs)
        if self._target is not CURRENT or task.pipeline_execution_id is not None:
            raise InvalidCall(
                f"a call of {task.task_name} is enqueued with its batch or chain; write using(priority=5).call(…) without a "
                "transaction"
            )
        if task.idempotency_key is not None or task.available_at is not None or task.expires_at is not None:
            raise InvalidCall(
                f"a call of {task.task_name} takes no idempotency_key and no moments: it is enqueued only once, at a "
                "time that is not known yet; give delay= and expires= as spans"
            )
        return TaskCall(outbox=self._task.outbox, task=task)

    def planned(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return what `enqueue` would write for this call, with the same checks. Nothing is written."""
        task = self._new(args, kwargs)
        check(task)
        return task

    def _new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewTask:
        return NewTask.of(self._options, uuid7(), self._task.parameters.dump(args, kwargs))

    def _write(self, tasks: Sequence[NewTask]) -> list[Handle[R]]:
        outbox, target = self._task.outbox, self._target
        if target is outbox:
            target = None
        if target is CURRENT:
            with present_target(outbox, self._task.name) as target:
                handles = outbox.store.enqueue_many(tasks, using=target)
        else:
            handles = outbox.store.enqueue_many(tasks, using=target)
        source = Origin(outbox, target)
        return [handle.asking(source) for handle in handles]


class Origin:
    """The outbox and the transaction of an enqueue, for the handles that it returns."""

    __slots__ = ("__weakref__", "_outbox", "_target", "_thread")

    def __init__(self, outbox: OutboxRef, target: object) -> None:
        """Remember where the tasks were written; `target` None: in a separate transaction, which has been committed."""
        self._outbox = outbox
        self._target: Callable[[], object] | None = None if target is None else _reference(target)
        self._thread = threading.get_ident()

    def result(self, task_id: UUID, timeout: timedelta | float | None) -> Any:
        return self._outbox.wait_for_result(task_id, timeout, self)

    def batch_result(self, batch_id: UUID, timeout: timedelta | float | None) -> Any:
        return self._outbox.wait_for_batch(batch_id, timeout, self)

    def settle(self) -> None:
        """Note that the transaction has been committed."""
        self._target = None

    @property
    def is_committed(self) -> bool:
        """Return whether the tasks were written in a separate, committed transaction. How a caller's transaction ended
        is not known.
        """
        return self._target is None

    @property
    def is_this_threads(self) -> bool:
        """Return whether this thread has enqueued."""
        return self._thread == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Return whether a transaction is still open where the task was written."""
        return self._target is not None and has_transaction(self._target())


def has_transaction(target: Any) -> bool:
    """Return whether a transaction is open on a session or connection. It does not send anything to the database."""
    if isinstance(target, TaskContext):
        return target.inside is not None
    with suppress(Exception):  # a closed connection raises
        if (state := getattr(target, "in_transaction", None)) is not None:  # SQLAlchemy's function, sqlite3's attribute
            return bool(state() if callable(state) else state)
        if (in_block := getattr(target, "in_atomic_block", None)) is not None:  # Django
            return bool(in_block or not target.autocommit)
        return bool(target.info.transaction_status in _OPEN)  # psycopg
    return False


_OPEN = frozenset({1, 2, 3})
"""psycopg's states: a command is running, a transaction is open, or it has failed."""


def _reference(target: Any) -> Callable[[], object]:
    """Return a reference that keeps no session or connection alive."""
    if isinstance(target, str):
        from django.db import connections

        target = connections[target]
    elif type(target).__name__ == "scoped_session":
        target = target()  # in another thread it would be another session
    try:
        return weakref.ref(target)
    except TypeError:
        return lambda: target


def name_of(function: Callable[..., object]) -> str:
    """Return `module.qualname`. Raises ConfigurationError if that would not name the same function in a worker."""
    name = f"{function.__module__}.{function.__qualname__}"
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        raise ConfigurationError(
            f"{name} is not a name that a worker could find again; give the task one: @outbox.task(name='…')"
        )
    return name


def takes_context(function: Callable[..., object]) -> bool:
    """Return whether the first parameter is annotated TaskContext."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return False
    first = parameters[0]
    if isinstance(first.annotation, str):
        try:
            return get_type_hints(function)[first.name] is TaskContext
        except NameError:  # another parameter's forward reference does not resolve: compare the source text
            return first.annotation.rpartition(".")[2] == TaskContext.__name__
    return first.annotation is TaskContext


def _refuse_other_contexts(function: Callable[..., object], name: str, *, given: bool) -> None:
    """Raise ConfigurationError for a parameter that is annotated with TaskContext, but to which no worker passes a
    context.

    Without this, the first call would miss an argument that its caller cannot have.
    """
    for parameter in list(inspect.signature(function).parameters.values())[int(given) :]:
        annotation = parameter.annotation
        if isinstance(annotation, str) and TaskContext.__name__ in annotation:
            with suppress(NameError):  # a forward reference of another parameter
                annotation = get_type_hints(function)[parameter.name]
        if annotation is TaskContext or TaskContext in get_args(annotation):
            raise ConfigurationError(
                f"{name}: the worker passes a context only to a first parameter annotated TaskContext; "
                f"make the first parameter {parameter.name}: TaskContext"
            )


def _subscriptions(task: Task[..., Any], subscribe: str | Sequence[str] | None) -> tuple[Subscription, ...]:
    patterns = patterns_of(subscribe)
    if not patterns:
        return ()
    parameters = list(inspect.signature(task.function).parameters.values())[int(task.takes_context) :]
    required = [other.name for other in parameters[1:] if other.default is other.empty]
    if not parameters or required:
        lack = f"give the others defaults: {', '.join(required)}" if required else "let the function take one"
        raise ConfigurationError(
            f"{task.name}: a task that subscribes gets the event's payload as its only argument; {lack}"
        )
    fields = {"task_name": task.name, "parameter": parameters[0].name, **vars(task.options)}
    found = tuple(Subscription(topic=pattern, **fields) for pattern in patterns)
    for one in found:
        check_subscription(one)
    return found


def call_of(call: Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and keyword arguments of a call written as a tuple or as a mapping."""
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, str | bytes) or not isinstance(call, Sequence):
        raise InvalidCall("a call is a tuple of positional arguments or a mapping of keyword arguments; write (value,)")
    return tuple(call), {}
