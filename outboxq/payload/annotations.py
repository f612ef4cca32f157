"""From an annotation to its codec, once per task.

What is not known here is taken as plain JSON: a value that is none is refused when it is passed. What could not be read
back for certain (a union of two types that are both strings) is refused before anything is stored.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections import abc
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from .records import Model, Record
from .strict import Unfit, Walk, is_model, jsonable, kind_of
from .typed import Typed
from .values import ANY_KIND, Choice, Codec, Enumeration, Fixed, Items, Plain, Table, Text

NULL = frozenset({"null"})


def codec_for(
    annotation: object,
    namespace: dict[str, Any],
    *,
    default: object = inspect.Parameter.empty,
    check_types: bool = True,
) -> Codec:
    """Return the codec of one parameter; ``Unfit`` when the annotation does not resolve or cannot be read back.

    With `check_types`, a value of a plain type must be what the annotation says; without, only None is compared.
    """
    return _Compiler(check_types=check_types).parameter(_resolve(annotation, namespace), default)


class _Compiler:
    def __init__(self, *, check_types: bool) -> None:
        self.check_types = check_types
        self.open: dict[object, Codec] = {}
        """Classes and aliases that are being compiled, for those within themselves; each with `check_types` as it was."""

    def parameter(self, annotation: object, default: object) -> Codec:
        codec = self.codec(annotation)
        none = self.plain("None", NULL, types.NoneType)
        return codec if default is not None or "null" in codec.kinds else either([codec, none])

    def plain(self, label: str, kinds: frozenset[str], *classes: type) -> Plain:
        return Typed(label, kinds, classes=classes) if self.check_types else Plain(label, kinds)

    def codec(self, annotation: Any) -> Codec:
        annotation = _bare(annotation)
        if (
            not isinstance(annotation, type) and (alias := getattr(annotation, "__value__", None)) is not None
        ):  # type X =
            known = (annotation, self.check_types)
            if known not in self.open:
                self.open[known] = Plain(str(annotation))  # within itself: plain JSON or refused
                self.open[known] = self.codec(alias)
            return self.open[known]
        origin, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
        if origin in _SCALARS:
            kinds, classes = _SCALARS[origin]
            return self.plain(_label(origin), kinds, *classes)
        if annotation is None or annotation is types.NoneType:
            return self.plain("None", NULL, types.NoneType)
        if origin is typing.Union or origin is types.UnionType:
            return either([self.codec(arg) for arg in args])
        if origin is typing.Literal:
            return _choice(args)
        if isinstance(origin, type):
            return self.of_class(origin, args, annotation)
        return Plain(_label(annotation))

    def of_class(self, cls: type, args: tuple[Any, ...], annotation: object) -> Codec:
        label = _label(annotation)
        if issubclass(cls, enum.Enum):
            return Enumeration(cls)
        if issubclass(cls, date | time | timedelta | UUID | Decimal):
            return Text(cls)
        if cls is tuple and annotation not in {tuple, typing.Tuple} and not (len(args) == 2 and args[1] is ...):  # noqa: UP006
            return Fixed(label, [self.codec(arg) for arg in args])
        if cls in _ITEMS:
            return Items(label, _ITEMS[cls], self.codec(args[0] if args else Any))
        if cls in _TABLES:
            key, item = (self.codec(arg) for arg in args or (str, Any))
            return Table(label, key, item) if key.kinds == {"string"} else self.plain(label, _OBJECT, dict)
        if is_model(cls):
            return Model(cls)
        if hasattr(cls, "__required_keys__") or dataclasses.is_dataclass(cls):
            return self.record(cls)
        # Not a type of ours: object and Any take everything, any other class only what is not None.
        return Plain(label, ANY_KIND if cls in {object, Any} else ANY_KIND - NULL)

    def record(self, cls: Any) -> Codec:
        known = (cls, self.check_types)
        if known in self.open:
            return self.open[known]
        is_dict = hasattr(cls, "__required_keys__")
        self.open[known] = record = Record(cls, is_dict=is_dict)
        hints = _hints(cls)
        if is_dict:
            # __required_keys__ is wrong under `from __future__ import annotations`, so what the hint says comes first.
            marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
            record.required = frozenset(
                name
                for name, mark in marks.items()
                if _marked(mark, "Required") or (name in cls.__required_keys__ and not _marked(mark, "NotRequired"))
            )
            record.fields = {name: self.codec(hint) for name, hint in hints.items()}
            return record
        fields = [field for field in dataclasses.fields(cls) if field.init]
        if {field.name for field in fields} != set(inspect.signature(cls).parameters):
            raise Unfit(f"the parameters of {cls.__name__}() are not its fields, so it cannot be rebuilt from them")
        missing = dataclasses.MISSING
        # A dataclass made these fields what they are: who wants them checked does it in __post_init__.
        outside, self.check_types = self.check_types, False
        record.fields = {field.name: self.parameter(hints[field.name], field.default) for field in fields}
        self.check_types = outside
        record.required = frozenset(f.name for f in fields if f.default is missing and f.default_factory is missing)
        return record


class Union(Codec):
    """Members of disjoint kinds, at most one of them plain, and that one last. Read by kind, never by trying."""

    def __init__(self, members: list[Codec]) -> None:
        self.members = members
        self.label = " | ".join(member.label for member in members)
        self.kinds = frozenset(kind for member in members for kind in member.kinds)
        self.plain = all(member.plain for member in members)

    def fits(self, value: object) -> bool:
        return any(member.fits(value) for member in self.members)

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        member = next(member for member in self.members if member.fits(value))
        stored = member.encode(value, walk)
        if kind_of(stored) not in member.kinds:  # the plain member took what fits no other
            raise Unfit(f"{type(value).__name__} does not fit {self.label}: pass a value of one of these types")
        return stored

    def decode(self, value: Any, walk: Walk) -> object:
        self.expect_kind(value)
        return next(member for member in self.members if kind_of(value) in member.kinds).decode(value, walk)


def either(members: list[Codec]) -> Codec:
    """One codec for all members; ``Unfit`` if two that are not plain JSON would be written as the same kind."""
    flat = [inner for member in members for inner in (member.members if isinstance(member, Union) else [member])]
    plain: list[Codec] = [member for member in flat if isinstance(member, Plain)]
    rest = [member for member in flat if not isinstance(member, Plain)]
    if _overlap(plain, rest):
        plain, rest = [m for m in flat if m.plain], [m for m in flat if not m.plain]
    if _overlap(plain, rest):
        label = " | ".join(member.label for member in flat)
        raise Unfit(f"the members of {label} look the same in JSON: give it one type, or one dataclass for all")
    if plain:
        rest.append(_merged(plain))
    return rest[0] if len(rest) == 1 else Union(rest)


def _merged(members: list[Codec]) -> Codec:
    label = " | ".join(member.label for member in members)
    kinds = frozenset(kind for member in members for kind in member.kinds)
    if any(type(member) is Plain for member in members):
        return Plain(label, kinds)
    typed = [member for member in members if isinstance(member, Typed)]
    others = [inner for member in typed for inner in member.members]
    others += [member for member in members if not isinstance(member, Typed)]
    return Typed(label, kinds, classes=(cls for member in typed for cls in member.classes), members=others)


def _overlap(plain: list[Codec], rest: list[Codec]) -> bool:
    groups = [frozenset(kind for member in plain for kind in member.kinds), *(member.kinds for member in rest)]
    return sum(map(len, groups)) > len(frozenset().union(*groups))


def _choice(values: tuple[Any, ...]) -> Codec:
    walk = Walk(10_000)
    return Choice(
        [(v, Enumeration(type(v)).encode(v, walk) if isinstance(v, enum.Enum) else jsonable(v, walk)) for v in values]
    )


def _resolve(annotation: object, namespace: dict[str, Any]) -> object:
    if annotation is inspect.Parameter.empty:
        return Any
    return _hints(types.SimpleNamespace(__annotations__={"it": annotation}), namespace)["it"]


def _hints(holder: Any, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(holder, namespace, include_extras=True)
    except Exception as error:  # the text of an annotation is code and may raise anything
        where = f" of {holder.__name__}" if isinstance(holder, type) else ""
        reason = f"the annotation{where} does not resolve ({type(error).__name__}: {error})"
        raise Unfit(f"{reason}: import its names at module level, outside TYPE_CHECKING") from error


def _bare(annotation: Any) -> Any:
    """An annotation without the wrappers that change nothing in the value."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated or _marked(origin, "Required", "NotRequired", "ReadOnly"):
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        else:
            return annotation


def _marked(origin: object, *names: str) -> bool:
    # By name: typing_extensions has its own on the Pythons that lack them.
    return getattr(origin, "_name", None) in names


def _label(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


_OBJECT = frozenset({"object"})
_SCALARS: dict[object, tuple[frozenset[str], tuple[type, ...]]] = {
    bool: (frozenset({"boolean"}), (bool,)),
    int: (frozenset({"number", "boolean"}), (int,)),
    float: (frozenset({"number", "boolean"}), (float, int)),
    str: (frozenset({"string"}), (str,)),
}
"""The kinds of JSON that are read for them, and the classes that are taken for them."""
_ITEMS: dict[type, type] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
_TABLES = {dict, abc.Mapping, abc.MutableMapping}
