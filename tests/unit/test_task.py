"""Tasks, their names, and what is refused where it is written."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import datetime, timedelta

import pytest

from outboxq import ConfigurationError, InvalidArgument, InvalidCall, InvalidTarget, Outbox, TaskContext, UnknownTask
from outboxq.uuid7 import uuid7


def module_level(order_id: int, *, note: str = "") -> str:
    return f"{order_id}{note}"


@pytest.fixture
def memory():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        yield connection


def test_a_task_is_still_a_plain_function():
    task = Outbox().task(module_level)
    assert task(3, note="!") == "3!"


def test_its_name_is_where_it_lives():
    assert Outbox().task(module_level).name == f"{__name__}.module_level"


def test_what_a_worker_could_not_find_again_needs_a_name():
    def local() -> None: ...

    for function in (local, lambda: None):
        with pytest.raises(ConfigurationError, match="name="):
            Outbox().task(function)


def test_a_name_means_one_task_within_one_outbox():
    outbox = Outbox()
    outbox.task(module_level)
    with pytest.raises(ConfigurationError, match="two tasks"):
        outbox.task(name=f"{__name__}.module_level")(lambda: None)
    Outbox().task(module_level)  # another outbox is another world


def test_no_target_is_not_a_transaction_of_its_own():
    with pytest.raises(InvalidTarget, match="the outbox"):
        Outbox().task(module_level).using(None)


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 0},
        {"priority": 101},
        {"queue": ""},
        {"lease": timedelta.max},
        {"name": "x" * 201},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": timedelta(0)},
        {"timeout": timedelta.max},
        {"timeout": "60"},
        {"timeout": True},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
    ],
)
def test_what_could_never_be_enqueued_is_refused_where_it_is_declared(options):
    with pytest.raises(InvalidArgument):
        Outbox().task(**options)(module_level)


@pytest.mark.parametrize("url", ["mysql://x/y", "garbage", "postgresql://u:p@a@host/x", "sqlite://"])
def test_a_url_that_cannot_be_ours_is_refused_where_it_is_given(url):
    with pytest.raises(ConfigurationError):
        Outbox(url)


def test_an_sqlite_outbox_has_no_schema():
    with pytest.raises(ConfigurationError, match="schemas"):
        Outbox("sqlite:///x.db", schema="a")


@pytest.mark.parametrize("bad", [lambda *args: None, lambda a, /: None, lambda **rest: None])
def test_parameters_that_cannot_be_stored_by_name_are_refused(bad):
    with pytest.raises(ConfigurationError):
        Outbox().task(name="t")(bad)


def test_an_async_function_is_refused():
    async def handler() -> None: ...

    with pytest.raises(ConfigurationError, match="write a plain one"):
        Outbox().task(name="t")(handler)


def test_an_option_in_the_functions_place_is_refused():
    with pytest.raises(ConfigurationError, match="queue='mail'"):
        Outbox().task("mail")


def test_bare_enqueue_names_using():
    with pytest.raises(InvalidTarget, match=r"using\(session\)"):
        Outbox().task(module_level).enqueue(1)


def test_delay_and_run_after_exclude_each_other(memory):
    task = Outbox().task(module_level)
    with pytest.raises(InvalidArgument, match="not both"):
        task.using(memory, delay=1, run_after=datetime.now().astimezone())


@pytest.mark.parametrize("delay", ["5", None.__class__, True, float("nan"), float("inf"), 1e30])
def test_a_delay_is_a_span_of_time(delay):
    with pytest.raises(InvalidArgument, match="delay"):
        Outbox().task(module_level).using(Outbox(), delay=delay)


def test_arguments_that_do_not_fit_are_a_type_error_in_the_caller(memory):
    task = Outbox().task(module_level)
    with pytest.raises(TypeError, match="missing a required argument: 'order_id'"):
        task.using(memory).enqueue()
    with pytest.raises(InvalidCall, match="its parameters are: order_id, note"):
        task.using(memory).enqueue(1, colour="red")


def test_a_call_in_a_batch_is_a_sequence_or_a_mapping(memory):
    task = Outbox().task(module_level)
    for bad in (["1"], ["ab"], [7]):
        with pytest.raises(InvalidCall, match="tuple"):
            task.using(memory).enqueue_many(bad)


def test_an_unbound_outbox_says_how_to_bind_it(monkeypatch):
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    outbox = Outbox()
    assert not outbox.is_bound
    for use in (outbox.upgrade, outbox.store.stats, lambda: outbox.worker().start()):
        with pytest.raises(ConfigurationError, match="bind"):
            use()


def test_the_environment_binds_an_outbox(monkeypatch):
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", "sqlite:///elsewhere.db")
    assert Outbox().is_bound


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://root@localhost/x", "PostgreSQL and SQLite"),
        ("postgresql+psycopg2://localhost/x", "psycopg 3"),
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
    ],
)
def test_a_database_that_cannot_be_ours_is_refused(url, words):
    with pytest.raises(ConfigurationError, match=words):
        Outbox(url).store.stats()


def test_an_sqlite_too_old_is_refused(monkeypatch):
    from outboxq.dialects import dialect_for

    dialect_for.cache_clear()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(ConfigurationError, match="SQLite 3.35"):
        dialect_for("sqlite")
    dialect_for.cache_clear()


@pytest.mark.parametrize("schema", ["Upper", "with space", 'quo"te', "x" * 49, "1st", ""])
def test_a_schema_that_needs_quoting_is_refused(schema):
    with pytest.raises(ConfigurationError):
        Outbox(schema=schema)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"queues": "mail"},
        {"queues": []},
        {"queues": [1]},
        {"poll": 0},
        {"heartbeat": -1},
        {"recover_every": timedelta(0)},
        {"prefetch": -1},
        {"prefetch": 1.5},
        {"prefetch": True},
        {"max_tasks": 0},
        {"max_tasks": True},
        {"drain_timeout": "25"},
        {"unknown_task_delay": None},
    ],
)
def test_a_worker_that_cannot_work_is_refused(options):
    with pytest.raises(InvalidArgument):
        Outbox().worker(**options)


def test_a_lease_must_be_longer_than_two_heartbeats():
    outbox = Outbox("sqlite:///unused.db")
    outbox.task(name="short", lease=20)(lambda: None)
    with pytest.raises(ConfigurationError, match="two heartbeats"):
        outbox.worker(heartbeat=10)
    outbox.worker(heartbeat=9.9)


def test_the_lease_of_a_task_must_hold_whichever_it_is(tmp_path):
    outbox = Outbox(f"sqlite:///{tmp_path / 'never.db'}")
    outbox.task(name="long", lease=3600)(lambda: None)
    outbox.task(name="short", lease=10)(lambda: None)
    with pytest.raises(ConfigurationError, match="task short"):
        outbox.worker(heartbeat=timedelta(seconds=5))
    outbox.worker()  # a third of each lease suits every lease


def test_a_timeout_is_a_timedelta_or_seconds():
    outbox = Outbox()
    given = [timedelta(minutes=1), 60, 0.5, None]
    tasks = [outbox.task(name=str(n), timeout=timeout)(lambda: None) for n, timeout in enumerate(given)]
    minute, half = timedelta(minutes=1), timedelta(seconds=0.5)
    assert [task.settings.timeout for task in tasks] == [minute, minute, half, None]


def test_a_task_is_transactional_only_where_it_says_so():
    outbox = Outbox()
    plain, transactional = outbox.task(name="a")(lambda: 1), outbox.task(name="b", transactional=True)(lambda: 2)
    assert (plain.transactional, transactional.transactional) == (False, True)
    assert transactional() == 2  # here and now, in nobody's transaction


def test_a_bare_enqueue_of_a_transactional_task_outside_is_refused_too():
    task = Outbox().task(name="t", transactional=True)(lambda: None)
    with pytest.raises(InvalidTarget, match=r"using\(session\)"):
        task.enqueue()


def test_the_registry_says_what_is_missing():
    with pytest.raises(UnknownTask, match="import the module"):
        Outbox().tasks.get("mail.send")


def test_a_context_parameter_is_known_by_its_annotation():
    def with_context(ctx: TaskContext, a: int) -> None: ...
    def with_text(ctx: TaskContext, a: int) -> None: ...
    def without(ctx: int) -> None: ...

    outbox = Outbox()
    asked = [outbox.task(name=str(n))(f).takes_context for n, f in enumerate((with_context, with_text, without))]
    assert asked == [True, True, False]


def test_ids_grow_within_a_process_and_are_version_7():
    ids = [uuid7() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 10_000
    assert {one.version for one in ids} == {7}
    assert {one.variant for one in ids} == {"specified in RFC 4122"}
