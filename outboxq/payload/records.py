"""The codecs of classes with named fields: dataclasses, ``TypedDict`` and pydantic models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .strict import Unfit, Walk, jsonable, step
from .values import ANY_KIND, Codec, Verb


class Record(Codec):
    """A dataclass or a ``TypedDict``: an object with a codec for each name of ``__init__``."""

    kinds = frozenset({"object"})
    # Set once they are known: a class may contain itself.
    fields: Mapping[str, Codec]
    required: frozenset[str]

    def __init__(self, cls: Any, *, is_dict: bool) -> None:
        self.cls, self.label, self.is_dict = cls, cls.__name__, is_dict

    def fits(self, value: object) -> bool:
        # Exactly the class: a subclass would come back as its base, without its own fields.
        return isinstance(value, dict) if self.is_dict else type(value) is self.cls

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        if not self.is_dict:
            value = {name: getattr(value, name) for name in self.fields}
        return self.named(value, {name: field.encode for name, field in self.fields.items()}, walk)

    def decode(self, value: Any, walk: Walk) -> object:
        self.expect_kind(value)
        found = self.named(value, {name: field.decode for name, field in self.fields.items()}, walk)
        try:
            return found if self.is_dict else self.cls(**found)
        except Exception as error:  # noqa: BLE001 -- what the class's own checks raise; its text may quote the value
            raise Unfit(f"{self.label} refused the stored fields with {type(error).__name__}") from None

    def named(self, value: dict[str, Any], verbs: Mapping[str, Verb], walk: Walk) -> dict[str, object]:
        if unknown := value.keys() - verbs.keys():
            raise Unfit(f"{self.label} has no such field: was it renamed?").at(step(min(unknown, key=str)))
        if missing := self.required - value.keys():
            raise Unfit(f"{self.label} needs this field, and it is missing").at(step(min(missing)))
        walk.enter(len(value))
        found: dict[str, object] = {}
        name = ""
        try:
            for name, item in value.items():
                found[name] = verbs[name](item, walk)
        except Unfit as unfit:
            raise unfit.at(step(name))
        walk.depth -= 1
        return found


class Model(Codec):
    """A pydantic model, written and read by itself, and read back at once to see whether it survives.

    Pydantic has many ways to lose a field: an alias for one direction only, ``exclude=True``, a ``SecretStr`` that is
    dumped as asterisks. A second validation costs microseconds; a wrong argument costs a customer.
    """

    def __init__(self, cls: Any) -> None:
        self.cls, self.label = cls, cls.__name__
        self.kinds = ANY_KIND if getattr(cls, "__pydantic_root_model__", False) else frozenset({"object"})

    def fits(self, value: object) -> bool:
        return type(value) is self.cls

    def encode(self, value: Any, walk: Walk) -> object:
        self.expect(value)
        try:
            # warnings=False: they quote values, and what they warn of is found below.
            dumped = value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
        except Exception as error:  # noqa: BLE001 -- a serializer of the model may raise anything
            raise Unfit(f"{self.label} cannot be dumped: {type(error).__name__}") from None
        stored = jsonable(dumped, walk)
        again = self.read(stored)
        for name in self.cls.model_fields:
            if not _equal(getattr(value, name), getattr(again, name)):
                reason = f"this field of {self.label} is another after model_dump and model_validate: pass it apart"
                raise Unfit(reason).at(step(name))
        if value.model_extra != again.model_extra:
            raise Unfit(f"the extra fields of {self.label} do not survive model_dump and model_validate")
        return stored

    def decode(self, value: Any, walk: Walk) -> object:
        return self.read(jsonable(value, walk))  # pydantic alone would take NaN

    def read(self, stored: object) -> Any:
        try:
            return self.cls.model_validate_json(json.dumps(stored))
        except Exception as error:  # noqa: BLE001 -- a validator of the model may raise anything
            unfit = Unfit(f"{self.label} refused the JSON with {type(error).__name__}")
            if callable(errors := getattr(error, "errors", None)):
                # The location and the code of the error only: the text may quote the value.
                first = errors(include_url=False, include_context=False, include_input=False)[0]
                unfit.reason = f"{self.label} refused the JSON: {first['type']}"
                unfit.at("".join(step(part) or f"[{part}]" for part in first["loc"]))
        raise unfit


def _equal(one: Any, other: Any) -> bool:
    """``==`` without the private attributes of models; and a time is equal to itself in another zone, which Python
    denies for one hour a year (PEP 495).
    """
    if hasattr(one, "isoformat") and hasattr(other, "isoformat"):
        return bool(one.isoformat() == other.isoformat())
    if type(one) is not type(other):
        return bool(one == other)
    if hasattr(one, "model_fields_set"):
        return all(_equal(getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)
