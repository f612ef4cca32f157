"""RetryPolicy decides whether and when a failed attempt is retried. It never sleeps and never calls the task."""

import math
import pickle
import random
import time
from datetime import UTC, datetime, timedelta

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    TryAgain,
    retry_if_exception,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    stop_never,
    wait_chain,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)
from tenacity.wait import wait_base

from outboxq.errors import ConfigurationError, InvalidArgument
from outboxq.retry import RetryPolicy
from tests.examples import STEADY


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch):
    def refuse(seconds):
        raise AssertionError(f"slept {seconds} s; the row should wait, not the thread")

    monkeypatch.setattr(time, "sleep", refuse)


def ask(policy, attempt=1, error=None, max_attempts=None, elapsed=0.0):
    """Return the number of seconds until the next attempt, or None."""
    delay = policy.next_delay(
        attempt=attempt, error=error or OSError("down"), max_attempts=max_attempts, elapsed=timedelta(seconds=elapsed)
    )
    return None if delay is None else delay.total_seconds()


# Delays


@STEADY
@given(initial=st.floats(0.01, 100), base=st.floats(1.1, 5), cap=st.floats(100, 100_000), attempt=st.integers(1, 400))
def test_exponential_back_off_is_initial_times_base_to_the_attempt_minus_one_up_to_the_cap(initial, base, cap, attempt):
    policy = RetryPolicy(max_attempts=None, wait=wait_exponential(multiplier=initial, exp_base=base, max=cap))
    assert ask(policy, attempt) == pytest.approx(min(initial * base ** (attempt - 1), cap), abs=1e-6)


def test_exponential_back_off_example():
    policy = RetryPolicy(wait=wait_exponential(multiplier=3, max=40))
    assert [ask(policy, attempt) for attempt in range(1, 7)] == [3, 6, 12, 24, 40, 40]


@STEADY
@given(attempt=st.integers(1, 100_000), cap=st.integers(1, 5000), seed=st.integers())
@pytest.mark.parametrize(
    "make",
    [
        lambda cap: wait_random_exponential(multiplier=2, max=cap),
        lambda cap: wait_exponential_jitter(max=cap, jitter=cap),
        lambda cap: wait_random(0, cap),
    ],
    ids=["full", "added", "uniform"],
)
def test_jitter_never_exceeds_the_cap(make, attempt, cap, seed):
    random.seed(seed)
    assert 0 <= ask(RetryPolicy(max_attempts=None, wait=make(cap)), attempt) <= cap


@pytest.fixture
def seeded():
    """Draw the same random numbers in every run. The generator's state is restored afterwards."""
    before = random.getstate()
    random.seed(1)
    yield
    random.setstate(before)


@pytest.mark.usefixtures("seeded")
def test_the_default_is_full_jitter_that_doubles_from_two_seconds_to_an_hour():
    for attempt, ceiling in ((1, 2), (2, 4), (5, 32), (9, 512)):
        seen = [ask(RetryPolicy(), attempt) for _ in range(300)]
        assert 0 <= min(seen) < ceiling * 0.1
        assert ceiling * 0.9 < max(seen) <= ceiling
    assert max(ask(RetryPolicy(max_attempts=None), 1000) for _ in range(300)) <= 3600


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (0, [0, 0, 0]),
        (1.5, [1.5, 1.5, 1.5]),
        (timedelta(minutes=2), [120, 120, 120]),
        (wait_none(), [0, 0, 0]),
        (wait_incrementing(start=1, increment=10, max=15), [1, 11, 15]),
        (wait_chain(wait_fixed(1), wait_fixed(5)), [1, 5, 5]),
        (wait_fixed(3) + wait_incrementing(start=0, increment=1), [3, 4, 5]),
        (lambda rs: rs.attempt_number * 7, [7, 14, 21]),
        (lambda rs: timedelta(hours=rs.attempt_number), [3600, 7200, 10800]),
    ],
)
def test_a_wait_is_a_number_a_timedelta_a_tenacity_object_or_a_function(wait, expected):
    assert [ask(RetryPolicy(wait=wait), attempt) for attempt in (1, 2, 3)] == expected


class BusyError(Exception):
    def __init__(self, retry_after):
        super().__init__(f"busy for {retry_after} s")
        self.retry_after = retry_after


def test_the_error_may_determine_the_wait():
    policy = RetryPolicy(wait=lambda state: state.outcome.exception().retry_after)
    assert ask(policy, error=BusyError(17)) == 17


def test_a_negative_wait_means_immediately():
    assert ask(RetryPolicy(wait=lambda rs: -3.5)) == 0
    assert ask(RetryPolicy(wait=lambda rs: timedelta(days=-3))) == 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda rs: 2**5000,
        lambda rs: 1e300,
        lambda rs: timedelta.max,
        wait_exponential(),
        10**400,
        1e18,
        timedelta.max,
    ],
)
def test_a_huge_delay_is_limited_to_ten_years(wait):
    delay = ask(RetryPolicy(max_attempts=None, wait=wait), attempt=100_000)
    assert delay == timedelta(days=3650).total_seconds()
    assert datetime(2100, 1, 1, tzinfo=UTC) + timedelta(seconds=delay)


@pytest.mark.parametrize("wait", [RetryPolicy().wait, wait_exponential_jitter(max=3600), wait_incrementing(max=3600)])
def test_attempt_one_hundred_thousand_does_not_overflow(wait):
    assert 0 <= ask(RetryPolicy(max_attempts=None, wait=wait), attempt=100_000) <= 3600


# When retries end


def test_no_retry_follows_the_last_of_max_attempts():
    assert [ask(RetryPolicy(max_attempts=3, wait=1), attempt) for attempt in (1, 2, 3, 4)] == [1, 1, None, None]


def test_the_default_gives_up_after_the_tenth_attempt():
    assert ask(RetryPolicy(), attempt=9) is not None
    assert ask(RetryPolicy(), attempt=10) is None


def test_without_max_attempts_and_stop_retries_never_end():
    assert ask(RetryPolicy(max_attempts=None, wait=1), attempt=10**9, elapsed=10**9) == 1


def test_the_never_policy_allows_one_attempt():
    assert ask(RetryPolicy.never()) is None


@pytest.mark.parametrize(
    "policy",
    [RetryPolicy(max_attempts=3, wait=1), RetryPolicy.of(Retrying(stop=stop_after_attempt(3), wait=wait_fixed(1)))],
)
def test_max_attempts_of_the_task_overrides_that_of_the_policy(policy):
    assert ask(policy, attempt=3, max_attempts=None) is None
    assert ask(policy, attempt=3, max_attempts=5) == 1
    assert ask(policy, attempt=5, max_attempts=5) is None
    assert ask(policy, attempt=2, max_attempts=2) is None


def test_a_stop_object_also_applies_to_max_attempts_of_the_task():
    policy = RetryPolicy(wait=1, stop=stop_after_attempt(4) | stop_after_delay(60))
    assert ask(policy, attempt=3, max_attempts=99) == 1
    assert ask(policy, attempt=4, max_attempts=99) is None
    assert ask(policy, attempt=1, max_attempts=99, elapsed=61) is None


def test_max_attempts_applies_in_addition_to_a_stop_object():
    assert ask(RetryPolicy(max_attempts=2, wait=1, stop=stop_never), attempt=2) is None


@STEADY
@given(limit=st.integers(1, 10**13).map(lambda micros: timedelta(microseconds=micros)))
def test_stop_after_delay_counts_from_the_first_attempt_and_stops_exactly_at_its_limit(limit):
    policy = RetryPolicy(wait=1, stop=stop_after_delay(limit))

    def delay_after(elapsed):
        return policy.next_delay(attempt=1, error=OSError(), max_attempts=None, elapsed=elapsed)

    assert delay_after(limit) is None
    assert delay_after(limit - timedelta(microseconds=1)) is not None


def test_a_stop_function_sees_the_upcoming_wait():
    # The same as stop_before_delay(60), which tenacity has from version 8.2.3 on.
    policy = RetryPolicy(wait=10, stop=lambda rs: rs.seconds_since_start + rs.upcoming_sleep >= 60)
    assert ask(policy, elapsed=49) == 10
    assert ask(policy, elapsed=50) is None


def test_stop_objects_combine_with_and():
    policy = RetryPolicy(wait=1, stop=stop_after_attempt(2) & stop_after_delay(60))
    assert ask(policy, attempt=2, elapsed=1) == 1
    assert ask(policy, attempt=1, elapsed=61) == 1
    assert ask(policy, attempt=2, elapsed=61) is None


def test_setting_the_clock_back_does_not_make_elapsed_negative():
    seen = []
    ask(RetryPolicy(wait=1, stop=lambda rs: seen.append(rs.seconds_since_start)), elapsed=-5)
    assert seen == [pytest.approx(0, abs=1e-6)]
    assert seen[0] >= 0


# Which errors are retried


@pytest.mark.parametrize(
    ("retry", "tried_again", "final"),
    [
        (None, [OSError(), SystemExit(1), KeyboardInterrupt()], []),
        (OSError, [OSError(), TimeoutError()], [ValueError(), SystemExit()]),
        ((OSError, KeyError), [TimeoutError(), KeyError()], [ValueError()]),
        (SystemExit, [SystemExit()], [OSError()]),
        ((), [], [OSError()]),
        (retry_if_exception_type(OSError), [OSError()], [ValueError()]),
        (retry_if_not_exception_type(ValueError), [OSError()], [ValueError()]),
        (retry_if_exception(lambda error: "down" in str(error)), [OSError("down")], [OSError("gone")]),
        (
            retry_if_exception_type(OSError) | retry_if_exception_message("x"),
            [OSError(), ValueError("x")],
            [KeyError()],
        ),
        (
            retry_if_exception_type(OSError) & retry_if_exception_message(match="5.."),
            [OSError("503")],
            [OSError("404"), ValueError("503")],
        ),
        (lambda rs: isinstance(rs.outcome.exception(), OSError), [OSError()], [ValueError()]),
        (retry_if_result(lambda result: True), [], [OSError()]),
    ],
)
def test_the_retry_rule_determines_which_errors_are_retried(retry, tried_again, final):
    policy = RetryPolicy(wait=1, retry=retry)
    assert [ask(policy, error=error) for error in tried_again] == [1] * len(tried_again)
    assert [ask(policy, error=error) for error in final] == [None] * len(final)


def test_try_again_is_retried_whatever_the_retry_rule_but_within_the_limits():
    policy = RetryPolicy(max_attempts=3, wait=1, retry=ValueError, stop=stop_after_delay(60))
    assert ask(policy, error=TryAgain()) == 1
    assert ask(policy, error=TryAgain(), attempt=3) is None
    assert ask(policy, error=TryAgain(), elapsed=61) is None


# Policies made from a Retrying object


def test_a_retrying_object_is_used_unchanged():
    policy = RetryPolicy.of(
        Retrying(
            stop=stop_after_attempt(5) | stop_after_delay(60),
            wait=wait_fixed(7),
            retry=retry_if_exception_type(OSError),
        )
    )
    assert policy.max_attempts is None
    assert ask(policy, attempt=4, elapsed=59) == 7
    assert ask(policy, attempt=5) is None
    assert ask(policy, elapsed=60) is None
    assert ask(policy, error=ValueError()) is None


@pytest.mark.parametrize(
    ("stop", "bound"), [(stop_after_attempt(4), 4), (stop_after_attempt(0), 1), (stop_never, None)]
)
def test_max_attempts_is_read_from_a_plain_stop_after_attempt(stop, bound):
    assert RetryPolicy.of(Retrying(stop=stop)).max_attempts == bound


def test_a_default_retrying_retries_immediately_and_forever():
    assert ask(RetryPolicy.of(Retrying()), attempt=10**6, elapsed=10**9) == 0
    assert ask(RetryPolicy.of(Retrying()), error=SystemExit()) is None


def test_the_retry_attribute_of_a_decorated_function_is_a_policy_and_the_function_is_not_called():
    @tenacity.retry(stop=stop_after_attempt(2), wait=wait_fixed(9))
    def task():
        raise AssertionError("called")

    policy = RetryPolicy.of(task.retry)
    assert policy.max_attempts == 2
    assert ask(policy) == 9
    assert ask(policy, attempt=2) is None


@pytest.mark.current  # tenacity 8 has no `enabled`
def test_a_disabled_retrying_allows_one_attempt():
    assert ask(RetryPolicy.of(Retrying(enabled=False, wait=wait_fixed(1)))) is None


def test_an_asynchronous_retrying_with_plain_rules_is_accepted():
    assert ask(RetryPolicy.of(AsyncRetrying(wait=wait_fixed(4)))) == 4


def test_the_callbacks_of_a_retrying_are_not_called():
    def refuse(*args):
        raise AssertionError("called")

    retrying = Retrying(
        sleep=refuse,
        before=refuse,
        after=refuse,
        before_sleep=refuse,
        retry_error_callback=refuse,
        stop=stop_after_attempt(2),
    )
    assert ask(RetryPolicy.of(retrying)) == 0
    assert ask(RetryPolicy.of(retrying), attempt=2) is None


def test_none_means_the_default_policy_and_a_policy_is_returned_unchanged():
    policy = RetryPolicy(max_attempts=2)
    assert RetryPolicy.of(policy) is policy
    assert repr(RetryPolicy.of(None)) == repr(RetryPolicy())


# The state that the user's functions see


def test_a_function_sees_the_state_of_the_task():
    error, seen = OSError("down"), []

    def look(rs: RetryCallState):
        seen.append(rs)
        return 5

    policy = RetryPolicy(wait=look, stop=lambda rs: seen.append(rs.upcoming_sleep))
    assert ask(policy, attempt=3, error=error, elapsed=120) == 5
    state, upcoming_sleep = seen
    assert (state.attempt_number, state.outcome.exception(), upcoming_sleep) == (3, error, 5)
    assert state.seconds_since_start == pytest.approx(120)
    assert time.monotonic() - state.start_time == pytest.approx(120, abs=60)
    assert "attempt #3" in repr(state)


def test_a_function_sees_the_retrying_that_contains_it():
    retrying = Retrying(wait=lambda rs: 8 if rs.retry_object is retrying else 0, stop=stop_after_attempt(3))
    assert ask(RetryPolicy.of(retrying)) == 8


def test_a_function_in_a_policy_sees_a_retrying_with_the_same_rules():
    stop = stop_after_attempt(7)
    policy = RetryPolicy(wait=lambda rs: rs.retry_object.stop.max_attempt_number, stop=stop, retry=OSError)
    assert ask(policy) == 7
    assert ask(RetryPolicy(wait=lambda rs: 1 if rs.retry_object.retry(rs) else 0), error=SystemExit()) == 1


# Mistakes


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"max_attempts": "3"},
        {"wait": -1},
        {"wait": timedelta(seconds=-1)},
        {"wait": math.nan},
        {"wait": math.inf},
        {"wait": True},
        {"wait": "5"},
        {"wait": None},
        {"wait": wait_fixed},
        {"wait": stop_after_attempt(3)},
        {"wait": (1, 2)},
        {"stop": 3},
        {"stop": stop_after_attempt},
        {"stop": wait_fixed(3)},
        {"stop": OSError},
        {"retry": 3},
        {"retry": int},
        {"retry": (OSError, 3)},
        {"retry": retry_if_exception_type},
        {"retry": stop_after_attempt(3)},
    ],
)
def test_the_error_for_a_wrong_argument_names_the_argument(arguments):
    (name,) = arguments
    with pytest.raises(InvalidArgument, match=rf"^{name}=.*: give "):
        RetryPolicy(**arguments)


async def later(state):
    return True


class LaterRule:
    async def __call__(self, state):
        return True


OF_TENACITY = [tenacity.asyncio.retry_if_exception(later)] if hasattr(tenacity, "asyncio") else []
"""tenacity's own asynchronous rules, which older releases do not have."""


@pytest.mark.parametrize("name", ["wait", "stop", "retry"])
@pytest.mark.parametrize("rule", [later, LaterRule(), *OF_TENACITY])
def test_a_coroutine_function_is_refused_because_it_is_always_true(name, rule):
    with pytest.raises(InvalidArgument, match=f"^{name}=.*not async"):
        RetryPolicy(**{name: rule})
    with pytest.raises(InvalidArgument, match=f"^{name}="):
        RetryPolicy.of(AsyncRetrying(**{name: rule}))


@pytest.mark.parametrize("value", [5, "never", Retrying, stop_after_attempt(3), tenacity.retry(len)])
def test_the_error_for_an_invalid_policy_names_what_to_pass(value):
    with pytest.raises(InvalidArgument, match=r"is not a retry policy: pass .*tenacity\.Retrying\(\)"):
        RetryPolicy.of(value)


def broken(*args):
    raise LookupError("no such header")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def mute(*args):
    raise MuteError


class AskedWait(wait_base):
    def __init__(self, predicate):
        self.predicate = predicate

    def __call__(self, retry_state):
        return self.predicate(retry_state.outcome.exception())


class MuteWait(wait_fixed):
    def __repr__(self):
        raise RuntimeError("no words")

    def __call__(self, retry_state):
        return math.nan


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"wait": broken}, "wait=broken.*LookupError.*no such header"),
        ({"wait": AskedWait(broken)}, r"wait=AskedWait\(predicate=broken\).*LookupError"),
        ({"stop": broken}, "stop=broken.*LookupError"),
        ({"retry": broken}, "retry=broken.*LookupError"),
        ({"retry": lambda rs: rs.outcome.result()}, "OSError.*down"),
        ({"wait": lambda rs: math.nan}, "wait returned nan"),
        ({"wait": lambda rs: math.inf}, "wait returned inf"),
        ({"wait": lambda rs: None}, "TypeError"),
        ({"wait": lambda rs: "120"}, "TypeError"),
        ({"wait": mute}, "MuteError"),
        ({"wait": MuteWait(1)}, "wait returned nan"),
    ],
)
def test_a_policy_that_raises_or_returns_nonsense_is_a_configuration_error_that_names_it(rules, said):
    with pytest.raises(ConfigurationError, match=r"RetryPolicy.*attempt 4.*OSError.*redrive") as caught:
        ask(RetryPolicy(**rules), attempt=4)
    assert caught.match(said)
    assert caught.value.__cause__ is not None


def test_an_error_that_cannot_be_printed_does_not_break_the_policy():
    assert ask(RetryPolicy(wait=1), error=MuteError()) == 1
    with pytest.raises(ConfigurationError, match="MuteError"):
        ask(RetryPolicy(wait=broken), error=MuteError())


# Other behavior


@pytest.mark.current  # the parts of tenacity's own objects
def test_the_repr_shows_the_rules_of_the_policy():
    policy = RetryPolicy(
        max_attempts=3, wait=wait_fixed(1) + wait_random(0, 2), stop=stop_after_delay(60), retry=(OSError, KeyError)
    )
    assert repr(policy) == (
        "RetryPolicy(max_attempts=3, wait=wait_combine(wait_funcs=(wait_fixed(wait_fixed=1.0), "
        "wait_random(wait_random_min=0.0, wait_random_max=2.0))), stop=stop_after_delay(max_delay=60.0), "
        "retry=retry_if_exception_type(exception_types=(OSError, KeyError)))"
    )
    assert " at 0x" not in repr(RetryPolicy()) + repr(RetryPolicy(wait=broken, retry=retry_if_exception(broken)))


@pytest.mark.current  # tenacity 8 keeps thread-local data in its objects
def test_a_policy_cannot_be_changed_but_can_be_pickled():
    policy = RetryPolicy(max_attempts=2, wait=3)
    with pytest.raises(AttributeError):
        policy.max_attempts = 5
    assert ask(pickle.loads(pickle.dumps(policy))) == 3


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (RetryPolicy(), "up to 10 attempts, random waits that grow from at most 2 s to at most 1 h"),
        (RetryPolicy.never(), "one attempt"),
        (RetryPolicy(max_attempts=None, wait=1.5), "attempts without a limit, 1.5 s apart"),
        (RetryPolicy(max_attempts=3, wait=0), "up to 3 attempts, without a wait"),
        (
            RetryPolicy(max_attempts=None, stop=stop_after_delay(60), wait=wait_exponential(multiplier=1, max=600)),
            "attempts until its stop= ends them, waits that grow from 1 s to at most 10 min",
        ),
        (
            RetryPolicy(wait=wait_incrementing(start=1, increment=2, max=30), retry=ValueError),
            "up to 10 attempts, waits that grow from 1 s by 2 s to at most 30 s, only after errors that its retry= allows",
        ),
        (RetryPolicy(wait=tenacity.wait_random(1, 2)), "up to 10 attempts, random waits of 1 s to 2 s"),
        (RetryPolicy(wait=wait_exponential_jitter()), "up to 10 attempts, waits of wait_exponential_jitter"),
        (RetryPolicy(wait=wait_exponential()), "up to 10 attempts, waits that grow from 1 s"),
    ],
)
def test_a_policy_is_described_in_words(policy, words):
    assert policy.words == words
