"""Settings that a worker sets once on its own connections to PostgreSQL, and never on an application's connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from outboxq.database.dialects import Begin, postgresql_session
from outboxq.database.engine import make_engine
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from tests.conftest import Database
from tests.poolers import KINDS, AnyPooler, pooling

SHOWN = (
    "enable_seqscan",
    "enable_nestloop",
    "enable_bitmapscan",
    "jit",
    "plan_cache_mode",
    "lock_timeout",
    "statement_timeout",
    "synchronous_commit",
    "timezone",
    "default_transaction_isolation",
    "default_transaction_read_only",
)
OURS = ("off", "off", "off", "off", "force_generic_plan", "2s", "1min", "on", "UTC", "read committed", "off")


def shown(engine: Engine) -> tuple[str, ...]:
    with engine.connect() as connection:
        return tuple(str(connection.exec_driver_sql(f"SHOW {name}").scalar()) for name in SHOWN)


def commits(engine: Engine) -> str:
    return shown(engine)[SHOWN.index("synchronous_commit")]


def new(**fields: Any) -> NewTask:
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


@pytest.fixture
def defaults(postgresql: Database) -> tuple[str, ...]:
    """Return this server's defaults."""
    return shown(create_engine_of(postgresql, postgresql.url))


def create_engine_of(database: Database, url: str, **options: Any) -> Engine:
    """Return an engine like an application's, on a server that flushes its commits. The tests' server does not."""
    return database.own(create_engine(url, connect_args={"options": "-c synchronous_commit=on"}, **options))


def own_store(database: Database, engine: Engine | None = None) -> Store:
    """Return a store with its own connections, like a worker's."""
    store = Store(engine or create_engine_of(database, database.url)).reserved(threading.Event())
    database.own(store.bound_engine)
    return store


def test_only_an_engine_made_by_outboxq_has_the_settings_of_outboxq(postgresql, defaults):
    store = own_store(postgresql)
    assert shown(store.bound_engine) == OURS
    assert shown(create_engine_of(postgresql, postgresql.url)) == defaults != OURS


def test_the_settings_of_outboxq_override_those_of_the_database(postgresql):
    role = "ALTER DATABASE {} SET {}"
    name = postgresql.engine.url.database
    for setting in (
        "timezone = 'Asia/Kathmandu'",
        "default_transaction_isolation = serializable",
        "default_transaction_read_only = on",
    ):
        postgresql.run(role.format(name, setting))
    engine = create_engine_of(postgresql, postgresql.url)
    assert shown(engine)[-3:] == ("Asia/Kathmandu", "serializable", "on")
    store = own_store(postgresql, engine)
    assert shown(store.bound_engine) == OURS
    Store(engine).enqueue(new())  # fails as a single statement, and is then run in a transaction with explicit settings
    [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
    assert {claim.created_at.tzinfo, claim.started_at.tzinfo, claim.lease_expires_at.tzinfo} == {UTC}
    assert abs(claim.started_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED)]) == frozenset()


def test_a_claim_commits_asynchronously_and_an_end_does_not(postgresql):
    store = own_store(postgresql)
    store.enqueue(new())
    [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
    assert commits(store.bound_engine) == "off"
    store.heartbeat([claim])
    assert commits(store.bound_engine) == "off"
    store.complete(claim)
    assert commits(store.bound_engine) == "on"


def test_claims_of_keyed_tasks_commit_asynchronously_but_ends_and_recoveries_do_not(postgresql):
    store = own_store(postgresql)
    store.enqueue(new(partition_key="k"))
    seen = []
    real = type(store).transaction

    def noted(self, begin):
        context = real(self, begin)
        target = context.__enter__()
        seen.append((begin, target.execute("SHOW synchronous_commit", {})[0][0]))

        class Same:
            def __enter__(self):
                return target

            def __exit__(self, *error):
                return context.__exit__(*error)

        return Same()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "transaction", noted)
        [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
        store.complete(claim)
        store.recover()
    assert seen == [
        (Begin.SINGLE_ASYNCHRONOUS, "off"),
        (Begin.ASYNCHRONOUS, "off"),
        (Begin.WRITE, "on"),
        (Begin.WRITE, "on"),
    ]


@pytest.fixture
def begun(postgresql: Database, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that began transactions."""
    sent: list[str] = []
    real = postgresql_session.PostgresSession.execute_begin

    def noted(self: Any, raw: Any, text: str, execute: Any) -> None:
        sent.append(text)
        real(self, raw, text, execute)

    monkeypatch.setattr(type(postgresql.store.dialect), "execute_begin", noted)
    return sent


def test_a_read_sets_only_what_differs_from_its_connection(postgresql, begun):
    store = own_store(postgresql)
    with store.transaction(Begin.READ):
        pass
    begun.clear()
    with store.transaction(Begin.READ) as target:
        values = [target.execute(f"SHOW {name}", {})[0][0] for name in (*SHOWN[:-1], "transaction_read_only")]
    assert values == [OURS[0], "on", *OURS[2:-1], "on"]
    assert [text.count(";") for text in begun] == [1]
    assert shown(store.bound_engine) == OURS, "the settings end with the transaction"


def test_a_check_before_sleeping_begins_no_transaction(postgresql, begun):
    sleeping = own_store(postgresql).sleeping_workers
    horizon = sleeping.horizon()
    begun.clear()
    assert not sleeping.look(horizon, None).due
    assert begun == []


def test_on_a_server_with_asynchronous_commits_ends_are_also_asynchronous(postgresql):
    store = own_store(postgresql, postgresql.engine)  # like the server of the tests
    store.enqueue(new())
    [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
    store.complete(claim)
    assert commits(store.bound_engine) == "off"


def test_a_failure_in_the_second_part_of_a_claim_keeps_the_first_part(postgresql, caplog):
    """The parts are two transactions. The tasks that the first part has claimed must be run."""
    store = own_store(postgresql)
    plain, keyed = store.enqueue(new()), store.enqueue(new(partition_key="k"))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outboxq.store.claims.claim._Call._others", broken)
        claims = store.claim_ready_task(5, worker_id=postgresql.worker)
        assert [claim.id for claim in claims] == [plain.id]
        assert "the second part of a claim failed" in caplog.text
        with pytest.raises(RuntimeError):
            store.claim_ready_task(5, worker_id=postgresql.worker)  # no task is claimed, so the error is raised
    assert [claim.id for claim in store.claim_ready_task(5, worker_id=postgresql.worker)] == [keyed.id]


def test_an_end_wakes_workers_of_a_queue_that_was_limited_after_the_claim(postgresql):
    store = own_store(postgresql)
    store.enqueue(new(queue="slow"))
    [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
    store.queues.limit("slow", concurrency=1, create=True)
    woken = []
    real = type(store).wake
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(store),
            "wake",
            lambda self, target, queues: (woken.extend(found := list(queues)), real(self, target, found))[1],
        )
        store.complete(claim)
    assert woken == ["slow"]


def test_an_engine_that_resets_its_connections_keeps_its_defaults_and_works(postgresql, defaults):
    engine = create_engine_of(postgresql, postgresql.url)

    @event.listens_for(engine, "reset")
    def clean(connection: Any, _record: Any, _state: Any) -> None:
        connection.rollback()
        connection.autocommit = True
        connection.execute("DISCARD ALL")

    store = own_store(postgresql, engine)
    assert shown(store.bound_engine) == defaults
    store.enqueue(new())
    [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
    store.complete(claim)


def test_no_statement_is_prepared_if_the_application_disabled_it(postgresql):
    engine = postgresql.own(create_engine(postgresql.url, connect_args={"prepare_threshold": None}))
    store = own_store(postgresql, engine)
    for _ in range(3):
        store.claim_ready_task(1, worker_id=postgresql.worker)
    with store.bound_engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar() == 0


@pytest.fixture(params=KINDS)
def pooler(request: pytest.FixtureRequest, postgresql: Database) -> Iterator[AnyPooler]:
    with pooling(request.param, postgresql.url, pool_size=1) as pooler:
        yield pooler


def test_behind_a_pooler_no_setting_is_left_in_a_shared_session(postgresql, pooler):
    defaults = shown(postgresql.own(create_engine(pooler.url)))
    store = own_store(postgresql, postgresql.own(create_engine(pooler.url)))
    store.enqueue(new())
    [claim] = store.claim_ready_task(1, worker_id=postgresql.worker)
    store.heartbeat([claim])
    store.complete(claim)
    assert shown(postgresql.own(create_engine(pooler.url))) == defaults


@pytest.mark.parametrize("reserved", [False, True], ids=["application", "worker"])
def test_behind_a_pooler_an_engine_made_by_outboxq_prepares_no_statement(postgresql, pooler, reserved):
    engine = postgresql.own(make_engine(pooler.url))
    store = own_store(postgresql, engine) if reserved else Store(engine)
    for _ in range(8):
        store.enqueue(new())
    with store.bound_engine.connect() as connection:
        assert connection.connection.dbapi_connection.prepare_threshold is None
    assert postgresql.rows("SELECT count(*) FROM task_executions") == [(8,)]


def test_without_a_pooler_an_engine_made_by_outboxq_prepares_repeated_statements(postgresql):
    engine = postgresql.own(make_engine(postgresql.url))  # with no statements prepared by earlier tests
    store = Store(engine)
    for _ in range(8):
        store.enqueue(new())
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar() == 1


@pytest.mark.parametrize("reserved", [False, True], ids=["application", "worker"])
def test_a_new_connection_checks_only_once_whether_it_uses_a_pooler(postgresql, reserved):
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        real = postgresql_session._asked
        patch.setattr(postgresql_session, "_asked", lambda raw, text: (asked.append(text), real(raw, text))[1])
        store = own_store(postgresql) if reserved else Store(postgresql.own(make_engine(postgresql.url)))
        for _ in range(3):
            store.now()
    assert asked == ["SELECT pg_backend_pid()", *([postgresql_session._OWN] if reserved else [])]
