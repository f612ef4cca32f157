"""Both databases for every test that asks for one; the invariants are checked when the test is over."""

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

# Hundreds of Python processes are started here: what one has compiled serves the others, whatever the environment prefers.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

keep_stderr_apart()
lend_warm_connections()


def keep_files_in_memory() -> None:
    """Have `tmp_path` and all other temporary files lie in memory, if there is room.

    A commit of SQLite then takes 0.1 ms instead of 5 ms. A new database of PostgreSQL, a thousand files, takes 20 ms of a
    processor's time instead of 270 ms.
    """
    with suppress(AttributeError, OSError):
        memory = os.statvfs("/dev/shm")
        if memory.f_bavail * memory.f_frsize > 2**31 and not memory.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
            os.environ.setdefault("TMPDIR", "/dev/shm")
            tempfile.tempdir = None  # as the environment now says


keep_files_in_memory()

DATABASES = ("sqlite", "postgresql")

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    """A clock that stands still until it is moved; both databases then go by it."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta | float) -> datetime:
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now


@dataclass
class Database:
    """A fresh database with our tables, and a few short ways to fill it."""

    name: str
    """sqlite or postgresql."""
    url: str
    reused: Reused | None = None
    """The one that this database is, if it is reused."""
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
        """On the database's own clock."""
        self.frozen = Store(self.engine, clock=self.clock)
        """On `clock`."""

    def own(self, engine: Engine) -> Engine:
        self.engines.append(engine)
        return engine

    def host_engine(self) -> Engine:
        """An engine as an application would make it: transactional, SQLite put right."""
        engine = self.own(create_engine(self.url))
        if self.reused and self.reused.warm:
            self.reused.warm.lend_to(engine)
        return configure_sqlite(engine) if self.name == "sqlite" else engine

    @cached_property
    def host(self) -> Engine:
        """One such engine for all that needs nothing but a connection."""
        return self.host_engine()

    def own_store(self) -> Store:
        """On connections of its own, as a worker's are."""
        store = Store(self.engine).reserved(threading.Event())
        self.own(store.bound_engine)
        return store

    def add(self, store: Store | None = None, **fields: object) -> Handle:
        """Enqueue one task in a transaction of its own."""
        values = {"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields}
        return (store or self.frozen).enqueue(NewTask(**values))  # type: ignore[arg-type]

    def claim(self, limit: int = 1, store: Store | None = None, **options: object) -> list[Claim]:
        options = {"worker_id": self.worker, **options}
        return (store or self.frozen).claim_ready_task(limit, **options)  # type: ignore[arg-type]

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Raw rows, read past every layer of ours."""
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(sql).all()]

    def run(self, sql: str) -> None:
        """A raw statement, committed."""
        with self.engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(sql)

    def counts(self) -> tuple[int, int, int]:
        """Rows in task_executions, execution_events, task_outbox."""
        tables = ("task_executions", "execution_events", "task_outbox")
        return tuple(self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables)  # type: ignore[return-value]

    def assert_sound(self) -> None:
        """Check the invariants at the later of the two clocks: rows of the other one are in its past, not ahead of it."""
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
    """This process's file for the checks of tests on SQLite."""
    return CheckedFile()


def pytest_sessionfinish() -> None:
    if checked_file.cache_info().currsize:
        checked_file().close()
    forked.close()


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two processes more than there are cores, for most tests wait half of their time."""
    return 2 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of the run share what initdb makes, which takes 0.7 s of a processor's time each."""
    if postgres.INITIALISED not in os.environ:
        directory = tempfile.mkdtemp(prefix="outboxq-initdb-", dir=postgres.parent_directory())
        Path(directory).chmod(0o755)  # the server's account reads it
        os.environ[postgres.INITIALISED] = directory
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(postgres.INITIALISED), ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile: all that is made is kept, and the looks took a fifth of the time, in every process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the collector from looking through the modules and tests that are loaded by now, all of which stay."""
    gc.freeze()
    gc.set_threshold(20_000)  # with 700, the collector ran 729 times for 245 tests, and 22 times with this


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=DATABASES, help="Only this database's tests, and those that need none.")
    parser.addoption("--quick", action="store_true", help="The core, on SQLite alone: half a minute.")
    parser.addoption(
        "--full",
        action="store_true",
        default=bool(os.environ.get("OUTBOXQ_TEST_FULL")),
        help="Every case on both databases, also what is taken in turn. OUTBOXQ_TEST_FULL=1 asks for it, too.",
    )
    parser.addoption(
        "--in-turn", action="store_true", help="Every case on one of the databases, as if marked `in_turn`."
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
"""What `--quick` collects."""

LONG = (
    "tests/contract/test_demo.py",
    "tests/faults/test_campaign.py",
    "tests/faults/test_outages.py",
    "tests/faults/test_releases.py",
    "tests/faults/test_server_crash.py",
    "tests/integrations/django_",
    "tests/integrations/examples/",
    "tests/integrations/test_benchmarks.py",
    "tests/unit/test_house.py",
)
"""Where the tests are that take longest, one by one."""


def pytest_report_header() -> str | None:
    missing = servers.missing()
    brokers = servers.LEFT_OUT.format(", ".join(missing), " ".join(missing)) if missing else None
    lines = [chromium.LEFT_OUT if chromium.is_missing() else None, brokers]
    return "\n".join(filter(None, lines)) or None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files from which nothing would be chosen: with `-m apart`, each process takes 2 s instead of 16 s to find 170 tests."""
    if collection_path.is_dir() or collection_path.suffix != ".py":
        return None
    if config.getoption("quick") and not collection_path.relative_to(config.rootpath).as_posix().startswith(QUICK):
        return True
    mark = config.getoption("markexpr")
    if mark not in {"apart", "campaign"}:
        return None
    text = collection_path.read_text(encoding="utf-8")
    return not (f"pytest.mark.{mark}" in text or (mark == "apart" and "browser" in text)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the options do not ask for. The longest come first: what is left at the end is to be short, and many can
    share it.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
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
    """Return the cases that are taken on the other database, always the same ones.

    Those are half of the cases that are `in_turn`: `every` case, those marked so, and those of IN_TURN. Of a test with MANY
    variants, each database takes every second one.
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
            if every or cases[DATABASES[0]].get_closest_marker("in_turn") or function.startswith(IN_TURN):
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
            "own_transactions",
            "periodic",
            "problems",
            "progress",
            "prometheus",
            "receivers",
            "registry",
            "relay_reasons",
            "replay",
            "run_in_a_thread",
            "schedules",
            "sent_headers",
            "silent_workers",
            "states",
            "steps",
            "stuck_rows",
            "tail",
            "task_ids",
            "timeouts",
            "unclosed_batches",
            "unknown_",
            "webhook_sources",
            "worker",
        )
    ),
    "tests/integrations/dashboard/",
    "tests/integrations/flask_app/",
    "tests/integrations/testing_helpers/",
    "tests/unit/",
)
"""Tests of words, of front ends and of what a worker does in Python: the statements that they run have tests on both databases."""

ON_BOTH = (
    "tests/contract/test_migrations.py",
    "tests/contract/test_results.py::test_a_task_that_this_thread_has_not_committed_is_not_waited_for",
    "tests/contract/test_schema",
    "tests/contract/test_targets.py",
    "tests/dialects/",
    "tests/integrations/orm/",
)
"""Tests of which each variant is about something else in the database itself: a plan, a constraint, a connection."""

MANY = 2


def databases_of(item: pytest.Item) -> set[str]:
    """Those that its fixtures and parameters name; a `cluster` is PostgreSQL's."""
    _, _, parameters = item.name.partition("[")
    named = " ".join((*getattr(item, "fixturenames", ()), parameters)).replace("cluster", "postgresql")
    return {name for name in DATABASES if name in named}


@pytest.fixture(scope="session", autouse=True)
def _signals() -> None:
    """The processes that tests start have their signals set, not inherited.

    A fixture, because pytest-xdist's controller runs no test: the processes that it starts are to outlive their terminal too.
    """
    set_for_children()


@pytest.fixture(scope="session", autouse=True)
def _templates() -> None:
    """All processes of the run share the dashboard's compiled templates: else each dashboard compiles what it shows, 0.1 s each."""
    try:
        from jinja2 import Environment, FileSystemBytecodeCache

        from outboxq.web import rendering
    except ModuleNotFoundError:  # the oldest releases are tried without the dashboard's packages
        return
    directory = Path(os.environ[postgres.INITIALISED], "templates")
    directory.mkdir(exist_ok=True)
    rendering.Environment = partial(Environment, bytecode_cache=FileSystemBytecodeCache(str(directory)))  # type: ignore[misc]


class Server:
    """A PostgreSQL server, with what the tests of this process share on it."""

    def __init__(self, cluster: postgres.Cluster) -> None:
        self.cluster = cluster

    @cached_property
    def migrated(self) -> str:
        """A database with our tables, to be copied."""
        url = self.cluster.create_database()
        migrations.upgrade(url)
        return url

    @cached_property
    def reused(self) -> Reused:
        """The database that tests use one after the other."""
        return Reused(self.cluster, self.migrated)

    def close(self) -> None:
        if "reused" in vars(self):
            self.reused.drop()
        self.cluster.stop()


SETTINGS = {"deadlock_timeout": "100ms", "autovacuum_naptime": "1d"}
"""Autovacuum is on, but never comes: a test would meet its session, its locks, and the statistics that it has changed."""


@pytest.fixture(scope="session")
def first_server() -> Iterator[Server]:
    """The PostgreSQL of nearly all tests: the one that `OUTBOXQ_TEST_POSTGRES_URL` names, else one of the machine."""
    server = Server(postgres.start(settings=SETTINGS))
    yield server
    server.close()


@pytest.fixture(scope="session")
def newest_server(first_server: Server) -> Iterator[Server]:
    """The newest PostgreSQL that the tests know; the first one if that is as new, or if the environment says which one to use."""
    is_chosen = os.environ.get(postgres.VARIABLE) or os.environ.get(postgres.VERSION)
    if is_chosen or first_server.cluster.version[0] >= int(postgres.NEWEST):
        yield first_server
        return
    server = Server(postgres.start(prefer=f"own {postgres.NEWEST}", settings=SETTINGS))
    yield server
    server.close()


@pytest.fixture(scope="session")
def cluster(first_server: Server) -> postgres.Cluster:
    """The session's PostgreSQL server. In tests/contract, the server of the case."""
    return first_server.cluster


@pytest.fixture(scope="session")
def migrated_postgresql(first_server: Server) -> str:
    """A database with our tables, to be copied."""
    return first_server.migrated


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables, to be copied."""
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
"""Tests that see when a connection is opened or closed."""


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest, reused_postgresql: Reused) -> Iterator[str]:
    yield reused_postgresql.take(lends_to_all=not request.node.nodeid.startswith(_OWN_CONNECTIONS))
    reused_postgresql.give_back()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """This process's browser."""
    from tests.browser import Browser  # playwright takes its time, and few tests open a tab

    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks the processes of this process's tests."""
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
    """Each database in turn: no behaviour is true on one only, unless the test lives in tests/dialects."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def _checked(database: Database) -> Iterator[Database]:
    yield database
    try:
        if not database.corrupted:
            database.assert_sound()
    finally:
        database.close()
