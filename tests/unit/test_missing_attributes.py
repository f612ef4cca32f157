"""What a newcomer from another library writes, and the way that the message names instead; no database."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from uuid import UUID

import pytest
from sqlalchemy.orm import scoped_session, sessionmaker

import outboxq
from outboxq import ChainHandle, Handle, InvalidCall, Outbox, RetryPolicy, TaskContext
from outboxq.model.guesses import CURES
from outboxq.testing import Harness
from tests.unit.test_executor import claim_of

TASK = """
    delay apply_async apply s si signature subtask retry chunks map starmap AsyncResult request update_state replace max_retries
    default_retry_delay rate_limit time_limit soft_time_limit on_failure on_success on_retry after_return before_start delay_on_commit
    send send_with_options message message_with_options fn actor_name queue_name
    schedule call_local defer defer_async batch_defer configure aenqueue
"""
OUTBOX = """
    send_task conf control autodiscover_tasks config_from_object AsyncResult GroupResult signature start worker_main add_periodic_task
    on_after_configure shared_task register_task enqueue enqueue_call enqueue_many enqueue_in enqueue_at fetch_job empty jobs job_ids count
    get_jobs failed_job_registry scheduled_job_registry started_job_registry finished_job_registry actor add_middleware declare_actor
    flush get_actor group chord pipeline cancel get send pause resume purge redrive inspect queue retry broker
"""
HANDLE = """
    get wait join ready successful failed state status info traceback task_id revoke children parent args queue date_done retries
    get_status return_value latest_result refresh is_finished is_failed is_queued is_started is_deferred is_scheduled is_canceled cancel requeue
    delete meta exc_info started_at ended_at created_at origin func_name retry get_result message_id queue_name actor_name key
    forget collect
"""
STORE = "redrive_all pause resume limit failed retry requeue revoke purge tail groups list fetch_job inspect"
CONTEXT = "id request retry retries update_state args kwargs replace logger is_aborted"


@pytest.fixture
def outbox() -> Outbox:
    return Outbox("sqlite:////nowhere/shop.db")


@pytest.fixture
def send_receipt(outbox):
    @outbox.task(name="shop.send_receipt")
    def send_receipt(order_id: int) -> None: ...

    return send_receipt


def answer(target: object, name: str) -> str:
    with pytest.raises(AttributeError) as raised:
        getattr(target, name)
    assert raised.value.name == name
    assert raised.value.obj is target
    return str(raised.value)


def context() -> TaskContext:
    return TaskContext(claim_of(Outbox().task(name="a")(lambda: None)), max_attempts=1, stopping=threading.Event())


@pytest.mark.parametrize(
    "names", [TASK, OUTBOX, HANDLE, STORE, CONTEXT], ids=["task", "outbox", "handle", "store", "context"]
)
def test_each_guess_from_another_library_is_answered_with_the_way_here(outbox, send_receipt, names) -> None:
    targets = {
        TASK: send_receipt,
        OUTBOX: outbox,
        HANDLE: Handle(id=UUID(int=7)),
        STORE: outbox.store,
        CONTEXT: context(),
    }
    assert [name for name in names.split() if "; write " not in answer(targets[names], name)] == []


def test_the_sentences(outbox, send_receipt) -> None:
    handle = Handle(id=UUID(int=7))
    assert answer(handle, "status") == "a handle has no 'status'; write outbox.store.get(handle.id).status"
    assert answer(handle, "started_at") == "a handle has no 'started_at'; write outbox.store.get(handle.id).started_at"
    assert answer(outbox, "redrive") == "an Outbox has no 'redrive'; write outbox.store.redrive(…)"
    pauses = "outbox.store.queues.pause(…) or outbox.store.relays.pause(…) or outbox.store.schedules.pause(…)"
    assert answer(outbox.store, "pause") == f"the store has no 'pause'; write {pauses}"
    assert answer(send_receipt, "banana") == "a task has no 'banana'"
    bound = send_receipt.using(outbox)
    assert answer(bound, "delay") == "a task has no 'delay'; write send_receipt.using(session).enqueue(…)"
    assert answer(Harness(outbox), "batch") == (
        "the harness has no 'batch'; write harness.app.batch, since harness.app is the application's Outbox"
    )


def test_a_framework_that_knows_the_transaction_is_answered_without_a_session() -> None:
    outbox = Outbox("sqlite:////nowhere/shop.db", session=scoped_session(sessionmaker()))
    task = outbox.task(name="shop.hello")(lambda: None)
    assert answer(task, "apply_async") == "a task has no 'apply_async'; write <lambda>.using(delay=…).enqueue(…)"
    assert answer(task, "delay").endswith("; write <lambda>.enqueue(…)")
    assert answer(outbox, "group").endswith("; write outbox.batch(then=…)")
    assert answer(task.call(), "enqueue").endswith("To enqueue the task itself, write task.enqueue(…)")
    with pytest.raises(
        outboxq.InvalidTarget, match=r"leave the None out to write in the current transaction, or write using\(outbox\)"
    ):
        task.using(None)


def test_every_cure_names_what_there_is(outbox, send_receipt) -> None:
    """A cure that goes through the store, the outbox or a handle would be a second stumble if it did not exist."""
    chain = ChainHandle(id=UUID(int=7), task_ids=(UUID(int=8),))
    objects = {"outbox": outbox, "handle": Handle(id=UUID(int=7)), "ctx": context(), "task": send_receipt}
    paths = {
        (noun, path)
        for noun, cures in CURES.items()
        for cure in cures.values()
        for path in re.findall(r"(?<![@\w])((?:outbox|handle|ctx|task)(?:\.\w+)+)", cure)
    }
    assert len(paths) > 40
    for noun, path in paths:
        root, *names, last = path.split(".")
        target: object = chain if (root, noun) == ("handle", "a chain handle") else objects[root]
        for name in names:
            target = getattr(target, name)
        assert hasattr(type(target), last) or hasattr(target, last), path


def test_an_error_inside_a_property_is_not_hidden() -> None:
    class Broken(Outbox):
        @property
        def store(self):
            return self.tasks.banana

    with pytest.raises(AttributeError, match="^'TaskRegistry' object has no attribute 'banana'"):
        _ = Broken("sqlite:////nowhere/shop.db").store


def test_handles_are_copied_and_pickled_as_before() -> None:
    handle = Handle(id=UUID(int=7))
    assert copy.copy(handle) == pickle.loads(pickle.dumps(handle)) == handle
    assert not hasattr(handle, "__len__")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("max_retries", "max_attempts=, which counts"),
        ("backoff", "wait=tenacity"),
        ("max_attempt", "did you mean 'max_attempts'"),
    ],
)
def test_an_unknown_option_of_a_policy(option, instead) -> None:
    with pytest.raises(InvalidCall, match=rf"^RetryPolicy\(\) has no option '{option}'.*{instead}"):
        RetryPolicy(**{option: 3})


def test_completion_lists_what_applications_use(outbox, send_receipt) -> None:
    def listed(target: object) -> set[str]:
        return {name for name in dir(target) if not name.startswith("_")}

    assert listed(send_receipt) == {
        "call", "enqueue", "enqueue_many", "function", "name", "options", "outbox", "retry_policy", "subscriptions", "timeout_action",
        "transactional", "using",
    }  # fmt: skip
    assert listed(Handle(id=UUID(int=7))) == {"created", "id", "replaced", "result"}
    assert {"making", "batch_of", "wait_for_result"} & listed(outbox) == set()
    assert {"unit", "claim", "has_died"} & listed(context()) == set()
    assert "queues" in listed(outbox.store)
    assert {"compile_ends", "may_pass", "tries", "finish"} & listed(outbox.store) == set()
    assert len(listed(outbox.store)) <= 56
    assert listed(outboxq) == set(outboxq.__all__)
