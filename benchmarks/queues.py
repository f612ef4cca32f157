"""The queues that are compared: outboxq, its peers, and hand-written SQL."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("task_executions", "task_outbox", "execution_events", "task_leases", "sleeping_workers", "workers")
INSTALLING = 600.0
"""The longest time that an installation may take, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """One queue on one kind of database."""

    name: str
    module: str
    unfinished: str
    """The SQL that counts the unfinished tasks."""
    tables: Sequence[str]
    """The tables that are emptied between measurements."""
    requirements: Sequence[str] = ()
    """The packages for the queue's virtual environment; if there are none, the queue runs in outboxq's environment."""
    share: float
    """The fraction of the fast queues' tasks that this queue drains, so that a slow queue takes seconds instead of minutes."""
    always: bool = False
    """True if the queue takes part in every round because a goal refers to it. The other queues are measured less
    often.
    """
    bulk: bool = False
    """True if the queue can enqueue many tasks in one call."""
    later: bool = True
    """True if the queue can delay a task."""
    url: str = "{}"
    """The template of the URL that the driver gets."""

    @property
    def peer(self) -> str:
        """The queue's name without its settings."""
        return self.name.split()[0]


RAW, OUTBOXQ = "raw", "outboxq"

POSTGRESQL = (
    Queue(
        name=RAW,
        module="raw",
        share=1,
        always=True,
        unfinished="SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)",
        tables=OURS,
        bulk=True,
        later=False,
    ),
    Queue(
        name=OUTBOXQ,
        module="outboxq",
        share=1,
        always=True,
        unfinished="SELECT (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)",
        tables=OURS,
        bulk=True,
    ),
    Queue(
        name="PgQueuer",
        module="pgqueuer",
        share=1,
        always=True,
        requirements=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        unfinished="SELECT count(*) FROM pgqueuer",
        tables=("pgqueuer", "pgqueuer_log", "pgqueuer_statistics"),
        bulk=True,
    ),
    Queue(
        name="Chancy",
        module="chancy",
        share=0.2,
        requirements=("chancy==0.26.0", "psycopg[binary,pool]"),
        unfinished="SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')",
        tables=("chancy_jobs",),
        bulk=True,
    ),
    Queue(
        name="Procrastinate",
        module="procrastinate",
        share=0.05,
        requirements=("procrastinate==3.10.0", "psycopg[binary,pool]"),
        unfinished="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        tables=("procrastinate_jobs", "procrastinate_events"),
        bulk=True,
    ),
    Queue(
        name="Huey",
        module="huey",
        share=0.1,
        requirements=("huey==3.5.4", "psycopg[binary]"),
        unfinished="SELECT (SELECT count(*) FROM huey_task) + (SELECT count(*) FROM huey_schedule)",
        tables=("huey_task", "huey_schedule", "huey_kv"),
    ),
    Queue(
        name="DBOS",
        module="dbos",
        share=0.05,
        requirements=("dbos==3.4.0",),
        unfinished="SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
        tables=("dbos.workflow_status",),
        later=False,
    ),
    Queue(
        name="django-tasks-db",
        module="django_tasks_db",
        share=0.02,
        requirements=("django-tasks-db==0.13.0", "django-tasks==0.12.0", "django>=5.2,<6", "psycopg[binary]"),
        unfinished="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
        tables=("django_tasks_database_dbtaskresult",),
    ),
)


def _on_sqlite(name: str, postgresql: str, module: str | None = None, **changed: object) -> Queue:
    one = next(queue for queue in POSTGRESQL if queue.name == postgresql)
    kept = {
        key: getattr(one, key) for key in ("unfinished", "tables", "requirements", "share", "always", "bulk", "later")
    }
    return Queue(name=name, module=module or one.module, **{**kept, **changed})  # type: ignore[arg-type]


SQLITE = (
    _on_sqlite("raw NORMAL", RAW, "raw_sqlite", url="sqlite+normal:{}"),
    _on_sqlite("outboxq NORMAL", OUTBOXQ, url="sqlite+normal:{}"),
    _on_sqlite("raw FULL", RAW, "raw_sqlite"),
    _on_sqlite("outboxq FULL", OUTBOXQ),
    _on_sqlite(
        "Huey FULL",
        "Huey",
        unfinished="SELECT (SELECT count(*) FROM task) + (SELECT count(*) FROM schedule)",
        tables=("task", "schedule", "kv"),
        always=True,
    ),
    _on_sqlite(
        "django-tasks-db NORMAL",
        "django-tasks-db",
    ),
    _on_sqlite(
        "DBOS FULL",
        "DBOS",
        unfinished="SELECT count(*) FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
        tables=("workflow_status",),
    ),
)

QUEUES = {"postgresql": POSTGRESQL, "sqlite": SQLITE}

NOT_RUN = {
    "Celery": "no driver for it here: its broker is a server of its own, so that a task is not written in the caller's transaction",
}


@dataclass(slots=True)
class Environments:
    """The virtual environments of the peers. Each is created once and kept in a cache directory."""

    cache: Path
    missing: dict[str, str] = field(default_factory=dict)
    """Maps a driver's module to the reason why it cannot run."""
    versions: dict[str, str] = field(default_factory=dict)

    def make(self, queues: Iterable[Queue]) -> None:
        """Create the environments of these queues, two at a time, so that no installation runs during a measurement."""
        once = {queue.module: queue for queue in queues}.values()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self.python, once))

    def python(self, queue: Queue) -> str | None:
        """Return the interpreter for the queue's driver; None if the installation failed. `missing` then contains the reason."""
        if not queue.requirements:
            return sys.executable
        if queue.module in self.missing:
            return None
        folder = self.cache / f"{queue.module}-{sys.version_info.major}.{sys.version_info.minor}"
        python = folder / "bin" / "python"
        wanted, made = "\n".join(queue.requirements), folder / "requirements.txt"
        if not (made.exists() and made.read_text() == wanted):
            print(f"installing {queue.peer} ({', '.join(queue.requirements)})", file=sys.stderr, flush=True)
            try:
                venv.create(folder, with_pip=True, clear=True)
                command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
                done = subprocess.run(
                    [*command, *queue.requirements],
                    capture_output=True,
                    text=True,
                    timeout=INSTALLING,
                    check=False,
                )
                complaint = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            except (OSError, subprocess.SubprocessError) as error:
                complaint = [str(error).splitlines()[0]]
            if complaint:
                self.missing[queue.module] = f"could not be installed: {complaint[0]}"
                return None
            made.write_text(wanted)
        self._note(queue, str(python))
        return str(python)

    def _note(self, queue: Queue, python: str) -> None:
        if queue.peer in self.versions:
            return
        names = [one.partition("[")[0].partition("=")[0].partition(">")[0] for one in queue.requirements]
        program = (
            "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        )
        told = subprocess.run(
            [python, "-c", program, *names], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        self.versions[queue.peer] = ", ".join(f"{name} {of}" for name, of in json.loads(told).items())

    def note_ours(self) -> None:
        names = ("outboxq", "psycopg", "SQLAlchemy")
        self.versions[OUTBOXQ] = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
        self.versions[RAW] = f"psycopg {importlib.metadata.version('psycopg')}, or sqlite3 of the standard library"


def default_cache() -> Path:
    """Return the directory for the environments."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):
        return Path(base).expanduser() / "outboxq-bench"
    return ROOT / ".bench"
