"""The clock of a test, beside a real clock that continues while the process waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outboxq.testing import clock
from outboxq.testing.clock import Clock

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


class Real:
    """A real clock whose time the test sets. After it is read, it moves forward by `wait`."""

    def __init__(self):
        self.at, self.wait = BEGAN, timedelta(0)

    def now(self, _zone):
        seen = self.at
        self.at, self.wait = seen + self.wait, timedelta(0)
        return seen


@pytest.fixture
def real(monkeypatch):
    real = Real()
    monkeypatch.setattr(clock, "datetime", real)
    return real


def test_a_past_time_of_the_real_clock_is_the_present_after_any_wait(real):
    real.wait = timedelta(seconds=1)
    ours = Clock()
    moment = real.now(UTC)
    assert ours() == BEGAN
    assert moment > ours()
    assert ours.present(moment) == ours()


def test_the_clock_advances_without_falling_behind(real):
    ours = Clock()
    real.at += timedelta(minutes=1)
    real.wait = timedelta(seconds=1)
    ours.run_on()
    assert ours() == BEGAN + timedelta(minutes=1)
    ours.run_on()
    assert ours() == real.at
