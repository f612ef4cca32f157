"""Run the demo: a shop with deliberate failures, followed by checks that nothing was lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ... import migrations
from ...errors import TaskNotFound
from ...model.records import EventType, TaskStatus
from ...model.wording import plural
from ...orm import TaskExecution
from ...store.numbers.statistics import Statistics
from ..console import screen
from . import shop

PATIENCE = 60.0
"""The demo stops waiting for its tasks if the counts do not change for this many seconds."""

STOP_TIMEOUT = 10.0
"""Seconds allowed for a worker to stop."""


@dataclass
class Day:
    """A record of what happened during one run of the shop."""

    placed: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    tasks: list[UUID] = field(default_factory=list)
    undone_tasks: list[UUID] = field(default_factory=list)
    """Tasks for orders that were rolled back. These tasks must not exist."""
    killed: int | None = None
    exit_codes: list[int] = field(default_factory=list)
    seconds: float = 0.0


def run(url: str | None, *, orders: int, workers: int) -> int:
    """Run the demo on the database at `url` or on a new SQLite file, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="outboxq-demo-") as directory:
        database = url or f"sqlite:///{Path(directory) / 'shop.db'}"
        if url is None:
            migrations.upgrade(database)
        shop.outbox.bind(database)
        try:
            shop.outbox.store.ensure_current()
            shop.metadata.drop_all(shop.engine())
            shop.metadata.create_all(shop.engine())
            day = _work(database, orders=orders, workers=workers)
            return _report(day)
        finally:
            shop.close()


def _work(database: str, *, orders: int, workers: int) -> Day:
    day = Day()
    began = time.monotonic()
    chance = random.Random(7)  # noqa: S311 - every run should have the same day
    with ExitStack() as cleanup:
        show = cleanup.enter_context(_screen())
        running = [_start_worker(database, cleanup) for _ in range(workers)]
        for number in range(1, orders + 1):
            _place_order(number, day)
            time.sleep(chance.uniform(0.0, 0.02))
            show(_cells(day))
            _kill_the_packer(running, day)
        cells, changed_at = _cells(day), time.monotonic()
        while _unfinished() and time.monotonic() - changed_at < PATIENCE:
            if (counted := _cells(day)) != cells:
                cells, changed_at = counted, time.monotonic()
            show(cells)
            _kill_the_packer(running, day)
            time.sleep(0.1)
        show(_cells(day))
        day.seconds = time.monotonic() - began
        for worker in running:
            worker.terminate()
        day.exit_codes = [_ended(worker) for worker in running if worker.pid != day.killed]
    return day


def _place_order(number: int, day: Day) -> None:
    """Place an order. Every fifth customer cancels at the last moment, so the transaction is rolled back with its
    tasks.
    """
    is_cancelled = number % 5 == 0 and number not in (shop.DECLINED, shop.HEAVY)
    with Session(shop.engine()) as session:
        tasks = [handle.id for handle in shop.place_order(session, number)]
        if is_cancelled:
            session.rollback()
        else:
            session.commit()
    (day.rolled_back if is_cancelled else day.placed).append(number)
    (day.undone_tasks if is_cancelled else day.tasks).extend(tasks)


def _kill_the_packer(running: Sequence[subprocess.Popen[bytes]], day: Day) -> None:
    """Kill the worker that is packing the heavy parcel. SIGKILL stops it as abruptly as a power failure would."""
    if day.killed is None:
        with shop.engine().connect() as connection:
            pid = connection.execute(select(shop.packers.c.pid)).scalar()
        if pid is not None and pid in {worker.pid for worker in running}:
            os.kill(pid, signal.SIGKILL)
            day.killed = pid


def _start_worker(database: str, cleanup: ExitStack) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "outboxq", "worker", "outboxq.cli.demo.shop:outbox", "-q", shop.QUEUE, "-c", "4"]
    environment = {**os.environ, "OUTBOXQ_DATABASE_URL": database}
    silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    worker = subprocess.Popen(command, env=environment, **silent)  # noqa: S603 - the program is outboxq itself
    cleanup.callback(worker.kill)
    return worker


def _ended(worker: subprocess.Popen[bytes]) -> int:
    try:
        return worker.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        worker.kill()
        return worker.wait()


def _counts() -> Statistics:
    (found,) = shop.outbox.store.stats(queues=[shop.QUEUE])
    return found


def _completed() -> int:
    """Return the number of Completed tasks, by counting rows. The statistics may be ten seconds old."""
    done = select(func.count()).where(TaskExecution.queue == shop.QUEUE, TaskExecution.status == TaskStatus.COMPLETED)
    with Session(shop.engine()) as session:
        return session.scalar(done) or 0


def _status(task_id: UUID) -> TaskStatus | None:
    try:
        return shop.outbox.store.get(task_id).status
    except TaskNotFound:
        return None


def _unfinished() -> bool:
    counts = _counts()
    return counts.due + counts.delayed + counts.retrying + counts.running > 0


@contextmanager
def _screen() -> Iterator[Callable[[Mapping[str, object]], None]]:
    """Yield a function that shows the counts, in a live table on a terminal and otherwise as one line per second."""
    if not sys.stdout.isatty():
        printed_at = 0.0

        def show(cells: Mapping[str, object]) -> None:
            nonlocal printed_at
            if time.monotonic() - printed_at >= 1:
                printed_at = time.monotonic()
                click.echo(" · ".join(f"{name} {value}" for name, value in cells.items()))

        yield show
        return
    from rich.live import Live
    from rich.table import Table

    def draw(cells: Mapping[str, object]) -> None:
        table = Table(*cells, title="the shop's outbox")
        table.add_row(*map(str, cells.values()))
        live.update(table)

    with Live(console=screen(), refresh_per_second=8) as live:
        yield draw


def _cells(day: Day) -> dict[str, object]:
    """Return the counts of the orders and of their tasks."""
    counts = _counts()
    return {
        "orders": len(day.placed),
        "rolled back": len(day.rolled_back),
        "due": counts.due,
        "delayed": counts.delayed + counts.retrying,
        "running": counts.running,
        "completed": _completed(),
        "failed": counts.failed,
        "worker killed": day.killed or "not yet",
    }


def _report(day: Day) -> int:
    checks = _checks(day)
    click.echo()
    for sentence, holds in checks.items():
        click.echo(f"{'ok ' if holds else 'BAD'}  {sentence}")
    good = all(checks.values())
    click.echo(f"\n{'Nothing was lost or done twice' if good else 'Something went wrong'}; {day.seconds:.1f} s.")
    return 0 if good else 1


def _checks(day: Day) -> dict[str, bool]:
    """Return a sentence for each check, and whether the check passed."""
    store = shop.outbox.store
    happened = Counter(event.event_type for task_id in day.tasks for event in store.history(task_id))
    retried, reset = happened[EventType.RETRY_SCHEDULED], happened[EventType.RESET]
    ended = Counter(map(_status, day.tasks))
    completed, failed = ended[TaskStatus.COMPLETED], ended[TaskStatus.FAILED]
    with shop.engine().connect() as connection:
        stored = set(connection.execute(select(shop.orders.c.number)).scalars())
        receipts = connection.execute(select(func.count()).select_from(shop.receipts)).scalar()
    broken = store.verify()
    undone, enqueued = any(map(store.history, day.undone_tasks)), len(day.tasks)
    names = ", ".join(one.name for one in broken) or "outboxq verify found no problems"
    return {
        f"all {len(day.placed)} committed orders are in the database": stored == set(day.placed),
        f"{enqueued} tasks were enqueued with the orders, and none with the {len(day.rolled_back)} that were rolled back": (
            happened[EventType.CREATED] == enqueued and not undone
        ),
        f"{completed} tasks completed; {failed} became a dead letter, because a card was declined": (
            ended == {TaskStatus.COMPLETED: enqueued - 1, TaskStatus.FAILED: 1}
        ),
        "the outbox is empty, and no lease is left": not _unfinished(),
        f"{retried} failed attempts were retried": retried > 0,
        f"{receipts} receipts were sent, one for each order": receipts == len(day.placed),
        f"worker {day.killed} was killed with SIGKILL; {reset} of its tasks {plural(reset, 'was', 'were')} taken over": (
            day.killed is not None and reset > 0
        ),
        "the other workers stopped cleanly when told to": not any(day.exit_codes),
        f"every invariant holds ({names})": not broken,
    }
