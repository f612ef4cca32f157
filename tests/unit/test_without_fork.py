"""A simulation of Windows on another system: there is no fork, and the signals and calls that only POSIX has are missing."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked, sources

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OF_OS = frozenset(
    [
        "O_CLOEXEC",
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "WNOHANG",
        "chown",
        "fchmod",
        "fchown",
        "fork",
        "forkpty",
        "getegid",
        "geteuid",
        "getgid",
        "getgroups",
        "getpgid",
        "getpgrp",
        "getsid",
        "getuid",
        "killpg",
        "mkfifo",
        "mknod",
        "pipe2",
        "posix_spawn",
        "pread",
        "pwrite",
        "register_at_fork",
        "sched_getaffinity",
        "set_blocking",
        "setpgid",
        "setsid",
        "sysconf",
        "uname",
        "wait",
        "wait3",
        "wait4",
        "waitid",
    ]
)
OF_SIGNAL = frozenset(
    [
        "SIGALRM",
        "SIGCHLD",
        "SIGCONT",
        "SIGHUP",
        "SIGKILL",
        "SIGPIPE",
        "SIGQUIT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGURG",
        "SIGUSR1",
        "SIGUSR2",
        "alarm",
        "pause",
        "pthread_kill",
        "pthread_sigmask",
        "setitimer",
        "siginterrupt",
        "sigpending",
        "sigtimedwait",
        "sigwait",
        "sigwaitinfo",
    ]
)
MODULES = frozenset({"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"})
"""Modules that are not available on Windows, according to Python's documentation."""
TAKEN_AWAY = f"""
import alembic, asyncio, click, os, psycopg, rich, signal, sqlalchemy.orm, subprocess  # theirs, as made for this system
BREAK = signal.SIGBREAK = signal.SIGUSR2  # Windows has it besides
for name in {sorted(OF_OS)}:
    delattr(os, name)
for name in {sorted(OF_SIGNAL)}:
    delattr(signal, name)
"""
CHILDREN = "a worker imports it only after it has looked at CAN_FORK"
GUARDED = {
    ("cli/demo/run.py", "SIGKILL"): "the command looks at CAN_FORK",
    ("cli/serving/supervisor.py", "set_blocking"): "the command looks at CAN_FORK",
    ("cli/serving/supervisor.py", "pass_fds"): "the command looks at CAN_FORK",
    ("cli/serving/supervisor.py", "start_new_session"): "the command looks at CAN_FORK",
    ("cli/serving/stop_requests.py", "pthread_kill"): "only a supervisor gives the order that calls it",
    ("database/dialects/sqlite_file.py", "mknod"): "AttributeError is caught there",
    ("model/forks.py", "register_at_fork"): "hasattr is asked there",
    ("worker/isolation/child.py", "SIGURG"): CHILDREN,
    ("worker/isolation/child.py", "pthread_kill"): CHILDREN,
    ("worker/isolation/fork_server.py", "SIGCHLD"): CHILDREN,
    ("worker/isolation/fork_server.py", "SIGKILL"): CHILDREN,
    ("worker/isolation/fork_server.py", "WNOHANG"): CHILDREN,
    ("worker/isolation/fork_server.py", "fork"): CHILDREN,
    ("worker/isolation/fork_server.py", "killpg"): CHILDREN,
    ("worker/isolation/fork_server.py", "set_blocking"): CHILDREN,
    ("worker/isolation/fork_server.py", "setpgid"): CHILDREN,
}
"""Each name in outboxq that Windows lacks, with the reason why it is never reached there."""
APP = """
from outboxq import Outbox

outbox = Outbox("sqlite:///shop.db")


@outbox.task(name="greet")
def greet(who: str) -> str:
    return f"hello {who}"
"""


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "shop.py").write_text(APP)
    return forked.run(
        [sys.executable, "-c", TAKEN_AWAY + textwrap.dedent(code)],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        warm=forked.PACKAGES,
        timeout=60,
    )


def test_a_task_is_enqueued_in_a_transaction_and_run_by_the_harness(tmp_path):
    done = python(
        tmp_path,
        """
        from outboxq import configure_sqlite
        from outboxq.testing import Harness
        from shop import greet, outbox
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session
        outbox.upgrade()
        engine = configure_sqlite(create_engine("sqlite:///shop.db"))
        with engine.connect() as connection, connection.begin(), Harness(outbox, using=connection) as harness:
            with Session(connection, join_transaction_mode="create_savepoint") as session, session.begin():
                greet.using(session).enqueue("you")
            (ran,) = harness.drain()
            print(ran.result)
        """,
    )
    assert (done.stdout.strip(), done.returncode) == ("hello you", 0), done.stderr


def test_ctrl_break_stops_a_worker_and_lets_its_task_finish(tmp_path):
    done = python(
        tmp_path,
        """
        from shop import greet, outbox
        outbox.upgrade()

        @outbox.task(name="press")
        def press() -> str:
            os.kill(os.getpid(), BREAK)
            return "done"

        handles = [greet.using(outbox).enqueue("you"), press.using(outbox).enqueue()]
        assert outbox.worker(concurrency=1, notifications=False).run() == 0
        print(*[outbox.store.get(one.id).result for one in handles])
        """,
    )
    assert (done.stdout.strip(), done.returncode) == ('"hello you" "done"', 0), done.stderr


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


def test_options_that_need_a_fork_are_refused_before_anything_begins(tmp_path):
    worker, databases = (
        ["worker", "shop:outbox"],
        ["--database-url", "sqlite:///a.db", "--database-url", "sqlite:///b.db"],
    )
    commands = [[*worker, "--processes", "2"], [*worker, "--reload"], [*worker, *databases], ["demo"]]
    done = python(
        tmp_path,
        f"""
        from outboxq.cli import main
        for command in {commands}:
            try:
                main(command)
            except SystemExit as ended:
                print(ended.code)
        """,
    )
    assert done.stdout.split() == ["2"] * 4, done.stderr
    said = " ".join(done.stderr.split())
    assert said.count("--processes, --reload and several databases need a system that can fork; start") == 3
    assert said.endswith("the demo needs a system that can fork, such as Linux or macOS, because it kills a worker")
    assert list(tmp_path.glob("*.db")) == []


def test_isolation_is_refused_before_anything_begins(tmp_path):
    done = python(
        tmp_path,
        """
        from outboxq.cli import main
        from shop import outbox
        outbox.upgrade()
        main(["worker", "shop:outbox", "--isolation", "process"])
        """,
    )
    assert done.returncode == 2
    assert "isolation='process' needs a system that can fork, such as Linux or macOS" in " ".join(done.stderr.split())


def found() -> Iterator[tuple[str, str]]:
    """Yield each file of outboxq with a name in it that Windows lacks."""
    for path in sorted((ROOT / "outboxq").rglob("*.py")):
        file = path.relative_to(ROOT / "outboxq").as_posix()
        for node in sources.of_kind(sources.tree(path), ast.Attribute, ast.ImportFrom, ast.Import, ast.keyword):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.attr in {"os": OF_OS, "signal": OF_SIGNAL}.get(node.value.id, ()):
                    yield file, node.attr
            elif isinstance(node, ast.ImportFrom) and node.module in {"os", "signal"} | MODULES:
                yield from (
                    (file, one.name) for one in node.names if one.name in OF_OS | OF_SIGNAL or node.module in MODULES
                )
            elif isinstance(node, ast.Import):
                yield from ((file, one.name) for one in node.names if one.name in MODULES)
            elif isinstance(node, ast.keyword) and node.arg in {"pass_fds", "preexec_fn", "start_new_session"}:
                yield file, node.arg


def test_each_name_that_windows_lacks_is_guarded():
    assert set(found()) == GUARDED.keys()
