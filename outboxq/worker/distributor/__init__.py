"""Waiting until there may be work: by notifications on PostgreSQL, by watching the file on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import Engine

from ...errors import InvalidArgument
from ...model import duration
from ...store import Store, queue_names
from .base import Health, WorkDistributor
from .postgresql import PostgresDistributor
from .sqlite import SqliteDistributor

__all__ = ["Health", "PostgresDistributor", "SqliteDistributor", "WorkDistributor", "create_work_distributor"]

_KINDS: Mapping[str, type[PostgresDistributor | SqliteDistributor]] = {
    "postgresql": PostgresDistributor,
    "sqlite": SqliteDistributor,
}


def create_work_distributor(
    database: Engine | Store,
    *,
    queues: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    worker_id: UUID | None = None,
    poll: timedelta | float | None = None,
    notifications: bool = True,
    listen_url: str | None = None,
    commits_of: Engine | None = None,
    on_break: Callable[[], object] = lambda: None,
) -> WorkDistributor:
    """Return the distributor of this database. The caller starts and closes it.

    `queues` and `topics` are those of the claims; None: all. `poll` is the longest wait. By default it is 30 seconds where
    there are notifications (PostgreSQL), and half a second where there are none. With `notifications` False the distributor
    only polls, for instance where `LISTEN` cannot reach the server. `listen_url` leads to the server itself where the
    engine's does not, as through a pooler. `commits_of` is the engine whose commits in this process are to be noticed at
    once (SQLite); None: the database's. `on_break` is called, in a thread of the distributor, when its connection to the server
    was lost (PostgreSQL). Raises UnsupportedDatabase.
    """
    longest = None if poll is None else duration(poll, "poll")
    if longest is not None and longest <= timedelta(0):
        raise InvalidArgument("poll must be greater than zero")
    store = database if isinstance(database, Store) else Store(database)
    return _KINDS[store.dialect.name](
        store,
        queues=queue_names(queues),
        topics=queue_names(topics, "topics"),
        worker_id=worker_id or uuid4(),
        poll=longest,
        notifications=notifications,
        listen_url=listen_url,
        commits_of=commits_of,
        on_break=on_break,
    )
