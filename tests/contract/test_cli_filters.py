"""A bulk change that matches nothing says so. Bulk changes and lists refuse filters with unknown names."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.model import EventType, Outcome
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule
from tests.contract import helpers

BULK = [("failed", "redrive"), ("failed", "discard"), ("task", "cancel")]


def outboxq(database, *words: str, code: int = 0):
    result = CliRunner().invoke(main, words, env={"OUTBOXQ_DATABASE_URL": database.url}, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def mail(database):
    claim = helpers.claimed(database, queue="mail", task_name="shop.send")
    data = {"exception": "builtins.ValueError", "error": "ValueError: no"}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    return database


@pytest.mark.parametrize("how", ["--yes", "--dry-run"])
@pytest.mark.parametrize("words", BULK, ids=" ".join)
def test_an_unknown_queue_or_task_is_refused_with_the_nearest_name(mail, words, how):
    error = outboxq(mail, *words, "-q", "mial", how, code=3).stderr
    assert "there is no queue 'mial'" in error
    assert "did you mean 'mail'?" in error
    error = outboxq(mail, *words, "--task", "shop.sned", how, code=3).stderr
    assert "task 'shop.sned' is unknown: it is not declared, " in error
    assert "did you mean 'shop.send'?" in error


@pytest.mark.parametrize(
    ("words", "empty"),
    [
        (("task", "list"), []),
        (("task", "list", "--sort", "wait"), []),
        (("failed", "list"), []),
        (("failed", "summary"), {"groups": [], "looked_at": 0, "is_complete": True}),
    ],
    ids=["tasks", "slowest", "dead letters", "groups"],
)
def test_a_list_for_an_unknown_queue_or_task_is_empty_and_names_the_nearest_one(mail, words, empty):
    result = outboxq(mail, *words, "-q", "mial", "--json", code=3)
    assert "there is no queue 'mial'" in result.stderr
    assert "did you mean 'mail'?" in result.stderr
    assert json.loads(result.stdout) == empty
    assert "did you mean 'shop.send'?" in outboxq(mail, *words, "--task", "shop.sned", code=3).stderr
    mail.add(mail.store, task_name="shop.wait", queue="mail")
    known = ("--task", "shop.send", "--topic", "order.paid")
    assert outboxq(mail, *words, *known).stderr == outboxq(mail, *words, "-q", "mail", "--topic", "x").stderr == ""


@pytest.mark.parametrize("words", BULK, ids=" ".join)
def test_a_known_name_without_matching_tasks_prints_that_nothing_matched(mail, words):
    noun = "waiting and running tasks" if words[0] == "task" else "dead letters"
    for wanted in (("-q", "default"), ("--task", "shop.send", "--topic", "order.paid")):
        assert outboxq(mail, *words, *wanted, "--yes").stdout == f"0 {noun} matched\n"
    record = json.loads(outboxq(mail, *words, "-q", "default", "--yes", "--json").stdout)
    assert (record["changed"], record["matched"]) == (0, 0)


def test_the_name_of_a_waiting_task_is_known(mail):
    mail.add(mail.store, task_name="shop.wait")
    assert outboxq(mail, "failed", "redrive", "--task", "shop.wait", "--yes").stdout == "0 dead letters matched\n"


@pytest.mark.parametrize("given", ["ValueEror", "builtins.ValueEror"])
def test_an_exception_that_no_dead_letter_has_is_reported_with_the_nearest_one(mail, given):
    known = "builtins.ValueError" if "." in given else "ValueError"
    said = outboxq(mail, "failed", "redrive", "--exception", given, "--yes").stdout
    assert said == f"0 dead letters matched: no dead letter has the exception {given!r}; did you mean {known!r}?\n"
    said = outboxq(mail, "failed", "redrive", "--exception", known, "-q", "default", "--yes").stdout
    assert said == (
        f"0 dead letters matched: the dead letters with the exception {known!r} do not match the other filters\n"
    )


@pytest.mark.parametrize("verb", ["trigger", "pause", "resume", "remove", "show"])
def test_a_mistyped_schedule_is_refused_with_the_nearest_name(database, verb):
    new = NewSchedule(name="nightly", task_name="shop.send", args="{}", rule="@daily", tz="UTC")
    database.store.schedules.put(new)
    error = outboxq(database, "schedule", verb, "nigthly", code=3).stderr
    assert "there is no schedule 'nigthly'; did you mean 'nightly'?" in error


@pytest.mark.parametrize("words", [("pause",), ("resume",), ("show",), ("remove", "--yes")], ids=" ".join)
def test_a_mistyped_relay_is_refused_with_the_known_names(database, words):
    database.store.relays.declare([NewRelay(name="orders", topics=["order.*"])])
    error = outboxq(database, "relay", words[0], "order", *words[1:], code=3).stderr
    assert "there is no relay 'order'" in error
    assert "the relays to brokers are: orders" in error
