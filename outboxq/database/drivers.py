"""Drivers that an application may have or not, and what to do about those that outboxq does not write through.

psycopg is imported where PostgreSQL is used and nowhere else: an application on SQLite needs none.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg

OLDEST_PSYCOPG = (3, 2, 5)
"""Earlier ones lose notifications, or have no RawCursor."""

_INSTALL = "pip install 'outboxq[postgresql]'"


def ensure_psycopg() -> None:
    """Import psycopg. Raises ConfigurationError where it is missing, cannot be imported, or is too old."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        why = (
            "is not installed"
            if getattr(error, "name", None) == "psycopg"
            else f"cannot be imported ({_first_line(error)})"
        )
        raise ConfigurationError(f"outboxq uses PostgreSQL through psycopg 3, which {why}; run: {_INSTALL}") from error
    found = version("psycopg")
    if tuple(int(part) for part in found.split(".")[:3] if part.isdigit()) < OLDEST_PSYCOPG:
        wanted = ".".join(map(str, OLDEST_PSYCOPG))
        raise ConfigurationError(f"outboxq needs psycopg {wanted} or later, and {found} is installed; run: {_INSTALL}")


def is_psycopg(raw: object) -> TypeGuard[psycopg.Connection[Any]]:
    """Return whether this is a connection of psycopg 3."""
    return isinstance(raw, _classes("Connection"))


def is_async_psycopg(raw: object) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    """Return whether this is an asynchronous connection of psycopg 3, as under SQLAlchemy's `AsyncSession`."""
    return isinstance(raw, _classes("AsyncConnection"))


def is_unreached(error: BaseException | None) -> bool:
    """Return whether psycopg, or a pool of its connections, says that the server was not reached: it has no SQLSTATE."""
    return isinstance(error, _classes("OperationalError")) and getattr(error, "sqlstate", None) is None


def advice(driver: str) -> str:
    """Return what to do about a driver of SQLAlchemy's or Django's that nothing can be written through."""
    said = f"outboxq writes through psycopg 3 and sqlite3, not through {driver}; "
    if driver == "asyncpg":
        return f"{said}give what enqueues an engine of its own: create_async_engine('postgresql+psycopg://…')"
    if driver == "aiosqlite":
        return f"{said}give what enqueues a synchronous engine: create_engine('sqlite:///…')"
    return f"{said}create the engine with postgresql+psycopg://… or sqlite:///…"


def _classes(name: str) -> tuple[type[Any], ...]:
    """Return the class of this name, if psycopg is imported: whoever has such an object has imported it."""
    found = getattr(sys.modules.get("psycopg"), name, None)
    return () if found is None else (found,)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
