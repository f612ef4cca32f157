"""Processes of one application that a test kills while they work, and then replaces."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import make_url

from tests import forked
from tests.conftest import Database
from tests.forked import ROOT

_PAST = "2020-01-01T00:00:00.000000+00:00"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of the fleet, and the file that it logs to."""

    process: forked.Popen
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid


class Fleet:
    """Several processes that run the same `python -m outboxq COMMAND`."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        command: Sequence[str],
        *,
        size: int = 2,
        let_leases_run_out: Callable[[Database, Member], None] = lambda *_: None,
        **environment: str,
    ) -> None:
        self._database, self._directory, self._command = database, directory, command
        self._let_leases_run_out = let_leases_run_out
        self._environment = {
            **os.environ,
            "OUTBOXQ_DATABASE_URL": make_url(database.url).render_as_string(hide_password=False),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self._size = size
        self.members: list[Member] = []
        """The live processes, oldest first."""
        self.killed: list[Member] = []
        self._started = 0

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self.members += [self._start() for _ in range(self._size)]
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.members:
            one.process.kill()
            one.process.wait()

    @property
    def all(self) -> Sequence[Member]:
        """The live processes and the killed ones."""
        return [*self.members, *self.killed]

    def kill(self, member: Member | None = None) -> None:
        """Kill a process, by default the oldest one, let its leases expire, and start a replacement."""
        gone = self.members[0] if member is None else member
        self.members.remove(gone)
        gone.process.kill()
        assert gone.process.wait() == -9, gone.log.read_text()
        self.killed.append(gone)
        self._let_leases_run_out(self._database, gone)
        self.members.append(self._start())

    def _start(self) -> Member:
        self._started += 1
        log = self._directory / f"{self._command[0]}-{self._started}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "outboxq", *self._command]
            process = forked.Popen(command, env=self._environment, cwd=ROOT, stdout=output, stderr=output)
        return Member(process=process, log=log)


def figures(events: int, committed: Collection[int], refused: Collection[int], fleet: Fleet) -> str:
    """Return the figures that every campaign reports."""
    return (
        f"{len(committed)} committed, {events - len(committed)} rolled back, {len(fleet.killed)} kills, "
        f"{len(refused)} refused, {time.monotonic() - fleet.began:.0f} s"
    )


def of_relays(database: Database, gone: Member) -> None:
    """Let the leases of a dead `outboxq relay run` process expire."""
    for sender in set(re.findall(r"sender ([0-9a-f-]{36}) has", gone.log.read_text())):
        identity = sender if database.name == "postgresql" else sender.replace("-", "")
        database.run(f"UPDATE relay_shards SET lease_expires_at = '{_PAST}' WHERE worker_id = '{identity}'")


def unsettled(database: Database) -> set[int]:
    """Return the numbers in the payloads of the events that relays have not yet published and deleted."""
    return {
        int(json.loads(str(payload))["number"]) for (payload,) in database.rows("SELECT payload FROM relay_messages")
    }


def of_tasks(database: Database, gone: Member) -> None:
    """Let a dead worker's leases expire."""
    mine = f"SELECT id FROM workers WHERE pid = {gone.pid}"
    database.run(f"UPDATE task_leases SET lease_expires_at = '{_PAST}' WHERE worker_id IN ({mine})")
