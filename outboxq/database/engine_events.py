"""Listen to the events of SQLAlchemy's engines and connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.event.registry import _EventKey
from sqlalchemy.exc import InvalidRequestError


def listen(to: Engine | Connection, name: str, listener: Callable[..., Any]) -> None:
    """Call `event.listen()` in a way that also works for an engine returned by `Engine.execution_options()`, and for
    its connections.

    SQLAlchemy 2.0.0 to 2.0.36 refuses an engine that this method returned (2.0.41 does not), because its check that the
    engine has the event looks only at the engine's direct parent. The rest of SQLAlchemy's event code looks at all
    parents, so skipping that check is enough.
    """
    try:
        event.listen(to, name, listener)
    except InvalidRequestError:
        _EventKey(to, name, listener, to).listen()
