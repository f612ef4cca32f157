"""A process that forks others after it has imported all modules and compiled a worker's statements.

Forking is so cheap that a test can have a hundred processes. The nursery reads one JSON value per line and answers with one: for a
plan, the pid of a process that runs it; for a pid, the exit code, or null while the process lives. When its standard input is
closed, it kills the processes that it started.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.dialects.sqlite.pysqlite  # noqa: F401 - imported for the children

import outboxq.cli.serving.worker
import outboxq.worker.distributor.listener
import outboxq.worker.worker  # noqa: F401
from tests import compiled
from tests.faults import run_worker


def serve() -> dict[str, Any] | None:
    """Answer questions. Return the plan to run in each child, and None in the nursery at its end."""
    alive: set[int] = set()
    ready: set[str] = set()
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if isinstance(asked, dict):
            database = asked.get("url", "").partition(":")[0].partition("+")[0]
            if database and database not in ready:
                compiled.compile_for(database)
                gc.freeze()
                ready.add(database)
            if not (pid := os.fork()):
                _leave_home(asked.pop("log"))
                return asked
            alive.add(pid)
            answer: int | None = pid
        else:
            ended, status = os.waitpid(asked, os.WNOHANG)
            alive.discard(ended)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(answer), flush=True)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def _leave_home(log: str) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for own, new in ((0, nothing), (1, output), (2, output)):
        os.dup2(new, own)


def end_as_python_does(code: int) -> NoReturn:
    """End without the final garbage collection, which would copy all memory shared with the nursery."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__" and (plan := serve()) is not None:
    is_command = plan["kind"] == "cli"  # test_shutdown checks exactly how a command ends
    try:
        run_worker.run(plan)
    except SystemExit as ending:
        if not is_command and (ending.code is None or isinstance(ending.code, int)):
            end_as_python_does(ending.code or 0)
        raise
