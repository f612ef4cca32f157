"""Hints for options and methods that outboxq does not have, especially misspelled ones and those from other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..errors import InvalidCall
from .guesses import Guess, instead_of, replacement

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Answering:
    """A class whose objects raise an error for a missing attribute. The error names the replacement. Tab completion
    leaves out the attributes that only outboxq itself uses.
    """

    __slots__ = ()
    _noun = ""
    """The object's name in sentences, and its key in `guesses.toml`."""
    _inner: frozenset[str] = frozenset()
    """Attributes that are not for applications."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._inner]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            # Not hasattr(type(self), name), which also finds what a metaclass has, such as ABCMeta.register.
            if any(name in vars(one) for one in type(self).__mro__):
                return object.__getattribute__(self, name)  # raises the property's own AttributeError
            cure = self._cure(name)
            raise AttributeError(f"{self._noun} has no {name!r}{instead_of(cure)}", name=name, obj=self)

    def _cure(self, name: str) -> str:
        """Return the replacement for `name`; "" if none is known."""
        return replacement(Guess.ATTRIBUTE, self._noun, name)


def without_session(cure: str) -> str:
    """Return a cure without the session, for an application in which `enqueue()` finds the current transaction."""
    for session, nothing in (("using(session).", ""), ("using(session, ", "using("), ("using=session, ", "")):
        cure = cure.replace(session, nothing)
    return cure


def naming_options(
    public: str,
    *,
    options: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
    positional: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise InvalidCall, a TypeError, for an unknown keyword and for an option that is passed by
    position.

    The message contains the function's public name, its options, and a replacement for the keyword, or `positional` for
    a value that is passed by position. `options` are the names that the function accepts as ``**options``; without
    them, a function with ``**options`` checks its keywords itself. If `defaults` are given, help() shows each option;
    `options` must then be the annotations of a TypedDict.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        named = {one.name for one in parameters if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}}
        known = [*(one.name for one in parameters if one.kind is one.KEYWORD_ONLY), *options]
        by_position = sum(one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD} for one in parameters)
        takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        all_names = frozenset((*named, *options))
        passes_on = not options and any(one.kind is one.VAR_KEYWORD for one in parameters)

        @wraps(function)
        def answering(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True
            try:
                if not (passes_on or all_names.issuperset(kwargs)):
                    raise TypeError
                return function(*args, **kwargs)
            except TypeError as error:
                if isinstance(error, InvalidCall):
                    raise
                unknown = next((name for name in kwargs if name not in all_names and not passes_on), None)
                if unknown is not None:
                    cure = replacement(Guess.OPTION, public, unknown)
                    hint = instead_of(cure) if cure else nearest(unknown, known)
                    options_are = " Its options are " if hint.endswith("?") else "; its options are "
                    problem = (
                        f"{public} has no option {unknown!r}{hint}{options_are + ', '.join(known) if known else ''}"
                    )
                elif len(args) > by_position and not takes_any:
                    by_name = f"{public} takes its options by name{': ' + ', '.join(known) if known else ''}"
                    problem = f"{by_name}{positional and f'; write {positional}'}"
                else:
                    raise
                raise InvalidCall(problem) from None

        if defaults is not None:
            answering.__signature__ = with_options(inspect.signature(function), options, defaults)  # type: ignore[attr-defined]
        return answering

    return decorate


def naming_fields(cls: type[T]) -> type[T]:
    """Make a dataclass's constructor raise InvalidCall as `naming_options` does."""
    cls.__init__ = naming_options(f"{cls.__name__}()")(cls.__init__)  # type: ignore[method-assign]
    return cls


def with_options(signature: inspect.Signature, options: Any, defaults: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature with a keyword for each option, in place of ``**options``."""
    kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in dict(options).items()}
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in kinds.items()
    ]
    return signature.replace(parameters=[*list(signature.parameters.values())[:-1], *named])


def nearest(name: str, known: Collection[str]) -> str:
    """Return "; did you mean 'mail'?" for the known name that is most similar to this one, or "" if no name is similar."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def no_queue(name: str, known: Collection[str]) -> str:
    """Return a sentence that reports an unknown queue and suggests the most similar known one."""
    return f"there is no queue {name!r}: it is not used by any task, setting, declaration or live worker{nearest(name, known)}"


def no_task_name(name: str, known: Collection[str]) -> str:
    """Return a sentence that reports an unknown task name and suggests the most similar known one."""
    return (
        f"task {name!r} is unknown: it is not declared, scheduled, subscribed or known to a worker, and has neither dead "
        f"letters nor recent runs{nearest(name, known)}"
    )


def unused_queue(name: str, known: Collection[str]) -> str:
    """Return a sentence that reports that a worker's queue is not in use. The sentence explains how to name several
    queues, or suggests the most similar queue in use.
    """
    several = " ".join(f"-q {part.strip()}" for part in name.split(",") if part.strip())
    hint = f"; to serve several queues, repeat the option: {several}" if "," in name else nearest(name, known)
    return f"no task, setting or declaration uses the queue {name!r}, which this worker serves{hint}"
