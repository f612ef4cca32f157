"""The application that the fault tests' workers run: `outboxq worker tests.faults.app:outbox`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from sqlalchemy import text

from outboxq import Outbox, RetryPolicy, TaskContext
from outboxq.worker import worker as worker_module
from tests.faults.effects import effect_of
from tests.faults.runs import Pen
from tests.waiting import until

assert "pytest" not in sys.modules, "import this module only in workers' processes, because it changes a timeout"
worker_module._GIVE_BACK_TIMEOUT = 5.0
"""Seconds. On a busy machine, releasing tasks may take longer than the default of 0.8 s.

Each worker process imports this module, including a supervisor's workers.
"""
outbox = Outbox()
NEVER = RetryPolicy.never()
pen: Pen | None = None
"""The object with which a campaign's handlers record their runs."""


@outbox.task(name="faults.nothing", queue="faults", lease=30)
def nothing(number: int) -> None: ...


@outbox.task(name="faults.flaky", queue="faults", lease=2, retry=RetryPolicy(max_attempts=5, wait=0))
def flaky(ctx: TaskContext, number: int) -> int:
    """Run for at most 18 ms. One task in fifty fails once."""
    with _written_down(ctx):
        time.sleep(number % 7 * 0.003)
    if number % 50 == 0 and ctx.attempt == 1:
        raise ValueError("once")
    return number


@outbox.task(name="faults.counted", queue="faults", lease=2, retry=NEVER)
def counted(ctx: TaskContext, path: str) -> None:
    """Write the number of results that it read, and of completed tasks in its batch, to a file. Fail in the first attempt."""
    found = [one.value for one in ctx.batch.results()]
    told = {"attempt": ctx.attempt, "read": len(found), "distinct": len(set(found)), "completed": ctx.batch.completed}
    with Path(path).open("a") as file:
        file.write(f"{json.dumps(told)}\n")
    if ctx.attempt == 1:
        raise ValueError("once")


@outbox.task(name="faults.away", queue="faults", lease=30, retry=RetryPolicy(max_attempts=3, wait=600))
def away() -> None:
    """Fail. The retry is much later."""
    raise OSError("the server does not answer")


@outbox.task(name="faults.slow", queue="faults", lease=2)
def slow(ctx: TaskContext, seconds: float) -> None:
    """Run long enough to be hit by the next fault."""
    with _written_down(ctx):
        time.sleep(seconds)


@outbox.task(name="faults.turn", queue="faults", lease=1, retry=RetryPolicy(max_attempts=5, wait=0.05))
def turn(ctx: TaskContext, number: int) -> None:
    """Run with a key. One task in five fails once, and is retried a little later."""
    time.sleep(number % 7 * 0.002)
    if number % 5 == 0 and ctx.attempt == 1:
        raise ValueError("once")


@outbox.task(
    name="faults.entry",
    queue="faults",
    lease=2,
    transactional=True,
    retry=RetryPolicy(max_attempts=20, wait=0.2),
)
def entry(ctx: TaskContext, number: int, die: str = "") -> None:
    """Write one effect in the task's transaction. In its first run, optionally die before or after that."""
    _die(ctx, die == "before")
    with _written_down(ctx):
        ctx.connection.execute(text("INSERT INTO effects (task) VALUES (:task)"), {"task": ctx.task_id.hex})
    _die(ctx, die == "after")


@outbox.task(name="faults.ledger", queue="faults", lease=2, transactional=True, retry=NEVER)
def ledger(ctx: TaskContext, seconds: float) -> None:
    """Write one effect in a transaction that stays open for `seconds`. A failed attempt is the last one."""
    ctx.connection.execute(text("INSERT INTO effects (task) VALUES (:task)"), {"task": ctx.task_id.hex})
    with _written_down(ctx):
        time.sleep(seconds)


@outbox.task(name="faults.errand", queue="faults", lease=2, retry=NEVER)
def errand(ctx: TaskContext, seconds: float) -> None:
    """Run for `seconds` without the database. A failed attempt is the last one."""
    with _written_down(ctx):
        time.sleep(seconds)


@outbox.task(name="faults.wait", queue="faults", lease=1)
def wait(directory: str) -> str:
    """Record the process's pid, and wait until the file `go` exists."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(Path(directory, "go").exists, seconds=60)
    return str(os.getpid())


@outbox.task(name="faults.heed", queue="faults", lease=30)
def heed(ctx: TaskContext, directory: str) -> None:
    """Record the process's pid, and end as soon as the worker requests it."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(lambda: ctx.should_stop, seconds=60)
    ctx.checkpoint()


@outbox.task(name="faults.linger", queue="faults", lease=30)
def linger(ctx: TaskContext, directory: str, seconds: float) -> None:
    """Record the process's pid. When the worker requests an end, record that, and end `seconds` later."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(lambda: ctx.should_stop, seconds=60)
    Path(directory, f"told-{os.getpid()}").touch()
    time.sleep(seconds)


@outbox.task(name="faults.hold", queue="faults", lease=30)
def hold(ctx: TaskContext, directory: str) -> None:
    """Record the process's pid. When the worker requests an end, record that, and wait until the file `go` exists."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(lambda: ctx.should_stop, seconds=60)
    Path(directory, f"told-{os.getpid()}").touch()
    until(Path(directory, "go").exists, seconds=60)


@outbox.task(name="faults.note", queue="faults", lease=30)
def note(ctx: TaskContext, directory: str, name: str, die: str = "", milliseconds: int = 0) -> None:
    """Record its beginning and its end. In its first run, optionally die before or after that."""
    _die(ctx, die == "before")
    _write(directory, "begins", name)
    time.sleep(milliseconds / 1000)
    _write(directory, "ends", name)
    _die(ctx, die == "after")


@outbox.task(name="faults.stepped", queue="faults", lease=30, retry=RetryPolicy(max_attempts=50, wait=0))
def stepped(ctx: TaskContext, directory: str, count: int = 3) -> list[str]:
    """Run `count` steps. Every third step writes an effect in its own transaction, and every tenth sleeps for zero seconds."""
    found = []
    for number in range(count):
        if number % 10 == 9:
            ctx.sleep(f"sleep {number}", 0)
        elif number % 3 == 1:
            found.append(ctx.step(f"effect {number}", _effect, number, transactional=True))
        else:
            found.append(ctx.step(f"note {number}", _noted, directory, f"{ctx.task_id}:{number}"))
    return found


def _effect(ctx: TaskContext, number: int) -> str:
    effect = effect_of(ctx.task_id, number)
    ctx.connection.execute(text("INSERT INTO effects (task) VALUES (:task)"), {"task": effect})
    return effect


def _noted(directory: str, name: str) -> str:
    _write(directory, "step", name)
    return name


@outbox.task(name="faults.beaten", queue="faults", lease=30)
def beaten(ctx: TaskContext) -> None:
    """End once the lease has been extended."""
    first = ctx.deadline
    until(lambda: ctx.deadline > first or ctx.lost)


@outbox.task(name="faults.blocked", queue="faults", lease=30, timeout=1, timeout_action="kill", retry=NEVER)
def blocked(directory: str) -> None:
    """Record the process's pid, and wait in C for a lock that this thread holds. No exception or signal ends the wait."""
    Path(directory, f"started-{os.getpid()}").touch()
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


together = threading.Barrier(8)


@outbox.task(name="faults.meet", queue="faults", lease=30, retry=NEVER)
def meet() -> None:
    """End once eight such tasks run in one process."""
    together.wait(60)


@outbox.task(name="faults.poison", queue="faults", lease=0.5)
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Oddity(BaseException):
    """An exception that `except Exception` does not catch."""


@outbox.task(name="faults.hostile", queue="faults", lease=30, retry=NEVER)
def hostile(ctx: TaskContext, kind: str, directory: str) -> None:
    if kind == "os._exit(3)" and not ctx.recovery_attempts:
        os._exit(3)
    if kind == "swallows everything":
        Path(directory, f"started-{os.getpid()}").touch()
        while True:
            try:
                until(lambda: False, seconds=0.5)
            except BaseException:  # noqa: BLE001
                continue
    raise HOSTILE.get(kind, ValueError(kind))


HOSTILE = {"sys.exit(3)": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt(), "BaseException": Oddity()}


def _written_down(ctx: TaskContext) -> AbstractContextManager[None]:
    return pen.run(ctx) if pen else nullcontext()


def _die(ctx: TaskContext, here: bool) -> None:
    if here and not ctx.recovery_attempts:
        os.kill(os.getpid(), signal.SIGKILL)


def _write(directory: str, what: str, name: str) -> None:
    with Path(directory, "journal").open("a") as journal:
        journal.write(f"{os.getpid()} {what} {name}\n")
