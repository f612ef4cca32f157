"""A real PgBouncer in transaction mode, if one is installed. The pooler in `tests/pooler.py` is always available."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg
from sqlalchemy.engine import make_url

from tests import postgres
from tests.waiting import until

VARIABLE = "OUTBOXQ_TEST_PGBOUNCER"
"""A variable that `nox -s pgbouncer` sets to `required`. Tests then fail if PgBouncer is missing, instead of running without it."""

# PgBouncer ends when the pipe from the test process closes, even if that process was killed. SIGTERM does not wait for clients.
_WATCHED = '"$@" & read -r _; kill -TERM $!; wait'


def program() -> str | None:
    """Return the path of the installed PgBouncer."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def is_wanted() -> bool:
    return program() is not None or os.environ.get(VARIABLE) == "required"


class PgBouncer:
    """A pooler that lends `pool_size` server connections to any number of clients, for one transaction at a time."""

    def __init__(self, url: str, pool_size: int) -> None:
        found = program()
        if found is None:
            raise RuntimeError(
                "PgBouncer is not installed, so nothing was tested through it; run: apt install pgbouncer (on Debian)"
            )
        self._program = found
        self._upstream = make_url(url)
        self._pool_size = pool_size

    def __enter__(self) -> Self:
        port = postgres.free_port()
        self._home = Path(tempfile.mkdtemp(prefix="outboxq-bouncer-", dir=postgres.parent_directory()))
        account = postgres.account()
        (self._home / "ini").write_text(self._settings(port))
        if account:
            for path in (self._home, self._home / "ini"):
                os.chown(path, account["user"], account["group"])
        log = self._home / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "outboxq-bouncer", self._program, str(self._home / "ini")],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                **account,
            )
        self.url = self._upstream.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        """The server's URL, but through PgBouncer."""

        def answers() -> bool:
            assert self._process.poll() is None, log.read_text()
            address = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
            try:
                psycopg.connect(address, connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            until(answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes the pipe
        shutil.rmtree(self._home, ignore_errors=True)

    def _settings(self, port: int) -> str:
        there = self._upstream
        given = f"host={there.host} port={there.port or 5432} user={there.username}"
        if there.password:
            given += f" password={there.password}"
        lines = [
            "[databases]",
            f"* = {given}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = any",  # connect as the user in the line above
            "pool_mode = transaction",
            f"default_pool_size = {self._pool_size}",
            "max_client_conn = 500",
        ]
        if self._version() >= (1, 21):
            lines.append("max_prepared_statements = 0")  # as in releases before 1.21, which do not support them
        return "\n".join(lines) + "\n"

    def _version(self) -> tuple[int, int]:
        said = subprocess.run([self._program, "--version"], capture_output=True, check=True, text=True).stdout
        found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
        assert found, said
        return int(found[1]), int(found[2])
