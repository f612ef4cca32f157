"""The counts that a worker keeps in memory: each attempt counts once, according to the end that the database confirmed."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from outboxq.model import Claim, EventType, Outcome
from outboxq.model.histograms import BUCKETS
from outboxq.model.records import OUTCOMES
from outboxq.worker.meter import TASK_BOUNDS, AttemptEnd, ClaimResult, Meter, Timing

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def claim(name: str = "send", queue: str = "mail", timeout: float | None = None) -> Claim:
    return Claim(
        id=uuid4(),
        pipeline_execution_id=uuid4(),
        task_name=name,
        queue=queue,
        priority=0,
        args="{}",
        headers=None,
        attempt=1,
        max_attempts=None,
        recovery_attempts=0,
        lease_token=1,
        worker_id=uuid4(),
        lease_seconds=60.0,
        lease_expires_at=NOON,
        timeout_seconds=timeout,
        created_at=NOON,
        first_started_at=NOON,
        started_at=NOON,
    )


def end(kind: EventType, *, timeout: float | None = None, **data: str) -> Outcome:
    return Outcome(claim=claim(timeout=timeout), event_type=kind, data=data)


def count(meter: Meter, outcome: Outcome, timing: Timing | None = None, *, lost: bool = False) -> None:
    meter.ended([outcome], None if timing is None else [timing], lost={outcome.claim.id} if lost else frozenset())


def ends(meter: Meter) -> dict[str, int]:
    counts = meter.read()["mail", "send"]
    names = ("completed", "retried", "failed", "cancelled", "snoozed", "released", "lost", "timed_out")
    return {name: number for name in names if (number := getattr(counts, name))}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (EventType.COMPLETED, "completed"),
        (EventType.RETRY_SCHEDULED, "retried"),
        (EventType.FAILED, "failed"),
        (EventType.CANCELLED, "cancelled"),
        (EventType.SNOOZED, "snoozed"),
        (EventType.RELEASED, "released"),
    ],
)
def test_an_end_counts_as_the_written_outcome_and_a_lost_end_as_lost(kind, name):
    meter = Meter()
    count(meter, end(kind))
    assert ends(meter) == {name: 1}
    count(meter, end(kind), lost=True)
    assert ends(meter) == {name: 1, "lost": 1}


@pytest.mark.parametrize("kind", [EventType.RETRY_SCHEDULED, EventType.FAILED])
def test_a_timeout_error_after_the_timeout_counts_only_as_timed_out(kind):
    meter = Meter()
    late, early = (0.0, 2.5), (0.0, 1.5)
    count(meter, end(kind, timeout=2.0, exception="builtins.TimeoutError"), late)
    assert ends(meter) == {"timed_out": 1}
    count(meter, end(kind, timeout=2.0, exception="builtins.TimeoutError"), early)  # for example, from a socket
    count(meter, end(kind, timeout=2.0, exception="builtins.ValueError"), late)
    count(meter, end(kind, exception="builtins.TimeoutError"), late)
    other = "retried" if kind is EventType.RETRY_SCHEDULED else "failed"
    assert ends(meter) == {"timed_out": 1, other: 3}


def test_a_task_that_completes_after_its_timeout_counts_as_completed():
    meter = Meter()
    count(meter, end(EventType.COMPLETED, timeout=2.0), (0.0, 2.5))
    assert ends(meter) == {"completed": 1}


def test_known_times_are_counted_in_buckets_and_unknown_ones_omitted():
    meter = Meter()
    count(meter, end(EventType.COMPLETED), (0.0005, 0.003))
    count(meter, end(EventType.COMPLETED), (7200.0, None))
    count(meter, end(EventType.RELEASED))
    counts = meter.read()["mail", "send"]
    wait, run = [0] * BUCKETS, [0] * BUCKETS
    wait[0] = wait[-1] = run[2] = 1
    assert (counts.wait, counts.run) == (wait, run)
    assert (counts.wait_seconds, counts.run_seconds) == (7200.0005, 0.003)


def test_later_ends_do_not_change_counts_already_read():
    meter = Meter()
    count(meter, end(EventType.COMPLETED), (0.1, 0.1))
    meter.claimed(1, 0.01)
    before, claims = meter.read()["mail", "send"], meter.read_claims()[ClaimResult.SOME]
    count(meter, end(EventType.COMPLETED), (0.1, 0.1))
    meter.claimed(1, 0.01)
    assert (before.completed, sum(before.wait), sum(before.run)) == (1, 1, 1)
    assert (claims.claims, sum(claims.by_seconds), sum(claims.by_tasks)) == (1, 1, 1)


def test_attempts_to_claim_are_counted_by_result():
    meter = Meter()
    meter.claimed(3, 0.003)
    meter.claimed(2000, 0.5)
    meter.claimed(0, 0.001)
    meter.claim_failed(0.25)
    claims = meter.read_claims()
    assert {result: (one.claims, one.tasks, one.seconds) for result, one in claims.items()} == {
        ClaimResult.SOME: (2, 2003, 0.503),
        ClaimResult.NONE: (1, 0, 0.001),
        ClaimResult.ERROR: (1, 0, 0.25),
    }
    assert claims[ClaimResult.SOME].by_tasks == [0, 0, 1, *[0] * (len(TASK_BOUNDS) - 3), 1]
    assert sum(claims[ClaimResult.ERROR].by_tasks) == 0


def test_recovered_tasks_and_lost_leases_are_counted_by_queue():
    meter = Meter()
    meter.recovered(["mail", "mail", "web"])
    meter.lease_lost("mail")
    assert (meter.read_recovered(), meter.read_leases_lost()) == ({"mail": 2, "web": 1}, {"mail": 1})


def test_the_log_and_the_counts_have_the_same_words_for_an_outcome() -> None:
    assert {*OUTCOMES.values()} == {*AttemptEnd} - {AttemptEnd.TIMED_OUT}
