"""Tasks and events that a Session has not committed yet, and the warning about those that are lost when the Session is
closed.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event

from ..model.wording import plural

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, SessionTransaction

log = logging.getLogger("outboxq.store")

_Numbers = Counter[tuple[str, str]]
"""The number of tasks or events, by kind and name."""
_NOTED = "_outboxq_uncommitted"
"""The Session attribute that holds the numbers of uncommitted tasks and events, by transaction or savepoint."""
_sessions: weakref.WeakKeyDictionary[Connection, weakref.ref[Session]] = weakref.WeakKeyDictionary()
"""The session to which each connection belongs, if an integration passes the connection instead of the session."""


def note(target: object, name: str, number: int = 1, *, kind: str = "task") -> None:
    """Record that tasks with this name, or events of this topic, were written in a Session that has to be committed.

    Do nothing for any other target, or for a Session that has joined a transaction on a Connection.
    """
    session = _session_of(target)
    if session is None or isinstance(session.bind, Connection):
        return
    if (noted := session.__dict__.get(_NOTED)) is None:
        _listen()
        noted = session.__dict__[_NOTED] = defaultdict[Any, _Numbers](Counter)
    noted[session.get_nested_transaction() or session.get_transaction()][kind, name] += number


def belongs_to(connection: Connection, session: Session) -> None:
    """Record that the session writes on this connection, so that `note` accepts the connection."""
    if connection not in _sessions:
        _sessions[connection] = weakref.ref(session)


def forget(target: object) -> None:
    """Forget the session's uncommitted tasks and events, so that no warning about them is logged."""
    if (session := _session_of(target)) is not None:
        session.__dict__.pop(_NOTED, None)


def _session_of(target: object) -> Session | None:
    orm: Any = sys.modules.get("sqlalchemy.orm")  # no Session exists before this slow import
    if orm is None:
        return None
    if isinstance(target, orm.Session):
        return target  # type: ignore[no-any-return]
    if isinstance(target, Connection):
        reference = _sessions.get(target)
        return None if reference is None else reference()
    return target() if isinstance(target, orm.scoped_session) else None


def _listen() -> None:
    """Listen to all sessions. SQLAlchemy does not add a listener that is already registered."""
    from sqlalchemy.orm import Session

    event.listen(Session, "after_commit", _committed)
    event.listen(Session, "after_rollback", _rolled_back)
    event.listen(Session, "after_transaction_end", _ended)


def _committed(session: Session) -> None:
    if _NOTED in session.__dict__ and not session.in_nested_transaction():
        del session.__dict__[_NOTED]


def _rolled_back(session: Session) -> None:
    """Forget what the rollback undid: after a rollback to a savepoint, only what was written since the savepoint."""
    if (savepoint := session.get_nested_transaction()) is None:
        session.__dict__.pop(_NOTED, None)
    elif (noted := session.__dict__.get(_NOTED)) is not None:
        noted.pop(savepoint, None)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Warn if the transaction was neither committed nor rolled back, but ended by `close()`. If a savepoint has ended,
    what was written in it now belongs to the transaction around it.

    An exception that leaves the Session's `with` block also closes the Session. It does not cause a warning, because
    the exception itself is reported.
    """
    noted: dict[SessionTransaction, _Numbers] | None = session.__dict__.get(_NOTED)
    if noted is None:
        return
    numbers = noted.pop(transaction, None)
    if transaction.parent is not None:
        if numbers:
            noted[transaction.parent] += numbers
        return
    del session.__dict__[_NOTED]
    if numbers and sys.exception() is None and not _is_asynchronous(session):
        log.warning("%s", _sentence(numbers))


def _is_asynchronous(session: Session) -> bool:
    """Return whether an AsyncSession owns this session. An AsyncSession closes its session in a separate asyncio task,
    where the exception that has ended the `async with` block is not visible.
    """
    asyncio: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    return asyncio is not None and asyncio.async_session(session) is not None


def _sentence(noted: _Numbers) -> str:
    numbers: Counter[str] = Counter()
    for (kind, _), number in noted.items():
        numbers[kind] += number
    subject = " and ".join(f"{number} {plural(number, kind)}" for kind, number in numbers.items())
    is_one = noted.total() == 1
    names = ", ".join(name if number == 1 else f"{name} ({number})" for (_, name), number in noted.items())
    return (
        f"{subject} {'was' if is_one else 'were'} written after the last commit of a Session, and {'is' if is_one else 'are'} "
        f"lost, because the Session was closed: {names}; commit after the enqueue, or call rollback() if the loss is intended"
    )
