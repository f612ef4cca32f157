"""The time that a task has slept, which its retry policy does not count."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from outboxq.context import TaskContext
from outboxq.model.running import Step, time_asleep
from outboxq.worker.failpoints import ignore_failpoint
from outboxq.worker.steps import Steps

START = datetime(2030, 1, 1, tzinfo=UTC)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def step(begun: float, due: float | None) -> Step:
    return Step(
        task_execution_id=uuid4(),
        name=f"{begun} to {due}",
        number=1,
        lease_token=1,
        result=None,
        due_at=None if due is None else day(due),
        created_at=day(begun),
    )


@pytest.mark.parametrize(
    ("steps", "days"),
    [
        ([], 0),
        ([(1, None)], 0),
        ([(1, 3)], 2),
        ([(5, 7), (1, 3)], 4),
        ([(1, 4), (2, 3), (3, 6)], 5),
        ([(-9, -8)], 0),
        ([(-9, 2)], 2),
        ([(9, 99)], 1),
        ([(2, 2), (3, 2)], 0),
    ],
    ids=[
        "none",
        "a step is no sleep",
        "one",
        "two",
        "at once",
        "before the first attempt",
        "over its begin",
        "not yet over",
        "of nothing",
    ],
)
def test_overlapping_sleeps_count_once_and_only_within_the_attempts(steps, days):
    found = time_asleep([step(*one) for one in steps], since=day(0), until=day(10))
    assert found == timedelta(days=days)


class AwayStore:
    """A store whose database does not answer."""

    def __init__(self):
        self.gone, self.asked, self.steps = threading.Event(), 0, self

    def _ask(self, *_claim):
        self.asked += 1
        if self.asked > 3:
            raise AssertionError("the store was asked too often")
        raise ConnectionError("the database is away")

    of_claim = restarted_at = ensure_usable = _ask

    @staticmethod
    def may_pass(error):
        return isinstance(error, ConnectionError)

    cannot_write_now = may_pass


@pytest.mark.parametrize(
    ("began", "was_killed", "asked"), [(day(1), True, 1), (day(0), False, 0)], ids=["killed", "first attempt"]
)
def test_the_end_of_an_attempt_does_not_wait_for_its_sleeps(began, was_killed, asked):
    """The end of a killed attempt ends its process and must not hold up other timeouts. A first attempt has no earlier sleeps."""
    store = AwayStore()
    steps = Steps(store, store, store.steps, None, None, ignore_failpoint)
    names = dict.fromkeys(("id", "task_name", "queue", "attempt", "worker_id", "pipeline_execution_id"))
    claim = SimpleNamespace(lease_token=2, first_started_at=day(0), started_at=began, **names)
    context = TaskContext.__new__(TaskContext)
    context.claim, context.steps, context.was_lost, context.has_died = claim, None, False, was_killed
    assert steps.uncounted_time(context) == timedelta(0)
    assert store.asked == asked
