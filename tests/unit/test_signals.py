"""Signals in processes that tests start: a caller of the tests that ignores or blocks signals does not affect them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signals import INHERITED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

ASKED = f"""
import signal

names = [number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
for number in {[int(number) for number in INHERITED]}:
    if signal.getsignal(number) is signal.SIG_IGN:
        names.append(signal.Signals(number).name)
print(*names)
"""

IGNORED = """
import os, signal, sys

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_process_that_a_test_starts_ignores_and_blocks_no_signals():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"


def ignored(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with SIGHUP, SIGINT, SIGQUIT and SIGCHLD ignored and SIGTERM blocked."""
    command = [sys.executable, "-c", IGNORED, *arguments]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_a_process_normally_inherits_ignored_signals():
    """Otherwise, the next test would prove nothing."""
    assert set(ignored("-c", ASKED).stdout.split()) == {number.name for number in INHERITED}


def test_processes_ignore_no_signals_even_if_the_caller_of_the_tests_does():
    here = f"{Path(__file__).relative_to(ROOT)}::{test_a_process_that_a_test_starts_ignores_and_blocks_no_signals.__name__}"
    done = ignored("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", here)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_the_test_process_still_ignores_inherited_signals(number):
    script = f"""
import os
from tests.signals import set_for_children
set_for_children()
os.kill(os.getpid(), {int(number)})
print("goes on")
"""
    assert ignored("-c", script).stdout == "goes on\n"
