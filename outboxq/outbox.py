"""The Outbox, which gives access to an application's outbox database and its tasks."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypedDict, TypeVar, Unpack, overload

import tenacity
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session, scoped_session

from . import migrations
from .context import TaskContext
from .database.dialects import check_schema_name, dialect_for
from .database.drivers import refuse_async
from .database.engine import make_engine, parse_url
from .errors import ConfigurationError, InvalidArgument
from .integration import Integration
from .integration.ambient import CURRENT, resolve_target
from .integration.hooks import Hook, HookCalls
from .integration.sessions import SessionIntegration
from .integration.uncommitted import note
from .model import OnDeadLetter, TaskOptions, TimeoutAction, duration
from .model.cloud_events import checked_source
from .model.options import (
    check_options,
    checked_action,
    headers_as_json,
    times,
    written_options,
)
from .model.relays import task_of
from .model.subscriptions import Emitted, NewEvent, Subscription
from .model.unknown_options import Answering, naming_options, without_session
from .model.uuid7 import family
from .model.wording import listed, plural
from .payload.parameters import dump_payload
from .retry import RetryPolicy
from .store import Store, in_the_store
from .store.arguments import storable
from .store.numbers.maintenance_jobs import PRUNE
from .task import ContextTask, P, R, Task, TaskRegistry, ensure_found_by, takes_context
from .task.batches import BatchedTasks
from .task.built_in import BULK, bulk_task, prune_task, retention_schedule
from .task.receivers import Inbox, Receivers
from .task.relays import Relays, sync
from .task.schedules import PeriodicTasks
from .task.task import Origin
from .task.waiting import WaiterOfProcess

if TYPE_CHECKING:
    from .worker.options import WorkerOptions
    from .worker.worker import Worker

log = logging.getLogger("outboxq.store")

S = TypeVar("S", bound=Store)


class TaskSettings(TypedDict, total=False):
    """The options for a declared task, as callers pass them. `Outbox.task` explains each option."""

    name: str | None
    queue: str
    priority: int
    retry: RetryPolicy | tenacity.BaseRetrying | None
    lease: timedelta | float
    timeout: timedelta | float | None
    timeout_action: TimeoutAction | str
    transactional: bool
    subscribe: str | Sequence[str] | None
    on_dead_letter: OnDeadLetter | str
    check_types: bool


_OF_A_TASK: Mapping[str, Any] = {
    **dict.fromkeys(TaskSettings.__annotations__),
    **vars(TaskOptions()),
    "timeout_action": TimeoutAction.ASK,
    "transactional": False,
    "check_types": True,
}
"""The defaults of these options."""
_LEFT_OUT: Any = object()
"""A marker for an argument that was not given. None cannot be the marker, because passing None must be detected as a
mistake.
"""


class Outbox(Answering, BatchedTasks, PeriodicTasks, Receivers, Relays):
    """An outbox in one database, with the tasks that go through it. A process may have any number of outboxes."""

    _noun = "an Outbox"
    _inner = frozenset({"batch_of", "hooks", "making", "previous_of", "task_of", "wait_for_batch", "wait_for_result"})

    @naming_options("Outbox()")
    def __init__(
        self,
        database: str | URL | Engine | None = None,
        *,
        schema: str | None = None,
        session: scoped_session[Any] | Callable[[], Session | None] | None = None,
        integration: Integration | None = None,
        hooks: Iterable[Hook] = (),
        version: str = "",
        retention: timedelta | float | None = None,
        outage_timeout: timedelta | float = Store.outage_timeout,
        source: str | None = None,
    ) -> None:
        """Create an outbox. It does not connect to the database yet.

        Args:
            database: A URL or an Engine. None means the URL in the environment variable OUTBOXQ_DATABASE_URL; if the
                variable is not set, the outbox is unbound until you call `bind()`. The engine for a URL is created at
                first use, so an Outbox can be a module global even if the process forks later.
            schema: The PostgreSQL schema that contains outboxq's tables. None means that the search path decides.
            session: A function that returns the current request's Session, such as a `scoped_session`. `task.enqueue()`
                writes in that Session's transaction, and handlers can use the Session too.
            integration: A framework's transaction, sessions and commands; see `Integration`. This option cannot be
                combined with `session`.
            hooks: Code that runs around the enqueueing and handling of all tasks, for example for traces; see `Hook`.
            version: The version of your code, such as "1.12.3". While two releases run side by side, the newer one's
                schedules apply. With "", the schedules that apply are those of the worker that started last.
            retention: The time after which completed and cancelled tasks are deleted. One of the workers deletes these
                tasks once an hour. None means that no worker deletes them.
            outage_timeout: The time for which one of outboxq's own transactions, such as `using(outbox)` or
                `outbox.store.get(…)`, is retried while the database is unavailable. After this time, the database's
                error is raised. In a handler, the transaction is retried for 30 seconds.
            source: The name of this application in the events that `relay` sends to other programs: a URI or a name
                without spaces, such as "shop".

        Raises ConfigurationError if outboxq does not support the database, if both `session` and `integration` are
        given, or if a hook is not a Hook. Raises InvalidArgument if the version, the retention or the source is not
        valid.
        """
        check_schema_name(schema)
        if session is not None and integration is not None:
            raise ConfigurationError(
                "Outbox takes session= or integration=, not both; an integration provides its own sessions"
            )
        if session is not None and not callable(session):
            raise ConfigurationError(
                "session= takes a function that returns the current Session, such as a scoped_session; pass a single Session, "
                "which belongs to one request, to using()"
            )
        self.schema = schema
        self.source = checked_source(source)
        self.integration = integration or (Integration() if session is None else SessionIntegration(session))
        self._given_hooks = HookCalls.of(hooks)
        self.tasks = self._registry()
        self.tasks.version = storable(version, "version") or ""
        self.tasks.built_in.update({PRUNE: prune_task(self), BULK: bulk_task(self)})
        if retention is not None:
            self.tasks.add_schedule(retention_schedule(self.tasks.built_in[PRUNE], retention), self)
        self._outage_timeout = duration(outage_timeout, "outage_timeout")
        if self._outage_timeout < timedelta(0):
            raise InvalidArgument(f"outage_timeout must be zero or more, not {outage_timeout!r}")
        self._database: str | URL | Engine | None = None
        self._bound: dict[str, Store] = {}
        self._waiters = WaiterOfProcess()
        self._missed = MissedEvents()
        database = database or self._database_of_the_environment()
        if database:
            self.bind(database)

    def bind(self, database: str | URL | Engine) -> None:
        """Set or change this outbox's database. Raises ConfigurationError if outboxq does not support the database."""
        refuse_async(database)
        if not isinstance(database, str | URL | Engine):
            raise ConfigurationError(f"Outbox takes a database URL or an Engine, not {type(database).__name__}")
        if isinstance(database, Engine):
            dialect_for(database.dialect.name, schema=self.schema)
        else:
            url = parse_url(database)
            dialect_for(url.get_backend_name(), schema=self.schema).normalize_url(url)
        self._database = database
        self._bound = {}

    @cached_property
    def hooks(self) -> HookCalls | None:
        """The hooks, ready to be called; None if the outbox has none."""
        return self._given_hooks

    @property
    def is_bound(self) -> bool:
        """True if the outbox has a database."""
        return self._database is not None

    @property
    def store(self) -> Store:
        """The Store, which is the lower-level interface. While the outbox is unbound, the Store's methods work only if
        they are called with ``using=``.
        """
        if self._stand_in is not None:
            return self._stand_in.store
        if (store := self._bound.get("store")) is not None:
            return store
        engine = make_engine(self._database) if isinstance(self._database, str | URL) else self._database
        # If several threads get here at the same time, all of them get the first store, because the connections of a
        # second engine would never be closed.
        return self._bound.setdefault("store", self._of_application(Store(engine, schema=self.schema)))

    @property
    def inbox(self) -> Inbox:
        """The inbox, which accepts each message from another program only once."""
        return Inbox(self)

    @overload
    def task(self, function: Callable[Concatenate[TaskContext, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskSettings]) -> TaskDecorator: ...

    @naming_options("@outbox.task()", options=TaskSettings.__annotations__, defaults=_OF_A_TASK)  # type: ignore[misc]
    def task(self, function: Any = _LEFT_OUT, /, **options: Unpack[TaskSettings]) -> Any:
        """Declare a function as a task: ``@outbox.task`` or ``@outbox.task(queue="mail", …)``.

        If the function needs the TaskContext, annotate its first parameter with that class.

        Args:
            name: The name under which workers find the function. It is stored permanently with each task. None means
                ``module.qualname``.
            queue: The queue in which the function's tasks wait.
            priority: -100 to 100. Tasks with a higher priority start first.
            retry: A RetryPolicy or a tenacity Retrying, which decides whether a failed task gets another attempt. None
                means ten attempts.
            lease: The time after which a dead worker's task is recovered. A live worker extends the lease, so the lease
                can be shorter than the handler's run time.
            timeout: The time after which ``ctx.timed_out`` tells the handler to stop. None means no limit.
            timeout_action: The action that the worker takes after the timeout. "ask": none. "raise": TaskTimeout is
                raised in the handler. "kill": the same, and a handler that is still running after the worker's
                ``timeout_grace`` is killed with its process.
            transactional: Run the handler inside one transaction (``ctx.connection``, ``ctx.session``). The same
                transaction commits the completion and everything that the handler enqueued, so all of it takes effect
                exactly once within this database.
            subscribe: Topics, given as exact names or patterns (``order.*``). The task is enqueued for each emitted
                event with a matching topic; the event's payload is the task's only argument.
            on_dead_letter: The effect on a partition key when a task with this key becomes Failed. "release": the key's
                next task runs. "hold": the next task waits until the dead letter is redriven or discarded.
            check_types: When enqueueing, refuse an argument that does not match its parameter's annotation, if the
                annotation is a plain type (`int`, `str | None`, `list[int]`, a TypedDict). With False, such parameters
                accept any JSON.

        `queue`, `priority`, `lease`, `timeout` and `on_dead_letter` are stored with each task. If you change them,
        tasks that are already enqueued keep the former values. The other options are read from the worker's code.

        Raises ConfigurationError for a function that a worker could not call with stored arguments, and for a name that
        is already taken. Raises InvalidArgument for an option that is out of range.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            given_instead: object = function
            if not callable(given_instead):
                instead = f", or @outbox.task(name={given_instead!r})" if isinstance(given_instead, str) else ""
                raise ConfigurationError(
                    f"@outbox.task takes a function; options are keywords: @outbox.task(queue='mail'){instead}"
                )
            given: dict[str, Any] = {**_OF_A_TASK, **options}
            stored = written_options(given)
            task_name = given["name"] or f"{function.__module__}.{function.__qualname__}"
            # An option out of range is reported here, not by the first request that enqueues the task.
            check_options(stored, f"task {task_name!r}", task_name=task_name)
            kind: type[Task[..., Any]] = ContextTask if takes_context(function) else Task
            task = kind(
                function,
                name=task_name,
                options=stored,
                retry=RetryPolicy.of(given["retry"]),
                outbox=self,
                transactional=given["transactional"],
                subscribe=given["subscribe"],
                check_types=given["check_types"],
                timeout_action=checked_action(given["timeout_action"], stored.timeout, f"task {task_name!r}"),
            )
            if not given["name"]:
                ensure_found_by(task_name)  # comes last, so that an error about an option is not its second error
            self.tasks.add(task)
            return task

        return declare if function is _LEFT_OUT else declare(function)

    @naming_options("emit()")
    def emit(
        self,
        topic: str,
        payload: object = None,
        *,
        using: object = CURRENT,
        delay: timedelta | float | None = None,
        run_after: datetime | None = None,
        partition_key: str | None = None,
        concurrency_key: str | None = None,
        expires: timedelta | float | datetime | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Emitted:
        """Enqueue every task that subscribes to this topic, in the transaction that `using` specifies: either all of
        them are enqueued or none are.

        `using`, `delay`, `run_after` and `expires` work as in `Task.using`. The subscriptions are stored in the
        database (see `sync_subscriptions`), so this process does not have to import the tasks. `payload` is converted
        to JSON according to its own type, and each task reads it according to the annotation of its parameter. A
        payload that does not fit the annotation causes an error in the worker, not in this call, because the
        subscribers may belong to another program. If no task subscribes to the topic, `event_unrouted` is recorded. If
        a task or a relay in this process subscribes to the topic, but this subscription is not stored yet, a warning is
        logged once. With an `idempotency_key`, each subscriber gets only one task for that key: a second emit creates
        tasks only for subscribers that have been added since. All of the tasks get the `headers`, which work as in
        `Task.using`.

        Raises PayloadError if the payload is not strict JSON, InvalidArgument for an option that is out of range, and
        InvalidTarget if there is no transaction to write in. All of these errors are raised before anything is written.
        """
        event = NewEvent(
            id=family(),
            topic=topic,
            payload=dump_payload(payload, name=f"event {topic!r}"),
            partition_key=partition_key,
            concurrency_key=concurrency_key,
            idempotency_key=idempotency_key,
            headers=None if headers is None else headers_as_json(headers, f"event {topic!r}"),
            **times(f"emit({topic!r})", delay=delay, run_after=run_after, expires=expires),
        )

        def write(event: NewEvent) -> Emitted:
            with resolve_target(self, using, f"emit({topic!r})", is_option=True) as target:
                emitted = self.store.emit(event, using=target)
            if emitted.relays or any(handle.created for handle in emitted.handles.values()):
                note(target, topic, kind="event")
            self._missed.warn(self.store, target, topic, emitted, self.tasks)
            source = Origin(self, target)
            for handle in emitted.handles.values():
                handle.asking(source)
            return emitted

        return write(event) if self.hooks is None else self.hooks.emit(event, write)

    @property
    def subscriptions(self) -> list[Subscription]:
        """The subscriptions of the tasks that have been declared so far."""
        return [one for task in self.tasks for one in task.subscriptions]

    def sync_subscriptions(self) -> None:
        """Store the relays to brokers and the subscriptions of this process's tasks in the database, and delete
        subscriptions that the tasks no longer declare.

        Subscriptions of tasks that this process does not know are not changed. Every worker calls this method when it
        starts. `outboxq upgrade APP` also calls this method, so that events that are emitted before a release's first
        worker starts are not missed.
        """
        sync(self.store, self.tasks)

    def upgrade(self) -> None:
        """Create or upgrade the tables. Raises ConfigurationError while the outbox is unbound."""
        migrations.upgrade(self.store.bound_engine, schema=self.schema)

    @naming_options("worker()", positional='queues=["mail"]')
    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Create a worker for this outbox's tasks. `Worker` explains the options."""
        from .worker.worker import Worker

        return Worker(self.store, self.tasks, integration=self.integration, hooks=self.hooks, **options)

    def _cure(self, name: str) -> str:
        cure = super()._cure(name) or in_the_store(name)
        return without_session(cure) if self.integration.knows_transaction else cure

    def _of_application(self, store: S) -> S:
        """Give the store the application's declared queues and outage timeout, and return the store."""
        store.declared, store.outage_timeout = self.tasks.queues, self._outage_timeout
        return store

    def _registry(self) -> TaskRegistry:
        return TaskRegistry()

    def _database_of_the_environment(self) -> str | None:
        return os.environ.get("OUTBOXQ_DATABASE_URL")


class TaskDecorator(Protocol):
    """The decorator that `@outbox.task(…)` returns and that Python applies to the function."""

    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class MissedEvents:
    """Warns once about each task and relay that misses an event."""

    def __init__(self) -> None:
        self._known = set[str]()
        self._number = 0
        """The number of tasks whose topics are stored in `_exact` and `_prefixes`."""
        self._exact: dict[str, list[str]] = {}
        self._prefixes: list[tuple[str, str]] = []

    def warn(self, store: Store, target: object, topic: str, emitted: Emitted, tasks: Iterable[Task[..., Any]]) -> None:
        """Warn if any of the tasks subscribes to the topic but did not get the event, which was written in `target`."""
        declared = [*tasks]
        if len(declared) != self._number:
            self._read(declared)
        names = {*self._exact.get(topic, ()), *(name for prefix, name in self._prefixes if topic.startswith(prefix))}
        missing = names - self._known - emitted.handles.keys() - {task_of(name) for name in emitted.relays}
        if not missing:
            return
        self._known |= missing  # no lock, because a fork could copy it while it is held; at worst, two threads warn
        # A relay also skips an event whose idempotency key it has received before.
        missing -= {one.task_name for one in store.subscriptions.list(using=target)}
        if missing:
            log.warning(
                "an event with the topic %r was emitted, but %s %s, which this application declares, will never receive it: the %s not "
                "stored yet; run %s before you emit events, or call sync_subscriptions()",
                topic,
                plural(len(missing), "the task", "the tasks"),
                listed(map(repr, sorted(missing))),
                plural(len(missing), "subscription is", "subscriptions are"),
                store.upgrade_command,
            )

    def _read(self, declared: Sequence[Task[..., Any]]) -> None:
        exact, prefixes = defaultdict[str, list[str]](list), []
        for name, topic in ((one.name, it.topic) for one in declared for it in one.subscriptions):
            if topic.endswith("*"):
                prefixes.append((topic[:-1], name))
            else:
                exact[topic].append(name)
        self._exact, self._prefixes, self._number = dict(exact), prefixes, len(declared)
