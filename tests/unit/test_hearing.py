"""Signals that a worker's command hears before the worker does."""

from __future__ import annotations

import signal
import sys
import weakref

import pytest

from outboxq.cli.stop_signals import stop_on_signals


class Thing:
    """Something that a weak reference may lead to."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_whose_exit_python_swallows_ends_the_command_all_the_same(monkeypatch, number):
    """As one that comes while a weak reference's callback runs: of those there are many while modules are imported."""
    swallowed, thing = [], Thing()
    monkeypatch.setattr(sys, "unraisablehook", lambda told: swallowed.append(told.exc_type))
    with pytest.raises(SystemExit) as ended, stop_on_signals(lambda: False) as heed:
        reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
        del thing
        assert reference() is None
        assert swallowed == [SystemExit]
        heed()
    assert ended.value.code == 0


def test_without_a_signal_the_command_goes_on():
    with stop_on_signals(lambda: False) as heed:
        heed()
