"""Tasks, which are plain functions that an application can also enqueue, and calls to tasks."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, get_args, get_type_hints
from uuid import UUID

from ..context import BatchTarget, TaskContext
from ..errors import ConfigurationError, InvalidArgument, InvalidCall, InvalidTarget
from ..integration.ambient import CURRENT, OutboxRef, no_target, present_target
from ..integration.uncommitted import note
from ..model import Handle, NewTask, OnConflict, TaskOptions, TimeoutAction, duration
from ..model.guesses import Guess, instead_of, replacement
from ..model.options import choice, headers_as_json, times
from ..model.subscriptions import Subscription, patterns_of
from ..model.unknown_options import Answering, naming_options, without_session
from ..model.uuid7 import uuid7, uuid7s
from ..payload.parameters import Parameters, ReturnValue
from ..retry import RetryPolicy
from ..store import check, check_subscription

P = ParamSpec("P")
R = TypeVar("R")


class CallOptions(TypedDict, total=False):
    """The options for one call, as callers pass them. `Task.using` describes them."""

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
"""The defaults of these options. None means that the declared option applies, or that the call does not have the
option.
"""


class Task(Answering, Generic[P, R]):
    """A function that can be enqueued. Calling the task directly runs the function immediately, as if it were not a
    task.
    """

    _noun = "a task"
    _inner = frozenset({"call_as_json", "call_signature", "named_arguments", "parameters", "returned", "takes_context"})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse `@outboxq.Task`, which people write by mistake instead of `@outbox.task`. A copy is allowed, because
        it is created without arguments.
        """
        if (args or kwargs) and "outbox" not in kwargs:
            cure = "write outbox = Outbox(…), and decorate the function with @outbox.task"
            raise InvalidCall(f"outboxq.Task is the class of tasks and not a decorator; {cure}")
        return super().__new__(cls)

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
        self.name: str = name
        """The name under which workers find the function."""
        self.function: Callable[..., R] = function
        """The function itself."""
        self.options: TaskOptions = options
        """The declared options that are stored with each task."""
        self.retry_policy: RetryPolicy = retry
        """The declared policy for retries."""
        self.transactional: bool = transactional
        """True if the function runs in the transaction that also commits its completion."""
        self.timeout_action: TimeoutAction = timeout_action
        """The action to take if the handler is still running after the timeout. The action is not stored: the worker
        reads it from its own code.
        """
        self.outbox: OutboxRef = outbox
        """The Outbox on which the task is declared."""
        self.takes_context = takes_context(function)
        _refuse_other_contexts(function, name, given=self.takes_context)
        self.parameters = Parameters(
            function,
            name=name,
            context=self.takes_context,
            check_types=check_types,
            options=CallOptions.__annotations__,
        )
        self.subscriptions: tuple[Subscription, ...] = subscriptions_of(self, subscribe)
        """The task's subscriptions; see `Outbox.emit`."""
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def _cure(self, name: str) -> str:
        return _cure(self, name)

    @cached_property
    def returned(self) -> ReturnValue:
        """The value that the function returns, as it is stored."""
        return ReturnValue(self.function, name=self.name)

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.options.queue!r}>"

    @naming_options("using()", options=CallOptions.__annotations__, defaults=_OF_A_CALL)
    def using(self, target: object = CURRENT, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """Choose the transaction and the options for the next enqueue.

        A span of time is a timedelta or a number of seconds; a point in time is an aware datetime. Raises
        InvalidArgument if an option is out of range, and InvalidTarget if `target` is None.

        Args:
            target: The owner of the transaction: a SQLAlchemy Session, scoped_session or Connection, a psycopg or
                sqlite3 connection, a Django connection or alias, or the context of a transactional task. Pass the
                outbox itself for a separate transaction, or a batch to add the task to it. If you leave it out, the
                current transaction is used, as in `enqueue()`.
            delay: The time after which the task is due, counted from now.
            run_after: The time at which the task is due, instead of `delay`.
            queue: The queue in which the task waits. None means the declared queue.
            priority: -100 to 100. Tasks with a higher priority start first. None means the declared priority.
            max_attempts: The maximum number of attempts, including the first. None means that the retry policy decides.
            partition_key: A key whose tasks run one at a time within each queue, in the order in which they were
                enqueued.
            concurrency_key: A key whose tasks run in any order, with as many running at once as the queue's limit per
                key allows. Without that limit, they run one at a time.
            expires: The time after which the task is no longer started, either as a span from now or as a point in
                time.
            idempotency_key: A key that only one task with this name can have. Enqueueing again with the same key finds
                the first task.
            unique_for: The time for which the key remains taken. None means forever.
            unique_until_finished: If True, the key becomes free when its task has ended.
            on_conflict: The response to a key that is already taken. "return": the handle of the task that has the key
                is returned. "skip": a handle without a task is returned. "replace": the task that has the key gets
                these arguments and options if it is still Ready. "raise": DuplicateTask is raised.
            headers: Strings that are stored with the task, such as a request id. The handler finds them in
                `ctx.headers`. Their total size is at most 8 KiB. A header's name has 1 to 100 characters, and must not
                begin with `outboxq-`. Hooks can add more headers.
        """
        if target is None:
            raise no_target(self.outbox, self.name)
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
        """Return a call to the function, checked but not enqueued, for a batch's `then=` or for a chain.

        To set options, write ``task.using(priority=5).call(…)``. Raises InvalidCall and PayloadError, as `enqueue` does.
        """
        return self.using().call(*args, **kwargs)

    def call_as_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a call's arguments as they are stored in a row. Raises InvalidCall and PayloadError, as `enqueue` does."""
        if args or kwargs:
            return self.parameters.dump(tuple(args), kwargs)
        # Without arguments, annotations do not have to resolve yet: the module may define their names further down.
        self.parameters.check_call((), {})
        return "{}"

    def call_signature(self) -> inspect.Signature:
        """Return the signature of a call: the function's signature without the context parameter."""
        return self.parameters.signature

    def named_arguments(self, stored: str) -> Mapping[str, Any]:
        """Return a row's arguments by parameter, as the function receives them. Raises PayloadError."""
        return self.parameters.load(stored)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call to the function in the current transaction, with the declared options.

        The current transaction is known inside a transactional task of the same outbox, in Django, in Flask with
        Flask-SQLAlchemy, and with `Outbox(session=…)`. Anywhere else, InvalidTarget is raised: pass the transaction to
        `using()` instead. Apart from that, raises the same exceptions as `BoundTask.enqueue`.
        """
        return self.using().enqueue(*args, **kwargs)

    def enqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any]], idempotency_keys: Sequence[str | None] | None = None
    ) -> list[Handle[R]]:
        """Enqueue one task for each call, all in one statement, in the current transaction and with the declared options.

        A call is a sequence of positional arguments or a mapping of keyword arguments:
        ``send_receipt.enqueue_many([(7,), (8,)])``. For the current transaction, see `enqueue`; for everything else,
        including the exceptions, see `BoundTask.enqueue_many`.
        """
        return self.using().enqueue_many(calls, idempotency_keys)


class ContextTask(Task[P, R]):
    """A task whose function takes the TaskContext. You pass a context in a direct call but not to `enqueue()`, because
    the worker adds the context.
    """

    def __call__(self, ctx: TaskContext, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        given: object = ctx
        if not isinstance(given, TaskContext):
            try:
                inspect.signature(self.function).bind(ctx, *args, **kwargs)
            except TypeError as misfit:
                own = self.__name__
                raise InvalidCall(
                    f"{self.name}: {misfit}; a direct call must pass a context as the first argument; in a test, write harness.run({own}, …)"
                ) from None
        return self.function(ctx, *args, **kwargs)


R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCall(Generic[R_co]):
    """A call to a task: its checked arguments and its options. `Task.call()` returns one.

    A batch or a chain enqueues it later. The same call may be used any number of times.
    """

    outbox: OutboxRef = field(repr=False, compare=False)
    """The outbox on which the task was declared."""
    task: NewTask
    """The task to enqueue, without its id."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            own = "task.using(session).enqueue(…)"
            own = without_session(own) if self.outbox.integration.knows_transaction else own
            hint = instead_of(replacement(Guess.ATTRIBUTE, "a task call", name))
            if name in _STARTS:
                hint = f"; a chain or a batch enqueues it. To enqueue the task itself, write {own}"
            raise AttributeError(f"a task call has no {name!r}{hint}", name=name, obj=self)

        def __or__(self, other: object) -> object:
            cure = replacement(Guess.ATTRIBUTE, "a task call", "then")
            raise InvalidCall(f"'|' does not join task calls; write {cure}")

    def as_new(self, task_id: UUID | None = None) -> NewTask:
        """Return a new task for this call, with the headers that hooks add. If `task_id` is None, the task gets a new
        id.
        """
        task = replace(self.task, id=task_id or uuid7())
        if self.outbox.hooks is None:
            return task
        sent: list[NewTask] = []

        def send(tasks: Sequence[NewTask]) -> list[Handle]:
            sent.extend(tasks)
            return [Handle(id=one.id) for one in tasks]

        self.outbox.hooks.enqueue([task], send)
        return sent[0]


_STARTS = frozenset({"apply", "apply_async", "delay", "enqueue", "run", "send"})
"""The names of the methods with which other libraries and outboxq enqueue a call."""


def batch_in(target: object) -> BatchTarget | None:
    """Return the argument to `using()` if it is a batch, otherwise None."""
    return target if getattr(type(target), "takes_tasks", None) is not None else None  # type: ignore[return-value]


class BoundTask(Answering, Generic[P, R]):
    """A task with its transaction and options, ready for its arguments: `Task.using()` returns one."""

    _noun = "a task"
    _inner = frozenset({"planned", "planned_as"})

    def __init__(self, task: Task[P, R], target: object, options: Mapping[str, Any]) -> None:
        """`options` are the fields of a NewTask that all calls share."""
        self._task = task
        self._target = target
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call to the function. The arguments are typed and checked like those of the function itself.

        Return the task's Handle. The task runs after the transaction has been committed, and never runs if the
        transaction is rolled back.

        Raises InvalidCall (a TypeError) if the arguments do not match the signature, PayloadError if an argument does
        not have its annotated type or is not strict JSON, and InvalidTarget if the target does not have an open
        transaction. All of these errors are raised before anything is written. Raises SchemaOutOfDate if outboxq's
        tables are missing, and DuplicateTask if the key is taken and ``on_conflict="raise"`` is set.
        """
        tasks, hooks = [self._new(args, kwargs)], self._task.outbox.hooks
        return (self._write(tasks) if hooks is None else hooks.enqueue(tasks, self._write))[0]

    def enqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any]], idempotency_keys: Sequence[str | None] | None = None
    ) -> list[Handle[R]]:
        """Enqueue one task for each call, in one statement and under one `pipeline_execution_id`.

        A call is a sequence of positional arguments or a mapping of keyword arguments. `idempotency_keys` has one entry
        for each call: its key, or None. All calls are checked before any of them is written. Return the handles in call
        order. Raises the same exceptions as `enqueue`.
        """
        if self._options["idempotency_key"] is not None:
            raise InvalidArgument(
                "an idempotency_key identifies one task, but enqueue_many() enqueues several; pass idempotency_keys=, with one key for each call"
            )
        given = [call_of(call) for call in calls]
        keys = [None] * len(given) if idempotency_keys is None else idempotency_keys
        if isinstance(keys, str) or len(keys) != len(given):
            raise InvalidArgument(
                f"idempotency_keys must have a key or None for each call; pass a list of length {len(given)}"
            )
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
        if len(args) + len(kwargs) < len(self._task.parameters.required):
            self._refuse_short_call(args, kwargs)
        task = self.planned(*args, **kwargs)
        if self._target is not CURRENT or task.pipeline_execution_id is not None:
            raise InvalidCall(
                f"a call to {task.task_name} is enqueued with its batch or chain; write using(priority=5).call(…) without a "
                "transaction"
            )
        if task.idempotency_key is not None or task.available_at is not None or task.expires_at is not None:
            raise InvalidCall(
                f"a call to {task.task_name} takes neither an idempotency_key nor points in time: it is enqueued once, at a "
                "time that is not known yet; pass delay= and expires= as spans of time"
            )
        return TaskCall(outbox=self._task.outbox, task=task)

    def planned(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return what `enqueue` would write for this call, after the same checks, without writing it."""
        task = self._new(args, kwargs)
        check(task)
        return task

    def planned_as(self, args: str, *, topic: str) -> NewTask:
        """Return the task for an event with this topic. `args` are the arguments, already as JSON. Raises
        InvalidArgument.
        """
        task = NewTask.of({**self._options, "topic": topic}, uuid7(), args)
        check(task)
        return task

    def _refuse_short_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidCall for a call that lacks arguments that other libraries would fill with the results of
        previous tasks.
        """
        try:
            self._task.parameters.check_call(args, kwargs)
        except InvalidCall as error:
            raise InvalidCall(
                f"{error}; results are not passed as arguments: read ctx.previous in a chain, or ctx.batch.results() in "
                "the task that follows a batch, where ctx: TaskContext is the first parameter"
            ) from None

    def _cure(self, name: str) -> str:
        return _cure(self._task, name)

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
        if target is not None and (number := [handle.created for handle in handles].count(True)):
            note(target, self._task.name, number)
        source = Origin(outbox, target)
        return [handle.asking(source) for handle in handles]


def _cure(task: Task[..., Any], name: str) -> str:
    """Return the replacement for `name` on this task, in the form that the application's framework uses."""
    if task.takes_context and name in _DIRECT:
        return f"harness.run({task.__name__}, …) in a test, which passes a context"
    cure = replacement(Guess.ATTRIBUTE, "a task", name)
    cure = cure.replace("task.", f"{task.__name__}.").replace("task(", f"{task.__name__}(")
    return without_session(cure) if task.outbox.integration.knows_transaction else cure


_DIRECT = frozenset({"apply", "call_local", "fn", "run"})
"""Names that other libraries use for a direct call to the function."""


class Origin:
    """The outbox and the transaction of an enqueue, for the handles that it returns."""

    __slots__ = ("__weakref__", "_outbox", "_target", "_thread")

    def __init__(self, outbox: OutboxRef, target: object) -> None:
        """Remember where the tasks were written. `target` is None for a separate transaction, which
        has been committed.
        """
        self._outbox = outbox
        self._target: Callable[[], object] | None = None if target is None else _reference(target)
        self._thread = threading.get_ident()

    def result(self, task_id: UUID, timeout: timedelta | float | None) -> Any:
        return self._outbox.wait_for_result(task_id, timeout, self)

    def settle(self) -> None:
        """Record that the transaction has been committed."""
        self._target = None

    @property
    def is_committed(self) -> bool:
        """Return whether the tasks were written in a separate, committed transaction. The outcome of a caller's
        transaction is not known.
        """
        return self._target is None

    @property
    def is_this_threads(self) -> bool:
        """Return whether the tasks were enqueued in this thread."""
        return self._thread == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Return whether the transaction that wrote the task, or a later one on the same connection, is open."""
        return self._target is not None and has_transaction(self._target())


def has_transaction(target: Any) -> bool:
    """Return whether a transaction is open on a session or connection, without asking the database."""
    if isinstance(target, TaskContext):
        return target.inside is not None
    with suppress(Exception):  # raised for a closed connection
        if (state := getattr(target, "in_transaction", None)) is not None:  # SQLAlchemy's function, sqlite3's attribute
            return bool(state() if callable(state) else state)
        if (in_block := getattr(target, "in_atomic_block", None)) is not None:  # Django
            return bool(in_block or not target.autocommit)
        return bool(target.info.transaction_status in _OPEN)  # psycopg
    return False


_OPEN = frozenset({1, 2, 3})
"""The transaction states in psycopg: a command is running, a transaction is open, or the transaction has failed."""


def _reference(target: Any) -> Callable[[], object]:
    """Return a reference that does not keep a session or connection alive."""
    if isinstance(target, str):
        from django.db import connections

        target = connections[target]
    elif type(target).__name__ == "scoped_session":
        target = target()  # another thread would get another session
    try:
        return weakref.ref(target)
    except TypeError:
        return lambda: target


def ensure_found_by(name: str) -> None:
    """Raise ConfigurationError if this `module.qualname` would not name the same function in a worker."""
    if name.startswith("__main__.") or "<" in name:
        raise ConfigurationError(
            f"{name} is not a name under which a worker could find the function; give the task a name: @outbox.task(name='…')"
        )


def takes_context(function: Callable[..., object]) -> bool:
    """Return whether the first parameter is annotated with TaskContext."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return False
    first = parameters[0]
    if isinstance(first.annotation, str):
        try:
            return get_type_hints(function)[first.name] is TaskContext
        except NameError:  # another parameter's forward reference does not resolve, so compare the source text
            return first.annotation.rpartition(".")[2] == TaskContext.__name__
    return first.annotation is TaskContext


def _refuse_other_contexts(function: Callable[..., object], name: str, *, given: bool) -> None:
    """Raise ConfigurationError for a parameter that is annotated with TaskContext but does not receive a context from
    the worker.

    Without this check, the function's first call would lack an argument that the caller cannot provide. An unannotated
    first parameter `self`, which other libraries fill in, would receive the caller's first argument.
    """
    for place, parameter in enumerate(list(inspect.signature(function).parameters.values())[int(given) :]):
        is_bare = parameter.annotation is inspect.Parameter.empty
        if is_bare and (place, given, parameter.name) == (0, False, "self"):
            raise ConfigurationError(
                f"{name}: a task is a plain function and has no self; if self is the task's context, annotate the first parameter as "
                "ctx: TaskContext"
            )
        annotation = parameter.annotation
        if isinstance(annotation, str) and TaskContext.__name__ in annotation:
            with suppress(NameError):  # another parameter's forward reference does not resolve
                annotation = get_type_hints(function)[parameter.name]
        if annotation is TaskContext or TaskContext in get_args(annotation):
            raise ConfigurationError(
                f"{name}: the worker passes a context only to a first parameter annotated TaskContext; "
                f"make the first parameter {parameter.name}: TaskContext"
            )


def subscriptions_of(task: Task[..., Any], subscribe: str | Sequence[str] | None) -> tuple[Subscription, ...]:
    """Return the task's subscriptions to these topics. Raises ConfigurationError unless the task takes a payload."""
    patterns = patterns_of(subscribe)
    if not patterns:
        return ()
    parameters = list(task.parameters.signature.parameters.values())
    required = [other.name for other in parameters[1:] if other.default is other.empty]
    if not parameters or required:
        lack = (
            f"give the other parameters defaults: {', '.join(required)}"
            if required
            else "let the function take one argument"
        )
        raise ConfigurationError(
            f"{task.name}: a task that subscribes to a topic gets the event's payload as its only argument; {lack}"
        )
    fields = {"task_name": task.name, "parameter": parameters[0].name, **vars(task.options)}
    found = tuple(Subscription(topic=pattern, **fields) for pattern in patterns)
    for one in found:
        check_subscription(one)
    return found


def call_of(call: Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and keyword arguments of a call written as a tuple or as a mapping."""
    if type(call) is tuple:  # most calls are tuples; the tests below take longer than all other checks of a task
        return call, {}
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, str | bytes) or not isinstance(call, Sequence):
        raise InvalidCall("a call is a tuple of positional arguments or a mapping of keyword arguments; write (value,)")
    return tuple(call), {}
