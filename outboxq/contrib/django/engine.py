"""An engine of SQLAlchemy, made from Django's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.db import connections
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import Pool

from ...database.engine import make_engine
from ...errors import ConfigurationError, UnsupportedDatabase


def engine_of(alias: str, *, poolclass: type[Pool] | None = None) -> Engine:
    """Return an engine for the database of Django's `alias`. It does not connect yet.

    Raises ConfigurationError for an in-memory database, UnsupportedDatabase for one that outboxq does not run on.
    """
    connection = connections[alias]
    if connection.vendor not in _ENGINES:
        raise UnsupportedDatabase(
            f"outboxq does not run on {connection.display_name}, the database {alias!r} of the settings"
        )
    return _ENGINES[connection.vendor](connection, poolclass)


def _sqlite(connection: Any, poolclass: type[Pool] | None) -> Engine:
    name = connection.settings_dict["NAME"]
    if connection.is_in_memory_db():
        raise ConfigurationError(
            f"the database {connection.alias!r} is an in-memory SQLite database, which no worker can share; give it "
            "a file (in tests: DATABASES[…]['TEST']['NAME'])"
        )
    if str(name).startswith("file:"):
        return make_engine(URL.create("sqlite", database=str(name), query={"uri": "true"}), poolclass=poolclass)
    return make_engine(URL.create("sqlite", database=str(Path(name).resolve())), poolclass=poolclass)


def _postgresql(connection: Any, poolclass: type[Pool] | None) -> Engine:
    """Return an engine that connects as Django does, OPTIONS included, without what Django adds for itself."""
    alias = connection.alias
    engine = make_engine(_called(connection.settings_dict), poolclass=poolclass)

    def connecting(_dialect: Any, _record: Any, _given: Any, parameters: dict[str, Any]) -> None:
        parameters.update(_parameters(connections[alias]))  # asked each time: a password may be rotated

    event.listen(engine, "do_connect", connecting)
    return engine


def _called(settings: Mapping[str, Any]) -> URL:
    """Return the URL of the database for messages and logs: with its server, without the password."""
    url = URL.create("postgresql+psycopg", username=settings.get("USER") or None, database=settings["NAME"] or None)
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    if not host or "," in host:
        return url  # libpq's default, its service file, or several servers: no URL expresses these as Django does
    if host.startswith("/"):
        return url.set(query={"host": host})
    return url.set(host=host, port=int(port) if port.isdigit() else None)


def _parameters(connection: Any) -> dict[str, Any]:
    given: Mapping[str, Any] = connection.settings_dict["OPTIONS"]
    parameters = dict(connection.get_connection_params())
    for own in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(own, None)
    if "prepare_threshold" in given or connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        parameters["prepare_threshold"] = given.get("prepare_threshold")  # behind a pooler that knows no sessions
    if role := given.get("assume_role"):
        escaped = "".join(f"\\{one}" if one in "\\ " else one for one in role)
        parameters["options"] = f"{parameters.get('options', '')} -c role={escaped}".strip()
    return parameters


_ENGINES: dict[str, Callable[[Any, type[Pool] | None], Engine]] = {"sqlite": _sqlite, "postgresql": _postgresql}
