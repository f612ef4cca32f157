"""The server on which the other tests rely: it works from every source, as root and as an ordinary user, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests import postgres
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    cluster = postgres.start(prefer="own", settings={"deadlock_timeout": "100ms"})
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("source", ["system", "wheel"])
def test_every_source_starts_or_reports_what_to_install(source: str) -> None:
    if not any(kind == source for kind, _ in postgres.installations()):
        with pytest.raises(RuntimeError, match="install one"):
            postgres.start(prefer=source)
        return
    cluster = postgres.start(prefer=source)
    try:
        assert cluster.source.startswith(source)
        assert str(ask(cluster.url, "SHOW server_version")).startswith("{}.{}".format(*cluster.version))
        directory = cluster.data_directory
        assert directory.stat().st_uid != 0, "PostgreSQL must not run as root"
    finally:
        cluster.stop()
    assert not directory.parent.exists()


def test_a_missing_server_is_an_error_and_never_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.VARIABLE, raising=False)
    for prefer in ("environment", "own 1"):
        with pytest.raises(RuntimeError, match=postgres.VARIABLE):
            postgres.start(prefer=prefer)


def test_the_environment_chooses_the_version(cluster: postgres.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    major = str(cluster.version[0])
    monkeypatch.setenv(postgres.VERSION, major)
    chosen = postgres.start(prefer="own")
    try:
        assert chosen.version == cluster.version
    finally:
        chosen.stop()
    monkeypatch.setenv(postgres.VERSION, "14")
    with pytest.raises(RuntimeError, match="no PostgreSQL 14 for the tests") as raised:
        postgres.start(prefer="own")
    assert any(note.endswith(f"is version {major}") for note in raised.value.__notes__)


def test_a_server_from_the_environment_must_have_the_required_version(
    cluster: postgres.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(postgres.VARIABLE, cluster.url)
    monkeypatch.setenv(postgres.VERSION, str(cluster.version[0]))
    assert postgres.start().url == cluster.url
    monkeypatch.setenv(postgres.VERSION, "14")
    with pytest.raises(
        RuntimeError, match=f"a server of version {cluster.version[0]}, but {postgres.VERSION} requires 14"
    ):
        postgres.start()


def test_databases_are_copied_from_templates_and_dropped_despite_connections(cluster: postgres.Cluster) -> None:
    template = cluster.create_database()
    with connect(template) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    copy = cluster.create_database(template=template)
    assert ask(copy, "SELECT to_regclass('kept')::text") == "kept"
    with connect(copy):
        cluster.drop_database(copy)
    cluster.drop_database(copy)
    cluster.drop_database(template)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(copy)
    with pytest.raises(ValueError, match="not a database of these tests"):
        cluster.drop_database(cluster.url)


def test_settings_reach_the_server(cluster: postgres.Cluster) -> None:
    assert ask(cluster.url, "SHOW deadlock_timeout") == "100ms"
    assert ask(cluster.url, "SHOW max_connections") == "200"
    assert ask(cluster.url, "SHOW fsync") == "off"


def test_a_restart_and_even_a_kill_keep_the_address(cluster: postgres.Cluster) -> None:
    before = cluster.pid
    cluster.restart("immediate")
    assert cluster.pid != before
    assert ask(cluster.url, "SELECT 1") == 1
    os.kill(cluster.pid, signal.SIGKILL)
    cluster.restart()
    assert ask(cluster.url, "SELECT 1") == 1


def test_the_server_is_down_between_halt_and_launch(cluster: postgres.Cluster) -> None:
    for mode in ("fast", "immediate"):
        cluster.halt(mode)  # type: ignore[arg-type]
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(cluster.url)
        cluster.launch()
        assert ask(cluster.url, "SELECT 1") == 1


def test_tables_are_in_the_tablespace_of_their_database(cluster: postgres.Cluster) -> None:
    with tempfile.TemporaryDirectory(dir=postgres.parent_directory()) as parent:
        Path(parent).chmod(0o755)
        directory = Path(parent) / "elsewhere"
        directory.mkdir()
        cluster.create_tablespace("elsewhere", directory)
        url = cluster.create_database(tablespace="elsewhere")
        with connect(url) as connection:
            connection.execute("CREATE TABLE kept (id int)")
        path = str(ask(url, "SELECT pg_relation_filepath('kept')"))
        assert (cluster.data_directory / path).resolve().is_relative_to(directory.resolve())
        cluster.drop_database(url)
        with psycopg.connect(cluster.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("DROP TABLESPACE elsewhere")


def test_a_server_from_the_environment_is_used_but_not_controlled(
    cluster: postgres.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(postgres.VARIABLE, cluster.url.replace("postgresql+psycopg", "postgresql"))
    foreign = postgres.start()
    assert (foreign.source, foreign.url, foreign.version) == ("environment", cluster.url, cluster.version)
    foreign.drop_database(foreign.create_database())
    with pytest.raises(RuntimeError, match="must not inspect or restart it"):
        foreign.restart("fast")
    with pytest.raises(RuntimeError, match="must not inspect or restart it"):
        foreign.halt()
    foreign.stop()
    assert ask(foreign.url, "SELECT 1") == 1


# A user without privileges, whose process is then killed. The imports come first, because this user may be unable to read this Python.
KILLED = """
import os, signal
from tests import postgres
from tests.waiting import until
if os.geteuid() == 0:
    import pwd
    nobody = pwd.getpwnam("nobody")
    os.setgroups([]), os.setgid(nobody.pw_gid), os.setuid(nobody.pw_uid)
cluster = postgres.start(prefer="own")
cluster.drop_database(cluster.create_database())
assert cluster.data_directory.stat().st_uid == os.geteuid() != 0
print(cluster.url, cluster.data_directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_of_an_ordinary_user_leaves_nothing_behind() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, check=False, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    url, data = done.stdout.split()
    until(lambda: not Path(data).parent.exists())
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(url)


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))


def ask(url: str, query: str) -> object:
    with connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]
