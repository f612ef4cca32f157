"""The codecs: each writes the values of one annotation as strict JSON, and reads them back. `annotations` chooses among them."""

from __future__ import annotations

import enum
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any, ClassVar

from .strict import CodecError, Limits, Textual, convert_array, convert_object, is_scalar, json_type, jsonable, to_text

ANY_TYPE = frozenset({"null", "boolean", "number", "string", "array", "object"})
_CHANGED = "was the annotation changed?"


class Codec(ABC):
    """Writes the values of one annotation as JSON, and reads them back."""

    label: str
    """The annotation, for messages."""
    json_types: frozenset[str]
    """The types of JSON that its values are written as. A union is read by them, and never by trying one member after another,
    which would turn a string that looks like a UUID into one."""
    plain: bool = False
    """Its values are the same in Python and in JSON."""
    accepts: type | tuple[type, ...]
    """The classes of its values."""

    def fits(self, value: object) -> bool:
        """Return whether a value is of the annotated type, looking no further than the value itself."""
        return isinstance(value, self.accepts)

    @abstractmethod
    def encode(self, value: Any, limits: Limits) -> object: ...

    @abstractmethod
    def decode(self, value: Any, limits: Limits) -> object: ...

    def expect(self, value: object) -> None:
        if self.fits(value):
            return
        if value is None:
            hint = "is the row flushed, so that its id exists? If None is meant, annotate the parameter with | None"
            raise CodecError(f"None does not fit {self.label}: {hint}")
        remedy = "pass a value of that type, or change the annotation"
        raise CodecError(f"{type(value).__name__} does not fit {self.label}: {remedy}")

    def expect_json(self, value: object) -> None:
        if json_type(value) not in self.json_types:
            raise CodecError(f"{json_type(value)} is stored where {self.label} is expected: {_CHANGED}")


class PlainCodec(Codec):
    """A value that is JSON already.

    With `classes` or `members` it must be what a type checker would take for the annotation, but no bool where a number is meant.
    Only what is enqueued is compared. What is stored is read as it is: another release, `emit`, or SQL may have written it.
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
        """`classes` are those of the values; `members` are the other types of a union, which look inside of their values."""
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
        stored = jsonable(value, limits)  # first, because what is not JSON at all has a better message
        if self.compares and not self.fits(value):
            remedy = "pass a value of that type, or declare the task with check_types=False"
            raise CodecError(f"{type(value).__name__} does not fit {self.label}: {remedy}")
        return stored

    def decode(self, value: Any, limits: Limits) -> object:
        if value is None:
            self.expect_json(value)
        return jsonable(value, limits)


class TextCodec(Codec):
    """A class with an exact text: `datetime`, `date`, `time`, `timedelta`, `UUID`, `Decimal`."""

    json_types = frozenset({"string"})
    duration: ClassVar = re.compile(r"(-?)PT([0-9]+)(?:\.([0-9]{6}))?S")

    def __init__(self, cls: Any) -> None:
        self.cls, self.label = cls, cls.__name__

    def fits(self, value: object) -> bool:
        # A datetime is a date to isinstance, but a date cannot be read from its text.
        return isinstance(value, self.cls) and (issubclass(self.cls, datetime) or not isinstance(value, datetime))

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        return limits.text(to_text(value))

    def decode(self, value: Any, limits: Limits) -> object:  # noqa: ARG002
        self.expect_json(value)
        try:
            return self._read(value)
        except (ValueError, TypeError, ArithmeticError):
            raise CodecError(f"the stored string is not a {self.label}: {_CHANGED}") from None

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
    """A member by its value if every value is a string, a number or a boolean; else by its name."""

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
        except Exception:  # noqa: BLE001 -- ValueError, KeyError, or what its own _missing_ raises
            what = f"the stored {json_type(value)} is no member of {self.label}"
            raise CodecError(f"{what}: was a member renamed?") from None


class LiteralCodec(Codec):
    """`Literal`: one of a few values, each with its own form in JSON."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        # As in code, but no longer than a line: these values are no secret.
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
        raise CodecError(f"this {type(value).__name__} is none of {self.label}: pass one of them, or add it there")

    def decode(self, value: Any, limits: Limits) -> object:  # noqa: ARG002
        for choice, stored in self.choices:
            if _same(value, stored):
                return choice
        raise CodecError(f"the stored {json_type(value)} is none of {self.label}: was one removed?")


class ArrayCodec(Codec):
    """`list`, `set`, `frozenset` and `tuple[X, ...]` with one codec for all items; `tuple[X, Y]` with one for each place."""

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
            what = f"a {type(value).__name__} of {len(value)} does not fit {self.label}"
            raise CodecError(f"{what}: pass {self.length} items")
        return convert_array(value, self._each([item.encode for item in self.items]), limits)

    def decode(self, value: Any, limits: Limits) -> object:
        self.expect_json(value)
        if self.length not in {None, len(value)}:
            raise CodecError(f"an array of {len(value)} is stored where {self.label} is expected: {_CHANGED}")
        found = convert_array(value, self._each([item.decode for item in self.items]), limits)
        try:
            return self.build(found)
        except TypeError:  # an item without a hash
            raise CodecError(f"an item does not fit into {self.label}: {_CHANGED}") from None

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
            raise CodecError(f"a key is {name}, and {self.label} has strings as keys: convert it{remedy}")
        return self.key.encode(key, limits)


def _takes(member: Codec, value: object) -> bool:
    """Return whether a member of a union takes a value that is known to be JSON within its limits."""
    try:
        member.encode(value, Limits(sys.maxsize))
    except CodecError:
        return False
    return True


def _same(value: object, choice: object) -> bool:
    # True == 1 and 1 == 1.0, but they are different values of a Literal.
    return isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool) and value == choice
