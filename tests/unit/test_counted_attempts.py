"""Counts of attempts: each attempt counts once, with its own times, whatever the database answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from outboxq.context import TaskContext
from outboxq.model import Claim, EventType, Outcome
from outboxq.worker.completer import Completer, Handback
from outboxq.worker.leases import Leases
from outboxq.worker.meter import AttemptEnd
from outboxq.worker.task_runner import TaskRunner

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class FakeStore:
    """A store that answers with the return value of `answer`: the ids of the lost outcomes."""

    def __init__(self):
        self.gone = threading.Event()
        self.written = []
        self.answer = lambda _outcomes: frozenset()

    unusable = staticmethod(lambda _error: None)
    may_pass = cannot_write_now = is_locked_out = staticmethod(lambda _error: False)

    def finish(self, outcomes, *, durable=True, waits=True):
        if len({one.claim.id for one in outcomes}) < len(outcomes):
            raise ValueError("one for each task")
        self.written.append(list(outcomes))
        return self.answer(outcomes)

    def finish_unlocked(self, outcomes, *, durable=True):
        return self.finish(outcomes), frozenset()


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def leases(store):
    return Leases(store)


@pytest.fixture
def completer(store, leases):
    """A completer whose thread is not started. `write` does its work."""
    return Completer(store, leases, on_thread_failure=lambda _: None)


def write(completer):
    """Write all outcomes that were added so far."""
    completer.finish()
    completer.run()


def attempt(leases, *, task_id=None, token=1, ran=None, sent=100.0):
    """Return a held claim. With `ran`, its handler has waited for one second and run for that many seconds."""
    claim = Claim(
        id=task_id or uuid4(),
        pipeline_execution_id=uuid4(),
        task_name="t",
        queue="default",
        priority=0,
        args="{}",
        headers=None,
        attempt=1,
        max_attempts=None,
        recovery_attempts=0,
        lease_token=token,
        worker_id=uuid4(),
        lease_seconds=1e9,
        lease_expires_at=NOW,
        timeout_seconds=None,
        created_at=NOW,
        first_started_at=NOW,
        started_at=NOW,
    )
    context = TaskContext(claim, max_attempts=None, stopping=threading.Event())
    [active] = leases.hold([context], sent=sent)
    if ran is not None:
        context.began, context.ended = sent + 1.0, sent + 1.0 + ran
    return active


def completed(active):
    return Outcome(claim=active.claim, event_type=EventType.COMPLETED)


def ends(leases):
    found: Counter[str] = Counter()
    for counts in leases.meter.read().values():
        found.update({end.value: number for end in AttemptEnd if (number := getattr(counts, end))})
    return dict(found)


def times(leases):
    return [(one.wait_seconds, one.run_seconds) for one in leases.meter.read().values()]


def test_an_outcome_that_is_written_again_after_a_new_claim_counts_once(completer, store, leases):
    active = attempt(leases, ran=2.0)

    def answer(outcomes):
        if len(store.written) > 1:
            return frozenset()
        leases.hold_on(active.claim, sent=time.monotonic())  # in the meantime, after a crash of the server
        return frozenset({active.claim.id})

    store.answer = answer
    completer.put(completed(active), active)
    write(completer)
    assert len(store.written) == 2
    assert ends(leases) == {"completed": 1}
    assert times(leases) == [(1.0, 2.0)]


@pytest.mark.parametrize("kind", [EventType.COMPLETED, EventType.RELEASED])
def test_an_outcome_that_the_database_always_refuses_counts_as_lost(completer, store, leases, kind):
    def answer(_outcomes):
        raise ValueError("refused")

    store.answer = answer
    active = attempt(leases, ran=2.0)
    completer.put(Outcome(claim=active.claim, event_type=kind), active)
    write(completer)
    assert ends(leases) == {"lost": 1}
    assert times(leases) == [(1.0, 2.0)]


def test_an_outcome_that_a_stopped_worker_could_not_write_counts_as_lost(completer, store, leases):
    def answer(_outcomes):
        raise ConnectionError

    store.answer = answer
    store.gone.set()
    active = attempt(leases)
    completer.put(completed(active), active)
    write(completer)
    assert ends(leases) == {"lost": 1}


def test_a_lost_attempt_counts_with_its_times_though_its_task_was_claimed_again(completer, store, leases):
    first = attempt(leases, ran=2.0)
    attempt(leases, task_id=first.claim.id, token=2, ran=50.0)
    store.answer = lambda outcomes: frozenset(one.claim.id for one in outcomes)
    completer.put(completed(first), first)
    write(completer)
    assert ends(leases) == {"lost": 1}
    assert times(leases) == [(1.0, 2.0)]


def test_two_attempts_at_a_task_that_end_together_are_counted_separately(completer, store, leases, caplog):
    first = attempt(leases, ran=2.0)
    second = attempt(leases, task_id=first.claim.id, token=2, ran=50.0)
    store.answer = lambda outcomes: frozenset(one.claim.id for one in outcomes if one.claim.lease_token == 1)
    completer.put(completed(first), first)
    completer.put(completed(second), second)
    write(completer)
    assert ends(leases) == {"lost": 1, "completed": 1}
    assert times(leases) == [(2.0, 52.0)]
    assert leases.meter.read_leases_lost() == {}, "the second attempt kept its lease"
    assert caplog.text.count("is discarded") == 1
    assert leases.held() == []


def test_a_released_task_counts_once_although_its_handler_ends_later(completer, store, leases):
    active = attempt(leases)
    assert Handback(store, leases).give_back(5.0) == 1
    store.answer = lambda outcomes: frozenset(one.claim.id for one in outcomes)
    completer.put(completed(active), active)
    write(completer)
    assert ends(leases) == {"released": 1}


def test_an_outcome_written_during_the_release_counts_instead_of_the_release(completer, store, leases):
    active = attempt(leases, ran=2.0)

    def answer(outcomes):
        if outcomes[0].event_type is EventType.COMPLETED:
            return frozenset()
        completer.put(completed(active), active)
        write(completer)
        return frozenset({active.claim.id})

    store.answer = answer
    assert Handback(store, leases).give_back(5.0) == 0
    assert ends(leases) == {"completed": 1}


def test_an_attempt_that_lost_its_lease_before_the_release_counts_as_lost(store, leases):
    active = attempt(leases)
    active.context.began = 101.0
    store.answer = lambda outcomes: frozenset(one.claim.id for one in outcomes)
    assert Handback(store, leases).give_back(5.0) == 0
    assert ends(leases) == {"lost": 1}
    assert times(leases) == [(1.0, 0.0)]


def test_an_attempt_that_was_lost_and_claimed_again_counts_once(completer, store, leases):
    """The task is released, because the claim would otherwise not end. But no handler started after the claim was made again."""
    active = attempt(leases)
    leases.hold_on(active.claim, sent=time.monotonic())
    leases.mark_lost(active.claim)
    TaskRunner(store, leases, completer, lambda _claim: True, lambda _active: None).run(active)
    write(completer)
    assert [one.event_type for one in store.written[0]] == [EventType.RELEASED]
    assert ends(leases) == {"lost": 1}


def test_the_wait_ends_at_the_start_even_if_the_claim_is_made_again_later(leases):
    active = attempt(leases, ran=2.0, sent=100.0)
    assert leases.hold_on(active.claim, sent=500.0)
    assert leases.hold_on(active.claim, sent=600.0)
    assert active.timing == (1.0, 2.0)
