"""Stop signals that arrive before the worker handles them itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import weakref

import pytest

from outboxq.cli.serving.starting import leave_on_signals, starts_worker
from outboxq.cli.serving.stop_requests import stop_on_signals


class Thing:
    """An object for a weak reference."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_although_python_swallows_its_exit(monkeypatch, number):
    """Python ignores exceptions in a weak reference's callback, and many such callbacks run while modules are imported."""
    swallowed, thing = [], Thing()
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: swallowed.append(raised.exc_type))
    with pytest.raises(SystemExit) as ended, stop_on_signals(lambda: False) as exit_if_stopped:
        reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
        del thing
        assert reference() is None
        assert swallowed == [SystemExit]
        exit_if_stopped()
    assert ended.value.code == 0


def test_without_a_signal_the_command_continues():
    with stop_on_signals(lambda: False) as exit_if_stopped:
        exit_if_stopped()


def ended(number: int, *words: str) -> int:
    """Send a signal to a command when its module is imported, and return the command's exit code."""
    program = f"""
import os, sys
from outboxq.cli import groups, main

def resolve(_):
    os.kill(os.getpid(), {int(number)})
    os._exit(7)

groups.resolve_name, sys.argv = resolve, ["outboxq", *{words!r}]
main()
"""
    return subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_worker_stops_cleanly_while_its_modules_are_imported(number):
    assert ended(number, "worker", "shop:outbox") == 0


def test_another_command_is_ended_by_the_signal():
    assert ended(signal.SIGTERM, "workers", "list") == -signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "starts"),
    [(["worker"], True), (["worker", "shop"], True), (["workers", "show", "x"], False), ([], False)],
)
def test_only_worker_commands_are_recognised_as_such(words, starts):
    assert starts_worker(words) is starts


def test_pythons_default_handlers_are_restored_after_the_worker():
    # A script's `&` ignores SIGINT, nohup ignores SIGHUP, and a command that an earlier test ran may still handle SIGTERM.
    defaults = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
    inherited = {number: signal.signal(number, signal.SIG_DFL) for number in defaults}
    inherited[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    assert before == {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    leave_on_signals()
    with stop_on_signals(lambda: False):
        pass
    assert {number: signal.getsignal(number) for number in before} == before
    for number in (signal.SIGHUP, signal.SIGQUIT):
        assert signal.getsignal(number) is signal.SIG_DFL
    for number, handler in inherited.items():
        signal.signal(number, handler)
