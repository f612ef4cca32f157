"""What the program around a task brings along: where its requests write, and what its handlers need about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy.orm import Session, scoped_session

from .context import TaskContext, Unit
from .model import Outcome
from .store import Store


class Host:
    """A program without a framework. One for a framework overrides what it knows better."""

    @contextmanager
    def transaction(self) -> Iterator[object | None]:
        """The transaction that is written in when none was named: what `using()` would be given. None: nobody knows."""
        yield None

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:  # noqa: ARG002 - for those who override it
        """Around a handler and the transaction of its task, in its thread. What it raises at its beginning fails the attempt."""
        yield

    def unit(self, store: Store, *, within: object = None) -> AbstractContextManager[Unit]:
        """The transaction of a transactional task; `within` a test's own transaction, a savepoint of that.

        Committed after the block, rolled back with any error of it.
        """
        return store.unit(using=within)

    def handled(self, context: TaskContext, outcome: Outcome) -> None:
        """The handler ended so (`context.error` is what it raised): about to be written, or committed if it was transactional."""

    def leave(self) -> None:
        """A handler thread ends: close what it opened."""


class SessionHost(Host):
    """A program whose requests have one Session each, known to a function: `Outbox(session=…)`.

    With a `scoped_session`, a handler has a session of its own, removed after it; that of a transactional task writes in the
    task's transaction.
    """

    def __init__(self, session: scoped_session[Any] | Callable[[], Session]) -> None:
        self._session = session

    @contextmanager
    def transaction(self) -> Iterator[object]:
        yield self._session()

    @contextmanager
    def handling(self, context: TaskContext) -> Iterator[None]:  # noqa: ARG002
        try:
            yield
        finally:
            self._remove()

    @contextmanager
    def unit(self, store: Store, *, within: object = None) -> Iterator[Unit]:
        with store.unit(using=within) as unit:
            if not isinstance(self._session, scoped_session):
                yield unit
                return
            self._session.remove()
            self._session.registry.set(unit.session)
            try:
                yield unit
            finally:
                self._session.registry.clear()  # not remove(): it ends with its transaction

    def leave(self) -> None:
        self._remove()

    def _remove(self) -> None:
        if isinstance(self._session, scoped_session):
            self._session.remove()
