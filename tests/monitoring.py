"""Check outboxq's metrics and alert rules with promtool: `python -m tests.monitoring` (`nox -s monitoring`).

promtool checks a real worker's metrics on each database and the alert rules, and runs the rules' tests. On Debian, `apt install
prometheus` installs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from outboxq import migrations
from tests import postgres
from tests.waiting import until

FOLDER = Path(__file__).parents[1] / "docs" / "monitoring"
APPLICATION = """
from datetime import timedelta

from outboxq import Cancel, Outbox, RetryPolicy

outbox = Outbox()


@outbox.task(name="check.run", queue="mail", retry=RetryPolicy(max_attempts=1))
def run(how: str) -> None:
    if how == "cancel":
        raise Cancel
    if how == "fail":
        raise ValueError
"""
ENQUEUE = """
from app import outbox, run
from outboxq.model.schedules import NewSchedule

for how in ("well", "cancel", "fail"):
    run.using(outbox).enqueue(how)
outbox.store.schedules.put(
    NewSchedule(name="often", task_name="check.run", queue="mail", rule="every 1", args='{"how": "well"}')
)
"""


def main() -> int:
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is missing; install Prometheus (on Debian: apt install prometheus)", file=sys.stderr)
        return 1
    print(subprocess.run([promtool, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0])
    for database, url in databases():
        exposition = metrics(url)
        samples = len(re.findall(r"^outboxq_", exposition, re.MULTILINE))
        print(f"promtool check metrics: {samples} samples of a worker on {database}", flush=True)
        subprocess.run([promtool, "check", "metrics"], input=exposition, text=True, check=True)
    subprocess.run([promtool, "check", "rules", "alerts.yaml"], cwd=FOLDER, check=True)
    subprocess.run([promtool, "test", "rules", "alerts_test.yaml"], cwd=FOLDER, check=True)
    return 0


def databases() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield "SQLite", f"sqlite:///{folder}/check.db"
    server = postgres.start()
    try:
        yield "PostgreSQL", server.create_database()
    finally:
        server.stop()


def metrics(url: str) -> str:
    """Return the metrics of a worker that has completed, cancelled and failed a task, and started a tick's task."""
    migrations.upgrade(url)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APPLICATION)
        environment = {"OUTBOXQ_DATABASE_URL": url, "PYTHONPATH": f"{FOLDER.parents[1]}:{folder}"}
        subprocess.run([sys.executable, "-c", ENQUEUE], env=environment, cwd=folder, check=True)
        with working(folder, environment) as port:
            return until(lambda: complete(port))


@contextmanager
def working(folder: str, environment: dict[str, str]) -> Iterator[int]:
    """Run a worker, and yield the port of its metrics."""
    log = Path(folder) / "log"
    command = [sys.executable, "-m", "outboxq", "worker", "app:outbox", "--metrics-port", "0"]
    with log.open("w") as written:
        process = subprocess.Popen(command, cwd=folder, env=environment, stderr=written)
    try:
        yield int(until(lambda: re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", log.read_text()))[0])
    finally:
        process.terminate()
        process.wait()


def complete(port: int) -> str | None:
    """Return the exposition if all enqueued tasks have ended, or else None."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        found = answer.read().decode()
    wanted = (
        r'outcome="completed".* [1-9]', r'outcome="cancelled".* 1\.0', r'outcome="failed".* 1\.0',
        r"schedule_lateness_seconds_count.* [1-9]", r'outboxq_tasks\{queue="mail",state="failed"\} 1\.0',
    )  # fmt: skip
    return found if all(re.search(one, found) for one in wanted) else None


if __name__ == "__main__":
    sys.exit(main())
