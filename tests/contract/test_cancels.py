"""Cancels at random moments of a task's life: the answer, the row and the history always agree."""

from __future__ import annotations

import random
import threading
from uuid import uuid4

import pytest

from outboxq.errors import InvalidTransition, LeaseLost
from outboxq.model import STATUS_AFTER, TERMINAL, EventType, NewTask, Outcome, TaskStatus
from outboxq.model.history import replay
from outboxq.model.uuid7 import uuid7
from tests.contract import helpers
from tests.waiting import until

ENDS = [EventType.COMPLETED] * 5 + [EventType.FAILED] * 2 + [EventType.RETRY_SCHEDULED, EventType.SNOOZED]
SHORT = 0.004
BATCH = 5
UNFINISHED = "SELECT count(*) FROM task_executions WHERE status IN ('Ready', 'Running')"


def race(database, number, *, seed):
    """Run two workers against two operators, who enqueue tasks and soon cancel them. Return the answers to the cancels."""
    store, over, pause, told = database.store, threading.Event(), threading.Event(), {}

    def work(dice):
        worker = uuid4()
        while not over.is_set():
            claims = store.claim_ready_task(dice.randint(1, 3), worker_id=worker)
            pause.wait(dice.uniform(0, 2 * SHORT))
            beats = store.heartbeat(claims) if dice.random() < 0.5 else {}
            asked = {one for one, beat in beats.items() if beat.cancel_requested}
            kinds = {c.id: EventType.CANCELLED if c.id in asked else dice.choice(ENDS) for c in claims}
            store.finish([Outcome(claim=c, event_type=kinds[c.id]) for c in claims])

    def operate(dice):
        for _ in range(number // 2 // BATCH):
            keys = [dice.choice([None, None, None, "a", "b"]) for _ in range(BATCH)]
            rows = [NewTask(id=uuid7(), task_name="tests.work", args="{}", partition_key=key) for key in keys]
            for handle in store.enqueue_many(rows):
                pause.wait(dice.uniform(0, SHORT))
                try:
                    told[handle.id] = store.cancel(handle.id, force=dice.random() < 0.3, reason="race")
                except InvalidTransition as refused:
                    told[handle.id] = refused

    def cancel():
        try:
            done = helpers.at_once(lambda: operate(random.Random(seed)), lambda: operate(random.Random(seed + 1)))
            until(lambda: database.rows(UNFINISHED) == [(0,)])
            return done
        finally:
            over.set()

    done = helpers.at_once(cancel, lambda: work(random.Random(seed + 2)), lambda: work(random.Random(seed + 3)))
    assert done == [[None, None], None, None]
    assert len(told) == number
    return told


def check(database, told):
    answers = {"Cancelled": 0, "Running": 0, "refused": 0}
    for task_id, answer in told.items():
        task, events = database.store.get(task_id), database.store.history(task_id)
        state = replay(events)
        assert (state.status, state.attempt, state.lease_token) == (task.status, task.attempt, task.lease_token)
        ends = [event for event in events if STATUS_AFTER.get(event.event_type) in TERMINAL]
        assert ends == events[-1:], [event.event_type for event in events]
        by_operator = [event for event in events if event.event_data.get("reason") == "race"]
        if isinstance(answer, InvalidTransition):
            assert not by_operator
            answers["refused"] += 1
            continue
        answers[answer] += 1
        (mark,) = by_operator
        if answer is TaskStatus.CANCELLED:
            assert (task.status, mark) == (TaskStatus.CANCELLED, events[-1])
        else:  # it was asked to stop, so its end comes next
            assert mark.event_type is EventType.CANCEL_REQUESTED
            assert events[events.index(mark) + 1 :] == events[-1:]
    assert all(answers.values()), answers  # each kind of answer occurred
    assert database.rows("SELECT count(*) FROM partition_claims") == [(0,)]


@pytest.mark.in_turn
def test_cancels_at_random_offsets_and_the_history_agree(database):
    check(database, race(database, 250, seed=20300101))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_thousand_cancels_at_random_offsets_and_the_history_agree(database, seed):
    check(database, race(database, 1000, seed=seed))


def test_a_forced_cancel_and_a_completion_never_both_succeed(database):
    """The worker ends the task at the moment of the cancel. Exactly one of the two succeeds."""
    for _ in range(15):
        claim = helpers.claimed(database, partition_key="k")
        results = helpers.at_once(
            lambda claim=claim: database.frozen.complete(claim),
            lambda claim=claim: database.frozen.cancel(claim.id, force=True),
        )
        lost = [type(one) for one in results]
        assert lost in ([type(None), InvalidTransition], [LeaseLost, TaskStatus])
        expected = TaskStatus.COMPLETED if results[0] is None else TaskStatus.CANCELLED
        assert database.frozen.get(claim.id).status is expected
        assert len(database.frozen.history(claim.id)) == 3
