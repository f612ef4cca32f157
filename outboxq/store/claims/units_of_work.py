"""Run the transaction of a transactional task: the handler's writes and enqueues, and the task's completion."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy.exc import DBAPIError

from ...database.dialects import Begin, Dialect
from ...database.engine_events import listen
from ...database.target import SqlalchemyTarget
from ...errors import InvalidTarget
from ..transactions import Transactions

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Unit:
    """One open transaction in which a handler writes."""

    def __init__(self, target: SqlalchemyTarget, *, begun: bool) -> None:
        """If `begun` is True, the transaction was begun for this unit, so the unit may mark the transaction. Otherwise,
        the unit is part of another transaction.
        """
        self.target = self.connection = target.connection
        self.database = target.database()
        self._target = target
        self._raw = target.connection.connection.driver_connection
        self._is_marked = begun and target.dialect.mark(self._raw, target.execute)
        self._sessions: list[Session] = []
        self._ends = False
        self._abandonment = Abandonment(target.dialect, self._raw)
        self._failures: list[BaseException] = []
        """Errors after which a savepoint of the aborted transaction was rolled back. They belong to this connection."""
        listen(target.connection, "commit", self._refuse)
        listen(target.connection, "rollback_savepoint", self._remember)

    @cached_property
    def session(self) -> Session:
        """The ORM session of the unit. It uses its own savepoints."""
        from sqlalchemy.orm import Session

        session = Session(self.connection, join_transaction_mode="create_savepoint")
        self._sessions.append(session)
        return session

    def flush(self) -> None:
        """Write the session's pending changes.

        Raises InvalidTarget if the handler has ended the unit's transaction. In that case, the unit's earlier writes
        were committed or lost.
        """
        with self.releasing():
            for session in self._sessions:
                session.commit()
        self._ensure_ours()

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Run a block in which the session releases its savepoint. Raises InvalidTarget if the whole transaction has
        already ended.
        """
        if not self._target.dialect.is_open(self._raw):
            self._give_up()
        try:
            yield
        except DBAPIError:
            self._ensure_ours()
            raise

    def _ensure_ours(self) -> None:
        if self._is_marked and not self._target.dialect.is_marked(self._raw, self._target.execute):
            self._give_up()

    def _give_up(self) -> NoReturn:
        if self._is_marked:
            self.connection.invalidate()  # sessions would release savepoints that no longer exist
        raise ended()

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether `error` shows that this transaction was ended from outside, in which case the task did not
        fail.
        """
        return self._target.dialect.was_interrupted(self._raw, error, self._failures)

    def abandon(self) -> None:
        """Roll the transaction back from another thread if there is no other way to end the claim. On SQLite, the open
        transaction prevents all others from writing.
        """
        self._abandonment.abandon()

    def end(self) -> None:
        """Allow the commit from now on."""
        self._ends = True

    def close(self) -> None:
        if self._abandonment.end():
            self.connection.invalidate()
        self._ends = True  # the transaction around a failed unit is its owner's, who may commit it
        for session in self._sessions:
            session.close()

    def _remember(self, _connection: Any, _name: str, _context: None) -> None:
        """Record the error before the savepoint is rolled back, while the transaction still shows its state."""
        if (error := sys.exception()) is not None and self._target.dialect.is_spoilt(self._raw):
            self._failures.append(error)

    def _refuse(self, _connection: Any) -> None:
        if not self._ends:
            raise InvalidTarget(
                "a transactional task's transaction is committed when the task completes; return from the handler instead of committing"
            )


def ended() -> InvalidTarget:
    return InvalidTarget(
        "the handler of this task ended the transaction with a COMMIT or ROLLBACK (or, on SQLite, an OR ROLLBACK), so its "
        "writes are not committed together with its completion; let the worker end the transaction, and undo parts "
        "of it with ctx.connection.begin_nested()"
    )


@contextmanager
def unit(store: Transactions, *, using: object = None) -> Iterator[Unit]:
    """Open a handler's transaction: READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite.

    The transaction is committed after the block, or rolled back after an error. The BEGIN is retried after temporary
    errors; the block runs only once. With `using`, the unit is a savepoint in this transaction, which must use
    SQLAlchemy.
    """
    with ExitStack() as stack:
        target: Any = None
        if using is not None:
            target = store.join(using)
            if not isinstance(target, SqlalchemyTarget):
                raise InvalidTarget(
                    "a transactional task writes through SQLAlchemy; give it a Session or Connection to run in"
                )
            stack.enter_context(target.connection.begin_nested())
        else:
            for attempt in store.tries():
                with attempt:
                    target = stack.enter_context(store.transaction(Begin.HANDLER))
        unit = Unit(target, begun=using is None)
        stack.callback(unit.close)
        yield unit
        unit.end()


class Abandonment:
    """Rolls back one handler's transaction from another thread, at most once, and never after the transaction has
    ended.
    """

    def __init__(self, dialect: Dialect, raw: Any) -> None:
        """`raw` is the driver's connection."""
        self._dialect, self._raw = dialect, raw
        self._lock = threading.Lock()
        self._is_over = self._was_abandoned = False

    def abandon(self) -> None:
        """Roll back the transaction if it prevents all others from writing. After that, the connection refuses the
        handler's writes.
        """
        with self._lock:
            if not self._is_over and self._dialect.one_writer:
                self._was_abandoned = True
                self._dialect.abandon(self._raw)

    def end(self) -> bool:
        """Prevent rollbacks from now on. Returns whether the transaction was rolled back, in which case the connection
        must not be used again.
        """
        with self._lock:
            self._is_over = True
        return self._was_abandoned
