"""A transactional handler's writes outside the task's transaction, and its attempts to end that transaction itself."""

from __future__ import annotations

import contextvars
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import scoped_session, sessionmaker

from outboxq import InvalidTarget, Outbox, RetryPolicy, TaskContext, TaskStatus, migrations
from outboxq.database.engine import make_engine
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family
from tests.contract import helpers
from tests.waiting import until

ONCE = RetryPolicy.never()
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
def outbox(database):
    return Outbox(database.engine)


@pytest.fixture
def child(outbox):
    """A plain task that handlers enqueue."""

    @outbox.task(name="child", queue="never worked on")
    def child() -> None: ...

    return child


def run(outbox, function, **options):
    """Run a task with this function. Return the task as stored afterwards."""
    task = outbox.task(name="parent", queue="parents", retry=ONCE, **{"transactional": True, **options})(function)
    handle = task.using(outbox).enqueue()
    worker = outbox.worker(notifications=False, recover_every=60, queues=["parents"])
    worker.start(burst=True)
    until(lambda: not worker._parts.claim_loop.is_alive())
    assert worker.stop()
    return outbox.store.get(handle.id)


def children(database):
    return database.rows("SELECT id FROM task_executions WHERE task_name = 'child'")


# On SQLite, a second transaction would wait for the handler's own lock.


def test_a_separate_enqueue_in_a_transactional_task_is_refused_on_sqlite(database, outbox, child):
    def parent() -> None:
        child.using(outbox).enqueue()

    task = run(outbox, parent)
    if database.name == "postgresql":
        assert (task.status, len(children(database))) == (TaskStatus.COMPLETED, 1)
        return
    assert task.status is TaskStatus.FAILED
    assert task.last_error.startswith(
        "InvalidTarget: inside the transactional task parent, nothing can be written to /"
    )
    assert "call using(ctx), or pass using=ctx to the store's method" in task.last_error
    assert children(database) == []


def writes(database, outbox):
    """Every call of the store that writes, with the rows that it needs."""
    store, worker = database.frozen, database.worker
    running = [helpers.claimed(database, queue=f"running {n}") for n in range(5)]
    letters = [helpers.claimed(database, queue="letters") for _ in range(5)]
    for claim in letters:
        database.frozen.fail(claim, "no")
    first, _, third, _, fifth = (claim.id for claim in letters)
    ready, later = database.add(queue="ready").id, database.add(queue="ready", delay=timedelta(hours=1)).id
    database.add(queue="claimed")
    event = {"topic": "order.paid"}
    subscription = Subscription(task_name="books", parameter="order", queue="never worked on", **event)
    return {
        "emit": lambda **u: store.emit(NewEvent(id=family(), **event), **u),
        "Outbox.emit": lambda using=outbox: outbox.emit("order.paid", using=using),
        "subscribe": lambda **u: store.subscriptions.replace([subscription], **u),
        "cancel": lambda **u: store.cancel(ready, **u),
        "redrive": lambda **u: store.redrive(first, **u),
        "redrive_all": lambda **u: store.dead_letters.redrive_all(limit=1, **u),
        "discard": lambda **u: store.discard(third, **u),
        "discard_all": lambda **u: store.dead_letters.discard_all(limit=1, **u),
        "schedule_retry": lambda **u: store.schedule_retry(fifth, database.clock(), 1, **u),
        "run_now": lambda **u: database.frozen.run_now(later, **u),
        "set_priority": lambda **u: store.set_priority(later, 7, **u),
        "pause": lambda **u: store.queues.pause("ready", **u, create=True),
        "limit": lambda **u: store.queues.limit("ready", concurrency=1, **u, create=True),
        "resume": lambda **u: store.queues.resume("ready", **u),
        "claim": lambda **u: database.frozen.claim_ready_task(1, worker_id=worker, queues=["claimed"], **u),
        "complete": lambda **u: database.frozen.complete(running[0], **u),
        "fail": lambda **u: database.frozen.fail(running[1], "no", **u),
        "release": lambda **u: database.frozen.release(running[2], **u),
        "heartbeat": lambda **u: database.frozen.heartbeat(running[3:], **u),
        "register": lambda **u: store.workers.register(worker, label="me", concurrency=1, task_names=[], **u),
        "seen": lambda **u: store.workers.seen(worker, **u),
        "unregister": lambda **u: store.workers.unregister(worker, **u),
        "prune": lambda **u: store.prune(timedelta(0), **u),
    }


def test_every_separate_write_in_a_transactional_task_is_refused_on_sqlite(database, outbox):
    calls, refused, failed = writes(database, outbox), set(), {}

    def parent(ctx: TaskContext) -> None:
        for name, call in calls.items():
            if database.name == "postgresql":
                call()
                continue
            try:
                call()
            except InvalidTarget:
                refused.add(name)
            else:
                failed[name] = "was not refused"
            call(using=ctx)

    task = run(outbox, parent)
    assert task.status is TaskStatus.COMPLETED, task.last_error
    assert failed == {}
    assert refused == (set(calls) if database.name == "sqlite" else set())


def test_reads_are_allowed(database, outbox, child):
    store, ready = outbox.store, database.add(queue="ready").id

    def parent() -> None:
        store.get(ready)
        store.history(ready)
        store.explain(ready)
        store.stats()
        store.dead_letters.list()
        store.tasks()
        store.workers.list()
        store.subscriptions.list()
        store.queues.settings()
        store.ensure_current()
        assert store.verify() == []
        assert store.prune(timedelta(days=1), dry_run=True) == 0
        assert store.claim_ready_task(1, worker_id=uuid4(), queues=["empty"]) == []

    assert run(outbox, parent).status is TaskStatus.COMPLETED


@on_sqlite
@pytest.mark.parametrize("way", ["its URL", "a link", "a URI", "a creator", "a host's engine", "a worker's engine"])
def test_another_outbox_on_the_same_file_is_recognized_by_every_url_and_engine(database, tmp_path, way):
    file = Path(make_url(database.url).database)
    (link := tmp_path / "link.db").symlink_to(file)
    urls = {"its URL": database.url, "a link": f"sqlite:///{link}", "a URI": f"sqlite:///file:{file}?uri=true"}
    if way == "a creator":
        other = Outbox(create_engine("sqlite://", creator=lambda: sqlite3.connect(file, check_same_thread=False)))
    elif way == "a host's engine":
        other = Outbox(database.host_engine())
    elif way == "a worker's engine":
        other = Outbox(database.own_store().bound_engine)
    else:
        other = Outbox(urls[way])
    child = other.task(name="child", queue="never worked on")(lambda: None)
    database.own(other.store.bound_engine)
    task = run(Outbox(database.engine), lambda: child.using(other).enqueue())
    assert "call using(ctx)" in task.last_error


@on_sqlite
def test_another_file_can_be_written_to(database, tmp_path):
    migrations.upgrade(url := f"sqlite:///{tmp_path / 'other.db'}")
    other = Outbox(database.own(make_engine(url)))
    child = other.task(name="child", queue="never worked on")(lambda: None)
    assert run(Outbox(database.engine), lambda: child.using(other).enqueue()).status is TaskStatus.COMPLETED
    assert [task.task_name for task in other.store.tasks()] == ["child"]


def test_a_non_transactional_task_can_write_separately(database, outbox, child):
    task = run(outbox, lambda: child.using(outbox).enqueue(), transactional=False)
    assert (task.status, len(children(database))) == (TaskStatus.COMPLETED, 1)


@on_sqlite
def test_a_thread_with_a_copied_context_counts_as_inside_until_the_handler_has_ended(database, outbox, child):
    copies, refused = [], []

    def parent() -> None:
        copies.append(contextvars.copy_context())
        with ThreadPoolExecutor(1) as pool, pytest.raises(InvalidTarget) as error:
            pool.submit(copies[0].run, child.using(outbox).enqueue).result()
        refused.append(str(error.value))

    assert run(outbox, parent).status is TaskStatus.COMPLETED
    assert len(refused) == 1
    copies[0].run(child.using(outbox).enqueue)
    assert len(children(database)) == 1


@on_sqlite
def test_a_session_of_the_application_is_refused_too(database):
    sessions = scoped_session(sessionmaker(database.host_engine()))
    outbox = Outbox(database.engine, session=sessions)
    child = outbox.task(name="child", queue="never worked on")(lambda: None)
    assert "call using(ctx)" in run(outbox, lambda: child.using(outbox).enqueue()).last_error
    assert children(database) == []


# Only the worker ends the transaction.


ORIGINS = ["ours", "a host's", "nobody's", "a session's"]


@pytest.fixture(params=ORIGINS)
def application(request, database):
    """An outbox for each origin of the engine on which the task's transaction runs, with a table of the application."""
    database.run("CREATE TABLE effects (note TEXT UNIQUE)")
    engines = {"ours": lambda: database.engine, "nobody's": lambda: database.own(create_engine(database.url))}
    engine = engines.get(request.param, database.host_engine)()
    session = scoped_session(sessionmaker(engine)) if request.param == "a session's" else None
    yield Outbox(engine, session=session)
    database.run("DROP TABLE effects")


def raw(ctx, *statements):
    cursor = ctx.connection.connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()


def write(ctx, note):
    ctx.connection.execute(text("INSERT INTO effects VALUES (:note)"), {"note": note})


ENDINGS = {
    "COMMIT": ["COMMIT"],
    "COMMIT and another": ["COMMIT", "BEGIN", "INSERT INTO effects VALUES ('b')"],
    "COMMIT and another write": ["COMMIT", "INSERT INTO effects VALUES ('b')"],
    "ROLLBACK": ["ROLLBACK"],
    "ROLLBACK and another": ["ROLLBACK", "BEGIN", "INSERT INTO effects VALUES ('b')"],
}


def endings():
    """Yield every ending on every engine. In CI, only our engine has the endings after which the handler writes again."""
    for origin in ORIGINS:
        for ending, with_session in [
            *((one, False) for one in ENDINGS),
            ("COMMIT", True),
            ("COMMIT and another", True),
        ]:
            is_full = origin != "ours" and "and another" in ending
            yield pytest.param(origin, ending, with_session, marks=[pytest.mark.full] if is_full else [])


@pytest.mark.in_turn
@pytest.mark.parametrize(("application", "ending", "with_session"), [*endings()], indirect=["application"])
def test_a_handler_that_ends_its_transaction_fails(database, application, ending, with_session):
    def parent(ctx: TaskContext) -> None:
        write(ctx, "a")
        if with_session:
            ctx.session.execute(text("INSERT INTO effects VALUES ('s')"))
        raw(ctx, *ENDINGS[ending])

    task = run(application, parent)
    assert task.status is TaskStatus.FAILED
    assert "the handler of this task ended the transaction" in task.last_error
    assert ("a",) in database.rows("SELECT note FROM effects") or ending.startswith("ROLLBACK")


def test_a_handler_may_roll_back_savepoints_and_its_session(database, application):
    def parent(ctx: TaskContext) -> None:
        write(ctx, "a")
        nested = ctx.connection.begin_nested()
        write(ctx, "b")
        nested.rollback()
        raw(ctx, "SAVEPOINT mine", "INSERT INTO effects VALUES ('c')", "RELEASE SAVEPOINT mine")
        ctx.session.execute(text("INSERT INTO effects VALUES ('d')"))
        ctx.session.rollback()
        ctx.session.execute(text("INSERT INTO effects VALUES ('e')"))

    task = run(application, parent)
    assert (task.status, task.last_error) == (TaskStatus.COMPLETED, None)
    assert database.rows("SELECT note FROM effects ORDER BY note") == [("a",), ("c",), ("e",)]


@on_sqlite
def test_a_swallowed_conflict_that_rolled_back_the_transaction_is_detected(database, application):
    def parent(ctx: TaskContext) -> None:
        write(ctx, "a")
        with pytest.raises(Exception, match="UNIQUE"):
            raw(ctx, "INSERT OR ROLLBACK INTO effects VALUES ('a')")
        raw(ctx, "INSERT INTO effects VALUES ('b')")

    task = run(application, parent)
    assert "OR ROLLBACK" in task.last_error


def test_a_commit_that_chains_a_new_transaction_is_detected(database):
    ending = "END" if database.name == "sqlite" else "COMMIT AND CHAIN"
    database.run("CREATE TABLE effects (note TEXT UNIQUE)")

    def parent(ctx: TaskContext) -> None:
        write(ctx, "a")
        raw(ctx, ending)

    task = run(Outbox(database.engine), parent)
    database.run("DROP TABLE effects")
    assert "the handler of this task ended the transaction" in task.last_error


def test_transactions_after_a_transactional_task_can_write(database, application):
    """The marker that identifies the task's transaction on PostgreSQL ends with that transaction."""

    def parent(ctx: TaskContext) -> None:
        write(ctx, "a")

    assert run(application, parent).status is TaskStatus.COMPLETED
    with application.store.bound_engine.connect() as connection:
        for _ in range(2):
            with connection.begin():
                connection.execute(text("UPDATE effects SET note = note"))
