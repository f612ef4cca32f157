"""The integration with Django: a request's transaction, an outbox's tasks, and a handler's connections."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, reset_queries, transaction
from django.db.backends.signals import connection_created

from ...context import TaskContext
from ...database.using import DjangoTarget, target_of
from ...errors import InvalidTarget, UnknownTask
from ...integration import FrontEnd, Integration
from ...model import Outcome
from ...model.records import fields_of
from ...store import Store
from ...store.claims.units_of_work import Abandonment, ended
from ...store.failure_log import exception_field
from ...task import Task, TaskRegistry

if TYPE_CHECKING:
    from .task_adapter import TaskAdapter

log = logging.getLogger("outboxq.worker")
_handled: ContextVar[TaskContext | None] = ContextVar("outboxq_django_context", default=None)
"""The context of the handler that is running in this thread or whose transaction is ending. Log records take their
fields from it.
"""

_owner: ContextVar[Any] = ContextVar("outboxq_django_owner", default=None)
"""The connection of the transactional task that is running. Threads that a coroutine uses inherit this variable."""


class DjangoIntegration(Integration):
    """The integration with one of the databases in `DATABASES`. Enqueues and transactional tasks join the transaction
    of Django's connection to that database.
    """

    front_end = FrontEnd(program="manage.py outboxq", finds_app=True)
    needs_front_end = True
    how_to_import = "import its module in the tasks.py of an installed app"

    def __init__(self, alias: str) -> None:
        self.alias = alias
        if alias != DEFAULT_DB_ALIAS:
            self.front_end = replace(self.front_end, options=shlex.join(["--database", alias]))

    @property
    def knows_transaction(self) -> bool:
        return True

    def is_in_a_test(self) -> bool:
        """Return whether an `atomic()` block is open, such as that of a TestCase."""
        return bool(connections[self.alias].in_atomic_block)

    def transaction(self) -> AbstractContextManager[object]:
        return present_transaction(self.alias)

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:
        """Give the handler usable connections: not broken, not too old, and not in another handler's transaction."""
        token = _handled.set(context)
        connection_created.connect(_guard, dispatch_uid="outboxq.contrib.django.integration")
        try:
            if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
                yield  # in a test: closing the connections and resetting the queries would disturb it
                return
            _refresh_connections()
            try:
                yield
            finally:
                _end_what_is_open(context)
                _refresh_connections()
        finally:
            _handled.reset(token)

    @contextmanager
    def unit_of_work(self, store: Store, *, within: object = None) -> Iterator[DjangoUnitOfWork]:
        """Open `transaction.atomic()` on Django's connection, so that the ORM's writes and the completion are committed
        together.

        Raises InvalidTarget if `within` is not Django's connection to this database. Also raises InvalidTarget after
        the block, if the handler left a transaction open or closed the connection.
        """
        connection = connections[self.alias]
        if within is not None:
            target = target_of(within, schema=store.schema)
            if not isinstance(target, DjangoTarget) or target.connection.alias != self.alias:
                cure = f"pass the alias {self.alias!r}, inside atomic()"
                raise InvalidTarget(f"a transactional task in Django runs on Django's connection; {cure}")
            with transaction.atomic(using=self.alias):
                yield DjangoUnitOfWork(connection)
            return
        committed: list[bool] = []
        was_abandoned = False
        is_nested = connection.in_atomic_block  # in a TestCase, whose transaction Django treats as durable
        try:
            with _autocommit(connection), _atomic(connection, durable=True):
                transaction.on_commit(lambda: committed.append(True), using=self.alias)
                unit = DjangoUnitOfWork(connection)
                token = _owner.set(connection)
                try:
                    with connection.execute_wrapper(unit.watch):
                        yield unit
                finally:
                    _owner.reset(token)
                    was_abandoned = unit.was_abandoned()
        except BaseException as error:  # SystemExit too: a callback must not end the worker's thread
            if not committed:
                raise
            text = "an on_commit callback failed after its task was committed, so later callbacks were not called; the task will not run again"
            context = _handled.get()
            fields = {} if context is None else fields_of(context.claim, exception=exception_field(error))
            log.exception(text, extra=fields)
        finally:
            if was_abandoned:
                _drop(connection)
        if not committed and not is_nested:  # in this case Django does not report an error
            _drop(connection)
            cure = "write each block as `with atomic():`, and do not close connections inside it"
            why = "its handler left an atomic() block open, or closed the connection"
            raise InvalidTarget(f"this task's transaction was not committed: {why}; {cure}")

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        """Send a `django.tasks` task's signal."""
        tasks = getattr(context.outbox, "tasks", None)
        if isinstance(tasks, DjangoRegistry):
            tasks.ended(context, outcome)

    def on_thread_exit(self) -> None:
        """Close the thread's connections."""
        connections.close_all()


@contextmanager
def present_transaction(alias: str, *, mode: str = "IMMEDIATE") -> Iterator[object]:
    """Yield the connection inside the current `atomic()` block. If there is no such block, open a separate one, as
    `save()` does.

    `mode` is the separate transaction's mode on SQLite.
    """
    connection = connections[alias]
    if connection.in_atomic_block or not connection.get_autocommit():
        yield connection  # not in atomic(), because an error in outboxq must not mark the caller's block for rollback
        return
    with _atomic(connection, mode=mode):
        yield connection


class DjangoRegistry(TaskRegistry):
    """The tasks declared with `@outbox.task`, and the `django.tasks` tasks, whose names are their import paths.

    Names come from database rows. For safety, only modules in installed apps and modules that OPTIONS allows are
    imported, and only a Django Task with exactly the name in the row is used.
    """

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias = alias
        self._declared: dict[str, None] = {}
        self._found: dict[str, TaskAdapter] = {}

    def declare(self, path: str) -> None:
        """Remember a task that is declared while its module is being imported. The task can be found after the import."""
        self._declared[path] = None

    def forget(self) -> None:
        """Forget the tasks found so far, because the settings have changed."""
        self._found.clear()

    def ended(self, context: TaskContext, outcome: Outcome) -> None:
        """If the task is a `django.tasks` task, pass its handler's outcome on to the adapter."""
        if (adapter := self._found.get(context.task_name)) is not None:
            adapter.ended(context, outcome)

    def get(self, name: str) -> Task[..., Any]:
        """Return the task with this name. Raises UnknownTask."""
        if super().__contains__(name):
            return super().get(name)
        found = self._find(name)
        if found is None:
            raise UnknownTask(f"task {name!r} is neither declared in this process nor a @task in an installed app")
        return found

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or self._find(name) is not None

    def __iter__(self) -> Iterator[Task[..., Any]]:
        yield from super().__iter__()
        for name in list(self._declared):
            if not super().__contains__(name) and (found := self._find(name)) is not None:
                yield found

    def _find(self, name: str) -> TaskAdapter | None:
        if (found := self._found.get(name)) is None:
            try:
                from .task_adapter import adapter_for

                found = adapter_for(name, self._alias)
            except ImproperlyConfigured:  # django.tasks is not installed
                return None
            except Exception:
                log.exception(
                    "task %r cannot be imported; fix its module and restart the worker", name, extra={"task": name}
                )
                return None
            if found is not None:
                self._found[name] = found
        return found


class DjangoUnitOfWork:
    """The transaction of a transactional task on Django's connection."""

    def __init__(self, connection: Any) -> None:
        self.target = connection
        self._raw = connection.connection
        self._on_django = DjangoTarget(connection, None)
        self._abandonment = Abandonment(self._on_django.dialect, self._raw)
        self._failures: list[BaseException] = []

    def watch(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Execute one of Django's statements. Keep the statement's error, because an inner `atomic()` may hide the
        error from the caller.
        """
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            self._failures.append(error.__cause__ or error)
            raise

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether `error` shows that something external ended this transaction."""
        return self._on_django.dialect.was_interrupted(self._raw, error, self._failures)

    def abandon(self) -> None:
        """Roll back from another thread, because the claim cannot be ended otherwise."""
        self._abandonment.abandon()

    def was_abandoned(self) -> bool:
        """Return whether the transaction was abandoned. If it was, the connection must not be used again. If it was
        not, the transaction can no longer be abandoned.
        """
        return self._abandonment.end()

    @property
    def connection(self) -> NoReturn:
        """Raise InvalidTarget, because SQLAlchemy would end Django's transaction if it used Django's connection."""
        cure = f"use the ORM, or django.db.connections[{self.target.alias!r}].cursor()"
        raise InvalidTarget(f"in Django, ctx.connection and ctx.session do not exist; {cure}")

    session = connection

    @property
    def database(self) -> str | None:
        """The database's name or file; None if it is not known."""
        return self._on_django.database()

    def flush(self) -> None:
        """Check that the transaction is still open, and raise InvalidTarget if it has ended. The ORM has no pending
        writes to flush.
        """
        if not self._on_django.dialect.is_open(self.target.connection):
            raise ended()


def _guard(*, connection: Any, **_: Any) -> None:
    """Make a new connection refuse writes that belong in the transaction of another thread's task."""
    if _execute not in connection.execute_wrappers:
        connection.execute_wrappers.append(_execute)


def _execute(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    owner, connection = _owner.get(), context["connection"]
    is_foreign = owner is not None and owner is not connection and owner.alias == connection.alias
    if is_foreign and str(sql).lstrip()[:6].upper() in {"INSERT", "UPDATE", "DELETE"}:
        cure = "write in the handler's thread: return the data from the coroutine, and write it afterwards"
        raise InvalidTarget(f"a transactional task cannot write through the connection of another thread; {cure}")
    return execute(sql, params, many, context)


def _refresh_connections() -> None:
    """Close old connections, as Django does before and after a request. Make Django check the other connections before
    their next use, because a lost attempt would cost more than the check.

    With AUTOCOMMIT off, a connection may still have an open transaction. Close such a connection, because a later
    handler in this thread would commit that transaction together with its own.
    """
    reset_queries()
    for connection in connections.all(initialized_only=True):
        connection.health_check_enabled = True
        if connection.connection is not None and not connection.get_autocommit():
            connection.close()
    close_old_connections()


def _end_what_is_open(context: TaskContext) -> None:
    """Roll back transactions that the handler left open. Otherwise later handlers' writes in this thread would not be
    committed.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            text = "task %s (%s) left a transaction open on the database %r; the transaction was rolled back; end each atomic() block"
            names = (context.task_id, context.task_name, connection.alias)
            log.error(text, *names, extra=fields_of(context.claim))
            _drop(connection)


def _drop(connection: Any) -> None:
    """Close the connection. The thread opens a new connection when it needs one."""
    connection.close()
    del connections[connection.alias]


@contextmanager
def _atomic(connection: Any, *, mode: str = "IMMEDIATE", durable: bool = False) -> Iterator[None]:
    """Open `transaction.atomic()`. On SQLite, the transaction begins as a writer unless `mode` says otherwise, because
    SQLite might refuse a write that follows a read.
    """
    block = transaction.atomic(using=connection.alias, durable=durable)
    with ExitStack() as stack:
        if hasattr(connection, "transaction_mode"):
            connection.ensure_connection()  # this reads the settings
            before, connection.transaction_mode = connection.transaction_mode, mode
            try:
                stack.enter_context(block)
            finally:
                connection.transaction_mode = before
        else:
            stack.enter_context(block)
        yield


@contextmanager
def _autocommit(connection: Any) -> Iterator[None]:
    """Turn autocommit on during the block, because `atomic()` commits nothing if AUTOCOMMIT is False in the settings."""
    if connection.in_atomic_block or connection.get_autocommit():
        yield
        return
    connection.rollback()
    connection.set_autocommit(True)
    try:
        yield
    finally:
        connection.set_autocommit(False)
