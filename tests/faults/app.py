"""What the worker processes of the fault tests run: `outboxq worker tests.faults.app:outbox`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from outboxq import Outbox, RetryPolicy, TaskContext
from tests.waiting import until

outbox = Outbox()


@outbox.task(name="faults.nothing", queue="faults", lease=30)
def nothing(number: int) -> None: ...


@outbox.task(name="faults.flaky", queue="faults", lease=2, retry=RetryPolicy(max_attempts=5, wait=0))
def flaky(ctx: TaskContext, number: int) -> None:
    """Short or a little longer; one in fifty fails once."""
    time.sleep(number % 7 * 0.003)
    if number % 50 == 0 and ctx.attempt == 1:
        raise ValueError("once")


@outbox.task(name="faults.wait", queue="faults", lease=1)
def wait(directory: str) -> str:
    """Says who runs it, and waits for leave to end."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(Path(directory, "go").exists, seconds=60)
    return str(os.getpid())


@outbox.task(name="faults.poison", queue="faults", lease=0.5)
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
