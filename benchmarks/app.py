"""The tasks that the benchmarks' worker processes run; the first act of each says when it began."""

from __future__ import annotations

import os
import time

from outboxq import Outbox, TaskContext

outbox = Outbox()
_began = os.open(os.environ.get("OUTBOXQ_BENCH_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@outbox.task(name="bench.nothing", queue="bench")
def nothing(number: int) -> None:
    """Its number and the moment."""
    os.write(_began, b"%d %d\n" % (number, time.time_ns()))


@outbox.task(name="bench.slow", queue="bench")
def slow(ctx: TaskContext, number: int) -> None:
    """Keeps its thread until the worker stops."""
    nothing(number)
    while not ctx.should_stop:
        time.sleep(0.05)
