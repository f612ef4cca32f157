"""Check the arguments to the store's methods before a transaction begins, and declare the corresponding statement
parameters.

Each check returns the argument, or raises InvalidArgument.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ..database.column_types import iso
from ..errors import InvalidArgument
from ..model import TaskStatus, Waiting
from ..model.options import choice
from ..payload.parameters import sanitize

AnyId: TypeAlias = UUID | str
"""An id in any form that callers may pass: from a handle, a URL or a log line."""


def parameters(kind: type[TypeEngine[Any]] | TypeEngine[Any], *names: str) -> Iterator[sa.BindParameter[Any]]:
    """Yield a required parameter of this type for each name."""
    return (sa.bindparam(name, type_=kind, required=True) for name in names)


def aware(moment: datetime, name: str) -> datetime:
    """Raise InvalidArgument for a naive datetime."""
    if not isinstance(moment, datetime):
        raise InvalidArgument(f"{name} must be an aware datetime, not {type(moment).__name__}")
    try:
        iso(moment)
    except (InvalidArgument, OverflowError) as error:
        raise InvalidArgument(f"{name}: {error}") from None
    return moment


def positive(limit: int, name: str = "limit") -> int:
    """Raise InvalidArgument unless the value is a whole number of at least 1."""
    if type(limit) is not int or limit < 1:
        raise InvalidArgument(f"{name} must be a whole number of at least 1, not {limit!r}")
    return limit


def refuse_unknown(wanted: Mapping[str, Any], known: type) -> None:
    """Raise InvalidArgument for a filter that is not in this TypedDict."""
    if unknown := wanted.keys() - known.__annotations__.keys():
        raise InvalidArgument(
            f"unknown filter {', '.join(sorted(unknown))}; the filters are {', '.join(known.__annotations__)}"
        )


def identifier(given: object) -> UUID:
    """Return the UUID for an id, given as a UUID or text. Raises InvalidArgument for anything else."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given if isinstance(given, str) else "")
    except ValueError:
        raise InvalidArgument(f"an id must be a UUID or its string form, not {given!r}") from None


def status_of(given: TaskStatus | str | None) -> TaskStatus | None:
    """Return the TaskStatus for a status, given as a TaskStatus or text. Raises InvalidArgument for anything else."""
    if given in tuple(Waiting):
        raise InvalidArgument(
            f"{str(given)!r} is a state of Ready tasks; write status={TaskStatus.READY.value!r}, waiting={str(given)!r}"
        )
    return None if given is None else choice(TaskStatus, given, "status")


def state_of(given: Waiting | str | None) -> Waiting | None:
    """Return the Waiting value for a Ready task's state, given as a Waiting or text. Raises InvalidArgument for
    anything else.
    """
    return None if given is None else choice(Waiting, given, "waiting")


def queue_names(queues: Iterable[str] | None, argument: str = "queues") -> list[str] | None:
    """Raise InvalidArgument for an empty list, and for a string, which would be read as a list of characters."""
    if queues is None:
        return None
    names = [] if isinstance(queues, str) else list(dict.fromkeys(queues))
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"{argument} must be a list of at least one name; None means all")
    return names


def storable(text: object, name: str) -> str | None:
    """Raise InvalidArgument unless the value is None or a string that every database can store."""
    if text is None or (isinstance(text, str) and sanitize(text, limit=sys.maxsize) == text):
        return text
    raise InvalidArgument(f"{name} must be a string without NUL or lone surrogates; {text!r} is not")
