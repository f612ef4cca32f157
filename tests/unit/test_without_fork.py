"""Windows, as far as another system can play it: without fork, and without the signals and calls that only POSIX has."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAKEN_AWAY = """
import os, signal
for name in ("fork", "forkpty", "register_at_fork", "killpg", "setsid", "getpgid", "waitid", "set_blocking", "mknod"):
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGKILL", "SIGCHLD", "SIGUSR1", "pthread_kill", "sigwait", "alarm"):
    delattr(signal, name)
"""
APP = """
from outboxq import Outbox

outbox = Outbox("sqlite:///shop.db")


@outbox.task(name="greet")
def greet(who: str) -> str:
    return f"hello {who}"
"""


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "shop.py").write_text(APP)
    return subprocess.run(
        [sys.executable, "-c", TAKEN_AWAY + textwrap.dedent(code)],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_task_is_enqueued_and_run_by_a_worker_of_this_process(tmp_path):
    done = python(
        tmp_path,
        """
        from shop import greet, outbox
        outbox.upgrade()
        handle = greet.using(outbox).enqueue("you")
        assert outbox.worker().run(burst=True) == 0
        print(outbox.store.get(handle.id).result)
        """,
    )
    assert (done.stdout.strip(), done.returncode) == ('"hello you"', 0), done.stderr


def test_the_command_runs_one_worker(tmp_path):
    done = python(
        tmp_path,
        """
        from shop import greet, outbox
        outbox.upgrade()
        greet.using(outbox).enqueue("you")
        from outboxq.cli import main
        main(["worker", "shop:outbox", "--burst"])
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "task_completed" in done.stderr


@pytest.mark.parametrize(
    "command", [["worker", "shop:outbox", "--processes", "2"], ["worker", "shop:outbox", "--reload"], ["demo"]]
)
def test_what_needs_a_fork_says_so(tmp_path, command):
    done = python(tmp_path, f"from outboxq.cli import main; main({command!r})")
    assert done.returncode == 2, done.stderr
    assert "needs a system that can fork" in " ".join(done.stderr.split()).replace("need a", "needs a")
    assert "Traceback" not in done.stderr
