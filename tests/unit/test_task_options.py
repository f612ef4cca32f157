"""The options of a task: one record contains them, and the options that users may write agree with it."""

from __future__ import annotations

import inspect
from dataclasses import asdict, fields
from datetime import timedelta

import pytest

from outboxq import Outbox, Task
from outboxq.errors import InvalidArgument
from outboxq.model import NewTask, OnDeadLetter, TaskOptions
from outboxq.model.subscriptions import Subscription

OPTIONS = {field.name: field.default for field in fields(TaskOptions)}


def declared(**options) -> Task:
    return Outbox().task(name="shop.pay", **options)(lambda order_id: None)


def test_a_declaration_accepts_each_option_with_the_default_of_the_record():
    parameters = inspect.signature(Outbox.task).parameters
    taken = {name: parameters[name].default for name in OPTIONS if name in parameters}
    assert taken | {"max_attempts": None} == OPTIONS  # a declaration sets its attempts with retry=
    assert declared().options == TaskOptions()


@pytest.mark.parametrize("record", [NewTask, Subscription])
def test_each_stored_record_has_all_options_with_the_same_defaults(record):
    assert {field.name: field.default for field in fields(record) if field.name in OPTIONS} == OPTIONS


def test_an_enqueue_replaces_some_options_and_keeps_the_others():
    task = declared(queue="mail", priority=3, lease=30, timeout=20, on_dead_letter="hold")
    one = task.using(Outbox(), queue="sms", max_attempts=2, partition_key="a")
    expected = {**asdict(task.options), "queue": "sms", "max_attempts": 2}
    assert {name: one._options[name] for name in OPTIONS} == expected
    assert task.options.queue == "mail"


def test_a_task_without_a_partition_key_does_not_hold_one():
    task = declared(on_dead_letter="hold")
    assert task.using(Outbox())._options["on_dead_letter"] is OnDeadLetter.RELEASE
    assert task.using(Outbox(), partition_key="a")._options["on_dead_letter"] is OnDeadLetter.HOLD


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queue": ""}, "queue of task 'shop.pay' must be 1 to 200 characters"),
        ({"priority": 101}, "priority of task 'shop.pay' must be a whole number from -100 to 100"),
        ({"lease": 0}, "lease of task 'shop.pay' must be a timedelta that is greater than zero"),
        (
            {"timeout": timedelta(days=40_000)},
            "timeout of task 'shop.pay' must be a timedelta that is greater than zero",
        ),
        ({"on_dead_letter": "keep"}, "on_dead_letter must be one of 'release', 'hold'"),
    ],
)
def test_an_option_out_of_its_range_is_refused_where_the_task_is_declared(options, reason):
    with pytest.raises(InvalidArgument, match=reason):
        declared(**options)


def test_a_task_name_that_is_too_long_is_refused_on_declaration():
    with pytest.raises(InvalidArgument, match="task_name of task 'x+' must be 1 to 200 characters"):
        Outbox().task(name="x" * 201)(lambda: None)
