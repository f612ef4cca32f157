"""Settings of a role or a database that could break outboxq: they do not affect its own connections."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError

from outboxq import OnConflict, Outbox, RetryPolicy, TaskContext
from outboxq.cli import main
from outboxq.model import NewTask, TaskStatus
from outboxq.model.subscriptions import Subscription
from outboxq.model.uuid7 import uuid7
from tests.conftest import Database, Server
from tests.contract import helpers
from tests.faults.helpers import left
from tests.reuse import Reused
from tests.waiting import until


@dataclass(frozen=True)
class Setting:
    text: str
    callers: bool = True
    """True if a caller's own statements work with this setting, so an enqueue between them must work too."""
    since: int = 15
    """The major version of PostgreSQL that introduced the setting."""

    @property
    def name(self) -> str:
        return self.text.partition(" ")[0]


SETTINGS = [
    Setting("datestyle = 'German'"),
    Setting("datestyle = 'SQL, DMY'"),
    Setting("datestyle = 'Postgres, MDY'"),
    Setting("intervalstyle = 'iso_8601'"),
    Setting("bytea_output = 'escape'"),
    Setting("standard_conforming_strings = off"),
    Setting("timezone = 'Asia/Kathmandu'"),
    Setting("client_encoding = 'LATIN1'"),
    Setting("default_transaction_isolation = 'serializable'"),
    Setting("default_transaction_isolation = 'repeatable read'"),
    Setting("default_transaction_read_only = on", callers=False),
    Setting("statement_timeout = '20ms'", callers=False),
    Setting("lock_timeout = '1ms'", callers=False),
    Setting("idle_in_transaction_session_timeout = '150ms'", callers=False),
    Setting("transaction_timeout = '150ms'", callers=False, since=17),
]
ENDING = ("idle_in_transaction_session_timeout", "transaction_timeout")
"""Settings that end the connection of a handler's transaction."""


def named(setting: Setting) -> str:
    return setting.text.replace(" ", "")


def shared(number: int, *, callers: bool = False) -> Any:
    """Give a test every third setting, beginning with this one, and all settings in a full run. Together, the tests cover all settings."""
    return pytest.mark.parametrize(
        "setting",
        [
            pytest.param(one, id=named(one), marks=() if at % 3 == number % 3 else pytest.mark.full)
            for at, one in enumerate(SETTINGS)
            if one.callers or not callers
        ],
        indirect=True,
    )


@pytest.fixture
def reused_postgresql(request: pytest.FixtureRequest) -> Reused:
    """Return the newest server for a setting that the oldest server does not know."""
    given = getattr(request.node, "callspec", None)
    setting = given.params.get("setting") if given else None
    name = "newest_server" if setting is not None and setting.since > 15 else "first_server"
    server: Server = request.getfixturevalue(name)
    return server.reused


@pytest.fixture
def setting(request: pytest.FixtureRequest, postgresql: Database, monkeypatch: pytest.MonkeyPatch) -> Setting:
    found: Setting = request.param
    change = f"ALTER DATABASE {postgresql.engine.url.database} SET {found.text}"
    with postgresql.engine.connect() as connection:
        if (connection.dialect.server_version_info or (0,))[0] < found.since:
            with pytest.raises(ProgrammingError, match="unrecognized configuration parameter"):
                connection.exec_driver_sql(change)
            return found
    postgresql.run(change)
    postgresql.engine.dispose()  # open connections would not notice the change
    if found.name.endswith("_timeout"):  # on a busy machine, the test's own queries may take longer
        url = postgresql.engine.url.update_query_dict({"options": f"-c {found.name}=0"})
        unhindered = Database("postgresql", url.render_as_string(hide_password=False))
        postgresql.own(unhindered.engine)
        monkeypatch.setattr(postgresql, "rows", unhindered.rows)
    return found


def outbox_of(database: Database) -> Outbox:
    outbox = Outbox(database.url)
    database.own(outbox.store.bound_engine)
    return outbox


def work(text: str = "", number: int = 0) -> None: ...


TEXT = "naïve – 日本 🐘 \\ '"


def enqueue(task: Any, target: object, text: str = TEXT) -> None:
    """Enqueue tasks without a key, and with keys that are new, taken, or taken by a task that is to be replaced."""
    assert task.using(target).enqueue(text).created
    assert [one.created for one in task.using(target).enqueue_many([(text,), (text,)])] == [True, True]
    first = task.using(target, idempotency_key="k", delay=3600).enqueue(text)
    again = task.using(target, idempotency_key="k").enqueue(text)
    assert (again.id, again.created) == (first.id, False)
    replaced = task.using(target, idempotency_key="k", delay=7200, on_conflict=OnConflict.REPLACE).enqueue(text)
    assert (replaced.id, replaced.replaced) == (first.id, True)


@shared(0)
def test_an_enqueue_in_a_separate_transaction_is_unaffected(postgresql, setting):
    outbox = outbox_of(postgresql)
    enqueue(outbox.task(work, name="tests.work"), outbox)
    assert postgresql.counts()[0] == 4


@shared(2)
def test_an_enqueue_whose_commit_response_was_lost_does_not_raise(postgresql, setting, monkeypatch):
    store = helpers.lossy(postgresql, monkeypatch)
    delayed = NewTask(id=uuid7(), task_name="tests.work", args="{}", idempotency_key="k")
    assert store.enqueue(delayed).created
    replacing = NewTask(
        id=uuid7(), task_name="tests.work", args="{}", idempotency_key="k", on_conflict=OnConflict.REPLACE
    )
    assert helpers.lossy(postgresql, monkeypatch).enqueue(replacing).id == delayed.id
    assert postgresql.counts()[0] == 1


@shared(1, callers=True)
@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_an_enqueue_in_a_transaction_of_the_caller_is_unaffected(postgresql, setting, kind):
    outbox = outbox_of(postgresql)
    task = outbox.task(work, name="tests.work")
    outbox.store.subscriptions.replace(
        [Subscription(task_name="tests.work", topic="known", parameter="text")], tasks=["tests.work"]
    )
    text = "naïve \\ '" if setting.name == "client_encoding" else TEXT  # the caller's connection can encode it
    if kind == "sqlalchemy":
        caller: Any = postgresql.own(create_engine(postgresql.url)).begin()
    else:
        caller = psycopg.connect(plain(postgresql.url))
    with caller as connection:
        enqueue(task, connection, text)
        for key in (None, "e", "e"):
            outbox.emit("known", {"text": text}, using=connection, idempotency_key=key)
    assert postgresql.counts()[0] == 6


def plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


OF_WORKERS = ("datestyle = 'German'", "client_encoding = 'LATIN1'", "default_transaction_isolation = 'serializable'")
"""Settings for a worker in each run, besides those with which a caller's own statements would not work."""


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(one, marks=[] if one.text in OF_WORKERS or not one.callers else [pytest.mark.full])
        for one in SETTINGS
    ],
    ids=named,
    indirect=True,
)
@pytest.mark.parametrize("made_by", ["us", pytest.param("host", marks=pytest.mark.full)])
def test_a_worker_runs_and_retries_tasks_under_every_setting(postgresql, setting, made_by):
    outbox = Outbox(postgresql.url if made_by == "us" else create_engine(postgresql.url))
    postgresql.own(outbox.store.bound_engine)

    def long_enough(ctx: TaskContext) -> None:
        """Wait in an idle transaction for longer than the shortest of the timeouts above."""
        pid = ctx.connection.connection.dbapi_connection.info.backend_pid
        idle = (
            f"SELECT state <> 'idle in transaction' OR clock_timestamp() - state_change > interval '300ms' FROM "
            f"pg_stat_activity WHERE pid = {pid}"
        )
        until(lambda: watching.execute(idle).fetchone() in [(True,), None])

    def effect(ctx: TaskContext, text: str) -> str:
        if setting.name in ENDING:
            long_enough(ctx)
        if ctx.attempt == 1:
            raise ValueError(text * 1000)
        return text

    def plain_effect(ctx: TaskContext, text: str) -> str:
        if ctx.attempt == 1:
            raise ValueError(text * 1000)
        return text

    soon = RetryPolicy(max_attempts=2, wait=0)
    text = "naïve" if made_by == "host" and setting.name == "client_encoding" else TEXT
    tasks = [
        outbox.task(plain_effect, name="tests.plain", retry=soon),
        outbox.task(effect, name="tests.effect", retry=soon, transactional=True),
    ]
    watching = psycopg.connect(plain(postgresql.url), autocommit=True, options="-c statement_timeout=0")
    for task in tasks:
        for key in (None, "k"):
            postgresql.store.enqueue(
                NewTask(id=uuid7(), task_name=task.name, args=json.dumps({"text": text}), partition_key=key)
            )
    worker = outbox.worker(concurrency=2, poll=0.05)
    worker.start()
    try:
        until(lambda: left(postgresql) == 0)
    finally:
        assert worker.stop()
        watching.close()
    ended = postgresql.rows("SELECT status, attempt, recovery_attempts, result FROM task_executions")
    assert ended == [(TaskStatus.COMPLETED.value, 2, 0, json.dumps(text, ensure_ascii=False))] * 4
    assert worker.is_healthy


@shared(1)
def test_the_commands_are_unaffected(postgresql, setting):
    postgresql.add(postgresql.store)
    dead = postgresql.add(postgresql.store, queue="dead", args=json.dumps({"text": TEXT}))
    [claim] = postgresql.claim(1, postgresql.store, queues=["dead"])
    postgresql.store.fail(claim, TEXT)
    commands: list[list[str]] = [
        ["status"],
        ["task", "list"],
        ["task", "show", str(dead.id)],
        ["task", "explain", str(dead.id)],
        ["failed", "list"],
        ["queue", "list"],
        ["verify"],
        ["upgrade", postgresql.url],
    ]
    for command in commands:
        environment = {"OUTBOXQ_DATABASE_URL": postgresql.url}
        result = CliRunner().invoke(main, command, env=environment, catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)
