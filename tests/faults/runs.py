"""What handlers write down of their runs, outside the database: each line is one begin or one end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from outboxq import TaskContext


@dataclass(kw_only=True, slots=True)
class Run:
    """One call of a handler under one claim. Times are seconds of the wall clock, by which the databases go too."""

    task_id: UUID
    task_name: str
    attempt: int
    recovery_attempts: int
    lease_token: int
    worker_id: UUID
    pid: int
    began: float
    claimed: float | None = None
    """The moment of its claim. None: its process ran code that does not write it down."""
    ended: float | None = None
    """None as long as the handler has not come to its end, so for ever if its process was killed before."""


class Pen:
    """Writes the runs of one process; any number of processes may write into one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @contextmanager
    def run(self, ctx: TaskContext) -> Iterator[None]:
        self._write("begins", ctx)
        try:
            yield
        finally:
            self._write("ends", ctx)

    def _write(self, what: str, ctx: TaskContext) -> None:
        claim = ctx.claim
        fields = (
            what,
            f"{time.time():.6f}",
            claim.id,
            claim.task_name,
            claim.attempt,
            claim.recovery_attempts,
            claim.lease_token,
            claim.worker_id,
            os.getpid(),
            f"{claim.started_at.timestamp():.6f}",
        )
        # One call for the whole line: nobody's end is written into the middle of another's.
        os.write(self._file, (" ".join(map(str, fields)) + "\n").encode())


class Runs:
    """Reads the runs of all processes, only what is new each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._offset = 0
        self._all: list[Run] = []
        self._open: dict[tuple[str, ...], list[Run]] = {}

    def all(self) -> list[Run]:
        """Every run so far, in the order in which they began."""
        self._read()
        return self._all

    def under_way(self, task_name: str | None = None) -> list[Run]:
        """Return the runs that have not ended, those of killed processes included: of this task, or of all."""
        self._read()
        return [run for some in self._open.values() for run in some if task_name in (None, run.task_name)]

    def _read(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        # A server that crashes may take a claim back and give it to the same worker again, with the same token.
        for line in lines[: lines.rfind(b"\n") + 1].decode().splitlines():
            what, moment, task_id, name, attempt, recoveries, token, worker_id, pid, *claimed = line.split()
            key = task_id, token, worker_id, pid
            if what == "ends":
                self._open[key].pop(0).ended = float(moment)
                continue
            run = Run(
                task_id=UUID(task_id),
                task_name=name,
                attempt=int(attempt),
                recovery_attempts=int(recoveries),
                lease_token=int(token),
                worker_id=UUID(worker_id),
                pid=int(pid),
                began=float(moment),
                claimed=float(claimed[0]) if claimed else None,
            )
            self._open.setdefault(key, []).append(run)
            self._all.append(run)
        self._offset += lines.rfind(b"\n") + 1
