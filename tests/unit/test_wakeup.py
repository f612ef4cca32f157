"""A wait ends only with a wake-up or after its timeout."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import pytest

from outboxq.worker.distributor.base import Wakeup


def test_notifications_before_the_wait_count_as_one():
    wakeup = Wakeup()
    wakeup.notify()
    wakeup.notify()
    assert wakeup.wait(0)
    assert not wakeup.wait(0)


def test_a_notification_ends_a_wait():
    wakeup = Wakeup()
    threading.Timer(0.05, wakeup.notify).start()
    assert wakeup.wait(60)


def test_a_closed_wakeup_does_not_wait():
    with closing(Wakeup()) as wakeup:
        pass
    assert [wakeup.wait(60) for _ in range(3)] == [True] * 3


@pytest.fixture
def handler():
    def install(handle):
        signal.signal(signal.SIGUSR1, lambda *_: handle())

    previous = signal.getsignal(signal.SIGUSR1)
    yield install
    signal.signal(signal.SIGUSR1, previous)


def test_a_signal_handler_may_notify(handler):
    wakeup = Wakeup()
    handler(wakeup.notify)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    assert wakeup.wait(60)


def test_a_wait_times_out_even_if_a_signal_handler_runs_longer(handler):
    """Otherwise, a worker's main thread would not notice a SIGTERM that another of its threads receives."""
    wakeup = Wakeup()
    handler(lambda: time.sleep(0.4))
    late = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    late.start()
    rescue = threading.Timer(30, wakeup.notify)
    rescue.start()
    assert not wakeup.wait(0.2)
    rescue.cancel()
    late.join()  # without the handler, the signal would end the process


def test_a_nudge_ends_a_wait_without_a_notification():
    wakeup = Wakeup()
    wakeup.nudge()
    assert not wakeup.wait(60)
    wakeup.notify()
    wakeup.nudge()
    assert wakeup.wait(60)
