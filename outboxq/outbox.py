"""What an application holds: its database, its tasks, and the way to both."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, Unpack, overload

import tenacity
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session, scoped_session

from . import migrations
from .context import TaskContext
from .database.dialects import check_schema_name, dialect_for
from .database.engine import make_engine, parse_url
from .errors import ConfigurationError
from .integration.ambient import HERE, place
from .integration.base import Host
from .integration.sessions import SessionHost
from .model import NewTask, OnDeadLetter, duration
from .model.options import choice, times
from .model.subscriptions import Emitted, NewEvent, Subscription
from .model.unknown_options import OF_A_TASK, OF_AN_EMIT, naming_options
from .model.uuid7 import family, uuid7
from .payload.parameters import dump_payload
from .retry import RetryPolicy
from .store import Store, check
from .task import DEFAULT_LEASE, ContextTask, P, R, Registry, Settings, Task, name_of, takes_context

if TYPE_CHECKING:
    from .worker.options import WorkerOptions
    from .worker.worker import Worker


class Outbox:
    """One database's outbox and the tasks that go through it. Any number of them live in one process."""

    def __init__(
        self,
        database: str | URL | Engine | None = None,
        *,
        schema: str | None = None,
        session: scoped_session[Any] | Callable[[], Session | None] | None = None,
        host: Host | None = None,
    ) -> None:
        """`database` is a URL or an Engine; None: OUTBOXQ_DATABASE_URL, else unbound until `bind()`.

        The engine is made at first use, so that an Outbox may be a module's global before processes fork. `schema` is the
        PostgreSQL schema of our tables. `session` returns the Session of the present request (a `scoped_session` does):
        `task.enqueue()` writes in its transaction, and handlers have it too. `host` is what a framework knows of that, and
        more; see `Host`. Raises ConfigurationError for what cannot be a database of ours.
        """
        check_schema_name(schema)
        if session is not None and host is not None:
            raise ConfigurationError("an outbox takes a session or a host, which knows it, not both")
        if session is not None and not callable(session):
            raise ConfigurationError(
                "session= takes a function that returns the present Session, such as a scoped_session; one Session belongs "
                "to one request: pass it to using()"
            )
        self.schema = schema
        self.host = host or (Host() if session is None else SessionHost(session))
        self.tasks = Registry()
        self._database: str | URL | Engine | None = None
        self._bound: dict[str, Store] = {}
        database = database or self._database_of_the_environment()
        if database is not None:
            self.bind(database)

    def bind(self, database: str | URL | Engine) -> None:
        """Say, or say anew, which database this outbox lives in."""
        if not isinstance(database, str | URL | Engine):
            raise ConfigurationError(f"Outbox takes a database URL or an Engine, not {type(database).__name__}")
        if isinstance(database, Engine):
            dialect_for(database.dialect.name, schema=self.schema)
        else:
            url = parse_url(database)
            dialect_for(url.get_backend_name(), schema=self.schema).own_url(url)
        self._database = database
        self._bound = {}

    @property
    def is_bound(self) -> bool:
        return self._database is not None

    @property
    def store(self) -> Store:
        """The lower layer. While the outbox is unbound, only its methods with ``using=`` work."""
        if (store := self._bound.get("store")) is not None:
            return store
        engine = make_engine(self._database) if isinstance(self._database, str | URL) else self._database
        # Threads that come here at once all get the first one's: nobody would close the connections of a second engine.
        return self._bound.setdefault("store", Store(engine, schema=self.schema))

    @overload
    def task(
        self,
        function: Callable[Concatenate[TaskContext, P], R],
        /,
    ) -> ContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: RetryPolicy | tenacity.BaseRetrying | None = None,
        lease: timedelta | float = DEFAULT_LEASE,
        timeout: timedelta | float | None = None,
        transactional: bool = False,
        subscribe: str | Sequence[str] | None = None,
        on_dead_letter: OnDeadLetter | str = OnDeadLetter.RELEASE,
        check_types: bool = True,
    ) -> Declaring: ...

    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declare a function as a task: ``@outbox.task`` or ``@outbox.task(queue="mail", …)``.

        A first parameter annotated TaskContext is given the context.

        Args:
            name: The name under which workers find the function. It is stored with each task, for ever. None: ``module.qualname``.
            queue: The queue that its tasks wait in.
            priority: From -100 to 100; tasks with a higher one go first.
            retry: When a failed attempt is tried again: a RetryPolicy, or a tenacity Retrying. None: ten attempts.
            lease: How long the task of a dead worker waits to be taken back. A living worker extends the lease, so it need not
                cover the handler's duration.
            timeout: The time after which the handler is told to stop, by ``ctx.timed_out``. Nobody interrupts it. None: no end.
            transactional: Run the handler inside one transaction (``ctx.connection``, ``ctx.session``) that also commits its
                completion and what it enqueued: exactly once, in this database.
            subscribe: Topics, exact or as patterns (``order.*``). The task is enqueued for each emitted event of
                such a topic, with the event's payload as its one argument.
            on_dead_letter: What becomes of the partition key of a task that Failed: the next task of the key runs ("release"),
                or the key waits until the dead letter is redriven or discarded ("hold").
            check_types: An argument annotated with a plain type (`int`, `str | None`, `list[int]`, a TypedDict) must be of that
                type when it is enqueued. False: any JSON will do for those.

        Raises ConfigurationError for a function that could not be called from its stored arguments, and for a name that is
        taken; InvalidArgument for an option out of its range.
        """
        return self._declare(*functions, **options) if functions else partial(self._declare, **options)

    @naming_options("@outbox.task()", OF_A_TASK)
    def _declare(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: RetryPolicy | tenacity.BaseRetrying | None = None,
        lease: timedelta | float = DEFAULT_LEASE,
        timeout: timedelta | float | None = None,
        transactional: bool = False,
        subscribe: str | Sequence[str] | None = None,
        on_dead_letter: OnDeadLetter | str = OnDeadLetter.RELEASE,
        check_types: bool = True,
    ) -> Task[..., Any]:
        if not callable(function):
            raise ConfigurationError("@outbox.task takes a function; options are keywords: @outbox.task(queue='mail')")
        settings = Settings(
            queue=queue,
            priority=priority,
            lease=duration(lease, "lease"),
            timeout=None if timeout is None else duration(timeout, "timeout"),
            on_dead_letter=choice(OnDeadLetter, on_dead_letter, "on_dead_letter"),
        )
        name = name or name_of(function)
        # Said here, and not by the first request that enqueues it.
        spans = {"lease": settings.lease, "timeout": settings.timeout}
        check(NewTask(id=uuid7(), task_name=name, args="{}", queue=queue, priority=priority, **spans))  # type: ignore[arg-type]
        kind: type[Task[..., Any]] = ContextTask if takes_context(function) else Task
        policy = RetryPolicy.of(retry)
        task = kind(
            function,
            name=name,
            settings=settings,
            retry=policy,
            holder=self,
            transactional=transactional,
            subscribe=subscribe,
            check_types=check_types,
        )
        self.tasks.add(task)
        return task

    @naming_options("emit()", OF_AN_EMIT)
    def emit(
        self,
        topic: str,
        payload: object = None,
        *,
        using: object = HERE,
        delay: timedelta | float | None = None,
        run_after: datetime | None = None,
        partition_key: str | None = None,
        expires: timedelta | float | datetime | None = None,
        idempotency_key: str | None = None,
    ) -> Emitted:
        """Enqueue every task that subscribes to this topic, in the transaction of `using`: all of them or none.

        `using` and the times are those of `Task.using`; the outbox itself stands for a transaction of its own, nothing for the
        present one where that is known. Who subscribes
        is known to the database (`sync_subscriptions`), so this process need not import the tasks. `payload` becomes JSON by
        its own type, as a result does, and each task reads it as its parameter is annotated; what does not fit there is found by
        the worker, since the subscribers may be another program's. Nobody subscribes:
        `event_unrouted` is recorded. With an `idempotency_key` each subscriber has one task for it, for ever; a second emit
        creates tasks only for those who subscribed since.

        Raises PayloadError for what is not strict JSON, InvalidArgument, InvalidTarget; all of them before anything is written.
        """
        event = NewEvent(
            id=family(),
            topic=topic,
            payload=dump_payload(payload, name=f"event {topic!r}"),
            partition_key=partition_key,
            idempotency_key=idempotency_key,
            **times(f"emit({topic!r})", delay=delay, run_after=run_after, expires=expires),
        )
        with place(self, using, f"emit({topic!r})") as target:
            return self.store.emit(event, using=target)

    @property
    def subscriptions(self) -> list[Subscription]:
        """What the tasks declared so far subscribe to."""
        return [one for task in self.tasks for one in task.subscriptions]

    def sync_subscriptions(self) -> None:
        """Tell the database what the tasks of this process subscribe to, and to what they do not any more.

        The subscriptions of tasks that this process does not know are left alone. Every worker calls it when it starts; for
        events that are emitted before the first worker of a release has started, `outboxq upgrade APP` does.
        """
        self.store.subscribe(self.subscriptions, tasks=[task.name for task in self.tasks])

    def upgrade(self) -> None:
        """Create or upgrade the tables. Raises ConfigurationError while the outbox is unbound."""
        migrations.upgrade(self._engine(), schema=self.schema)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this outbox's tasks; see `Worker` for the options."""
        from .worker.worker import Worker

        return Worker(self.store, self.tasks, host=self.host, **options)

    def _database_of_the_environment(self) -> str | None:
        return os.environ.get("OUTBOXQ_DATABASE_URL") or None

    def _engine(self) -> Engine:
        if self.store.engine is None:
            raise ConfigurationError("this outbox is not bound to a database; call bind() or set OUTBOXQ_DATABASE_URL")
        return self.store.engine


def _signature_of_task() -> inspect.Signature:
    """Return what `Outbox.task` takes: a function or none yet, and the options, which stand in `_declare` alone."""
    declared = inspect.signature(Outbox._declare)  # noqa: SLF001
    given = [one.replace(default=None) if one.name == "function" else one for one in declared.parameters.values()]
    return declared.replace(parameters=given, return_annotation=inspect.Signature.empty)


# For help() and editors, in place of `*functions, **options`.
Outbox.task.__signature__ = _signature_of_task()  # type: ignore[attr-defined]


class Declaring(Protocol):
    """`@outbox.task(…)`, waiting for its function."""

    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
