"""Define column types with the same meaning on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache, partial
from typing import Any, Self
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, DateTime, Dialect, Double, Enum, Integer, Text
from sqlalchemy.dialects.postgresql import DOMAIN
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from ..errors import InvalidArgument
from ..model import TaskStatus


class UtcDateTime(TypeDecorator[datetime]):
    """`timestamptz`, read back in UTC, whatever the session's time zone is."""

    impl: TypeEngine[Any] = DateTime(timezone=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:  # noqa: ARG002 - bypasses the stock type
        return _in_utc


class BoundedUtcDateTime(UtcDateTime):
    """`timestamptz` from 1970 to 9000, bounded by a domain, so that Python can read every value."""

    impl = DOMAIN("outboxq_instant", DateTime(timezone=True), create_type=False)
    cache_ok = True


class IsoDateTime(TypeDecorator[datetime]):
    """ISO text in UTC, always with microseconds, so that text order is time order.

    SQLite's own DateTime type silently drops the UTC offset of a value.
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
    """The lower half of a transaction id, which PostgreSQL uses to compute a transaction's age."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid"


class Name(UserDefinedType[str]):
    """PostgreSQL's type for identifiers, which truncates strings that are too long."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "name"


class Packed(TypeDecorator[Sequence[Any]]):
    """A PostgreSQL array of scalars, sent as the text that the server parses.

    psycopg would inspect each element to determine the array's type and whether the element needs quotes, which takes
    ten times as long as sending this text. With psycopg's own arrays, enqueueing a batch of 100 tasks takes 21 % more
    CPU time: `python -m benchmarks.tunings --on postgresql --only arrays-as-text`.
    """

    impl = ARRAY
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:  # noqa: ARG002
        return _packed


def _packed(values: Sequence[Any] | None) -> str | None:
    if values is None:
        return None
    # Most arrays hold values of one type. Converting these together takes half as long as converting them one by one.
    kinds = set(map(type, values))
    if kinds == {UUID}:
        return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"
    if kinds == {str} and (text := "\0".join(values)).count("\0") < len(values):  # the server refuses a NUL
        return '{"' + _escaped(text).replace("\0", '","') + '"}'
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    """Return an element of the array's text, in quotes if it could otherwise be misread."""
    if value is None:
        return "NULL"
    kind = type(value)
    if kind is UUID:
        return value.hex  # type: ignore[no-any-return]
    if kind is int or kind is float or kind is bool:
        return str(value)
    return f'"{_escaped(value.isoformat() if isinstance(value, datetime) else str(value))}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


class UnreadableInstant(datetime):
    """A stored time that Python cannot represent: an infinity, a year before 1 or after 9999, or, on SQLite, text that
    is not a time.

    The value sorts before or after all other times, and is written back as it was read.
    """

    stored: str

    @classmethod
    def of(cls, stored: object, *, is_late: bool) -> Self:
        self = cls(9999, 12, 31, tzinfo=UTC) if is_late else cls(1, 1, 1, tzinfo=UTC)
        self.stored = str(stored)
        return self

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return partial(UnreadableInstant.of, is_late=self.year > 1), (self.stored,)

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:  # noqa: ARG002
        return self.stored

    def astimezone(self, tz: tzinfo | None = None) -> Self:  # noqa: ARG002
        return self

    def __str__(self) -> str:
        return self.stored


class UnreadableId(str):
    """A stored id in an invalid form, which SQLite allows. The id is written back as it was read."""

    __slots__ = ()

    @property
    def hex(self) -> str:
        return str(self)


def _in_utc(value: datetime | None) -> datetime | None:
    return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)


@lru_cache(maxsize=2048, typed=True)  # the tasks in a claim share most of their times
def _from_iso(value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return UnreadableInstant.of(value, is_late=str(value) > "1970")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)  # SQLite's own functions read it as UTC


def iso(moment: datetime) -> str:
    """Return the text form of a time, on SQLite and in event data. Raises InvalidArgument for a naive datetime."""
    if moment.utcoffset() is None:
        raise InvalidArgument(
            f"{moment!r} is naive, so it does not identify an instant; add a time zone, e.g. datetime.now(UTC)"
        )
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


Instant: TypeEngine[datetime] = UtcDateTime().with_variant(IsoDateTime(), "sqlite")
"""The type for parameters, and for times that only the database compares."""


def parameter_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type for parameters that belong to a column of this type: the type without the column's bounds."""
    return Instant if isinstance(kind, UtcDateTime) else type(kind)()


def _bounded(kind: TypeEngine[Any], name: str) -> TypeEngine[Any]:
    """Return a column type with bounds: on PostgreSQL a domain, on SQLite a CHECK on the table.

    On PostgreSQL, a CHECK makes an enqueue two to twenty microseconds slower, because the CHECK is parsed for each
    statement. A domain's CHECK is parsed once.
    """
    return kind.with_variant(DOMAIN(name, kind, create_type=False), "postgresql")


BoundedInstant: TypeEngine[datetime] = Instant.with_variant(BoundedUtcDateTime(), "postgresql")
"""The type for columns that hold times: from 1970 to 9000, without infinities."""
Seconds: TypeEngine[Any] = _bounded(Double(), "outboxq_seconds")
"""A number of seconds greater than 0 and at most 3,200,000,000 (a little over a hundred years)."""
Attempts: TypeEngine[Any] = _bounded(Integer(), "outboxq_attempts")
"""A number of at least 1, small enough that adding 1 does not overflow."""
Recoveries: TypeEngine[Any] = _bounded(Integer(), "outboxq_recoveries")
Number: TypeEngine[Any] = _bounded(BigInteger(), "outboxq_number")
"""A position or a lease token: at most 10**18, so that there is always a higher number."""
BigId = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY is SQLite's rowid
Status: TypeEngine[Any] = Enum(
    TaskStatus,
    name="status",
    native_enum=False,
    length=16,
    values_callable=lambda members: [member.value for member in members],
)
