"""The unit of work: the transaction of a transactional task or step, as its handler and its worker see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


class UnitOfWork(Protocol):
    """The transaction of a transactional task."""

    @property
    def target(self) -> object:
        """The transaction as `using()` takes it."""

    @property
    def connection(self) -> Connection: ...

    @property
    def session(self) -> Session: ...

    @property
    def database(self) -> str | None:
        """The name or the file of the database; None if it is not known."""

    def flush(self) -> None:
        """Write what the session still holds back, before the completion is written."""

    def was_interrupted(self, error: BaseException) -> bool:
        """Return whether an error from outside ended this transaction, to judge by `error`: then the attempt is not counted."""

    def abandon(self) -> None:
        """Free what its end must not wait for. Called in another thread, when the handler runs on and its attempt was ended."""
