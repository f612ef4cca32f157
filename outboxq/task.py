"""Tasks: plain functions that an application may also enqueue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_type_hints

from .context import TaskContext
from .errors import ConfigurationError, InvalidArgument, InvalidCall, UnknownTask
from .integration.ambient import HERE, Holder, nowhere, place
from .model import Handle, NewTask, OnConflict, OnDeadLetter, duration
from .model.options import choice, times
from .model.subscriptions import Subscription, patterns_of
from .model.unknown_options import OF_ONE_CALL, naming_options, no_method
from .model.uuid7 import uuid7
from .payload.parameters import Parameters
from .retry import RetryPolicy
from .store import check_subscription

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_LEASE = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is said of a task where it is declared, and may be said otherwise where it is enqueued."""

    queue: str = "default"
    priority: int = 0
    lease: timedelta = DEFAULT_LEASE
    timeout: timedelta | None = None
    on_dead_letter: OnDeadLetter = OnDeadLetter.RELEASE
    """Of tasks with a partition key."""


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it runs it here and now, as if it were not a task."""

    def __init__(
        self,
        function: Callable[..., R],
        *,
        name: str,
        settings: Settings,
        retry: RetryPolicy,
        holder: Holder,
        transactional: bool = False,
        subscribe: str | Sequence[str] | None = None,
        check_types: bool = True,
    ) -> None:
        self.name = name
        self.function = function
        self.settings = settings
        self.retry = retry
        self.transactional = transactional
        self.holder = holder
        self.takes_context = takes_context(function)
        self.parameters = Parameters(function, name=name, context=self.takes_context, check_types=check_types)
        self.subscriptions = _subscriptions(self, subscribe)
        """The events that it is enqueued for; see `Outbox.emit`."""
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise no_method(self.__dict__.get("__name__", "task"), name)

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.settings.queue!r}>"

    @naming_options("using()", OF_ONE_CALL)
    def using(
        self,
        target: object = HERE,
        *,
        delay: timedelta | float | None = None,
        run_after: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        partition_key: str | None = None,
        expires: timedelta | float | datetime | None = None,
        idempotency_key: str | None = None,
        unique_for: timedelta | float | None = None,
        unique_until_finished: bool = False,
        on_conflict: OnConflict | str = OnConflict.RETURN,
    ) -> Enqueuing[P]:
        """Enqueue on `target`: the thing whose transaction the task belongs to, or with these options.

        Times are a timedelta or seconds, and moments aware datetimes. Raises InvalidArgument.

        Args:
            target: A SQLAlchemy Session, scoped_session or Connection, a psycopg or sqlite3 connection, a Django connection or
                alias, the context of a transactional task; or the outbox itself, for a transaction of its own. Left out: where
                `enqueue()` would write.
            delay: How long from now the task waits until it is due.
            run_after: The moment from which on the task is due, instead of `delay`.
            queue: The queue that the task waits in. None: as it is declared.
            priority: From -100 to 100; tasks with a higher one go first. None: as it is declared.
            max_attempts: The attempts that the task has, the first one included. None: as its retry policy says.
            partition_key: Tasks of one queue and key run one at a time, in the order of their enqueueing.
            expires: The span from now, or the moment, after which the task is not started any more.
            idempotency_key: The key that has one task of this name: enqueueing it again finds the first one.
            unique_for: How long the key is taken. None: for ever.
            unique_until_finished: The key is taken only until that task has ended.
            on_conflict: What happens where the key has a task already: its handle is returned ("return"), or none ("skip"), it
                takes over these arguments and options while it is Ready ("replace"), or DuplicateTask is raised ("raise").
        """
        if target is None:
            raise nowhere(self.name, "using(None) names no transaction")
        settings = self.settings
        options = {
            "task_name": self.name,
            "queue": settings.queue if queue is None else queue,
            "priority": settings.priority if priority is None else priority,
            "max_attempts": max_attempts,
            "lease": settings.lease,
            "timeout": settings.timeout,
            "partition_key": partition_key,
            "on_dead_letter": OnDeadLetter.RELEASE if partition_key is None else settings.on_dead_letter,
            "idempotency_key": idempotency_key,
            "unique_for": None if unique_for is None else duration(unique_for, "unique_for"),
            "unique_until_finished": unique_until_finished,
            "on_conflict": choice(OnConflict, on_conflict, "on_conflict"),
            **times(self.name, delay=delay, run_after=run_after, expires=expires),
        }
        return Enqueuing(self, target, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Where the transaction is known without being named: inside a transactional task of the same outbox, in Django, in
        Flask with Flask-SQLAlchemy, with `Outbox(session=…)`.

        Elsewhere raises InvalidTarget, which says what to write.
        """
        return self.using().enqueue(*args, **kwargs)


class ContextTask(Task[P, R]):
    """A task whose function is given the context: called here and now it takes one, enqueued it does not."""

    def __call__(self, ctx: TaskContext, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        return self.function(ctx, *args, **kwargs)


class Enqueuing(Generic[P]):
    """A task with its target and options: ready to be given its arguments."""

    def __init__(self, task: Task[P, Any], target: object, options: Mapping[str, Any]) -> None:
        """`options`: the fields of its NewTask, but for what each call has of its own."""
        self._task = task
        self._target = target
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Write the task, typed and checked as a call of the function.

        Raises InvalidCall (a TypeError) where the arguments do not fit the signature, PayloadError where one of them is not of
        its annotated type or no strict JSON, InvalidTarget; all of them before anything is written. SchemaOutOfDate where our
        tables are missing.
        """
        task = NewTask(id=uuid7(), args=self._task.parameters.dump(args, kwargs), **self._options)
        with place(self._task.holder, self._target, task.task_name) as target:
            return self._task.holder.store.enqueue(task, using=target)

    def enqueue_many(
        self,
        calls: Iterable[Sequence[Any] | Mapping[str, Any]],
        idempotency_keys: Sequence[str | None] | None = None,
    ) -> list[Handle]:
        """Write a task for each call, as one statement and under one `pipeline_execution_id`.

        A call is a sequence of positional arguments or a mapping of keyword arguments. `idempotency_keys` has a key for each
        call, or None where the call has none. All are checked before any is written.
        """
        if self._options["idempotency_key"] is not None:
            raise InvalidArgument(
                "an idempotency_key names one task, and enqueue_many() writes many; give it idempotency_keys=, one for each call"
            )
        given = [_call(call) for call in calls]
        keys = _keys(idempotency_keys, len(given))
        dump, options = self._task.parameters.dump, {**self._options, "pipeline_execution_id": uuid7()}
        tasks = [
            NewTask(id=uuid7(), args=dump(args, kwargs), **{**options, "idempotency_key": key})
            for (args, kwargs), key in zip(given, keys, strict=True)
        ]
        with place(self._task.holder, self._target, self._task.name) as target:
            return self._task.holder.store.enqueue_many(tasks, using=target)


class Registry:
    """The tasks of one outbox, by their names. Names are stored for ever, so a name means one task."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Raises ConfigurationError for a name that is taken.

        A module that is run again (its first import failed half-way, it is reloaded) declares its tasks anew.
        """
        known = self._tasks.get(task.name)
        if known is not None and not _is_again(known.function, task.function):
            raise ConfigurationError(
                f"two tasks are called {task.name!r}: {_where(known.function)} and {_where(task.function)}; give one name="
            )
        self._tasks[task.name] = task

    def get(self, name: str) -> Task[..., Any]:
        """Raises UnknownTask."""
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(
                f"task {name!r} is not registered in this process; import the module that declares it"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())


def name_of(function: Callable[..., object]) -> str:
    """`module.qualname`. Raises ConfigurationError where that would not name the same function in a worker."""
    name = f"{function.__module__}.{function.__qualname__}"
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        raise ConfigurationError(
            f"{name} is not a name that a worker could find again; give the task one: @outbox.task(name='…')"
        )
    return name


def takes_context(function: Callable[..., object]) -> bool:
    """Whether the first parameter is annotated TaskContext."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return False
    first = parameters[0]
    if isinstance(first.annotation, str):
        try:
            return get_type_hints(function)[first.name] is TaskContext
        except NameError:  # another parameter's forward reference: the text must do
            return first.annotation.rpartition(".")[2] == TaskContext.__name__
    return first.annotation is TaskContext


def _subscriptions(task: Task[..., Any], subscribe: str | Sequence[str] | None) -> tuple[Subscription, ...]:
    patterns = patterns_of(subscribe)
    if not patterns:
        return ()
    parameters = list(inspect.signature(task.function).parameters.values())[int(task.takes_context) :]
    required = [other.name for other in parameters[1:] if other.default is other.empty]
    if not parameters or required:
        lack = f"the others need defaults: {', '.join(required)}" if required else "it takes none"
        raise ConfigurationError(
            f"{task.name}: a task that subscribes to events is given the payload as its one argument; {lack}"
        )
    settings = task.settings
    found = tuple(
        Subscription(
            topic=pattern,
            task_name=task.name,
            parameter=parameters[0].name,
            queue=settings.queue,
            priority=settings.priority,
            lease=settings.lease,
            timeout=settings.timeout,
            on_dead_letter=settings.on_dead_letter,
        )
        for pattern in patterns
    )
    for one in found:
        check_subscription(one)
    return found


def _keys(given: Sequence[str | None] | None, calls: int) -> Sequence[str | None]:
    if given is None:
        return [None] * calls
    if isinstance(given, str) or len(given) != calls:
        raise InvalidArgument(f"idempotency_keys has one key for each call: a list of {calls}")
    return given


def _call(call: Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, str | bytes) or not isinstance(call, Sequence):
        raise InvalidCall("a call is a tuple of positional arguments or a mapping of keyword arguments; write (value,)")
    return tuple(call), {}


def _is_again(before: Callable[..., object], now: Callable[..., object]) -> bool:
    """The same function, from another run of its module; a second one of the same name in one run has another line."""
    if not (isfunction(before) and isfunction(now)) or "<" in before.__qualname__:
        return False
    same = (before.__module__, before.__qualname__) == (now.__module__, now.__qualname__)
    again = before.__globals__ is not now.__globals__ or before.__code__.co_firstlineno == now.__code__.co_firstlineno
    return same and again and before is not now


def _where(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
