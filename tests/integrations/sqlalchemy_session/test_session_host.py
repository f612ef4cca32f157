"""`Outbox(session=…)`: an application's own sessions, in its requests and in the handlers of its tasks."""

from __future__ import annotations

import pytest
from sqlalchemy import Delete, Insert, Text, Update, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from outboxq import ConfigurationError, InvalidTarget, Outbox, RetryPolicy, TaskContext, migrations
from outboxq.database.tables import task_executions
from outboxq.testing import Harness

ONCE = RetryPolicy.never()


class Base(DeclarativeBase):
    """The application's own tables."""


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(Text)  # as in the other tests: a reused connection may have prepared a query


class Elsewhere(DeclarativeBase):
    """Tables in another database."""


class Page(Elsewhere):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)


class Own(Session):
    """An application's own session class."""

    def write(self, note: str) -> None:
        self.add(Effect(note=note))


@pytest.fixture
def engine(database):
    engine = database.host_engine()
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


@pytest.fixture
def elsewhere(database, tmp_path):
    engine = database.own(create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}"))
    Elsewhere.metadata.create_all(engine)
    return engine


def outbox_of(session, engine) -> Outbox:
    return Outbox(engine, session=session)


def work(outbox) -> None:
    assert outbox.worker(notifications=False, recover_every=60, concurrency=1).run(burst=True) == 0


def notes(database):
    return sorted(note for (note,) in database.rows("SELECT note FROM effects"))


def error_of(outbox, handle) -> str:
    return outbox.store.get(handle.id).last_error or ""


# Requests.


def test_a_task_is_enqueued_in_the_transaction_of_the_current_session(engine, database):
    session = scoped_session(sessionmaker(engine))
    outbox = outbox_of(session, engine)

    @outbox.task(name="follow")
    def follow(n: int) -> None: ...

    follow.enqueue(1)
    session.rollback()
    assert database.counts() == (0, 0, 0)
    kept = follow.enqueue(2)
    with pytest.raises(ZeroDivisionError), session.begin_nested():
        follow.enqueue_many([(3,), (4,)])
        raise ZeroDivisionError
    several = follow.enqueue_many([(5,), {"n": 6}], idempotency_keys=["five", None])
    session.commit()
    session.remove()
    assert {row[0] for row in database.rows("SELECT args FROM task_executions")} == {f'{{"n":{n}}}' for n in (2, 5, 6)}
    assert {outbox.store.get(one.id).status for one in (kept, *several)} == {"Ready"}


def test_a_function_can_return_the_current_session_or_none(engine, database):
    present = []
    outbox = outbox_of(lambda: present[-1], engine)

    @outbox.task(name="book", transactional=True)
    def book(ctx: TaskContext, n: int) -> None:
        ctx.session.add(Effect(note=str(n)))

    present.append(None)
    with pytest.raises(InvalidTarget, match=r"using\(session\)"):
        book.enqueue(1)
    with Session(engine) as session, session.begin():
        present.append(session)
        book.enqueue(2)
    work(outbox)
    assert notes(database) == ["2"]


@pytest.mark.parametrize("makes_it_anew", [sessionmaker(), Session, Own])
def test_a_session_factory_is_refused_as_the_session(makes_it_anew, engine):
    """Nobody would commit such a session."""
    with pytest.raises(ConfigurationError, match=r"scoped_session\(sessionmaker\(engine\)\)"):
        outbox_of(makes_it_anew, engine)


def test_a_function_that_creates_sessions_on_each_call_is_refused(engine, database):
    outbox = outbox_of(lambda: Session(engine), engine)
    follow = outbox.task(name="follow")(lambda: None)
    for write in (follow.enqueue, lambda: outbox.emit("order.paid")):
        with pytest.raises(InvalidTarget, match="a new Session on each call"):
            write()
    assert engine.pool.checkedout() == 0


def test_a_session_that_reads_elsewhere_enqueues_in_the_write_database(engine, elsewhere, database):
    class Routing(Session):
        """Routing as in SQLAlchemy's documentation: reads go to another server."""

        def get_bind(self, mapper=None, *, clause=None, **_):
            if mapper is not None and issubclass(mapper.class_, Page):
                return elsewhere
            return engine if self._flushing or isinstance(clause, Insert | Update | Delete) else elsewhere

    session = scoped_session(sessionmaker(class_=Routing))
    outbox = outbox_of(session, engine)

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book(n: int) -> None:
        session.add(Effect(note=str(n)))
        session.flush()
        assert session.scalars(select(Page)).all() == []  # reads from the other database

    handle = book.enqueue(1)
    session.commit()
    session.remove()
    work(outbox)
    assert (error_of(outbox, handle), notes(database)) == ("", ["1"])


# Handlers.


def test_each_handler_has_a_separate_session_that_is_removed_even_after_an_error(engine, database):
    session = scoped_session(sessionmaker(engine))
    outbox = outbox_of(session, engine)
    seen = []

    @outbox.task(name="forgetful", retry=ONCE)
    def forgetful(fails: bool) -> None:
        seen.append((session(), session().in_transaction(), list(session.new)))
        session.add(Effect(note="not committed"))
        session.flush()
        session.add(Effect(note="not even flushed"))
        if fails:
            raise ValueError

    for fails in (True, False, True):
        forgetful.using(outbox).enqueue(fails)
    work(outbox)
    sessions, began, held_back = zip(*seen, strict=True)
    assert len(set(sessions)) == 3
    assert not any(began), "another handler's transaction is still open"
    assert held_back == ([], [], [])
    assert engine.pool.checkedout() == 0
    assert notes(database) == []


def test_the_session_of_the_thread_is_restored_after_a_handler(engine, database):
    session = scoped_session(sessionmaker(engine))
    outbox = outbox_of(session, engine)
    mine = session()
    mine.add(Effect(note="mine"))
    with outbox.integration.around_handler(None):
        assert session() is not mine
    with pytest.raises(ValueError, match="of the handler"), outbox.integration.around_handler(None):
        session()
        raise ValueError("of the handler")
    assert session() is mine
    session.commit()
    with pytest.raises(ZeroDivisionError), outbox.integration.unit_of_work(outbox.store):
        session.add(Effect(note="of a task"))
        raise ZeroDivisionError
    assert session() is mine
    session.remove()
    with outbox.integration.around_handler(None):
        session()
    assert not session.registry.has()
    assert notes(database) == ["mine"]


def test_a_worker_beside_the_open_transaction_of_a_test_is_refused(engine, database):
    session = scoped_session(sessionmaker(engine))
    worker = outbox_of(session, engine).worker()
    session.execute(select(1))
    assert not worker._integration.is_in_a_test(), "the application may only have read something"
    session.remove()
    with engine.connect() as connection, connection.begin():
        session.configure(bind=connection, join_transaction_mode="create_savepoint")
        session()
        with pytest.raises(InvalidTarget, match="a worker cannot see the tasks in it; in a test, run them with"):
            worker.run(burst=True)
        session.remove()
    assert not worker._integration.is_in_a_test()


# Transactional tasks.

FACTORIES = {
    "plain": {},
    "its own class and options": {"class_": Own, "autoflush": False, "expire_on_commit": False, "info": {"kept": True}},
    "two-phase, and rolled back with the outer": {"twophase": True, "join_transaction_mode": "rollback_only"},
}


@pytest.fixture(params=FACTORIES)
def factory(request, engine):
    return sessionmaker(engine, **FACTORIES[request.param])


def test_the_session_of_a_transactional_task_has_the_factory_options_and_joins_its_transaction(
    factory, engine, database
):
    session = scoped_session(factory)
    outbox = outbox_of(session, engine)
    model = factory(twophase=False)

    @outbox.task(name="follow", queue="never worked on")
    def follow(n: int) -> None: ...

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book(ctx: TaskContext, fails: bool) -> None:
        assert ctx.session is session()
        assert isinstance(session(), type(model).__mro__[1])
        assert (session.autoflush, session.info) == (model.autoflush, model.info)
        assert session().expire_on_commit == model.expire_on_commit
        session.add(Effect(note="committed"))
        session.commit()
        session.add(Effect(note="rolled back"))
        session.flush()
        session.rollback()
        with session.begin_nested() as savepoint:
            session.add(Effect(note="taken back"))
            session.flush()
            savepoint.rollback()
        follow.enqueue(1)
        session.add(Effect(note="not flushed"))
        if fails:
            session.flush()
            raise ValueError("too late")

    failed = book.using(outbox).enqueue(True)
    work(outbox)
    assert "too late" in error_of(outbox, failed)
    assert notes(database) == []
    done = book.using(outbox).enqueue(False)
    work(outbox)
    assert error_of(outbox, done) == ""
    assert notes(database) == ["committed", "not flushed"]
    assert database.rows("SELECT count(*) FROM task_executions WHERE task_name = 'follow'") == [(1,)]
    assert engine.pool.checkedout() == 0


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_rollback_in_a_transactional_task_undoes_its_enqueued_tasks_and_events(has_begun, engine, database):
    session = scoped_session(sessionmaker(engine))
    outbox = outbox_of(session, engine)
    follow = outbox.task(name="follow", queue="never worked on")(lambda n: None)

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book(ctx: TaskContext) -> None:
        if has_begun:
            session.execute(select(1))
        follow.enqueue(1)
        outbox.emit("order.paid", using=ctx)
        session.rollback()
        follow.enqueue(2)
        session.commit()
        follow.enqueue(3)

    handle = book.using(outbox).enqueue()
    work(outbox)
    assert error_of(outbox, handle) == ""
    assert sorted(task.args for task in outbox.store.tasks(task="follow")) == ['{"n":2}', '{"n":3}']
    assert database.rows("SELECT count(*) FROM execution_events WHERE event_type = 'event_unrouted'") == [(0,)]


def test_the_transaction_uses_the_engine_of_the_session_with_its_options(engine, database):
    """The setup may be a search path, foreign keys on SQLite, or a schema map."""
    mapped = engine.execution_options(mark="theirs", schema_translate_map={"elsewhere": "mapped"})
    session = scoped_session(sessionmaker(mapped))
    outbox = outbox_of(session, database.url)
    seen = []

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book(ctx: TaskContext) -> None:
        seen.append(session.connection() is ctx.connection)
        seen.append(ctx.connection.engine is mapped)
        seen.append(ctx.connection.get_execution_options()["mark"])
        session.add(Effect(note="ours"))

    handle = book.using(outbox).enqueue()
    work(outbox)
    assert (error_of(outbox, handle), seen) == ("", [True, True, "theirs"])
    assert notes(database) == ["ours"]
    database.own(outbox.store.bound_engine)


def test_two_in_memory_databases_are_distinguished():
    """Flask-SQLAlchemy's binds may be in-memory databases in tests."""
    engines = [create_engine("sqlite:///:memory:", poolclass=StaticPool) for _ in "ab"]
    for engine, base in zip(engines, (Base, Elsewhere), strict=True):
        base.metadata.create_all(engine)
    migrations.upgrade(engines[0])
    session = scoped_session(sessionmaker(binds={Effect: engines[0], task_executions: engines[0], Page: engines[1]}))
    outbox = outbox_of(session, engines[0])

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book() -> None:
        session.add_all([Effect(note="ours"), Page(id=1)])
        session.commit()
        raise ValueError("too late")

    with Harness(outbox) as harness, pytest.raises(ValueError, match="too late"):
        harness.run(book)
    assert [session.query(kind).count() for kind in (Effect, Page)] == [0, 1]
    session.remove()
    for engine in engines:
        engine.dispose()


def test_writing_to_another_schema_is_refused(engine, database):
    class ByTenant(Session):
        def get_bind(self, mapper=None, **_):
            is_page = mapper is not None and issubclass(mapper.class_, Page)
            return engine.execution_options(schema_translate_map={None: "tenant"}) if is_page else engine

    session = scoped_session(sessionmaker(class_=ByTenant))
    outbox = outbox_of(session, engine)

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book() -> None:
        session.add(Page(id=1))

    handle = book.using(outbox).enqueue()
    work(outbox)
    assert "schema_translate_map {None: 'tenant'}" in error_of(outbox, handle)


def test_only_the_outbox_database_of_a_session_joins_the_transaction(engine, elsewhere, database):
    session = scoped_session(sessionmaker(binds={Effect: engine, task_executions: engine, Page: elsewhere}))
    outbox = outbox_of(session, engine)

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book() -> None:
        session.add_all([Effect(note="ours"), Page(id=1)])
        session.commit()
        raise ValueError

    book.using(outbox).enqueue()
    work(outbox)
    assert notes(database) == []
    with elsewhere.connect() as connection:
        assert connection.execute(select(Page.id)).all() == [(1,)], "its transaction is separate, as the docs say"


def test_two_engines_of_one_database_share_a_transaction(engine, database):
    """The session has an engine for each kind of table, but both take part in the task's transaction."""
    Elsewhere.metadata.create_all(engine)
    second = database.host_engine()
    session = scoped_session(sessionmaker(binds={Effect: engine, Page: second}))
    outbox = outbox_of(session, engine)

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book() -> None:
        session.add_all([Effect(note="ours"), Page(id=1)])
        session.commit()
        raise ValueError("too late")

    handle = book.using(outbox).enqueue()
    work(outbox)
    assert "too late" in error_of(outbox, handle)
    assert notes(database) == database.rows("SELECT id FROM pages") == []
    Elsewhere.metadata.drop_all(engine)


def test_a_session_created_within_a_transactional_task_is_refused(engine, database):
    session = scoped_session(sessionmaker(engine))
    outbox = outbox_of(session, engine)

    @outbox.task(name="careless", transactional=True, retry=ONCE)
    def careless(reads: bool) -> None:
        session.add(Effect(note="committed"))
        session.commit()
        session.remove()
        session.execute(select(1)) if reads else None

    refused, done = careless.using(outbox).enqueue(True), careless.using(outbox).enqueue(False)
    work(outbox)
    assert "created after session.remove()" in error_of(outbox, refused)
    assert error_of(outbox, done) == ""
    assert notes(database) == ["committed"]
    assert engine.pool.checkedout() == 0


def test_several_outboxes_with_the_same_session_register_one_listener():
    """In tests, for example, each application may have its own outbox."""
    engine = create_engine("sqlite://")
    session = scoped_session(sessionmaker(engine))
    for _ in range(3):
        outbox_of(session, engine)
    assert len(session().dispatch.after_transaction_create) == 1
    session.remove()


def test_a_scoped_session_without_a_sessionmaker_is_refused_immediately(engine):
    with pytest.raises(ConfigurationError, match="sessionmaker"):
        outbox_of(scoped_session(lambda: Session(engine)), engine)


def test_a_session_of_another_database_is_refused_and_named(engine, elsewhere, database):
    session = scoped_session(sessionmaker(elsewhere))
    outbox = outbox_of(session, engine)

    @outbox.task(name="book", transactional=True, retry=ONCE)
    def book() -> None: ...

    handle = book.using(outbox).enqueue()
    work(outbox)
    assert "elsewhere.db" in error_of(outbox, handle)
    with pytest.raises(InvalidTarget, match="the outbox is bound to"):
        book.enqueue()
    session.remove()


def test_a_test_can_supply_the_transaction(engine, database):
    session = scoped_session(sessionmaker(engine))
    outbox = outbox_of(session, engine)
    with engine.connect() as connection, connection.begin() as transaction:
        with outbox.integration.unit_of_work(outbox.store, within=connection) as unit:
            session.add(Effect(note="in a test"))
            session.commit()
            unit.flush()
        assert connection.scalars(select(Effect.note)).all() == ["in a test"]
        transaction.rollback()
    assert notes(database) == []
