"""Calls of the harness, which are refused with a hint if they have an unknown option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from ..model import unknown_options

__unittest = True  # tracebacks end at the line of the test

P = ParamSpec("P")
R = TypeVar("R")


def naming_options(
    public: str, instead: Mapping[str, str], *, positional: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Do the same as `unknown_options.naming_options`, from a frame at which unittest ends its tracebacks."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        answering = unknown_options.naming_options(public, instead, positional=positional)(function)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True
            return answering(*args, **kwargs)

        return called

    return decorate
