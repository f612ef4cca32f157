"""Strict JSON: what PostgreSQL, SQLite and Python all store and give back unchanged.

Strict JSON has no NaN, no Infinity, no NUL and no half of a surrogate pair. Its keys are strings, it has no cycles and at most
`MAX_DEPTH` levels. A message names types and paths and never the value, because it ends in logs.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any
from uuid import UUID

MAX_DEPTH = 64
"""Levels of a whole document. Python's own parser gives up near 1000, and earlier in a deep call stack."""
MAX_INTEGER_BITS = 14_284
"""Bits of 4300 digits, the longest integer that Python reads back (`sys.set_int_max_str_digits`). Counting digits would be slow."""

Textual = date | time | timedelta | UUID | Decimal
"""The classes that `to_text` writes; a `datetime` is a `date`."""


class CodecError(Exception):
    """A value or an annotation that cannot be stored or read back."""

    def __init__(self, reason: str, path: str = "") -> None:
        """`path` leads from the argument to the value; each level that the error passes is put before it."""
        super().__init__(reason)
        self.reason, self.path = reason, path

    def at(self, part: str) -> CodecError:
        self.path = part + self.path
        return self

    def shortened_path(self) -> str:
        return self.path if len(self.path) <= 200 else f"{self.path[:100]}…{self.path[-50:]}"


class Limits:
    """The depth of the value being converted, and the bytes that its JSON may still take.

    The bytes are a lower bound: one for each item and character. Without it, a list that holds another one twice, 30 levels deep,
    would be written out a billion times before its size is known.
    """

    __slots__ = ("depth", "fallback", "left", "limit")

    def __init__(self, limit: int, fallback: Convert | None = None) -> None:
        """`fallback` converts what is not JSON as it is; None: `refuse`."""
        self.depth = 0
        self.left = self.limit = limit
        self.fallback = fallback or refuse

    def enter(self, size: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CodecError(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself: pass a flatter value")
        self.left -= size
        if self.left < 0:
            raise self._too_large()

    def text(self, text: str) -> str:
        self.left -= len(text)
        if self.left < 0:
            raise self._too_large()
        if "\x00" in text:
            raise CodecError("the string contains NUL, which PostgreSQL cannot store: remove it")
        if not text.isascii() and _SURROGATE.search(text):
            raise CodecError("the string contains a lone surrogate, which is no character: decode it properly")
        return text

    def _too_large(self) -> CodecError:
        limit = f"the size limit of {self.limit} bytes"
        return CodecError(f"here the value grows over {limit}: store it and pass a reference")


Convert = Callable[[Any, Limits], object]
"""Writes a value as JSON, or reads it from there."""


def jsonable(value: Any, limits: Limits) -> object:  # noqa: C901 - one case a type
    """Return a copy of exact JSON types only. Subclasses of str, int and float become what they equal."""
    cls = type(value)
    if cls is str:
        return limits.text(value)
    if cls is int:
        if value.bit_length() > MAX_INTEGER_BITS:
            raise CodecError("the integer has more than 4300 digits, which Python does not read back: pass a string")
        return value
    if cls is bool or value is None:
        return value
    if cls is float:
        if not math.isfinite(value):
            raise CodecError(f"{'NaN' if math.isnan(value) else 'Infinity'} is not JSON: pass None or a string")
        return value
    if isinstance(value, list):
        return convert_array(value, repeat(jsonable), limits)
    if isinstance(value, dict):
        return convert_object(value, plain_key, repeat(jsonable), limits)
    if isinstance(value, str):
        return limits.text(str.__str__(value))
    if isinstance(value, int):
        return jsonable(int.__int__(value), limits)
    if isinstance(value, float):
        return jsonable(float.__float__(value), limits)
    return limits.fallback(value, limits)


def convert_array(values: Collection[Any], converters: Iterable[Convert], limits: Limits) -> list[object]:
    """Convert each item by its own converter; `converters` may be endless."""
    limits.enter(len(values))
    found: list[object] = []
    try:
        for value, convert in zip(values, converters, strict=False):
            found.append(convert(value, limits))
    except CodecError as error:
        raise error.at(f"[{len(found)}]")
    limits.depth -= 1
    return found


def convert_object(
    values: Mapping[Any, Any], convert_key: Convert, converters: Iterable[Convert], limits: Limits
) -> dict[Any, object]:
    """Convert each key, and each item by its own converter; `converters` may be endless."""
    limits.enter(len(values))
    found: dict[Any, object] = {}
    key: object = None
    try:
        for (key, value), convert in zip(values.items(), converters, strict=False):
            found[convert_key(key, limits)] = convert(value, limits)
    except CodecError as error:
        raise error.at(path_part(key))
    if len(found) < len(values):
        raise CodecError("two keys are the same string: one would be lost")
    limits.depth -= 1
    return found


def plain_key(key: object, limits: Limits) -> str:
    if not isinstance(key, str):
        raise CodecError(f"a key is {type(key).__name__}, and JSON has only strings as keys: convert it")
    return limits.text(str.__str__(key))


def refuse(value: object, limits: Limits) -> object:  # noqa: ARG001
    """Say what would make a value storable that is not JSON as it is."""
    name = type(value).__name__
    if isinstance(value, bytes | bytearray | memoryview):
        raise CodecError(f"{name} is not JSON: encode it to base64, or store it and pass a reference")
    if isinstance(value, tuple | set | frozenset):
        raise CodecError(f"{name} would come back as a list: annotate the parameter as {name}[...], or pass a list")
    structured = hasattr(type(value), "__dataclass_fields__") or is_model(type(value))
    if structured or isinstance(value, Textual | enum.Enum):
        raise CodecError(f"{name} is not JSON: annotate the parameter as {name}, or pass a string")
    raise CodecError(f"{name} is not JSON: use an id, or a dataclass that the annotation names")


def readable(value: Any, limits: Limits) -> object:
    """Convert a value of a result by its own type."""
    if isinstance(value, enum.Enum):
        return jsonable(value.value if is_scalar(value.value) else value.name, limits)
    if isinstance(value, Textual):
        return limits.text(to_text(value))
    if isinstance(value, tuple | set | frozenset):
        return jsonable(list(value), limits)
    if is_model(type(value)):
        return jsonable(dump_model(value), limits)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return jsonable({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, limits)
    return refuse(value, limits)


def to_text(value: Textual) -> str:
    """Return the exact text of a value, from which its class reads an equal one."""
    if isinstance(value, Decimal) and not value.is_finite():
        raise CodecError("a Decimal that is NaN or infinite is not JSON: pass None")
    if isinstance(value, datetime | time) and value.tzinfo is not None and value.utcoffset() is None:
        raise CodecError(f"the time zone of this {type(value).__name__} has no offset without a date: pass it apart")
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # pandas
        raise CodecError(f"the nanoseconds of this {type(value).__name__} would be lost: round it to microseconds")
    if isinstance(value, timedelta):
        seconds, micros = divmod(abs(value // timedelta(microseconds=1)), 1_000_000)
        return f"{'-' if value < timedelta(0) else ''}PT{seconds}{f'.{micros:06}' if micros else ''}S"
    return value.isoformat() if isinstance(value, date | time) else str(value)


def path_part(key: object) -> str:
    """Return one key as a part of a path, shortened and escaped: keys are data too."""
    if not isinstance(key, str):
        return ""
    return f".{key}" if key.isascii() and key.isidentifier() and len(key) <= 40 else f"[{key[:40]!a}]"


def json_type(value: object) -> str:
    """Return the type of a JSON value, as the standard names it."""
    return _JSON_TYPES.get(type(value), "object")


def is_scalar(value: object) -> bool:
    return type(value) in {str, int, bool} or (type(value) is float and math.isfinite(value))


def dump_model(model: Any, **options: bool) -> object:
    try:
        # warnings=False: they quote values.
        return model.model_dump(mode="json", warnings=False, **options)
    except Exception as error:  # noqa: BLE001 -- a serializer of the model may raise anything
        raise CodecError(f"{type(model).__name__} cannot be dumped: {type(error).__name__}") from None


def is_model(cls: type) -> bool:
    """Return whether a class is a pydantic model, without importing pydantic."""
    return hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump") and hasattr(cls, "model_fields")


_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
