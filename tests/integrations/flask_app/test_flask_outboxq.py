"""Outboxq in Flask: transactions of requests, sessions of handlers, and several applications in one process."""

from __future__ import annotations

import gc
import re
import sys
import threading
import weakref
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from flask import Flask, abort, current_app, has_app_context
from flask.cli import cli
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session as FlaskSession
from sqlalchemy import select
from sqlalchemy.orm import Mapped, Session, mapped_column, scoped_session, sessionmaker
from werkzeug.test import Client

from outboxq import ConfigurationError, Hook, InvalidTarget, Outbox, RetryPolicy, SchemaOutOfDate, TaskContext
from outboxq.cli import COMMANDS, main
from outboxq.contrib.flask import Outboxq
from outboxq.database.revisions import REVISION
from outboxq.web import Viewer, application
from tests.contract.helpers import called
from tests.memory_broker import Broker

ONCE = RetryPolicy.never()


class Own(FlaskSession):
    """An application's own session class."""


@dataclass
class Shop:
    """The objects of an application's module, created before any application."""

    options: dict = field(default_factory=dict)
    outbox_options: dict = field(default_factory=dict)
    apps: list[Flask] = field(default_factory=list)

    def __post_init__(self):
        self.db = db = SQLAlchemy(session_options=self.options)
        self.outbox = outbox = Outboxq(**self.outbox_options)

        class Order(db.Model):
            id: Mapped[int] = mapped_column(primary_key=True)

        class Ledger(db.Model):
            id: Mapped[int] = mapped_column(primary_key=True)
            note: Mapped[str]

        class Page(db.Model):
            __bind_key__ = "elsewhere"
            id: Mapped[int] = mapped_column(primary_key=True)

        self.Order, self.Ledger, self.Page = Order, Ledger, Page

        @outbox.task(name="shop.receipt", queue="mail", retry=ONCE)
        def receipt(order: int) -> str:
            assert db.session.get(Order, order) is not None
            return current_app.name

        self.receipt = receipt

    def app(self, url: str, *, elsewhere: str = "sqlite://", name: str = "shop", **config) -> Flask:
        app = Flask(name)
        app.config.update(SQLALCHEMY_DATABASE_URI=url, SQLALCHEMY_BINDS={"elsewhere": elsewhere}, **config)
        self.db.init_app(app)
        self.apps.append(app)
        self.outbox.init_app(app)
        with app.app_context():
            self.db.create_all()
        return app

    def work(self, app: Flask, **options) -> None:
        with app.app_context():
            worker = self.outbox.worker(notifications=False, recover_every=60, concurrency=1, **options)
            assert worker.run(burst=True) == 0

    def notes(self, app: Flask) -> list[str]:
        with app.app_context():
            return sorted(self.db.session.scalars(select(self.Ledger.note)))

    def error_of(self, app: Flask, handle) -> str:
        with app.app_context():
            return self.outbox.store.get(handle.id).last_error or ""

    def close(self):
        for app in self.apps:
            with app.app_context():
                self.db.drop_all()
                for engine in self.db.engines.values():
                    engine.dispose()


@pytest.fixture(params=[{}, {"class_": Own, "autoflush": False}], ids=["plain", "its own class"])
def options(request):
    return request.param


@pytest.fixture
def shop(database, tmp_path):
    with closing(Shop()) as shop:
        yield shop


@pytest.fixture
def app(shop, database):
    return shop.app(database.url)


# Requests.

ENDS = {
    "commits": ("200 OK", 1),
    "forgets": ("200 OK", 0),
    "fails": ("500 INTERNAL SERVER ERROR", 0),
    "refuses": ("409 CONFLICT", 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_task_is_enqueued_in_the_transaction_of_the_request(end, shop, app, database):
    @app.post("/orders")
    def order():
        order = shop.Order()
        shop.db.session.add(order)
        shop.db.session.flush()
        shop.receipt.enqueue(order.id)
        if end == "fails":
            raise ZeroDivisionError
        if end == "refuses":
            abort(409)
        if end == "commits":
            shop.db.session.commit()
        return {}

    status, count = ENDS[end]
    assert app.test_client().post("/orders").status == status
    assert database.counts() == (count, count, count)
    assert database.rows('SELECT count(*) FROM "order"') == [(count,)]


def test_a_pushed_context_is_used_by_requests_and_keeps_their_transaction_open(shop, app):
    """This is why docs/flask.md says to push no context around a test's requests; examples/flask_shop pushes none."""
    sessions = []

    @app.post("/orders")
    def order():
        sessions.append(shop.db.session())
        shop.receipt.enqueue(1)
        abort(409)

    client = app.test_client()
    with app.app_context():
        assert client.post("/orders").status_code == 409
        assert sessions == [shop.db.session()]
        assert len(shop.outbox.store.tasks(using=shop.db.session)) == 1, "the refused request's task is not rolled back"
    assert client.post("/orders").status_code == 409
    assert not sessions[1].in_transaction()
    with app.app_context():
        assert shop.outbox.store.tasks() == []


def test_tasks_are_rolled_back_with_their_savepoint(shop, app, database):
    with app.app_context():
        with pytest.raises(ZeroDivisionError), shop.db.session.begin_nested():
            shop.receipt.enqueue(1)
            raise ZeroDivisionError
        kept = shop.receipt.enqueue(2)
        shop.outbox.emit("order.paid", {"id": 1})
        shop.db.session.commit()
        assert [task.id for task in shop.outbox.store.tasks()] == [kept.id]
        with shop.db.session.begin_nested():
            shop.receipt.enqueue(3)
        shop.db.session.rollback()
        assert len(shop.outbox.store.tasks()) == 1


def test_an_engine_is_not_configured_if_the_setting_says_so(sqlite_url):
    with closing(Shop()) as shop, shop.app(sqlite_url, OUTBOXQ_CONFIGURE_SQLITE=False).app_context():
        with pytest.raises(InvalidTarget, match="configure_sqlite"), shop.db.session.begin_nested():
            shop.receipt.enqueue(1)
        shop.db.session.rollback()


# Handlers.


def test_a_handler_runs_in_the_application_context_with_a_separate_session(shop, app, database):
    seen = []

    @shop.outbox.task(name="shop.forgetful", retry=ONCE)
    def forgetful(fails: bool) -> None:
        seen.append((current_app.name, shop.db.session(), shop.db.session().in_transaction()))
        shop.db.session.add(shop.Ledger(note="not committed"))
        shop.db.session.flush()
        if fails:
            raise ValueError

    torn_down = []
    app.teardown_appcontext(lambda _: torn_down.append(1))
    with app.app_context():
        for fails in (True, False, True):
            forgetful.using(shop.outbox).enqueue(fails)
    shop.work(app)
    names, sessions, began = zip(*seen, strict=True)
    assert names == ("shop",) * 3
    assert (len(set(sessions)), any(began)) == (3, False)
    assert len(torn_down) >= 3
    assert shop.notes(app) == []
    with app.app_context():
        assert shop.db.engine.pool.checkedout() == 0
    assert not has_app_context()


def test_in_a_transactional_task_the_application_session_joins_its_transaction(options, database):
    with closing(Shop(options)) as shop:
        check_transactional(shop, options, database)


def check_transactional(shop, options, database):
    app = shop.app(database.url)
    session = shop.db.session

    @shop.outbox.task(name="shop.book", transactional=True, retry=ONCE)
    def book(ctx: TaskContext, fails: bool) -> None:
        assert ctx.session is session()
        assert isinstance(session(), options.get("class_", FlaskSession))
        assert session.autoflush == options.get("autoflush", True)
        session.add(shop.Ledger(note="committed"))
        session.commit()
        with session.begin_nested() as savepoint:
            session.add(shop.Ledger(note="taken back"))
            session.flush()
            savepoint.rollback()
        order = shop.Order()
        session.add(order)
        session.flush()
        shop.receipt.enqueue(order.id)
        shop.db.session.add(shop.Ledger(note="not flushed"))
        if fails:
            raise ValueError("too late")

    with app.app_context():
        failed = book.using(shop.outbox).enqueue(True)
    shop.work(app)
    assert "too late" in shop.error_of(app, failed)
    assert (shop.notes(app), database.counts()[0]) == ([], 1)
    with app.app_context():
        done = book.enqueue(False)
        shop.db.session.commit()
    shop.work(app)
    assert shop.error_of(app, done) == ""
    assert shop.notes(app) == ["committed", "not flushed"]
    with app.app_context():
        (receipt,) = [task for task in shop.outbox.store.tasks() if task.task_name == "shop.receipt"]
        assert (receipt.status, receipt.result) == ("Completed", '"shop"')


def test_in_a_transactional_step_the_application_session_joins_its_transaction(shop, database):
    app = shop.app(database.url)
    session, seen = shop.db.session, []

    def book(ctx: TaskContext, note: str, *, fails: bool) -> None:
        assert ctx.session is session()
        seen.append(session())
        session.add(shop.Ledger(note=note))
        session.flush()
        order = shop.Order()
        session.add(order)
        session.flush()
        shop.receipt.enqueue(order.id)
        if fails:
            raise ValueError("too late")

    @shop.outbox.task(name="shop.book", retry=RetryPolicy(max_attempts=2, wait=0))
    def handler(ctx: TaskContext) -> None:
        own = session()
        ctx.step("kept", book, "kept", fails=False, transactional=True)
        assert session() is own
        with suppress(ValueError):
            ctx.step("lost", book, "lost", fails=True, transactional=True)
        assert session() is own
        assert len({*seen, own}) == len(seen) + 1
        if ctx.attempt == 1:
            raise OSError

    with app.app_context():
        handle = handler.using(shop.outbox).enqueue()
    shop.work(app)
    with app.app_context():
        assert shop.outbox.store.get(handle.id).status == "Completed"
        assert [step.name for step in shop.outbox.store.steps.list(handle.id)] == ["kept"]
        receipts = [task for task in shop.outbox.store.tasks() if task.task_name == "shop.receipt"]
    assert len(receipts) == 1
    assert shop.notes(app) == ["kept"]


def test_only_the_outbox_database_joins_the_transaction(shop, database, tmp_path):
    app = shop.app(database.url, elsewhere=f"sqlite:///{tmp_path / 'elsewhere.db'}")

    @shop.outbox.task(name="shop.book", transactional=True, retry=ONCE)
    def book() -> None:
        shop.db.session.add_all([shop.Ledger(note="ours"), shop.Page(id=1)])
        shop.db.session.commit()
        raise ValueError

    with app.app_context():
        book.using(shop.outbox).enqueue()
    shop.work(app)
    assert shop.notes(app) == []
    with app.app_context():
        assert shop.db.session.scalars(select(shop.Page.id)).all() == [1]


def test_the_outbox_can_be_in_a_named_bind(shop, database, tmp_path):
    app = shop.app(f"sqlite:///{tmp_path / 'default.db'}", elsewhere=database.url, OUTBOXQ_BIND_KEY="elsewhere")

    @shop.outbox.task(name="shop.book", transactional=True, retry=ONCE)
    def book(fails: bool) -> None:
        shop.db.session.add(shop.Page())
        shop.db.session.commit()
        if fails:
            raise ValueError

    with app.app_context():
        book.enqueue(True)
        shop.db.session.add(shop.Page(id=7))
        shop.db.session.rollback()
        assert database.counts() == (0, 0, 0)
        book.enqueue(True)
        shop.db.session.add(shop.Page(id=7))
        book.enqueue(False)
        shop.db.session.commit()
    shop.work(app)
    with app.app_context():
        assert sorted(shop.db.session.scalars(select(shop.Page.id))) in ([1, 7], [7, 8], [2, 7])
        assert sorted(task.status for task in shop.outbox.store.tasks()) == ["Completed", "Failed"]


def test_a_session_of_another_application_context_is_refused_in_a_transactional_task(shop, app, database):
    @shop.outbox.task(name="shop.careless", transactional=True, retry=ONCE)
    def careless() -> None:
        with app.app_context():
            shop.db.session.add(shop.Ledger(note="apart"))
            shop.db.session.commit()

    with app.app_context():
        handle = careless.using(shop.outbox).enqueue()
    shop.work(app)
    assert "in another application context" in shop.error_of(app, handle)
    assert shop.notes(app) == []


def test_a_replaced_session_of_the_application_is_used(shop, app, database):
    """Tests may replace the session."""
    with app.app_context():
        before, shop.db.session = shop.db.session, shop.db._make_scoped_session({"expire_on_commit": False})
        shop.receipt.enqueue(1)
        shop.db.session.commit()
        assert not before.registry.has()
        assert len(shop.outbox.store.tasks()) == 1
        shop.db.session.remove()


def test_a_session_that_a_test_binds_to_its_connection_keeps_the_task_in_its_transaction(shop, app, database):
    """Otherwise the task would be committed on a second connection, and the session could not use its own one."""
    with app.app_context():
        engine = shop.db.engine
        with engine.connect() as connection:
            connection.begin()
            shop.db.session = scoped_session(sessionmaker(connection, join_transaction_mode="create_savepoint"))
            shop.receipt.enqueue(1)
            shop.db.session.add(shop.Order(id=1))
            shop.db.session.commit()
            shop.db.session.remove()
            assert len(shop.outbox.store.tasks(using=connection)) == 1
            connection.rollback()
        assert shop.outbox.store.tasks() == []


# Several applications, or none.


def test_a_deleted_application_is_garbage_collected(sqlite_url):
    with closing(Shop()) as shop:
        app = shop.app(sqlite_url)
        with app.app_context():
            shop.receipt.enqueue(1)
            shop.db.session.rollback()
        shop.work(app)
        shop.close()
        forgotten = weakref.ref(app)
        del app, shop.apps[:]
        gc.collect()
        assert forgotten() is None


def test_each_application_has_a_separate_database(shop, database, tmp_path):
    from outboxq import migrations

    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    migrations.upgrade(other_url)
    one, other = shop.app(database.url, name="one"), shop.app(other_url, name="other")
    handles = {}
    for app in (one, other):
        with app.app_context():
            shop.db.session.add(shop.Order(id=1))
            handles[app.name] = shop.receipt.enqueue(1)
            shop.db.session.commit()
            assert len(shop.outbox.store.tasks()) == 1
            assert app.extensions["outboxq"] is shop.outbox
    shop.work(other)
    with other.app_context():
        assert shop.outbox.store.get(handles["other"].id).result == '"other"'
    with one.app_context():
        assert shop.outbox.store.get(handles["one"].id).status == "Ready"
        with other.app_context():
            assert shop.outbox.store.get(handles["other"].id).status == "Completed"


def test_each_application_has_one_thread_that_waits_for_results(shop, database, tmp_path):
    """Requests to two applications in turn must not start another thread, with its own connections, for each call."""
    shops = [shop.app(database.url, name="here"), shop.app(f"sqlite:///{tmp_path}/there.db", name="there")]
    ids = []
    for app in shops:
        with app.app_context():
            shop.outbox.upgrade()
            ids.append(shop.receipt.using(shop.outbox).enqueue(1).id)
    before = {one for one in threading.enumerate() if one.name == "outboxq-results"}
    for _ in range(3):
        for app, task_id in zip(shops, ids, strict=True):
            with app.app_context(), pytest.raises(TimeoutError):
                shop.outbox.result(task_id, timeout=0.01)
    waiting = {one for one in threading.enumerate() if one.name == "outboxq-results"} - before
    assert len(waiting) <= 2


def test_without_an_application_context_enqueueing_requires_using(shop, app, database):
    engine = database.host_engine()
    with Session(engine) as session, session.begin():
        shop.receipt.using(session).enqueue(1)
    assert database.counts()[0] == 1
    assert not shop.outbox.is_bound
    with pytest.raises(InvalidTarget, match=r"with app\.app_context\(\):"):
        shop.receipt.enqueue(1)
    for needs_one in (
        shop.receipt.using(shop.outbox).enqueue,
        lambda _: shop.outbox.upgrade(),
        lambda _: shop.outbox.worker(),
    ):
        with pytest.raises(ConfigurationError, match=r"with app\.app_context\(\):"):
            needs_one(1)


@pytest.fixture
def bare(database):
    """An application without Flask-SQLAlchemy."""
    app = Flask("bare")
    app.config["OUTBOXQ_DATABASE_URL"] = database.url
    return app


def test_the_source_of_relays_is_an_option_of_the_outbox(bare):
    outbox = Outboxq(bare, source="shop")
    assert outbox.relay("*", to=SimpleNamespace(send=print), name="crm").name == "relay.crm"


def test_relays_run_without_a_worker(bare):
    outbox, broker = Outboxq(bare, source="shop"), Broker()
    outbox.relay("order.*", to=broker, name="orders")

    def run(*words):
        result = bare.test_cli_runner().invoke(args=["outboxq", *words], catch_exceptions=False)
        return result.exit_code, result.output

    once = "relay", "run", "--burst", "--no-notifications"
    code, said = run(*once)
    assert code == 0, said
    assert run("emit", "order.paid")[0] == 0
    assert run(*once)[0] == 0
    assert [one.type for one in broker.stored] == ["order.paid"]
    code, said = run(*once, "--name", "other")
    assert (code, "there is no relay 'other'" in said) == (3, True)


def test_without_flask_sqlalchemy_using_or_the_outbox_needs_a_session(bare, database):
    engine = database.host_engine()
    session = scoped_session(sessionmaker(engine))
    without, given = Outboxq(bare), Outboxq(session=session)

    @without.task(name="follow")
    def follow(n: int) -> None: ...

    @given.task(name="book", transactional=True, retry=ONCE)
    def book(ctx: TaskContext) -> None:
        assert ctx.session is session()

    with bare.app_context():
        with pytest.raises(InvalidTarget, match=r"using\(session\).*Outboxq\(session=…\)"):
            follow.enqueue(1)
        follow.using(session, queue="other").enqueue(1)
        session.commit()
        follow.using(without, queue="other").enqueue(2)
        assert len(without.store.tasks()) == 2
        without.store.engine.dispose()
    second = Flask("second")
    second.config["OUTBOXQ_DATABASE_URL"] = database.url
    given.init_app(second)
    with second.app_context():
        book.enqueue()
        session.rollback()
        handle = book.enqueue()
        session.commit()
        session.remove()
        assert given.worker(notifications=False, queues=["default"]).run(burst=True) == 0
        assert given.store.get(handle.id).status == "Completed"
        given.store.engine.dispose()


def test_a_bound_outbox_works_for_applications_without_a_database_setting(database):
    outbox = Outboxq()
    outbox.bind(database.engine)
    app = Flask("silent")
    outbox.init_app(app)
    with app.app_context():
        assert outbox.store.tasks() == []
    assert outbox.is_bound


def wrong(app: Flask, db: SQLAlchemy, case: str) -> None:
    if case in ("two databases", "unknown bind"):
        app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", OUTBOXQ_BIND_KEY="nowhere")
        db.init_app(app)
    if case == "two databases":
        app.config["OUTBOXQ_DATABASE_URL"] = "sqlite:///shop.db"
    if case == "bind of nobody":
        app.config["OUTBOXQ_BIND_KEY"] = "elsewhere"
    if case == "twice":
        app.config["OUTBOXQ_DATABASE_URL"] = "sqlite:///shop.db"
        Outboxq(app)


WRONG = {
    "no database": r"db\.init_app\(app\).*OUTBOXQ_DATABASE_URL",
    "two databases": "set only one of them",
    "unknown bind": r"no bind 'nowhere'; SQLALCHEMY_BINDS has none",
    "bind of nobody": r"call db\.init_app\(app\) first",
    "twice": "already has an outbox",
}


@pytest.mark.parametrize("case", WRONG)
def test_an_application_with_no_database_or_several_is_refused(case, monkeypatch):
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    app = Flask("wrong")
    wrong(app, SQLAlchemy(), case)
    with pytest.raises(ConfigurationError, match=WRONG[case]):
        Outboxq(app)


def test_a_session_that_is_not_scoped_is_refused():
    with pytest.raises(ConfigurationError, match="scoped_session"):
        Outboxq(session=Session())


# Commands.


def test_commands_use_the_database_of_the_application(shop, database, tmp_path, monkeypatch):
    (tmp_path / "late_tasks.py").write_text(
        "from shop_of_this_test import outbox\n@outbox.task(subscribe='order.paid')\ndef paid(payload): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shop_of_this_test", shop)
    monkeypatch.delitem(sys.modules, "late_tasks", raising=False)
    app = shop.app(database.url, OUTBOXQ_TASKS="late_tasks")
    run = app.test_cli_runner().invoke
    with app.app_context():
        shop.db.session.add(shop.Order(id=1))
        handle = shop.receipt.enqueue(1)
        shop.db.session.commit()
    result = run(args=["outboxq", "worker", "--burst", "--queue", "mail", "--no-notifications"])
    assert (result.exit_code, result.exception) == (0, None) or isinstance(result.exception, SystemExit)
    with app.app_context():
        assert shop.outbox.store.get(handle.id).status == "Completed"
    del sys.modules["late_tasks"], shop.outbox.tasks._tasks["late_tasks.paid"]  # the worker has imported it
    result = run(args=["outboxq", "upgrade"])
    assert (result.exit_code, result.output) == (
        0,
        f"the schema of {called(database.url)} is now {REVISION}; 1 subscription is declared\n",
    )
    result = run(args=["outboxq", "status", "--window", "1h"])
    assert result.exit_code == 0
    assert "\nmail\t0\t0\t0\t0\t0\t\t1\t" in result.output
    assert run(args=["outboxq", "worker", "--processes", "2"]).exit_code == 2
    assert "--url" not in run(args=["outboxq", "status", "--help"]).output
    commands = run(args=["outboxq", "--help"]).output
    assert "until SIGTERM, SIGINT or SIGHUP." in commands
    assert COMMANDS["upgrade"].sentence in commands


@pytest.mark.parametrize("command", [["worker", "--burst"], ["upgrade"], ["enqueue", "shop.receipt"]])
def test_a_module_of_tasks_that_does_not_exist_is_named_with_its_setting(shop, database, command):
    app = shop.app(database.url, OUTBOXQ_TASKS=["shop_tsks.mail"])
    done = app.test_cli_runner().invoke(args=["outboxq", *command])
    assert (done.exit_code, done.exception.__class__) == (2, SystemExit), done.exception
    assert "OUTBOXQ_TASKS names 'shop_tsks.mail', but there is no module 'shop_tsks'" in done.stderr


def test_an_import_error_within_a_module_of_tasks_is_raised_unchanged(shop, app, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needy_tasks.py").write_text("import nowhere_at_all\n")
    app.config["OUTBOXQ_TASKS"] = "needy_tasks"
    with app.app_context(), pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        shop.outbox.load_tasks()


def test_every_command_reads_and_writes_in_the_database_of_the_application(shop, database):
    app = shop.app(database.url)
    with app.app_context():
        handle = shop.receipt.using(shop.outbox, delay=3600).enqueue(1)

    def run(*words):
        result = app.test_cli_runner().invoke(args=["outboxq", *words])
        assert not has_app_context()
        return result.exit_code, result.output

    assert "is due in" in run("task", "explain", str(handle.id))[1]
    assert str(handle.id) in run("task", "list", "--queue", "mail")[1]
    assert "paused" in run("queue", "pause", "mail")[1]
    assert run("task", "run-now", str(handle.id)) == (0, f"task {handle.id} is due now\n")
    assert "its queue has been paused" in run("task", "explain", str(handle.id))[1]
    assert run("task", "cancel", str(handle.id)) == (0, f"task {handle.id} was cancelled\n")
    assert run("queue", "resume", "mail")[0] == 0
    code, said = run("failed", "redrive", "--all")
    assert (code, "--yes" in said) == (2, True)
    assert run("failed", "redrive", "--all", "--yes") == (0, "0 dead letters matched\n")
    assert run("failed", "discard", "--all", "--dry-run") == (0, "all dead letters: 0 would be discarded\n")
    code, said = run("task", "list", "--queue", "none", "--json")
    assert (code, said.startswith("[]\noutboxq: there is no queue 'none'")) == (3, True)
    assert run("verify") == (0, "every invariant holds\n")
    assert run("prune", "--older-than", "0s", "--yes") == (0, "1 task was deleted with its events\n")
    assert run("task", "show", str(handle.id)) == (
        3,
        f"outboxq: there is no task {handle.id}; its transaction may not have been committed yet\n",
    )
    assert run("workers", "list")[1].startswith("host\tpid\t")
    assert run("check") == (0, "all is well\n")
    assert run("db", "current")[1] == f"{REVISION}, the revision of this release\n"
    code, said = run("enqueue", shop.receipt.name, "--args", '{"order": 7}', "--delay", "1h")
    assert code == 0, said
    assert run("log", "--last", "1", "--task", said.strip())[1].count("task_created") == 1
    assert "argument order" in run("enqueue", shop.receipt.name, "--args", '{"order": "x"}')[1]
    code, said = run("completion", "bash")
    assert (code, "run: outboxq completion" in said) == (2, True)
    code, said = run("grants", "web")
    assert (code, "run: outboxq grants" in said) == (2, True)


def test_schedules_can_use_all_tasks_of_the_application(shop, database, tmp_path, monkeypatch):
    """This includes tasks in modules that otherwise only a worker imports."""
    (tmp_path / "late_tasks.py").write_text(
        "from shop_of_this_test import outbox\n@outbox.task(queue='late')\ndef close(day: int): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shop_of_this_test", shop)
    monkeypatch.delitem(sys.modules, "late_tasks", raising=False)
    app = shop.app(database.url, OUTBOXQ_TASKS="late_tasks")

    def run(*words):
        result = app.test_cli_runner().invoke(args=["outboxq", "schedule", *words])
        assert not has_app_context()
        return result.exit_code, result.output

    assert run("next", "every 15m", "--from", "2026-01-01", "-n", "1")[1].endswith("Thu 2026-01-01 00:15:00 UTC\n")
    add = ("add", "nightly", "late_tasks.close", "30 2 * * *", "--args")
    assert run(*add, '{"month": 7}')[0] == 1
    assert "At 02:30 every day (UTC)" in run(*add, '{"day": 7}')[1]
    with app.app_context():
        assert shop.outbox.store.schedules.get("nightly").queue == "late"
    assert run("remove", "nightly") == (
        0,
        "the schedule 'nightly' was removed; planted ticks that were not due yet are cancelled\n",
    )


MODULE = """
from flask import Flask
from outboxq.contrib.flask import Outboxq

outbox = Outboxq()
app = Flask(__name__)
app.config["OUTBOXQ_DATABASE_URL"] = "sqlite:///{file}"
outbox.init_app(app)
"""


def test_a_printed_command_repeats_the_app_option(tmp_path, monkeypatch):
    (tmp_path / "kiosk_app.py").write_text(MODULE.format(file=tmp_path / "kiosk.db"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FLASK_APP", raising=False)
    typed, upgrade = ["--app", "kiosk_app:app", "outboxq"], "flask --app kiosk_app:app outboxq upgrade\n"
    for command in (["status"], ["worker"]):
        result = CliRunner().invoke(cli, [*typed, *command], prog_name="flask")
        assert (result.exit_code, f"run: {upgrade}" in result.output) == (4, True), result.output
    refused = CliRunner().invoke(cli, [*typed, "demo"], prog_name="flask")
    assert "flask --app kiosk_app:app outboxq has no command 'demo'" in refused.output
    known = CliRunner().invoke(cli, ["outboxq", "status"], prog_name="flask", env={"FLASK_APP": "kiosk_app:app"})
    assert "run: flask outboxq upgrade\n" in known.output


def test_a_database_without_tables_has_a_separate_exit_code(tmp_path):
    with closing(Shop()) as shop:
        app = shop.app(f"sqlite:///{tmp_path / 'empty.db'}")
        for command in (["worker"], ["status"], ["task", "list"]):
            result = app.test_cli_runner().invoke(args=["outboxq", *command], prog_name="flask")
            assert (result.exit_code, "run: flask outboxq upgrade\n" in result.output) == (4, True)
        with app.app_context(), pytest.raises(SchemaOutOfDate, match=r"run: flask outboxq upgrade(\n|$)"):
            shop.receipt.enqueue(1)


# Hooks.


class Noting(Hook):
    def __init__(self):
        self.notes = []

    @contextmanager
    def sending(self, sent):
        self.notes.append(f"sends from {current_app.name}")
        yield {"app": current_app.name}

    @contextmanager
    def handling(self, context):
        self.notes.append(f"handles that of {context.headers['app']}, {has_app_context()}")
        yield

    def ended(self, context, outcome, seconds):
        self.notes.append(f"{outcome.event_type} {type(context.error).__name__}, {has_app_context()}")


def test_hooks_surround_the_application_context(database):
    hook = Noting()
    with closing(Shop(outbox_options={"hooks": [hook]})) as shop:
        app = shop.app(database.url)
        with app.app_context():
            shop.receipt.enqueue(7)
            shop.db.session.commit()
        shop.work(app)
    assert hook.notes == ["sends from shop", "handles that of shop, False", "task_failed AssertionError, False"]


def test_a_tick_runs_in_the_application_context(database):
    seen = []
    with closing(Shop(outbox_options={"version": "1.2", "retention": 86_400})) as shop:

        @shop.outbox.periodic("@daily", name="nightly")
        @shop.outbox.task(name="shop.nightly", retry=ONCE)
        def nightly(ctx: TaskContext) -> None:
            seen.append((current_app.name, ctx.schedule))

        app = shop.app(database.url)
        with app.app_context():
            shop.outbox.sync_schedules()
            assert [one.name for one in shop.outbox.schedules.list()] == ["nightly", "outboxq.retention"]
            shop.outbox.schedules.trigger("nightly")  # in the request's transaction
            shop.outbox.schedules.trigger("outboxq.retention")
            shop.db.session.commit()
            assert shop.outbox.schedules.get("nightly").declared_by == "1.2"
        shop.work(app)
        assert {task.status for task in database.store.tasks()} == {"Completed"}
    assert seen == [("shop", "nightly")]


# The dashboard.


def test_the_dashboard_shows_the_database_of_its_application(shop, database, tmp_path):
    apps = [shop.app(database.url), shop.app(f"sqlite:///{tmp_path}/other.db")]
    for number, app in enumerate(apps):
        with app.app_context():
            shop.outbox.upgrade()
            shop.receipt.using(shop.db.session(), queue=f"queue-{number}").enqueue(number)
            shop.db.session.commit()
    here = {"base_url": "http://localhost", "environ_base": {"REMOTE_ADDR": "127.0.0.1"}}
    shown = [Client(application(shop.outbox, flask=app)).get("/queues", **here).text for app in apps]
    assert [f"queue-{number}" in text for text in shown for number in (0, 1)] == [True, False, False, True]
    assert not has_app_context()


@pytest.mark.parametrize("in_request", [True, False])
def test_reads_in_authorize_do_not_block_changes_by_the_dashboard(shop, app, in_request):
    def viewer(environ):
        with app.request_context(environ) if in_request else nullcontext():
            shop.db.session.scalars(select(shop.Order)).all()
        return Viewer(name="ann", may_act=True)

    with app.app_context():
        handle = shop.receipt.enqueue(1)
        shop.db.session.commit()
    client = Client(application(shop.outbox, flask=app, authorize=viewer, allow_actions=True))
    here = {"base_url": "http://localhost", "environ_base": {"REMOTE_ADDR": "127.0.0.1"}}
    token = re.search(r'name="csrf" value="([^"]+)"', client.get(f"/tasks/{handle.id}", **here).text)[1]
    form = {"data": f"csrf={token}&reason=", "content_type": "application/x-www-form-urlencoded"}
    assert client.post(f"/tasks/{handle.id}/cancel", **form, **here).status_code == 303
    with app.app_context():
        assert shop.outbox.store.get(handle.id).status == "Cancelled"
    assert not has_app_context()


def test_the_dashboard_refuses_an_application_without_the_outbox(shop, app):
    with pytest.raises(
        ConfigurationError, match=r"call outbox\.init_app\(app\) before application\(outbox, flask=app\)"
    ):
        application(shop.outbox, flask=Flask("another"))
    with pytest.raises(ConfigurationError, match="leave it out for any other outbox"):
        application(Outbox(), flask=app)


@pytest.mark.parametrize("words", [("worker",), ("status",), ("failed", "list")], ids=" ".join)
def test_the_outboxq_command_names_the_flask_command(tmp_path, monkeypatch, words):
    (tmp_path / "of_flask.py").write_text("from outboxq.contrib.flask import Outboxq\noutbox = Outboxq()\n")
    monkeypatch.syspath_prepend(tmp_path)
    named = ["of_flask:outbox"] if words == ("worker",) else ["-A", "of_flask:outbox"]
    ended = CliRunner().invoke(main, [*words, *named], env={"OUTBOXQ_DATABASE_URL": ""})
    sys.modules.pop("of_flask", None)
    assert (ended.exit_code, " ".join(ended.output.split())) == (
        2,
        "outboxq: of_flask:outbox has no database of its own, because it uses its application's database; run: flask outboxq "
        + " ".join(words),
    )


class TestUncommitted:
    """Tasks that a request enqueues after its last commit."""

    @pytest.fixture
    def client(self, shop, database, caplog):
        app = shop.app(database.url)
        with app.app_context():
            shop.outbox.upgrade()

        @app.post("/<end>")
        def order(end):
            shop.db.session.commit()
            shop.receipt.enqueue(1)
            if end == "raises":
                raise ZeroDivisionError
            if end == "aborts":
                abort(409)
            if end == "commits":
                shop.db.session.commit()
            if end == "rolls back":
                shop.db.session.rollback()
            return ("no", 422) if end == "refuses" else "yes"

        caplog.set_level("WARNING", "outboxq.store")
        return app.test_client()

    def lost(self, caplog):
        return [one.getMessage() for one in caplog.records if one.name == "outboxq.store"]

    def test_a_successful_request_that_loses_a_task_logs_a_warning(self, client, caplog):
        assert client.post("/forgets").status_code == 200
        [warning] = self.lost(caplog)
        assert warning.startswith("1 task was written after the last commit of a Session, and is lost")
        assert "shop.receipt" in warning

    @pytest.mark.parametrize("end", ["raises", "aborts", "commits", "rolls back", "refuses"])
    def test_other_requests_log_no_warning(self, client, caplog, end):
        assert client.post(f"/{end}").status_code in {200, 409, 422, 500}
        assert self.lost(caplog) == []

    def test_a_handler_that_does_not_commit_logs_a_warning_unless_it_fails(self, shop, database, caplog):
        app = shop.app(database.url)

        @shop.outbox.task(name="shop.parent", retry=ONCE)
        def parent(fails: bool) -> None:
            shop.receipt.enqueue(1)
            if fails:
                raise ZeroDivisionError

        with app.app_context():
            shop.outbox.upgrade()
            parent.enqueue(fails=True)
            parent.enqueue(fails=False)
            shop.db.session.commit()
        shop.work(app)
        [warning] = self.lost(caplog)
        assert "shop.receipt" in warning
