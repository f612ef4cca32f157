"""Programs that tests start, forked from a process that has imported what they need.

A new interpreter imports SQLAlchemy, outboxq and a framework for 1 to 3 s of a processor's time; a fork takes 0.02 s. Each kind of
program is also started once as a user starts it, where a test says so.

The forking process imports nothing but the standard library and the modules that it is told to import, so that it can also hold
another release of outboxq.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn, Self

ROOT = Path(__file__).parents[1]

LONGEST = 2**17
"""Bytes of one request: its arguments and its environment."""

PROGRAM = (
    "click.testing",
    "outboxq.cli.serving.worker",
    "outboxq.worker.distributor.listener",
    "outboxq.worker.worker",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
"""What each program with outboxq needs."""

FRAMEWORKS = (
    *PROGRAM,
    "alembic.command",
    "django.contrib.admin.views.main",
    "django.core.management.commands.makemigrations",
    "django.core.management.commands.test",
    "django.core.serializers.json",
    "django.core.serializers.python",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.template.backends.django",
    "django.test.runner",
    "django.views.debug",
    "flask_sqlalchemy",
    "outboxq.contrib.django.backend",
    "outboxq.contrib.django.management.commands.outboxq",
    "outboxq.contrib.flask",
    "outboxq.testing",
    "outboxq.web.dashboard",
    "pytest",
)
"""What is imported of frameworks before their settings are known."""


class Forks:
    """A process that forks a child for each program."""

    def __init__(self, *modules: str, environment: Mapping[str, str] | None = None) -> None:
        """`modules`: what it imports before, in this environment."""
        self._modules, self._environment = modules, environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, *arguments: str, together: bool = False, seconds: float = 240, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -W error *arguments`` to its end, without input. `together`: what it says on stderr is in its stdout."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            started = self.start(*arguments, stdout=out, stderr=out if together else err, **options)
            try:
                code = started.wait(seconds)
            finally:
                started.kill()
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def start(
        self,
        *arguments: str,
        cwd: Path = ROOT,
        env: Mapping[str, str] = os.environ,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> Forked:
        """Start ``python -W error *arguments``. Each stream is a file; without one, it is the null device."""
        with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
            given = [nothing if one is None else one for one in (stdin, stdout, stderr)]
            files = [one if isinstance(one, int) else one.fileno() for one in given]
            request = {"arguments": arguments, "cwd": str(cwd), "environment": dict(env)}
            return Forked(self, self.ask(request, files))

    def talk(self, *arguments: str, **options: Any) -> Talking:
        """Start ``python -W error *arguments`` with pipes. `stderr` may be a file."""
        (given, told), (said, answers), (wrong, errors) = os.pipe(), os.pipe(), os.pipe()
        try:
            pid = self.start(*arguments, **{"stdin": given, "stdout": answers, "stderr": errors, **options}).pid
        finally:
            for end in (given, answers, errors):
                os.close(end)
        return Talking(self, pid, told, said, wrong)

    def ask(self, request: object, files: Sequence[int] = ()) -> Any:
        with self._lock:
            if self._process is None:
                self._begin()
            sent = json.dumps(request).encode()
            assert len(sent) < LONGEST
            socket.send_fds(self._socket, [sent], files)
            answer = self._socket.recv(LONGEST)
        assert answer, "the forking process has died"
        return json.loads(answer)

    def close(self) -> None:
        if self._process is not None:
            self._socket.close()
            self._process.wait(10)

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", __file__, str(theirs.fileno()), *self._modules],
                env=self._environment or {**os.environ, "PYTHONPATH": str(ROOT)},  # the code of this checkout
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )


class Forked:
    """A program that runs, as `subprocess.Popen` shows it."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.ask(self.pid)
        return self.returncode

    def wait(self, seconds: float = 240) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("python", seconds)
            time.sleep(0.01)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Talking(Forked):
    """A program with pipes to it. At the end of the block it is killed if it still runs."""

    def __init__(self, forks: Forks, pid: int, stdin: int, stdout: int, stderr: int) -> None:
        super().__init__(forks, pid)
        self.stdin, self.stdout, self.stderr = open(stdin, "w"), open(stdout), open(stderr)  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()

    def tell(self, line: str) -> str:
        """Write a line to it, and return the line that it answers."""
        self.stdin.write(f"{line}\n")
        self.stdin.flush()
        return self.stdout.readline().strip()

    def communicate(self, seconds: float = 240) -> tuple[str, str]:
        """Wait for its end, and return what it still says."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        said = self.stdout.read(), self.stderr.read()
        self.wait(seconds)
        return said


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """In each child, the request that it is to run; None in the forking process, at its end."""
    alive: set[int] = set()
    while True:
        message, files, _, _ = socket.recv_fds(requests, LONGEST, 3)
        if not message:
            break
        request = json.loads(message)
        answer: int | None
        if isinstance(request, dict):
            if not (pid := os.fork()):
                requests.close()
                os.setsid()
                for file, number in zip(files, range(3), strict=True):
                    os.dup2(file, number)
                os.closerange(3, max(files) + 1)
                return request
            for file in files:
                os.close(file)
            alive.add(pid)
            answer = pid
        else:
            ended, status = os.waitpid(request, os.WNOHANG)
            alive.discard(ended)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        requests.send(json.dumps(answer).encode())
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def run(arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Do what ``python -W error *arguments`` does in this directory and this environment."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error")
    sys.warnoptions[:] = ["error"]
    sys.orig_argv[:] = [sys.executable, "-W", "error", *arguments]
    kind, *rest = arguments
    is_file = kind not in ("-m", "-c")
    first = str(Path(kind).resolve().parent) if is_file else cwd if kind == "-m" else ""
    sys.path[:] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
    sys.argv = list(arguments) if is_file else [kind, *rest[1:]]
    if is_file:
        runpy.run_path(kind, run_name="__main__")
    elif kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))


def end(code: object) -> NoReturn:
    """End as Python does, but for the last sweep over what was imported: each child would first make a copy of all of it."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


def main() -> None:
    _, number, *modules = sys.argv
    del sys.path[0]  # where this file is
    for name in modules:
        importlib.import_module(name)
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    # At the end, where an editable install has its checkout: a child's own come first.
    sys.path[:] = [*(one for one in sys.path if one not in given), *given]
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(number)) as requests:
        request = serve(requests)
    if request is None:
        return
    try:
        run(**request)
    except SystemExit as ending:
        end(ending.code)
    except BaseException:  # noqa: BLE001 - whatever it is, Python prints it
        traceback.print_exc()
        end(1)
    end(0)


if __name__ == "__main__":
    main()
