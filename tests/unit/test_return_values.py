"""Conversion of results to JSON and back, according to the return annotation."""

from __future__ import annotations

import enum
import gc
import inspect
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from outboxq.errors import ConfigurationError, PayloadError
from outboxq.payload import parameters
from outboxq.payload.parameters import ReturnValue, dump_result, parsed_result


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Corner(enum.Enum):
    HERE = (0, 0)
    THERE = (1, 1)


class Place(TypedDict):
    name: str
    at: date


@dataclass
class Line:
    price: Decimal
    colours: set[Colour] = field(default_factory=set)


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    paid_at: datetime | None = None


class Model(BaseModel):
    order_id: int = Field(alias="orderId")
    due: timedelta


ID = UUID("01a20784-161c-73b4-8b77-8ba7011f4aff")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def returning(annotation: Any):
    def function(): ...

    function.__annotations__ = {"return": annotation}
    return ReturnValue(function, name="work")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 3),
        (str | None, "x"),
        (str | None, None),
        (datetime, NOON),
        (date, date(2030, 1, 1)),
        (timedelta, timedelta(seconds=1.5)),
        (UUID, ID),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Corner, Corner.THERE),
        (Literal["a", 1], "a"),
        (list[datetime], [NOON]),
        (Sequence[UUID], [ID]),
        (tuple[int, UUID], (1, ID)),
        (set[Colour], {Colour.RED, Colour.BLUE}),
        (dict[str, Decimal], {"a": Decimal(1)}),
        (Place, {"name": "here", "at": date(2030, 1, 1)}),
        (Line, Line(Decimal("2.5"), {Colour.RED})),
        (Order, Order(ID, [Line(Decimal(1))], NOON)),
        (list[Order], [Order(ID, [])]),
        (Model, Model(orderId=1, due=timedelta(seconds=3))),
        (Any, {"a": [1, None]}),
        ("Order", Order(ID, [])),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_value_is_equal_after_a_round_trip(annotation, value):
    assert returning(annotation).load(dump_result(value, name="work")) == value


def test_a_result_without_an_annotation_is_plain_json():
    def function(): ...

    assert ReturnValue(function, name="work").load('{"at":"2030-01-01"}') == {"at": "2030-01-01"}


def test_a_missing_result_is_none_whatever_the_annotation():
    """A worker stores the return value without comparing it with the annotation."""
    assert returning(int).load(None) is None


def test_the_error_for_a_mismatch_does_not_contain_the_value():
    with pytest.raises(
        PayloadError,
        match=r"^work: the result.lines\[0\].price: this string is stored where Decimal is expected",
    ) as raised:
        returning(Order).load(json.dumps({"id": str(ID), "lines": [{"price": "secret"}]}))
    assert "secret" not in str(raised.value)
    assert raised.value.__context__.__context__ is None, "an error tracker follows the context"


@pytest.mark.parametrize("text", ["{", '{"a":1,"a":2}', "NaN" * 2, "[" * 100_000])
def test_a_result_that_is_not_strict_json_is_an_error(text):
    with pytest.raises(PayloadError, match="work: the stored result is not strict JSON"):
        returning(int).load(text)
    with pytest.raises(PayloadError, match="work: the stored result is not strict JSON") as raised:
        parsed_result(text, name="work")
    assert raised.value.__context__ is None, "an error tracker follows the context"


def test_the_error_for_an_unresolved_annotation_names_the_stored_result():
    with pytest.raises(
        ConfigurationError, match=r"work: the return annotation: .*Nowhere.*outbox.store.get\(task_id\).result"
    ):
        returning("Nowhere").load("1")


def test_the_codec_of_a_function_is_compiled_once(monkeypatch):
    compiled = []
    compile_one = parameters.codec_for
    monkeypatch.setattr(parameters, "codec_for", lambda *a, **k: compiled.append(a) or compile_one(*a, **k))

    def rows() -> list[date]: ...

    for name in ("first", "second"):
        assert ReturnValue(rows, name=name).load('["2030-01-01"]') == [date(2030, 1, 1)]
    assert len(compiled) == 1


def test_closures_of_one_def_share_a_codec_if_their_annotation_is_the_same(monkeypatch):
    compiled = []
    compile_one = parameters.codec_for
    monkeypatch.setattr(parameters, "codec_for", lambda *a, **k: compiled.append(a) or compile_one(*a, **k))

    def closure(kind):
        def rows(): ...

        rows.__annotations__["return"] = kind
        rows.__signature__ = inspect.Signature(return_annotation=kind)
        return rows

    read = [
        ReturnValue(closure(kind), name="rows").load('["2030-01-01"]') for kind in (list[date], list[date], list[str])
    ]
    assert read == [[date(2030, 1, 1)], [date(2030, 1, 1)], ["2030-01-01"]]
    assert len(compiled) == 2


def test_a_codec_does_not_keep_its_function_alive():
    def rows() -> list[Line]: ...

    ReturnValue(rows, name="rows").check()
    kept = weakref.ref(rows)
    del rows
    gc.collect()
    assert kept() is None
