"""Fixtures that run each test on both databases and check the invariants afterwards."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine

from outboxq import migrations
from outboxq.database.engine import configure_sqlite, make_engine
from outboxq.model import Claim, Handle, NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests import chromium, forked, postgres
from tests.brokers import servers
from tests.faults.workers import Nursery
from tests.older import keep_stderr_apart
from tests.reuse import CheckedFile, Reused
from tests.signals import set_for_children
from tests.warm import lend_warm_connections

if TYPE_CHECKING:
    from tests.browser import Browser

# The tests start hundreds of Python processes, which share compiled modules even if the environment disables this.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

keep_stderr_apart()
lend_warm_connections()


def keep_files_in_memory() -> None:
    """Keep `tmp_path` and all other temporary files in memory, if there is room.

    A commit in SQLite then takes 0.1 ms instead of 5 ms. A new PostgreSQL database, which has a thousand files, takes 20 ms of
    CPU time instead of 270 ms.
    """
    with suppress(AttributeError, OSError):
        memory = os.statvfs("/dev/shm")
        if memory.f_bavail * memory.f_frsize > 2**31 and not memory.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
            os.environ.setdefault("TMPDIR", "/dev/shm")
            tempfile.tempdir = None  # so that TMPDIR is read again


keep_files_in_memory()

DATABASES = ("sqlite", "postgresql")

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    """A clock for both databases that stands still until a test moves it."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta | float) -> datetime:
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now


@dataclass
class Database:
    """A fresh database with outboxq's tables, and shortcuts for filling it."""

    name: str
    """sqlite or postgresql."""
    url: str
    reused: Reused | None = None
    """The shared database that this object represents, or None if it is not shared."""
    engines: list[Engine] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    worker: UUID = field(default_factory=uuid4)
    corrupted: bool = False
    """Set by a test that breaks the invariants on purpose and leaves them broken."""

    def __post_init__(self) -> None:
        self.engine = self.own(make_engine(self.url))
        if self.reused and self.reused.warm:
            self.reused.warm.lend_to(self.engine)
        self.store = Store(self.engine)
        """A store that uses the database's clock."""
        self.frozen = Store(self.engine, clock=self.clock)
        """A store that uses `clock`."""

    def own(self, engine: Engine) -> Engine:
        self.engines.append(engine)
        return engine

    def host_engine(self) -> Engine:
        """Return an engine as an application would create it: transactional and, for SQLite, configured."""
        engine = self.own(create_engine(self.url))
        if self.reused and self.reused.warm:
            self.reused.warm.lend_to(engine)
        return configure_sqlite(engine) if self.name == "sqlite" else engine

    @cached_property
    def host(self) -> Engine:
        """One such engine for all uses that need only a connection."""
        return self.host_engine()

    def own_store(self) -> Store:
        """Return a store with its own connections, as a worker has."""
        store = Store(self.engine).reserved(threading.Event())
        self.own(store.bound_engine)
        return store

    def add(self, store: Store | None = None, **fields: object) -> Handle:
        """Enqueue one task in a separate transaction."""
        values = {"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields}
        return (store or self.frozen).enqueue(NewTask(**values))  # type: ignore[arg-type]

    def claim(self, limit: int = 1, store: Store | None = None, **options: object) -> list[Claim]:
        options = {"worker_id": self.worker, **options}
        return (store or self.frozen).claim_ready_task(limit, **options)  # type: ignore[arg-type]

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Return raw rows, read without outboxq's code."""
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(sql).all()]

    def run(self, sql: str) -> None:
        """Execute a raw statement and commit."""
        with self.engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(sql)

    def counts(self) -> tuple[int, int, int]:
        """Return the number of rows in task_executions, execution_events and task_outbox."""
        tables = ("task_executions", "execution_events", "task_outbox")
        return tuple(self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables)  # type: ignore[return-value]

    def assert_sound(self) -> None:
        """Check the invariants at the later of the two clocks' times, so that no row lies in the future."""
        now = max(self.clock(), datetime.now(UTC))
        if self.name == "sqlite":
            sound = checked_file().is_sound(self.engine, now)
        else:
            sound = self.reused is not None and self.reused.is_sound(self.url, now)
        if not sound:
            assert Store(self.engine, clock=lambda: now).verify() == []

    def close(self) -> None:
        for engine in self.engines:
            engine.dispose()


@cache
def checked_file() -> CheckedFile:
    """Return the file in which this process checks the databases of SQLite tests."""
    return CheckedFile()


def pytest_sessionfinish() -> None:
    if checked_file.cache_info().currsize:
        checked_file().close()
    forked.close()


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes for `-n auto`: two more than there are cores, because most tests wait half of the time."""
    return 2 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


DEFAULT_MARKS = "not campaign and not apart"
"""The tests that `addopts` selects."""


def pytest_configure(config: pytest.Config) -> None:
    """Leave out the long tests if the command does not say which tests to run, and share the files of initdb."""
    given = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.keyword or config.option.full
    if not given and config.option.markexpr == DEFAULT_MARKS:
        config.option.markexpr += " and not long"
    share_initdb(config)


def share_initdb(config: pytest.Config) -> None:
    """Let all processes of the run share the files that initdb creates. Each initdb takes 0.7 s of CPU time."""
    if postgres.INITIALISED not in os.environ:
        directory = tempfile.mkdtemp(prefix="outboxq-initdb-", dir=postgres.parent_directory())
        Path(directory).chmod(0o755)  # the server's account must be able to read it
        os.environ[postgres.INITIALISED] = directory
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(postgres.INITIALISED), ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection meanwhile. It took a fifth of the time in every process, although all new objects are kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each process start at another file of a directory, so that not all of them compile the same files at the same time.

    In a new checkout, compiling takes more time than the rest of the collection. A process loads what another has compiled.
    """
    report = yield
    if isinstance(collector, pytest.Dir) and hasattr(collector.config, "workerinput"):
        worker = collector.config.workerinput
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result[:] = report.result[first:] + report.result[:first]
    return report


def pytest_collection_finish() -> None:
    """Exclude the loaded modules and tests, which are never freed, from garbage collection."""
    gc.freeze()
    gc.set_threshold(20_000)  # for 245 tests, the collector ran 22 times; with the default of 700, 729 times


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=DATABASES, help="Run only the tests that use this database or none.")
    parser.addoption("--quick", action="store_true", help="Run only the core tests, on SQLite, in half a minute.")
    parser.addoption(
        "--full",
        action="store_true",
        default=bool(os.environ.get("OUTBOXQ_TEST_FULL")),
        help="Run every case on both databases, including cases marked `in_turn`. OUTBOXQ_TEST_FULL=1 does the same.",
    )
    parser.addoption(
        "--in-turn", action="store_true", help="Run every case on only one database, as if it were marked `in_turn`."
    )


CORE = (
    "claim",
    "dead_letters",
    "enqueue",
    "events",
    "finish",
    "keys",
    "leases",
    "queues",
    "recovery",
    "retention",
    "retry",
)
QUICK = ("tests/unit/", *(f"tests/contract/test_{noun}.py" for noun in CORE))
"""Paths that `--quick` collects."""

LONG = (
    *(
        f"tests/contract/test_{noun}"
        for noun in (
            "cli_locks",
            "clock_jumps",
            "demo",
            "isolation",
            "migrations",
            "stuck_rows",
            "worker_life",
            "worker_orders",
        )
    ),
    *(
        f"tests/dialects/test_{noun}"
        for noun in (
            "calls",
            "channel",
            "connections",
            "encodings",
            "floors",
            "locked_batches",
            "partitions",
            "scale",
            "server_settings",
            "sleeping",
            "upgrade_locks",
        )
    ),
    *(
        f"tests/docs/test_{noun}_page"
        for noun in ("dashboard", "django", "personal_data", "receive_webhooks", "testing")
    ),
    "tests/docs/test_frameworks",
    "tests/docs/test_guides",
    "tests/docs/test_tutorials",
    "tests/faults/",
    *(f"tests/integrations/dashboard/test_{noun}" for noun in ("databases", "each_page", "redacting")),
    *(f"tests/integrations/{host}" for host in ("django_", "examples/", "test_starting_workers", "tracing/")),
    "tests/integrations/test_benchmarks",
    "tests/roles/",
)
"""Paths of tests that start many processes and programs, or wait long. Their marker is `long`."""

LONGEST = (
    "tests/test_oldest.py",
    "tests/unit/test_house.py",
    "tests/docs/test_site.py",
    "tests/contract/test_cli_locks.py",
    "tests/contract/test_demo.py",
    "tests/faults/test_campaign.py",
    "tests/faults/test_outages.py",
    "tests/faults/test_releases.py",
    "tests/faults/test_server_crash.py",
    "tests/integrations/django_",
    "tests/integrations/examples/",
)
"""Paths of the tests that individually take longest."""


def pytest_report_header() -> str | None:
    missing = servers.missing()
    brokers = servers.LEFT_OUT.format(", ".join(missing), " ".join(missing)) if missing else None
    lines = [chromium.LEFT_OUT if chromium.is_missing() else None, brokers]
    return "\n".join(filter(None, lines)) or None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without selected tests, because every process would otherwise import all of them."""
    marks = config.getoption("markexpr")
    if collection_path == Path(servers.__file__).parent:
        return marks == f"{DEFAULT_MARKS} and not long" or None
    if collection_path.is_dir() or collection_path.suffix != ".py":
        return None
    if config.getoption("quick") and not collection_path.relative_to(config.rootpath).as_posix().startswith(QUICK):
        return True
    is_long = collection_path.relative_to(config.rootpath).as_posix().startswith(LONG)
    if marks == f"{DEFAULT_MARKS} and not long":
        return is_long or None
    if marks not in {"apart or long", "campaign"}:
        return None
    text = collection_path.read_text(encoding="utf-8")
    if marks == "campaign":
        return "pytest.mark.campaign" not in text or None
    return not (is_long or "pytest.mark.apart" in text or "browser" in text) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the tests that the options do not select, and put the longest tests first.

    The last tests are then short, so that all processes end at about the same time.
    """
    is_turned = hasattr(config, "workerinput")  # see pytest_make_collect_report
    items.sort(key=lambda item: (not item.nodeid.startswith(LONGEST), str(item.path) if is_turned else ""))
    for item in items:
        if item.nodeid.startswith(LONG) and item.get_closest_marker("campaign") is None:
            item.add_marker("long")
    in_browser = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    for item in in_browser:
        if item.get_closest_marker("campaign") is None:
            item.add_marker("apart")
    quick = config.getoption("quick")
    left_out: set[pytest.Item] = set()
    if quick:
        left_out |= {item for item in items if item.get_closest_marker("slow")}
    if (wanted := "sqlite" if quick else config.getoption("database")) is not None:
        left_out |= {item for item in items if databases_of(item) == set(DATABASES) - {wanted}}
    if not config.getoption("full"):
        left_out |= {item for item in items if item.get_closest_marker("full")}
        every = config.getoption("in_turn")
        left_out |= taken_elsewhere([item for item in items if item not in left_out], every=every)
    if chromium.is_missing():
        left_out.update(in_browser)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def taken_elsewhere(items: list[pytest.Item], *, every: bool) -> set[pytest.Item]:
    """Return the cases to leave out because they run on the other database. The choice is the same in every run.

    Each case that is marked `in_turn` or listed in IN_TURN runs on only one database; with `every`, this holds for each case. If a
    test has at least MANY variants, they alternate between the databases.
    """
    functions: dict[str, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        function, _, parameters = item.nodeid.partition("[")
        found = [name for name in DATABASES if name in parameters]
        if len(found) == 1 and not item.get_closest_marker("campaign"):
            variants = functions.setdefault(function, {})
            variants.setdefault(parameters.replace(found[0], ""), {})[found[0]] = item
    elsewhere: set[pytest.Item] = set()
    for function, variants in functions.items():
        on_both = {parameters: cases for parameters, cases in variants.items() if len(cases) == len(DATABASES)}
        first = zlib.crc32(function.encode())
        for number, (parameters, cases) in enumerate(on_both.items(), start=first):
            is_listed = function.startswith(IN_TURN) and not function.startswith(ON_BOTH)
            if every or is_listed or cases[DATABASES[0]].get_closest_marker("in_turn"):
                elsewhere.add(cases[DATABASES[zlib.crc32(f"{function}[{parameters}".encode()) % 2]])
            elif len(on_both) >= MANY and not function.startswith(ON_BOTH):
                elsewhere.add(cases[DATABASES[number % 2]])
    return elsewhere


IN_TURN = (
    *(
        f"tests/contract/test_{noun}"
        for noun in (
            "actions",
            "batch_results",
            "batch_tasks",
            "broker_relays",
            "cancel_all",
            "cli",
            "clock_jumps",
            "counted",
            "dead_letter_groups",
            "explain",
            "failed_versions",
            "failing_workers",
            "first_mistakes",
            "handler_log",
            "hooks",
            "interruptions",
            "isolation",
            "later_events",
            "links",
            "log_fields",
            "lost_workers",
            "meter",
            "metrics",
            "missed_events",
            "overview",
            "own_transactions",
            "periodic",
            "problems",
            "progress",
            "prometheus",
            "receivers",
            "registry",
            "relay_reasons",
            "relays",
            "replay",
            "results",
            "run_in_a_thread",
            "samples",
            "schedules",
            "sent_headers",
            "series",
            "silent_workers",
            "states",
            "statistics",
            "steps",
            "stuck_rows",
            "tail",
            "task_",
            "timeouts",
            "unclosed_batches",
            "unknown_",
            "webhook_sources",
            "worker",
        )
    ),
    "tests/integrations/dashboard/",
    "tests/integrations/flask_app/",
    "tests/integrations/sqlalchemy_session/test_session_host",
    "tests/integrations/sqlalchemy_session/test_uncommitted",
    "tests/integrations/testing_helpers/",
    "tests/unit/",
)
"""Tests of texts, of front ends and their numbers, of sessions and of a worker's Python code.

Other tests, or other cases of the same file, run the same SQL statements on both databases.
"""

ON_BOTH = (
    "tests/contract/test_migrations.py",
    "tests/contract/test_metrics.py::test_simultaneous_sum_ups_count_nothing_twice",
    "tests/contract/test_results.py::test_waiting_for_a_task_not_yet_committed_by_this_thread_is_refused",
    "tests/contract/test_samples.py::test_only_one_of_several_simultaneous_stores_gets_a_job",
    "tests/contract/test_schema",
    "tests/contract/test_targets.py",
    "tests/dialects/",
    "tests/integrations/orm/",
)
"""Tests whose variants each check a different part of the database itself: a plan, a constraint, a connection."""

MANY = 2


def databases_of(item: pytest.Item) -> set[str]:
    """Return the databases that the item's fixtures and parameters name. A `cluster` is always PostgreSQL."""
    _, _, parameters = item.name.partition("[")
    named = " ".join((*getattr(item, "fixturenames", ()), parameters)).replace("cluster", "postgresql")
    return {name for name in DATABASES if name in named}


@pytest.fixture(scope="session", autouse=True)
def _signals() -> None:
    """Reset the signals of the processes that tests start, so that these processes inherit no ignored signals.

    This is a fixture, so that it does not run in pytest-xdist's controller. The test processes that the controller starts must
    inherit its signals, so that they outlive their terminal.
    """
    set_for_children()


@pytest.fixture(scope="session", autouse=True)
def _templates() -> None:
    """Share the dashboard's compiled templates among all processes of the run. Otherwise, each dashboard compiles them in 0.1 s."""
    try:
        from jinja2 import Environment, FileSystemBytecodeCache

        from outboxq.web import rendering
    except ModuleNotFoundError:  # the tests of the oldest releases run without the dashboard's packages
        return
    directory = Path(os.environ[postgres.INITIALISED], "templates")
    directory.mkdir(exist_ok=True)
    rendering.Environment = partial(Environment, bytecode_cache=FileSystemBytecodeCache(str(directory)))  # type: ignore[misc]


class Server:
    """A PostgreSQL server, with the databases that this process's tests share."""

    def __init__(self, cluster: postgres.Cluster) -> None:
        self.cluster = cluster

    @cached_property
    def migrated(self) -> str:
        """A template database with outboxq's tables."""
        url = self.cluster.create_database()
        migrations.upgrade(url)
        return url

    @cached_property
    def reused(self) -> Reused:
        """The database that tests use one after another."""
        return Reused(self.cluster, self.migrated)

    def close(self) -> None:
        if "reused" in vars(self):
            self.reused.drop()
        self.cluster.stop()


SETTINGS = {"deadlock_timeout": "100ms", "autovacuum_naptime": "1d"}
"""Autovacuum is on but never runs: its session, its locks and its changes to statistics would disturb tests."""


@pytest.fixture(scope="session")
def first_server() -> Iterator[Server]:
    """The PostgreSQL server of nearly all tests: the one that `OUTBOXQ_TEST_POSTGRES_URL` names, or else one started here."""
    server = Server(postgres.start(settings=SETTINGS))
    yield server
    server.close()


@pytest.fixture(scope="session")
def newest_server(first_server: Server) -> Iterator[Server]:
    """A server of the newest PostgreSQL that the tests support.

    It is the first server if that is as new, or if the environment chooses a server.
    """
    is_chosen = os.environ.get(postgres.VARIABLE) or os.environ.get(postgres.VERSION)
    if is_chosen or first_server.cluster.version[0] >= int(postgres.NEWEST):
        yield first_server
        return
    server = Server(postgres.start(prefer=f"own {postgres.NEWEST}", settings=SETTINGS))
    yield server
    server.close()


@pytest.fixture(scope="session")
def cluster(first_server: Server) -> postgres.Cluster:
    """The session's PostgreSQL server or, in tests/contract, the test case's server."""
    return first_server.cluster


@pytest.fixture(scope="session")
def migrated_postgresql(first_server: Server) -> str:
    """Return the URL of a template database with outboxq's tables."""
    return first_server.migrated


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a template file with outboxq's tables."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    migrations.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    path = tmp_path / "outboxq.db"
    shutil.copy(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def reused_postgresql(first_server: Server) -> Reused:
    """The database that this process's tests share."""
    return first_server.reused


_OWN_CONNECTIONS = ("tests/dialects/", "tests/contract/test_engine.py")
"""Tests that observe the opening and closing of connections."""


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest, reused_postgresql: Reused) -> Iterator[str]:
    yield reused_postgresql.take(lends_to_all=not request.node.nodeid.startswith(_OWN_CONNECTIONS))
    reused_postgresql.give_back()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """This process's browser."""
    from tests.browser import Browser  # importing Playwright is slow, and few tests open a tab

    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The object that forks workers for this process's tests."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    yield from _checked(Database("sqlite", sqlite_url))


@pytest.fixture
def postgresql(postgresql_url: str, reused_postgresql: Reused) -> Iterator[Database]:
    yield from _checked(Database("postgresql", postgresql_url, reused_postgresql))


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> Database:
    """Each database in turn. Only tests in tests/dialects may cover behavior that one database alone has."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def _checked(database: Database) -> Iterator[Database]:
    yield database
    try:
        if not database.corrupted:
            database.assert_sound()
    finally:
        database.close()
