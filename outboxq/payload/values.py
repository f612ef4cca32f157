"""How a value of an annotated type is written as strict JSON and read back; ``annotations`` chooses among these.

The annotation says what the function receives. Each codec knows the kinds of JSON it writes: a union is read by kind,
and never by trying one member after another, which would turn a string that looks like a UUID into one.
"""

from __future__ import annotations

import enum
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from .strict import Unfit, Walk, is_scalar, jsonable, kind_of, spell, step

ANY_KIND = frozenset({"null", "boolean", "number", "string", "array", "object"})
Verb = Callable[[Any, Walk], object]


class Codec(ABC):
    """``plain`` says that values are the same in Python and in JSON."""

    label: str
    kinds: frozenset[str]
    plain: bool = False

    @abstractmethod
    def fits(self, value: object) -> bool:
        """Whether a value is of the annotated type, looking no further than the value itself."""

    @abstractmethod
    def encode(self, value: Any, walk: Walk) -> object: ...

    @abstractmethod
    def decode(self, value: Any, walk: Walk) -> object: ...

    def expect(self, value: object) -> None:
        if self.fits(value):
            return
        if value is None:
            hint = "is the row flushed, so that its id exists? If None is meant, annotate the parameter with | None"
            raise Unfit(f"None does not fit {self.label}: {hint}")
        raise Unfit(
            f"{type(value).__name__} does not fit {self.label}: pass a value of that type, or change the annotation"
        )

    def expect_kind(self, value: object) -> None:
        if kind_of(value) not in self.kinds:
            raise Unfit(f"{kind_of(value)} is stored where {self.label} is expected: was the annotation changed?")


class Plain(Codec):
    """A value that is JSON already. Types are not compared, as a plain call would not compare them; only None is. `Typed` compares."""

    plain = True

    def __init__(self, label: str, kinds: frozenset[str] = ANY_KIND) -> None:
        self.label, self.kinds = label, kinds

    def fits(self, value: object) -> bool:
        return value is not None or "null" in self.kinds

    def encode(self, value: Any, walk: Walk) -> object:
        if value is None:
            self.expect(value)
        return jsonable(value, walk)

    def decode(self, value: Any, walk: Walk) -> object:
        if value is None:
            self.expect_kind(value)
        return jsonable(value, walk)


class Text(Codec):
    """A class with an exact spelling: ``datetime``, ``date``, ``time``, ``timedelta``, ``UUID``, ``Decimal``."""

    kinds = frozenset({"string"})
    duration: ClassVar = re.compile(r"(-?)PT([0-9]+)(?:\.([0-9]{6}))?S")

    def __init__(self, cls: Any) -> None:
        self.cls, self.label = cls, cls.__name__

    def fits(self, value: object) -> bool:
        # A datetime is a date to isinstance, but a date cannot be read from its text.
        return isinstance(value, self.cls) and (issubclass(self.cls, datetime) or not isinstance(value, datetime))

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        return walk.text(spell(value))

    def decode(self, value: Any, walk: Walk) -> object:  # noqa: ARG002
        self.expect_kind(value)
        try:
            found = self.read(value)
        except (ValueError, TypeError, ArithmeticError):
            found = None
        if found is None or (isinstance(found, Decimal) and not found.is_finite()):
            raise Unfit(f"the stored string is not a {self.label}: was the annotation changed?")
        return found

    def read(self, text: str) -> object:
        if issubclass(self.cls, date | time):
            return self.cls.fromisoformat(text)
        if not issubclass(self.cls, timedelta):
            return self.cls(text)
        if (match := self.duration.fullmatch(text)) is None:
            return None
        micros = int(match[2]) * 1_000_000 + int(match[3] or 0)
        return self.cls(microseconds=-micros if match[1] else micros)


class Enumeration(Codec):
    """By value if every value is a string, a number or a boolean; else by name."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.cls, self.label = cls, cls.__name__
        self.by_value = all(is_scalar(member.value) for member in cls)
        kinds = frozenset(kind_of(member.value) for member in cls)
        self.kinds = kinds if self.by_value and kinds else frozenset({"string"})

    def fits(self, value: object) -> bool:
        return isinstance(value, self.cls)

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        return jsonable(value.value if self.by_value else value.name, walk)

    def decode(self, value: Any, walk: Walk) -> object:  # noqa: ARG002
        self.expect_kind(value)
        try:
            return self.cls(value) if self.by_value else self.cls[value]
        except Exception:  # noqa: BLE001 -- ValueError, KeyError, or what its own _missing_ raises
            raise Unfit(f"the stored {kind_of(value)} is no member of {self.label}: was a member renamed?") from None


class Choice(Codec):
    """``Literal``: one of a few values, each with its own form in JSON."""

    def __init__(self, choices: list[tuple[Any, object]]) -> None:
        self.label, self.choices = _literal([choice for choice, _ in choices]), choices
        self.kinds = frozenset(kind_of(stored) for _, stored in choices)
        self.plain = all(value is stored for value, stored in choices)
        if len({(kind_of(stored), stored) for _, stored in choices}) < len(choices):
            raise Unfit("two values of the Literal are the same in JSON: keep one of them")

    def fits(self, value: object) -> bool:
        return any(_same(value, choice) for choice, _ in self.choices)

    def encode(self, value: Any, walk: Walk) -> object:  # noqa: ARG002
        if value is not None and not self.fits(value):
            raise Unfit(f"this {type(value).__name__} is none of {self.label}: pass one of them, or add it there")
        self.expect(value)
        return next(stored for choice, stored in self.choices if _same(value, choice))

    def decode(self, value: Any, walk: Walk) -> object:  # noqa: ARG002
        for choice, stored in self.choices:
            if _same(value, stored):
                return choice
        raise Unfit(f"the stored {kind_of(value)} is none of {self.label}: was one removed?")


class Items(Codec):
    """``list``, ``set``, ``frozenset``, ``tuple[X, ...]``: an array of one codec."""

    kinds = frozenset({"array"})

    def __init__(self, label: str, build: Callable[[list[object]], object], item: Codec) -> None:
        self.label, self.build, self.item = label, build, item
        self.accepts = (set, frozenset) if build in {set, frozenset} else (list, tuple)
        self.plain = build is list and item.plain

    def fits(self, value: object) -> bool:
        return isinstance(value, self.accepts)

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        return each(value, itertools.repeat(self.item.encode), walk)

    def decode(self, value: Any, walk: Walk) -> object:
        self.expect_kind(value)
        found = each(value, itertools.repeat(self.item.decode), walk)
        try:
            return self.build(found)
        except TypeError:  # an item without a hash
            raise Unfit(f"an item does not fit into {self.label}: was the annotation changed?") from None


class Fixed(Codec):
    """``tuple[X, Y]``: an array with a codec for each place."""

    kinds = frozenset({"array"})

    def __init__(self, label: str, items: list[Codec]) -> None:
        self.label, self.items = label, items

    def fits(self, value: object) -> bool:
        return isinstance(value, list | tuple) and len(value) == len(self.items)

    def encode(self, value: Any, walk: Walk) -> object:
        if isinstance(value, list | tuple) and len(value) != len(self.items):
            raise Unfit(
                f"a {type(value).__name__} of {len(value)} does not fit {self.label}: pass {len(self.items)} items"
            )
        self.expect(value)
        return each(value, [item.encode for item in self.items], walk)

    def decode(self, value: Any, walk: Walk) -> object:
        self.expect_kind(value)
        if len(value) != len(self.items):
            raise Unfit(
                f"an array of {len(value)} is stored where {self.label} is expected: was the annotation changed?"
            )
        return tuple(each(value, [item.decode for item in self.items], walk))


class Table(Codec):
    """``dict[K, X]``, where K is written as a string."""

    kinds = frozenset({"object"})

    def __init__(self, label: str, key: Codec, item: Codec) -> None:
        self.label, self.key, self.item = label, key, item
        self.plain = key.plain and item.plain

    def fits(self, value: object) -> bool:
        return isinstance(value, Mapping)

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        return self.entries(value, self.key.encode, self.item.encode, walk)

    def decode(self, value: Any, walk: Walk) -> object:
        self.expect_kind(value)
        return self.entries(value, self.key.decode, self.item.decode, walk)

    def entries(self, value: Mapping[Any, Any], write_key: Verb, write_item: Verb, walk: Walk) -> dict[Any, object]:
        walk.enter(len(value))
        found: dict[Any, object] = {}
        key: object = None
        try:
            for key, item in value.items():
                if self.key.plain and not isinstance(key, str):
                    spelt = isinstance(key, date | time | timedelta | UUID | Decimal | enum.Enum)
                    remedy = f", or annotate the keys as {type(key).__name__}" if spelt else ""
                    raise Unfit(
                        f"a key is {type(key).__name__}, and {self.label} has strings as keys: convert it{remedy}"
                    )
                found[write_key(key, walk)] = write_item(item, walk)
        except Unfit as unfit:
            raise unfit.at(step(key))
        if len(found) < len(value):
            raise Unfit("two keys are the same string: one would be lost")
        walk.depth -= 1
        return found


def each(values: Collection[Any], verbs: Iterable[Verb], walk: Walk) -> list[object]:
    walk.enter(len(values))
    found: list[object] = []
    try:
        for value, verb in zip(values, verbs, strict=False):  # the verbs may be endless
            found.append(verb(value, walk))
    except Unfit as unfit:
        raise unfit.at(f"[{len(found)}]")
    walk.depth -= 1
    return found


def _literal(choices: list[object]) -> str:
    """Write it as in code, but no longer than a line: its values are no secret."""
    written = ", ".join(str(one) if isinstance(one, enum.Enum) else repr(one) for one in choices)
    return f"Literal[{written}]" if len(written) <= 100 else f"Literal[{written[:100]}…]"


def _same(value: object, choice: object) -> bool:
    # True == 1 and 1 == 1.0, but they are different values of a Literal.
    return isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool) and value == choice
