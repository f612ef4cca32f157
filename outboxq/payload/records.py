"""The codecs of classes with named fields: dataclasses, `TypedDict` and pydantic models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .strict import CodecError, Limits, convert_object, dump_model, jsonable, path_part, plain_key
from .values import ANY_TYPE, Codec


class RecordCodec(Codec):
    """A dataclass or a `TypedDict`: an object with a codec for each field."""

    json_types = frozenset({"object"})
    # Set once they are known: a class may contain itself.
    fields: Mapping[str, Codec]
    required: frozenset[str]

    def __init__(self, cls: Any, *, is_dict: bool) -> None:
        self.cls, self.label, self.is_dict = cls, cls.__name__, is_dict

    def fits(self, value: object) -> bool:
        # Exactly the class: a subclass would come back as its base, without its own fields.
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
        except Exception as error:  # noqa: BLE001 -- what the class's own checks raise; its text may quote the value
            raise CodecError(f"{self.label} refused the stored fields with {type(error).__name__}") from None

    def _checked(self, value: dict[str, Any]) -> dict[str, Any]:
        if unknown := value.keys() - self.fields.keys():
            raise CodecError(f"{self.label} has no such field: was it renamed?", path_part(min(unknown, key=str)))
        if missing := self.required - value.keys():
            raise CodecError(f"{self.label} needs this field, and it is missing", path_part(min(missing)))
        return value


class ModelCodec(Codec):
    """A pydantic model, written and read by itself, and read back at once to see whether it survives.

    Pydantic has many ways to lose a field: an alias for one direction only, `exclude=True`, a `SecretStr` that is dumped as asterisks.
    The second validation costs microseconds.
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
                reason = f"this field of {self.label} is another after model_dump and model_validate: pass it apart"
                raise CodecError(reason, path_part(name))
        if value.model_extra != again.model_extra:
            raise CodecError(f"the extra fields of {self.label} do not survive model_dump and model_validate")
        return stored

    def decode(self, value: Any, limits: Limits) -> object:
        return self._read(jsonable(value, limits))  # pydantic alone would take NaN

    def _read(self, stored: object) -> Any:
        try:
            return self.cls.model_validate_json(json.dumps(stored))
        except Exception as error:  # noqa: BLE001 -- a validator of the model may raise anything
            if not callable(errors := getattr(error, "errors", None)):
                raise CodecError(f"{self.label} refused the JSON with {type(error).__name__}") from None
            # The location and the code of the error only: the text may quote the value.
            first = errors(include_url=False, include_context=False, include_input=False)[0]
            path = "".join(path_part(part) or f"[{part}]" for part in first["loc"])
            raise CodecError(f"{self.label} refused the JSON: {first['type']}", path) from None


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are `==`, without the private attributes of models.

    A time is equal to itself in another zone, which Python denies for one hour a year (PEP 495).
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
