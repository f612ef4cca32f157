"""The options of a worker: one record contains them, and callers, help() and the command line follow it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from datetime import timedelta

import pytest

from outboxq import InvalidArgument, Worker
from outboxq.cli.serving.worker import worker as command
from outboxq.worker.options import WorkerOptions, WorkerSettings

OPTIONS = {one.name: one.default for one in fields(WorkerSettings)}


def test_callers_and_the_record_name_the_same_options():
    assert list(WorkerOptions.__annotations__) == list(OPTIONS)


def test_help_shows_each_option_with_its_default():
    shown = inspect.signature(Worker).parameters
    assert list(shown) == ["store", "tasks", "integration", "hooks", *OPTIONS]
    assert {name: shown[name].default for name in OPTIONS} == OPTIONS


def test_the_command_line_has_the_same_defaults():
    """If a repeatable option is not given, `none_if_empty` returns None."""
    context = command.make_context("worker", ["app:outbox"])
    passed_on = {name: value for name, value in context.params.items() if name in OPTIONS}
    assert {"concurrency", "drain_timeout", "topics", "relaxed_durability"} <= passed_on.keys()
    assert passed_on == {name: OPTIONS[name] for name in passed_on}


def test_values_are_checked_and_normalised():
    settings = WorkerSettings.of(queues=["mail", "mail"], poll=1, drain_timeout=0)
    assert (settings.queues, settings.poll, settings.drain_timeout) == (["mail"], timedelta(seconds=1), timedelta(0))


@pytest.mark.parametrize("name", ["drain_timeout", "recover_every", "unknown_task_limit", "concurrency"])
def test_none_is_refused_if_it_is_not_the_default(name):
    with pytest.raises(InvalidArgument, match=name):
        WorkerSettings.of(**{name: None})


def test_the_error_for_an_unknown_option_names_it():
    with pytest.raises(TypeError, match="concurency"):
        WorkerSettings.of(concurency=3)
