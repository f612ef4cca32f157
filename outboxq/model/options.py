"""Options as a caller may write them, turned into the fields of the records."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypedDict, TypeVar

from ..errors import InvalidArgument
from .records import duration

E = TypeVar("E", bound=StrEnum)

_AT_ONCE = timedelta(0)


class Times(TypedDict):
    """Due time and expiry of a task or an event."""

    available_at: datetime | None
    delay: timedelta
    expires_at: datetime | None
    expires_in: timedelta | None


def times(
    name: str,
    *,
    delay: timedelta | float | None,
    run_after: datetime | None,
    expires: timedelta | float | datetime | None,
) -> Times:
    """Return `delay`, `run_after` and `expires` as the fields of a NewTask or a NewEvent. Raises InvalidArgument."""
    if delay is not None and run_after is not None:
        raise InvalidArgument(f"{name}: give delay= or run_after=, not both")
    moment = expires if isinstance(expires, datetime) else None
    return Times(
        available_at=run_after,
        delay=_AT_ONCE if delay is None else duration(delay, "delay"),
        expires_at=moment,
        expires_in=None if expires is None or isinstance(expires, datetime) else duration(expires, "expires"),
    )


def choice(kind: type[E], value: E | str, name: str) -> E:
    """Return the member of the enumeration for a member or its value. Raises InvalidArgument, which lists the values."""
    if type(value) is kind:
        return value
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise InvalidArgument(f"{name} must be one of {known}, not {value!r}") from None
