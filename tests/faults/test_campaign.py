"""Campaigns in which processes die or freeze, and the database is down, locked or full.

The long campaigns run up to 20,000 tasks (`nox -s faults`). A short one runs with the other tests.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from outboxq import migrations
from outboxq.database.privileges import Role
from outboxq.model import MAX_RECOVERIES, EventType
from outboxq.store import Store
from tests import postgres
from tests.conftest import DATABASES, Database
from tests.faults.blows import LEASE
from tests.faults.campaign import Campaign
from tests.faults.disk import FileLimits, Refusals, SmallDisk, mounted
from tests.faults.plan import Ground, Plan
from tests.faults.reruns import Judge
from tests.faults.workers import Forked, Nursery, Process

pytestmark = pytest.mark.in_turn

SHORT = Plan(tasks=400, processes=3, kills=3, stops=1, outages=1, stuck=1, full=1, patience=60)
LONG = Plan(tasks=20_000, processes=4, kills=200, stops=20, outages=5, stuck=5, full=3, patience=400)
CROWD = Plan(tasks=5_000, processes=50, kills=200, stops=20, outages=3, stuck=3, full=2, patience=400, crowd=True)
FULL = ("53100", "No space left on device", "database or disk is full", "disk I/O error")


@pytest.fixture
def volume(request):
    """The directory of a small disk, or None if mounting is not permitted."""
    with mounted(512 if request.node.get_closest_marker("campaign") else 96) as directory:
        yield directory


@pytest.fixture
def server(volume):
    """A server that may be stopped. It then loses no acknowledged commit, unless the machine itself crashes."""
    settings = {"fsync": "off", "full_page_writes": "off", "deadlock_timeout": "100ms", "max_connections": "500"}
    server = postgres.start(prefer="own", durable=True, settings=settings)
    yield server
    server.stop()


@pytest.fixture
def postgresql(server, volume):
    tablespace = None
    if volume:  # only the tables, because a server that has no room for its log ends
        tablespace = "small"
        (volume / tablespace).mkdir()
        server.create_tablespace(tablespace, volume / tablespace)
    url = server.create_database(tablespace=tablespace)
    migrations.upgrade(url)
    database = Database("postgresql", url)
    yield database
    database.close()


@pytest.fixture
def sqlite(volume, migrated_sqlite, tmp_path):
    path = (volume or tmp_path) / "outboxq.db"
    shutil.copy(migrated_sqlite, path)
    database = Database("sqlite", f"sqlite:///{path}")
    yield database
    database.close()


@pytest.fixture(params=DATABASES)
def database(request):
    """Each database in turn. It is not shared, because it is stopped, locked and filled."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def orders(database):
    """The application's table to which producers write one row for each task."""
    database.run("CREATE TABLE orders (id CHAR(32) NOT NULL, task CHAR(32) NOT NULL, vain BOOLEAN NOT NULL)")
    yield lambda: [UUID(row[0]) for row in database.rows("SELECT task FROM orders")]
    database.run("DROP TABLE orders")


@pytest.fixture(scope="session")
def release_before():
    """The nursery of an earlier checkout that OUTBOXQ_TEST_BEFORE names, or None if all processes run this checkout's code."""
    if not (root := os.environ.get("OUTBOXQ_TEST_BEFORE")):
        yield None
        return
    nursery = Nursery(Path(root))
    yield nursery
    nursery.close()


@pytest.fixture
def fork(fork, database, release_before, tmp_path):
    """Start processes. Every second one runs the earlier release, if there is one."""
    if release_before is None:
        yield fork
        return
    started: list[Process] = []
    numbers = itertools.count()

    def start_process(kind: str = "worker", **options: object) -> Process:
        if (number := next(numbers)) % 2:
            return fork(kind, **options)
        log = tmp_path / f"forked-before-{number}.log"
        started.append(Forked(release_before, log, {"kind": kind, "url": database.url, **options}))
        return started[-1]

    yield start_process
    for process in started:
        process.end()


@pytest.fixture
def campaign(request, database, fork, volume, tmp_path):
    """Create a campaign from a plan."""

    def make(plan):
        seed = os.environ.get("OUTBOXQ_SEED") or str(random.randrange(10**6))
        server = request.getfixturevalue("server") if database.name == "postgresql" else None
        writer = database.host_engine()
        if server is None:
            event.listen(writer, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout = 1000"))
        if volume:
            disk = SmallDisk(writer, volume)
        elif server:
            disk = Refusals(writer)
        else:
            disk = FileLimits(writer, tmp_path)
        print(f"\n{database.name}: OUTBOXQ_SEED={seed}; the full disk is {disk.how}")
        ground = Ground(database=database, server=server, writer=writer, disk=disk)
        campaign = Campaign(ground, fork if server is None else as_roles(database, fork), tmp_path, plan, seed=seed)
        if isinstance(disk, FileLimits):
            disk.pids = campaign.pids
        return campaign

    return make


def as_roles(database, fork):
    """Fork workers and producers that log in as roles with the fewest privileges, also on the application's tables."""
    urls = {}
    for role, table in ((Role.WORKER, "effects"), (Role.PRODUCER, "orders")):
        name = f"campaign_{role}"
        database.run(f"CREATE ROLE {name} LOGIN; GRANT SELECT, INSERT ON {table} TO {name}")
        Store(database.engine).rights.grant(role, name)
        urls[role.value] = make_url(database.url).set(username=name).render_as_string(hide_password=False)

    def fork_one(kind="worker", **options):
        return fork(kind, url=urls[kind], **options)

    return fork_one


def survive(campaign, effects, orders):
    began = time.monotonic()
    campaign.run()
    seconds = time.monotonic() - began
    database, plan, done, complaints = campaign.database, campaign.plan, campaign.done, campaign.complaints
    reruns = list(Judge(campaign.struck, database.store.history, lease=LEASE).reruns(campaign.runs.all()))
    unexcused = [one for one in reruns if one.excuse is None]
    committed, vain = campaign.acknowledged()
    rows = database.rows("SELECT id, task_name, status, recovery_attempts FROM task_executions")
    ended = {UUID(str(row[0])): row[1:] for row in rows}
    events = Counter(dict(database.rows("SELECT event_type, count(*) FROM execution_events GROUP BY event_type")))
    unfinished = {one: database.store.history(one) for one, (_, status, _) in ended.items() if status != "Completed"}
    killed = [one for one, history in unfinished.items() if history[-1].event_type is EventType.ABANDONED]
    completed = database.rows(
        "SELECT task_execution_id FROM execution_events WHERE event_type = 'task_completed' "
        "GROUP BY task_execution_id HAVING count(*) > 1"
    )
    transactional = sorted(one.hex for one, (name, _, _) in ended.items() if name == "faults.entry")
    log_of = {path.name: path.read_text(errors="replace") for path in campaign.directory.glob("forked-*.log")}
    logs = "".join(log_of.values())
    print(
        f"{len(ended)} tasks ({len(transactional)} transactional) in {seconds:.1f} s; {done['kill']} workers and "
        f"{done['producers killed']} producers killed, {done['stop']} workers frozen past their lease ({plan.processes} at a time; "
        f"{done['asleep']} were hit while they ran nothing); {done['outage']} outages, "
        f"{done['stuck']} stuck transactions, {done['full']} full disks; "
        f"{events[EventType.RESET]} recoveries, {len(killed)} tasks abandoned, {done['fenced']} fenced, "
        f"{events[EventType.RETRY_SCHEDULED]} retries, {events[EventType.RELEASED]} released; "
        f"{len(committed)} acknowledged, {len(vain)} rolled back\n"
        f"{len(campaign.runs.all())} runs of handlers; {len(reruns)} ran again: {told(one.excuse for one in reruns if one.excuse)}\n"
        f"ran again although their worker lived: {len(unexcused)}: {told(one.blow for one in unexcused)}"
    )

    def hold(truth, complaint):
        if not truth:
            complaints.append(complaint)

    if unexcused:
        histories = "\n".join(map(str, unexcused[:5]))
        for name, log in log_of.items():
            if any(str(one.earlier.worker_id) in log for one in unexcused[:5]):
                histories += f"\n{name}:\n{log[-3000:]}"
        counts = told(one.blow for one in unexcused)
        complaints.insert(
            0, f"{len(unexcused)} handlers ran again although their worker lived ({counts}):\n{histories}"
        )
    hold(committed <= ended.keys(), f"acknowledged but lost: {list(committed - ended.keys())[:3]}")
    hold(not vain & ended.keys(), f"rolled back but present: {list(vain & ended.keys())[:3]}")
    hold(sorted(orders()) == sorted(ended), "a task without its order, or an order without its task")
    hold(len(ended) >= plan.tasks, f"only {len(ended)} tasks")
    others = [history for one, history in unfinished.items() if one not in killed]
    hold(not others, f"{len(others)} unfinished: {[[event.event_type for event in one] for one in others[:3]]}")
    # The next kill may hit a recovered task again. Four hits are rare.
    hold(len(killed) <= plan.kills / 50, f"{len(killed)} tasks abandoned")
    hold({ended[one][2] for one in killed} <= {MAX_RECOVERIES}, "abandoned after too few recoveries")
    hold(not completed, f"completed twice: {completed[:3]}")
    hold(events[EventType.COMPLETED] == len(ended) - len(unfinished), "a task completed without its event")
    done_once = sorted(one for one in transactional if UUID(one) not in unfinished)
    hold(effects() == done_once, "an effect without its task's completion, twice, or missing")
    found = database.store.verify()
    hold(not found, f"verify: {found[:3]}")
    deadlocks = campaign.ground.server.log.count("deadlock detected") if campaign.ground.server else 0
    hold(deadlocks == 0, f"{deadlocks} deadlocks")
    words = [word for word in ("IntegrityError", "Violation", "could not be handled", "CRITICAL") if word in logs]
    hold(not words, f"in the logs: {words}")
    planned = (plan.kills, plan.stops, plan.stops, plan.outages, plan.stuck, plan.full)
    hold(
        tuple(done[kind] for kind in ("kill", "stop", "woken", "outage", "stuck", "full")) == planned, "not as planned"
    )
    hold(any(word in logs for word in FULL), "no worker has met the full disk")
    hold("permission denied" not in logs and "NotPermitted" not in logs, "a role lacked a privilege")
    hold(done["producers killed"] > 0, "no producer was killed")
    hold(vain and transactional and events[EventType.RESET] > 0, "nothing was rolled back, transactional or recovered")
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)
    return done


def told(words):
    return ", ".join(f"{count} × {word}" for word, count in Counter(words).most_common()) or "none"


def test_no_task_is_lost_or_runs_twice_when_processes_die_and_the_database_is_unavailable(campaign, effects, orders):
    survive(campaign(SHORT), effects, orders)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_none_of_20_000_tasks_is_lost_or_runs_twice_through_200_kills_and_database_outages(campaign, effects, orders):
    done = survive(campaign(LONG), effects, orders)
    assert done["fenced"] > 0


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_fifty_mostly_idle_workers_run_each_task_once_despite_an_old_snapshot(campaign, effects, orders):
    crowd = campaign(CROWD)
    done = survive(crowd, effects, orders)
    assert 0 < done["asleep"] < CROWD.kills + CROWD.stops
    assert 1 <= crowd.snapshot.taken <= 1 + CROWD.outages
