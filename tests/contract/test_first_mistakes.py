"""Mistakes of the first hour, each with its complete error message."""

from __future__ import annotations

import logging
import re
import sys
import types
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import pytest
import tenacity
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

import outboxq
from outboxq import (
    ConfigurationError,
    InvalidArgument,
    InvalidCall,
    InvalidTarget,
    Outbox,
    PayloadError,
    Retry,
    Snooze,
    TaskContext,
    UnsupportedDatabase,
    migrations,
)
from outboxq.cli import main
from outboxq.context import current
from outboxq.store import transactions
from tests.waiting import until

DOWN = "postgresql+psycopg://me@127.0.0.1:1/shop"
USING = (
    "its options are delay, run_after, queue, priority, max_attempts, partition_key, concurrency_key, expires, idempotency_key, unique_for, "
    "unique_until_finished, on_conflict, headers"
)
TASK = "its options are name, queue, priority, retry, lease, timeout, timeout_action, transactional, subscribe, on_dead_letter, check_types"
TRANSACTION = "write using(session) with the session or connection that owns the transaction, or using(outbox) for a separate transaction"


class User:
    """A class of the application that has no JSON form."""


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    """An outbox with the URL of a file that is never created: mistakes are reported before any query."""
    return Outbox(f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def hello(outbox):
    @outbox.task(name="shop.hello")
    def hello(n: int, when=None): ...

    return hello


def refused(kind: type[Exception], sentence: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == sentence


# --- the database


@pytest.mark.parametrize(
    ("url", "kind", "sentence"),
    [
        ("mysql://me@host/shop", UnsupportedDatabase, "outboxq runs on PostgreSQL and SQLite, not on 'mysql'"),
        (
            "shop.db",
            ConfigurationError,
            "this is not a database URL; outboxq accepts sqlite:///file.db or postgresql+psycopg://user@host/database",
        ),
        (
            "postgresql+psycopg2://me@host/shop",
            UnsupportedDatabase,
            "outboxq uses psycopg 3, not psycopg2; write postgresql+psycopg://…",
        ),
        (
            "postgresql+asyncpg://me@host/shop",
            UnsupportedDatabase,
            "outboxq uses psycopg 3, not asyncpg; write postgresql+psycopg://…",
        ),
        (
            "postgresql+psycopg_async://me@host/shop",
            UnsupportedDatabase,
            "outboxq uses psycopg 3, not psycopg_async; write postgresql+psycopg://…",
        ),
        (
            "sqlite+aiosqlite:///shop.db",
            UnsupportedDatabase,
            "outboxq uses Python's sqlite3, not aiosqlite; write sqlite:///…",
        ),
        (
            "sqlite://",
            ConfigurationError,
            "an in-memory SQLite database cannot be shared with a worker; give outboxq a file",
        ),
        (
            "sqlite://shop.db",
            ConfigurationError,
            (
                "sqlite://shop.db/… names a host, which SQLite does not have; write sqlite:///shop.db, with three slashes, for a file in "
                "this directory, or four slashes for an absolute path"
            ),
        ),
    ],
)
def test_an_unsupported_database_url_is_refused(url: str, kind: type[Exception], sentence: str) -> None:
    refused(kind, sentence, lambda: Outbox(url))


@pytest.mark.parametrize(
    ("database", "driver", "line"),
    [
        ("sqlite:///nowhere.db", "aiosqlite", "create_engine('sqlite:///…')"),
        (DOWN, "psycopg", "create_engine('postgresql+psycopg://…')"),
        (DOWN, "asyncpg", "create_engine('postgresql+psycopg://…')"),
    ],
)
def test_an_asyncio_engine_is_refused(database: str, driver: str, line: str) -> None:
    engine = create_engine(database)
    engine.dialect.is_async, engine.dialect.driver = True, driver  # a real asyncio engine needs greenlet and the driver
    outside = types.SimpleNamespace(dialect=engine.dialect)  # an AsyncEngine is not an Engine
    sentence = (
        f"this engine is asynchronous ({engine.dialect.name}+{driver}), so it works only on its event loop; give outboxq a separate "
        f"engine: {line}"
    )
    for call in (Outbox, migrations.upgrade):
        for given in (engine, outside):
            refused(ConfigurationError, sentence, lambda call=call, given=given: call(given))


def test_an_asyncio_session_is_refused() -> None:
    sessions = type(
        "async_sessionmaker", (), {"__module__": "sqlalchemy.ext.asyncio.session", "__call__": lambda _: None}
    )()
    sentence = (
        "session= takes a function that returns a Session, but this one returns an AsyncSession; leave session= out, and write "
        "await async_session.run_sync(lambda s: task.using(s).enqueue(…))"
    )
    refused(ConfigurationError, sentence, lambda: Outbox(session=sessions))


def test_a_postgres_url_from_a_hosting_provider_is_accepted() -> None:
    engine = Outbox("postgres://me@host/shop").store.engine
    assert engine is not None
    assert (engine.url.drivername, engine.url.host, engine.url.database) == ("postgresql+psycopg", "host", "shop")


def test_an_unreachable_server_raises_the_error_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application gets SQLAlchemy's error. outboxq's own transactions are retried first."""
    monkeypatch.setattr(transactions, "_PATIENCE", 0)
    outbox = Outbox(DOWN)
    task = outbox.task(name="shop.hello")(lambda: None)
    host = create_engine(DOWN)
    for target in (outbox, Session(host)):
        with pytest.raises(OperationalError, match="Connection refused"):
            task.using(target).enqueue()


def test_the_outage_timeout_limits_retries_except_in_handlers_and_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float | None] = []

    def tries(*_: object) -> tenacity.Retrying:
        limits.append(transactions._patience.get())
        return tenacity.Retrying(stop=tenacity.stop_after_attempt(1), reraise=True)

    monkeypatch.setattr(transactions.Transactions, "tries", tries)
    outbox, quick = Outbox(DOWN), Outbox(DOWN, outage_timeout=timedelta(milliseconds=200))
    waiting = outbox.task(name="shop.hello")(lambda: None).using(outbox)
    hurried = quick.task(name="shop.hello")(lambda: None).using(quick)

    def notes(call: Callable[[], object]) -> list[str]:
        with pytest.raises(OperationalError) as raised:
            call()
        return getattr(raised.value, "__notes__", [])

    assert notes(waiting.enqueue) == ["the transaction was retried for 5 s, the outage_timeout of Outbox(…)"]
    assert notes(hurried.enqueue) == ["the transaction was retried for 0.2 s, the outage_timeout of Outbox(…)"]
    assert notes(lambda: quick.emit("paid", using=quick)) != []
    assert notes(lambda: quick.store.cancel(UUID(int=1))) == notes(quick.store.stats) != []
    token = current.set(object())  # type: ignore[arg-type]
    try:
        assert notes(lambda: outbox.store.get(UUID(int=1))) == notes(quick.store.stats) == []
        monkeypatch.setattr(transactions.Transactions, "_refuse_to_wait_for_itself", lambda _: None)
        assert notes(hurried.enqueue) == []
    finally:
        current.reset(token)
    assert notes(lambda: quick.store.reserved(Event()).stats()) == []
    assert limits == [5, 0.2, 0.2, 0.2, 0.2, None, None, None, None]
    refused(InvalidArgument, "outage_timeout must be zero or more, not -1", lambda: Outbox(DOWN, outage_timeout=-1))


# --- the transaction


def test_an_enqueue_needs_a_transaction(hello) -> None:
    unknown = f"shop.hello: the current transaction is not known; {TRANSACTION}"
    refused(InvalidTarget, unknown, lambda: hello.enqueue(7))
    refused(
        InvalidTarget, f"shop.hello: using(None) does not name a transaction; {TRANSACTION}", lambda: hello.using(None)
    )


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (
            create_engine("sqlite:///nowhere.db"),
            "an Engine has no transaction; pass the Session or Connection whose transaction the task belongs to",
        ),
        (
            type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})(),  # the real one needs greenlet
            (
                "outboxq is synchronous; inside an AsyncSession, write: await session.run_sync(lambda s: task.using(s).enqueue(…)); pass "
                "using=s to emit, batch and inbox.accept, and write chain(…).using(s).enqueue() for a chain"
            ),
        ),
        (
            sessionmaker(),
            "a sessionmaker has no transaction; pass the Session that it made, whose transaction the task belongs to",
        ),
        (
            Session,
            "Session is a class and has no transaction; pass the instance whose transaction the task belongs to",
        ),
        (
            User(),
            (
                "cannot enqueue on tests.contract.test_first_mistakes.User; pass a SQLAlchemy Session or Connection, a psycopg or "
                "sqlite3 connection, a Django connection or alias, or the context of a transactional task"
            ),
        ),
    ],
    ids=["Engine", "AsyncSession", "sessionmaker", "class", "object"],
)
def test_a_target_needs_a_transaction(hello, target: object, sentence: str) -> None:
    refused(InvalidTarget, sentence, lambda: hello.using(target).enqueue(7))


def test_a_django_database_alias_without_django_settings_is_refused(hello, monkeypatch: pytest.MonkeyPatch) -> None:
    import django.db
    from django.core.exceptions import ImproperlyConfigured

    class Unconfigured:
        def __getitem__(self, _: str) -> None:
            raise ImproperlyConfigured("Requested setting DATABASES, but settings are not configured.")

    monkeypatch.setattr(django.db, "connections", Unconfigured())
    sentence = "'default' looks like a Django database alias, but this process has no Django settings; pass a Session or a connection"
    refused(InvalidTarget, sentence, lambda: hello.using("default").enqueue(7))


def test_an_autocommit_connection_is_refused(database) -> None:
    task = Outbox(database.engine).task(name="shop.hello")(first)
    of_postgresql = (
        "this SQLAlchemy connection is in AUTOCOMMIT mode and no transaction is open on it, so the task could not be rolled back "
        "with your rows; begin one"
    )
    of_sqlite = (
        "this SQLite connection is in AUTOCOMMIT mode and no transaction is open on it, so the task could not be rolled back "
        "with your rows; begin one, or pass a connection from an engine without AUTOCOMMIT"
    )
    sentence = of_postgresql if database.name == "postgresql" else of_sqlite
    with database.host_engine().connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        refused(InvalidTarget, sentence, lambda: task.using(connection).enqueue())


def test_a_task_of_another_outbox_is_refused(hello, outbox, tmp_path: Path) -> None:
    other = Outbox(f"sqlite:///{tmp_path}/other.db")
    sentence = "this task belongs to another Outbox; pass that Outbox, or a Session or Connection to its database"
    refused(InvalidTarget, sentence, lambda: hello.using(other).enqueue(7))
    refused(InvalidTarget, sentence, lambda: outbox.emit("order.paid", using=other))


def test_a_session_of_another_database_is_refused(hello, tmp_path: Path) -> None:
    sentence = (
        f"this connection is to the database '{tmp_path}/other.db', but the outbox is bound to '{tmp_path}/shop.db'; a task must "
        "be written to the same database as your own rows"
    )
    engine = create_engine(f"sqlite:///{tmp_path}/other.db")
    with Session(engine) as session:
        refused(InvalidTarget, sentence, lambda: hello.using(session).enqueue(7))
    engine.dispose()


# --- arguments


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("x",), "n: str does not fit int: pass a value of that type, or declare the task with check_types=False"),
        (
            (None,),
            (
                "n: None does not fit int: has the row been flushed, so that its id exists? If None is intended, annotate the "
                "parameter with | None"
            ),
        ),
        ((7, User()), "when: User is not JSON: pass an id, or annotate the parameter with a dataclass"),
        (
            (7, datetime(2026, 1, 1)),  # noqa: DTZ001
            "when: datetime is not JSON: annotate the parameter as datetime, or pass a string",
        ),
    ],
    ids=["type", "None", "object", "datetime"],
)
def test_a_value_that_cannot_be_stored_is_refused(hello, outbox, args: tuple[Any, ...], sentence: str) -> None:
    refused(PayloadError, f"shop.hello: argument {sentence}", lambda: hello.using(outbox).enqueue(*args))


@pytest.mark.parametrize(
    ("args", "options", "misfit"),
    [
        ((), {}, "missing a required argument: 'n'"),
        ((7, 8, 9), {}, "too many positional arguments"),
        ((), {"number": 7}, "got an unexpected keyword argument 'number'"),
    ],
)
def test_a_call_with_wrong_arguments_is_refused(hello, outbox, args, options, misfit: str) -> None:
    sentence = f"shop.hello: {misfit}; its parameters are: n, when"
    refused(InvalidCall, sentence, lambda: hello.using(outbox).enqueue(*args, **options))


@pytest.mark.parametrize("args", [(), (7,)])
def test_a_misspelled_argument_is_named_with_the_right_name(hello, outbox, args) -> None:
    sentence = "shop.hello: got an unexpected keyword argument 'whn'; its parameters are: n, when; did you mean 'when'?"
    options = {"whn": 8}
    refused(InvalidCall, sentence, lambda: hello.using(outbox).enqueue(*args, **options))


@pytest.mark.parametrize("shape", [lambda ctx: None, lambda ctx, n: None, lambda n, ctx: None])
def test_a_context_without_an_annotation_is_refused(outbox, shape: Callable[..., None]) -> None:
    task = outbox.task(name="shop.hello")(shape)
    with pytest.raises(
        InvalidCall, match=re.escape("; if ctx is the task's context, annotate the first parameter as ctx: TaskContext")
    ):
        task.using(outbox).enqueue(n=7)
    known = outbox.task(name="shop.other")(lambda n, ctx: None)
    assert known.call(n=7, ctx=8), "an argument may have this name"


def test_a_self_parameter_without_a_context_annotation_is_refused(outbox) -> None:
    def hello(self, n: int = 0) -> None: ...

    with pytest.raises(ConfigurationError, match=r"^shop\.hello: a task is a plain function and has no self"):
        outbox.task(name="shop.hello")(hello)
    hello.__annotations__["self"] = TaskContext
    assert outbox.task(name="shop.hello")(hello).takes_context


def test_enqueueing_a_task_call_is_refused(hello) -> None:
    sentence = (
        "a task call has no 'enqueue'; a chain or a batch enqueues it. To enqueue the task itself, "
        "write task.using(session).enqueue(…)"
    )
    refused(AttributeError, sentence, lambda: hello.call(7).enqueue())


# --- declaring


def second(n: int, ctx: TaskContext) -> None: ...


def keyword(n: int, *, ctx: TaskContext) -> None: ...


def optional(ctx: TaskContext | None) -> None: ...


@pytest.mark.parametrize("function", [second, keyword, optional])
def test_a_context_that_is_not_the_first_parameter_is_refused(outbox, function: Callable[..., None]) -> None:
    sentence = (
        "shop.hello: the worker passes a context only to a first parameter annotated TaskContext; "
        "make the first parameter ctx: TaskContext"
    )
    refused(ConfigurationError, sentence, lambda: outbox.task(name="shop.hello")(function))


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def of_main() -> Callable[[], None]:
    def greet() -> None: ...

    greet.__module__, greet.__qualname__ = "__main__", "greet"
    return greet


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: None, f"{__name__}.<lambda>"),
        (nested(), f"{__name__}.nested.<locals>.inner"),
        (of_main(), "__main__.greet"),
    ],
    ids=["lambda", "nested", "main"],
)
def test_a_function_without_an_importable_name_is_refused(outbox, function: Callable[..., Any], name: str) -> None:
    sentence = f"{name} is not a name under which a worker could find the function; give the task a name: @outbox.task(name='…')"
    refused(ConfigurationError, sentence, lambda: outbox.task(function))


async def fetch() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "word"),
    [(of_main(), {"retry": 3}, "retry"), (of_main(), {"queue": ""}, "queue"), (fetch, {}, "async functions")],
    ids=["retry", "queue", "async"],
)
def test_another_mistake_is_reported_before_a_name_that_is_missing(
    outbox, monkeypatch, function, options, word
) -> None:
    monkeypatch.setattr(function, "__module__", "__main__")
    with pytest.raises((ConfigurationError, InvalidArgument), match=word) as raised:
        outbox.task(**options)(function)
    assert "a name under which" not in str(raised.value)


def first() -> None: ...


def second() -> None: ...


async def asynchronous() -> None: ...


@pytest.mark.parametrize("declare", [outboxq.Task, lambda _: outboxq.Task(queue="mail")])
def test_the_task_class_is_refused_as_a_decorator(declare: Any) -> None:
    cure = "write outbox = Outbox(…), and decorate the function with @outbox.task"
    refused(InvalidCall, f"outboxq.Task is the class of tasks and not a decorator; {cure}", lambda: declare(first))


def test_a_duplicate_name_is_refused(outbox) -> None:
    outbox.task(name="shop.hello")(first)
    here = __name__
    sentence = f"two tasks are called 'shop.hello': {here}.first and {here}.second; give one of them another name="
    refused(ConfigurationError, sentence, lambda: outbox.task(name="shop.hello")(second))


@pytest.mark.parametrize(
    ("kind", "sentence", "declare"),
    [
        (
            ConfigurationError,
            "shop.hello: async functions cannot be tasks: write a plain function that calls asyncio.run()",
            lambda outbox: outbox.task(name="shop.hello")(asynchronous),
        ),
        (
            InvalidArgument,
            "3 is not a retry policy: pass RetryPolicy(max_attempts=3), tenacity.Retrying() or f.retry of a tenacity-decorated f",
            lambda outbox: outbox.task(name="shop.hello", retry=3)(first),
        ),
        (
            ConfigurationError,
            "@outbox.task takes a function; options are keywords: @outbox.task(queue='mail'), or @outbox.task(name='mail')",
            lambda outbox: outbox.task("mail"),
        ),
        (
            ConfigurationError,
            "@outbox.task takes a function; options are keywords: @outbox.task(queue='mail')",
            lambda outbox: outbox.task(None),
        ),
        (
            InvalidCall,
            f"@outbox.task() has no option 'max_retries'; write retry=RetryPolicy(max_attempts=…, wait=…); {TASK}",
            lambda outbox: outbox.task(max_retries=3)(first),
        ),
        (
            InvalidCall,
            f"@outbox.task() has no option 'banana'; {TASK}",
            lambda outbox: outbox.task(banana=3)(first),
        ),
    ],
    ids=["async", "retry", "positional", "none", "max_retries", "banana"],
)
def test_an_invalid_declaration_is_refused(outbox, kind: type[Exception], sentence: str, declare) -> None:
    refused(kind, sentence, lambda: declare(outbox))


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("countdown", "write delay=; "),
        ("eta", "write run_after=; "),
        ("max_retries", "write max_attempts=; "),
        ("banana", ""),
    ],
)
def test_an_option_of_another_library_is_refused(hello, outbox, option: str, hint: str) -> None:
    sentence = f"using() has no option {option!r}; {hint}{USING}"
    refused(InvalidCall, sentence, lambda: hello.using(outbox, **{option: 5}))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "; write hello.using(session).enqueue(…)"),
        ("apply_async", "; write hello.using(session, delay=…).enqueue(…)"),
        ("banana", ""),
    ],
)
def test_a_method_of_another_library_is_refused(hello, name: str, hint: str) -> None:
    refused(AttributeError, f"a task has no {name!r}{hint}", lambda: getattr(hello, name)(7))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Retry, "Retry takes either a delay or at=: write Retry(30) or Retry(at=moment)"),
        (lambda: Retry("30"), "Retry() takes a timedelta or seconds, not str"),  # type: ignore[arg-type]
        (
            lambda: Retry(at=datetime(2026, 1, 1)),  # noqa: DTZ001
            "Retry(at=…) takes an aware datetime; add a time zone, e.g. datetime.now(UTC)",
        ),
        (lambda: Snooze("30"), "Snooze() takes a timedelta or seconds, not str"),  # type: ignore[arg-type]
        (lambda: Snooze(1e300), "Snooze() takes a finite span of time, not 1e+300 seconds"),
    ],
    ids=["Retry()", "Retry(text)", "Retry(naive)", "Snooze(text)", "Snooze(endless)"],
)
def test_a_retry_or_snooze_with_an_invalid_time_is_refused(asked: Callable[[], object], sentence: str) -> None:
    refused(InvalidArgument, sentence, asked)


# --- commands


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A directory with applications, in which the commands run."""
    applications = {
        "shop": "from outboxq import Outbox\noutbox = Outbox('sqlite:///shop.db')\nengine = 1\n",
        "broken": "1 / 0\n",
        "misses": "import nowhere_to_be_found\n",
    }
    for name, text in applications.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    yield
    for name in applications:
        sys.modules.pop(name, None)


def test_a_database_that_does_not_exist_is_reported_with_the_command_that_creates_it(postgresql) -> None:
    url = postgresql.engine.url.set(database="shoop").render_as_string(hide_password=False)
    done = CliRunner().invoke(main, ["status", "--url", url])
    said = " ".join(done.output.split())
    assert (done.exit_code, said.endswith("; create it, e.g. createdb shoop")) == (69, True), said


def test_the_hint_about_the_url_of_a_worker_names_the_application() -> None:
    done = CliRunner().invoke(main, ["worker", "--url", "sqlite:///shop.db"])
    assert "write --database-url, along with APP, which a worker always needs" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["worker", "shop"], 4, r"outboxq: .*no (outboxq tables|SQLite file).*; run: outboxq upgrade.*"),
        (["worker", "nowhere"], 2, "outboxq: there is no module 'nowhere' in /.* or on Python's path; write APP as module:outbox, e.g. shop.tasks:outbox"),
        (["worker", "shop:nope"], 2, "outboxq: shop has no Outbox called 'nope'; did you mean 'outbox'\\?"),
        (["worker", "shop:outbx"], 2, "outboxq: shop has no Outbox called 'outbx'; did you mean 'outbox'\\?"),
        (["worker", "shop:engine"], 2, "outboxq: shop has no Outbox called 'engine'; did you mean 'outbox'\\?"),
        (["status", "--url", DOWN], 69, "outboxq: the database cannot be used: connection failed: .* Connection refused .*"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("shop")
def test_a_command_that_cannot_run_prints_why(arguments: list[str], code: int, sentence: str) -> None:
    done = CliRunner().invoke(main, arguments)
    said = " ".join(done.output.split())
    assert done.exit_code == code, said
    assert re.fullmatch(sentence, said), said


@pytest.mark.parametrize(("app", "error"), [("broken", ZeroDivisionError), ("misses", ModuleNotFoundError)])
@pytest.mark.usefixtures("shop")
def test_a_module_that_raises_shows_its_own_traceback(app: str, error: type[Exception]) -> None:
    Path("shell.py").write_text(f"def begin():\n    import {app}\n\n\nbegin()\n")
    done = CliRunner().invoke(main, ["worker", "shell:outbox"])
    assert done.exit_code == 1
    head, *frames, last = done.stderr.splitlines()
    assert head == "Traceback (most recent call last):"
    assert re.findall(r'File ".*?(\w+\.py)"', "\n".join(frames)) == ["shell.py", "shell.py", f"{app}.py"]
    assert last.startswith(f"{error.__name__}: ")


@pytest.mark.usefixtures("shop")
def test_an_error_after_the_import_keeps_its_whole_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox, "worker", lambda *_, **__: 1 / 0)
    assert isinstance(CliRunner().invoke(main, ["worker", "shop:outbox"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("create", "driver", "package"),
    [
        ("from sqlalchemy.ext.asyncio import create_async_engine as create", "asyncpg", "asyncpg"),
        ("from sqlalchemy import create_engine as create", "psycopg2", "psycopg2-binary"),
    ],
    ids=["asyncpg", "psycopg2"],
)
@pytest.mark.usefixtures("shop")
def test_a_missing_driver_is_reported_with_the_package_to_install(
    create: str, driver: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    Path(f"needs_{driver}.py").write_text(f"{create}\ncreate('postgresql+{driver}://me@host/shop')\n")
    done = CliRunner().invoke(main, ["status", f"needs_{driver}"])
    assert done.exit_code == 2
    said = f"creates an engine with the driver {driver}, which is not installed; run: pip install {package}"
    assert done.stderr == f"outboxq: needs_{driver} {said}\n"


def test_a_task_that_the_worker_has_not_imported_is_reported(database, caplog: pytest.LogCaptureFixture) -> None:
    producer = Outbox(database.engine)
    producer.task(name="shop.hello")(first).using(producer).enqueue()
    other = Outbox(database.engine)
    other.task(name="shop.bye")(first)
    other.integration.how_to_import = "list its module in OUTBOXQ_TASKS"
    worker = other.worker(notifications=False)
    worker.start()
    until(lambda: "shop.hello" in caplog.text)
    worker.stop()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        (
            "this worker does not know the task 'shop.hello' and released it (releases since the last such warning: 1); list its module "
            "in OUTBOXQ_TASKS, or use a separate queue for the task"
        )
    ]
