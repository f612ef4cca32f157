"""End a session of PostgreSQL that keeps dead rows from being vacuumed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects.catalogue import pg_stat_activity
from ...database.grammar import Grammar
from ...database.target import Target
from ...errors import InvalidArgument, InvalidTransition, NotPermitted
from ..transactions import Transactions


def end_session(store: Transactions, session: str, *, using: object = None) -> None:
    """End a session that holds a snapshot or a transaction in this database. `session` is `HeldSnapshot.session`, which
    contains the start of the session: the server may have given the number of its process to another one.

    Raises InvalidArgument for another text and on SQLite, InvalidTransition if the session holds nothing, and
    NotPermitted.
    """
    pid, began_at = _parts_of(session)
    if not store.dialect.measures_tables:
        raise InvalidArgument(
            "only sessions of PostgreSQL can be ended; on SQLite, end the process that reads the file"
        )

    def work(target: Target) -> bool:
        try:
            return bool(target.run(terminate, {"pid": pid, "began_at": began_at}))
        except Exception as error:
            if not store.dialect.is_denied(error):
                raise
            raise NotPermitted(
                f"this role may not end process {pid}: it needs the privileges of the session's role, or GRANT "
                f"pg_signal_backend; the session of a superuser can be ended by a superuser only, with "
                f"SELECT pg_terminate_backend({pid})"
            ) from error

    if not store.run(work, using=using):
        raise InvalidTransition(
            f"process {pid} is not ended: that session is over, or it holds no snapshot any more; `db sizes` names the "
            "oldest one"
        )


def _parts_of(session: str) -> tuple[int, datetime]:
    pid, _, moment = session.partition("@")
    try:
        began_at = datetime.fromisoformat(moment)
        if began_at.tzinfo is not None:
            return int(pid), began_at
    except ValueError:
        pass
    raise InvalidArgument(
        f"{session!r} is not a session: write the process and its start, as `check` prints them, such as "
        "4711@2026-11-23T02:30:00.123456Z"
    )


_pid = sa.bindparam("pid", type_=sa.Integer, required=True)
_began_at = sa.bindparam("began_at", type_=Instant, required=True)


def terminate(_: Grammar) -> sa.Select[Any]:
    """End the session with this process and this start, if it is a client's and holds a snapshot or a transaction."""
    session = pg_stat_activity.c
    return sa.select(sa.func.pg_terminate_backend(session.pid).label("ended")).where(
        session.pid == _pid,
        session.backend_start == _began_at,
        session.pid != sa.func.pg_backend_pid(),
        session.datname == sa.func.current_database(type_=sa.Text),
        session.backend_type == sa.literal_column("'client backend'", sa.Text),
        sa.or_(session.backend_xid.is_not(None), session.backend_xmin.is_not(None)),
    )
