"""The RetryPolicy uses tenacity's ``wait_*``, ``stop_*`` and ``retry_if_*`` objects to decide whether and when another
attempt follows a failure.

tenacity itself repeats a call within one process and sleeps in between. In outboxq, the time of the next attempt is
stored in the task's row, and that attempt may run on another machine. Therefore, the policy uses only tenacity's
*objects*, with a ``RetryCallState`` that is built from the row.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import tenacity
from tenacity import BaseRetrying, RetryCallState
from tenacity.retry import RetryBaseT, retry_base
from tenacity.stop import StopBaseT, stop_base
from tenacity.wait import WaitBaseT, wait_base

from .errors import ConfigurationError, InvalidArgument
from .model.unknown_options import naming_options
from .model.wording import span

# Tasks that failed at the same time must not be retried at the same time.
_FULL_JITTER = tenacity.wait_random_exponential(multiplier=2, max=3600)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class RetryPolicy:
    """A rule that decides whether and when a failed task gets another attempt. No thread sleeps between attempts.

    ``max_attempts`` includes the first attempt. None means that ``stop`` decides; without ``stop``, the task is retried
    forever. ``wait`` is a number of seconds, a ``timedelta``, a tenacity ``wait_*`` object, or a callable that returns
    a number of seconds or a ``timedelta``. ``stop`` applies in addition to ``max_attempts``; ``stop_after_delay``
    counts from the start of the first attempt, but leaves out the time that the task spends in ``ctx.sleep``. The count
    starts again with the next attempt when a person redrives or reruns the task, or when another enqueue replaces it.
    ``retry`` specifies the errors after which the task is tried again; None means any error. Within the limits, the
    task is always tried again after ``tenacity.TryAgain``. The policy is consulted only for errors. A returned value is
    the task's result, so ``retry_if_result`` alone never causes a retry.

    Raises InvalidArgument if an option has any other value.
    """

    max_attempts: int | None = 10
    wait: WaitBaseT | Callable[[RetryCallState], timedelta] | timedelta | float = _FULL_JITTER
    stop: StopBaseT | None = None
    retry: RetryBaseT | type[BaseException] | tuple[type[BaseException], ...] | None = None
    _retrying: BaseRetrying = field(init=False)  # the ``retry_object`` that the user's callables see

    def __post_init__(self) -> None:
        bound = self.max_attempts
        if bound is not None and (type(bound) is not int or bound < 1):
            raise InvalidArgument(
                f"max_attempts={bound!r}: give a whole number of at least 1, or None to let stop= decide"
            )
        stop = tenacity.stop_never if self.stop is None else self.stop
        retry = tenacity.retry_always if self.retry is None else self.retry
        given = {"wait": self.wait, "stop": stop, "retry": retry}
        rules = {name: _strategy(name, value) for name, value in given.items()}
        for name, value in {**rules, "_retrying": tenacity.Retrying(**rules)}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, value: RetryPolicy | BaseRetrying | None) -> RetryPolicy:
        """Return the policy for ``value``: a RetryPolicy, a tenacity ``Retrying``, or None for the default policy.

        A ``Retrying``, such as the ``.retry`` attribute of a function decorated with ``@tenacity.retry``, is used
        unchanged: without ``stop=`` it never gives up, and without ``wait=`` it does not wait. Only its ``wait``,
        ``stop``, ``retry`` and ``enabled`` are used; its ``before``, ``after``, ``sleep`` and ``retry_error_callback``
        belong to a loop that outboxq does not run. Raises InvalidArgument for any other value.
        """
        if value is None or isinstance(value, RetryPolicy):
            return cls() if value is None else value
        if not isinstance(value, BaseRetrying):
            attempts = f"max_attempts={value}" if type(value) is int and value > 0 else ""  # type: ignore[unreachable]
            wanted = f"RetryPolicy({attempts}), tenacity.Retrying() or f.retry of a tenacity-decorated f"
            raise InvalidArgument(f"{_brief.repr(value)} is not a retry policy: pass {wanted}")
        bound, stop = None, cast("stop_base | None", value.stop)
        # This becomes max_attempts, because a row's own limit can replace max_attempts but not a stop object.
        if type(stop) is tenacity.stop_after_attempt and type(stop.max_attempt_number) is int:
            bound, stop = max(1, stop.max_attempt_number), None
        enabled = getattr(value, "enabled", True)  # tenacity 8 has no such attribute
        policy = cls(max_attempts=bound if enabled else 1, wait=value.wait, stop=stop, retry=value.retry)
        object.__setattr__(policy, "_retrying", value)
        return policy

    @classmethod
    def never(cls) -> RetryPolicy:
        """Return a policy that allows only one attempt, so the first error is final."""
        return cls(max_attempts=1)

    @property
    def has_stop(self) -> bool:
        """Return whether anything besides the number of attempts can end the retries."""
        return self.stop is not tenacity.stop_never

    @property
    def words(self) -> str:
        """The policy in words, such as "up to 10 attempts, random waits that grow from at most 2 s to at most 1 h"."""
        bound = "one attempt" if self.max_attempts == 1 else f"up to {self.max_attempts} attempts"
        if self.max_attempts is None:
            bound = "attempts until its stop= ends them" if self.has_stop else "attempts without a limit"
        only = "" if self.retry is tenacity.retry_always else ", only after errors that its retry= allows"
        return bound if self.max_attempts == 1 else f"{bound}, {_wait_in_words(self.wait)}{only}"

    def next_delay(
        self,
        *,
        attempt: int,
        error: BaseException,
        max_attempts: int | None,
        elapsed: timedelta,
        asked: timedelta | None = None,
    ) -> timedelta | None:
        """Return the time to wait before the next attempt; None if there will not be another attempt.

        ``attempt`` is the number of the attempt that just failed, counted from 1. ``max_attempts`` is the limit stored
        in the row; unless it is None, it replaces the policy's limit. ``elapsed`` is the time since the first attempt
        started, whichever process ran it, without the time in ``ctx.sleep`` and before a redrive. ``asked`` is the wait
        that the handler has asked for, which replaces ``wait`` and ``retry``, but not the limits. Raises
        ConfigurationError if one of the policy's objects raises an exception, or if the wait is not a finite number or
        timedelta.
        """
        bound = self.max_attempts if max_attempts is None else max_attempts
        if bound is not None and attempt >= bound:
            return None
        wait, stop, retry = (cast("Any", rule) for rule in (self.wait, self.stop, self.retry))
        state = _call_state(self._retrying, attempt, error, elapsed)
        try:
            if asked is None and not (isinstance(error, tenacity.TryAgain) or retry(state)):
                return None
            delay = _delay(wait(state) if asked is None else asked)
            state.upcoming_sleep = delay.total_seconds()  # set before `stop` runs, because stop_before_delay reads it
            return None if stop(state) else delay
        except Exception as failure:
            raise ConfigurationError(
                f"{_brief.repr(self)} raised {_brief.repr(failure)} while deciding whether to retry after attempt {attempt}, "
                f"which failed with {type(error).__qualname__}. Correct the policy, then redrive the task."
            ) from failure

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in _BASES)
        return f"RetryPolicy(max_attempts={self.max_attempts}, {rules})"


RetryPolicy.__init__ = naming_options("RetryPolicy()")(RetryPolicy.__init__)  # type: ignore[method-assign]

_LONGEST = timedelta(days=3650)  # so that now + delay is a valid datetime for every policy
_brief = reprlib.Repr()  # handles a __repr__ that raises, so that the task can still become Failed
_brief.maxother = 500
_BASES = {"wait": wait_base, "stop": stop_base, "retry": retry_base}


def _wait_in_words(wait: Any) -> str:
    """Return a description of the waits between attempts. A function or a less common tenacity object is shown by its
    name.
    """
    given = vars(wait) if isinstance(wait, wait_base) else {}
    longest = given.get("max", math.inf)
    to = f" to at most {_in_words(longest)}" if longest <= _LONGEST.total_seconds() else ""
    kind = type(wait)
    if kind is tenacity.wait_none or (kind is tenacity.wait_fixed and not given["wait_fixed"]):
        return "without a wait"
    if kind is tenacity.wait_fixed:
        return f"{_in_words(given['wait_fixed'])} apart"
    if kind is tenacity.wait_random:
        return f"random waits of {_in_words(given['wait_random_min'])} to {_in_words(given['wait_random_max'])}"
    if kind is tenacity.wait_random_exponential:
        return f"random waits that grow from at most {_in_words(given['multiplier'])}{to}"
    if kind is tenacity.wait_exponential:
        return f"waits that grow from {_in_words(given['multiplier'])}{to}"
    if kind is tenacity.wait_incrementing:
        return f"waits that grow from {_in_words(given['start'])} by {_in_words(given['increment'])}{to}"
    return f"waits of {getattr(wait, '__name__', kind.__name__)}"


def _in_words(seconds: float) -> str:
    """Return a wait without unnecessary decimals: 2 s, 1.5 s, 10 min."""
    return f"{seconds:g} s" if seconds < 10 else span(seconds)


def _strategy(name: str, value: Any) -> Any:
    # A class, a coroutine function, or an object meant for another argument is callable too. Such a mistake would go
    # unnoticed until the first failure in production. An unawaited coroutine is even truthy, so `retry` would always
    # retry.
    number = isinstance(value, (timedelta, int, float)) and not isinstance(value, bool)
    if name == "wait" and number and 0 <= _seconds(value) < math.inf:
        return tenacity.wait_fixed(_delay(value))
    classes = value if isinstance(value, tuple) else (value,)
    if name == "retry" and all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        return tenacity.retry_if_exception_type(value)
    fits = callable(value) and not isinstance(value, (type, *(_BASES[kind] for kind in _BASES if kind != name)))
    if fits and not any(map(inspect.iscoroutinefunction, (value, type(value).__call__))):
        return value
    also = {"wait": "a finite number of seconds or a timedelta (not negative)", "retry": "exception classes"}.get(
        name, "None"
    )
    raise InvalidArgument(f"{name}={_shown(value)}: give a tenacity {name} object, a function (not async), or {also}")


def _call_state(retrying: BaseRetrying, attempt: int, error: BaseException, elapsed: timedelta) -> RetryCallState:
    state = RetryCallState(retrying, None, (), {})
    state.attempt_number = attempt
    state.set_exception((type(error), error, error.__traceback__))
    # tenacity reads elapsed as fl(now - start_time). One float below fl(now - elapsed) is at most the true difference,
    # and rounding is monotone, so it reads no less than elapsed: stop_after_delay(60) stops at 60 s, not slightly
    # later.
    now = cast("float", state.outcome_timestamp)
    state.start_time = math.nextafter(now - max(elapsed.total_seconds(), 0.0), -math.inf)
    return state


def _delay(value: Any) -> timedelta:
    seconds = _seconds(value)
    if not -math.inf < seconds < math.inf:  # also rejects NaN, for which every comparison is false
        raise ValueError(f"wait returned {value!r}")
    # A negative wait is a time in the past (such as a Retry-After date), so the task is due now. min() comes before
    # float(), which 2**5000 would overflow.
    return timedelta(seconds=float(min(max(seconds, 0), _LONGEST.total_seconds())))


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _shown(value: object) -> str:
    # tenacity's objects have no repr, but their attributes are their parameters. A memory address would be useless in a log.
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", value))
    if isinstance(value, tuple(_BASES.values())) and type(value).__repr__ is object.__repr__:
        own = {k: v for k, v in vars(value).items() if getattr(v, "__self__", None) is not value}
        return f"{type(value).__name__}({', '.join(f'{k}={_shown(v)}' for k, v in own.items())})"
    return repr(value)
