"""Stop signals that come before the worker handles them by itself."""

from __future__ import annotations

import signal
import sys
import weakref

import pytest

from outboxq.cli.serving.stop_requests import stop_on_signals


class Thing:
    """Something that a weak reference may lead to."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_although_python_swallows_its_exit(monkeypatch, number):
    """Python swallows it inside a weak reference's callback, and many of those run while modules are imported."""
    swallowed, thing = [], Thing()
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: swallowed.append(raised.exc_type))
    with pytest.raises(SystemExit) as ended, stop_on_signals(lambda: False) as exit_if_stopped:
        reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
        del thing
        assert reference() is None
        assert swallowed == [SystemExit]
        exit_if_stopped()
    assert ended.value.code == 0


def test_without_a_signal_the_command_goes_on():
    with stop_on_signals(lambda: False) as exit_if_stopped:
        exit_if_stopped()
