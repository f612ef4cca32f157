"""A failover, restarts, lost connections and a full disk under load: no task is lost, runs twice, or uses an attempt."""

from __future__ import annotations

import shutil
import time

import pytest

from outboxq import migrations
from tests import postgres
from tests.conftest import Database
from tests.faults.disk import Disk, FileLimits, Refusals, SmallDisk, mounted
from tests.faults.load import Load
from tests.standby import following, hosts, promote

pytestmark = pytest.mark.in_turn

SHORT, LONG = 80, 1500
"""The number of tasks in the short and the long tests."""
AWAY = 3.0
"""The number of seconds without a primary or without room, which is longer than a lease."""
TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)

in_the_campaign = pytest.mark.campaign
"""A mark for tests that run only in campaigns. In all runs, the short version of test_campaign.py covers restarts and full disks."""


@pytest.fixture
def server():
    settings = {"fsync": "off", "full_page_writes": "off"}
    server = postgres.start(prefer="own", durable=True, settings=settings)
    yield server
    server.stop()


@pytest.fixture
def standby(server):
    standby = following(server)
    yield standby
    standby.stop()


@pytest.fixture
def volume():
    """The directory of a small disk, or None if mounting is not permitted."""
    with mounted(96) as directory:
        yield directory


@pytest.fixture
def url(server):
    url = server.create_database()
    migrations.upgrade(url)
    return url


@pytest.fixture
def database(request):
    """The database that the test's parameter names."""
    database = request.getfixturevalue(request.param)
    yield database
    database.close()


@pytest.fixture
def alone(url):
    return Database("postgresql", url)


@pytest.fixture
def any_host(url, server, standby):
    return Database("postgresql", hosts(url, server, standby))


@pytest.fixture
def writable_host(url, server, standby):
    return Database("postgresql", hosts(url, server, standby, target_session_attrs="read-write"))


@pytest.fixture
def postgresql_on_a_small_disk(server, volume):
    tablespace = None
    if volume:  # only the tables, because a server that has no room for its log ends
        tablespace = "small"
        (volume / tablespace).mkdir()
        server.create_tablespace(tablespace, volume / tablespace)
    url = server.create_database(tablespace=tablespace)
    migrations.upgrade(url)
    return Database("postgresql", url)


@pytest.fixture
def sqlite_on_a_small_disk(volume, migrated_sqlite, tmp_path):
    path = (volume or tmp_path) / "outboxq.db"
    shutil.copy(migrated_sqlite, path)
    return Database("sqlite", f"sqlite:///{path}")


@pytest.fixture
def load(database, fork, tmp_path):
    """Create loads. They enqueue nothing after the test, even if it fails."""
    made: list[Load] = []

    def make(tasks: int) -> Load:
        made.append(Load(database, fork, tmp_path, tasks=tasks))
        made[-1].begin()
        return made[-1]

    yield make
    for one in made:
        one.abandon()


@pytest.mark.parametrize(
    ("database", "tasks"),
    [
        pytest.param("any_host", SHORT, id="short"),
        pytest.param("any_host", LONG, id="any_host", marks=pytest.mark.campaign),
        pytest.param("writable_host", LONG, id="writable_host", marks=pytest.mark.campaign),
    ],
    indirect=["database"],
)
def test_a_standby_that_is_promoted_late_takes_over(load, database, server, standby, effects, tasks, request):
    """The primary stops cleanly, so that all its acknowledged commits have reached the standby."""
    at_work = load(tasks)
    server.halt("fast")
    time.sleep(AWAY)  # the outage, under load
    promote(standby)
    at_work.end()
    at_work.check(f"failover, {request.node.callspec.id}", effects())


@pytest.mark.parametrize("database", ["alone"], indirect=True)
@in_the_campaign
@pytest.mark.parametrize(("tasks", "blows"), [(LONG, 8)])
def test_a_server_restart_loses_or_repeats_no_task(load, database, server, effects, tasks, blows):
    at_work = load(tasks)
    for _ in range(blows + 1):
        server.restart("fast")
        at_work.run_on()
    at_work.end()
    at_work.check(f"{blows + 1} restarts", effects())


@pytest.mark.parametrize("database", ["alone"], indirect=True)
@pytest.mark.parametrize(
    ("tasks", "blows"), [(SHORT, 1), pytest.param(LONG, 8, marks=pytest.mark.campaign)], ids=["short", "long"]
)
def test_terminated_connections_lose_or_repeat_no_task(load, database, effects, tasks, blows):
    at_work, terminated = load(tasks), 0
    for _ in range(5 * blows):
        [(count,)] = database.rows(TERMINATE)
        terminated += int(str(count))
        at_work.run_on(10)
    at_work.end()
    at_work.check(f"all connections terminated {5 * blows} times, {terminated} of them", effects())


@pytest.mark.parametrize("database", ["postgresql_on_a_small_disk", "sqlite_on_a_small_disk"], indirect=True)
@in_the_campaign
@pytest.mark.parametrize(("tasks", "blows"), [(LONG, 8)])
def test_a_full_disk_loses_or_repeats_no_task(load, database, volume, effects, tmp_path, tasks, blows):
    disk = disk_of(database, volume, tmp_path)
    at_work = load(tasks)
    if isinstance(disk, FileLimits):
        disk.pids = at_work.pids
    for _ in range(blows):
        try:
            disk.fill()
            time.sleep(AWAY)  # the outage, under load
        finally:
            disk.free()
        at_work.run_on()
    at_work.end()
    at_work.check(f"full disk {blows} times, {database.name}, {disk.how}", effects(), refuses=True)


def disk_of(database, volume, directory) -> Disk:
    engine = database.host_engine()
    if volume:
        return SmallDisk(engine, volume)
    return Refusals(engine) if database.name == "postgresql" else FileLimits(engine, directory)
