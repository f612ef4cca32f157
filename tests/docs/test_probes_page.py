"""docs/operate/probes.md: `health.py` runs as a program, and is queried as Kubernetes would do it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from sqlalchemy.engine import make_url

from tests import forked
from tests.forked import ROOT
from tests.postgres import free_port
from tests.waiting import until

pytestmark = pytest.mark.in_turn

PAGE = (ROOT / "docs" / "operate" / "probes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {found[1]: block for block in BLOCKS if (found := re.match(r"# (\w+\.py)\n", block))}
[CHECK] = [block for block in BLOCKS if block not in FILES.values()]
[UPGRADE] = re.findall(r"^```sh\noutboxq (.*)\n```$", PAGE, re.MULTILINE)


def test_the_endpoints_return_the_described_responses(database, tmp_path):
    program = Program(tmp_path, database)
    program.run("-m", "outboxq", *UPGRADE.split())
    with program.started():
        until(lambda: program.asked("/ready") == 200)
        assert program.asked("/") == 200
        assert until(lambda: program.run("-c", CHECK)).strip()
    assert program.run("-c", CHECK) == ""


def test_a_worker_without_notifications_is_alive_and_never_ready(database, tmp_path):
    if database.name == "sqlite":
        return  # on SQLite, a worker always notices changes to the file
    program = Program(tmp_path, database, concurrency="notifications=False, concurrency")
    program.run("-m", "outboxq", *UPGRADE.split())
    with program.started():
        until(lambda: program.run("-c", CHECK))
        assert (program.asked("/"), program.asked("/ready")) == (200, 503)


class Program:
    """The page's files in a directory, and a port for `health.py`."""

    def __init__(self, directory: Path, database: Any, **replaced: str) -> None:
        self._directory, self._port = directory, free_port()
        url = make_url(database.url).render_as_string(hide_password=False)
        address = url if database.name == "postgresql" else f"sqlite:///{directory}/shop.db"
        replaced |= {'"sqlite:///shop.db"': repr(address), '("", 8080)': f'("127.0.0.1", {self._port})'}
        for name, source in FILES.items():
            text = reduce(lambda text, pair: text.replace(*pair), replaced.items(), source)
            (directory / name).write_text(text)
        self._options: dict[str, Any] = {
            "cwd": directory,
            "env": {**os.environ, "PYTHONPATH": f"{ROOT}:{directory}"},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }

    def run(self, *words: str) -> str:
        done = forked.run([*forked.PYTHON, *words], timeout=60, **self._options)
        assert done.returncode == 0, done.stdout
        return str(done.stdout)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Run `health.py` for the duration of the block, and stop it as Kubernetes does."""
        with forked.Popen([*forked.PYTHON, "health.py"], **self._options) as process:
            try:
                until(lambda: self.asked("/") is not None)
                yield
            finally:
                process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said

    def asked(self, path: str) -> int | None:
        """Return the status code of the response, or None if no program listens yet."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}{path}") as answer:
                return int(answer.status)
        except HTTPError as refused:
            return refused.code
        except URLError:
            return None
