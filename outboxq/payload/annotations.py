"""The codec for each annotation, compiled once per task.

An unknown annotation is treated as plain JSON, so a value that is not JSON is refused when it is passed. An annotation
whose values cannot be read back reliably, such as a union of two types that are both stored as strings, is refused
before anything is stored.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import types
import typing
from collections import abc
from collections.abc import Mapping
from typing import Any

from .values import (
    ANY_TYPE,
    ArrayCodec,
    Codec,
    CodecError,
    EnumCodec,
    Limits,
    LiteralCodec,
    MappingCodec,
    PlainCodec,
    TextCodec,
    Textual,
    convert_object,
    dump_model,
    is_model,
    json_type,
    jsonable,
    path_part,
    plain_key,
)

_NULL, _OBJECT = frozenset({"null"}), frozenset({"object"})


def codec_for(parameter: inspect.Parameter, namespace: dict[str, Any], *, check_types: bool) -> Codec:
    """Return the codec for one parameter.

    With `check_types`, a value of a plain type must match the annotation; without it, only None is checked. Raises
    CodecError if the annotation does not resolve or its values cannot be read back.
    """
    annotation: object = Any
    if parameter.annotation is not parameter.empty:
        annotated = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
        annotation = _hints(annotated, namespace)["it"]
    return _Compiler(check_types, {}).parameter(annotation, parameter.default)


@dataclasses.dataclass(eq=False)
class _Compiler:
    check_types: bool
    known: dict[object, Codec]
    """The classes and aliases that are being compiled, each with its `check_types`, to detect those that contain
    themselves.
    """

    def parameter(self, annotation: object, default: object) -> Codec:
        codec = self.codec(annotation)
        return codec if default is not None or "null" in codec.json_types else either([codec, self.codec(None)])

    def plain(self, label: str, json_types: frozenset[str], *classes: type) -> PlainCodec:
        return PlainCodec(label, json_types, classes=classes if self.check_types else ())

    def codec(self, annotation: Any) -> Codec:
        annotation = _bare(annotation)
        alias = None if isinstance(annotation, type) else getattr(annotation, "__value__", None)
        if alias is not None:  # type X = …
            name = (annotation, self.check_types)
            if name not in self.known:
                self.known[name] = PlainCodec(str(annotation))  # inside itself, the alias counts as plain JSON
                self.known[name] = self.codec(alias)
            return self.known[name]
        origin, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
        if origin in _SCALARS:
            json_types, classes = _SCALARS[origin]
            return self.plain(_label(origin), json_types, *classes)
        if annotation is None or annotation is types.NoneType:
            return self.plain("None", _NULL, types.NoneType)
        if origin is typing.Union or origin is types.UnionType:
            return either([self.codec(arg) for arg in args])
        if origin is typing.Literal:
            return LiteralCodec(args)
        if isinstance(origin, type):
            return self.of_class(origin, args, annotation)
        return PlainCodec(_label(annotation))

    def of_class(self, cls: type, args: tuple[Any, ...], annotation: object) -> Codec:
        label = _label(annotation)
        if issubclass(cls, enum.Enum):
            return EnumCodec(cls)
        if issubclass(cls, Textual):
            return TextCodec(cls)
        if cls is tuple and annotation not in {tuple, typing.Tuple} and not (len(args) == 2 and args[1] is ...):  # noqa: UP006
            return ArrayCodec(label, tuple, [self.codec(arg) for arg in args], fixed=True)
        if cls in _ARRAYS:
            return ArrayCodec(label, _ARRAYS[cls], [self.codec(args[0] if args else Any)])
        if cls in _MAPPINGS:
            key, item = (self.codec(arg) for arg in args or (str, Any))
            return MappingCodec(label, key, item) if key.json_types == {"string"} else self.plain(label, _OBJECT, dict)
        if is_model(cls):
            return ModelCodec(cls)
        if hasattr(cls, "__required_keys__") or dataclasses.is_dataclass(cls):
            return self.known.get((cls, self.check_types)) or self.record(cls)
        # The class is unknown: object and Any accept every value, and any other class accepts every value except None.
        return PlainCodec(label, ANY_TYPE if cls in {object, Any} else ANY_TYPE - _NULL)

    def record(self, cls: Any) -> Codec:
        is_dict = hasattr(cls, "__required_keys__")
        record = self.known[cls, self.check_types] = RecordCodec(cls, is_dict=is_dict)
        hints = _hints(cls)
        if is_dict:
            # With `from __future__ import annotations`, __required_keys__ is wrong, so the hint takes precedence.
            record.required = frozenset(
                name
                for name, hint in hints.items()
                if _marked(mark := typing.get_origin(hint), "Required")
                or (name in cls.__required_keys__ and not _marked(mark, "NotRequired"))
            )
            record.fields = {name: self.codec(hint) for name, hint in hints.items()}
            return record
        fields = [field for field in dataclasses.fields(cls) if field.init]
        if {field.name for field in fields} != set(inspect.signature(cls).parameters):
            raise CodecError(
                f"the parameters of {cls.__name__}() differ from its fields, so it cannot be rebuilt from its fields"
            )
        # Plain types are not checked here, because a dataclass can check its own fields in __post_init__.
        inside = _Compiler(False, self.known)
        record.fields = {field.name: inside.parameter(hints[field.name], field.default) for field in fields}
        missing = dataclasses.MISSING
        record.required = frozenset(f.name for f in fields if f.default is missing and f.default_factory is missing)
        return record


class UnionCodec(Codec):
    """A union of members with disjoint JSON types. At most one member is plain, and it comes last. The JSON type of a
    value determines the member that reads it. Members are never tried one after another.
    """

    def __init__(self, members: list[Codec]) -> None:
        self.members = members
        self.label = " | ".join(member.label for member in members)
        self.json_types = _types(members)
        self.plain = all(member.plain for member in members)

    def fits(self, value: object) -> bool:
        return any(member.fits(value) for member in self.members)

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        member = next(member for member in self.members if member.fits(value))
        stored = member.encode(value, limits)
        if (
            json_type(stored) not in member.json_types
        ):  # the plain member has taken a value that does not fit any other member
            raise CodecError(f"{type(value).__name__} does not fit {self.label}: pass a value of one of these types")
        return stored

    def decode(self, value: Any, limits: Limits) -> object:
        self.expect_json(value)
        return next(member for member in self.members if json_type(value) in member.json_types).decode(value, limits)


def either(members: list[Codec]) -> Codec:
    """Return one codec for all members. Raises CodecError if two members that are not plain would be written as the
    same JSON type.
    """
    flat = [inner for member in members for inner in (member.members if isinstance(member, UnionCodec) else [member])]
    for is_plain in (lambda member: isinstance(member, PlainCodec), lambda member: member.plain):
        plain = [member for member in flat if is_plain(member)]
        rest = [member for member in flat if not is_plain(member)]
        if sum(len(member.json_types) for member in rest) + len(_types(plain)) == len(_types(flat)):
            rest += [_merged(plain)] if plain else []
            return rest[0] if len(rest) == 1 else UnionCodec(rest)
    label = " | ".join(member.label for member in flat)
    raise CodecError(f"JSON cannot tell the members of {label} apart: use one type, or one dataclass for all of them")


def _merged(members: list[Codec]) -> PlainCodec:
    simple = [member for member in members if isinstance(member, PlainCodec)]
    others = [member for member in members if not isinstance(member, PlainCodec)]
    label, json_types = " | ".join(member.label for member in members), _types(members)
    if not all(member.compares for member in simple):
        return PlainCodec(label, json_types)
    inner = [one for member in simple for one in member.members]
    return PlainCodec(
        label, json_types, classes=[cls for member in simple for cls in member.classes], members=[*inner, *others]
    )


def _types(members: list[Codec]) -> frozenset[str]:
    return frozenset(kind for member in members for kind in member.json_types)


def _hints(annotated: Any, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated, namespace, include_extras=True)
    except Exception as error:  # an annotation is code, and may raise any exception
        where = f" of {annotated.__name__}" if isinstance(annotated, type) else ""
        reason = f"the annotation{where} cannot be resolved ({type(error).__name__}: {error})"
        raise CodecError(f"{reason}: import its names at module level, outside TYPE_CHECKING") from error


def _bare(annotation: Any) -> Any:
    """Return an annotation without the wrappers that do not change the value."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated or _marked(origin, "Required", "NotRequired", "ReadOnly"):
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        else:
            return annotation


def _marked(origin: object, *names: str) -> bool:
    # They are compared by name, because typing_extensions has its own versions on older Pythons.
    return getattr(origin, "_name", None) in names


def _label(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


_SCALARS: dict[object, tuple[frozenset[str], tuple[type, ...]]] = {
    bool: (frozenset({"boolean"}), (bool,)),
    int: (frozenset({"number", "boolean"}), (int,)),
    float: (frozenset({"number", "boolean"}), (float, int)),
    str: (frozenset({"string"}), (str,)),
}
"""The JSON types that are read, and the classes that are accepted, for each plain type."""
_ARRAYS: dict[type, type] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
_MAPPINGS = {dict, abc.Mapping, abc.MutableMapping}


class RecordCodec(Codec):
    """A dataclass or a `TypedDict`: an object with a codec for each field."""

    json_types = frozenset({"object"})
    # `fields` and `required` are set after `__init__`, because a class may contain itself.
    fields: Mapping[str, Codec]
    required: frozenset[str]

    def __init__(self, cls: Any, *, is_dict: bool) -> None:
        self.cls, self.label, self.is_dict = cls, cls.__name__, is_dict

    def fits(self, value: object) -> bool:
        # It must be exactly this class: a subclass would be read back as its base class, without its own fields.
        return isinstance(value, dict) if self.is_dict else type(value) is self.cls

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        given = self._checked(value if self.is_dict else {name: getattr(value, name) for name in self.fields})
        return convert_object(given, plain_key, [self.fields[name].encode for name in given], limits)

    def decode(self, value: Any, limits: Limits) -> object:
        self.expect_json(value)
        converters = [self.fields[name].decode for name in self._checked(value)]
        found = convert_object(value, plain_key, converters, limits)
        try:
            return found if self.is_dict else self.cls(**found)
        except Exception as error:  # noqa: BLE001 -- the class's own checks may raise anything, and the message may quote the value
            raise CodecError(f"{self.label} refused the stored fields with {type(error).__name__}") from None

    def _checked(self, value: dict[str, Any]) -> dict[str, Any]:
        if unknown := value.keys() - self.fields.keys():
            raise CodecError(f"{self.label} has no such field: was it renamed?", path_part(min(unknown, key=str)))
        if missing := self.required - value.keys():
            raise CodecError(f"{self.label} requires this field, which is missing", path_part(min(missing)))
        return value


class ModelCodec(Codec):
    """A pydantic model, written and read by pydantic itself. Each value is read back immediately, to check that nothing
    is lost.

    Pydantic can lose a field in many ways, for example through an alias for only one direction, `exclude=True`, or a
    `SecretStr` that is dumped as asterisks. The second validation takes only microseconds.
    """

    def __init__(self, cls: Any) -> None:
        self.cls, self.label = cls, cls.__name__
        self.json_types = ANY_TYPE if getattr(cls, "__pydantic_root_model__", False) else frozenset({"object"})

    def fits(self, value: object) -> bool:
        return type(value) is self.cls

    def encode(self, value: Any, limits: Limits) -> object:
        self.expect(value)
        stored = jsonable(dump_model(value, by_alias=True, round_trip=True), limits)
        again = self._read(stored)
        for name in self.cls.model_fields:
            if not _equal(getattr(value, name), getattr(again, name)):
                reason = (
                    f"this field of {self.label} is different after model_dump and model_validate: pass it separately"
                )
                raise CodecError(reason, path_part(name))
        if value.model_extra != again.model_extra:
            raise CodecError(f"the extra fields of {self.label} do not survive model_dump and model_validate")
        return stored

    def decode(self, value: Any, limits: Limits) -> object:
        return self._read(jsonable(value, limits))  # pydantic by itself would accept NaN

    def _read(self, stored: object) -> Any:
        try:
            return self.cls.model_validate_json(json.dumps(stored))
        except Exception as error:  # noqa: BLE001 -- the model's validators may raise any exception
            if not callable(errors := getattr(error, "errors", None)):
                raise CodecError(f"{self.label} refused the JSON with {type(error).__name__}") from None
            # Use only the error's location and code, because its message may quote the value.
            first = errors(include_url=False, include_context=False, include_input=False)[0]
            path = "".join(path_part(part) or f"[{part}]" for part in first["loc"])
            raise CodecError(f"{self.label} refused the JSON: {first['type']}", path) from None


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, ignoring the private attributes of models.

    A time is equal to the same time in another zone, even in the one hour a year in which Python treats the two as
    unequal (PEP 495).
    """
    if hasattr(one, "isoformat") and hasattr(other, "isoformat"):
        return bool(one.isoformat() == other.isoformat())
    if type(one) is type(other):
        if hasattr(one, "model_fields_set"):
            return all(_equal(getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(_equal, one, other))
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)
