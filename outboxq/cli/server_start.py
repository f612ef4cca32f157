"""The wait for a PostgreSQL server that is still starting, such as one in a container that has just been created."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from ..model.wording import brief, plain
from .parameters import span_option

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

WAIT: Final = timedelta(seconds=10)
"""The time that is usually enough for a server without much to recover."""
_PAUSE: Final = 0.5
"""Seconds between two attempts to connect."""

server_option = span_option(
    "--wait-for-server",
    help="Time to wait for a server that refuses connections or is starting (PostgreSQL). 0s: none.",
    default=f"{WAIT.total_seconds():g}s",
)


def await_server(engine: Engine, longest: timedelta = WAIT) -> None:
    """Return when the server accepts a connection or refuses it for another reason, or when the time is over. The next
    statement then reports the error.
    """
    from sqlalchemy.exc import OperationalError

    from ..database.dialects import dialect_for

    deadline, is_known = time.monotonic() + longest.total_seconds(), False
    while True:
        try:
            with engine.connect():
                return
        except OperationalError as error:
            if not dialect_for(engine.dialect.name).is_starting(error) or time.monotonic() >= deadline:
                return
            if not is_known:
                reason = plain(" ".join(str(error.orig).split()))
                click.echo(f"outboxq: waiting up to {brief(longest)} for the database: {reason}", err=True)
                is_known = True
        time.sleep(_PAUSE)
