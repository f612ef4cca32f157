"""Workers, producers and their database under constant faults, and a record of the outcome."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from outboxq import InvalidTransition
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from tests.faults.blows import CALLS, LEASE, Blow, FullDisk, LongWriter, OldSnapshot, Outage, StuckCall
from tests.faults.helpers import left
from tests.faults.plan import Ground, Plan
from tests.faults.reruns import Struck
from tests.faults.runs import Run, Runs
from tests.faults.workers import Process
from tests.waiting import until

T = TypeVar("T")

FROZEN = 3 * LEASE
"""The number of seconds for which a worker is frozen. By then, its leases have expired and its tasks have been recovered."""
RECOVER_EVERY = 1.0
_LEAVING = 90.0
_UNSEEN = 15.0
"""The number of seconds after which more slow tasks are enqueued, if no two were seen running at the same time."""


class Campaign:
    """A campaign that causes faults as planned and records them. Its `complaints` are reported at the end, after all figures."""

    def __init__(self, ground: Ground, fork, directory: Path, plan: Plan, *, seed: str) -> None:
        self.ground, self.database, self.plan = ground, ground.database, plan
        self.fork, self.directory = fork, directory
        self.chance = random.Random(seed)
        self.blows = plan.blows(self.chance)
        self.calls = self.chance.sample(CALLS, len(CALLS))
        self.runs = Runs(directory / "runs")
        self.done: Counter[str] = Counter()
        self.struck: list[Struck] = []
        self.complaints: list[str] = []
        self.own: set[UUID] = set()
        """Tasks that the campaign itself enqueued."""
        self.lasting: list[tuple[float, Struck, Blow]] = []
        self.frozen: list[tuple[float, Struck, Process]] = []
        self.leaving: list[tuple[float, Process]] = []
        self.producers: list[Process] = []
        self.workers: list[Process] = []
        self.snapshot = OldSnapshot(self.database) if plan.crowd else None

    def run(self) -> None:
        try:
            self.workers += [self._worker() for _ in range(self.plan.processes)]
            while self.blows:
                self._produce()
                self._strike()
            self.until(lambda: not (self.lasting or self.frozen or self.leaving))
            if self.snapshot:
                self.snapshot.hold()
            try:
                self.until(self._is_over, seconds=self.plan.patience, every=0.1)
            except AssertionError:
                self.complaints.append(f"unfinished tasks after {self.plan.patience:.0f} s: {left(self.database)}")
            for worker in self.workers:
                self._tell_to_stop(worker)
            with suppress(AssertionError):  # a worker that does not end is reported below
                self.until(lambda: all(worker.poll() is not None for worker in self.workers), seconds=_LEAVING)
            for worker in self.workers:
                self._check_end(worker, {0})
        finally:
            self.close()

    def close(self) -> None:
        """End all faults, even after an interruption, so that the database is available and has room."""
        for _, struck, blow in self.lasting:
            blow.end()
            struck.ended = time.time()
        self.lasting.clear()
        for *_, process in self.frozen:
            process.send(signal.SIGCONT)
        if self.snapshot:
            self.snapshot.release()

    def pids(self) -> list[int]:
        """Return the pids of all processes that write to the database."""
        frozen = [process for *_, process in self.frozen]
        leaving = [process for _, process in self.leaving]
        return [one.pid for one in (*self.workers, *self.producers, *frozen, *leaving) if one.poll() is None]

    def acknowledged(self) -> tuple[set[UUID], set[UUID]]:
        """Return the ids of the tasks whose transaction was committed, and of the tasks whose transaction was rolled back."""
        told: dict[str, set[UUID]] = {"committed": set(self.own), "vain": set()}
        for path in self.directory.glob("acknowledged-*"):
            for line in path.read_text().splitlines():
                what, _, task_id = line.partition(" ")
                with suppress(ValueError):  # the last line of a killed producer
                    told[what].add(UUID(task_id))
        return told["committed"], told["vain"]

    def until(self, condition: Callable[[], T], *, seconds: float = 120, every: float = 0.01) -> T:
        """Wait, and meanwhile end the faults that are over. A frozen process may hold SQLite's lock and block all others."""

        def tended() -> T:
            self._tend()
            return condition()

        return until(tended, seconds=seconds, every=every)

    def _worker(self) -> Process:
        path = str(self.runs.path)
        poll = {"poll": None} if self.plan.crowd else {}  # the default, so that notifications wake the workers
        process: Process = self.fork(concurrency=4, heartbeat=None, recover_every=RECOVER_EVERY, runs=path, **poll)
        return process

    def _missing(self) -> int:
        """Return the number of tasks still to enqueue. Tasks are enqueued as faults occur, so that each fault can affect some."""
        plan = self.plan
        planned = plan.kills + plan.stops + plan.outages + plan.stuck + plan.full
        wanted = plan.tasks * min(planned - len(self.blows) + 2, planned) / planned
        return int(wanted - int(str(self.database.rows("SELECT count(*) FROM task_executions")[0][0])))

    def _is_over(self) -> bool:
        self._produce()
        return self._missing() <= 0 and not self.producers and left(self.database) == 0

    def _produce(self) -> None:
        """Keep two producers running while tasks are missing."""
        self.producers = [one for one in self.producers if one.poll() is None]
        while len(self.producers) < 2 and (missing := self._missing()) > 0:
            number = self.done["producers"]
            self.done["producers"] += 1
            self.producers.append(
                self.fork(
                    "producer",
                    seed=self.chance.randrange(10**9),
                    tasks=max(1, missing // 2),
                    acknowledged=str(self.directory / f"acknowledged-{number}"),
                )
            )

    def _strike(self) -> None:
        """Cause the next fault that is possible now. Only kills and frozen processes can overlap with other faults."""
        alone = {"outage", "stuck", "full"} if self.lasting else set()
        kind = next((kind for kind in self.blows if kind not in alone), None)
        number = None
        if (
            kind == "kill" and self.done["kill"] == 0
        ):  # later victims may have no claim, but this one leaves a task to recover
            number = self._at_work()
        elif kind in {"kill", "stop"}:
            number = self._victim()
        if kind is None or (kind in {"kill", "stop"} and number is None):
            self.until(lambda: True)
            time.sleep(0.01)
            return
        if self.producers and (self.done["producers killed"] == 0 or self.chance.random() < 0.3):
            producer = self.chance.choice(self.producers)
            producer.send(signal.SIGKILL)
            self.done["producers killed"] += producer.wait() == -9
        if number is not None:
            self._strike_worker(kind, number)
        elif kind == "stuck":
            self._begin(self._stuck_call)
        else:
            # The last pages of a full database still have room for a few rows, but not for hundreds.
            self._run_into(1.2 * LEASE, quick=min(200, self.plan.tasks // 4) if kind == "full" else 0)
            self._begin(self._outage if kind == "outage" else lambda: FullDisk(self.ground.disk))
            self.until(lambda: not self.lasting)
        if self.snapshot and not self.lasting:
            self.snapshot.hold()
        self.blows.remove(kind)
        self.done[kind] += 1

    def _victim(self) -> int | None:
        """Return a worker without a slow handler, because processes that die every second would never complete a slow handler.

        In a crowd, every second victim runs a task if possible. The others are chosen from all workers and are most likely asleep.
        """
        busy = {run.pid for run in self.runs.under_way("faults.slow")}
        free = [number for number, worker in enumerate(self.workers) if worker.pid not in busy]
        if self.plan.crowd and (self.done["kill"] + self.done["stop"]) % 2:
            running = {run.pid for run in self.runs.under_way()}
            at_work = [number for number in free if self.workers[number].pid in running]
            free = at_work if at_work or self._missing() > 0 else free
        return self.chance.choice(free) if free else None

    def _at_work(self) -> int:
        """Return the number of a worker that is running a slow handler."""
        pid = self._run_into(1.2 * LEASE)[0].pid
        return next(number for number, worker in enumerate(self.workers) if worker.pid == pid)

    def _strike_worker(self, kind: str, number: int) -> None:
        self.until(lambda: self._is_up(number))
        victim = self.workers[number]
        if not self.plan.crowd:
            self.until(lambda: any(run.pid == victim.pid for run in self.runs.under_way()) or self._is_over())
        time.sleep(self.chance.uniform(0, 0.005 if self.plan.crowd else 0.1))  # a random moment in its work
        now = time.time()
        self.done["asleep"] += all(run.pid != victim.pid for run in self.runs.under_way())
        if kind == "stop":
            victim.send(signal.SIGSTOP)
            self.frozen.append((time.monotonic() + FROZEN, self._struck("freeze", now, pid=victim.pid), victim))
        else:
            victim.send(signal.SIGKILL)
            victim.wait()
            self._check_end(victim, {-9})
            self._struck("kill", now, pid=victim.pid).ended = time.time()
        self.workers[number] = self._worker()

    def _is_up(self, number: int) -> bool:
        """Return whether that worker has started. Replace it if it has ended without being killed."""
        if self.workers[number].poll() is not None:
            self._check_end(self.workers[number], set())
            self.workers[number] = self._worker()
        return self.workers[number].is_up()

    def _run_into(self, seconds: float, *, quick: int = 0) -> list[Run]:
        """Wait until slow handlers run in live workers, so that a fault affects them. Enqueue `quick` quick tasks for a second later."""
        self.until(lambda: all(map(self._is_up, range(len(self.workers)))))  # without a database, a worker ends
        ids = self._enqueue_slow(seconds, quick)
        again = time.monotonic() + _UNSEEN

        def running() -> list[Run]:
            nonlocal again
            pids = {worker.pid for worker in self.workers}
            runs = [run for run in self.runs.under_way("faults.slow") if run.task_id in ids and run.pid in pids]
            if len(runs) < 2 and time.monotonic() > again:  # they may have run while this process was waiting
                ids.update(self._enqueue_slow(seconds))
                again = time.monotonic() + _UNSEEN
            return runs if len(runs) >= 2 else []

        try:
            return self.until(running)
        except AssertionError as error:
            error.add_note(
                f"workers: {[(worker.pid, worker.poll(), worker.text()[-1500:]) for worker in self.workers]}"
            )
            raise

    def _enqueue_slow(self, seconds: float, quick: int = 0) -> set[UUID]:
        """Enqueue four slow tasks with a high priority, and `quick` quick tasks for a second later. Return the slow tasks' ids."""
        rows = [
            self._new("slow", {"seconds": round(seconds * self.chance.uniform(0.8, 1.0), 3)}, priority=100)
            for _ in range(4)
        ]
        later = [self._new("flaky", {"number": number}, delay=timedelta(seconds=1)) for number in range(quick)]
        self._patiently(lambda: self._enqueue([*rows, *later]))
        self.own |= {row.id for row in (*rows, *later)}
        return {row.id for row in rows}

    def _new(self, kind: str, args: dict[str, float], **fields: Any) -> NewTask:
        lease = timedelta(seconds=LEASE)
        name = f"faults.{kind}"
        return NewTask(id=uuid7(), task_name=name, queue="faults", args=json.dumps(args), lease=lease, **fields)

    def _enqueue(self, rows: list[NewTask]) -> None:
        with self.ground.writer.begin() as connection:
            self.database.store.enqueue_many(rows, using=connection)
            orders = [{"id": uuid7().hex, "task": row.id.hex} for row in rows]
            connection.execute(text("INSERT INTO orders (id, task, vain) VALUES (:id, :task, false)"), orders)

    def _stuck_call(self) -> Blow:
        """Return a stuck call for a task whose worker also runs other tasks."""
        runs = self._run_into(2 * LEASE)
        [(pid, _)] = Counter(run.pid for run in runs).most_common(1)
        target = next(run for run in runs if run.pid == pid)
        call = self.calls[self.done["stuck"] % len(self.calls)]
        return StuckCall(self.database, self.ground.writer, target.task_id, call)

    def _outage(self) -> Blow:
        if self.ground.server is None:
            return LongWriter(self.ground.writer)
        return Outage(self.database, self.ground.server, self.chance.choice(("fast", "immediate")))

    def _begin(self, make: Callable[[], Blow]) -> None:
        while True:
            blow = make()
            struck = self._struck(blow.kind, time.time(), task_id=blow.task_id)
            self.lasting.append((float("inf"), struck, blow))  # so that `close` ends it even if it cannot begin
            try:
                self._patiently(blow.begin)
            except InvalidTransition:  # its task has ended in the meantime
                self.lasting.pop()
                self.struck.remove(struck)
                continue
            self.lasting[-1] = time.monotonic() + blow.seconds, struck, blow
            return

    def _patiently(self, call: Callable[[], object]) -> None:
        """Retry the call until the database's lock, which a frozen process may hold, is available."""

        def has_been_done() -> bool:
            try:
                call()
            except DBAPIError as error:
                if "database is locked" not in str(error.orig):
                    raise
                return False
            return True

        self.until(has_been_done)

    def _struck(self, kind: str, began: float, *, pid: int | None = None, task_id: UUID | None = None) -> Struck:
        self.struck.append(Struck(kind=kind, began=began, pid=pid, task_id=task_id))
        return self.struck[-1]

    def _tend(self) -> None:
        """End the faults that are over. Wake workers that were frozen long enough, and tell them to stop."""
        now = time.monotonic()
        for one in [one for one in self.lasting if one[0] <= now]:
            _, struck, blow = one
            blow.end()
            struck.ended = time.time()
            self.lasting.remove(one)
            if isinstance(blow, FullDisk) and not blow.stayed_full:
                self.complaints.append("the disk had room before the fault ended, so the fault proved nothing")
        for asleep in [one for one in self.frozen if one[0] <= now]:
            _, struck, zombie = asleep
            self.frozen.remove(asleep)
            zombie.send(signal.SIGCONT)
            until(lambda: not zombie.is_frozen())  # noqa: B023
            struck.ended = time.time()
            self._tell_to_stop(zombie)
            self.leaving.append((now + _LEAVING, zombie))
            self.done["woken"] += 1
        for leaver in [one for one in self.leaving if one[1].poll() is not None or one[0] <= now]:
            _, zombie = leaver
            self.leaving.remove(leaver)
            self._check_end(zombie, {0, 1})
            self.done["fenced"] += zombie.text().count("is discarded") + zombie.text().count("lost the lease")

    def _check_end(self, worker: Process, codes: set[int]) -> None:
        if (code := worker.poll()) not in codes:
            self.complaints.append(f"a worker ended with {code}, not one of {sorted(codes)}: {worker.text()[-2000:]}")

    def _tell_to_stop(self, worker: Process) -> None:
        until(lambda: worker.poll() is not None or worker.hears(signal.SIGTERM))  # it may have only just started
        self._struck("stop", time.time(), pid=worker.pid)
        worker.send(signal.SIGTERM)
