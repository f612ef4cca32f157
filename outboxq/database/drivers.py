"""Find the drivers that an application uses, and give advice on drivers that outboxq cannot use for writing.

psycopg is imported only where PostgreSQL is used, because an application on SQLite does not need it.
"""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg

OLDEST_PSYCOPG = (3, 2, 5)
"""Earlier versions lose notifications or do not have RawCursor."""

_INSTALL = "pip install 'outboxq[postgresql]'"


def ensure_psycopg() -> None:
    """Import psycopg. Raises ConfigurationError if it is missing, cannot be imported, or is too old."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        reason = str(error).partition("\n")[0]
        why = "is not installed" if error.name == "psycopg" else f"cannot be imported ({reason})"
        raise ConfigurationError(f"for PostgreSQL, outboxq uses psycopg 3, which {why}; run: {_INSTALL}") from error
    found = version("psycopg")
    if tuple(int(part) for part in found.split(".")[:3] if part.isdigit()) < OLDEST_PSYCOPG:
        wanted = ".".join(map(str, OLDEST_PSYCOPG))
        raise ConfigurationError(f"outboxq needs psycopg {wanted} or later, but {found} is installed; run: {_INSTALL}")


def missing_driver(error: ModuleNotFoundError) -> str | None:
    """Return the name of the driver that SQLAlchemy could not import for an engine; None if the error has another cause."""
    frames = traceback.walk_tb(error.__traceback__)
    is_of_driver = any(frame.f_code.co_name == "import_dbapi" for frame, _ in frames)
    return error.name.partition(".")[0] if is_of_driver and error.name else None


def is_psycopg(raw: object) -> TypeGuard[psycopg.Connection[Any]]:
    """Return True for a psycopg 3 connection."""
    return isinstance(raw, _classes("Connection"))


def is_async_psycopg(raw: object) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    """Return True for an asynchronous psycopg 3 connection, such as one under SQLAlchemy's `AsyncSession`."""
    return isinstance(raw, _classes("AsyncConnection"))


def is_unreached(error: BaseException | None) -> bool:
    """Return True if psycopg or its connection pool could not reach the server, in which case the error has no
    SQLSTATE.
    """
    return isinstance(error, _classes("OperationalError")) and getattr(error, "sqlstate", None) is None


def refuse_async(engine: object) -> None:
    """Raise ConfigurationError for an AsyncEngine, or for the Engine of an asynchronous driver, which outboxq's threads
    cannot use.
    """
    dialect: Any = getattr(engine, "dialect", None)
    if getattr(dialect, "is_async", False):
        url = {"sqlite": "sqlite:///…"}.get(dialect.name, "postgresql+psycopg://…")
        raise ConfigurationError(
            f"this engine is asynchronous ({dialect.name}+{dialect.driver}), so it works only on its event loop; give outboxq a "
            f"separate engine: create_engine('{url}')"
        )


def advice(driver: str) -> str:
    """Return advice on a SQLAlchemy or Django driver that outboxq cannot use for writing."""
    said = f"outboxq writes with psycopg 3 or sqlite3, not with {driver}; "
    if driver == "asyncpg":
        return f"{said}enqueue through a separate engine: create_async_engine('postgresql+psycopg://…')"
    if driver == "aiosqlite":
        return f"{said}enqueue through a synchronous engine: create_engine('sqlite:///…')"
    return f"{said}create the engine with postgresql+psycopg://… or sqlite:///…"


def _classes(name: str) -> tuple[type[Any], ...]:
    """Return psycopg's class with this name for `isinstance()`. Without psycopg, return an empty tuple, because no
    object of the class can exist.
    """
    found = getattr(sys.modules.get("psycopg"), name, None)
    return () if found is None else (found,)
