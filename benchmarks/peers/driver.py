"""What the drivers of all queues have in common: a child process that is told what to do, a line of JSON at a time.

A driver runs in its own queue's environment, so this module needs nothing but the standard library. As a *client* it obeys
commands; as a *worker* it says when it is ready, waits to be told to begin, and works until it is ended. The first act of
each task is to write its number and the moment to a file in memory; that is all a task does, unless it is to sleep.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

BATCH = 100
"""Claimed, fetched or completed at once, by whoever can be told."""

LINE = 32
_began = os.open(os.environ.get("BENCH_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_sleep = float(os.environ.get("BENCH_SLEEP", "0"))


def began(number: int) -> None:
    """What a task does: its number and the moment, in LINE bytes; and it sleeps where that is asked for."""
    os.write(_began, b"%010d %020d\n" % (number, time.time_ns()))
    if _sleep:
        time.sleep(_sleep)


class Driver:
    """One queue. `settings` says how it is set up, for the report."""

    settings: ClassVar[str] = "as it comes"

    def __init__(self, url: str) -> None:
        """`url`: postgresql://… or the path of an SQLite file."""
        self.url = url

    def setup(self) -> None:
        """Create its tables in an empty database."""

    def enqueue(self, numbers: Iterable[int]) -> None:
        """A transaction each, on one connection."""
        raise LookupError("cannot enqueue")

    def bulk(self, numbers: Sequence[int]) -> None:
        """All of them as fast as it can."""
        self.enqueue(numbers)

    def later(self, number: int, seconds: float) -> None:
        """A task that is due in so many seconds."""
        raise LookupError("cannot delay")

    def prepare(self) -> None:
        """What a worker does before it is ready."""

    def work(self) -> None:
        """Work until the process is ended."""
        raise LookupError("cannot work")


class Client:
    """The commands; each returns what is answered."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def setup(self) -> str:
        self._driver.setup()
        return self._driver.settings

    def enqueue(self, tasks: int) -> float:
        """Seconds."""
        self._driver.enqueue(range(20))  # connected, compiled, planned
        return _timed(lambda: self._driver.enqueue(range(tasks)))

    def bulk(self, tasks: int) -> float:
        return _timed(lambda: self._driver.bulk(range(tasks)))

    def fill(self, tasks: int) -> None:
        for low in range(0, tasks, 10_000):
            self._driver.bulk(range(low, min(low + 10_000, tasks)))

    def pace(self, first: int, tasks: int) -> list[int]:
        """Single tasks at random moments; when each was about to be enqueued."""
        moments = []
        for number in range(first, first + tasks):
            time.sleep(random.uniform(0.03, 0.07))
            moments.append(time.time_ns())
            self._driver.enqueue([number])
        return moments

    def delayed(self, first: int, tasks: int, seconds: float) -> list[int]:
        """Tasks that become due at moments of their own; when each is due."""
        moments = []
        for number in range(first, first + tasks):
            time.sleep(random.uniform(0.01, 0.02))
            moments.append(time.time_ns() + int(seconds * 1e9))
            self._driver.later(number, seconds)
        return moments


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(kind: type[Driver]) -> None:
    """Run as `python -m benchmarks.peers.NAME client|work|produce URL`."""
    role, url = sys.argv[1:3]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a queue prints is no answer
    if role == "produce":
        _, processes, seconds = json.loads(sys.stdin.readline())
        print(json.dumps({"answer": _produce(kind, url, processes, seconds)}), file=answers)
        return
    driver = kind(url)
    if role == "work":
        driver.prepare()
        print(json.dumps("ready"), file=answers)
        if sys.stdin.readline():
            threading.Thread(target=_end_with_parent, daemon=True).start()
            driver.work()
        return
    client = Client(driver)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps({"answer": getattr(client, command)(*arguments)}), file=answers)


def _produce(kind: type[Driver], url: str, processes: int, seconds: float) -> tuple[float, float]:
    """Tasks a second of processes that all enqueue one by one, and the longest that one of them waited for a commit.

    They are forked before anything is opened: SQLite's locks do not survive it.
    """
    told, starting = [], os.pipe()
    for _ in range(processes):
        hears, tells = os.pipe()
        if not os.fork():
            try:
                os.close(starting[1])
                _enqueue_until(kind(url), seconds, starting[0], tells)
            finally:
                os._exit(0)  # whoever waits for an answer sees that there is none
        os.close(tells)
        told.append(os.fdopen(hears))
    for one in told:
        assert one.readline() == "ready\n", "a producer has failed"
    began = time.monotonic()
    os.close(starting[1])
    answers = [json.loads(one.readline()) for one in told]
    return sum(done for done, _ in answers) / (time.monotonic() - began), max(worst for _, worst in answers)


def _enqueue_until(driver: Driver, seconds: float, start: int, answer: int) -> None:
    driver.enqueue(range(5))  # connected, compiled
    os.write(answer, b"ready\n")
    os.read(start, 1)  # nothing, when the parent closes its end
    done, worst, deadline = 0, 0.0, time.monotonic() + seconds
    while (began := time.monotonic()) < deadline:
        driver.enqueue([done])
        done, worst = done + 1, max(worst, time.monotonic() - began)
    os.write(answer, b"[%d, %.6f]\n" % (done, worst))


def _end_with_parent() -> None:
    """However the parent died, its end of the pipe is closed."""
    while sys.stdin.readline():
        pass
    os._exit(1)
