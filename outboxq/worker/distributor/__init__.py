"""Distributors, which wait until work may be available: on PostgreSQL through notifications, and on SQLite by watching
the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import Engine

from ...store import Floors, Store, queue_names
from ..options import positive_span
from .base import Health, WorkDistributor
from .postgresql import PostgresDistributor
from .sqlite import SqliteDistributor

__all__ = ["Health", "PostgresDistributor", "SqliteDistributor", "WorkDistributor", "create_work_distributor"]


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
    floors: Floors | None = None,
) -> WorkDistributor:
    """Return the distributor for this database. The caller starts and closes the distributor. Raises
    UnsupportedDatabase.

    Args:
        queues: The queues to claim from. None means all.
        topics: The topics to claim tasks for. None means all.
        worker_id: The id under which the worker is registered as sleeping (PostgreSQL). None means a new id.
        poll: The longest wait. None means 30 seconds with notifications (PostgreSQL), and half a second without.
        notifications: False means polling only, for example because `LISTEN` cannot reach the server.
        listen_url: The address of the server itself, if the engine's address leads to a pooler.
        commits_of: The engine whose commits in this process are noticed immediately (SQLite). None means the database's
            engine.
        on_break: A function that is called, in one of the distributor's threads, when the distributor's connection to
            the server is lost (PostgreSQL).
        floors: The floors for claims (PostgreSQL). Without floors, every search begins at the front of the outbox.
    """
    store = database if isinstance(database, Store) else Store(database)
    kind = SqliteDistributor if store.dialect.one_writer else PostgresDistributor
    return kind(
        store,
        queues=queue_names(queues),
        topics=queue_names(topics, "topics"),
        worker_id=worker_id or uuid4(),
        poll=None if poll is None else positive_span(poll, "poll"),
        notifications=notifications,
        listen_url=listen_url,
        commits_of=commits_of,
        on_break=on_break,
        floors=floors,
    )
