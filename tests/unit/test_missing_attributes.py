"""Attributes that newcomers from other libraries write, and the replacement that the message names. These tests use no database."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy.orm import scoped_session, sessionmaker

import outboxq
from outboxq import Batch, ChainHandle, Handle, InvalidCall, Outbox, RetryPolicy, TaskContext, TaskExecution, TaskStatus
from outboxq.model.guesses import Guess, tables
from outboxq.store import FOR_APPLICATIONS
from outboxq.testing import Harness
from outboxq.worker.options import WorkerOptions
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
def test_each_guess_from_another_library_gets_a_hint_with_the_equivalent(outbox, send_receipt, names) -> None:
    targets = {
        TASK: send_receipt,
        OUTBOX: outbox,
        HANDLE: Handle(id=UUID(int=7)),
        STORE: outbox.store,
        CONTEXT: context(),
    }
    answers = {name: answer(targets[names], name) for name in names.split()}
    assert [
        name for name, said in answers.items() if "; write " not in said and "; it is not needed: " not in said
    ] == []


def test_hints_have_the_expected_text(outbox, send_receipt) -> None:
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
        "the harness has no 'batch'; write harness.app.batch(…), because harness.app is the application's Outbox"
    )


def test_hints_omit_the_session_if_the_framework_knows_the_transaction() -> None:
    outbox = Outbox("sqlite:////nowhere/shop.db", session=scoped_session(sessionmaker()))
    task = outbox.task(name="shop.hello")(lambda: None)
    assert answer(task, "apply_async") == "a task has no 'apply_async'; write <lambda>.using(delay=…).enqueue(…)"
    assert answer(task, "delay").endswith("; write <lambda>.enqueue(…)")
    assert answer(outbox, "group").endswith("; write outbox.batch(then=…)")
    assert answer(task.call(), "enqueue").endswith("To enqueue the task itself, write task.enqueue(…)")
    with pytest.raises(
        outboxq.InvalidTarget, match=r"pass using\(\) to write in the current transaction, or pass using\(outbox\)"
    ):
        task.using(None)


@pytest.fixture
def objects(outbox, send_receipt):
    """An object for each noun of the hints."""
    calls = send_receipt.call(1)
    now = datetime(2030, 1, 1, tzinfo=UTC)
    row = TaskExecution(
        **{one.name: None for one in fields(TaskExecution)}
        | {"id": UUID(int=7), "status": TaskStatus.READY, "created_at": now}
    )
    return {
        "a task": send_receipt,
        "a task call": calls,
        "an Outbox": outbox,
        "a handle": Handle(id=UUID(int=7)),
        "a chain": outbox.chain(calls),
        "a chain handle": ChainHandle(id=UUID(int=7), task_ids=(UUID(int=8),)),
        "a task execution": row,
        "the batch": outbox.batch(using=outbox),
        "the store": outbox.store,
        "a context": context(),
        "a worker": outbox.worker(),
        "the harness": Harness(outbox),
        "the clock": Harness(outbox).clock,
        "outbox.schedules": outbox.schedules,
        **{
            f"outbox.store.{noun}": getattr(outbox.store, noun)
            for noun in ("queues", "workers", "dead_letters", "batches", "relays", "subscriptions", "log")
        },
    }


def lines(cure: str) -> list[tuple[str, str | None]]:
    """Return the attributes that a cure names, each with the arguments of its call, or None if it is not called."""
    pattern = r"(?<![@\w.])((?:outbox|handle|ctx|task|batch|call|worker|harness)(?:\.\w+)+)(\([^()]*\)|\()?"
    return [(path, call or None) for path, call in re.findall(pattern, cure)]


def resolved(path: str, roots: dict[str, object]) -> object:
    """Find the attribute at the end of a path. If it is a property, it is not read, because that may need a transaction."""
    root, *names, last = path.split(".")
    found = roots[root]
    for name in names:
        found = getattr(found, name)
    of_class = getattr(type(found), last, None)
    return of_class if isinstance(of_class, property) else getattr(found, last)


def keywords(function: Callable[..., object]) -> set[str]:
    """Return the names of the arguments that a call may use, including those of a TypedDict."""
    found: set[str] = set()
    for one in inspect.signature(function).parameters.values():
        found |= {one.name}
        if one.kind is one.VAR_KEYWORD and (options := re.search(r"Unpack\[(\w+)\]", str(one.annotation))):
            module = sys.modules[inspect.unwrap(function).__module__]
            found |= getattr(module, options[1], WorkerOptions).__annotations__.keys()
    return found


def test_every_hint_names_code_that_exists(objects) -> None:
    """A hint must not name attributes that do not exist, or call objects that cannot be called."""
    outbox, handle = objects["an Outbox"], objects["a handle"]
    names = {noun: {*cures} for noun, cures in tables()[Guess.ATTRIBUTE].items()}
    names["an Outbox"] |= FOR_APPLICATIONS - {*object.__dir__(outbox)}
    names["the store"] |= {name for noun in FOR_APPLICATIONS for name in dir(getattr(outbox.store, noun))} - {
        *object.__dir__(outbox.store)
    }
    names["a handle"] |= {one.name for one in fields(TaskExecution)} - {*object.__dir__(handle)}
    names["the harness"] |= {*dir(outbox)} - {*object.__dir__(objects["the harness"])}
    assert names.keys() == objects.keys()
    roots = {
        "outbox": outbox,
        "ctx": objects["a context"],
        "task": objects["a task"],
        "send_receipt": objects["a task"],
        "batch": objects["the batch"],
        "call": objects["a task call"],
        "worker": objects["a worker"],
        "harness": objects["the harness"],
    }
    seen = 0
    for noun, known in names.items():
        for name in sorted(one for one in known if not one.startswith("_")):
            with pytest.raises(AttributeError) as raised:  # a cure for an existing attribute would never be shown
                getattr(objects[noun], name)
            said = str(raised.value).replace("send_receipt.", "task.")
            for path, call in lines(said.partition("; write ")[2]):
                own = {**roots, "handle": objects["a chain handle" if noun == "a chain handle" else "a handle"]}
                found = resolved(path, own)
                assert call is None or callable(found), said
                assert call is not None or not inspect.ismethod(found), f"{said}: {path} must be called"
                if call is not None and not isinstance(found, type):
                    assert {*re.findall(r"(\w+)=", call)} <= keywords(found), said
                seen += 1
    assert seen > 200


def test_the_fields_in_hints_exist() -> None:
    """In a hint such as `outbox.store.get(id).status`, a field follows a call."""
    cures = [cure for cures in tables()[Guess.ATTRIBUTE].values() for cure in cures.values()]
    after = {field for cure in cures for field in re.findall(r"outbox\.store\.get\([\w.]+\)\.(\w+)", cure)}
    assert after
    assert after <= {one.name for one in fields(TaskExecution)}
    of_batch = {field for cure in cures for field in re.findall(r"batches\.get\([\w.]+\)\.(\w+)", cure)}
    assert of_batch == {"status"} <= {*dir(Batch)}


@pytest.mark.parametrize("noun", ["dead_letters", "queues", "workers", "batches", "log", "engine", "stats"])
def test_hints_call_a_part_of_the_store_only_if_it_is_callable(outbox, noun) -> None:
    written = answer(outbox, noun).partition("; write ")[2]
    assert ("(…)" in written) is callable(getattr(outbox.store, noun)), written


def test_an_error_inside_a_property_is_not_hidden() -> None:
    class Broken(Outbox):
        @property
        def store(self):
            return self.tasks.banana

    with pytest.raises(AttributeError, match="^'TaskRegistry' object has no attribute 'banana'"):
        _ = Broken("sqlite:////nowhere/shop.db").store


def test_handles_can_be_copied_and_pickled() -> None:
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
def test_an_unknown_option_of_a_policy_gets_a_hint(option, instead) -> None:
    with pytest.raises(InvalidCall, match=rf"^RetryPolicy\(\) has no option '{option}'.*{instead}"):
        RetryPolicy(**{option: 3})


def test_completion_lists_only_names_for_applications(outbox, send_receipt) -> None:
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
