"""Worker processes of the tests: started, watched, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Worker:
    """An `outboxq worker` process, its log in a file."""

    def __init__(self, url: str, log: Path, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "outboxq", "worker", "tests.faults.app:outbox", "-q", "faults", *options]
        environment = {**os.environ, "OUTBOXQ_DATABASE_URL": url, "PYTHONPATH": str(ROOT)}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        self.pid = self.process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.text()
        return "started" in self.text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)
