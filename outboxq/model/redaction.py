"""Stored JSON as people read it, without the values of secret names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|(?:api|access|private|signing|encryption)[-_ ]?key|credential|cookie|session_?id|signature"
    r"|authoriz|bearer|jwt|(?<![a-z])(?:auth|pin|otp|cvv|cvc)(?![a-z])",
    re.IGNORECASE,
)
"""Pattern of the names whose values are not shown, those of headers such as X-API-Key too."""
ASTERISKS: Final = "********"
"""The text that is shown for such a value."""
_INDENT = "  "


class _Number(str):
    """A number as it is written: a float would change its digits."""

    __slots__ = ()


def redacted(text: str | None, hidden: re.Pattern[str] | None = HIDDEN) -> str:
    """Return stored JSON, indented, with asterisks for the values of names that match `hidden`, at any depth.

    Numbers keep their digits. Text that is no JSON is not shown, because it is not known which part of it is secret. None: "".
    """
    if text is None:
        return ""
    try:
        value = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        return _written(value, hidden, "\n")
    except (ValueError, RecursionError) as error:
        return f"(cannot be read: {type(error).__name__})"


def _written(value: Any, hidden: re.Pattern[str] | None, newline: str) -> str:
    inner = newline + _INDENT
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
