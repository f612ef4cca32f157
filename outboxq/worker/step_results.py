"""The results of steps: what their functions return, as JSON and back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError, PayloadError, StepRefused
from ..payload.parameters import ReturnValue, dump_result, parsed_result


class StepResult:
    """The result of a step's function, as JSON and back."""

    def __init__(self, function: Callable[..., Any], *, what: str) -> None:
        """Raises StepRefused for an async function, and for a return annotation that results cannot be read by."""
        self._what = what
        if not callable(function):
            raise StepRefused(f"{what}: a step takes a function and its arguments, not {type(function).__name__}")
        plain = _plain_function(function)
        if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
            raise StepRefused(
                f"{what}: async functions cannot be steps: pass a plain one, with asyncio.run() inside it"
            )
        if inspect.isgeneratorfunction(plain):
            raise StepRefused(f"{what}: a generator function does nothing when it is called: return a list")
        self._returned = None if plain is None else ReturnValue(plain, name=what)
        if self._returned is not None:
            try:
                self._returned.check()
            except ConfigurationError as error:
                raise StepRefused(str(error).partition("; the result as it is stored")[0]) from None

    def dump(self, value: object) -> str | None:
        """Return the value as JSON that the annotation reads. Raises StepRefused."""
        if inspect.iscoroutine(value):
            value.close()
            raise StepRefused(
                f"{self._what}: its function returned a coroutine: pass one that awaits it by asyncio.run()"
            )
        try:
            text = dump_result(value, name=self._what)
            self.load(text)
        except PayloadError as error:
            raise StepRefused(str(error)) from None
        return text

    def load(self, text: str | None) -> Any:
        """Return the value, read by the return annotation. Raises PayloadError for one that does not fit it."""
        return parsed_result(text, name=self._what) if self._returned is None else self._returned.load(text)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that has the annotations; None: there is no signature to look at."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(inspect.unwrap(function), "__globals__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - an object that can be called
    try:
        inspect.signature(function)
    except (ValueError, TypeError):
        return None
    return function if hasattr(inspect.unwrap(function), "__globals__") else None
