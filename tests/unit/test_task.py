"""Tasks and their names. Mistakes are refused where they are made."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import datetime, timedelta

import pytest

from outboxq import ConfigurationError, InvalidArgument, InvalidCall, InvalidTarget, Outbox, TaskContext, UnknownTask
from outboxq.model import Handle, OnConflict, OnDeadLetter
from outboxq.model.uuid7 import FAMILY, family, uuid7


def module_level(order_id: int, *, note: str = "") -> str:
    return f"{order_id}{note}"


@pytest.fixture
def memory():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        yield connection


def test_a_task_is_still_a_plain_function():
    task = Outbox().task(module_level)
    assert task(3, note="!") == "3!"


def test_the_default_name_is_the_import_path():
    assert Outbox().task(module_level).name == f"{__name__}.module_level"


def test_a_function_that_cannot_be_imported_needs_a_name():
    def local() -> None: ...

    for function in (local, lambda: None):
        with pytest.raises(ConfigurationError, match="name="):
            Outbox().task(function)


def test_a_name_is_unique_within_an_outbox():
    outbox = Outbox()
    outbox.task(module_level)
    with pytest.raises(ConfigurationError, match="two tasks"):
        outbox.task(name=f"{__name__}.module_level")(lambda: None)
    Outbox().task(module_level)  # another outbox may use the same name


def test_none_as_a_target_does_not_mean_a_new_transaction():
    with pytest.raises(InvalidTarget, match="for a separate transaction"):
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
def test_invalid_task_options_are_refused_on_declaration(options):
    with pytest.raises(InvalidArgument):
        Outbox().task(**options)(module_level)


@pytest.mark.parametrize("url", ["mysql://x/y", "garbage", "postgresql://u:p@a@host/x", "sqlite://"])
def test_an_unusable_url_is_refused_by_the_constructor(url):
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

    with pytest.raises(ConfigurationError, match="write a plain function"):
        Outbox().task(name="t")(handler)


def test_an_option_in_place_of_the_function_is_refused():
    with pytest.raises(ConfigurationError, match="queue='mail'"):
        Outbox().task("mail")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("countdown", "write delay=; "),
        ("eta", "write run_after=; "),
        ("max_retries", "write max_attempts=; "),
        ("colour", "its options are delay, run_after, queue, "),
    ],
)
def test_the_error_for_an_unknown_option_of_a_call_names_the_right_one(memory, option, instead):
    with pytest.raises(InvalidCall, match=rf"^using\(\) has no option '{option}'; .*{instead}") as raised:
        Outbox().task(module_level).using(memory, **{option: 1})
    assert raised.value.__cause__ is None
    with pytest.raises(InvalidCall, match=rf"^emit\(\) has no option '{option}'"):
        Outbox().emit("order.placed", using=memory, **{option: 1})


@pytest.mark.parametrize(
    ("option", "instead"),
    [("max_retries", r"write retry=RetryPolicy\(max_attempts=…"), ("bind", "TaskContext"), ("colour", "name, queue, ")],
)
def test_the_error_for_an_unknown_option_of_a_task_names_the_right_one(option, instead):
    with pytest.raises(InvalidCall, match=rf"^@outbox.task\(\) has no option '{option}'; .*{instead}"):
        Outbox().task(**{option: 1})(module_level)


def test_another_error_is_not_mistaken_for_an_unknown_option():
    with pytest.raises(InvalidArgument, match="subscribe= takes topics"):
        Outbox().task(subscribe=7)(module_level)


@pytest.mark.parametrize("method", ["delay", "apply_async", "defer", "send"])
def test_the_error_for_another_librarys_method_names_the_equivalent(method):
    task = Outbox().task(module_level)
    with pytest.raises(AttributeError, match=rf"^a task has no '{method}'; write module_level\.using\(session"):
        getattr(task, method)
    assert not hasattr(task, "colour")


def test_another_outbox_is_refused_as_a_target():
    with pytest.raises(InvalidTarget, match="belongs to another Outbox; pass that Outbox"):
        Outbox("sqlite:///a.db").task(module_level).using(Outbox("sqlite:///b.db")).enqueue(1)


def test_the_error_for_bare_enqueue_names_using():
    with pytest.raises(InvalidTarget, match=r"using\(session\)"):
        Outbox().task(module_level).enqueue(1)


def test_delay_and_run_after_are_mutually_exclusive(memory):
    task = Outbox().task(module_level)
    with pytest.raises(InvalidArgument, match="not both"):
        task.using(memory, delay=1, run_after=datetime.now().astimezone())


@pytest.mark.parametrize("delay", ["5", None.__class__, True, float("nan"), float("inf"), 1e30])
def test_a_delay_must_be_a_duration(delay):
    with pytest.raises(InvalidArgument, match="delay"):
        Outbox().task(module_level).using(Outbox(), delay=delay)


def test_arguments_that_do_not_fit_raise_a_type_error_in_the_caller(memory):
    task = Outbox().task(module_level)
    with pytest.raises(TypeError, match="missing a required argument: 'order_id'"):
        task.using(memory).enqueue()
    with pytest.raises(InvalidCall, match="its parameters are: order_id, note"):
        task.using(memory).enqueue(1, colour="red")


def test_a_call_in_enqueue_many_must_be_a_tuple_or_a_mapping(memory):
    task = Outbox().task(module_level)
    for bad in (["1"], ["ab"], [7]):
        with pytest.raises(InvalidCall, match="tuple"):
            task.using(memory).enqueue_many(bad)


def test_the_error_for_an_unbound_outbox_says_how_to_bind_it(monkeypatch):
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    outbox = Outbox()
    assert not outbox.is_bound
    for use in (outbox.upgrade, outbox.store.stats, lambda: outbox.worker().start()):
        with pytest.raises(ConfigurationError, match="bind"):
            use()


def test_the_environment_binds_an_outbox(monkeypatch):
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", "sqlite:///elsewhere.db")
    assert Outbox().is_bound


@pytest.mark.parametrize("url", ["postgres://me:secret@host/shop", "postgresql://me:secret@host/shop"])
def test_postgresql_urls_are_accepted_as_hosts_write_them(url):
    known = Outbox(url).store.bound_engine.url
    assert known.render_as_string().partition("?")[0] == "postgresql+psycopg://me:***@host/shop"


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
def test_an_unsupported_database_is_refused(url, words):
    with pytest.raises(ConfigurationError, match=words):
        Outbox(url).store.stats()


def test_sqlite_versions_before_3_35_are_refused(monkeypatch):
    from outboxq.database.dialects import dialect_for

    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(ConfigurationError, match="SQLite 3.35"):
        dialect_for("sqlite", paramstyle="numeric")  # no other test uses this style, so it is not cached yet


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
        {"unknown_task_longest_delay": None},
    ],
)
def test_invalid_worker_options_are_refused(options):
    with pytest.raises(InvalidArgument):
        Outbox().worker(**options)


def test_a_lease_must_be_longer_than_two_heartbeats():
    outbox = Outbox("sqlite:///unused.db")
    outbox.task(name="short", lease=20)(lambda: None)
    with pytest.raises(ConfigurationError, match="two heartbeats"):
        outbox.worker(heartbeat=10)
    outbox.worker(heartbeat=9.9)


def test_the_heartbeat_must_suit_the_lease_of_every_task(tmp_path):
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
    assert [task.options.timeout for task in tasks] == [minute, minute, half, None]


def test_a_task_is_transactional_only_if_declared_so():
    outbox = Outbox()
    plain, transactional = outbox.task(name="a")(lambda: 1), outbox.task(name="b", transactional=True)(lambda: 2)
    assert (plain.transactional, transactional.transactional) == (False, True)
    assert transactional() == 2  # runs now, in no transaction


def test_a_bare_enqueue_of_a_transactional_task_is_refused():
    task = Outbox().task(name="t", transactional=True)(lambda: None)
    with pytest.raises(InvalidTarget, match=r"using\(session\)"):
        task.enqueue()


def test_the_error_for_an_unknown_task_suggests_an_import():
    with pytest.raises(UnknownTask, match="import the module"):
        Outbox().tasks.get("mail.send")


def test_a_context_parameter_is_recognised_by_its_annotation():
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


# --- Events


@pytest.mark.parametrize(
    "takes",
    [
        lambda: None,
        lambda payload, note: None,
        lambda payload, *, note: None,
        lambda payload=1, *, note: None,
    ],
)
def test_a_subscriber_must_accept_the_payload_as_its_only_argument(takes):
    with pytest.raises(ConfigurationError, match="gets the event's payload as its only argument"):
        Outbox().task(name="t", subscribe="order.paid")(takes)


def test_a_subscriber_may_accept_the_context_and_have_defaults():
    def first(ctx: TaskContext, order: dict[str, int], note: str = "") -> None: ...
    def second(*, order: dict[str, int] | None = None) -> None: ...

    def none(ctx: TaskContext) -> None: ...

    outbox = Outbox()
    for number, function in enumerate((first, second)):
        outbox.task(name=str(number), subscribe="a")(function)
    assert [one.parameter for one in outbox.subscriptions] == ["order", "order"]
    with pytest.raises(ConfigurationError, match="let the function take one argument"):
        outbox.task(name="none", subscribe="a")(none)


@pytest.mark.parametrize(
    "pattern", ["", "*.paid", "order.*.late", "**", "x" * 201, "a\0b", "\ud800", 7, b"a", ["a", None]]
)
def test_an_invalid_topic_pattern_is_refused_on_declaration(pattern):
    with pytest.raises(InvalidArgument):
        Outbox().task(name="t", subscribe=pattern)(lambda payload: None)


@pytest.mark.parametrize("subscribe", [None, (), []])
def test_a_task_without_topics_does_not_subscribe(subscribe):
    outbox = Outbox()
    outbox.task(name="t", subscribe=subscribe)(lambda: None)
    assert outbox.subscriptions == []


# --- Arguments of an enqueue


class Recorded:
    """A store that only records what it is given."""

    def __init__(self):
        self.tasks = []

    def enqueue(self, task, *, using):
        return self.enqueue_many([task], using=using)[0]

    def enqueue_many(self, tasks, *, using):
        self.tasks += tasks
        return [Handle(id=task.id) for task in tasks]


def recorded(monkeypatch, **declared):
    outbox, store = Outbox(), Recorded()
    monkeypatch.setattr(Outbox, "store", store)
    return outbox.task(**declared)(module_level), store.tasks


def test_the_options_of_an_enqueue_reach_the_store(monkeypatch):
    task, written = recorded(monkeypatch, on_dead_letter="hold")
    options = {"partition_key": "c1", "idempotency_key": "k", "unique_for": 60, "unique_until_finished": True}
    task.using(object(), expires=1.5, on_conflict="replace", **options).enqueue(1)
    (new,) = written
    assert (new.partition_key, new.on_dead_letter) == ("c1", OnDeadLetter.HOLD)
    assert (new.expires_in, new.expires_at) == (timedelta(seconds=1.5), None)
    assert (new.idempotency_key, new.unique_for, new.unique_until_finished) == ("k", timedelta(minutes=1), True)
    assert new.on_conflict is OnConflict.REPLACE


def test_a_task_without_a_partition_key_does_not_hold_one(monkeypatch):
    task, written = recorded(monkeypatch, on_dead_letter=OnDeadLetter.HOLD)
    until = datetime.now().astimezone()
    task.using(object(), expires=until).enqueue(1)
    assert (written[0].partition_key, written[0].on_dead_letter) == (None, OnDeadLetter.RELEASE)
    assert (written[0].expires_at, written[0].expires_in) == (until, None)


def test_enqueue_many_accepts_a_key_for_each_call(monkeypatch):
    task, written = recorded(monkeypatch)
    task.using(object(), on_conflict="skip").enqueue_many([(1,), (2,), (3,)], idempotency_keys=["a", None, "c"])
    assert [new.idempotency_key for new in written] == ["a", None, "c"]
    assert len({new.pipeline_execution_id for new in written}) == 1
    for keys in (["a"], "ab", []):
        with pytest.raises(InvalidArgument, match="a key or None for each call; pass a list of length 2"):
            task.using(object()).enqueue_many([(1,), (2,)], idempotency_keys=keys)
    with pytest.raises(InvalidArgument, match="idempotency_keys="):
        task.using(object(), idempotency_key="a").enqueue_many([(1,)])


@pytest.mark.parametrize(
    "options",
    [
        {"expires": "60"},
        {"unique_for": "60"},
        {"on_conflict": "overwrite"},
        {"on_conflict": None},
    ],
)
def test_invalid_options_of_an_enqueue_are_refused(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Outbox().task(module_level).using(object(), **options)


def test_an_unknown_dead_letter_policy_is_refused():
    with pytest.raises(InvalidArgument, match="'release', 'hold'"):
        Outbox().task(on_dead_letter="keep")(module_level)


def test_the_first_id_of_a_family_leaves_room_for_a_count():
    families = [family() for _ in range(1000)]
    assert families == sorted(set(families))
    assert {one.int & FAMILY for one in families} == {0}
    assert {one.version for one in families} == {7}


MODULE = """
@outbox.task
def send():
    pass
"""


def run_module(outbox, text=MODULE):
    """Run the module's code in its own namespace, like an import."""
    exec(compile(text, "shop/tasks.py", "exec"), {"__name__": "shop.tasks", "outbox": outbox})


def test_a_module_can_be_imported_again_after_its_import_failed():
    outbox = Outbox()
    with pytest.raises(ImportError):
        run_module(outbox, MODULE + "import nothing_of_that_name")
    run_module(outbox)
    assert [task.name for task in outbox.tasks] == ["shop.tasks.send"]


def test_two_functions_with_the_same_name_in_one_module_are_refused():
    with pytest.raises(ConfigurationError, match="two tasks are called 'shop.tasks.send'"):
        run_module(Outbox(), MODULE + MODULE)


@pytest.mark.parametrize("option", ["max_attempts", "max_retries", "retry", "queue", "priority"])
def test_the_error_for_an_emit_names_the_options_of_subscribing_tasks(option):
    with pytest.raises(
        InvalidCall, match=rf"^emit\(\) has no option '{option}'; write .*= of each @outbox.task that subsc"
    ):
        Outbox().emit("order.placed", {}, **{option: 1})


def test_local_variables_of_emit_are_not_accepted_as_options():
    with pytest.raises(InvalidCall, match=r"^emit\(\) has no option 'event'; its options are using, delay, "):
        Outbox().emit("order.placed", {}, event=1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: Outbox(schmea="x"),
            "Outbox() has no option 'schmea'; did you mean 'schema'? Its options are schema, ",
        ),
        (lambda: Outbox(None, "x"), "Outbox() takes its options by name: schema, session, "),
        (lambda: Outbox().worker(concurency=3), "worker() has no option 'concurency'; did you mean 'concurrency'? "),
        (
            lambda: Outbox().worker(threads=3),
            "worker() has no option 'threads'; write concurrency=; its options are queues, ",
        ),
        (lambda: Outbox().task(module_level).using(1, 2), "using() takes its options by name: delay, run_after, "),
        (lambda: Outbox().batch("b"), "batch() takes its options by name: using, then, on_failed, name"),
        (lambda: Outbox().batch(callback=1), "batch() has no option 'callback'; write then=; its options are using, "),
        (
            lambda: Outbox().chain(nmae="x"),
            "chain() has no option 'nmae'; did you mean 'name'? Its options are on_failed, ",
        ),
        (
            lambda: Outbox().schedules.put("x", "y", evry=3),
            "schedules.put() has no option 'evry'; did you mean 'every'? ",
        ),
        (
            lambda: Outbox().schedules.put("x", "y", "z", 3),
            "schedules.put() takes its options by name: every, using, tz, ",
        ),
    ],
)
def test_the_error_for_a_wrong_option_names_the_right_one(call, sentence):
    with pytest.raises(InvalidCall) as raised:
        call()
    assert str(raised.value).startswith(sentence)
