"""Listen to the events of SQLAlchemy's engines and connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.event.registry import _EventKey
from sqlalchemy.exc import InvalidRequestError


def listen(to: Engine | Connection, name: str, listener: Callable[..., Any]) -> None:
    """Do what `event.listen()` does, but also for an engine that `Engine.execution_options()` made, and on its
    connections.

    SQLAlchemy 2.0.0 to 2.0.36 refuses such an engine (2.0.41 does not): it looks for the kind of events one engine above and
    no further. The rest of its machinery goes all the way up, so it is enough to skip that check.
    """
    try:
        event.listen(to, name, listener)
    except InvalidRequestError:
        _EventKey(to, name, listener, to).listen()
