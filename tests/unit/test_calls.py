"""Calls that a sleeping worker keeps until a worker answers them."""

from __future__ import annotations

import math

import pytest

from outboxq.worker.distributor import postgresql
from outboxq.worker.distributor.postgresql import Call, Calls


def heard(*several):
    found = Calls()
    for queue, number, at in several:
        found.heard(Call(queue=queue, number=number, heard_at=at, look_at=at + 10))
    return found


def test_a_worker_checks_for_work_after_the_first_unanswered_call():
    found = heard(("mail", 7, 1.0), ("mail", 5, 2.0), ("mail", 9, 3.0))
    assert found.look_at == 11
    found.answered("mail", 5)
    assert found.look_at == 13
    found.answered("mail", 9)
    assert found.look_at == math.inf


def test_an_answer_applies_to_one_queue():
    found = heard(("news", 6, 0.0), ("mail", 7, 1.0), ("news", 7, 2.0))
    found.answered("mail", 7)
    assert found.look_at == 10
    found.answered("news", 6)
    assert found.look_at == 12


def test_one_answer_covers_both_notifications_of_a_transaction():
    found = heard(("mail", 7, 1.0), ("mail", 7, 1.1))
    found.answered("mail", 7)
    assert found.look_at == math.inf


def test_the_answer_to_an_unreceived_call_does_not_affect_other_calls():
    found = heard(("mail", 7, 1.0))
    found.answered("mail", 8)
    assert found.look_at == 11


def test_a_worker_that_cannot_keep_all_calls_checks_for_work(monkeypatch):
    """The answer to the last call that the worker kept says nothing about later calls."""
    monkeypatch.setattr(postgresql, "_MOST", 2)
    found = heard(("mail", 1, 1.0), ("mail", 2, 2.0), ("mail", 3, 3.0))
    found.answered("mail", 2)
    assert found.look_at == 11


@pytest.mark.parametrize(("heard_before", "last"), [(1.0, {}), (1.5, {"mail": 9}), (2.5, {"mail": 9, "news": 5})])
def test_a_worker_answers_the_last_call_of_each_queue_received_before_a_time(heard_before, last):
    found = heard(("mail", 7, 1.0), ("news", 5, 2.0), ("mail", 9, 3.0))
    assert found.last(heard_before=heard_before) == last
