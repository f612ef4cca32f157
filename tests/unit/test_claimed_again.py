"""Claims that were lost in a crash of the server, and that the same worker then makes again. These tests use no database.

The database's answer about such a claim may be from before the crash, and arrive after the task has been claimed again.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from outboxq.context import TaskContext
from outboxq.model import SUSPECT, Claim, EventType, Outcome
from outboxq.store import ClaimCursor
from outboxq.store.claims.ends import Beat
from outboxq.worker.claim_loop import ClaimLoop
from outboxq.worker.completer import Completer
from outboxq.worker.leases import ClaimState, Leases
from outboxq.worker.options import WorkerSettings
from outboxq.worker.task_runner import TaskRunner
from tests.waiting import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def claim_of() -> Claim:
    return Claim(
        id=uuid4(),
        pipeline_execution_id=uuid4(),
        task_name="t",
        queue="default",
        priority=0,
        args="{}",
        headers=None,
        attempt=1,
        max_attempts=None,
        recovery_attempts=0,
        lease_token=1,
        worker_id=uuid4(),
        lease_seconds=60.0,
        lease_expires_at=NOW,
        timeout_seconds=None,
        created_at=NOW,
        first_started_at=NOW,
        started_at=NOW,
    )


class LateStore:
    """A store that says once that a claim is over. Before this answer arrives, the worker claims the task again."""

    def __init__(self):
        self.gone = threading.Event()
        self.asked = 0
        self.claim_again = lambda: None

    def _knows(self) -> bool:
        self.asked += 1
        if self.asked == 1:
            self.claim_again()
        return self.asked > 1

    def heartbeat(self, claims):
        return {one.id: Beat(NOW, cancel_requested=False) for one in claims} if self._knows() else {}

    def finish(self, outcomes, *, durable=True, waits=True):
        return frozenset() if self._knows() else frozenset(one.claim.id for one in outcomes)

    def finish_unlocked(self, outcomes, *, durable=True):
        return self.finish(outcomes), frozenset()


@pytest.fixture
def store():
    return LateStore()


@pytest.fixture
def leases(store):
    return Leases(store)


@pytest.fixture
def active(store, leases):
    """A claim that the worker holds, and makes again while the store handles its first call."""
    claim = claim_of()
    [one] = leases.hold([TaskContext(claim, max_attempts=None, stopping=threading.Event())], sent=time.monotonic())
    store.claim_again = lambda: leases.hold_on(claim, sent=time.monotonic())
    leases.note_break()
    return one


@pytest.fixture
def completer(store, leases, monkeypatch):
    monkeypatch.setattr("outboxq.worker.completer._RETRY_AFTER", 0.001)
    one = Completer(store, leases, on_thread_failure=lambda _error: None)
    one.start()
    yield one
    store.gone.set()
    one.finish()
    one.join(60)


def test_a_heartbeat_sent_before_the_new_claim_does_not_end_the_claim(active, store, leases):
    leases.run_once()
    assert store.asked == 1
    assert not active.context.lost
    assert active.next_beat < time.monotonic() + 60


def test_a_heartbeat_sent_after_the_new_claim_can_end_the_claim(active, store, leases):
    leases.hold_on(active.claim, sent=time.monotonic())
    until(lambda: time.monotonic() > active.claimed_again_at)
    store.claim_again = lambda: None
    leases.run_once()
    assert active.context.was_lost


def test_an_outcome_refused_before_the_new_claim_is_written_again(active, store, leases, completer):
    completer.put(Outcome(claim=active.claim, event_type=EventType.COMPLETED), active)
    until(lambda: leases.held() == [])
    assert store.asked == 2
    assert not active.context.was_lost


def test_a_stopping_worker_also_writes_a_refused_outcome_again(active, store, leases, completer):
    completer.put(Outcome(claim=active.claim, event_type=EventType.COMPLETED), active)
    completer.finish()
    completer.join(60)
    assert store.asked == 2


class Puts(list):
    """A completer that only keeps its outcomes."""

    def put(self, outcome, active=None):
        self.append(outcome)
        if active is not None:
            active.state = ClaimState.HANDED_OVER

    def lost(self, active):
        active.context.was_lost = True


@pytest.fixture
def runner(store, leases):
    return TaskRunner(own=store, leases=leases, outcomes=Puts(), begin=None, attempt=None)


def test_a_claim_found_lost_before_its_start_is_released_if_it_was_made_again(active, leases, runner):
    runner.run(active)
    assert [one.event_type for one in runner.outcomes] == [EventType.RELEASED]
    assert leases.held() == []


def test_a_claim_found_lost_before_its_start_is_dropped_if_it_was_not_made_again(active, store, leases, runner):
    store.claim_again = lambda: None
    runner.run(active)
    assert runner.outcomes == []
    assert leases.held() == []


def unanswered(_asked):
    raise ConnectionError("the server is away")


def test_a_claim_that_cannot_be_verified_is_released(active, store, leases, runner, caplog):
    store.heartbeat = unanswered
    runner.run(active)
    [outcome] = runner.outcomes
    assert (outcome.event_type, outcome.data) == (EventType.RELEASED, {"reason": "its claim could not be verified"})
    assert outcome.delay >= timedelta(seconds=1)  # otherwise, the task would be claimed again immediately
    assert "it is not known whether its claim survived the loss of a connection; the task is released" in caplog.text
    assert active.context.began is None
    assert leases.held() == [active]  # heartbeats extend its lease until its outcome is written


def test_a_suspect_task_whose_start_cannot_be_recorded_is_released(leases, runner, caplog):
    runner.begin = unanswered
    claim = replace(claim_of(), recovery_attempts=SUSPECT)
    [suspect] = leases.hold([TaskContext(claim, max_attempts=None, stopping=threading.Event())], sent=time.monotonic())
    runner.run(suspect)
    [outcome] = runner.outcomes
    assert (outcome.event_type, outcome.data) == (EventType.RELEASED, {"reason": "its start could not be recorded"})
    assert "its start could not be recorded; the task is released" in caplog.text
    assert suspect.context.began is None
    assert leases.held() == [suspect]


def test_a_stopping_worker_does_not_release_a_task_whose_handler_runs(active, leases):
    """The drain waits for that handler, and its outcome is written."""
    other, stopping, given_back = claim_of(), threading.Event(), []

    class ClaimsLast(SimpleNamespace):
        def claim_ready_task(self, *_arguments, **_options):
            stopping.set()
            return [active.claim, other]

        def finish(self, outcomes):
            given_back.extend(one.claim for one in outcomes)
            return frozenset()

    writable = threading.Event()
    writable.set()
    idle = SimpleNamespace(
        size=1,
        prefetch_limit=1,
        in_flight=0,
        handled=0,
        queued=0,
        prefetch=0,
        can_write=writable,
        wait_until_at_most=lambda *_arguments: True,
    )
    loop = ClaimLoop(
        ClaimsLast(),
        {},
        WorkerSettings(),
        leases=leases,
        pool=idle,
        completer=idle,
        distributor=None,
        unknown=None,
        worker_id=active.claim.worker_id,
        cursor=ClaimCursor(),
        stopping=stopping,
        on_finished=lambda: None,
        on_thread_failure=lambda _error: None,
    )
    loop.run()
    assert given_back == [other]


@pytest.mark.parametrize("when", ["before it ended", "after it ended"])
def test_the_outcome_of_a_handler_that_knew_of_the_loss_is_discarded(active, store, leases, completer, when):
    """The handler may have stopped half-way, as it should, and then returned."""
    written = []
    store.claim_again = lambda: None
    store.finish = lambda outcomes, **_options: written.extend(outcomes) or frozenset()
    leases.mark_lost(active.claim)
    if when == "before it ended":
        assert leases.hold_on(active.claim, sent=time.monotonic())
        assert active.context.lost
    completer.put(Outcome(claim=active.claim, event_type=EventType.COMPLETED), active)
    until(lambda: leases.held() == [])
    assert [one.event_type for one in written] == [EventType.RELEASED]


def test_an_outcome_is_written_unchanged_if_no_connection_was_lost(active, store, leases, completer):
    store.claim_again, leases.broke_at = (lambda: None), -math.inf
    written = []
    store.finish = lambda outcomes, **_options: written.extend(outcomes) or frozenset()
    leases.mark_lost(active.claim)
    completer.put(Outcome(claim=active.claim, event_type=EventType.COMPLETED), active)
    until(lambda: leases.held() == [])
    assert [one.event_type for one in written] == [EventType.COMPLETED]
