"""Convert arguments and results to strict JSON and back. Each error names the task, the argument and the location
inside it.

Arguments are read back according to the annotations of the worker's function, and a result according to the return
annotation. Names in a stored row are never imported, evaluated or unpickled.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from ..errors import ConfigurationError, InvalidCall, PayloadError, UnreadableArguments
from ..model.guesses import Guess, replacement
from ..model.unknown_options import nearest
from .annotations import codec_for
from .values import (
    BY_REFERENCE,
    MAX_DEPTH,
    Changed,
    Codec,
    CodecError,
    Convert,
    Limits,
    dump_model,
    is_model,
    jsonable,
    path_part,
    readable,
)

__all__ = ["MAX_BYTES", "MAX_DEPTH", "Parameters", "ReturnValue", "dump_payload", "dump_result", "sanitize"]

MAX_BYTES = 262_144
"""The maximum size of the encoded arguments, and of a result, in bytes. Store larger documents elsewhere, and pass a
reference to them.
"""


class Parameters:
    """The parameters of a task's function, which bind, encode and decode its arguments."""

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str,
        context: bool = False,
        check_types: bool = True,
        options: Collection[str] = (),
    ) -> None:
        """With `context`, the first parameter is the task's context and not an argument.

        With `check_types`, a value of a plain type (`int`, `list[str]`) must match its annotation. `options` are the
        names of a call's options, for the hint about an option that is passed as an argument.
        """
        self._name = name
        self._check_types = check_types
        self._options = options
        self.signature = _storable(function, name, context=context)
        """The signature of a call, without the context."""
        self._known = self.signature.parameters
        self._positional = [p.name for p in self._known.values() if p.kind is _NAMED]
        self._required = {p.name for p in self._known.values() if p.default is p.empty}
        self._namespace: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
        self._codecs: dict[str, Codec] | None = None

    @property
    def required(self) -> list[str]:
        """The names of the parameters without a default, in the order in which the function declares them."""
        return [name for name in self._known if name in self._required]

    def check_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Raise InvalidCall if the arguments do not match the signature. Their values are not checked."""
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        if len(given) < len(args) + len(kwargs) or not self._required <= given.keys() <= self._known.keys():
            self._refuse_call(args, kwargs)

    def dump(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Return one JSON object with the arguments by parameter name. Defaults are not stored, because they belong to
        the code that the worker is running.
        """
        given: dict[str, object] = dict(zip(self._positional, args, strict=False))
        if (
            kwargs or len(given) < len(self._known) or len(args) > len(given)
        ):  # otherwise each parameter has its value, by position
            given |= kwargs
            if len(given) < len(args) + len(kwargs) or not self._required <= given.keys() <= self._known.keys():
                self._refuse_call(args, kwargs)
        codecs = self._codecs or self._compile()
        limits = Limits(MAX_BYTES)
        stored: dict[str, object] = {}
        parameter = ""
        try:
            limits.enter(len(given))
            for parameter in codecs if kwargs else given:  # in parameter order in both cases
                if parameter in given:
                    stored[parameter] = codecs[parameter].encode(given[parameter], limits)
        except CodecError as error:
            self._refuse(parameter, error)
        return _encode(stored, f"{self._name}: the arguments")

    def load(self, text: str, *, is_new: bool = False) -> dict[str, object]:
        """Return the keyword arguments for the function. `is_new` is True for JSON that a person has written and that
        is not stored yet.

        Raises UnreadableArguments for a string that no version of the code can read, and PayloadError for arguments
        that this version of the code does not accept but that another version may accept.
        """
        codecs = self._codecs or self._compile()
        stored = self._parse(text)
        limits = Limits(len(text))
        loaded: dict[str, object] = {}
        parameter = ""
        try:
            limits.enter(len(stored))
            for parameter, value in stored.items():
                loaded[parameter] = codecs[parameter].decode(value, limits)
        except CodecError as error:
            if is_new and isinstance(error, Changed):
                error.reason = error.if_new
            self._refuse(parameter, error)
        return loaded

    def _parse(self, text: str) -> dict[str, Any]:
        problem = "are not a JSON object"
        stored: object = None
        try:
            stored = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            problem = f"are not JSON: {error.msg} at character {error.pos}"
        except CodecError as error:
            problem = f"are not strict JSON: {error.reason}"
        except RecursionError:
            problem = f"are nested deeper than {MAX_DEPTH} levels"
        except ValueError:
            problem = "contain an integer with more digits than Python can read"
        if not isinstance(stored, dict):
            raise UnreadableArguments(
                f"{self._name}: the stored arguments {problem}, so they were not written by enqueue()"
            )
        if unknown := stored.keys() - self._known.keys():
            has = f"the stored arguments have {_names(unknown)}, which the function does not accept"
            raise PayloadError(
                f"{self._name}: {has}; if a newer release enqueued the task, deploy that release to the workers, and redrive the task "
                "if it has already failed; if the parameter was renamed or removed while tasks were waiting, restore it until "
                "they have run"
            )
        if missing := self._required - stored.keys():
            lack = f"the stored arguments lack {_names(missing)}, which the function requires"
            raise PayloadError(f"{self._name}: {lack}: give new parameters a default until the old tasks have run")
        return stored

    def _compile(self) -> dict[str, Codec]:
        # Compiled at first use, because a forward reference may refer to something that the module defines further
        # down.
        codecs: dict[str, Codec] = {}
        for name, one in self._known.items():
            try:
                codecs[name] = codec_for(one, self._namespace, check_types=self._check_types)
            except CodecError as error:
                raise ConfigurationError(f"{self._name}: parameter {name}: {error.reason}") from error
        self._codecs = codecs
        return codecs

    def _refuse_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> NoReturn:
        try:
            self.signature.bind_partial(*args, **kwargs)  # reports an unknown keyword, even if an argument is missing
            self.signature.bind(*args, **kwargs)
        except TypeError as misfit:
            names = ", ".join(self._known) or "none"
            raise InvalidCall(
                f"{self._name}: {misfit}; its parameters are: {names}{self._context_hint()}{self._keyword_hint(kwargs)}"
            ) from None
        raise AssertionError("Python accepts the call")

    def _context_hint(self) -> str:
        """Return a hint for a call that does not match the signature because the context parameter is not annotated."""
        meant = self._known.get("ctx")
        if meant is None or meant.annotation is not meant.empty:
            return ""
        return "; if ctx is the task's context, annotate the first parameter as ctx: TaskContext"

    def _keyword_hint(self, given: Mapping[str, object]) -> str:
        """Return a hint for a call option that was passed as an argument to the function, or for a misspelled keyword."""
        for name in given:
            cure = replacement(Guess.OPTION, "using()", name)
            if name not in self._known and (cure or name in self._options):
                cure = cure or f"{name}="
                place = f"using({cure}…).enqueue(…)" if cure.endswith("=") and " " not in cure else cure
                return f"; {name} is an option of a call and not an argument: write {place}"
        return next((nearest(name, self._known) for name in given if name not in self._known), "")

    def _refuse(self, parameter: str, error: CodecError) -> NoReturn:
        _forget_cause(error)
        where = f"argument {parameter}{error.shortened_path()}" if parameter else "the arguments"
        raise PayloadError(f"{self._name}: {where}: {error.reason}") from None


class ReturnValue:
    """The value that a task's function returns. It is read back according to the return annotation."""

    def __init__(self, function: Callable[..., object], *, name: str) -> None:
        self._function = function
        self._name = name
        self._codec: Codec | None = None

    def check(self) -> None:
        """Raise ConfigurationError for an annotation that cannot be used to read a result."""
        if self._codec is None:
            self._compile()

    def load(self, text: str | None) -> Any:
        """Return the value that is stored as this JSON. It is None if the function returned None, even if the
        annotation does not allow None.

        Raises PayloadError if the value does not fit the annotation, and ConfigurationError if the annotation cannot be
        used to read a result.
        """
        if text is None:
            return None
        codec, limits = self._codec or self._compile(), Limits(len(text))
        try:
            return codec.decode(parsed_result(text, name=self._name), limits)
        except CodecError as error:
            _forget_cause(error)
            raise PayloadError(f"{self._name}: the result{error.shortened_path()}: {error.reason}") from None

    def _compile(self) -> Codec:
        try:
            self._codec = codec = _result_codec(inspect.unwrap(self._function))
        except CodecError as error:
            raise ConfigurationError(
                f"{self._name}: the return annotation: {error.reason}; to read the stored result, write "
                "outbox.store.get(task_id).result"
            ) from error
        return codec


def parsed_result(text: str | None, *, name: str) -> Any:
    """Return the plain JSON value of a stored result. Raises PayloadError for a string that `dump_result` cannot have
    written.
    """
    if text is None:
        return None
    with suppress(ValueError, RecursionError, CodecError):
        return _DECODER.decode(text)
    # Raised outside the `with` block, because the original error quotes the text.
    raise PayloadError(f"{name}: the stored result is not strict JSON, so it was not written by a worker")


def dump_result(value: object, *, name: str) -> str | None:
    """Return a result as JSON. Dates, dataclasses and models are written according to their own types, without an
    annotation.
    """
    return None if value is None else _dump(value, name, "result", fallback=_returned)


def dump_payload(value: object, *, name: str) -> str:
    """Return an event's payload as JSON. The payload is written like a result, because the emitter does not know the
    subscribers' annotations.
    """
    return _dump(value, name, "payload")


def dump_arguments(values: Mapping[str, object], *, name: str) -> str:
    """Return arguments by name as JSON, without checking them against a signature."""
    return _dump(values, name, "arguments")


def sanitize(text: str, *, limit: int = 8_192) -> str:
    """Return an error message in a form that every database can store, with at most `limit` bytes of UTF-8. Only the
    beginning and the end of a longer message are kept.
    """
    if (
        len(text) <= limit and text.isascii() and "\0" not in text
    ):  # true for most errors, and takes a third of the time that the code below takes
        return text
    data = _UNSTORABLE.sub("\ufffd", text).encode()
    if len(data) <= limit:
        return data.decode()
    # The marker is ASCII, so that text that fits into every encoding still does.
    marker = f"\n... at least {len(data) - limit} bytes were cut ...\n".encode()
    if limit < 4 * len(marker):
        return data[: max(limit, 0)].decode(errors="ignore")
    # The end gets more of the space, because a traceback ends with the error.
    head = (limit - len(marker)) // 3
    tail = limit - len(marker) - head
    return (data[:head] + marker + data[-tail:]).decode(errors="ignore")


def _returned(value: Any, limits: Limits) -> object:
    """Return the plain JSON value; for a model, with the field names from which pydantic can read it back."""
    return jsonable(dump_model(value, by_alias=True), limits) if is_model(type(value)) else readable(value, limits)


def _dump(value: object, name: str, what: str, *, fallback: Convert = readable) -> str:
    try:
        stored = jsonable(value, Limits(MAX_BYTES, fallback=fallback))
    except CodecError as error:
        _forget_cause(error)
        raise PayloadError(f"{name}: {what}{error.shortened_path()}: {error.reason}") from None
    return _encode(stored, f"{name}: the {what}")


def _forget_cause(error: CodecError) -> None:
    """Remove the cause of an error: the cause's message may quote the value, and error trackers follow the chain of
    exceptions.
    """
    error.__cause__ = error.__context__ = None


def _result_codec(function: Callable[..., object]) -> Codec:
    """Return the codec for the function's return annotation. Raises CodecError."""
    code, namespace = getattr(function, "__code__", function), getattr(function, "__globals__", None)
    written = getattr(function, "__annotations__", {}).get("return")
    known = _RESULT_CODECS.get(code)
    if known is not None and known[0] is namespace and known[1] == written:
        return known[2]
    annotation = inspect.signature(function).return_annotation
    returned = inspect.Parameter("returned", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    codec = codec_for(returned, namespace or {}, check_types=False)
    _RESULT_CODECS[code] = namespace, written, codec
    return codec


_RESULT_CODECS: WeakKeyDictionary[Any, tuple[object, object, Codec]] = WeakKeyDictionary()
"""The codecs for results, keyed by the functions' code objects. Each is stored with the namespace and the annotation
from which it was made.

Each call to `ctx.step` passes the function again. The function may be a closure that belongs to a single run, but all
closures made by one `def` share their code. Keeping the codecs reduced the time for a check from 120 us to 3 us
(`python -m timeit -s "from outboxq.payload.parameters import ReturnValue" -s "def f() -> dict[str, list[int]]: ..."
"ReturnValue(f, name='x').check()"`).
"""


def _storable(function: Callable[..., object], name: str, *, context: bool) -> inspect.Signature:
    """Return the signature without the context. Raises ConfigurationError if some arguments cannot be stored by name."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{name}: async functions cannot be tasks: write a plain function that calls asyncio.run()"
        )
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError(f"{name}: a generator function does nothing when it is called: return a list")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if context:
        if not parameters or parameters[0].kind not in {inspect.Parameter.POSITIONAL_ONLY, _NAMED}:
            raise ConfigurationError(f"{name}: there is no first positional parameter for the task context")
        del parameters[0]
    for parameter in parameters:
        if parameter.kind in _UNNAMED:
            what = _UNNAMED[parameter.kind] + parameter.name
            raise ConfigurationError(f"{name}: {what} cannot be stored by name: declare each parameter by its own name")
    return signature.replace(parameters=parameters)


_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD
_UNNAMED = {
    inspect.Parameter.POSITIONAL_ONLY: "the positional-only parameter ",
    inspect.Parameter.VAR_POSITIONAL: "the parameter *",
    inspect.Parameter.VAR_KEYWORD: "the parameter **",
}


def _encode(stored: object, what: str) -> str:
    try:
        text = _ENCODER.encode(stored)
    except ValueError:  # sys.set_int_max_str_digits() below its default
        raise PayloadError(f"{what}: an integer has more digits than Python can write: use a string") from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_BYTES:
        raise PayloadError(f"{what}: the JSON is too large ({size} bytes; the limit is {MAX_BYTES}): {BY_REFERENCE}")
    return text


def _names(names: Iterable[str]) -> str:
    return ", ".join(path_part(name).lstrip(".") for name in sorted(names)[:5])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CodecError("a key appears twice in one object")
    return found


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
