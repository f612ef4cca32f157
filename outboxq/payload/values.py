"""Strict JSON and the codecs. Each codec writes the values of one annotation as JSON, and reads them back.

`annotations` chooses the codec.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, ClassVar
from uuid import UUID

MAX_DEPTH = 64
"""The maximum nesting depth of a document. Python's own parser gives up at about 1,000 levels, or earlier in a deep
call stack.
"""
MAX_INTEGER_BITS = 14_284
"""The number of bits in 4,300 digits, the length of the longest integer that Python can read back
(`sys.set_int_max_str_digits`). Counting digits would be slow.
"""
BY_REFERENCE = "store the data elsewhere, and use a reference to it instead"
"""The remedy for a value that is too large. The remedy suits arguments, results and payloads."""

Textual = date | time | timedelta | UUID | Decimal
"""The classes that `to_text` writes. `datetime` is not listed, because it is a subclass of `date`."""


class CodecError(Exception):
    """A value or an annotation that cannot be stored or read back."""

    def __init__(self, reason: str, path: str = "") -> None:
        """`path` leads from the argument to the value. Each level through which the error passes is prepended to the
        path.
        """
        super().__init__(reason)
        self.reason, self.path = reason, path

    def at(self, part: str) -> CodecError:
        self.path = part + self.path
        return self

    def shortened_path(self) -> str:
        return self.path if len(self.path) <= 200 else f"{self.path[:100]}…{self.path[-50:]}"


class Changed(CodecError):
    """A stored value that does not fit the annotation, which may have changed since the value was stored."""

    def __init__(self, what: str, label: str) -> None:
        super().__init__(f"{what} is stored where {label} is expected: was the annotation changed?")
        self.if_new = f"{what} does not fit {label}: pass a value of that type"
        """The error message for a value that a person has written as JSON."""


class Limits:
    """The depth of the value that is being converted, and the number of bytes that its JSON may still take up.

    The size is a lower bound, with one byte for each item and character. Without this bound, a list that contains
    another list twice, 30 levels deep, would be expanded to a billion items before its size was known.
    """

    __slots__ = ("depth", "fallback", "left", "limit")

    def __init__(self, limit: int, fallback: Convert | None = None) -> None:
        """`fallback` converts values that are not JSON; None means `refuse`."""
        self.depth = 0
        self.left = self.limit = limit
        self.fallback = fallback or refuse

    def enter(self, size: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CodecError(
                f"the value is nested deeper than {MAX_DEPTH} levels, or contains itself: pass a flatter value"
            )
        self.left -= size
        if self.left < 0:
            raise self._too_large(f"{size} items")

    def text(self, text: str) -> str:
        self.left -= len(text)
        if self.left < 0:
            raise self._too_large(f"{len(text)} characters")
        if "\x00" in text:
            raise CodecError("the string contains NUL, which PostgreSQL cannot store: remove it")
        if not text.isascii() and _SURROGATE.search(text):
            raise CodecError("the string contains a lone surrogate, which is not a character: decode it properly")
        return text

    def _too_large(self, by: str) -> CodecError:
        limit = f"the size limit of {self.limit} bytes"
        return CodecError(f"{limit} is exceeded at this point, by a value of {by}: {BY_REFERENCE}")


Convert = Callable[[Any, Limits], object]
"""A function that writes a value as JSON or reads it back."""


def jsonable(value: Any, limits: Limits) -> object:  # noqa: C901 - one case per type
    """Return a copy that consists only of exact JSON types. Subclasses of str, int and float become equal plain values."""
    cls = type(value)
    if cls is str:
        return limits.text(value)
    if cls is int:
        if value.bit_length() > MAX_INTEGER_BITS:
            raise CodecError("the integer has more than 4300 digits, which Python cannot read back: pass a string")
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
    """Convert each item with its own converter; `converters` may be infinite."""
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
    """Convert each key with `convert_key`, and each item with its own converter; `converters` may be infinite."""
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
        raise CodecError(f"a key is {type(key).__name__}, but JSON allows only strings as keys: convert it")
    return limits.text(str.__str__(key))


def refuse(value: object, limits: Limits) -> object:  # noqa: ARG001
    """Refuse a value that is not JSON, with an error that names a remedy."""
    name = type(value).__name__
    if isinstance(value, bytes | bytearray | memoryview):
        raise CodecError(f"{name} is not JSON: encode it as base64, or store it and pass a reference")
    if isinstance(value, tuple | set | frozenset):
        raise CodecError(f"{name} would come back as a list: annotate the parameter as {name}[...], or pass a list")
    structured = hasattr(type(value), "__dataclass_fields__") or is_model(type(value))
    if structured or isinstance(value, Textual | enum.Enum):
        raise CodecError(f"{name} is not JSON: annotate the parameter as {name}, or pass a string")
    raise CodecError(f"{name} is not JSON: pass an id, or annotate the parameter with a dataclass")


def readable(value: Any, limits: Limits) -> object:
    """Convert a value in a result or a payload according to its own type."""
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
    if isinstance(value, bytes | bytearray | memoryview):
        return refuse(value, limits)
    raise CodecError(f"{type(value).__name__} is not JSON: use an id or a dataclass instead")


def to_text(value: Textual) -> str:
    """Return the exact text of a value, from which its class can read an equal value."""
    if isinstance(value, Decimal) and not value.is_finite():
        raise CodecError("a Decimal that is NaN or infinite is not JSON: pass None")
    if isinstance(value, datetime | time) and value.tzinfo is not None and value.utcoffset() is None:
        raise CodecError(
            f"the time zone of this {type(value).__name__} has no offset without a date: pass it separately"
        )
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # pandas
        raise CodecError(f"the nanoseconds of this {type(value).__name__} would be lost: round it to microseconds")
    if isinstance(value, timedelta):
        seconds, micros = divmod(abs(value // timedelta(microseconds=1)), 1_000_000)
        return f"{'-' if value < timedelta(0) else ''}PT{seconds}{f'.{micros:06}' if micros else ''}S"
    return value.isoformat() if isinstance(value, date | time) else str(value)


def path_part(key: object) -> str:
    """Return a key as part of a path. The key is shortened and escaped, because keys are data too."""
    if not isinstance(key, str):
        return ""
    return f".{key}" if key.isascii() and key.isidentifier() and len(key) <= 40 else f"[{key[:40]!a}]"


def json_type(value: object) -> str:
    """Return the name that the JSON standard uses for the type of a value."""
    return _JSON_TYPES.get(type(value), "object")


def is_scalar(value: object) -> bool:
    return type(value) in {str, int, bool} or (type(value) is float and math.isfinite(value))


def dump_model(model: Any, **options: bool) -> object:
    try:
        # warnings=False, because warnings quote values.
        return model.model_dump(mode="json", warnings=False, **options)
    except Exception as error:  # noqa: BLE001 -- the model's serializers may raise any exception
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


ANY_TYPE = frozenset({"null", "boolean", "number", "string", "array", "object"})


class Codec(ABC):
    """A converter that writes the values of one annotation as JSON, and reads them back."""

    label: str
    """The annotation, for messages."""
    json_types: frozenset[str]
    """The JSON types in which its values are written. A union is read by these types, never by trying one member after
    another, which would turn a string that looks like a UUID into a UUID.
    """
    plain: bool = False
    """True if its values are represented identically in Python and in JSON."""
    accepts: type | tuple[type, ...]
    """The classes of its values."""

    def fits(self, value: object) -> bool:
        """Return whether a value has the annotated type, without looking inside the value."""
        return isinstance(value, self.accepts)

    @abstractmethod
    def encode(self, value: Any, limits: Limits) -> object: ...

    @abstractmethod
    def decode(self, value: Any, limits: Limits) -> object: ...

    def expect(self, value: object) -> None:
        if self.fits(value):
            return
        if value is None:
            hint = "has the row been flushed, so that its id exists? If None is intended, annotate the parameter with | None"
            raise CodecError(f"None does not fit {self.label}: {hint}")
        remedy = "pass a value of that type, or change the annotation"
        raise CodecError(f"{type(value).__name__} does not fit {self.label}: {remedy}")

    def expect_json(self, value: object) -> None:
        if json_type(value) not in self.json_types:
            raise Changed(json_type(value), self.label)


class PlainCodec(Codec):
    """A value that is already JSON.

    With `classes` or `members`, the value must be one that a type checker would accept for the annotation, except that
    a bool does not count as a number. Only values that are being enqueued are checked. Stored values are read
    unchecked, because they may have been written by another release, by `emit` or by SQL.
    """

    plain = True

    def __init__(
        self,
        label: str,
        json_types: frozenset[str] = ANY_TYPE,
        *,
        classes: Iterable[type] = (),
        members: Sequence[Codec] = (),
    ) -> None:
        """`classes` are the classes of the values. `members` are the codecs for a union's other types; a codec also
        checks the content of a value.
        """
        self.label, self.json_types, self.members = label, json_types, members
        self.classes = frozenset(classes)
        self.accepts = tuple(self.classes)
        self.compares = bool(self.classes or members)

    def fits(self, value: object) -> bool:
        if not self.compares:
            return value is not None or "null" in self.json_types
        cls = type(value)
        if cls in self.classes or (cls is not bool and isinstance(value, self.accepts)):
            return True
        return any(_takes(member, value) for member in self.members)

    def encode(self, value: Any, limits: Limits) -> object:
        if type(value) in self.classes:
            return jsonable(value, limits)
        if value is None:
            self.expect(value)
        if isinstance(value, tuple | set | frozenset) and "array" not in self.json_types:
            name = type(value).__name__
            raise CodecError(
                f"{name} does not fit {self.label}: pass an item of the {name}, or annotate the parameter as {name}[...]"
            )
        stored = jsonable(value, limits)  # comes first, because it has a better message for a value that is not JSON
        if self.compares and not self.fits(value):
            remedy = "pass a value of that type, or declare the task with check_types=False"
            raise CodecError(f"{type(value).__name__} does not fit {self.label}: {remedy}")
        return stored

    def decode(self, value: Any, limits: Limits) -> object:
        if value is None:
            self.expect_json(value)
        return jsonable(value, limits)


class TextCodec(Codec):
    """A class whose values have an exact text: `datetime`, `date`, `time`, `timedelta`, `UUID`, `Decimal`."""

    json_types = frozenset({"string"})
    duration: ClassVar = re.compile(r"(-?)PT([0-9]+)(?:\.([0-9]{6}))?S")

    def __init__(self, cls: Any) -> None:
        self.cls, self.label = cls, cls.__name__

    def fits(self, value: object) -> bool:
        # isinstance considers a datetime a date, but a date cannot be read from a datetime's text.
        return isinstance(value, self.cls) and (issubclass(self.cls, datetime) or not isinstance(value, datetime))

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        return limits.text(to_text(value))

    def decode(self, value: Any, limits: Limits) -> object:  # noqa: ARG002
        self.expect_json(value)
        try:
            return self._read(value)
        except (ValueError, TypeError, ArithmeticError):
            raise Changed("this string", self.label) from None

    def _read(self, text: str) -> object:
        if issubclass(self.cls, date | time):
            return self.cls.fromisoformat(text)
        if not issubclass(self.cls, timedelta):
            found = self.cls(text)
            if isinstance(found, Decimal) and not found.is_finite():
                raise ValueError
            return found
        if (match := self.duration.fullmatch(text)) is None:
            raise ValueError
        micros = int(match[2]) * 1_000_000 + int(match[3] or 0)
        return self.cls(microseconds=-micros if match[1] else micros)


class EnumCodec(Codec):
    """An enum member. A member is stored by value if every member's value is a string, a number or a boolean, otherwise
    by name.
    """

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.cls, self.accepts, self.label = cls, cls, cls.__name__
        self.by_value = all(is_scalar(member.value) for member in cls)
        types = frozenset(json_type(member.value) for member in cls)
        self.json_types = types if self.by_value and types else frozenset({"string"})

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        return jsonable(value.value if self.by_value else value.name, limits)

    def decode(self, value: Any, limits: Limits) -> object:  # noqa: ARG002
        self.expect_json(value)
        try:
            return self.cls(value) if self.by_value else self.cls[value]
        except Exception:  # noqa: BLE001 -- ValueError, KeyError, or whatever its own _missing_ raises
            what = f"the stored {json_type(value)} is not a member of {self.label}"
            raise CodecError(f"{what}: was a member renamed?") from None


class LiteralCodec(Codec):
    """`Literal`: one of a few values, whose JSON representations all differ."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        # As in code, but at most a line long. These values are not secret.
        written = ", ".join(str(one) if isinstance(one, enum.Enum) else repr(one) for one in values)
        self.label = f"Literal[{written if len(written) <= 100 else written[:100] + '…'}]"
        limits = Limits(10_000)
        encoders = [EnumCodec(type(one)).encode if isinstance(one, enum.Enum) else jsonable for one in values]
        self.choices = [(one, encode(one, limits)) for one, encode in zip(values, encoders, strict=True)]
        self.json_types = frozenset(json_type(stored) for _, stored in self.choices)
        self.plain = all(value is stored for value, stored in self.choices)
        if len({(json_type(stored), stored) for _, stored in self.choices}) < len(values):
            raise CodecError("two values of the Literal are the same in JSON: keep one of them")

    def fits(self, value: object) -> bool:
        return any(_same(value, choice) for choice, _ in self.choices)

    def encode(self, value: Any, limits: Limits) -> object:  # noqa: ARG002
        for choice, stored in self.choices:
            if _same(value, choice):
                return stored
        if value is None:
            self.expect(value)
        raise CodecError(
            f"this {type(value).__name__} is not one of {self.label}: pass one of its values, or add this value to it"
        )

    def decode(self, value: Any, limits: Limits) -> object:  # noqa: ARG002
        for choice, stored in self.choices:
            if _same(value, stored):
                return choice
        raise CodecError(f"the stored {json_type(value)} is not one of {self.label}: was one removed?")


class ArrayCodec(Codec):
    """`list`, `set`, `frozenset` and `tuple[X, ...]` with one codec for all items, or `tuple[X, Y]` with one codec for
    each position.
    """

    json_types = frozenset({"array"})

    def __init__(
        self, label: str, build: Callable[[list[object]], object], items: Sequence[Codec], *, fixed: bool = False
    ) -> None:
        self.label, self.build, self.items = label, build, items
        self.length = len(items) if fixed else None
        self.accepts = (set, frozenset) if build in {set, frozenset} else (list, tuple)
        self.plain = build is list and items[0].plain

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        if self.length not in {None, len(value)}:
            what = f"a {type(value).__name__} of length {len(value)} does not fit {self.label}"
            raise CodecError(f"{what}: pass {self.length} items")
        return convert_array(value, self._each([item.encode for item in self.items]), limits)

    def decode(self, value: Any, limits: Limits) -> object:
        self.expect_json(value)
        if self.length not in {None, len(value)}:
            raise Changed(f"an array of length {len(value)}", self.label)
        found = convert_array(value, self._each([item.decode for item in self.items]), limits)
        try:
            return self.build(found)
        except TypeError:  # an unhashable item
            raise Changed("an array with an unhashable item", self.label) from None

    def _each(self, converters: list[Any]) -> Iterable[Any]:
        return repeat(converters[0]) if self.length is None else converters


class MappingCodec(Codec):
    """`dict[K, X]`, where K is written as a string."""

    json_types = frozenset({"object"})
    accepts = Mapping

    def __init__(self, label: str, key: Codec, item: Codec) -> None:
        self.label, self.key, self.item = label, key, item
        self.plain = key.plain and item.plain

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        return convert_object(value, self._encode_key, repeat(self.item.encode), limits)

    def decode(self, value: Any, limits: Limits) -> object:
        self.expect_json(value)
        return convert_object(value, self.key.decode, repeat(self.item.decode), limits)

    def _encode_key(self, key: Any, limits: Limits) -> object:
        if self.key.plain and not isinstance(key, str):
            name = type(key).__name__
            remedy = f", or annotate the keys as {name}" if isinstance(key, Textual | enum.Enum) else ""
            raise CodecError(f"a key is {name}, but {self.label} needs string keys: convert it{remedy}")
        return self.key.encode(key, limits)


def _takes(member: Codec, value: object) -> bool:
    """Return whether a member of a union accepts a value that is known to be valid JSON within the limits."""
    try:
        member.encode(value, Limits(sys.maxsize))
    except CodecError:
        return False
    return True


def _same(value: object, choice: object) -> bool:
    # True == 1 and 1 == 1.0, but they are different values of a Literal.
    return isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool) and value == choice
