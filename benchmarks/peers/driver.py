"""The common part of the drivers for all queues: a child process that receives each command as a line of JSON.

A driver runs in its queue's virtual environment, so this module uses only the standard library. A *client* executes
commands. A *worker* reports that it is ready, waits for the command to begin, and works until its process is ended. Each
task writes its number and the current time to a file in memory, and may then sleep.
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
"""The number of tasks to claim, fetch or complete together, for the queues that have such an option."""

LINE = 32
_began = os.open(os.environ.get("BENCH_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_sleep = float(os.environ.get("BENCH_SLEEP", "0"))


def began(number: int) -> None:
    """Do the work of a task: write its number and the current time in LINE bytes, and sleep if BENCH_SLEEP is set."""
    os.write(_began, b"%010d %020d\n" % (number, time.time_ns()))
    if _sleep:
        time.sleep(_sleep)


class Driver:
    """One queue. `settings` describes its configuration in the report."""

    settings: ClassVar[str] = "as it comes"

    def __init__(self, url: str) -> None:
        """`url` is postgresql://… or the path of a SQLite file."""
        self.url = url

    def setup(self) -> None:
        """Create the queue's tables in an empty database."""

    def enqueue(self, numbers: Iterable[int]) -> None:
        """Enqueue tasks with these numbers on one connection, each in a separate transaction."""
        raise LookupError("cannot enqueue")

    def bulk(self, numbers: Sequence[int]) -> None:
        """Enqueue tasks with these numbers in the queue's fastest way."""
        self.enqueue(numbers)

    def later(self, number: int, seconds: float) -> None:
        """Enqueue a task that becomes due after this number of seconds."""
        raise LookupError("cannot delay")

    def prepare(self) -> None:
        """Prepare a worker, before it reports that it is ready."""

    def work(self) -> None:
        """Work until the process is ended."""
        raise LookupError("cannot work")


class Client:
    """The commands of a client. Each method returns the answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def setup(self) -> str:
        self._driver.setup()
        return self._driver.settings

    def enqueue(self, tasks: int) -> float:
        """Enqueue this number of tasks, and return how many seconds that took."""
        self._driver.enqueue(range(20))  # connects, and compiles and plans the statements
        return _timed(lambda: self._driver.enqueue(range(tasks)))

    def bulk(self, tasks: int) -> float:
        return _timed(lambda: self._driver.bulk(range(tasks)))

    def fill(self, tasks: int) -> None:
        for low in range(0, tasks, 10_000):
            self._driver.bulk(range(low, min(low + 10_000, tasks)))

    def pace(self, first: int, tasks: int) -> list[int]:
        """Enqueue single tasks at random times, and return the time just before each enqueue."""
        moments = []
        for number in range(first, first + tasks):
            time.sleep(random.uniform(0.03, 0.07))
            moments.append(time.time_ns())
            self._driver.enqueue([number])
        return moments

    def delayed(self, first: int, tasks: int, seconds: float) -> list[int]:
        """Enqueue tasks that become due at different times, and return these times."""
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
    os.dup2(2, 1)  # the output of a queue must not be read as an answer
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
    """Enqueue single tasks in several processes. Returns the number of tasks per second, and the longest time in seconds
    that one of the processes waited for a commit.

    The processes are forked before any connection is opened, because SQLite's locks do not survive a fork.
    """
    told, starting = [], os.pipe()
    for _ in range(processes):
        hears, tells = os.pipe()
        if not os.fork():
            try:
                os.close(starting[1])
                _enqueue_until(kind(url), seconds, starting[0], tells)
            finally:
                os._exit(0)  # the parent notices the missing answer
        os.close(tells)
        told.append(os.fdopen(hears))
    for one in told:
        assert one.readline() == "ready\n", "a producer has failed"
    began = time.monotonic()
    os.close(starting[1])
    answers = [json.loads(one.readline()) for one in told]
    return sum(done for done, _ in answers) / (time.monotonic() - began), max(worst for _, worst in answers)


def _enqueue_until(driver: Driver, seconds: float, start: int, answer: int) -> None:
    driver.enqueue(range(5))  # connects, and compiles the statements
    os.write(answer, b"ready\n")
    os.read(start, 1)  # returns when the parent closes its end of the pipe
    done, worst, deadline = 0, 0.0, time.monotonic() + seconds
    while (began := time.monotonic()) < deadline:
        driver.enqueue([done])
        done, worst = done + 1, max(worst, time.monotonic() - began)
    os.write(answer, b"[%d, %.6f]\n" % (done, worst))


def _end_with_parent() -> None:
    """Exit when the parent's end of the pipe is closed, which happens however the parent ends."""
    while sys.stdin.readline():
        pass
    os._exit(1)
