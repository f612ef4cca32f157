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


def test_a_worker_looks_for_the_first_call_that_is_not_answered():
    found = heard(("mail", 7, 1.0), ("mail", 5, 2.0), ("mail", 9, 3.0))
    assert found.look_at == 11
    found.answered("mail", 5)
    assert found.look_at == 13
    found.answered("mail", 9)
    assert found.look_at == math.inf


def test_an_answer_is_about_one_queue():
    found = heard(("news", 6, 0.0), ("mail", 7, 1.0), ("news", 7, 2.0))
    found.answered("mail", 7)
    assert found.look_at == 10
    found.answered("news", 6)
    assert found.look_at == 12


def test_both_notifications_of_a_transaction_are_answered():
    found = heard(("mail", 7, 1.0), ("mail", 7, 1.1))
    found.answered("mail", 7)
    assert found.look_at == math.inf


def test_the_answer_to_a_call_that_was_not_heard_answers_nothing():
    found = heard(("mail", 7, 1.0))
    found.answered("mail", 8)
    assert found.look_at == 11


def test_a_worker_that_cannot_keep_all_calls_looks_itself(monkeypatch):
    """The answer to the last call that the worker kept says nothing about later calls."""
    monkeypatch.setattr(postgresql, "_MOST", 2)
    found = heard(("mail", 1, 1.0), ("mail", 2, 2.0), ("mail", 3, 3.0))
    found.answered("mail", 2)
    assert found.look_at == 11


@pytest.mark.parametrize(("heard_before", "last"), [(1.0, {}), (1.5, {"mail": 9}), (2.5, {"mail": 9, "news": 5})])
def test_a_worker_answers_the_last_call_of_each_queue_that_has_waited(heard_before, last):
    found = heard(("mail", 7, 1.0), ("news", 5, 2.0), ("mail", 9, 3.0))
    assert found.last(heard_before=heard_before) == last
