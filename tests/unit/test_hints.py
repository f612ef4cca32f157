"""Hints in Python for code that newcomers write as in other libraries."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import pytest
from flask import Flask

import outboxq
from outboxq import (
    InvalidArgument,
    InvalidCall,
    Outbox,
    PayloadError,
    Retry,
    RetryPolicy,
    ScheduleNotFound,
    Snooze,
    Task,
    TaskContext,
    TaskExecution,
    Worker,
    brokers,
)
from outboxq.contrib.flask import Outboxq
from outboxq.errors import ConfigurationError
from outboxq.model.guesses import Guess, tables
from outboxq.operating.reading import read_rate
from outboxq.store.numbers.queues import Queues
from outboxq.testing import Harness
from outboxq.worker.options import WorkerSettings


@pytest.fixture
def outbox() -> Outbox:
    return Outbox("sqlite:////nowhere/shop.db")


@pytest.fixture
def send(outbox):
    @outbox.task(name="shop.send")
    def send(order_id: int) -> None: ...

    return send


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("delay", "write using(delay=…).enqueue(…)"),
        ("countdown", "write using(delay=…).enqueue(…)"),
        ("eta", "write using(run_after=…).enqueue(…)"),
        ("queue", "write using(queue=…).enqueue(…)"),
        ("max_retries", "write using(max_attempts=…).enqueue(…)"),
        ("link", "write outbox.chain(…), or outbox.batch(then=…)"),
    ],
)
def test_the_error_for_an_option_among_the_arguments_names_using(send, name, cure):
    with pytest.raises(InvalidCall, match=rf"{name} is an option of a call and not an argument: ") as raised:
        send.enqueue(1, **{name: 5})
    assert str(raised.value).endswith(cure)
    with pytest.raises(InvalidCall, match="its parameters are: order_id$"):
        send.enqueue(1, banana=5)


@pytest.mark.parametrize(
    ("made", "cure"),
    [
        (lambda outbox, send: send.using(outbox, link=1), "outbox.chain"),
        (lambda outbox, send: send.using(outbox, link_error=1), "a Hook"),
        (lambda outbox, send: send.using(outbox, task_id="a"), "idempotency_key="),
        (lambda _outbox, _send: Retry(countdown=30), r"Retry\(30\), in seconds"),
        (lambda _outbox, _send: Outboxq(broker="redis://"), "are in the database"),
        (lambda _outbox, _send: Outbox(broker="redis://"), "are in the database"),
        (lambda outbox, _send: outbox.periodic(seconds=30), r"every=timedelta\(…\)"),
        (lambda outbox, _send: outbox.worker(worker_prefetch_multiplier=1), "prefetch="),
        (lambda outbox, _send: outbox.store.queues.limit("mail", per_key=1), "concurrency_per_key="),
        (
            lambda outbox, send: outbox.chain(send.call(1), using=outbox),
            r"outbox\.chain\(…\)\.using\(session\)\.enqueue",
        ),
        (
            lambda outbox, send: send.using(outbox, key="a"),
            "partition_key= to keep tasks in order, or idempotency_key=",
        ),
        (lambda outbox, send: send.using(session=outbox), r"it as the first argument: using\(session\)"),
        (lambda outbox, _send: outbox.task(actor_name="a"), "name="),
        (
            lambda outbox, _send: outbox.task(cron="* * * * *"),
            r"@outbox\.periodic\(\"30 2 \* \* \*\"\) above @outbox\.task",
        ),
        (lambda outbox, _send: outbox.task(every=30), r"@outbox\.periodic"),
        (lambda outbox, _send: outbox.task(ignore_result=True), "a function that returns nothing"),
        (lambda outbox, _send: outbox.task(countdown=5), r"delay= in using\(\)"),
        (lambda outbox, _send: outbox.task(idempotency_key="a"), r"idempotency_key= in using\(\), for each call"),
        (lambda outbox, _send: outbox.relay(topic="order.*"), "the topics as the first argument"),
        (lambda outbox, _send: outbox.worker(name="a"), "label="),
        (lambda outbox, _send: outbox.worker().run(once=True), "burst=True"),
        (lambda _outbox, _send: Outbox(url="sqlite:///a.db"), "the database as the first argument"),
        (lambda _outbox, _send: Snooze(minutes=3), r"Snooze\(timedelta\(minutes=…\)\)"),
        (lambda _outbox, _send: brokers.RedisStreams(host="a"), 'url="redis://'),
        (lambda _outbox, _send: brokers.RedisStreams(url="redis://a", maxlen=5), "max_length="),
        (lambda _outbox, _send: brokers.RabbitMQ(host="a"), 'url="amqp://'),
        (lambda _outbox, _send: brokers.Kafka(bootstrap_servers="a"), 'servers="host:9092"'),
        (lambda _outbox, _send: brokers.NatsJetStream(url="nats://a"), 'servers="nats://'),
        (lambda _outbox, _send: brokers.Sqs(queue_name="a"), "queue_url="),
        (lambda _outbox, _send: brokers.Sns(topic="a"), "topic_arn="),
        (lambda outbox, _send: Harness(outbox, session=outbox), "using="),
        (lambda outbox, _send: Harness(outbox).advance(days=7), r"advance\(timedelta\(days=…\)\)"),
        (lambda outbox, _send: Harness(outbox).clock.advance(hours=1), r"advance\(timedelta\(hours=…\)\)"),
        (lambda outbox, _send: Harness(outbox).drain(queue="mail"), r'queues=\["mail"\]'),
    ],
)
def test_the_error_for_another_librarys_option_names_the_equivalent(outbox, send, made, cure):
    with pytest.raises(InvalidCall, match=rf"has no option '.*'; (write|it is not needed:) .*{cure}"):
        made(outbox, send)


OPTIONS = {
    "@outbox.task()": Outbox.task,
    "using()": Task.using,
    "emit()": Outbox.emit,
    "@outbox.periodic()": Outbox.periodic,
    "schedules.put()": Outbox.periodic,
    "batch()": Outbox.batch,
    "chain()": Outbox.chain,
    "run()": Worker.run,
    "worker()": WorkerSettings,
    "RetryPolicy()": RetryPolicy,
    "Retry()": Retry,
    "Snooze()": Snooze,
    "advance()": Harness.advance,
    "drain()": Harness.drain,
    "Harness()": Harness,
    "Outbox()": Outbox,
    "Outboxq()": Outboxq,
    "relay()": Outbox.relay,
    "queues.limit()": Queues.limit,
    "RedisStreams()": brokers.RedisStreams,
    "RabbitMQ()": brokers.RabbitMQ,
    "Kafka()": brokers.Kafka,
    "NatsJetStream()": brokers.NatsJetStream,
    "Sqs()": brokers.Sqs,
    "Sns()": brokers.Sns,
}
"""The function or class of each table of options, by its name in error messages."""


@pytest.mark.parametrize("table", OPTIONS)
def test_every_hint_for_an_option_names_an_option_that_exists(table):
    """A replacement that begins with `name=` is an option of the same call, unless the hint names another call."""
    parameters = inspect.signature(OPTIONS[table]).parameters.values()
    guesses = tables()[Guess.OPTION][table]
    known = {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY}
    assert guesses
    assert not guesses.keys() & known, "an existing option is not a guess"
    for guess, cure in guesses.items():
        place = {
            "of @outbox.task": Outbox.task,
            "of each @outbox.task": Outbox.task,
            "in using()": Task.using,
            "of @outbox.periodic": Outbox.periodic,
        }
        owner = next((function for words, function in place.items() if words in cure), None)
        names = known if owner is None else inspect.signature(owner).parameters.keys()
        outside = re.sub(r"\w+\([^()]*(\([^()]*\))?[^()]*\)", "", cure.replace("using()", ""))
        assert {*re.findall(r"(?<![\w.])(\w+)=", outside)} <= names, f"{guess}: {cure}"


def test_every_table_of_guessed_options_is_checked():
    assert tables()[Guess.OPTION].keys() == OPTIONS.keys()


@pytest.mark.parametrize(
    ("module", "guesses"),
    [(one, tables()[Guess.NAME][one.__name__]) for one in (outboxq, brokers)],
    ids=["outboxq", "brokers"],
)
def test_every_hint_for_a_missing_name_of_a_module_names_existing_names(module, guesses):
    for name, cure in guesses.items():
        with pytest.raises(AttributeError, match=re.escape(f"; write {cure}") + "$"):
            getattr(module, name)
        assert module is outboxq or hasattr(brokers, cure)
        classes = re.findall(r"(?<![\w.])[A-Z]\w+", cure.replace("from outboxq.testing import Harness", ""))
        assert {one for one in classes if module is outboxq and not hasattr(outboxq, one)} == set()


@pytest.mark.parametrize(
    ("made", "cure"),
    [
        (lambda outbox, send: outbox.batch([send.call(1)]), r"task\.using\(batch\)\.enqueue"),
        (lambda outbox, _send: outbox.worker(["mail"]), r'queues=\["mail"\]$'),
        (lambda outbox, _send: Harness(outbox, outbox), r"Harness\(outbox, using=session\)"),
    ],
)
def test_the_error_for_a_positional_value_names_the_option(outbox, send, made, cure):
    with pytest.raises(InvalidCall, match=rf"takes its options by name.*; write .*{cure}"):
        made(outbox, send)


def test_the_error_for_a_pipe_between_calls_names_chain(outbox, send):
    with pytest.raises(InvalidCall, match=r"write outbox\.chain\(a\.call\(1\), b\.call\(\)\)$"):
        send.call(1) | send.call(2)
    with pytest.raises(InvalidCall, match=r"write each call in outbox\.chain\(a\.call\(1\), b\.call\(\)\)$"):
        outbox.chain(send.call(1)) | send.call(2)


def test_the_error_for_a_name_instead_of_a_function_names_the_option(outbox):
    with pytest.raises(ConfigurationError, match=r"or @outbox\.task\(name='shop\.mail'\)$"):
        outbox.task("shop.mail")


def test_the_error_for_an_unknown_worker_option_names_the_right_one(outbox):
    with pytest.raises(
        InvalidCall, match=r"^worker\(\) has no option 'threads'; write concurrency=; its options are queues, "
    ):
        outbox.worker(threads=3)


def test_the_error_for_a_number_as_a_rule_names_every(outbox):
    with pytest.raises(InvalidArgument, match="for an interval, write every=30$"):
        outbox.periodic(30)


@pytest.mark.parametrize("name", ["delay", "apply_async"])
def test_the_error_for_other_ways_to_enqueue_names_enqueue(outbox, send, name):
    with pytest.raises(AttributeError, match=r"; write outbox\.chain\(…\)\.using\(session\)\.enqueue\(\)$"):
        getattr(outbox.chain(send.call(1)), name)
    with pytest.raises(AttributeError, match=r"write task\.using\(session\)\.enqueue\(…\)"):
        getattr(send.call(1), name)


def test_the_error_for_schedules_add_names_put(outbox):
    with pytest.raises(AttributeError, match=r"^outbox\.schedules has no 'add'; write outbox\.schedules\.put\("):
        _ = outbox.schedules.add


@pytest.mark.parametrize("name", ["chain", "group", "chord", "shared_task", "Celery"])
def test_the_error_for_a_celery_name_has_an_equivalent(name):
    with pytest.raises(
        AttributeError, match=rf"^module 'outboxq' has no attribute '{name}'; write outbox|; write Outbox"
    ):
        getattr(outboxq, name)


def test_the_error_for_a_missing_argument_of_a_call_names_ctx_previous(send):
    with pytest.raises(
        InvalidCall, match=r"missing a required argument: 'order_id'.*ctx\.previous.*ctx\.batch\.results\(\)"
    ):
        send.call()
    with pytest.raises(InvalidCall) as raised:
        send.enqueue()
    assert "ctx.previous" not in str(raised.value)


@pytest.mark.parametrize("option", ["concurrency_key", "partition_key", "idempotency_key", "queue"])
def test_the_error_for_a_number_as_a_key_names_its_type(outbox, send, option):
    with pytest.raises(InvalidArgument, match=rf"{option} of .* must be a str, not int; write str\(…\)"):
        send.using(outbox, **{option: 7}).planned(1)


def test_a_task_with_a_parameter_self_is_refused_on_declaration(outbox):
    def send(self, order_id: int = 0) -> None: ...

    with pytest.raises(ConfigurationError, match="annotate the first parameter as ctx: TaskContext"):
        outbox.task(name="shop.bound")(send)


def test_the_error_for_apply_of_a_task_with_a_context_names_the_harness(outbox):
    @outbox.task(name="shop.counted")
    def counted(ctx: TaskContext, order_id: int) -> None: ...

    with pytest.raises(AttributeError, match=r"; write harness\.run\(counted, …\) in a test"):
        _ = counted.apply
    with pytest.raises(InvalidCall, match=r"harness\.run\(counted, …\)"):
        counted(1)


def test_the_error_for_a_tuple_as_a_plain_type_suggests_its_item(send):
    with pytest.raises(PayloadError, match="tuple does not fit int: pass an item of the tuple"):
        send.enqueue((1,))


@pytest.mark.parametrize(
    ("text", "span"), [("10/m", timedelta(minutes=1)), ("10/s", timedelta(seconds=1)), ("10/2h", timedelta(hours=2))]
)
def test_a_rate_may_leave_out_the_number_of_its_span(text, span):
    assert read_rate(text) == (10, span)


@pytest.mark.parametrize("text", ["10/", "10/mm", "10/x", "/m"])
def test_a_rate_without_a_unit_is_refused(text):
    with pytest.raises(InvalidArgument, match="write a number of starts"):
        read_rate(text)


def test_the_error_for_other_names_of_the_status_names_status():
    found = object.__new__(TaskExecution)
    for name in ("state", "ready"):
        with pytest.raises(AttributeError, match=r"^a task execution has no '.*'; write status"):
            getattr(found, name)


def test_a_chain_has_no_hints_for_existing_attributes(outbox, send):
    chain = outbox.chain(send.call(1))
    assert [name for name in tables()[Guess.ATTRIBUTE]["a chain"] if hasattr(chain, name)] == []


@pytest.mark.parametrize(("rule", "cure"), [("30s", "seconds=30"), ("5m", "minutes=5"), ("1H", "hours=1")])
def test_the_error_for_a_duration_as_a_rule_names_every(outbox, rule, cure):
    with pytest.raises(InvalidArgument, match=rf"^'{rule}' is not a cron expression; .* every=timedelta\({cure}\)"):
        outbox.periodic(rule)


def test_a_misspelt_schedule_name_gets_a_suggestion(tmp_path):
    outbox = Outbox(f"sqlite:///{tmp_path}/shop.db")

    @outbox.task(name="shop.heartbeat")
    def heartbeat() -> None: ...

    outbox.upgrade()
    outbox.schedules.put("shop.heartbeat", heartbeat, every=30, using=outbox)
    for call in (outbox.schedules.get, outbox.store.schedules.pause, outbox.store.schedules.remove):
        with pytest.raises(ScheduleNotFound, match=r"no schedule 'heartbeat'; did you mean 'shop\.heartbeat'\?$"):
            call("heartbeat")
    with pytest.raises(ScheduleNotFound, match="`outboxq schedule list` shows the schedules$"):
        outbox.store.schedules.pause("zzz")
    outbox.store.bound_engine.dispose()


def test_a_message_names_commands_of_the_frameworks_program(tmp_path):
    app = Flask("shop")
    app.config["OUTBOXQ_DATABASE_URL"] = f"sqlite:///{tmp_path}/shop.db"
    outbox = Outboxq(app)
    with app.app_context():
        outbox.upgrade()
    result = app.test_cli_runner().invoke(args=["outboxq", "schedule", "pause", "zzz"])
    with app.app_context():
        outbox.store.bound_engine.dispose()
    assert "`flask outboxq schedule list` shows the schedules" in result.stderr
