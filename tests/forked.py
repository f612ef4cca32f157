"""Python programs that a warm process forks.

Starting a program this way takes 30 ms of CPU time. A new interpreter takes 1 to 3 s to import outboxq and a framework.

`Popen` and `run` work like those of `subprocess`. A program gets a new interpreter if it is not started with `python -m …`,
`python -c …` or `python FILE`, or if its environment changes how Python itself starts. Tests of the start itself use `subprocess`.

This file imports only the standard library, because a warm process may have another release of outboxq.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn

ROOT = Path(__file__).parents[1]
PYTHON = (sys.executable, "-W", "error")
"""The beginning of a Python command that treats each warning as an error."""

_LONGEST = 2**17
"""The maximum size of a plan, in bytes."""
_MOST = 10
"""The maximum number of descriptors that a program can be given."""
_INTERPRETERS = {
    "PYTHONASYNCIODEBUG",
    "PYTHONDEVMODE",
    "PYTHONFAULTHANDLER",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONOPTIMIZE",
    "PYTHONSAFEPATH",
    "PYTHONSTARTUP",
    "PYTHONTRACEMALLOC",
    "PYTHONUTF8",
}
"""Environment variables that affect only a new interpreter."""
_NOT_AHEAD = ("outboxq.__main__", "outboxq.cli.demo", "outboxq.contrib")
"""Modules whose import has side effects, or that need another package."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Warm:
    """A process that imports modules once and then forks the programs that need them. It starts with the first program."""

    _begun: ClassVar[dict[tuple[int, Warm], tuple[Any, socket.socket]]] = {}
    """Each test process's warm process, or the pid of a forked program's. A fork of a test process starts its own warm process."""
    _lock = threading.Lock()

    def __init__(self, *modules: str, root: Path = ROOT) -> None:
        """`modules`: modules to import; for outboxq, also its submodules. `root`: the directory that contains outboxq."""
        self.modules, self._root = modules, root
        self.compiles = "outboxq" in modules and root == ROOT
        """True if this process compiles the statements listed in tests/compiled.py before it forks its first worker."""

    def start(self, plan: dict[str, Any], descriptors: list[int]) -> int:
        """Start a process that runs the plan, and return its pid.

        The process that forked it has ended, so that it becomes a child of this process.
        """
        with self._lock:
            _, asks = self._begun.get((os.getpid(), self)) or self._begin()
            _adopt_orphans(True)
            try:
                socket.send_fds(asks, [json.dumps(plan).encode()], descriptors)
                answer = asks.recv(100)
            finally:
                _adopt_orphans(False)
        assert answer, "the warm process has died"
        return int(answer)

    def close(self) -> None:
        """End the warm process."""
        if begun := self._begun.pop((os.getpid(), self), None):
            process, asks = begun
            asks.close()
            process.wait(60)

    def _begin(self) -> tuple[subprocess.Popen[Any], socket.socket]:
        asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOXQ", "PYTHON"))}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self.modules],
                env={**environment, "PYTHONPATH": str(self._root)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # it ends when the socket is closed, even if this process is killed
            )
        self._begun[os.getpid(), self] = process, asks
        return process, asks


PACKAGES = Warm("alembic.command", "asyncio", "click.testing", "rich.live", "rich.table", "sqlalchemy.orm", "tenacity")
"""A process with the packages that outboxq needs, but without outboxq and without a driver."""
OUTBOXQ = Warm(
    "outboxq", "click.testing", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.pysqlite"
)
FRAMEWORKS = Warm(
    *OUTBOXQ.modules,
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
    "pytest",
)
"""A process with the parts of frameworks that can be imported before their settings are known."""
FASTAPI = Warm(*OUTBOXQ.modules, "fastapi", "httpx")
"""A separate process for programs with FastAPI: pytest, which FRAMEWORKS forks, warns if anyio has already been imported."""


class Popen(subprocess.Popen[Any]):
    """A program in a child process, as `subprocess.Popen` starts it."""

    def __init__(
        self,
        *arguments: Any,
        warm: Warm = OUTBOXQ,
        starts_others: bool = False,
        ignores: Sequence[signal.Signals] = (),
        **options: Any,
    ) -> None:
        """Start the program, which reads from the null device unless `stdin` is given.

        `warm`: the process that forks the program. `starts_others`: True if programs that it starts with `subprocess` are forked
        as well. `ignores`: signals that the program ignores from the beginning, as under nohup.
        """
        self._warm, self._starts_others = warm, starts_others
        self._ignores = [*ignores]
        super().__init__(*arguments, **{"stdin": subprocess.DEVNULL, **options})

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Wait for the program to end. After an exception, kill it first."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)

    def _execute_child(self, *arguments: Any) -> None:
        args, _, preexec_fn, _, pass_fds, cwd, env, *_ = arguments
        child_reads, _, _, child_writes, _, child_complains = arguments[10:16]
        gid, gids, uid, umask, new_session, process_group = arguments[17:23]
        plan = _plan(args, cwd, os.environ if env is None else env)
        others = (preexec_fn not in {None, own_terminal}, gid, gids, uid)
        if plan is None or any(others) or umask != -1 or process_group != -1 or sys.platform != "linux":
            return super()._execute_child(*arguments)  # type: ignore[misc, no-any-return]
        ends = (child_reads, child_writes, child_complains)
        given = [own if end == -1 else end for own, end in enumerate(ends)]
        try:
            plan |= {"session": new_session, "terminal": preexec_fn is own_terminal, "numbers": [0, 1, 2, *pass_fds]}
            plan |= {"starts_others": self._starts_others, "ignores": self._ignores}
            plan |= {"ahead": ["alembic.command"] if "upgrade" in plan["arguments"] else []}
            plan |= {"compile": self._warm.compiles and "worker" in plan["arguments"], "others": self._warm.compiles}
            self.pid = self._warm.start(plan, [*given, *pass_fds])
            self._child_created = True
        finally:
            self._close_pipe_fds(*arguments[10:16])  # type: ignore[attr-defined]
        return None


class _Child(Popen):
    """A program that a forked program starts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"stdin": None, **options})


def run(
    command: Sequence[str | Path],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run the program and wait for it, as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        output, complaints = process.communicate(input, timeout=timeout)
    done = subprocess.CompletedProcess(command, process.returncode, output, complaints)
    if check:
        done.check_returncode()
    return done


def own_terminal() -> None:
    """Make standard input the process's controlling terminal, so that Ctrl-C reaches it. For `preexec_fn`."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def close() -> None:
    """End all warm processes."""
    for _, warm in [*Warm._begun]:
        warm.close()


def _plan(args: Any, cwd: Any, env: Any) -> dict[str, Any] | None:
    """Return the plan that the child runs, or None if the program needs a new interpreter."""
    command = [os.fspath(word) for word in args] if isinstance(args, list | tuple) else []
    words = command.copy()
    if not words or words.pop(0) != sys.executable or _INTERPRETERS & env.keys():
        return None
    filters = [one for one in env.get("PYTHONWARNINGS", "").split(",") if one]
    while words and words[0].startswith("-W"):
        filters.append(words.pop(0)[2:] or words.pop(0))
    if words[:1] in (["-m"], ["-c"]):
        kind = words.pop(0)
    elif words and words[0].endswith(".py"):
        kind = "file"
    else:
        return None
    program, *arguments = words
    directory = str(Path(cwd) if cwd else Path.cwd())
    plan = {"kind": kind, "program": program, "arguments": arguments, "filters": filters, "cwd": directory}
    return {**plan, "command": command, "environment": dict(env)}


def _adopt_orphans(adopts: bool) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, int(adopts), 0, 0, 0)


def _serve(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a child for each plan. Return the plan and its descriptors in each child, and None in the parent at the end."""
    while True:
        message, descriptors, *_ = socket.recv_fds(asked, _LONGEST, _MOST)
        if not message:
            return None
        plan = json.loads(message)
        _prepare(plan)
        answer, answers = os.pipe()
        adopted, adopts = os.pipe()
        if not (middle := os.fork()):
            if pid := os.fork():
                os.write(answers, str(pid).encode())
                os._exit(0)
            asked.close()
            for one in (answer, answers, adopts):
                os.close(one)
            os.read(adopted, 1)  # wait until this process has its new parent
            os.close(adopted)
            return plan, descriptors
        for one in (answers, adopted, *descriptors):
            os.close(one)
        pid = int(os.read(answer, 100))
        os.waitpid(middle, 0)
        os.close(adopts)
        os.close(answer)
        asked.send(str(pid).encode())


def _prepare(plan: dict[str, Any]) -> None:
    """Import and compile once what this program and later ones need."""
    for name in plan["ahead"]:
        _import(name)
    if plan["compile"]:
        _compile()


@cache
def _import(name: str) -> None:
    importlib.import_module(name)
    _keep_all()


@cache
def _compile() -> None:
    """Compile the workers' statements. Then unload `tests`, because a program may have its own package with this name."""
    importlib.import_module("tests.compiled").compile_all()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    _keep_all()


def _keep_all() -> None:
    gc.collect()
    gc.freeze()


def _fork_for_others(descriptors: list[int]) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process that forks the programs that this one starts. Return the plan in each of those programs, and None in this one.

    The new process closes `descriptors`, which belong to this one. It is a child of this process, so the programs can become
    children of this process too.
    """
    asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        Warm._begun[os.getpid(), OUTBOXQ] = pid, asks
        subprocess.Popen = _Child  # type: ignore[misc]
        return None
    asks.close()
    for one in descriptors:
        os.close(one)
    if (served := _serve(theirs)) is None:
        os._exit(0)
    return served


def _begin(plan: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process the state of a Python process that has just started."""
    if plan["session"]:
        os.setsid()
    above = max(plan["numbers"]) + 1
    given = [fcntl.fcntl(one, fcntl.F_DUPFD, above) for one in descriptors]  # so that none overwrites another
    for one in descriptors:
        os.close(one)
    for own, new in zip(plan["numbers"], given, strict=True):
        os.dup2(new, own)
        os.close(new)
    if plan["terminal"]:
        own_terminal()
    os.chdir(plan["cwd"])
    os.environ.clear()
    os.environ.update(plan["environment"])
    time.tzset()
    sys.stdin = os.fdopen(0, closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", buffering=0, closefd=False), write_through=True)
    else:
        sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.orig_argv[:] = plan["command"]
    sys.warnoptions[:] = plan["filters"]
    warnings._processoptions(plan["filters"])  # type: ignore[attr-defined]
    first = {"-m": plan["cwd"], "-c": "", "file": str(Path(plan["program"]).resolve().parent)}[plan["kind"]]
    sys.path[:0] = [first, *_paths()]
    importlib.invalidate_caches()


def _paths() -> list[str]:
    return [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _run(kind: str, program: str, arguments: list[str]) -> None:
    sys.argv = [program if kind == "file" else kind, *arguments]
    main = sys.modules["__main__"] = type(sys)("__main__")
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(program, "<string>", "exec"), vars(main))
    else:
        main.__file__ = str(Path(program).absolute())
        exec(compile(Path(program).read_text(), main.__file__, "exec"), vars(main))


def _end(code: int) -> NoReturn:
    """End as Python does, but without garbage collection, which would copy all memory shared with the warm process."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _import_inside(package: ModuleType) -> None:
    for one in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not one.name.startswith(_NOT_AHEAD):
            try:
                module = importlib.import_module(one.name)
            except Exception:  # noqa: BLE001 - a package is missing: a program that imports the module gets the error
                continue
            if one.ispkg:
                _import_inside(module)


def _main() -> None:
    _, descriptor, *names = sys.argv
    del sys.path[0]  # this file's directory
    for name in names:
        module = importlib.import_module(name)
        if name == "outboxq":
            _import_inside(module)
    # The root goes to the end, where an editable install has its checkout. A child's own paths come first.
    sys.path.sort(key=_paths().__contains__)
    _keep_all()
    if (served := _serve(socket.socket(fileno=int(descriptor)))) is None:
        return
    plan, descriptors = served
    for number in plan["ignores"]:
        signal.signal(number, signal.SIG_IGN)
    if plan["starts_others"]:
        OUTBOXQ.compiles = plan["others"]  # another root may contain no tests/compiled.py
        plan, descriptors = _fork_for_others(descriptors) or served
    _begin(plan, descriptors)
    try:
        _run(plan["kind"], plan["program"], plan["arguments"])
    except SystemExit as ending:
        if ending.code is not None and not isinstance(ending.code, int):
            raise
        _end(ending.code or 0)
    _end(0)


if __name__ == "__main__":
    _main()
