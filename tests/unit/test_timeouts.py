"""Timeouts of handlers: TaskTimeout reaches the handler that is late, and never the next one in the same thread."""

from __future__ import annotations

import math
import random
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from outboxq.model import TaskTimeout
from outboxq.worker.timeouts import TimeLimit, Timeouts, raise_in_thread
from tests import forked
from tests.waiting import until


def nothing() -> None: ...


@pytest.fixture
def failures():
    """The errors that ended the timeouts' thread. There must be none in any of these tests."""
    found: list[BaseException] = []
    yield found
    assert found == []


@pytest.fixture
def timeouts(failures):
    timeouts = Timeouts(failures.append)
    yield timeouts
    timeouts.stop()


def limit(timeouts, seconds, *, grace=math.inf, on_kill=nothing):
    return TimeLimit(seconds, grace, on_kill, timeouts)


def busy(seconds: float) -> str:
    """Run Python code for this long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


def test_a_handler_that_ends_in_time_is_not_interrupted(timeouts):
    assert limit(timeouts, 60).call(busy, 0.01) == "done"


def test_a_late_handler_gets_the_exception_and_its_cleanup_runs(timeouts):
    cleaned = []

    def handler() -> None:
        try:
            busy(60)
        finally:
            cleaned.append(True)

    with pytest.raises(TaskTimeout, match=r"longer than its timeout of 0\.5 s"):
        limit(timeouts, 0.5).call(handler)
    assert cleaned == [True]


def test_except_exception_does_not_catch_a_timeout(timeouts):
    def handler() -> None:
        while True:
            with suppress(Exception):  # such loops are the reason for TaskTimeout's base class
                busy(60)

    with pytest.raises(TaskTimeout):
        limit(timeouts, 0.05).call(handler)


def test_a_handler_that_catches_the_timeout_gets_another_one(timeouts):
    came = []

    def handler() -> str:
        while len(came) < 2:
            try:
                busy(60)
            except TaskTimeout:
                came.append(time.monotonic())
        return "after all"

    assert limit(timeouts, 0.5).call(handler) == "after all"
    assert came[1] - came[0] > 0.5


def test_a_limit_added_during_a_check_of_the_watcher_is_enforced(timeouts):
    """Ending a handler by force runs hooks, so a check may take seconds."""
    looking, go = threading.Event(), threading.Event()

    class Slow:
        due = 0.0

        def act(self) -> float:
            looking.set()
            assert go.wait(60)
            return math.inf

    timeouts.watch(Slow())
    assert looking.wait(60)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(limit(timeouts, 0.05).call, busy, 60)
        until(lambda: len(timeouts._limits) == 2)
        time.sleep(0.1)
        go.set()
        assert isinstance(late.exception(60), TaskTimeout)


def test_a_timeout_sent_after_the_handler_ended_is_discarded(failures):
    """The watcher has checked, but sends the exception only when the handler has ended. So the next handler would receive it."""
    sending, go = threading.Event(), threading.Event()

    def slow(thread, kind):
        if threading.get_ident() != thread:  # only the watcher is slow, not the end of the handler
            sending.set()
            assert go.wait(60)
        raise_in_thread(thread, kind)

    timeouts = Timeouts(failures.append, raise_in=slow)
    mine = limit(timeouts, 0.01)

    def handler() -> str:
        assert sending.wait(60)
        threading.Timer(0.2, go.set).start()
        return "done"

    assert mine.call(handler) == "done"
    busy(0.05)  # the next handler of this thread
    assert go.is_set()


def test_a_timeout_that_was_sent_but_not_raised_is_discarded(failures):
    slot = {}

    def put(thread, kind):
        slot[thread] = kind
        if threading.get_ident() == thread:  # raises the exception immediately
            raise slot.pop(thread)

    timeouts = Timeouts(failures.append, raise_in=put)

    def handler() -> str:
        until(lambda: TaskTimeout in slot.values())
        return "done"

    assert limit(timeouts, 0.01).call(handler) == "done"
    assert slot == {}


@pytest.mark.parametrize("seconds", [60, 0.05], ids=["in time", "late"])
def test_a_profiler_works_after_a_handler_with_a_timeout(seconds):
    """In a traced thread, Python 3.11 loops forever if an exception was announced but does not exist."""
    script = f"""
import math, sys, time
from contextlib import suppress
from outboxq.model import TaskTimeout
from outboxq.worker.timeouts import TimeLimit, Timeouts

def handler():
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass

with suppress(TaskTimeout):
    TimeLimit({seconds}, math.inf, print, Timeouts(print)).call(handler)
calls = []
sys.setprofile(lambda *_: calls.append(1))
(lambda: None)()
sys.setprofile(None)
print("done")
"""
    command = [sys.executable, "-c", script]
    assert forked.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "done\n"


@pytest.mark.parametrize("late", [0, 1])
def test_a_timeout_raised_while_the_handler_is_ending_has_no_effect(timeouts, late):
    """The first step of the end is interrupted, once or twice."""
    mine, settle, interruptions = limit(timeouts, 60), TimeLimit._settle, []

    def interrupted() -> None:
        if len(interruptions) <= late:
            interruptions.append(True)
            raise TaskTimeout
        settle(mine)

    mine._settle = interrupted
    assert mine.call(busy, 0) == "done"
    assert len(interruptions) == late + 1


def test_no_timeout_leaks_into_the_next_handler(timeouts):
    """Many handlers, in several threads, end at the moment of their timeout."""
    before, leaks, ends = sys.getswitchinterval(), [], {"in time": 0, "late": 0}
    begun = time.monotonic()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while (ran := time.monotonic() - begun) < 2 or (min(ends.values()) <= 50 and ran < 60):
            seconds = chance.uniform(0.0002, 0.002)
            try:
                limit(timeouts, seconds).call(busy, seconds * chance.uniform(0.9, 1.1))
            except TaskTimeout:
                ends["late"] += 1
            else:
                ends["in time"] += 1
            try:
                busy(0.0002)
            except TaskTimeout:
                leaks.append(seed)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert leaks == []
    assert ends["late"] > 50, ends
    assert ends["in time"] > 50, ends


def test_a_handler_that_does_not_end_is_killed_once_and_its_end_is_discarded(timeouts):
    killed, go = [], threading.Event()
    mine = limit(timeouts, 0.5, grace=0.1, on_kill=lambda: killed.append(True))  # by then, the handler must be deaf

    def deaf() -> None:
        go.wait(60)  # waits in C, so exceptions sent meanwhile are raised only when it ends

    def work() -> None:
        with suppress(TaskTimeout):
            mine.call(deaf)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: killed)
    assert mine.was_killed
    assert "in deaf" in "".join(traceback.format_exception(mine.overrun()))
    go.set()
    thread.join()
    assert killed == [True]
    assert mine.was_killed


def test_a_handler_that_ends_within_the_grace_is_not_killed(timeouts):
    mine = limit(timeouts, 0.01, grace=60, on_kill=lambda: pytest.fail("killed"))
    with pytest.raises(TaskTimeout):
        mine.call(busy, 60)
    assert not mine.was_killed


def test_limits_of_ended_handlers_are_forgotten(timeouts):
    for _ in range(10):
        limit(timeouts, 3600).call(nothing)
    assert timeouts._limits == {}


def test_a_timeout_at_the_first_possible_line_leaves_the_worker_protected(timeouts):
    class RaisesAtOnce(TimeLimit):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if (name, value) == ("_is_held_back", False) and protected == []:
                raise TaskTimeout

    protected = [None]
    one = RaisesAtOnce(60, math.inf, nothing, timeouts)
    protected.clear()
    with one.holding_back():
        with pytest.raises(TaskTimeout), one.letting_through():
            pass
        protected.append(one._is_held_back)
    assert protected == [True]
