"""Require UTF-8, in the database and on the connection: no other encoding can represent every string.

The server reports both encodings when a connection is opened and when they change, so checking them does not take a
statement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...errors import InvalidTarget, UnsupportedDatabase

_UTF8: Final = "UTF8"
_UNKNOWN: Final = "SQL_ASCII"
"""No encoding: psycopg returns text as bytes."""


def ensure_server(raw: Any) -> None:
    """Raise UnsupportedDatabase unless the database of a driver's connection is UTF-8."""
    found = _told(raw, "server_encoding")
    if found is not None and found != _UTF8:
        raise UnsupportedDatabase(
            f"the database {raw.info.dbname!r} uses the encoding {found}, which cannot store every string; outboxq needs UTF-8: "
            "create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data with pg_dump"
        )


def ensure_readable(raw: Any) -> None:
    """Raise the error of `ensure_server`, or InvalidTarget if a caller's connection does not have an encoding."""
    if not hasattr(raw, "info"):
        return
    ensure_server(raw)
    if _told(raw, "client_encoding") == _UNKNOWN:
        raise InvalidTarget(
            f"this connection's client encoding is {_UNKNOWN}, so text is returned as bytes; outboxq needs UTF-8: "
            "connect with client_encoding=utf8, or ALTER ROLE … RESET client_encoding"
        )


def explain(error: Exception, raw: Callable[[], Any]) -> None:
    """Raise InvalidTarget for a string that a caller's connection cannot encode, or for times in a format that psycopg
    cannot read.
    """
    if isinstance(error, UnicodeEncodeError) and (found := _told(raw(), "client_encoding")) not in (None, _UTF8):
        raise InvalidTarget(
            f"this connection's client encoding {found} cannot represent {error.object[error.start : error.end]!r}; nothing "
            "was written: connect with client_encoding=utf8, or ALTER ROLE … RESET client_encoding"
        ) from error
    if isinstance(error, NotImplementedError) and "DateStyle" in str(error):
        style = _told(raw(), "DateStyle")
        raise InvalidTarget(
            f"this connection's datestyle is {style!r}, in which psycopg cannot read times; connect with "
            "options='-c datestyle=ISO', or ALTER ROLE … RESET datestyle"
        ) from error


def _told(raw: Any, name: str) -> str | None:
    found: str | None = raw.info.parameter_status(name)
    return found
