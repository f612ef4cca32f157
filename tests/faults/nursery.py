"""Forks processes that have imported everything already, so that a test may have a hundred of them.

Takes one JSON value a line and answers each with one: a plan, with the pid of a process that now runs it; a pid, with its exit
code, or null while it lives. Kills what it started when nobody speaks to it any more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.dialects.sqlite.pysqlite  # noqa: F401 - imported for the children

import outboxq.cli.worker
import outboxq.distributor.listener
import outboxq.worker  # noqa: F401
from tests.faults import run_worker


def serve() -> dict[str, Any] | None:
    """In each child, the plan it is to run; None in the nursery, at its end."""
    alive: set[int] = set()
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if isinstance(asked, dict):
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


if __name__ == "__main__" and (plan := serve()) is not None:
    run_worker.run(plan)
