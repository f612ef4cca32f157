"""Hints for options and methods that outboxq does not have, especially misspelt ones and those of other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from ..errors import InvalidCall

P = ParamSpec("P")
R = TypeVar("R")

_POLICY = "retry=RetryPolicy(max_attempts=…, wait=…)"
OF_A_TASK: Mapping[str, str] = {
    "acks_late": "nothing: a task does not end until its outcome is committed",
    "autoretry_for": _POLICY,
    "headers": "headers= in using(), for each call",
    "bind": "a first parameter annotated TaskContext",
    "default_retry_delay": _POLICY,
    "max_attempts": _POLICY,
    "max_retries": _POLICY,
    "rate_limit": "outboxq queue limit",
    "retries": _POLICY,
    "retry_backoff": _POLICY,
    "soft_time_limit": 'timeout= with timeout_action="raise"',
    "time_limit": 'timeout= with timeout_action="kill"',
}
"""Replacements for options that other libraries have for a declared task."""
OF_ONE_CALL: Mapping[str, str] = {
    "countdown": "delay=",
    "dedupe_key": "idempotency_key=",
    "eta": "run_after=",
    "execute_after": "delay= or run_after=",
    "lock": "partition_key=",
    "max_retries": "max_attempts=",
    "queueing_lock": "idempotency_key= with unique_until_finished=True",
    "retry": "retry= of @outbox.task",
    "schedule_at": "run_after=",
    "schedule_in": "delay=",
}
"""Replacements for options that other libraries have for one call of a task."""
_OF_EACH_TASK = "retry= of each @outbox.task that subscribes"
OF_AN_EMIT: Mapping[str, str] = {
    **{name: OF_ONE_CALL[name] for name in ("countdown", "eta", "execute_after", "lock", "schedule_at", "schedule_in")},
    "dedupe_key": "idempotency_key=",
    "max_attempts": _OF_EACH_TASK,
    "max_retries": _OF_EACH_TASK,
    "priority": "priority= of each @outbox.task that subscribes",
    "queue": "queue= of each @outbox.task that subscribes",
    "retry": _OF_EACH_TASK,
}
"""Replacements for options that an emit does not accept, because they belong to the subscribing tasks or to other
libraries.
"""
OF_A_SCHEDULE: Mapping[str, str] = {
    "coalesce": 'catch_up="latest"',
    "cron": 'the rule as the first argument: @outbox.periodic("30 2 * * *")',
    "crontab": 'the rule as the first argument: @outbox.periodic("30 2 * * *")',
    "expires": "grace=",
    "interval": "every=",
    "kwargs": "args=",
    "max_instances": 'overlap="skip" or "queue"',
    "misfire_grace_time": "grace=",
    "priority": "priority= of @outbox.task",
    "queue": "queue= of @outbox.task",
    "schedule": "the rule as the first argument, or every=",
    "timezone": "tz=",
}
"""Replacements for options that other libraries have for a periodic task."""
OF_A_BATCH: Mapping[str, str] = {
    "callback": "then=",
    "delay": "delay= in using(), for each call",
    "description": "name=",
    "on_complete": "then=",
    "on_finish": "then=",
    "on_success": "then=",
}
"""Replacements for options that other libraries have for a batch, a group or a chord."""
OF_A_WORKER: Mapping[str, str] = {
    "max_jobs": "max_tasks=",
    "max_tasks_per_child": "tasks_per_child=",
    "pool": 'isolation="thread" or "process"',
    "poll_interval": "poll=",
    "prefetch_multiplier": "prefetch=",
    "prefetch_count": "prefetch=",
    "processes": 'outboxq worker --processes, or isolation="process"',
    "threads": "concurrency=",
    "workers": "concurrency=",
}
"""Replacements for options that other libraries have for a worker."""
METHODS: Mapping[str, str] = {
    "apply_async": "using(session, delay=…).enqueue(…)",
    "configure": "using(session, …).enqueue(…)",
    "defer": "using(session).enqueue(…)",
    "delay": "using(session).enqueue(…)",
    "schedule": "using(session, delay=…).enqueue(…)",
    "send": "using(session).enqueue(…)",
}
"""Replacements for methods that other libraries' tasks have."""


def naming_options(
    public: str,
    instead: Mapping[str, str] = MappingProxyType({}),
    *,
    options: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise InvalidCall, a TypeError, for an unknown keyword and for an option that is passed by
    position.

    The message contains the function's public name, its options, and a replacement for the keyword. `options` are the
    names that the function accepts as ``**options``. If their `defaults` are given, help() shows each option; `options`
    must then be the annotations of a TypedDict.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        named = {one.name for one in parameters if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}}
        known = [*(one.name for one in parameters if one.kind is one.KEYWORD_ONLY), *options]
        by_position = sum(one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD} for one in parameters)
        takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        all_names = frozenset((*named, *options))

        @wraps(function)
        def answering(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                if not all_names.issuperset(kwargs):
                    raise TypeError
                return function(*args, **kwargs)
            except TypeError as error:
                if isinstance(error, InvalidCall):
                    raise
                unknown = next((name for name in kwargs if name not in named and name not in known), None)
                if unknown is not None:
                    hint = _hint(unknown, known, instead)
                    options_are = " Its options are" if hint.endswith("?") else "; its options are"
                    problem = f"{public} has no option {unknown!r}{hint}{options_are} {', '.join(known)}"
                elif len(args) > by_position and not takes_any:
                    problem = f"{public} takes its options by name: {', '.join(known)}"
                else:
                    raise
                raise InvalidCall(problem) from None

        if defaults is not None:
            answering.__signature__ = _with_options(inspect.signature(function), options, defaults)  # type: ignore[attr-defined]
        return answering

    return decorate


def _with_options(signature: inspect.Signature, options: Any, defaults: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature with a keyword for each option, in place of ``**options``."""
    kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in dict(options).items()}
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in kinds.items()
    ]
    return signature.replace(parameters=[*list(signature.parameters.values())[:-1], *named])


def _hint(unknown: str, known: Collection[str], instead: Mapping[str, str]) -> str:
    return f"; write {instead[unknown]}" if unknown in instead else nearest(unknown, known)


def nearest(name: str, known: Collection[str]) -> str:
    """Return "; did you mean 'mail'?" for the known name that is most similar to this one, or "" if
    no name is similar.
    """
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def no_queue(name: str, known: Collection[str]) -> str:
    """Return the sentence about an unknown queue, with the most similar known queue."""
    return f"there is no queue {name!r}: it is not used by any task, setting, declaration or live worker{nearest(name, known)}"


def no_method(task: str, name: str) -> AttributeError:
    """Return the error for a missing attribute of a task."""
    hint = f"; write {task}.{METHODS[name]}" if name in METHODS else ""
    return AttributeError(f"a task has no {name!r}{hint}", name=name)
