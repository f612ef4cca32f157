"""The shops of `examples/`, started as their READMEs say, and always stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests import forked
from tests.faults.workers import Process
from tests.waiting import until

ROOT = Path(__file__).parents[3]
LEASE = 2.0

# Reads until its pipe closes, which happens when the writing process ends for any reason.
_GUARD = """
import os, signal, sys
alive = set()
for line in sys.stdin:
    what, pid = line.split()
    (alive.add if what == "born" else alive.discard)(int(pid))
for pid in alive:
    os.killpg(pid, signal.SIGKILL)
"""


@dataclass(frozen=True, kw_only=True)
class Shop:
    """The commands in a shop's README, as arguments of Python."""

    name: str
    prepare: tuple[str, ...]
    serve: tuple[str, ...]
    """`{port}` stands for the port."""
    work: tuple[str, ...]
    test: tuple[str, ...] = ("-m", "pytest", "-q", "-p", "no:cacheprovider")

    @property
    def directory(self) -> Path:
        return ROOT / "examples" / self.name


SHOPS = {
    shop.name: shop
    for shop in (
        Shop(
            name="fastapi_shop",
            prepare=("create_tables.py",),
            serve=("-m", "uvicorn", "app:app", "--port", "{port}", "--log-level", "warning"),
            work=("-m", "outboxq", "worker", "tasks:outbox"),
        ),
        Shop(
            name="flask_shop",
            prepare=("-m", "flask", "--app", "shop", "create-tables"),
            serve=("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--threads", "8", "shop:create_app()"),
            work=("-m", "flask", "--app", "shop", "outboxq", "worker"),
        ),
        Shop(
            name="django_shop",
            prepare=("manage.py", "migrate"),
            serve=("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "2", "--threads", "4", "shop.wsgi"),
            work=("manage.py", "outboxq", "worker"),
            test=("manage.py", "test"),
        ),
    )
}

of_each_shop = pytest.mark.parametrize(
    "shop",
    [
        # The Flask shop requires Flask-SQLAlchemy 3.1, which requires SQLAlchemy 2.0.16.
        pytest.param(shop, id=name, marks=[pytest.mark.current] if name == "flask_shop" else [])
        for name, shop in SHOPS.items()
    ],
)
"""Run a test for each shop."""


class Premises:
    """A copy of a shop in a separate directory, with its processes, which all end when the block ends."""

    def __init__(self, shop: Shop, directory: Path, url: str) -> None:
        self.shop = shop
        self.url = url
        self.port = 0
        self.home = directory / shop.name
        self._logs = directory
        self._children: list[Child] = []
        shutil.copytree(shop.directory, self.home, ignore=shutil.ignore_patterns("__pycache__", "*.db*", ".*"))

    def __enter__(self) -> Self:
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            for child in self._children:
                child.end()
                self._tell("gone", child)
                if error is not None:
                    error.add_note(f"{child.log.name} ends with:\n{child.text()[-2000:]}")
        finally:
            self._guard.communicate(timeout=10)  # the guard kills processes that could not be ended here
        assert self._guard.returncode == 0

    def prepare(self) -> None:
        child = self._start("prepare", self.shop.prepare)
        assert self.wait(child) == 0, child.text()

    def serve(self) -> Child:
        """Start a server, and wait until it answers."""
        self.port = _free_port()
        server = self._start("server", [word.format(port=self.port) for word in self.shop.serve])
        until(lambda: self._answers(server), seconds=240)
        return server

    def work(self) -> Child:
        """Start a worker process, without waiting until it is ready."""
        return self._start(f"worker-{len(self._children)}", self.shop.work)

    def wait(self, child: Child, seconds: float = 60) -> int:
        code = child.wait(seconds)
        self._tell("gone", child)
        return code

    @property
    def environment(self) -> dict[str, str]:
        hidden = ("OUTBOXQ", "PYTHONPATH", "DJANGO")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        environment |= {"SHOP_DATABASE_URL": self.url, "SHOP_LEASE": str(LEASE), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTEST_ADDOPTS"] = ""  # the options are for these tests, not for a shop's own tests
        environment["GUNICORN_CMD_ARGS"] = "--no-control-socket"  # the socket would be in the user's home directory
        return environment

    def _start(self, name: str, arguments: Sequence[str]) -> Child:
        child = Child([sys.executable, *arguments], self.home, self._logs / f"{name}.log", self.environment)
        self._children.append(child)
        self._tell("born", child)
        return child

    def _tell(self, what: str, child: Child) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{what} {child.pid}\n".encode())
        self._guard.stdin.flush()

    def _answers(self, server: Child) -> bool:
        assert server.poll() is None, server.text()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/orders/00000000-0000-0000-0000-000000000000")
            return connection.getresponse().status == 404
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class Child(Process):
    """A process and all processes that it starts."""

    def __init__(self, command: list[str], directory: Path, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = forked.Popen(
                command,
                warm=forked.FRAMEWORKS,
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        if self.poll() is None:  # until the process is waited for, no other process or group can have its number
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
