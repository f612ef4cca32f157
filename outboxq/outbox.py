"""What an application holds: its database, its tasks, and the way to both."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, Unpack, overload

import tenacity
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from . import migrations
from .context import TaskContext
from .dialects import check_schema_name, dialect_for
from .engine import make_engine, parse_url
from .errors import ConfigurationError
from .model import NewTask, duration
from .retry import RetryPolicy
from .store import Store, check
from .task import DEFAULT_LEASE, ContextTask, P, R, Registry, Settings, Task, name_of, takes_context
from .uuid7 import uuid7

if TYPE_CHECKING:
    from .worker import Worker, WorkerOptions


class Outbox:
    """One database's outbox and the tasks that go through it. Any number of them live in one process."""

    def __init__(self, database: str | URL | Engine | None = None, *, schema: str | None = None) -> None:
        """`database` is a URL or an Engine; None: OUTBOXQ_DATABASE_URL, else unbound until `bind()`.

        The engine is made at first use, so that an Outbox may be a module's global before processes fork. `schema` is the
        PostgreSQL schema of our tables. Raises ConfigurationError for what cannot be a database of ours.
        """
        check_schema_name(schema)
        self.schema = schema
        self.tasks = Registry()
        self._database: str | URL | Engine | None = None
        self._store: Store | None = None
        database = database or os.environ.get("OUTBOXQ_DATABASE_URL") or None
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
        self._store = None

    @property
    def is_bound(self) -> bool:
        return self._database is not None

    @property
    def store(self) -> Store:
        """The lower layer. While the outbox is unbound, only its methods with ``using=`` work."""
        if self._store is None:
            engine = make_engine(self._database) if isinstance(self._database, str | URL) else self._database
            self._store = Store(engine, schema=self.schema)
        return self._store

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
    ) -> Declaring: ...

    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declare a function as a task: ``@outbox.task`` or ``@outbox.task(queue="mail", …)``.

        `name` is stored for ever; it defaults to ``module.qualname``. `retry` is a RetryPolicy or a tenacity Retrying. `lease`
        is how long a dead worker's task waits to be taken back; a living worker extends it, so it need not cover the handler's
        duration. A handler that runs past `timeout` is told by `ctx.timed_out`, not interrupted. `transactional` runs it inside
        one transaction (`ctx.connection`, `ctx.session`) that also commits its completion and what it enqueued: exactly once,
        in this database. A first parameter annotated TaskContext is given the context. Raises ConfigurationError for a function that
        could not be called from its stored arguments, and for a name that is taken.
        """
        return self._declare(*functions, **options) if functions else partial(self._declare, **options)

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
    ) -> Task[..., Any]:
        if not callable(function):
            raise ConfigurationError("@outbox.task takes a function; options are keywords: @outbox.task(queue='mail')")
        settings = Settings(
            queue=queue,
            priority=priority,
            lease=duration(lease, "lease"),
            timeout=None if timeout is None else duration(timeout, "timeout"),
        )
        name = name or name_of(function)
        # Said here, and not by the first request that enqueues it.
        spans = {"lease": settings.lease, "timeout": settings.timeout}
        check(NewTask(id=uuid7(), task_name=name, args="{}", queue=queue, priority=priority, **spans))  # type: ignore[arg-type]
        kind: type[Task[..., Any]] = ContextTask if takes_context(function) else Task
        policy = RetryPolicy.of(retry)
        task = kind(function, name=name, settings=settings, retry=policy, holder=self, transactional=transactional)
        self.tasks.add(task)
        return task

    def upgrade(self) -> None:
        """Create or upgrade the tables. Raises ConfigurationError while the outbox is unbound."""
        migrations.upgrade(self._engine(), schema=self.schema)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this outbox's tasks; see `Worker` for the options."""
        from .worker import Worker

        return Worker(self.store, self.tasks, **options)

    def _engine(self) -> Engine:
        if self.store.engine is None:
            raise ConfigurationError("this outbox is not bound to a database; call bind() or set OUTBOXQ_DATABASE_URL")
        return self.store.engine


class Declaring(Protocol):
    """`@outbox.task(…)`, waiting for its function."""

    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
