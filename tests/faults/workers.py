"""Worker processes for tests, which start, observe and always end them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import forked
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]


class Process(ABC):
    """A process that logs to a file."""

    pid: int
    log: Path

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit code, which is -9 after SIGKILL, or None while it lives."""

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def is_up(self) -> bool:
        """Return whether the process, a worker, has started."""
        assert self.poll() is None, self.text()
        return ") started" in self.text()

    def hears(self, number: signal.Signals) -> bool:
        """Return whether it has a handler for a signal."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)

    def is_frozen(self) -> bool:
        assert self.poll() is None, self.text()
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def orphans(self) -> list[int]:
        """Return the other processes of its session, which it may leave behind."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid and int(stat.parent.name) != self.pid:
                    found.append(int(stat.parent.name))
        return found

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended: another process could have its pid by then."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end, and return its exit code."""
        until(lambda: self.poll() is not None, seconds=seconds)
        code = self.poll()
        assert code is not None
        return code

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self.wait(60)


class Worker(Process):
    """An `outboxq worker` process as a user starts it, optionally with ignored signals."""

    def __init__(self, url: str, log: Path, *options: str, ignores: Sequence[str] = ()) -> None:
        self.log = log
        command = [sys.executable, "-m", "outboxq", "worker", "tests.faults.app:outbox", "-q", "faults", *options]
        environment = {**os.environ, "OUTBOXQ_DATABASE_URL": url, "PYTHONPATH": str(ROOT)}
        with log.open("ab") as output:
            self._process = forked.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                start_new_session=True,
                starts_others="--processes" in options,
                ignores=[signal.Signals[f"SIG{name}"] for name in ignores],
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()


class Forked(Process):
    """A process that runs a plan with `run_worker`."""

    def __init__(self, nursery: Nursery, log: Path, plan: dict[str, Any]) -> None:
        self.log = log
        self._nursery = nursery
        self._code: int | None = None
        self.pid = nursery.ask({**plan, "log": str(log)})

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._nursery.ask(self.pid)
        return self._code


class Nursery:
    """The process that forks workers. Starting a new Python takes ten times as long."""

    def __init__(self, root: Path = ROOT) -> None:
        """`root`: the checkout whose code the workers run."""
        environment = {**os.environ, "PYTHONPATH": str(root)}
        environment.pop("OUTBOXQ_DATABASE_URL", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            env=environment,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a signal to our process group must not end it before it has killed the workers
        )

    def ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the nursery has died"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)
