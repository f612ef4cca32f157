"""The transaction of a transactional task: the handler's writes, what it enqueued, and its completion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from ..dialects import Begin
from ..errors import InvalidTarget
from ..target import SqlalchemyTarget
from .base import Transactions


class Unit:
    """One open transaction, for a handler to write in."""

    def __init__(self, connection: Connection) -> None:
        self.target = self.connection = connection
        self._sessions: list[Session] = []
        self._ends = False
        event.listen(connection, "commit", self._refuse)

    @cached_property
    def session(self) -> Session:
        """For the ORM, in a savepoint of its own at a time."""
        session = Session(self.connection, join_transaction_mode="create_savepoint")
        self._sessions.append(session)
        return session

    def flush(self) -> None:
        """Write what the session still holds back."""
        for session in self._sessions:
            session.commit()

    def end(self) -> None:
        """From now on it may be committed."""
        self._ends = True

    def close(self) -> None:
        for session in self._sessions:
            session.close()

    def _refuse(self, _connection: Any) -> None:
        if not self._ends:
            raise InvalidTarget(
                "a transactional task's transaction is committed with its completion; return instead of committing it"
            )


class Units(Transactions):
    @contextmanager
    def unit(self, *, using: object = None) -> Iterator[Unit]:
        """READ COMMITTED on PostgreSQL, BEGIN IMMEDIATE on SQLite; committed after the block, rolled back with any error.

        Beginning is tried again where that may help; the block runs once. `using` a transaction through SQLAlchemy, it is a
        savepoint of that.
        """
        with ExitStack() as stack:
            target: Any = None
            if using is not None:
                target = self._joined(using)
                if not isinstance(target, SqlalchemyTarget):
                    raise InvalidTarget(
                        "a transactional task writes through SQLAlchemy; give it a Session or Connection to run in"
                    )
                stack.enter_context(target.connection.begin_nested())
            else:
                for attempt in self._attempts():
                    with attempt:
                        target = stack.enter_context(self._transaction(Begin.HANDLER))
            unit = Unit(target.connection)
            stack.callback(unit.close)
            yield unit
            unit.end()
