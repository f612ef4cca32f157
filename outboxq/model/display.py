"""Stored values, prepared for display and for other programs: records as JSON, JSON without secrets, and groups of
similar failures. No I/O.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from hashlib import sha256
from typing import Any, Final
from uuid import UUID


def as_json(value: object) -> Any:
    """Return the value in its JSON form.

    A record becomes an object whose keys are the names of its fields, without the fields that are excluded from
    comparisons. A time becomes an ISO 8601 string in UTC, a span its number of seconds, an enum member its value, and
    an id a string.
    """
    match value:
        case Enum():
            return as_json(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None  # JSON supports neither infinity nor NaN
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case _:
            return _whole_as_json(value)


def _whole_as_json(value: object) -> Any:
    match value:
        case Mapping():
            return {str(as_json(name)): as_json(one) for name, one in value.items()}
        case AbstractSet():
            return sorted((as_json(one) for one in value), key=str)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {one.name: as_json(getattr(value, one.name)) for one in fields(value) if one.compare}
        case Iterable():
            return [as_json(one) for one in value]
        case _:
            raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


HIDDEN: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|(?:api|access|private|signing|encryption)[-_ ]?key|credential|cookie|session_?id|signature"
    r"|authoriz|bearer|jwt|(?<![a-z])(?:auth|pin|otp|cvv|cvc)(?![a-z])",
    re.IGNORECASE,
)
"""The pattern for the names whose values are not shown, including headers such as X-API-Key."""
ASTERISKS: Final = "********"
"""The string that is shown in place of a hidden value."""


class _Number(str):
    """A number exactly as it was written, because a float would change its digits."""

    __slots__ = ()


def redacted(text: str | None, hidden: re.Pattern[str] | None = HIDDEN) -> str:
    """Return stored JSON, indented, with asterisks in place of the values whose names match `hidden`, at any depth.

    Numbers keep their digits. Invalid JSON is not shown, because any part of it may be secret. For None, the result is
    "".
    """
    if text is None:
        return ""
    try:
        value = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        return _written(value, hidden, "\n")
    except (ValueError, RecursionError) as error:
        return f"(cannot be read: {type(error).__name__})"


def _written(value: Any, hidden: re.Pattern[str] | None, newline: str) -> str:
    inner = f"{newline}  "
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, Mapping) and value:
        members = (f"{_text(name)}: {_member(name, one, hidden, inner)}" for name, one in value.items())
        return f"{{{inner}{f',{inner}'.join(members)}{newline}}}"
    if isinstance(value, list) and value:
        return f"[{inner}{f',{inner}'.join(_written(one, hidden, inner) for one in value)}{newline}]"
    return _text(value)


def _member(name: str, value: Any, hidden: re.Pattern[str] | None, newline: str) -> str:
    if hidden is not None and hidden.search(name):
        return f'"{ASTERISKS}"'
    return _written(value, hidden, newline)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


HEAD = 400
"""The number of characters at the beginning of an error that determine its group."""
_LONGEST = 200
"""The maximum number of characters in a group's message."""
_VARYING = re.compile(
    r"""
    (?=['"0-9a-fA-F])(?:  # looks only where a match can begin: three times as fast
    (?<!\w)(?:'[^'\n]*'|"[^"\n]*")(?!\w)  # quoted texts
    | \b(?:
        [0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}  # uuids
        | 0[xX][0-9a-fA-F]+ | (?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}  # hexadecimal numbers
    )\b
    | [0-9]+(?:[.,:][0-9]+)*  # numbers, dates and times
    )""",
    re.VERBOSE,
)
_ONLY_A_NAME = re.compile(r"[\w.]+: (['\"])[^\W\d]+\1")
_CUT_WORD = re.compile(r"[\w'\"-]*$")


def message_of(head: str | None) -> str:
    """Return the group message for an error whose text begins with `head` (at most `HEAD` characters). Varying parts
    are replaced by an ellipsis.
    """
    text = head or ""
    first, newline, _ = text.partition("\n")
    if len(text) >= HEAD and not newline:
        first = _CUT_WORD.sub("", first)  # the last word may be part of an id
    first = first.strip()
    # If a KeyError's key is a name, the message contains nothing else.
    message = first if _ONLY_A_NAME.fullmatch(first) else _VARYING.sub("…", first)
    return message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"


def group_of(task_name: str, exception: str | None, message: str) -> str:
    """Return the id of a group: 16 hexadecimal digits, which are the same in every process and release."""
    return sha256("\0".join((task_name, exception or "", message)).encode("utf-8", "replace")).hexdigest()[:16]
