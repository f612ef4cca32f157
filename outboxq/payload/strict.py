"""Strict JSON: what PostgreSQL, SQLite and Python all store and give back unchanged.

No NaN or Infinity, no NUL and no half of a surrogate pair in a string, only strings as keys, no cycles, at most
``MAX_DEPTH`` levels. What does not fit raises ``Unfit``, which collects the path on its way up and is turned into a
``PayloadError`` by ``payload``. A message tells types and paths, never the value: it ends in logs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

MAX_DEPTH = 64  # levels of a whole document; Python's own scanner gives up near 1000, and less deep in a deep stack
# An integer of 4300 digits is the longest that Python reads back (sys.set_int_max_str_digits); counted in bits, for
# counting digits is what the limit protects from.
MAX_INTEGER_BITS = 14_284

Other = Callable[[Any, "Walk"], object]


class Unfit(Exception):
    """A value that cannot be stored or read, and where it is below the argument."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def at(self, step: str) -> Unfit:
        self.path = step + self.path
        return self

    def shortened_path(self) -> str:
        return self.path if len(self.path) <= 200 else f"{self.path[:100]}…{self.path[-50:]}"


class Walk:
    """One walk over a value: its depth, and how many bytes the result may still take.

    The second is a lower bound (one byte per item and character). Without it a list that holds another one twice, 30
    levels deep, would be written out a billion times before anybody could look at the size.
    """

    __slots__ = ("depth", "left", "limit")

    def __init__(self, limit: int) -> None:
        self.depth = 0
        self.left = self.limit = limit

    def _too_large(self) -> Unfit:
        return Unfit(f"here the value grows over the size limit of {self.limit} bytes: store it and pass a reference")

    def enter(self, size: int) -> None:
        self.depth += 1
        self.left -= size
        if self.depth > MAX_DEPTH:
            raise Unfit(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself: pass a flatter value")
        if self.left < 0:
            raise self._too_large()

    def text(self, text: str) -> str:
        self.left -= len(text)
        if self.left < 0:
            raise self._too_large()
        if "\x00" in text:
            raise Unfit("the string contains NUL, which PostgreSQL cannot store: remove it")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Unfit("the string contains a lone surrogate, which is no character: decode it properly") from None
        return text


def refuse(value: object, walk: Walk) -> object:  # noqa: ARG001
    """What ``jsonable`` does with a value that is not JSON as it is: say what would make it fit."""
    name = type(value).__name__
    if isinstance(value, bytes | bytearray | memoryview):
        raise Unfit(f"{name} is not JSON: encode it to base64, or store it and pass a reference")
    if isinstance(value, tuple | set | frozenset):
        raise Unfit(f"{name} would come back as a list: annotate the parameter as {name}[...], or pass a list")
    if isinstance(value, date | time | timedelta | UUID | Decimal | enum.Enum) or is_structured(value):
        raise Unfit(f"{name} is not JSON: annotate the parameter as {name}, or pass a string")
    raise Unfit(f"{name} is not JSON: pass an id, or a dataclass and annotate the parameter with it")


def jsonable(value: Any, walk: Walk, other: Other = refuse) -> object:  # noqa: C901 - one case a type
    """A copy of ``value`` of exact JSON types only. Subclasses of str, int and float are stored as what they equal."""
    cls = type(value)
    if cls is str:
        return walk.text(value)
    if cls is int:
        if value.bit_length() > MAX_INTEGER_BITS:
            raise Unfit("the integer has more than 4300 digits, which Python does not read back: pass a string")
        return value
    if cls is bool or value is None:
        return value
    if cls is float:
        if not math.isfinite(value):
            raise Unfit(f"{_nonfinite(value)} is not JSON: pass None or a string")
        return value
    if isinstance(value, list):
        return _array(value, walk, other)
    if isinstance(value, dict):
        return _object(value, walk, other)
    if isinstance(value, str):
        return walk.text(str.__str__(value))
    if isinstance(value, int):
        return jsonable(int.__int__(value), walk)
    if isinstance(value, float):
        return jsonable(float.__float__(value), walk)
    return other(value, walk)


def spell(value: date | time | timedelta | UUID | Decimal) -> str:
    """The exact text of a value, from which its class reads an equal one."""
    if isinstance(value, Decimal) and not value.is_finite():
        raise Unfit("a Decimal that is NaN or infinite is not JSON: pass None")
    if isinstance(value, datetime | time) and value.tzinfo is not None and value.utcoffset() is None:
        raise Unfit(f"the time zone of this {type(value).__name__} has no offset without a date: pass it apart")
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # pandas
        raise Unfit(f"the nanoseconds of this {type(value).__name__} would be lost: round it to microseconds")
    if isinstance(value, timedelta):
        seconds, micros = divmod(abs(value // timedelta(microseconds=1)), 1_000_000)
        return f"{'-' if value < timedelta(0) else ''}PT{seconds}{f'.{micros:06}' if micros else ''}S"
    return value.isoformat() if isinstance(value, date | time) else str(value)


def step(key: object) -> str:
    """One key as a part of a path; shortened and escaped, for keys are data too."""
    if not isinstance(key, str):
        return ""
    return f".{key}" if key.isascii() and key.isidentifier() and len(key) <= 40 else f"[{key[:40]!a}]"


def kind_of(value: object) -> str:
    """The kind of a JSON value, as the standard names it."""
    return _KINDS.get(type(value), "object")


def is_scalar(value: object) -> bool:
    return type(value) in {str, int, bool} or (type(value) is float and math.isfinite(value))


def is_model(cls: type) -> bool:
    """Whether a class is a pydantic model, without importing pydantic to ask."""
    return hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump") and hasattr(cls, "model_fields")


def is_structured(value: object) -> bool:
    return hasattr(type(value), "__dataclass_fields__") or is_model(type(value))


_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _array(value: list[Any], walk: Walk, other: Other) -> list[object]:
    walk.enter(len(value))
    found: list[object] = []
    try:
        for item in value:
            found.append(jsonable(item, walk, other))
    except Unfit as unfit:
        raise unfit.at(f"[{len(found)}]")
    walk.depth -= 1
    return found


def _object(value: dict[Any, Any], walk: Walk, other: Other) -> dict[str, object]:
    walk.enter(len(value))
    found: dict[str, object] = {}
    key: object = None
    try:
        for key, item in value.items():
            if not isinstance(key, str):
                raise Unfit(f"a key is {type(key).__name__}, and JSON has only strings as keys: convert it")
            found[walk.text(str.__str__(key))] = jsonable(item, walk, other)
    except Unfit as unfit:
        raise unfit.at(step(key))
    if len(found) < len(value):
        raise Unfit("two keys are the same string: one would be lost")
    walk.depth -= 1
    return found


def _nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity"
