"""Records of handlers' runs in a file outside the database. Each line is the beginning or the end of a run."""

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
    """One call of a handler under one claim. Times are seconds of the wall clock, which the databases use too."""

    task_id: UUID
    task_name: str
    attempt: int
    recovery_attempts: int
    lease_token: int
    worker_id: UUID
    pid: int
    began: float
    claimed: float | None = None
    """The time of its claim, or None if its process ran code that does not record that."""
    ended: float | None = None
    """The end, or None if the handler has not ended. It stays None if the process was killed before the end."""


class Pen:
    """A writer of one process's runs. Any number of processes can write to the same file."""

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
        # One call for the whole line, so that lines of different processes do not mix.
        os.write(self._file, (" ".join(map(str, fields)) + "\n").encode())


class Runs:
    """A reader of all processes' runs. It reads only new lines each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._offset = 0
        self._all: list[Run] = []
        self._open: dict[tuple[str, ...], list[Run]] = {}

    def all(self) -> list[Run]:
        """Return all runs so far, in the order in which they started."""
        self._read()
        return self._all

    def under_way(self, task_name: str | None = None) -> list[Run]:
        """Return the runs that have not ended, including those of killed processes, of one task name or of all."""
        self._read()
        return [run for some in self._open.values() for run in some if task_name in (None, run.task_name)]

    def _read(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        # A crash of the server may undo a claim, and the same worker may then claim the task again with the same token.
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
