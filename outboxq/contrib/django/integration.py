"""What Django brings along for a request that enqueues, and for a handler."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, reset_queries, transaction

from ...context import TaskContext
from ...database.target import DjangoTarget, target_of
from ...errors import InvalidTarget
from ...integration.base import Integration
from ...integration.front_end import FrontEnd
from ...model import Outcome
from ...store import Store
from ...store.units import ended
from .registry import DjangoRegistry

log = logging.getLogger("outboxq.worker")


class DjangoIntegration(Integration):
    """Django's connection to one database: enqueues join its transaction, transactional tasks are written through it."""

    front_end = FrontEnd(program="manage.py outboxq", worker="manage.py outboxq_worker")

    def __init__(self, alias: str) -> None:
        self.alias = alias
        if alias != DEFAULT_DB_ALIAS:
            self.front_end = replace(self.front_end, options=shlex.join(["--database", alias]))

    @contextmanager
    def transaction(self) -> Iterator[object]:
        """The present `atomic()`; outside of one, a transaction of its own, as `save()` has."""
        connection = connections[self.alias]
        if connection.in_atomic_block or not connection.get_autocommit():
            yield connection  # bare: an error of ours must not mark the caller's block for rollback
            return
        with _atomic(connection):
            yield connection

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:
        """A handler does not meet a connection that broke, is too old, or that another left in a transaction."""
        if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
            yield  # a test holds them: Django would close them, and count its queries anew
            return
        _refresh_connections()
        try:
            yield
        finally:
            _end_what_is_open(context)
            _refresh_connections()

    @contextmanager
    def unit_of_work(self, store: Store, *, within: object = None) -> Iterator[DjangoUnitOfWork]:
        """`transaction.atomic()` on Django's connection: the ORM's writes and the completion are committed together.

        Raises InvalidTarget for a `within` that is not Django's connection to this database.
        """
        connection = connections[self.alias]
        if within is not None:
            target = target_of(within, schema=store.schema)
            if not isinstance(target, DjangoTarget) or target.connection.alias != self.alias:
                raise InvalidTarget(
                    f"a transactional task in Django runs on Django's connection; pass the alias {self.alias!r}, inside atomic()"
                )
            with transaction.atomic(using=self.alias):
                yield DjangoUnitOfWork(connection)
            return
        committed: list[bool] = []
        is_nested = connection.in_atomic_block  # in a TestCase, which Django takes for durable
        try:
            with _autocommit(connection), _atomic(connection, durable=True):
                transaction.on_commit(lambda: committed.append(True), using=self.alias)
                unit = DjangoUnitOfWork(connection)
                with connection.execute_wrapper(unit.watch):
                    yield unit
        except BaseException:  # SystemExit, too: the worker's thread is not the callback's to end
            if not committed:
                raise
            log.exception("an on_commit callback failed after its task was committed; later ones were not called")
        if not committed and not is_nested:  # Django says nothing of it
            _drop(connection)
            raise InvalidTarget(
                "the transaction of this task was not committed: its handler left an atomic() block open, or closed the "
                "connection; leave each block that is begun (`with`), and do not close connections inside"
            )

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        """A task of `django.tasks` sends its signal."""
        tasks = getattr(context.outbox, "tasks", None)
        if isinstance(tasks, DjangoRegistry):
            tasks.ended(context, outcome)

    def on_thread_exit(self) -> None:
        connections.close_all()


class DjangoUnitOfWork:
    """The transaction of a transactional task: Django's own."""

    def __init__(self, connection: Any) -> None:
        self.target = connection
        self._raw = connection.connection
        self._failures: list[BaseException] = []

    def watch(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Around each statement of Django's: keep its error, which an `atomic()` inside may have taken back by the end."""
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            self._failures.append(error.__cause__ or error)
            raise

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether an error from outside, of which `error` tells, ended this transaction: nobody's failure."""
        dialect = DjangoTarget(self.target, None).dialect
        return dialect.was_interrupted(self._raw, error, self._failures)

    @property
    def connection(self) -> NoReturn:
        """Raises InvalidTarget: SQLAlchemy over Django's connection would end Django's transaction."""
        raise InvalidTarget(
            "a task of Django's writes through Django: use the ORM, or django.db.connections"
            f"[{self.target.alias!r}].cursor(); ctx.connection and ctx.session are SQLAlchemy's"
        )

    session = connection

    @property
    def database(self) -> str | None:
        return DjangoTarget(self.target, None).database()

    def flush(self) -> None:
        """The ORM holds nothing back. Raises InvalidTarget where the transaction has ended already."""
        if not DjangoTarget(self.target, None).dialect.is_open(self.target.connection):
            raise ended()


def _refresh_connections() -> None:
    """As around a request, and each is looked at before it is used again: an attempt costs more than a request."""
    reset_queries()
    for connection in connections.all(initialized_only=True):
        connection.health_check_enabled = True
    close_old_connections()


def _end_what_is_open(context: TaskContext) -> None:
    """Nobody would end it any more, and what later handlers of this thread write would never be committed."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            log.error(
                "task %s (%s) left a transaction open on the database %r: what it wrote there is rolled back",
                context.task_id,
                context.task_name,
                connection.alias,
            )
            _drop(connection)


def _drop(connection: Any) -> None:
    """This thread makes another when it needs one."""
    connection.close()
    del connections[connection.alias]


@contextmanager
def _atomic(connection: Any, *, durable: bool = False) -> Iterator[None]:
    """`transaction.atomic()` that on SQLite begins as a writer: one that reads first may find that it cannot write any more."""
    block = transaction.atomic(using=connection.alias, durable=durable)
    with ExitStack() as stack:
        if hasattr(connection, "transaction_mode"):
            connection.ensure_connection()  # which reads the settings
            before, connection.transaction_mode = connection.transaction_mode, "IMMEDIATE"
            try:
                stack.enter_context(block)
            finally:
                connection.transaction_mode = before
        else:
            stack.enter_context(block)
        yield


@contextmanager
def _autocommit(connection: Any) -> Iterator[None]:
    """With AUTOCOMMIT False in the settings, `atomic()` would commit nothing."""
    if connection.in_atomic_block or connection.get_autocommit():
        yield
        return
    connection.rollback()
    connection.set_autocommit(True)
    try:
        yield
    finally:
        connection.set_autocommit(False)
