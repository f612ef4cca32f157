"""Type checks of arguments: a value of a plain type must match its annotation, or it is refused at enqueue. Checks can be turned off."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, Optional, Protocol, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outboxq import Outbox
from outboxq.contrib.flask import Outboxq
from outboxq.errors import ConfigurationError, PayloadError
from outboxq.payload.parameters import Parameters

SECRET = "canary-7f3a"
T = TypeVar("T")
CustomerId = NewType("CustomerId", int)


class Size(enum.IntEnum):
    LARGE = 2


class Colour(enum.StrEnum):
    RED = "red"


class Shout(str):
    __slots__ = ()


class Metres(float):
    __slots__ = ()


class Line(TypedDict):
    sku: str
    count: int
    notes: NotRequired[list[str]]


class HasName(Protocol):
    name: str


class Box(Generic[T]):
    pass


@dataclasses.dataclass
class Order:
    id: int
    line: Line


class Person(pydantic.BaseModel):
    age: int


def task(annotation: Any, *, check_types: bool = True, **default: Any) -> Parameters:
    def function(it: Any) -> None: ...

    function.__annotations__ = {"it": annotation}
    function.__defaults__ = (default["default"],) if default else None
    return Parameters(function, name="shop.hello", check_types=check_types)


def stored(annotation: Any, value: object, **options: Any) -> object:
    parameters = task(annotation, **options)
    return parameters.load(parameters.dump((value,), {}))["it"]


FITTING: list[tuple[Any, object]] = [
    (int, -(2**70)),
    (int, Size.LARGE),
    (float, 1.5),
    (float, 7),
    (float, Metres(2.5)),
    (bool, True),
    (str, "x"),
    (str, Colour.RED),
    (str, Shout("x")),
    (None, None),
    (int | str, "x"),
    (Optional[int], None),  # noqa: UP045
    (list, [1, None, "x"]),
    (list[int], []),
    (list[int], (1, 2)),
    (list[int] | list[str], ["a"]),
    (list[int | None], [1, None]),
    (Sequence[str], ["a"]),
    (tuple[int, str], (1, "a")),
    (tuple[float, ...], (1, 2.5)),
    (dict, {"a": [1]}),
    (dict[str, int], {"a": 1}),
    (Mapping[str, int | None], {"a": None}),
    (dict[str, dict[str, list[bool]]], {"a": {"b": [True]}}),
    (Literal["a", 1], 1),
    (Literal["a"] | int, 5),
    (Literal["a"] | str, "b"),
    (Line, {"sku": "a", "count": 1, "notes": ["b"]}),
    (list[Line], [{"sku": "a", "count": 1}]),
    (Annotated[int, "primary key"], 7),
    (CustomerId, 7),
    ("int", 7),
    ("list[int] | None", [7]),
]


@pytest.mark.parametrize(("annotation", "value"), FITTING)
def test_a_value_of_the_annotated_type_is_accepted(annotation: Any, value: object) -> None:
    found = stored(annotation, value)
    assert found == (list(value) if isinstance(value, tuple) and annotation == list[int] else value)


MISFITS: list[tuple[Any, object, str]] = [
    (int, SECRET, "it: str does not fit int"),
    (int, 1.0, "it: float does not fit int"),
    (int, True, "it: bool does not fit int"),
    (int, [1], "it: list does not fit int"),
    (float, True, "it: bool does not fit float"),
    (float, "1.5", "it: str does not fit float"),
    (str, 7, "it: int does not fit str"),
    (str, [SECRET], "it: list does not fit str"),
    (bool, 1, "it: int does not fit bool"),
    (None, 7, "it: int does not fit None"),
    (int | str, 1.5, "it: float does not fit int | str"),
    (int | None, SECRET, "it: str does not fit int | None"),
    (list[int], [1, SECRET], "it[1]: str does not fit int"),
    (list[int] | list[str], [1, "a"], "it: list does not fit list[int] | list[str]"),
    (list[int] | None, ["a"], "it[0]: str does not fit int"),
    (tuple[int, str], (SECRET, 1), "it[0]: str does not fit int"),
    (tuple[int, ...], [1, None], "it[1]: None does not fit int"),
    (set[int], {SECRET}, "it[0]: str does not fit int"),
    (dict[str, int], {"a": SECRET}, "it.a: str does not fit int"),
    (dict[str, list[bool]], {"a": [True, 0]}, "it.a[1]: int does not fit bool"),
    (dict[int, str], [SECRET], "it: list does not fit dict[int, str]"),
    (Literal["a"] | int, 1.5, "it: float does not fit"),
    (Line, {"sku": 7, "count": 1}, "it.sku: int does not fit str"),
    (list[Line], [{"sku": "a", "count": 1, "notes": [SECRET, 5]}], "it[0].notes[1]: int does not fit str"),
    (CustomerId, SECRET, "it: str does not fit int"),
    (Annotated[int, "primary key"], SECRET, "it: str does not fit int"),
    ("int", SECRET, "it: str does not fit int"),
]


@pytest.mark.parametrize(("annotation", "value", "reason"), MISFITS)
def test_a_value_of_another_type_is_refused_without_showing_it(annotation: Any, value: object, reason: str) -> None:
    with pytest.raises(PayloadError) as refused:
        task(annotation).dump((value,), {})
    said = str(refused.value)
    assert said.startswith(f"shop.hello: argument {reason}")
    assert SECRET not in said


LAX = [case for case in MISFITS if case[1] != (SECRET, 1) and "None does not fit" not in case[2]]


@pytest.mark.parametrize(("annotation", "value"), [(a, v) for a, v, _ in LAX if not isinstance(v, tuple | set)])
def test_a_task_without_type_checks_accepts_any_json(annotation: Any, value: object) -> None:
    assert stored(annotation, value, check_types=False) == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, [1, "a", None]),
        (object, 1.5),
        (T, SECRET),
        (list[T], [1, "a"]),  # type: ignore[valid-type]
        (int | T, SECRET),
        (HasName, {"name": SECRET}),
        (Box[int], 7),
        (list[Any], [1, "a"]),
        (dict[str, object], {"a": 1, "b": SECRET}),
    ],
)
def test_types_that_annotations_leave_open_are_not_checked(annotation: Any, value: object) -> None:
    assert stored(annotation, value) == value


def test_a_parameter_without_an_annotation_accepts_any_json() -> None:
    assert Parameters(lambda it: None, name="t").dump(([1, "a"],), {}) == '{"it":[1,"a"]}'


def test_defaults_are_not_checked_and_none_as_a_default_may_be_passed() -> None:
    assert task(int, default="seven").dump((), {}) == "{}"
    assert stored(int, None, default=None) is None
    with pytest.raises(PayloadError, match="str does not fit int"):
        task(int, default="seven").dump(("seven",), {})


def test_fields_of_typed_dicts_are_checked_but_not_those_of_dataclasses() -> None:
    order = Order(id=SECRET, line={"sku": 7, "count": "1"})  # type: ignore[arg-type, typeddict-item]
    assert stored(Order, order) == order
    with pytest.raises(PayloadError, match=r"it\[1\]\.sku: int does not fit str"):
        task(tuple[Order, Line]).dump(((order, order.line),), {})  # the same TypedDict, directly and in another type
    with pytest.raises(PayloadError, match="it.age: Person refused the JSON: int_parsing"):
        task(Person).dump((Person.model_construct(age=SECRET),), {})  # type: ignore[arg-type]


def test_the_error_for_a_value_that_is_not_json_suggests_a_fix() -> None:
    with pytest.raises(PayloadError, match="UUID is not JSON: annotate the parameter as UUID, or pass a string"):
        task(int).dump((UUID(int=1),), {})
    with pytest.raises(PayloadError, match="float .*|NaN is not JSON"):
        task(float).dump((float("nan"),), {})


def test_stored_arguments_are_read_whatever_their_type() -> None:
    """Earlier releases, `emit` and SQL write arguments that were not checked against an annotation."""
    assert task(int).load('{"it":"seven"}') == {"it": "seven"}
    assert task(list[int]).load('{"it":[1,"a"]}') == {"it": [1, "a"]}


def test_the_error_names_the_argument_and_check_types() -> None:
    outbox = Outbox("sqlite:///nowhere.db")

    @outbox.task(name="shop.hello")
    def hello(n: int, *, tags: list[str]) -> None: ...

    with pytest.raises(PayloadError) as refused:
        hello.using(outbox).enqueue("7", tags=[])  # type: ignore[arg-type]
    assert str(refused.value) == (
        "shop.hello: argument n: str does not fit int: pass a value of that type, or declare the task with check_types=False"
    )
    with pytest.raises(PayloadError, match=r"^shop.hello: argument tags\[1\]: int does not fit str: "):
        hello.using(outbox).enqueue_many([{"n": 1, "tags": ["a"]}, {"n": 2, "tags": ["a", 5]}])

    @outbox.task(name="shop.lax", check_types=False)
    def lax(n: int) -> None: ...

    assert lax.parameters.dump(("7",), {}) == '{"n":"7"}'
    with pytest.raises(PayloadError, match="None does not fit int: has the row been flushed"):
        lax.using(outbox).enqueue(None)  # type: ignore[arg-type]


def test_a_task_of_flasks_outbox_is_checked_too() -> None:
    """Tasks of Django's own TASKS are not checked, as `tests/integrations/django_tasks` shows."""

    def hello(n: int) -> None: ...

    declared = Outboxq().task(name="shop.hello")(hello)
    with pytest.raises(PayloadError, match="str does not fit int"):
        declared.parameters.dump(("7",), {})
    assert Outboxq().task(name="shop.hello", check_types=False)(hello).parameters.dump(("7",), {}) == '{"n":"7"}'


# --- properties -----------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=5)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = {int: st.integers(), str: WORDS, bool: st.booleans(), float: NUMBERS, None: st.none()}
ANNOTATIONS = st.recursive(
    st.sampled_from([*SCALARS, Any, Line, Literal["a", 1]]),
    lambda inner: st.one_of(
        inner.map(lambda one: list[one]),
        inner.map(lambda one: dict[str, one]),
        st.tuples(inner, inner).map(lambda pair: typing.Union[pair]),  # noqa: UP007
    ),
    max_leaves=4,
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | NUMBERS | st.sampled_from(["a", "sku"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["sku", "count"]), inner, max_size=2),
    max_leaves=5,
)
MANY = settings(max_examples=400, derandomize=True, deadline=None)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values that a type checker accepts for the annotation, written without looking at the code."""
    if annotation is types.NoneType:
        annotation = None
    if annotation in SCALARS:
        return SCALARS[annotation]
    if annotation is Any:
        return JSON_VALUES
    if annotation is Line:
        return st.fixed_dictionaries({"sku": WORDS, "count": st.integers()}, optional={"notes": st.lists(WORDS)})
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(values_of(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(WORDS, values_of(args[1]), max_size=3)
    return st.one_of([values_of(one) for one in args])


def is_of(annotation: Any, value: Any) -> bool:
    """Return whether the annotation accepts a value, as PEP 484 does except for bool."""
    kind, origin, args = type(value), typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if annotation is Line:
        return (
            kind is dict
            and value.keys() == {"sku", "count"}
            and is_of(str, value["sku"])
            and is_of(int, value["count"])
        )
    if origin is Literal:
        return any(kind is type(one) and value == one for one in args)
    if origin is list:
        return kind is list and all(is_of(args[0], one) for one in value)
    if origin is dict:
        return kind is dict and all(is_of(args[1], one) for one in value.values())
    if args:
        return any(is_of(one, value) for one in args)
    return kind in {None: (types.NoneType,), float: (float, int)}.get(annotation, (annotation,))


def compiled(annotation: Any) -> Parameters:
    """Return the compiled parameters. Unions whose members look the same in JSON are left out."""
    try:
        (parameters := task(annotation))._compile()
    except ConfigurationError:
        assume(False)
    return parameters


@MANY
@given(st.data())
def test_any_value_of_an_annotation_is_equal_after_a_round_trip(data: Any) -> None:
    annotation = data.draw(ANNOTATIONS)
    parameters = compiled(annotation)
    value = data.draw(values_of(annotation))
    assert repr(parameters.load(parameters.dump((value,), {}))["it"]) == repr(value)


@MANY
@given(ANNOTATIONS, JSON_VALUES)
def test_exactly_the_values_of_an_annotation_are_accepted(annotation: Any, value: object) -> None:
    parameters = compiled(annotation)
    try:
        parameters.dump((value,), {})
    except PayloadError:
        passes = False
    else:
        passes = True
    assert passes == is_of(annotation, value)
