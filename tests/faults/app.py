"""What the worker processes of the fault tests run: `outboxq worker tests.faults.app:outbox`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from uuid import UUID, uuid5

from sqlalchemy import text

from outboxq import Outbox, RetryPolicy, TaskContext
from outboxq.worker import worker as worker_module
from tests.faults.runs import Pen
from tests.waiting import until

worker_module._GIVE_BACK_TIMEOUT = 5.0
"""Seconds. On a busy machine, giving tasks back may take longer than the 0.8 s that a user waits for at most. Each worker
process imports this module, those of a supervisor too.
"""
outbox = Outbox()
NEVER = RetryPolicy.never()
pen: Pen | None = None
"""What the handlers of a campaign write their runs down with."""


@outbox.task(name="faults.nothing", queue="faults", lease=30)
def nothing(number: int) -> None: ...


@outbox.task(name="faults.flaky", queue="faults", lease=2, retry=RetryPolicy(max_attempts=5, wait=0))
def flaky(ctx: TaskContext, number: int) -> int:
    """Short or a little longer; one in fifty fails once."""
    with _written_down(ctx):
        time.sleep(number % 7 * 0.003)
    if number % 50 == 0 and ctx.attempt == 1:
        raise ValueError("once")
    return number


@outbox.task(name="faults.counted", queue="faults", lease=2, retry=NEVER)
def counted(ctx: TaskContext, path: str) -> None:
    """Append to a file how many results of its batch were read, and of how many tasks; then fail in the first attempt."""
    found = [one.value for one in ctx.batch.results()]
    told = {"attempt": ctx.attempt, "read": len(found), "distinct": len(set(found)), "completed": ctx.batch.completed}
    with Path(path).open("a") as file:
        file.write(f"{json.dumps(told)}\n")
    if ctx.attempt == 1:
        raise ValueError("once")


@outbox.task(name="faults.away", queue="faults", lease=30, retry=RetryPolicy(max_attempts=3, wait=600))
def away() -> None:
    """Fails, and is tried again much later."""
    raise OSError("the server does not answer")


@outbox.task(name="faults.slow", queue="faults", lease=2)
def slow(ctx: TaskContext, seconds: float) -> None:
    """Runs into whatever happens next."""
    with _written_down(ctx):
        time.sleep(seconds)


@outbox.task(name="faults.turn", queue="faults", lease=1, retry=RetryPolicy(max_attempts=5, wait=0.05))
def turn(ctx: TaskContext, number: int) -> None:
    """Of a key; one in five fails once, and is tried again a little later."""
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
    """One effect, in the task's own transaction; dies, the first time, before it or after it."""
    _die(ctx, die == "before")
    with _written_down(ctx):
        ctx.connection.execute(text("INSERT INTO effects (task) VALUES (:task)"), {"task": ctx.task_id.hex})
    _die(ctx, die == "after")


@outbox.task(name="faults.ledger", queue="faults", lease=2, transactional=True, retry=NEVER)
def ledger(ctx: TaskContext, seconds: float) -> None:
    """One effect, in a transaction that stays open for so long; an attempt that fails is its last."""
    ctx.connection.execute(text("INSERT INTO effects (task) VALUES (:task)"), {"task": ctx.task_id.hex})
    with _written_down(ctx):
        time.sleep(seconds)


@outbox.task(name="faults.errand", queue="faults", lease=2, retry=NEVER)
def errand(ctx: TaskContext, seconds: float) -> None:
    """Outside of the database; an attempt that fails is its last."""
    with _written_down(ctx):
        time.sleep(seconds)


@outbox.task(name="faults.wait", queue="faults", lease=1)
def wait(directory: str) -> str:
    """Says who runs it, and waits for leave to end."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(Path(directory, "go").exists, seconds=60)
    return str(os.getpid())


@outbox.task(name="faults.heed", queue="faults", lease=30)
def heed(ctx: TaskContext, directory: str) -> None:
    """Says who runs it, and ends as soon as it should."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(lambda: ctx.should_stop, seconds=60)
    ctx.checkpoint()


@outbox.task(name="faults.linger", queue="faults", lease=30)
def linger(ctx: TaskContext, directory: str, seconds: float) -> None:
    """Says who runs it; when it should end, says so, and ends so much later."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(lambda: ctx.should_stop, seconds=60)
    Path(directory, f"told-{os.getpid()}").touch()
    time.sleep(seconds)


@outbox.task(name="faults.hold", queue="faults", lease=30)
def hold(ctx: TaskContext, directory: str) -> None:
    """Says who runs it; when it should end, says so, and waits for leave to end."""
    Path(directory, f"started-{os.getpid()}").touch()
    until(lambda: ctx.should_stop, seconds=60)
    Path(directory, f"told-{os.getpid()}").touch()
    until(Path(directory, "go").exists, seconds=60)


@outbox.task(name="faults.note", queue="faults", lease=30)
def note(ctx: TaskContext, directory: str, name: str, die: str = "", milliseconds: int = 0) -> None:
    """Writes down when it begins and ends; dies, the first time, before that or after it."""
    _die(ctx, die == "before")
    _write(directory, "begins", name)
    time.sleep(milliseconds / 1000)
    _write(directory, "ends", name)
    _die(ctx, die == "after")


@outbox.task(name="faults.stepped", queue="faults", lease=30, retry=RetryPolicy(max_attempts=50, wait=0))
def stepped(ctx: TaskContext, directory: str, count: int = 3) -> list[str]:
    """So many steps: every third is an effect in a transaction of its own, and every tenth a sleep of nothing."""
    found = []
    for number in range(count):
        if number % 10 == 9:
            ctx.sleep(f"sleep {number}", 0)
        elif number % 3 == 1:
            found.append(ctx.step(f"effect {number}", _effect, number, transactional=True))
        else:
            found.append(ctx.step(f"note {number}", _noted, directory, f"{ctx.task_id}:{number}"))
    return found


def effect_of(task_id: UUID, number: int) -> str:
    """The row that this step of such a task writes."""
    return uuid5(task_id, str(number)).hex


def effects_of(task_id: UUID, count: int = 3) -> list[str]:
    """The rows that such a task writes, once each."""
    return [effect_of(task_id, number) for number in range(count) if number % 3 == 1 and number % 10 != 9]


def _effect(ctx: TaskContext, number: int) -> str:
    effect = effect_of(ctx.task_id, number)
    ctx.connection.execute(text("INSERT INTO effects (task) VALUES (:task)"), {"task": effect})
    return effect


def _noted(directory: str, name: str) -> str:
    _write(directory, "step", name)
    return name


@outbox.task(name="faults.beaten", queue="faults", lease=30)
def beaten(ctx: TaskContext) -> None:
    """Ends once its lease has been extended."""
    first = ctx.deadline
    until(lambda: ctx.deadline > first or ctx.lost)


@outbox.task(name="faults.blocked", queue="faults", lease=30, timeout=1, timeout_action="kill", retry=NEVER)
def blocked(directory: str) -> None:
    """Says who runs it, and waits in C for a lock that it has itself: no exception and no signal ends that."""
    Path(directory, f"started-{os.getpid()}").touch()
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


together = threading.Barrier(8)


@outbox.task(name="faults.meet", queue="faults", lease=30, retry=NEVER)
def meet() -> None:
    """Ends once eight of it run in one process."""
    together.wait(60)


@outbox.task(name="faults.poison", queue="faults", lease=0.5)
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Oddity(BaseException):
    """No Exception: `except Exception` does not see it."""


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
