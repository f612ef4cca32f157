"""Column types that mean the same on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, DateTime, Dialect, Enum, Integer, Text
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from .errors import InvalidArgument
from .model import TaskStatus


class UtcDateTime(TypeDecorator[datetime]):
    """`timestamptz`, read back in UTC whatever the session's time zone is."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:  # noqa: ARG002 - without the stock one's detours
        return _in_utc


class IsoDateTime(TypeDecorator[datetime]):
    """ISO text in UTC, always to the microsecond, so that text order is time order.

    SQLite's own DateTime type silently drops the offset of what it is given.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else iso(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:  # noqa: ARG002
        return _from_iso


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


class Xid(UserDefinedType[int]):
    """The lower half of a transaction id, as which PostgreSQL counts its age."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid"


class Name(UserDefinedType[str]):
    """PostgreSQL's type of identifiers: what is longer than one may be is cut off."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "name"


class Packed(TypeDecorator[Sequence[Any]]):
    """PostgreSQL's array of scalars, as the text that the server reads.

    psycopg looks at each element to find the array's type and whether it needs quotes: ten times what this takes.
    """

    impl = ARRAY
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:  # noqa: ARG002
        return _packed


def _packed(values: Sequence[Any] | None) -> str | None:
    return None if values is None else "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    """Any kind in quotes, but for those that cannot be mistaken."""
    if value is None:
        return "NULL"
    kind = type(value)
    if kind is UUID:
        return value.hex  # type: ignore[no-any-return]
    if kind is int or kind is float or kind is bool:
        return str(value)
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _in_utc(value: datetime | None) -> datetime | None:
    return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)


@lru_cache(maxsize=1024)  # a batch has one moment in many places
def _from_iso(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def iso(moment: datetime) -> str:
    """The one text form of an instant, on SQLite and in event data. Raises InvalidArgument for a naive datetime."""
    if moment.utcoffset() is None:
        raise InvalidArgument(f"{moment!r} is naive, so it names no instant; add a time zone, e.g. datetime.now(UTC)")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


Instant: TypeEngine[datetime] = UtcDateTime().with_variant(IsoDateTime(), "sqlite")
BigId = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY is SQLite's rowid
Status: TypeEngine[Any] = Enum(
    TaskStatus,
    name="status",
    native_enum=False,
    create_constraint=True,
    length=16,
    values_callable=lambda members: [member.value for member in members],
)
