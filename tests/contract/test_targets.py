"""A task that is written on a caller's connection, from any library, is committed or rolled back with its transaction."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outboxq.database.engine import make_engine
from outboxq.database.tables import metadata
from outboxq.errors import InvalidArgument, InvalidTarget, SchemaOutOfDate, UnsupportedDatabase
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.contract.helpers import batch_with


class Undo(Exception):
    """An error that rolls back a savepoint or a whole block."""


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Caller:
    """An open transaction of an application that uses one of the libraries."""

    using: object
    execute: Callable[[str], object]
    commit: Callable[[], object]
    rollback: Callable[[], object]
    savepoint: Callable[[], AbstractContextManager[object]]
    """A block that an exception rolls back. The exception is not suppressed."""
    raw: Callable[[], Any]
    """The driver's connection."""
    order: Callable[[int], object] = field(init=False)

    def __post_init__(self) -> None:
        self.order = lambda number: self.execute(f"INSERT INTO orders (id) VALUES ({number})")

    @property
    def is_open(self) -> bool:
        raw = self.raw()
        if isinstance(raw, sqlite3.Connection):
            return raw.in_transaction
        return raw.info.transaction_status is TransactionStatus.INTRANS


def task(**fields: object) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})  # type: ignore[arg-type]


Manner = Callable[[Database], AbstractContextManager[Caller]]


# --- SQLAlchemy


@contextmanager
def connection(database: Database) -> Iterator[Caller]:
    with database.host_engine().connect() as it:
        yield _of_sqlalchemy(it, it, it.exec_driver_sql)


@contextmanager
def session(database: Database) -> Iterator[Caller]:
    with Session(database.host_engine()) as it:
        yield _of_sqlalchemy(it, it, lambda sql: it.execute(text(sql)))


@contextmanager
def scoped(database: Database) -> Iterator[Caller]:
    registry = scoped_session(sessionmaker(database.host_engine()))
    try:
        yield _of_sqlalchemy(registry, registry(), lambda sql: registry.execute(text(sql)))
    finally:
        registry.remove()


@contextmanager
def bound_by_table(database: Database) -> Iterator[Caller]:
    """A Session that has an engine for each table but no default engine."""
    engine = database.host_engine()
    with Session(binds={Base: engine, **dict.fromkeys(metadata.sorted_tables, engine)}) as it:
        caller = _of_sqlalchemy(it, it, lambda sql: it.execute(text(sql), bind_arguments={"mapper": Order}))
        caller.raw = lambda: it.connection(bind_arguments={"mapper": Order}).connection.dbapi_connection
        yield caller


@contextmanager
def orm(database: Database) -> Iterator[Caller]:
    with Session(database.host_engine()) as it:
        caller = _of_sqlalchemy(it, it, lambda sql: it.execute(text(sql)))

        def order(number: int) -> None:
            it.add(Order(id=number))
            it.flush()

        caller.order = order
        yield caller


def _of_sqlalchemy(using: object, it: Connection | Session, execute: Callable[[str], object]) -> Caller:
    def raw() -> Any:
        return (it if isinstance(it, Connection) else it.connection()).connection.dbapi_connection

    return Caller(using, execute, it.commit, it.rollback, it.begin_nested, raw)


# --- psycopg


def _psycopg(database: Database, **options: Any) -> psycopg.Connection[Any]:
    url = make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, **options)


@contextmanager
def psycopg_implicit(database: Database) -> Iterator[Caller]:
    with _psycopg(database) as it:
        yield Caller(it, it.execute, it.commit, it.rollback, it.transaction, lambda: it)


@contextmanager
def psycopg_with_own_rows_and_cursors(database: Database) -> Iterator[Caller]:
    with _psycopg(database, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as it:
        yield Caller(it, it.execute, it.commit, it.rollback, it.transaction, lambda: it)


@contextmanager
def psycopg_block(database: Database) -> Iterator[Caller]:
    with _psycopg(database) as it:
        yield _in_block(it, it.transaction(), it.execute, it.transaction, lambda: it)


@contextmanager
def psycopg_autocommit_block(database: Database) -> Iterator[Caller]:
    with _psycopg(database, autocommit=True) as it:
        yield _in_block(it, it.transaction(), it.execute, it.transaction, lambda: it)


def _in_block(
    using: object,
    block: AbstractContextManager[object],
    execute: Callable[[str], object],
    savepoint: Callable[[], AbstractContextManager[object]],
    raw: Callable[[], Any],
) -> Caller:
    block.__enter__()

    def rollback() -> None:
        with suppress(Undo):
            error = Undo()
            block.__exit__(Undo, error, None)

    return Caller(using, execute, lambda: block.__exit__(None, None, None), rollback, savepoint, raw)


# --- sqlite3


def _sqlite(database: Database, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(str(make_url(database.url).database), **options)


def _of_sqlite(it: sqlite3.Connection) -> Caller:
    @contextmanager
    def savepoint() -> Iterator[None]:
        it.execute("SAVEPOINT mine")
        try:
            yield
        except BaseException:
            it.execute("ROLLBACK TO mine")
            raise
        finally:
            it.execute("RELEASE mine")

    return Caller(it, it.execute, it.commit, it.rollback, savepoint, lambda: it)


@contextmanager
def sqlite3_legacy(database: Database) -> Iterator[Caller]:
    with _closing(_sqlite(database)) as it:
        yield _of_sqlite(it)


@contextmanager
def sqlite3_begun_by_hand(database: Database) -> Iterator[Caller]:
    with _closing(_sqlite(database, isolation_level=None)) as it:
        it.execute("BEGIN")
        yield _of_sqlite(it)


@contextmanager
def sqlite3_rows(database: Database) -> Iterator[Caller]:
    with _closing(_sqlite(database)) as it:
        it.row_factory = sqlite3.Row
        yield _of_sqlite(it)


@contextmanager
def sqlite3_dictionaries(database: Database) -> Iterator[Caller]:
    with _closing(_sqlite(database)) as it:
        it.row_factory = lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}
        it.text_factory = bytes
        yield _of_sqlite(it)


@contextmanager
def sqlite3_pep249(database: Database) -> Iterator[Caller]:
    with _closing(_sqlite(database, autocommit=False)) as it:
        yield _of_sqlite(it)


@contextmanager
def _closing(it: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield it
    finally:
        it.close()


# --- Django


def _settings(database: Database, path: str | None = None) -> dict[str, Any]:
    url = make_url(path or database.url)
    if database.name == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "OPTIONS": {"timeout": 30}}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username,
        "PASSWORD": url.password or "",
        "HOST": url.host,
        "PORT": url.port,
    }


@contextmanager
def django_alias(database: Database, path: str | None = None, alias: str = "shop") -> Iterator[str]:
    """Configure Django so that the database `alias` is this one."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True, TIME_ZONE="Asia/Kolkata", LOGGING_CONFIG=None)
    django.setup()
    configured = connections.configure_settings({"default": {}, alias: _settings(database, path)})
    connections.settings[alias] = configured[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]


def _of_django(alias: str, using: object) -> Caller:
    from django.db import connections, transaction

    it = connections[alias]

    def execute(sql: str) -> None:
        with it.cursor() as cursor:
            cursor.execute(sql)

    return _in_block(
        using,
        transaction.atomic(using=alias),
        execute,
        lambda: transaction.atomic(using=alias),
        lambda: it.connection,
    )


@contextmanager
def django_by_alias(database: Database) -> Iterator[Caller]:
    with django_alias(database) as alias:
        yield _of_django(alias, alias)


@contextmanager
def django_connection(database: Database) -> Iterator[Caller]:
    from django.db import connections

    with django_alias(database) as alias:
        yield _of_django(alias, connections[alias])


@contextmanager
def django_without_autocommit(database: Database) -> Iterator[Caller]:
    from django.db import connections, transaction

    with django_alias(database) as alias:
        it = connections[alias]
        it.set_autocommit(False)

        def execute(sql: str) -> None:
            with it.cursor() as cursor:
                cursor.execute(sql)

        yield Caller(
            it, execute, it.commit, it.rollback, lambda: transaction.atomic(using=alias), lambda: it.connection
        )
        it.rollback()


BOTH: list[Manner] = [
    connection,
    session,
    scoped,
    bound_by_table,
    orm,
    django_by_alias,
    django_connection,
    django_without_autocommit,
]
POSTGRESQL: list[Manner] = [
    psycopg_implicit,
    psycopg_with_own_rows_and_cursors,
    psycopg_block,
    psycopg_autocommit_block,
]
SQLITE: list[Manner] = [
    sqlite3_legacy,
    sqlite3_begun_by_hand,
    sqlite3_rows,
    sqlite3_dictionaries,
    *([sqlite3_pep249] if sys.version_info >= (3, 12) else []),
]
EVERY = [
    pytest.param(name, manner, id=f"{name}-{manner.__name__}")
    for name, manners in (("sqlite", BOTH + SQLITE), ("postgresql", BOTH + POSTGRESQL))
    for manner in manners
]


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The requested database, with a table of the application."""
    database: Database = request.getfixturevalue(request.param)
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield database
    database.run("DROP TABLE orders")  # otherwise, all connections would prepare their statements again


def orders(database: Database) -> list[object]:
    return [row[0] for row in database.rows("SELECT id FROM orders ORDER BY id")]


def tasks(database: Database) -> list[object]:
    """The queues of all tasks."""
    return [row[0] for row in database.rows("SELECT queue FROM task_executions ORDER BY queue")]


ONE_OF_EACH_TARGET = (session, psycopg_with_own_rows_and_cursors, sqlite3_dictionaries, django_by_alias)
SOME = [
    param if param.values[1] in ONE_OF_EACH_TARGET else pytest.param(*param.values, id=param.id, marks=pytest.mark.full)
    for param in EVERY
]
each_target = pytest.mark.parametrize(("shop", "manner"), EVERY, indirect=["shop"])
each_kind_of_target = pytest.mark.parametrize(("shop", "manner"), SOME, indirect=["shop"])


@each_target
def test_a_task_is_visible_only_after_the_commit(shop: Database, manner: Manner) -> None:
    with manner(shop) as caller:
        caller.order(1)
        handle = shop.store.enqueue(task(), using=caller.using)
        assert caller.is_open
        caller.order(2)
        assert (shop.counts(), orders(shop)) == ((0, 0, 0), [])
        caller.commit()
    assert (shop.counts(), orders(shop)) == ((1, 1, 1), [1, 2])
    assert [claim.id for claim in shop.claim(5, shop.store)] == [handle.id]


@each_kind_of_target
def test_many_tasks_with_keys_can_be_enqueued_before_other_writes(shop: Database, manner: Manner) -> None:
    new = [task(idempotency_key=key) for key in ("a", "b", "a", None)]
    with manner(shop) as caller:
        handles = shop.store.enqueue_many(new, using=caller.using)
        again = shop.store.enqueue(task(idempotency_key="b"), using=caller.using)
        assert caller.is_open
        caller.order(1)
        caller.commit()
    assert [handle.created for handle in [*handles, again]] == [True, True, False, True, False]
    assert (handles[2].id, again.id) == (new[0].id, new[1].id)
    assert (shop.counts(), orders(shop)) == ((3, 3, 3), [1])


@each_target
def test_a_batch_is_committed_with_its_tasks_and_counts_their_ends(shop: Database, manner: Manner) -> None:
    batch = batch_with(task(task_name="tests.then", args='{"share": "100 %s"}'))
    with manner(shop) as caller:
        shop.store.batches.create(batch, using=caller.using)
        members = [task(pipeline_execution_id=batch.id) for _ in range(2)]
        shop.store.enqueue_many(members, using=caller.using)
        with suppress(Undo), caller.savepoint():
            shop.store.enqueue(task(pipeline_execution_id=batch.id), using=caller.using)
            raise Undo
        shop.store.batches.close(batch.id, using=caller.using)
        shop.store.cancel(members[0].id, using=caller.using)
        caller.commit()
    record = shop.store.batches.get(batch.id)
    assert (record.size, record.cancelled, record.completed_at) == (2, 1, None)
    (claim,) = shop.claim(10, shop.store)
    with manner(shop) as caller:
        shop.store.complete(claim, using=caller.using)
        caller.commit()
    (claim,) = shop.claim(10, shop.store)
    [then] = batch.then
    assert (claim.id, claim.args) == (then.id, then.args)


@each_kind_of_target
def test_a_rollback_undoes_the_enqueue(shop: Database, manner: Manner) -> None:
    with manner(shop) as caller:
        caller.order(1)
        shop.store.enqueue_many([task(), task(idempotency_key="k")], using=caller.using)
        caller.order(2)
        caller.rollback()
    assert (shop.counts(), orders(shop)) == ((0, 0, 0), [])
    assert shop.rows("SELECT * FROM idempotency_keys") == []


@each_target
def test_a_rollback_of_a_savepoint_undoes_only_the_enqueue_inside_it(shop: Database, manner: Manner) -> None:
    with manner(shop) as caller:
        caller.order(1)
        shop.store.enqueue(task(queue="before"), using=caller.using)
        with suppress(Undo), caller.savepoint():
            caller.order(2)
            shop.store.enqueue(task(queue="lost"), using=caller.using)
            raise Undo
        with caller.savepoint():
            shop.store.enqueue(task(queue="kept"), using=caller.using)
        assert caller.is_open
        assert shop.counts() == (0, 0, 0)
        shop.store.enqueue(task(queue="later"), using=caller.using)
        caller.commit()
    assert (shop.counts(), tasks(shop), orders(shop)) == ((3, 3, 3), ["before", "kept", "later"], [1])


@each_kind_of_target
def test_a_released_savepoint_is_rolled_back_with_its_transaction(shop: Database, manner: Manner) -> None:
    with manner(shop) as caller:
        caller.order(1)
        with caller.savepoint():
            shop.store.enqueue(task(), using=caller.using)
        assert caller.is_open
        caller.rollback()
    assert (shop.counts(), orders(shop)) == ((0, 0, 0), [])


@each_kind_of_target
def test_a_rollback_after_an_error_undoes_the_enqueue(shop: Database, manner: Manner) -> None:
    with manner(shop) as caller:
        caller.order(1)
        shop.store.enqueue(task(), using=caller.using)
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            caller.execute("INSERT INTO orders (id) VALUES (1)")
        caller.rollback()
    assert (shop.counts(), orders(shop)) == ((0, 0, 0), [])


@each_kind_of_target
def test_a_transaction_stays_usable_after_a_refused_value(shop: Database, manner: Manner) -> None:
    with manner(shop) as caller:
        caller.order(1)
        with pytest.raises(InvalidArgument):
            shop.store.enqueue_many([task(), task(priority=101)], using=caller.using)
        caller.order(2)
        shop.store.enqueue(task(), using=caller.using)
        caller.commit()
    assert (shop.counts(), orders(shop)) == ((1, 1, 1), [1, 2])


# --- Refusals


def refused(database: Database, using: object, *words: str, error: type[Exception] = InvalidTarget) -> None:
    with pytest.raises(error) as caught:
        database.store.enqueue(task(), using=using)
    for word in words:
        assert word in str(caught.value), word


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_an_engine_is_refused(shop: Database) -> None:
    refused(shop, shop.engine, "Engine", "no transaction", "Session or Connection")
    assert shop.counts() == (0, 0, 0)


ASYNCIO = "sqlalchemy.ext.asyncio.engine"


@pytest.mark.parametrize("kind", ["AsyncSession", "AsyncConnection"])
@pytest.mark.parametrize("is_subclass", [False, True], ids=["SQLAlchemy's", "subclass"])
def test_an_asynchronous_target_is_refused_with_the_correct_call(kind: str, is_subclass: bool) -> None:
    using = type(kind, (), {"__module__": ASYNCIO})  # the real classes need greenlet
    if is_subclass:
        using = type("Own", (using,), {"__module__": "sqlmodel.ext.asyncio.session"})
    way = f"await {kind.removeprefix('Async').lower()}.run_sync"
    with pytest.raises(InvalidTarget, match=rf"synchronous.*{using.__name__}, write: {way}"):
        Store(None).enqueue(task(), using=using())


@pytest.mark.parametrize(
    ("kind", "attribute"), [("AsyncSession", "bind"), ("AsyncConnection", "engine"), ("AsyncEngine", "")]
)
@pytest.mark.parametrize(
    ("driver", "line"),
    [
        ("aiosqlite", "create_engine('sqlite:///…')"),
        ("asyncpg", "create_async_engine('postgresql+psycopg://…')"),
    ],
)
def test_an_unsupported_asynchronous_driver_is_refused_by_name(
    kind: str, attribute: str, driver: str, line: str
) -> None:
    using = type(kind, (), {"__module__": ASYNCIO})()
    engine = types.SimpleNamespace(dialect=types.SimpleNamespace(driver=driver))
    vars(using).update({attribute: engine} if attribute else vars(engine))
    with pytest.raises(InvalidTarget) as refused:
        Store(None).enqueue(task(), using=using)
    assert f"not with {driver};" in str(refused.value)
    assert str(refused.value).endswith(line)


def test_an_asynchronous_engine_is_refused() -> None:
    using = type("AsyncEngine", (), {"__module__": ASYNCIO, "dialect": types.SimpleNamespace(driver="psycopg")})()
    with pytest.raises(InvalidTarget, match=r"AsyncEngine has no transaction; .*AsyncSession.*run_sync"):
        Store(None).enqueue(task(), using=using)


def test_a_scoped_asynchronous_session_is_refused_without_creating_a_session() -> None:
    def create(_: object) -> None:
        raise AssertionError("a session was created")

    attributes = {"__module__": ASYNCIO, "registry": None, "bind": property(create)}
    with pytest.raises(InvalidTarget, match="run_sync"):
        Store(None).enqueue(task(), using=type("async_scoped_session", (), attributes)())


def test_an_asynchronous_psycopg_connection_is_refused() -> None:
    using = object.__new__(psycopg.AsyncConnection)
    using.pgconn = types.SimpleNamespace(status=1)  # closed, so its destructor does not warn
    with pytest.raises(InvalidTarget, match=r"synchronous.*psycopg\.Connection"):
        Store(None).enqueue(task(), using=using)


@pytest.mark.parametrize("using", [object(), 7, []])
def test_an_object_of_unknown_type_is_refused_with_a_list_of_targets(using: object) -> None:
    with pytest.raises(InvalidTarget, match=r"cannot enqueue on .*; pass a SQLAlchemy Session or Connection.*Django"):
        Store(None).enqueue(task(), using=using)


@pytest.mark.parametrize(("using", "name"), [(sessionmaker(), "a sessionmaker"), (Session, "Session is a class and")])
def test_a_session_factory_is_refused(using: object, name: str) -> None:
    with pytest.raises(InvalidTarget, match=f"^{name} has no transaction; pass the "):
        Store(None).enqueue(task(), using=using)


def test_an_invalid_target_raises_a_type_error_too() -> None:
    with pytest.raises(TypeError):
        Store(None).enqueue(task(), using=object())


def test_a_session_without_an_engine_is_refused() -> None:
    with Session() as unbound, pytest.raises(InvalidTarget, match=r"has no engine for.*bind="):
        Store(None).enqueue(task(), using=unbound)


def test_an_unsupported_driver_is_refused_by_name() -> None:
    raw = types.SimpleNamespace(rollback=lambda: None, close=lambda: None, commit=lambda: None)
    dbapi = types.ModuleType("psycopg2")
    dbapi.paramstyle, dbapi.__version__, dbapi.Error = "pyformat", "2.9", Exception  # type: ignore[attr-defined]
    engine = create_engine("postgresql+psycopg2://", module=dbapi, creator=lambda: raw, _initialize=False)
    with engine.connect() as it, pytest.raises(InvalidTarget, match=r"psycopg 3.*not with psycopg2.*\+psycopg://"):
        Store(None).enqueue(task(), using=it)


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("kind", [Connection, Session])
def test_an_autocommit_connection_of_sqlalchemy_is_refused(shop: Database, kind: type) -> None:
    engine = shop.host_engine()
    bind = engine.execution_options(isolation_level="AUTOCOMMIT")
    with bind.connect() if kind is Connection else Session(bind) as it:
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
        refused(shop, it, "SQLAlchemy" if shop.name == "postgresql" else "SQLite", "AUTOCOMMIT", "rolled back")
        it.execute(text("INSERT INTO orders (id) VALUES (2)"))
    assert (shop.counts(), orders(shop)) == ((0, 0, 0), [1, 2])
    with engine.begin() as it:  # the same pooled connection, now transactional again
        shop.store.enqueue(task(), using=it)
        with it.begin_nested():
            shop.store.enqueue(task(), using=it)
        it.rollback()
    assert shop.counts() == (0, 0, 0)


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_an_autocommit_connection_of_psycopg_outside_a_transaction_is_refused(shop: Database) -> None:
    with _psycopg(shop, autocommit=True) as it:
        refused(shop, it, "psycopg", "autocommit", "no transaction is open", "begin one")
        assert it.info.transaction_status is TransactionStatus.IDLE
        with it.transaction():
            shop.store.enqueue(task(), using=it)
    assert shop.counts() == (1, 1, 1)


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_sqlite3_connection_without_implicit_begin_is_refused_outside_begin(shop: Database) -> None:
    with _closing(_sqlite(shop, isolation_level=None)) as it:
        refused(shop, it, "no transaction is open", "isolation_level=None", "BEGIN IMMEDIATE")
        assert not it.in_transaction
        it.execute("BEGIN IMMEDIATE")
        shop.store.enqueue(task(), using=it)
        it.execute("COMMIT")
    assert shop.counts() == (1, 1, 1)


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_django_outside_atomic_is_refused(shop: Database) -> None:
    with django_alias(shop) as alias:
        refused(shop, alias, "no transaction is open", repr(alias), "transaction.atomic()")
    assert shop.counts() == (0, 0, 0)


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_an_unknown_database_alias_of_django_is_refused(shop: Database) -> None:
    with django_alias(shop):
        refused(shop, "nowhere", "has no database 'nowhere'", "DATABASES in the settings has 'default'")


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_a_django_transaction_that_must_roll_back_is_refused(shop: Database) -> None:
    from django.db import transaction

    with django_alias(shop) as alias:
        with transaction.atomic(using=alias):
            transaction.set_rollback(True, using=alias)
            with pytest.raises(transaction.TransactionManagementError):
                shop.store.enqueue(task(), using=alias)
        with transaction.atomic(using=alias):
            shop.store.enqueue(task(), using=alias)
    assert shop.counts() == (1, 1, 1)


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_django_logs_the_queries_that_outboxq_executes(shop: Database) -> None:
    from django.db import connections, transaction

    with django_alias(shop) as alias:
        connections[alias].force_debug_cursor = True
        with transaction.atomic(using=alias):
            shop.store.enqueue(task(idempotency_key="100%"), using=alias)
        written = [query["sql"] for query in connections[alias].queries if "INSERT INTO task_outbox" in query["sql"]]
    assert len(written) == 1


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_on_commit_callbacks_of_django_run_once(shop: Database) -> None:
    from django.db import transaction

    seen = []
    with django_alias(shop) as alias, transaction.atomic(using=alias):
        transaction.on_commit(lambda: seen.append(shop.counts()), using=alias)
        with transaction.atomic(using=alias):
            shop.store.enqueue(task(), using=alias)
        assert seen == []
    assert seen == [(1, 1, 1)]


def of_another_database(database: Database, url: str) -> dict[str, Callable[[ExitStack], object]]:
    """The kinds of targets, each in an open transaction of the database `url`."""

    def django(stack: ExitStack) -> object:
        from django.db import connections, transaction

        alias = stack.enter_context(django_alias(database, url, "elsewhere"))
        stack.enter_context(transaction.atomic(using=alias))
        return connections[alias]

    kinds: dict[str, Callable[[ExitStack], object]] = {
        "connection": lambda stack: stack.enter_context(database.own(create_engine(url)).begin()),
        "session": lambda stack: stack.enter_context(Session(database.own(create_engine(url)))),
        "django": django,
    }
    if database.name == "postgresql":
        dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        kinds["psycopg"] = lambda stack: stack.enter_context(psycopg.connect(dsn))
        return kinds
    file = str(make_url(url).database)

    def plain(stack: ExitStack) -> sqlite3.Connection:
        return stack.enter_context(_closing(sqlite3.connect(file)))

    def dictionaries(stack: ExitStack) -> sqlite3.Connection:
        it = plain(stack)
        it.row_factory = lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}
        return it

    return {**kinds, "sqlite3": plain, "sqlite3 with rows of its own": dictionaries}


def test_another_postgresql_database_is_refused(postgresql: Database, cluster: Any, migrated_postgresql: str) -> None:
    url = cluster.create_database(template=migrated_postgresql)
    try:
        for name, kind in of_another_database(postgresql, url).items():
            with ExitStack() as stack:
                using = kind(stack)
                mine, theirs = make_url(postgresql.url).database, make_url(url).database
                refused(
                    postgresql, using, f"{theirs!r}, but the outbox is bound to {mine!r}", "database as your own rows"
                )
                assert name == "django" or using.execute(text("SELECT 1") if name != "psycopg" else "SELECT 1")  # type: ignore[attr-defined]
        for engine in postgresql.engines:
            engine.dispose()
        other = create_engine(url)
        with other.connect() as it:
            assert it.scalar(text("SELECT count(*) FROM task_outbox")) == 0
        other.dispose()
    finally:
        cluster.drop_database(url)


def test_another_sqlite_file_is_refused(sqlite: Database, tmp_path: Path, migrated_sqlite: Path) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(migrated_sqlite.read_bytes())
    for kind in of_another_database(sqlite, f"sqlite:///{other}").values():
        with ExitStack() as stack:
            refused(
                sqlite, kind(stack), "other.db', but the outbox is bound to", "outboxq.db", "database as your own rows"
            )
    with _closing(sqlite3.connect(other)) as it:
        assert it.execute("SELECT count(*) FROM task_outbox").fetchall() == [(0,)]


def test_a_symlink_to_the_same_file_is_accepted(sqlite: Database, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(str(make_url(sqlite.url).database))
    with _closing(sqlite3.connect(link)) as it:
        sqlite.store.enqueue(task(), using=it)
        it.commit()
    assert sqlite.counts() == (1, 1, 1)


def test_a_relative_file_name_refers_to_the_current_directory(
    migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same relative name means another file in another directory."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        shutil.copy(migrated_sqlite, tmp_path / place / "shop.db")
        monkeypatch.chdir(tmp_path / place)
        engine = create_engine("sqlite:///shop.db")
        with engine.connect() as connection:
            Store(engine).enqueue(task(), using=connection)
        engine.dispose()


def test_a_connection_to_another_dialect_is_refused(sqlite: Database, postgresql: Database) -> None:
    for ours, theirs in ((sqlite, postgresql), (postgresql, sqlite)):
        with theirs.host_engine().begin() as it:
            refused(ours, it, f"connection is to {theirs.name}", f"bound to {ours.name}")
            assert it.scalar(text("SELECT 1")) == 1
        with ExitStack() as stack:
            manner = psycopg_implicit if theirs is postgresql else sqlite3_legacy
            refused(ours, stack.enter_context(manner(theirs)).using, f"connection is to {theirs.name}")
        assert ours.counts() == theirs.counts() == (0, 0, 0)


def test_an_unsupported_database_is_refused() -> None:
    django = types.SimpleNamespace(vendor="mysql", in_atomic_block=True, settings_dict={})
    with pytest.raises(UnsupportedDatabase, match="mysql"):
        Store(None).enqueue(task(), using=django)


@pytest.mark.parametrize("bound", [True, False])
def test_a_postgresql_database_without_the_schema_is_refused(postgresql: Database, cluster: Any, bound: bool) -> None:
    url = cluster.create_database()
    engine = postgresql.own(create_engine(url))
    try:
        _refused_without_tables(engine, Store(engine if bound else None))
    finally:
        engine.dispose()
        cluster.drop_database(url)


@pytest.mark.parametrize("bound", [True, False])
def test_a_sqlite_file_without_the_schema_is_refused(sqlite: Database, tmp_path: Path, bound: bool) -> None:
    engine = sqlite.own(create_engine(f"sqlite:///{tmp_path / 'empty.db'}"))
    _refused_without_tables(engine, Store(engine if bound else None))


def _refused_without_tables(engine: Engine, store: Store) -> None:
    with engine.begin() as it:
        it.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        with pytest.raises(SchemaOutOfDate, match=r"no outboxq tables.*outboxq upgrade"):
            store.enqueue(task(), using=it)
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
    with engine.connect() as it:
        assert it.scalars(text("SELECT id FROM orders")).all() == [1]


# --- PostgreSQL only


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
@pytest.mark.parametrize("kind", [Connection, Session])
def test_a_two_phase_transaction_needs_notify_off(shop: Database, kind: type) -> None:
    engine = shop.host_engine()
    with ExitStack() as stack:
        if kind is Session:
            it: Any = stack.enter_context(Session(engine, twophase=True))
            two_phases: Any = it
        else:
            it = stack.enter_context(engine.connect())
            two_phases = it.begin_twophase()
        it.execute(text("INSERT INTO orders (id) VALUES (1)"))
        refused(shop, it, "two-phase", "SET LOCAL outboxq.notify = off", "polling")
        it.execute(text("SET LOCAL outboxq.notify = off"))
        shop.store.enqueue(task(), using=it)
        two_phases.prepare()
        assert shop.rows("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(1,)]
        assert shop.counts() == (0, 0, 0)
        two_phases.commit()
    assert (shop.counts(), orders(shop)) == ((1, 1, 1), [1])
    assert shop.rows("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_rollback_of_a_two_phase_transaction_undoes_the_enqueue(shop: Database) -> None:
    with Session(shop.host_engine(), twophase=True) as it:
        it.execute(text("SET LOCAL outboxq.notify = off"))
        shop.store.enqueue(task(), using=it)
        it.prepare()
        it.rollback()
    assert shop.counts() == (0, 0, 0)


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_tasks_can_be_enqueued_in_every_isolation_level(shop: Database, level: str) -> None:
    engine = shop.own(create_engine(shop.url, isolation_level=level))  # type: ignore[arg-type]
    with engine.begin() as first, Session(engine) as second:
        for it in (first, second):
            it.execute(text("SELECT count(*) FROM orders"))  # takes the snapshot
            shop.store.enqueue_many([task(), task(idempotency_key=str(id(it)))], using=it)
            shop.claim(1, shop.store)  # finds nothing and locks nothing
            assert it.scalar(text("SHOW transaction_isolation")) == level.lower()
        with suppress(Undo), second.begin_nested():
            shop.store.enqueue(task(), using=second)
            raise Undo
        second.commit()
    assert shop.counts() == (4, 4, 4)


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
@pytest.mark.parametrize("manner", [connection, psycopg_implicit, django_by_alias], ids=lambda it: it.__name__)
def test_enqueueing_does_not_change_the_settings_of_the_caller(shop: Database, manner: Manner) -> None:
    names = ("lock_timeout", "statement_timeout", "enable_seqscan", "enable_bitmapscan", "synchronous_commit")
    names += ("transaction_isolation", "search_path", "TimeZone")

    def settings() -> list[str]:
        raw = caller.raw()
        with psycopg.ClientCursor(raw) as cursor:
            return [cursor.execute(f"SHOW {name}").fetchone()[0] for name in names]

    with manner(shop) as caller:
        caller.execute("SET LOCAL lock_timeout = '7s'")
        before = settings()
        shop.store.enqueue_many([task(), task(idempotency_key="k"), task(idempotency_key="k")], using=caller.using)
        assert settings() == before
        caller.commit()
    assert before[:3] == ["7s", "0", "on"]


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_enqueueing_neither_commits_nor_closes(shop: Database) -> None:
    engine, ended = shop.host_engine(), []
    for name in ("commit", "rollback", "rollback_savepoint", "release_savepoint"):
        event.listen(engine, name, lambda *_, name=name: ended.append(name))
    with engine.connect() as it, Session(it) as nested, Session(engine) as alone:
        raw = it.connection.dbapi_connection
        shop.store.enqueue(task(), using=it)
        shop.store.enqueue(task(), using=nested)
        with suppress(InvalidTarget):
            shop.store.enqueue(task(), using=engine)
        assert ended == []
        assert (it.closed, it.in_transaction(), it.connection.dbapi_connection) == (False, True, raw)
        it.rollback()
        shop.store.enqueue(task(), using=alone)
        assert ended == ["rollback"]
        assert alone.in_transaction()
    assert shop.counts() == (0, 0, 0)


def test_enqueueing_does_not_check_out_a_second_connection(database: Database) -> None:
    engine = database.own(make_engine(database.url))
    host = database.host_engine()
    store, taken = Store(engine), []
    event.listen(engine, "checkout", lambda *_: taken.append(1))
    with host.begin() as it:
        store.enqueue(task(), using=it)
    assert taken == []
    assert database.counts() == (1, 1, 1)
