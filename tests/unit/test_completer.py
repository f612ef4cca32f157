"""The thread that writes outcomes. It writes them together while another batch is being written, and otherwise immediately. These tests use
no database.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from uuid import uuid4

import pytest

from outboxq.context import TaskContext
from outboxq.errors import FileUnusable, OutcomesRefused
from outboxq.model import Claim, EventType, Outcome
from outboxq.model.batches import new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.worker.completer import Completer
from outboxq.worker.failpoints import Failpoint
from outboxq.worker.leases import Leases
from tests.waiting import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Away(Exception):
    """An error that may go away when the call is retried."""


class Full(Exception):
    """The disk is full."""


class LockedOut(Exception):
    """Another transaction has locked a row."""


class FakeStore:
    """A store that records what it is told to write. `answer` returns the result, and `locked` contains the tasks that another transaction
    has locked.

    `locked_batches` are the batches whose rows another transaction has locked.
    """

    def __init__(self):
        self.gone = threading.Event()
        self.batches = []
        self.unlocked = []
        self.locked = set()
        self.locked_batches = set()
        self.answer = lambda _outcomes: frozenset()

    @staticmethod
    def unusable(error):
        return error if isinstance(error, FileUnusable) else None

    @staticmethod
    def may_pass(error):
        return isinstance(error, Away)

    @staticmethod
    def cannot_write_now(error):
        return isinstance(error, Full)

    @staticmethod
    def is_locked_out(error):
        return isinstance(error, LockedOut)

    def _meets_locked_batch(self, outcomes):
        ends = [one for one in outcomes if one.event_type is not EventType.RELEASED]
        return self.locked_batches & {one.claim.pipeline_execution_id for one in ends}

    def finish(self, outcomes, *, durable=True, waits=True):
        assert not waits
        self.batches.append(list(outcomes))
        if self.locked & {one.claim.id for one in outcomes} or self._meets_locked_batch(outcomes):
            raise LockedOut
        return self.answer(outcomes)

    def finish_unlocked(self, outcomes, *, durable=True):
        locked = frozenset(self.locked & {one.claim.id for one in outcomes})
        self.unlocked.append(list(outcomes))
        if self._meets_locked_batch(outcomes):
            raise LockedOut
        return self.answer([one for one in outcomes if one.claim.id not in locked]), locked


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("outboxq.worker.completer._RETRY_AFTER", 0.001)


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def leases(store):
    return Leases(store)


@pytest.fixture
def died():
    return []


@pytest.fixture
def completer(store, leases, died):
    completer = Completer(store, leases, on_thread_failure=died.append)
    completer.start()
    yield completer
    store.gone.set()
    completer.finish()
    completer.join(60)


def outcome(leases=None, *, seconds=60.0, token=1, task_id=None, batch=None, event_type=EventType.COMPLETED):
    """Return an outcome. If `leases` is given, its claim is held."""
    claim = Claim(
        id=task_id or uuid4(),
        pipeline_execution_id=batch or uuid7(),
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
        lease_seconds=seconds,
        lease_expires_at=NOW,
        timeout_seconds=None,
        created_at=NOW,
        first_started_at=NOW,
        started_at=NOW,
    )
    if leases is not None:
        context = TaskContext(claim, max_attempts=None, stopping=threading.Event())
        leases.hold([context], sent=time.monotonic())
    return Outcome(claim=claim, event_type=event_type)


def block_the_first(store):
    """Make the first batch wait for the event that this function returns."""
    gate, real = threading.Event(), store.answer

    def answer(outcomes):
        if len(store.batches) == 1:
            assert gate.wait(60)
        return real(outcomes)

    store.answer = answer
    return gate


def test_a_single_outcome_is_written_immediately(completer, store):
    def seconds() -> float:
        before, began = len(store.batches), time.monotonic()
        completer.put(outcome())
        until(lambda: len(store.batches) > before, every=0.0002)
        return time.monotonic() - began

    until(lambda: seconds() < 0.005)  # one fast write is enough: slower ones are due to the machine
    assert {len(batch) for batch in store.batches} == {1}


def test_outcomes_that_arrive_during_a_write_form_the_next_batch(completer, store):
    gate = block_the_first(store)
    completer.put(outcome())
    until(lambda: store.batches)
    rest = [outcome() for _ in range(10)]
    for one in rest:
        completer.put(one)
    gate.set()
    assert completer.flush(10)
    assert store.batches[1:] == [rest]


def test_a_batch_has_at_most_1000_outcomes(completer, store):
    gate = block_the_first(store)
    completer.put(outcome())
    until(lambda: store.batches)
    rest = [outcome() for _ in range(2001)]
    for one in rest:
        completer.put(one)
    gate.set()
    assert completer.flush(10)
    assert [len(batch) for batch in store.batches] == [1, 1000, 1000, 1]
    assert [one for batch in store.batches[1:] for one in batch] == rest


def test_a_flush_returns_when_all_earlier_outcomes_are_written(completer, store):
    gate = block_the_first(store)
    completer.put(outcome())
    assert completer.flush(0.02) is False
    completer.put(outcome())
    gate.set()
    assert completer.flush(10) is True
    assert sum(map(len, store.batches)) == 2


def test_a_flush_without_outcomes_returns(completer):
    assert completer.flush(10) is True


def test_finish_writes_all_earlier_outcomes_and_ends_the_thread(completer, store):
    gate = block_the_first(store)
    for _ in range(5):
        completer.put(outcome())
    completer.finish()
    gate.set()
    completer.join(60)
    assert not completer.is_alive()
    assert sum(map(len, store.batches)) == 5


def test_an_outcome_that_cannot_be_written_does_not_affect_the_others(completer, store, leases, caplog):
    gate = block_the_first(store)
    bad, written = outcome(leases), []

    def answer(outcomes):
        if bad in outcomes:
            raise ValueError("it is unwritable: \u20ac")
        written.extend(outcomes)
        return frozenset()

    blocking = store.answer
    store.answer = lambda outcomes: blocking(outcomes) if len(store.batches) == 1 else answer(outcomes)
    completer.put(outcome())
    until(lambda: store.batches)
    good = [outcome(leases) for _ in range(6)]
    for one in [*good[:3], bad, *good[3:]]:
        completer.put(one)
    gate.set()
    assert completer.flush(10)
    assert [one for one in written if one.claim != bad.claim] == good
    [instead] = [one for one in written if one.claim == bad.claim]
    assert instead.event_type is EventType.FAILED
    assert instead.error == r"the database refused its outcome task_completed: it is unwritable: \u20ac"
    assert f"task {bad.claim.id}: its outcome task_completed could not be written" in caplog.text
    assert caplog.text.count("could not be written") == 1
    assert leases.held() == []  # it is no longer extended, so that it can be recovered


def fail(times, error, failures):
    """Return a function that raises this error `times` times."""

    def answer(_outcomes):
        if len(failures) < times:
            failures.append(1)
            raise error
        return frozenset()

    return answer


@pytest.mark.parametrize("error", [Away, Full])
@pytest.mark.parametrize("ends", ["it lasts", "its time is over", "it was told so"])
def test_outcomes_wait_for_the_database_even_if_their_lease_seems_lost(completer, store, leases, caplog, ends, error):
    """Only the database knows whether another worker has claimed the task since."""
    store.answer = fail(3, error(), [])
    one = outcome(leases, seconds=0.0001 if ends == "its time is over" else 60.0)
    if ends == "it was told so":
        leases.held()[0].context.was_lost = True
    completer.put(one)
    assert completer.flush(10)
    assert store.batches + store.unlocked == [[one]] * 4
    assert leases.held() == []
    assert caplog.text.count("1 outcome is waiting for the database") == 1, "one line a minute is enough"


@pytest.mark.parametrize("error", [Away, Full])
def test_claiming_is_stopped_while_outcomes_cannot_be_written(completer, store, leases, error):
    away, seen = threading.Event(), []

    def answer(_outcomes):
        seen.append(completer.can_write.is_set())
        if not away.is_set():
            raise error
        return frozenset()

    store.answer = answer
    completer.put(outcome(leases))
    until(lambda: len(seen) > 2)
    assert seen[0]
    assert not any(seen[1:])
    away.set()
    assert completer.flush(10)
    assert completer.can_write.is_set()


def test_an_outcome_whose_row_is_locked_does_not_delay_others(completer, store, leases):
    gate = block_the_first(store)
    completer.put(outcome())
    until(lambda: store.batches)
    locked, others = outcome(leases), [outcome(leases) for _ in range(3)]
    store.locked = {locked.claim.id}
    for one in [others[0], locked, *others[1:]]:
        completer.put(one)
    gate.set()
    assert completer.flush(10)
    assert [held.claim for held in leases.held()] == [locked.claim]
    assert completer.has_locked
    store.locked = set()
    until(lambda: not leases.held())
    assert not completer.has_locked
    assert store.unlocked[-1] == [locked]


def test_a_locked_outcome_is_written_while_others_keep_arriving(completer, store, leases):
    locked, over = outcome(leases), threading.Event()
    store.locked = {locked.claim.id}

    def answer(_outcomes):
        if not over.is_set():
            completer.put(outcome())  # each write is followed by another outcome
        return frozenset()

    store.answer = answer
    completer.put(locked)
    completer.put(outcome())
    until(lambda: len(store.unlocked) > 3)
    store.locked = set()
    until(lambda: not leases.held())
    over.set()


def test_the_ends_of_a_locked_batch_wait_together_and_do_not_delay_others(completer, store, leases):
    """Meanwhile, it writes releases and the outcomes of other tasks. It does not try to write later ends of the batch."""
    gate = block_the_first(store)
    completer.put(outcome())
    until(lambda: store.batches)
    batch, other = new_batch_id(), new_batch_id()
    members = [outcome(leases, batch=batch) for _ in range(60)]
    others = [
        outcome(leases),
        outcome(leases, batch=other),
        outcome(leases, batch=batch, event_type=EventType.RELEASED),
    ]
    store.locked_batches = {batch}
    for one in [*members[:40], *others]:
        completer.put(one)
    gate.set()
    until(lambda: {held.claim.id for held in leases.held()} == {one.claim.id for one in members})
    assert completer.has_locked
    assert not [one for one in store.unlocked if len(one) == 1 and one[0] in members], "no outcome is tried alone"
    asked, tried = len(store.batches), len(store.unlocked)
    more = [outcome(leases), outcome(leases, batch=batch, event_type=EventType.RELEASED)]
    for one in [*members[40:], *more]:
        completer.put(one)
    until(lambda: len(leases.held()) == len(members))
    until(lambda: len(store.unlocked) > tried + 3)
    assert store.batches[asked:] == [more[:1]], "only the outcome of a task outside the batch is written as usual"
    assert all(len(one) == 60 for one in store.unlocked[-2:]), "all outcomes of the batch are tried together"
    store.locked_batches = set()
    until(lambda: not leases.held())
    assert not completer.has_locked


def test_locked_batches_are_retried_in_turn_between_other_writes(completer, store, leases):
    """An outcome waits for at most one locked batch, however many there are."""
    batches = [new_batch_id() for _ in range(20)]
    store.locked_batches = set(batches)
    for batch in batches:
        completer.put(outcome(leases, batch=batch))
    until(lambda: len(completer._locked) == len(batches))
    tried = []

    def answer(outcomes):
        tried.append(len(store.unlocked))
        if len(tried) < 50:
            completer.put(outcome())  # each write is followed by another outcome
        return frozenset()

    store.answer = answer
    completer.put(outcome())
    until(lambda: len(tried) == 50)
    assert max(after - before for before, after in pairwise(tried)) <= 1
    assert len({one[0].claim.pipeline_execution_id for one in store.unlocked[-40:]}) == len(batches)
    store.locked_batches = set()
    until(lambda: not leases.held())


def test_a_worker_claims_nothing_while_very_many_outcomes_wait_for_a_lock(
    completer, store, leases, monkeypatch, caplog
):
    """Their leases are extended all the time. If the worker is killed, it has run their tasks for nothing."""
    monkeypatch.setattr("outboxq.worker.completer._MOST_LOCKED", 30)
    monkeypatch.setattr("outboxq.worker.completer._BATCH_LIMIT", 10)
    batch = new_batch_id()
    store.locked_batches = {batch}
    for _ in range(29):
        completer.put(outcome(leases, batch=batch))
    until(lambda: sum(len(one.outcomes) for one in completer._locked.values()) == 29)
    assert completer.can_write.is_set()
    completer.put(outcome(leases, batch=batch))
    until(lambda: not completer.can_write.is_set())
    other = outcome(leases)
    completer.put(other)
    until(lambda: not leases.holds(other.claim))
    assert not completer.can_write.is_set()
    store.locked_batches = set()
    until(lambda: not leases.held())
    assert completer.can_write.is_set()
    assert caplog.text.count("until there are fewer, this worker claims no tasks") == 1


def test_a_failure_that_waits_for_its_batch_is_not_reported_yet(completer, store, leases):
    batch, told = new_batch_id(), []
    completer.on_member_failed = lambda: told.append(len(store.unlocked))
    store.locked_batches = {batch}
    completer.put(outcome(leases, batch=batch, event_type=EventType.FAILED))
    until(lambda: len(store.unlocked) > 3)
    assert told == []
    store.locked_batches = set()
    until(lambda: not leases.held())
    assert len(told) == 1


def test_a_failure_that_replaces_a_refused_outcome_is_reported(completer, store, leases):
    told = []
    completer.on_member_failed = lambda: told.append(len(store.batches))
    store.answer = fail(1, ValueError("no"), [])
    completer.put(outcome(leases, batch=new_batch_id()))
    until(lambda: not leases.held())
    assert told == [2]


def test_a_refused_outcome_shows_that_outcomes_can_be_written_again(completer, store, leases):
    """The database was down, and then refuses this outcome permanently. Other outcomes can be written, so the worker may claim again."""
    answers = [Away(), ValueError("no"), ValueError("no")]

    def answer(_outcomes):
        if answers:
            raise answers.pop(0)
        return frozenset()

    store.answer = answer
    completer.put(outcome(leases))
    assert completer.flush(10)
    assert not answers
    assert completer.can_write.is_set()


def test_a_locked_outcome_is_written_before_the_thread_ends(completer, store, leases):
    locked = outcome(leases)
    store.locked = {locked.claim.id}
    completer.put(locked)
    assert completer.flush(10)
    completer.finish()
    until(lambda: len(store.unlocked) > 1)
    assert completer.is_alive()
    store.locked = set()
    completer.join(60)
    assert leases.held() == []


def test_a_database_that_refuses_all_outcomes_ends_the_worker(store, leases, died):
    def answer(_outcomes):
        raise ValueError("permission denied for table execution_events")

    store.answer = answer
    completer = Completer(store, leases, on_thread_failure=died.append)
    for one in [outcome(leases) for _ in range(10)]:
        completer.put(one)
    completer.start()
    completer.join(60)
    assert [type(error) for error in died] == [OutcomesRefused]
    assert "permission denied for table execution_events" in str(died[0])


def test_a_missing_file_ends_the_worker_with_an_error_that_names_the_file(store, leases, died):
    def answer(_outcomes):
        raise FileUnusable("the SQLite file shop.db was deleted while it was open")

    store.answer = answer
    completer = Completer(store, leases, on_thread_failure=died.append)
    completer.put(outcome(leases))
    completer.start()
    completer.join(60)
    assert [str(error) for error in died] == ["the SQLite file shop.db was deleted while it was open"]


def test_refused_outcomes_between_others_do_not_end_the_worker(completer, store, leases, died):
    refused = set()

    def answer(outcomes):
        if refused & {one.claim.id for one in outcomes}:
            raise ValueError("no")
        return frozenset()

    store.answer = answer
    for number in range(10):
        one = outcome(leases)
        if number % 3:
            refused.add(one.claim.id)
        completer.put(one)
        assert completer.flush(10)
    assert died == []


def test_claims_stay_held_until_their_outcomes_are_written(completer, store, leases):
    away = threading.Event()

    def answer(_outcomes):
        if not away.is_set():
            raise Away
        return frozenset()

    store.answer = answer
    completer.put(outcome(leases))
    until(lambda: len(store.batches + store.unlocked) > 3)
    assert len(leases.held()) == 1
    away.set()
    assert completer.flush(10)


def test_writes_are_not_retried_after_the_worker_has_stopped(completer, store, leases, caplog):
    def answer(_outcomes):
        raise Away

    store.gone.set()
    store.answer = answer
    completer.put(outcome(leases))
    assert completer.flush(10)
    assert len(store.batches) == 1
    assert "could not be written" in caplog.text


def test_only_lost_leases_are_logged(completer, store, leases, caplog):
    gate = block_the_first(store)
    completer.put(outcome(leases))
    until(lambda: store.batches)
    kept, lost = outcome(leases), outcome(leases)
    completer.put(kept)
    completer.put(lost)
    store.answer = lambda outcomes: frozenset({lost.claim.id} & {one.claim.id for one in outcomes})
    gate.set()
    assert completer.flush(10)
    assert f"task {lost.claim.id} (t): its lease was lost, so its outcome task_completed is discarded" in caplog.text
    assert str(kept.claim.id) not in caplog.text
    assert leases.held() == []


def test_a_later_claim_of_the_same_task_stays_held(completer, store, leases):
    """The outcome of the first claim is written. The second claim still runs, and its lease is extended."""
    first = outcome(leases, token=1)
    second = outcome(leases, token=2, task_id=first.claim.id)
    completer.put(first)
    assert completer.flush(10)
    assert [held.claim.lease_token for held in leases.held()] == [2]
    completer.put(second)
    assert completer.flush(10)
    assert leases.held() == []


def test_the_death_of_the_thread_is_reported(store, leases, died, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def answer(_outcomes):
        raise SystemExit(3)

    store.answer = answer
    completer = Completer(store, leases, on_thread_failure=died.append)
    completer.start()
    completer.put(outcome())
    completer.join(60)
    assert [type(error) for error in died] == [SystemExit]


def test_a_flush_does_not_wait_for_a_dead_thread(store, leases, died, monkeypatch):
    """Otherwise, a caller that waits until everything is written would wait forever."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def answer(_outcomes):
        raise SystemExit(3)

    store.answer = answer
    completer = Completer(store, leases, on_thread_failure=died.append)
    completer.start()
    completer.put(outcome())
    completer.join(60)
    returned = threading.Event()
    threading.Thread(target=lambda: completer.flush() or returned.set(), daemon=True).start()
    assert returned.wait(60)


def test_failpoints_are_reached_before_and_after_the_write(store, leases, died):
    happened = []
    store.answer = lambda _: happened.append("write") or frozenset()
    completer = Completer(store, Leases(store, on_failpoint=happened.append), on_thread_failure=died.append)
    completer.start()
    completer.put(outcome())
    assert completer.flush(10)
    completer.finish()
    completer.join(60)
    assert happened == [Failpoint.BEFORE_FINISH, "write", Failpoint.AFTER_FINISH]
