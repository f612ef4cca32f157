"""Arguments and results: values are equal after a round trip. Other values are refused with the argument's name and path."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outboxq.errors import ConfigurationError, InvalidCall, OutboxqError, PayloadError
from outboxq.payload.parameters import MAX_BYTES, MAX_DEPTH, Parameters, dump_result, sanitize

SECRET = "canary-7f3a"
ONE = UUID(int=1)
NOON = datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Status(enum.StrEnum):
    PAID = "paid"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


def chain(error: BaseException | None) -> str:
    """Return the texts of an error and of its causes, as an error tracker shows them."""
    return "" if error is None else f"{error}\n{chain(error.__cause__)}{chain(error.__context__)}"


class Planet(enum.Enum):
    EARTH = (5.97e24, 6.37e6)


class Picky(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise RuntimeError(SECRET)


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    note: str = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    lines: list[Line]
    at: datetime | None = None
    parent: Optional[Order] = None  # noqa: UP045


class GiftOrder(Order):
    pass


@dataclasses.dataclass
class WithInitVar:
    kept: int
    lost: dataclasses.InitVar[int]


@dataclasses.dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RuntimeError(SECRET)


@dataclasses.dataclass
class Derived:
    n: int
    twice: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.n


class Movie(TypedDict):
    title: str
    day: NotRequired[date]


class Point(NamedTuple):
    x: int
    y: int


class Address(pydantic.BaseModel):
    street: str
    since: date


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: UUID
    home: Address = pydantic.Field(alias="homeAddress")
    score: float = 0.0
    at: datetime | None = None
    _cache: int = pydantic.PrivateAttr(default=0)


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class OneWay(pydantic.BaseModel):
    x: int = pydantic.Field(default=0, validation_alias="X")


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class Shout(str):
    __slots__ = ()


class Sly(str):
    """A string that equals no other string, so that a dict can contain the same text twice."""

    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


CustomerId = NewType("CustomerId", int)


def task(annotation: Any, *, name: str = "mail.send", **default: Any) -> Parameters:
    """Return the parameters of a task with one argument ``it``, which has this annotation."""

    def function(it: Any) -> None: ...

    function.__annotations__ = {"it": annotation}
    function.__defaults__ = (default["default"],) if default else None
    return Parameters(function, name=name)


def there_and_back(annotation: Any, value: object) -> object:
    parameters = task(annotation)
    return parameters.load(parameters.dump((value,), {}))["it"]


def refusal(annotation: Any, value: object) -> str:
    with pytest.raises(PayloadError) as caught:
        task(annotation).dump((value,), {})
    return str(caught.value)


# --- binding --------------------------------------------------------------------------------------


def send(order_id: int, *, copies: int = 1) -> None: ...


def test_arguments_are_one_compact_object_keyed_by_parameter() -> None:
    assert Parameters(send, name="mail.send").dump((7,), {"copies": 2}) == '{"order_id":7,"copies":2}'


def test_defaults_are_not_stored() -> None:
    parameters = Parameters(send, name="mail.send")
    assert parameters.dump((7,), {}) == '{"order_id":7}'
    assert parameters.load('{"order_id":7}') == {"order_id": 7}


def test_a_task_without_parameters_has_an_empty_payload() -> None:
    parameters = Parameters(lambda: None, name="tick")
    assert parameters.dump((), {}) == "{}"
    assert parameters.load("{}") == {}


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"order_id": 1}, "multiple values for argument 'order_id'"),
        ((1,), {"orderid": 1}, "got an unexpected keyword argument 'orderid'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_pythons_message(args: Any, kwargs: Any, reason: str) -> None:
    with pytest.raises(InvalidCall, match="^mail.send: ") as caught:
        Parameters(send, name="mail.send").dump(args, kwargs)
    assert reason in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_the_context_is_not_part_of_the_payload() -> None:
    def book(ctx: NoSuchName, payload: dict[str, int]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    parameters = Parameters(book, name="book", context=True)
    assert parameters.dump(({"id": 1},), {}) == '{"payload":{"id":1}}'
    with pytest.raises(InvalidCall, match="'ctx'"):
        parameters.dump((), {"ctx": 1, "payload": {}})
    with pytest.raises(PayloadError, match="have ctx"):
        parameters.load('{"ctx":1,"payload":{}}')


async def asynchronous() -> None: ...


async def asynchronous_generator() -> Any:
    yield 1


def generator() -> Any:
    yield 1


def positional(order_id: int, /) -> None: ...


def variadic(*ids: int) -> None: ...


def keywords(**options: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (asynchronous, "async"),
        (asynchronous_generator, "async"),
        (generator, "generator"),
        (positional, "positional-only parameter order_id"),
        (variadic, r"\*ids"),
        (keywords, r"\*\*options"),
    ],
)
def test_a_function_whose_arguments_cannot_be_stored_is_refused_immediately(function: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^job: .*{reason}"):
        Parameters(function, name="job")


@pytest.mark.parametrize("function", [lambda: None, lambda *, ctx: None, variadic])
def test_a_context_needs_a_first_positional_parameter(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="task context"):
        Parameters(function, name="job", context=True)


# --- strict JSON ----------------------------------------------------------------------------------

CYCLE: list[Any] = []
CYCLE.append({"again": CYCLE})
BOMB: Any = ["boom"]
for _ in range(40):
    BOMB = [BOMB, BOMB]
EMPTY_BOMB: Any = []
for _ in range(20):
    EMPTY_BOMB = [EMPTY_BOMB, EMPTY_BOMB]
LEAF: Any = 1
for _ in range(MAX_DEPTH):
    LEAF = [LEAF]

EVIL = [
    pytest.param(float("nan"), "NaN is not JSON", id="nan"),
    pytest.param(float("-inf"), "Infinity is not JSON", id="infinity"),
    pytest.param(SECRET + "\x00", "NUL", id="nul"),
    pytest.param(SECRET + "\ud800", "lone surrogate", id="surrogate"),
    pytest.param("\udc00\ud800" + SECRET, "lone surrogate", id="reversed-surrogates"),
    pytest.param(10**4300, "4300 digits", id="long-integer"),
    pytest.param(-(10**5000), "4300 digits", id="long-negative-integer"),
    pytest.param({1: SECRET}, "a key is int", id="int-key"),
    pytest.param({None: SECRET}, "a key is NoneType", id="none-key"),
    pytest.param({"\x00": SECRET}, "NUL", id="nul-key"),
    pytest.param({"\ud800": SECRET}, "lone surrogate", id="surrogate-key"),
    pytest.param({Sly("k"): 1, Sly("k"): 2}, "two keys are the same", id="twin-keys"),
    pytest.param(CYCLE, "contains itself", id="cycle"),
    pytest.param(LEAF, "nested deeper", id="deep"),
    pytest.param(BOMB, "size limit", id="shared-references"),
    pytest.param(EMPTY_BOMB, r"the size limit of \d+ bytes is exceeded at this point", id="shared-empty-lists"),
    pytest.param(["x" * 1000] * 1000, "size limit", id="many-large-strings"),
    pytest.param(SECRET.encode(), "base64", id="bytes"),
    pytest.param(bytearray(b"x"), "base64", id="bytearray"),
    pytest.param({SECRET}, r"annotate the parameter as set\[", id="set"),
    pytest.param((SECRET, 2), r"annotate the parameter as tuple\[", id="tuple"),
    pytest.param(Point(1, 2), "would come back as a list", id="namedtuple"),
    pytest.param(NOON, "annotate the parameter as datetime", id="datetime"),
    pytest.param(ONE, "annotate the parameter as UUID", id="uuid"),
    pytest.param(Decimal("NaN"), "annotate the parameter as Decimal", id="decimal"),
    pytest.param(Colour.RED, "annotate the parameter as Colour", id="enum"),
    pytest.param(Line(SECRET, Decimal(1)), "annotate the parameter as Line", id="dataclass"),
    pytest.param(Line, "type is not JSON", id="class"),
    pytest.param(object(), "object is not JSON", id="object"),
    pytest.param(1j, "complex is not JSON", id="complex"),
    pytest.param((i for i in "abc"), "generator is not JSON", id="generator"),
]


@pytest.mark.parametrize(("value", "reason"), EVIL)
@pytest.mark.parametrize("annotation", [Any, object, "unannotated"])
def test_values_that_are_not_strict_json_are_refused_without_showing_the_value(
    annotation: Any, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outboxq.payload.parameters.MAX_BYTES", 10_000)  # the next test uses the real size
    parameters = Parameters(lambda it: None, name="t") if annotation == "unannotated" else task(annotation)
    with pytest.raises(PayloadError, match=reason) as caught:
        parameters.dump((value,), {})
    message = str(caught.value)
    assert SECRET not in chain(caught.value)
    assert len(message.encode()) < 1000
    assert "\x00" not in message


@pytest.mark.parametrize(("value", "reason"), EVIL)
def test_the_error_names_the_path_of_a_bad_value(value: object, reason: str) -> None:
    with pytest.raises(PayloadError, match=rf"^mail.send: argument it\.lines\[2\]\.price.*{reason}"):
        task(dict).dump(({"lines": [0, 1, {"price": value}]},), {})


def test_nan_is_refused_with_the_path_of_the_value() -> None:
    @dataclasses.dataclass
    class Local:
        lines: list[dict[str, float]]

    message = refusal(Local, Local([{}, {}, {"price": float("nan")}]))
    assert message.startswith("mail.send: argument it.lines[2].price: NaN is not JSON")


def test_an_odd_key_is_escaped_and_cut_in_the_path() -> None:
    assert "it['a b'].c: NaN" in refusal(Any, {"a b": {"c": float("nan")}})
    assert len(refusal(Any, {"ü\n" * 5000: float("nan")})) < 400
    assert (
        refusal(Any, {"k" * 50: float("nan")})
        == f"mail.send: argument it['{'k' * 40}']: NaN is not JSON: pass None or a string"
    )


def test_a_value_of_the_maximum_depth_is_accepted() -> None:
    assert there_and_back(Any, LEAF[0]) == LEAF[0]


def test_the_size_limit_counts_bytes_and_is_exact() -> None:
    parameters = task(str)
    frame = len('{"it":""}')
    for text in ("x" * (MAX_BYTES - frame), "é" * ((MAX_BYTES - frame) // 2) + "x"):
        assert parameters.load(parameters.dump((text,), {})) == {"it": text}
        with pytest.raises(PayloadError, match=f"limit is {MAX_BYTES}|size limit"):
            parameters.dump((text + "x",), {})


@pytest.mark.parametrize("value", [2**63, -(2**64), 10**4299, 0.1, -0.0, 1e308, 5e-324, "\u2028\U0001f600", "\x01\x7f"])
def test_numbers_and_strings_keep_every_digit(value: object) -> None:
    found = there_and_back(Any, value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (str, Status.PAID, "paid"),
        (Any, Shout("hi"), "hi"),
        (int, Size.LARGE, 2),
        (Any, OrderedDict(a=1), {"a": 1}),
        (Any, {Status.PAID: 1}, {"paid": 1}),
    ],
)
def test_plain_annotations_accept_values_that_equal_json(annotation: Any, value: object, stored: object) -> None:
    found = there_and_back(annotation, value)
    assert found == stored
    assert type(found) is type(stored)


def test_a_lower_digit_limit_of_the_interpreter_causes_a_payload_error() -> None:
    limit = sys.get_int_max_str_digits()
    text = task(int).dump((10**1000,), {})
    sys.set_int_max_str_digits(640)
    try:
        with pytest.raises(PayloadError, match="digits"):
            task(int).dump((10**1000,), {})
        with pytest.raises(PayloadError, match="digits"):
            task(int).load(text)
    finally:
        sys.set_int_max_str_digits(limit)


# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ('{"it":', "not JSON"),
        ("'it'", "not JSON"),
        ("[1]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"it":NaN}', "NaN is not JSON"),
        ('{"it":1e999}', "argument it: Infinity is not JSON"),
        ('{"it":1,"it":2}', "twice"),
        ('{"it":"\\u0000"}', "NUL"),
        ('{"it":"\\ud800"}', "lone surrogate"),
        ('{"it":' + "1" * 5000 + "}", "digits"),
        ('{"it":' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper"),
        ('{"it":' + "[" * 70 + "]" * 70 + "}", "nested deeper"),
        ('{"it":1,"\\u0000 other":"canary-7f3a"}', r"have \['\\x00 other'\], which the function does not accept"),
        ("{}", "lack it, which the function requires"),
    ],
)
def test_a_stored_payload_that_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=f"^mail.send: .*{reason}") as caught:
        task(Any).load(text)
    assert SECRET not in chain(caught.value)


@pytest.mark.parametrize(
    ("annotation", "stored"),
    [
        (int, None),
        (UUID, "canary-7f3a"),
        (UUID, 5),
        (datetime, "canary-7f3a"),
        (date, "2024-01-01T00:00:00"),
        (timedelta, "1 day"),
        (timedelta, "PT" + "9" * 30 + "S"),
        (Decimal, "NaN"),
        (Decimal, "canary-7f3a"),
        (Decimal, 0.1),
        (Colour, "canary-7f3a"),
        (Picky, "b"),
        (Size, "1"),
        (Planet, "MARS"),
        (Line, {"sku": "a"}),
        (Line, {"sku": "a", "price": "1", "extra": 1}),
        (Line, [1]),
        (Positive, {"n": -1}),
        (Movie, {"day": "2024-01-01"}),
        (Person, {"id": "canary-7f3a"}),
        (Person, {"id": str(ONE), "homeAddress": {"street": "a", "since": "2020-01-01"}, "score": float("nan")}),
        (list[int], {}),
        (set[Any], [[1]]),
        (tuple[int, int], [1]),
        (dict[UUID, int], {"canary": 1}),
        (Literal["a", 1], True),
        (Literal[Colour.RED], "canary-7f3a"),
        (UUID | int, [1]),
    ],
)
def test_a_stored_value_that_does_not_fit_its_annotation_is_refused(annotation: Any, stored: object) -> None:
    with pytest.raises(PayloadError, match="^mail.send: argument it") as caught:
        task(annotation).load(json.dumps({"it": stored}))
    assert SECRET not in chain(caught.value)


def test_a_pydantic_error_names_the_field_and_the_code() -> None:
    text = json.dumps({"it": {"id": str(ONE), "homeAddress": {"street": "a", "since": SECRET}}})
    with pytest.raises(PayloadError, match=r"it\.homeAddress\.since: Person refused the JSON: date_"):
        task(Person).load(text)


def test_old_payloads_are_read_with_the_default_of_a_new_field() -> None:
    assert task(Line).load('{"it":{"sku":"a","price":"1"}}') == {"it": Line("a", Decimal(1))}


# --- annotations ----------------------------------------------------------------------------------

ORDER = Order(ONE, [Line("a", Decimal("1.10"))], NOON, Order(UUID(int=2), []))
PERSON = Person(id=ONE, homeAddress=Address(street="x", since=date(2020, 1, 1)))
ROUND_TRIPS: list[tuple[Any, object]] = [
    (None, None),
    (datetime, NOON),
    (datetime, datetime(1, 1, 1)),  # noqa: DTZ001
    (date, date(9999, 12, 31)),
    (time, time(23, 59, 59, 999_999, tzinfo=UTC)),
    (timedelta, timedelta.min),
    (timedelta, timedelta.max),
    (timedelta, timedelta(microseconds=-1)),
    (UUID, ONE),
    (Decimal, Decimal("-0E+3")),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Size, Size.LARGE),
    (Status, Status.PAID),
    (Access, Access.READ | Access.WRITE),
    (Planet, Planet.EARTH),
    (Order, ORDER),
    ("Order | None", ORDER),
    ("Order | None", None),
    (Optional[UUID], None),  # noqa: UP045
    (list[UUID], [ONE, ONE]),
    (list, [1, None]),
    (Sequence[date], [date(2024, 1, 1)]),
    (tuple[UUID, ...], (ONE,)),
    (tuple[int, date], (1, date(2024, 1, 1))),
    (tuple[()], ()),
    (tuple, (1, "a")),
    (set[UUID], {ONE}),
    (set, {1, "a"}),
    (frozenset[tuple[int, str]], frozenset({(1, "a")})),
    (dict[str, Decimal], {"a": Decimal("1.0")}),
    (dict[UUID, list[date]], {ONE: [date(2024, 1, 1)]}),
    (dict[Colour, int], {Colour.RED: 1}),
    (Mapping[str, Any], {"a": [1, {"b": None}]}),
    ((Literal["a", 1] | None), 1),
    (Literal[Colour.RED, "x"], Colour.RED),
    (Literal["a"] | str, "b"),
    (int | str, "a"),
    (int | Decimal, Decimal("1.0")),
    (int | Decimal, 1),
    (UUID | list[UUID] | None, [ONE]),
    (UUID | list[UUID] | None, None),
    (str | Order, ORDER),
    (list[UUID | int], [ONE, 1]),
    (Annotated[UUID, "primary key"], ONE),
    (CustomerId, 3),
    (Movie, {"title": "a", "day": date(2024, 1, 1)}),
    (Movie, {"title": "a"}),
    (Derived, Derived(3)),
    (Person, PERSON),
    (list[Person], [PERSON]),
    (Person | None, None),
    (pydantic.RootModel[list[UUID]], pydantic.RootModel[list[UUID]]([ONE])),
    (Callable[[], int], [1]),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS)
def test_a_value_of_its_annotation_is_equal_after_a_round_trip(annotation: Any, value: object) -> None:
    found = there_and_back(annotation, value)
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_a_sequence_may_be_given_as_a_tuple_and_a_set_as_a_frozenset() -> None:
    assert there_and_back(list[int], (1, 2)) == [1, 2]
    assert there_and_back(Sequence[int], (1, 2)) == [1, 2]
    assert there_and_back(tuple[int, int], [1, 2]) == (1, 2)
    assert there_and_back(set[int], frozenset({1})) == {1}


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (UUID, SECRET, "str does not fit UUID"),
        (Decimal, 1.5, "float does not fit Decimal"),
        (Decimal, Decimal("sNaN"), "NaN"),
        (Decimal, Decimal("Infinity"), "infinite"),
        (date, NOON, "datetime does not fit date"),
        (datetime, date(2024, 1, 1), "date does not fit datetime"),
        (time, time(12, tzinfo=ZoneInfo("Europe/Berlin")), "offset"),
        (Colour, "red", "str does not fit Colour"),
        (Order, GiftOrder(ONE, []), "GiftOrder does not fit Order"),
        (Order, {"id": SECRET}, "dict does not fit Order"),
        (Order, Order(ONE, [Line("a", 1.5)]), r"it\.lines\[0\]\.price: float does not fit Decimal"),  # type: ignore[arg-type]
        (Order, Order(None, []), r"it\.id: None does not fit UUID"),  # type: ignore[arg-type]
        (list[UUID], [ONE, SECRET], r"it\[1\]: str does not fit UUID"),
        (list[int], {1}, "set does not fit"),
        (list[str], SECRET, "str does not fit"),
        (set[int], [1, 1], "list does not fit"),
        (tuple[int, int], (1, 2, 3), r"a tuple of length 3 does not fit tuple\[int, int\]: pass 2 items"),
        (dict[str, int], {1: 1}, r"a key is int, but dict\[str, int\] needs string keys: convert it"),
        (dict[str, int], {ONE: 1}, "convert it, or annotate the keys as UUID"),
        (dict[int, int], {1: 1}, "a key is int"),
        (dict[str, UUID], {"a": SECRET}, r"it\.a: str does not fit UUID"),
        (Movie, {"title": "a", "dya": 1}, r"it\.dya: Movie has no such field"),
        (Movie, {}, r"it\.title: Movie requires"),
        (Literal["a", 1], True, r"this bool is not one of Literal\['a', 1\]: pass one of its values"),
        (Literal["a", 1], 1.0, r"this float is not one of Literal\['a', 1\]: pass one of its values"),
        (UUID | int, SECRET, r"str does not fit UUID \| int"),
        (UUID | None, SECRET, r"str does not fit UUID \| None"),
        (Person, PERSON.model_copy(update={"score": float("nan")}), r"it\.score: NaN is not JSON"),
        (Person, PERSON.model_copy(update={"id": SECRET}), r"it\.id: Person refused the JSON: uuid_parsing"),
        (Login, Login(password=pydantic.SecretStr(SECRET)), r"it\.password: .*is different after"),
        (OneWay, OneWay(X=5), r"it\.x: .*is different after"),
        (Address, {"street": "x"}, "dict does not fit Address"),
        (Address, Address.model_construct(street=5, since=date(2020, 1, 1)), r"it\.street: Address refused the JSON"),
        (Open, Open.model_validate({"at": NOON}), "the extra fields of Open"),
        (Callable[[], int], ONE, "UUID is not JSON"),
        (int, ONE, "annotate the parameter as UUID"),
    ],
)
def test_a_value_that_would_differ_after_a_round_trip_is_refused(annotation: Any, value: object, reason: str) -> None:
    with pytest.raises(PayloadError, match=rf"^mail\.send: argument (?=it).*{reason}") as caught:
        task(annotation).dump((value,), {})
    assert SECRET not in chain(caught.value)


@pytest.mark.parametrize("annotation", [int, str, UUID, dict[str, int], list[int], Order, Person, Colour, UUID | int])
def test_the_error_for_none_suggests_flushing_the_row(annotation: Any) -> None:
    assert "has the row been flushed, so that its id exists?" in refusal(annotation, None)


@pytest.mark.parametrize("annotation", [Any, object, None, int | None, Optional[UUID]])  # noqa: UP045
def test_none_is_accepted_if_the_annotation_allows_it(annotation: Any) -> None:
    assert there_and_back(annotation, None) is None


@pytest.mark.parametrize("annotation", [int, UUID, list[int], Order])
def test_none_is_accepted_if_it_is_the_default(annotation: Any) -> None:
    parameters = task(annotation, default=None)
    assert parameters.load(parameters.dump((None,), {})) == {"it": None}
    assert parameters.load("{}") == {}


@pytest.mark.parametrize(
    "annotation",
    [str | UUID, date | datetime, Order | Line, list[UUID] | list[int], Colour | str, Any | UUID, Person | Movie],
)
def test_a_union_that_cannot_be_read_back_is_refused_at_first_use(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match="parameter it: .*JSON cannot tell the members of .* apart"):
        task(annotation).dump((1,), {})
    with pytest.raises(ConfigurationError):
        task(annotation).load('{"it":1}')


@pytest.mark.parametrize("annotation", [Literal["red", Colour.RED], WithInitVar, "NoSuchType", list["NoSuchType"]])  # type: ignore[name-defined]  # noqa: F821
def test_the_error_for_an_unusable_annotation_names_the_parameter(annotation: Any) -> None:
    parameters = task(annotation)
    with pytest.raises(ConfigurationError, match="^mail.send: parameter it: "):
        parameters.dump((1,), {})


def test_a_forward_reference_is_resolved_at_first_use_and_not_before() -> None:
    parameters = task("Later")
    globals()["Later"] = UUID
    try:
        assert parameters.dump((ONE,), {}) == f'{{"it":"{ONE}"}}'
    finally:
        del globals()["Later"]


def test_a_dataclass_value_that_contains_itself_is_refused() -> None:
    order = Order(ONE, [])
    object.__setattr__(order, "parent", order)
    assert "contains itself" in refusal(Order, order)


def test_the_repeated_hour_of_a_time_zone_is_not_refused() -> None:
    """Python considers such a datetime unequal to the same instant in another zone (PEP 495)."""
    at = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    found: Any = there_and_back(datetime, at)
    assert found.isoformat() == at.isoformat() == "2024-10-27T02:30:00+01:00"
    model: Any = there_and_back(Person, PERSON.model_copy(update={"at": at}))
    assert model.at.isoformat() == at.isoformat()


def test_the_annotations_of_a_wrapped_function_are_resolved_in_its_module() -> None:
    inner = types.FunctionType(send.__code__, {"Elsewhere": UUID})
    inner.__annotations__ = {"order_id": "Elsewhere"}

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> None: ...

    assert Parameters(outer, name="t").load(f'{{"order_id":"{ONE}","copies":1}}')["order_id"] == ONE


def test_a_model_may_be_as_large_as_the_limit() -> None:
    """The model is read back when it is written, and this must not count twice."""
    address = Address(street="x" * (MAX_BYTES - 100), since=date(2020, 1, 1))
    assert there_and_back(Address, address) == address


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (0, "0"),
        ({"at": NOON, "ids": (ONE,)}, f'{{"at":"2024-02-29T12:00:00.000001+05:45","ids":["{ONE}"]}}'),
        (Line("a", Decimal("1.10")), '{"sku":"a","price":"1.10","note":null}'),
        (Derived(1), '{"n":1,"twice":2}'),
        ([Colour.RED, Planet.EARTH, Size.LARGE], '["red","EARTH",2]'),
        (timedelta(seconds=-1.5), '"-PT1.500000S"'),
        ({ONE}, f'["{ONE}"]'),
        (Address(street="x", since=date(2020, 1, 1)), '{"street":"x","since":"2020-01-01"}'),
        ([Login(password=pydantic.SecretStr(SECRET))], '[{"password":"**********"}]'),
    ],
)
def test_a_result_is_encoded_according_to_its_type(value: object, stored: str | None) -> None:
    assert dump_result(value, name="mail.send") == stored


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [float("nan")]}, r"result\.a\[0\]: NaN"),
        ([(1, {"x": b"canary-7f3a"})], r"result\[0\]\[1\]\.x: bytes"),
        (Line(SECRET, Decimal("NaN")), r"result\.price: a Decimal"),
        (CYCLE, "contains itself"),
        (BOMB, "size limit"),
        (
            "x" * MAX_BYTES,
            r"the result: the JSON is too large \(262146 bytes; the limit is 262144\): store the data elsewhere",
        ),
        (
            "x" * 300_000,
            "result: the size limit of 262144 bytes is exceeded at this point, by a value of 300000 characters: store",
        ),
        (object(), "result: object is not JSON: use an id or a dataclass instead$"),
        (Line, "result: type is not JSON"),
    ],
)
def test_a_result_that_is_not_strict_json_is_refused(value: object, reason: str) -> None:
    with pytest.raises(PayloadError, match=f"^mail.send: .*{reason}") as caught:
        dump_result(value, name="mail.send")
    assert SECRET not in chain(caught.value)


# --- sanitize -------------------------------------------------------------------------------------


def test_nul_and_lone_surrogates_are_replaced() -> None:
    assert sanitize("a\x00b\ud800c\U0001f600") == "a\ufffdb\ufffdc\U0001f600"


def test_a_long_text_keeps_its_head_and_its_tail() -> None:
    text = sanitize("Traceback" + "é" * 100_000 + "ValueError", limit=1000)
    assert text.startswith("Traceback")
    assert text.endswith("ValueError")
    assert "bytes" in text
    assert 990 < len(text.encode()) <= 1000


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(st.characters(exclude_categories=[])), st.integers(-5, 300))
def test_sanitized_text_is_storable_within_the_limit_and_not_changed_again(text: str, limit: int) -> None:
    found = sanitize(text * 20, limit=limit)
    assert len(found.encode()) <= max(limit, 0)
    assert "\x00" not in found
    assert sanitize(found, limit=limit) == found


# --- properties -----------------------------------------------------------------------------------

QUICK = settings(max_examples=100, derandomize=True, deadline=None)
WORDS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)
ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
ORDERS = st.builds(
    Order,
    st.uuids(),
    st.lists(st.builds(Line, WORDS, DECIMALS), max_size=3),
    st.none() | st.datetimes(timezones=ZONES),
    st.none(),
)


@QUICK
@given(JSON_VALUES)
def test_any_json_value_is_equal_after_a_round_trip(value: object) -> None:
    assert repr(there_and_back(Any, value)) == repr(value)


@QUICK
@given(
    st.one_of(
        st.tuples(st.just(datetime), st.datetimes(timezones=ZONES)),
        st.tuples(st.just(time), st.times(timezones=ZONES)),
        st.tuples(st.just(timedelta), st.timedeltas()),
        st.tuples(st.just(Decimal), DECIMALS),
        st.tuples(st.just(Order), ORDERS),
        st.tuples(st.just(dict[UUID, int | Decimal | None]), st.dictionaries(st.uuids(), st.integers() | DECIMALS)),
        st.tuples(st.just(frozenset[date]), st.frozensets(st.dates())),
    )
)
def test_any_value_of_an_annotated_type_is_equal_after_a_round_trip(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    assert there_and_back(annotation, value) == value


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.sampled_from([annotation for annotation, _ in ROUND_TRIPS]), JSON_VALUES)
def test_loading_any_stored_json_raises_only_payload_errors(annotation: Any, stored: object) -> None:
    text = json.dumps({"it": stored}, ensure_ascii=True)
    try:
        task(annotation).load(text)
    except OutboxqError as error:
        assert isinstance(error, PayloadError)  # noqa: PT017


@QUICK
@given(st.text(max_size=50))
def test_loading_text_that_is_not_a_payload_raises_a_payload_error(text: str) -> None:
    with pytest.raises(PayloadError):
        task(Any).load(text)
